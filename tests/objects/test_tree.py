"""Trees come back as they were: keys, orders, types, and every bit of a float."""

import json
import math
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, DataError
from hopyard.objects import Tensor, flatten, unflatten

TENSORS = st.builds(
    lambda seed, shape: Tensor.from_numpy(np.random.default_rng(seed).integers(0, 3, shape)),
    st.integers(0, 3),
    st.sampled_from([(), (0,), (2,), (2, 3)]),
)
TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=6)
LEAVES = st.none() | st.booleans() | st.integers() | st.integers(2**62, 2**70) | st.floats() | TEXT | TENSORS
KEYS = (
    st.sampled_from(["/", "~", "a/b", "~1", "~i1", "1", "", "__metadata__", "T", "d", "0"])
    | TEXT
    | st.integers(-3, 30)
)
TREES = st.recursive(
    LEAVES,
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(KEYS, children, max_size=5)
    ),
    max_leaves=20,
)


def exact(value: Any) -> Any:
    """A value that is equal only for trees of equal types, orders and bits."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, dict):
        return "dict", [(type(key), key, exact(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    return type(value), value


@given(TREES)
def test_trees_come_back_exactly(tree: Any) -> None:
    tensors, skeleton = flatten(tree)
    assert exact(unflatten(tensors, json.loads(json.dumps(skeleton)))) == exact(tree)


def count_tensors(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(count_tensors, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(count_tensors, value))
    return int(isinstance(value, Tensor))


@given(TREES)
def test_no_two_tensors_share_a_path(tree: Any) -> None:
    tensors, _ = flatten(tree)
    assert len(tensors) == count_tensors(tree)
    assert "__metadata__" not in tensors


def test_paths_are_readable() -> None:
    x = Tensor.from_numpy(np.zeros(1))
    tree = {"model": {"0.weight": x}, "optimizer": {"state": {0: {"m": x}}, "groups": [(x, 1)]}, "a/b": x}
    assert list(flatten(tree)[0]) == [
        "model/0.weight",
        "optimizer/state/~i0/m",
        "optimizer/groups/0/0",
        "a~1b",
    ]


def test_special_floats_and_large_ints_are_exact() -> None:
    tree = [math.inf, -math.inf, -0.0, 5e-324, 0.1, 2**63, -(2**63) - 1, 10**5000]
    _, skeleton = flatten(tree)
    back = unflatten({}, json.loads(json.dumps(skeleton)))
    assert exact(back) == exact(tree)


def test_an_ordered_dict_is_a_dict() -> None:
    assert unflatten({}, flatten(OrderedDict(b=1, a=2))[1]) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [0, {1}]}, r"the value at 'a/1' is a builtins\.set"),
        (np.zeros(3), r"the value at the top is a numpy\.ndarray.*Tensor\.from_numpy for arrays"),
        ({"lr": np.float64(0.1)}, r"the value at 'lr' is a numpy\.float64"),
        ([namedtuple("Point", "x")(1)], r"the value at '0' is a .*Point"),
        ({"a": {(1, 2): 0}}, r"the dict at 'a' has the key \(1, 2\) of type builtins\.tuple.*str or int"),
        ({True: 0}, r"the dict at the top has the key True of type builtins\.bool"),
        ({"\ud800": 0}, r"has the key '\\ud800', which is not valid Unicode"),
        (["a", ("\ud800",)], r"the text at '1/0' is '\\ud800', which is not valid Unicode"),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place(tree: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        flatten(tree)


@pytest.mark.parametrize(
    "skeleton", [{"T": "gone"}, {"x": 1}, {}, {"f": "zz"}, {"f": "00"}, {"d": [1]}, {"i": None}]
)
def test_a_skeleton_that_does_not_fit_is_corrupt(skeleton: Any) -> None:
    with pytest.raises(CorruptError, match=r"does not fit its tensors.*Restore it from a copy"):
        unflatten({}, skeleton)
