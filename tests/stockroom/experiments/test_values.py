"""A plain value comes back as what it was."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle
import struct
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.stockroom.standin import Staged

from hopyard.errors import DataError, NotFoundError, UsageError
from hopyard.stockroom.experiments import ExperimentShelf, reached_of_value
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.records import ValueRecord
from hopyard.stockroom.records.frozen import FrozenDict, FrozenList


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
        return isinstance(value, tuple), [bits(item) for item in value]
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


# What is handed out

CONFIG = {"lr": 0.1, "layers": [1, {"width": 8}], "pair": ([1], 2), "names": {"a": "b"}}

CHANGES: dict[str, Callable[[Any], Any]] = {
    "item": lambda value: value.__setitem__("lr", 0.5),
    "deep": lambda value: value["layers"][1].update(width=9),
    "list": lambda value: value["layers"].append(3),
    "in a tuple": lambda value: value["pair"][0].insert(0, 3),
    "pop": lambda value: value.pop("lr"),
    "del": lambda value: value.__delitem__("lr"),
    "or": lambda value: operator.ior(value, {"lr": 1}),
    "clear": lambda value: value.clear(),
    "popitem": lambda value: value.popitem(),
    "setdefault": lambda value: value.setdefault("x", 1),
    "slice": lambda value: value["layers"].__setitem__(slice(None), []),
    "iadd": lambda value: operator.iadd(value["layers"], [3]),
    "imul": lambda value: operator.imul(value["layers"], 2),
    "sort": lambda value: value["layers"].sort(),
    "reverse": lambda value: value["layers"].reverse(),
    "remove": lambda value: value["layers"].remove(1),
    "extend": lambda value: value["layers"].extend([1]),
    "list pop": lambda value: value["layers"].pop(),
    "list del": lambda value: value["layers"].__delitem__(0),
    "list clear": lambda value: value["layers"].clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_value_that_was_handed_out_cannot_be_changed(shelf: ExperimentShelf, change: str) -> None:
    shelf["cfg"] = CONFIG
    with pytest.raises(UsageError) as error:
        CHANGES[change](shelf["cfg"])
    assert str(error.value) == (
        "stock.experiment['cfg'] was handed out to be read: changing it would change nothing that is stored. Take a "
        "copy, change that, and assign it: value = stock.experiment['cfg'].copy(); ...; stock.experiment['cfg'] = value"
    )
    assert shelf["cfg"] == CONFIG


def test_every_way_to_change_a_dict_or_list_is_refused() -> None:
    def changers(kind: type) -> set[str]:
        other = "__ior__" if kind is dict else "__iadd__"
        names = {name for name in dir(kind) if not name.startswith("_")} | {
            "__setitem__",
            "__delitem__",
            other,
        }
        return names - set(dir(tuple)) - set(dir(types.MappingProxyType({}))) - {"copy", "fromkeys"}

    for kind, made in ((dict, FrozenDict), (list, FrozenList)):
        assert {name for name in changers(kind) if getattr(made, name) is not made._refuse} == set()


@pytest.mark.parametrize(
    "copied",
    [lambda value: value.copy(), copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))],
)
def test_copies_of_what_was_handed_out_are_plain_and_can_be_stored(
    shelf: ExperimentShelf, copied: Callable[[Any], Any]
) -> None:
    shelf["cfg"] = CONFIG
    value = copied(shelf["cfg"])
    assert [type(each) for each in (value, value["layers"], value["layers"][1], value["pair"][0])] == [
        dict, list, dict, list,
    ]  # fmt: skip
    value["layers"][1]["width"] = 9
    shelf["cfg"] = value
    assert shelf["cfg"]["layers"] == [1, {"width": 9}]
    shelf["other"] = shelf["cfg"]
    shelf["layers"] = shelf["cfg"]["layers"]
    assert shelf["other"] == value
    assert type(shelf["layers"].copy()) is list


def test_what_was_handed_out_is_written_as_what_it_is(shelf: ExperimentShelf) -> None:
    shelf["cfg"] = {name: value for name, value in CONFIG.items() if name != "pair"}
    value = shelf["cfg"]
    assert (repr(value), isinstance(value, dict)) == (repr(value.copy()), True)
    assert json.loads(json.dumps(value)) == value
    yaml = pytest.importorskip("yaml")
    for dumped in (yaml.safe_dump(value), yaml.dump(value)):
        assert dumped == yaml.safe_dump(value.copy())


def test_models_take_what_was_handed_out(shelf: ExperimentShelf, staged: Staged) -> None:
    shelf["cfg"] = CONFIG
    models = ModelShelf(staged)
    models["m"] = {"cfg": shelf["cfg"], "w": np.ones(2)}
    assert models["m"]["cfg"] == CONFIG


def test_what_a_stored_run_hands_out_cannot_be_changed(shelf: ExperimentShelf) -> None:
    with shelf.start(params={"a": [1]}, tags={"t": {}}, git={"commit": "x"}) as run:
        pass
    stored = shelf.run(run.id)
    for change in (
        lambda: stored.params.update(a=2), lambda: stored.params["a"].append(2), lambda: stored.tags.clear(),
        lambda: stored.git.pop("commit"), lambda: stored.links.setdefault("model", {}),
    ):  # fmt: skip
        with pytest.raises(
            UsageError, match=r"is stored and never changes: changing what it handed out .*\.copy"
        ):
            change()
    assert (stored.params, stored.tags, stored.git) == ({"a": [1]}, {"t": {}}, {"commit": "x"})
