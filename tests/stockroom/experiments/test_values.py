"""A plain value comes back as what it was."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.stockroom.standin import Staged

from hopyard.errors import DataError, NotFoundError, UsageError
from hopyard.stockroom.experiments import ExperimentShelf, reached_of_value
from hopyard.stockroom.records import ValueRecord


@pytest.fixture
def staged() -> Staged:
    return Staged()


@pytest.fixture
def shelf(staged: Staged) -> ExperimentShelf:
    return ExperimentShelf(staged)


def bits(value: Any) -> Any:
    """The value with its types, floats by their bits."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, list | tuple):
        return type(value), [bits(item) for item in value]
    if isinstance(value, dict):
        return [(key, bits(item)) for key, item in value.items()]
    return type(value), value


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: (
        st.lists(below) | st.tuples(below) | st.dictionaries(st.integers() | st.text("ab~/"), below)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_values_come_back_with_their_types(value: Any) -> None:
    staged = Staged()
    ExperimentShelf(staged)["v"] = value
    assert bits(ExperimentShelf(staged)["v"]) == bits(value)
    assert bits(ExperimentShelf(staged.committed())["v"]) == bits(value)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (np.float32(0.5), 0.5),
        (np.int8(-3), -3),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (
            [np.float64(math.inf), {"a": np.uint64(2**64 - 1), np.int64(3): 1}],
            [math.inf, {"a": 2**64 - 1, 3: 1}],
        ),
        ({"json": "x"}, {"json": "x"}),
    ],
)
def test_scalars_of_numpy_become_pythons(shelf: ExperimentShelf, given: Any, stored: Any) -> None:
    shelf["v"] = given
    assert bits(shelf["v"]) == bits(stored)


def test_large_values_are_objects_of_their_own(staged: Staged, shelf: ExperimentShelf) -> None:
    shelf["small"], shelf["large"] = "x" * 4000, ["x" * 4000, "y" * 100]
    small, large = (staged.records["experiment", name] for name in ("small", "large"))
    assert isinstance(small, ValueRecord)
    assert isinstance(large, ValueRecord)
    assert (small.value, reached_of_value(small)) == ("x" * 4000, [])
    assert reached_of_value(large) == [large.value["json"]]
    assert shelf["large"] == ["x" * 4000, "y" * 100]


def test_a_shelf_is_like_a_dict(staged: Staged, shelf: ExperimentShelf) -> None:
    assert (len(shelf), "lr" in shelf, 3 in shelf) == (0, False, False)
    shelf["lr"], shelf["a b,--_é"], shelf["flag"] = 0.1, None, True
    assert (list(shelf), len(shelf), "lr" in shelf) == (["a b,--_é", "flag", "lr"], 3, True)
    assert shelf["flag"] is True
    del shelf["flag"]
    for use in (shelf.__getitem__, shelf.__delitem__):
        with pytest.raises(
            NotFoundError, match=r"no value 'lrr' in the commit 0123abcd; did you mean 'lr'\? It has 'a b"
        ):
            use("lrr")
    reader = ExperimentShelf(staged.committed())
    with pytest.raises(
        UsageError, match=r"the commit 0123abcd was opened for reading. Write within `with stock"
    ):
        reader["lr"] = 1
    with pytest.raises(UsageError, match=r"opened for reading"):
        del reader["lr"]
    with pytest.raises(UsageError, match=r"The experiment shelf was given the name 3 of type int"):
        shelf[3] = 1  # type: ignore[index]


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            object(),
            r"The value 'v' is a builtins.object, but values are int, float, bool, str, None, and lists, tuples",
        ),
        (
            {"a": [1, {1, 2}]},
            r"The value 'v'\['a'\]\[1\] is a builtins.set, but .* Convert it, for example with str",
        ),
        (1j, "is a builtins.complex"),
        (np.complex64(1), "is a numpy.complex64"),
        (np.zeros(2), r"Arrays and tensors go to stock.model or stock.data, or convert it with .tolist\(\)"),
        (torch.ones(()), r"is a torch.Tensor, but .* Use its .item\(\)"),
        (b"x", "Bytes go to stock.data, or to a file that a run logs as an artifact"),
        ({1.5: 2}, "the dict at the top has the key 1.5 of type builtins.float, but keys must be str or int"),
        (LOOP, "The value 'v' holds a container that holds itself, or is nested too deep"),
    ],
)
def test_what_is_no_plain_value_is_named(shelf: ExperimentShelf, value: Any, said: str) -> None:
    shelf["v"] = 1
    with pytest.raises(DataError, match=said):
        shelf["v"] = value
    assert shelf["v"] == 1
