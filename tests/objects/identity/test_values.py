"""The digest of values, and what has none."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import enum
import fractions
import json
import math
import re
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard.objects.identity import describe_value, function_digest, identity


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def double(x: Any) -> Any:
    return 2 * x


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


@dataclasses.dataclass(frozen=True)
class Setting:
    width: int
    rates: tuple[float, ...] = ()


Point = collections.namedtuple("Point", "x y")

DIFFERENT: list[Any] = [
    None, True, 1, 1.0, "1", b"1", 0.0, -0.0, math.inf, -math.inf, math.nan, 1j, ..., [], (), {}, set(), frozenset(),
    [1], (1,), {1}, [[1]], {"a": 1}, {1: "a"}, [1, 2], [2, 1], {"a": 1, "b": 2}, bytearray(b"1"), range(3), slice(3),
    Color.RED, Color.BLUE, Color, Setting(1), Setting(2), Setting(1, (0.1,)), Point(1, 2), Point(2, 1), 10**30,
    np.float32(1), np.float64(1), np.int64(1), np.zeros(2), np.zeros((2, 1)), np.zeros(2, "f4"), np.array(["a"]),
    np.array(["a", None], object), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), np.dtype("f4"), np.dtype("f8"),
    torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1, 2), torch.ones(2), torch.tensor(1),
    torch.zeros(2, requires_grad=True), torch.nn.Parameter(torch.zeros(2)), torch.float32, torch.bfloat16,
    torch.device("cpu"), torch.device("meta"), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Dropout(0.2),
    torch.nn.Linear, torch.relu, torch.nn.functional.relu, np.sum, np.add, len, sorted, [].append, str.upper,
    re.compile("a"), re.compile("b"), re.compile("a", re.IGNORECASE), Path("a"), Path("b"), fractions.Fraction(1, 3),
    datetime.date(2020, 1, 2), collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1]),
    np.random.default_rng(0), np.random.default_rng(1), list[int], object, int, json, {"see": "x"}, {"a": math.inf},
]  # fmt: skip


def test_different_values_have_different_digests() -> None:
    digests: dict[str | None, Any] = {}
    for value in DIFFERENT:
        found = identity(value)
        assert found.digest is not None, found.undigestible
        assert found.digest not in digests, (value, digests[found.digest])
        digests[found.digest] = value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(Color),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_descriptions_are_json_and_equal_values_have_equal_ones(value: Any) -> None:
    description = describe_value(value)
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    assert description == describe_value(copy.deepcopy(value))


def test_the_order_of_a_set_does_not_count_and_that_of_a_dict_does(same: Callable[[Any, Any], bool]) -> None:
    names = [f"name {number}" for number in range(50)]
    backwards = names[::-1]
    assert same(set(names), set(backwards))
    assert same(frozenset({double, len, Color}), frozenset({Color, len, double}))
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_values_that_hold_themselves_end(same: Callable[[Any, Any], bool]) -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    node = Holder(1)
    node.value = node
    assert same(ring, ring)
    assert same(node, node)
    assert not same(ring, [1, [1]])


def test_views_of_arrays_and_tensors_count_by_what_they_show(same: Callable[[Any, Any], bool]) -> None:
    array, tensor = np.arange(12).reshape(3, 4), torch.arange(12).reshape(3, 4)
    assert same(array.T, array.T.copy())
    assert not same(array.T, array)
    assert same(tensor.T, tensor.T.contiguous())


# What cannot be digested


def test_what_cannot_be_digested_is_named_with_the_way_to_it(tmp_path: Path) -> None:
    connection, lock = sqlite3.connect(":memory:"), threading.Lock()
    values = {"open": [lock]}

    def helper() -> Any:
        return connection

    def gen(params: Any, items: Any = (n for n in [1])) -> Any:
        return helper(), values, params, items

    found = identity(gen)
    assert found.digest is None
    assert found.undigestible == [
        "function -> defaults -> [0] is a builtins.generator",
        "function -> closure['helper'] -> closure['connection'] is a sqlite3.Connection",
        "function -> closure['values'] -> ['open'] -> [0] is a _thread.lock",
    ]
    connection.close()


def test_open_files_and_sparse_tensors_cannot_be_digested(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        assert identity(file, "log").undigestible == ["log is a _io.TextIOWrapper"]
    (reason,) = identity({"mask": torch.eye(2).to_sparse()}, "init_from").undigestible
    assert reason.startswith("init_from -> ['mask'] is a torch.Tensor without plain content")


@pytest.mark.usefixtures("nothing_collected")
def test_a_value_nested_beyond_the_stack_is_a_reason_not_an_error() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert identity(deep, "init_from").undigestible == ["init_from is nested too deeply"]


# Functions


def test_a_function_has_a_digest_of_its_own_in_each_domain() -> None:
    digest = function_digest(double, "a domain")
    assert digest is not None
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest == function_digest(double, "a domain")
    assert digest != function_digest(double, "another domain")
    assert digest != function_digest(abs, "a domain")


def test_a_function_that_cannot_be_digested_has_none() -> None:
    lock = threading.Lock()
    assert function_digest(lambda row: (lock, row), "a domain") is None
