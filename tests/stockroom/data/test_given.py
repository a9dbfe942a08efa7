"""Samples that are taken together are stored as they are one by one, or refused with the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import DataError, HopyardError
from hopyard.stockroom.data import given as module
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import ColumnRecord
from hopyard.storage import MemoryStore

_INTS = st.one_of(
    st.integers(-3, 3), st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1])
)
_FLOATS = st.sampled_from([0.0, -0.0, 0.5, 1.0, float("nan"), float("inf"), 2.0**53, 2.0**64, 1e300])
_PLAIN = [_INTS, _FLOATS, st.one_of(_INTS, _FLOATS), st.booleans(), st.one_of(st.booleans(), _INTS)]
_DTYPES = ["int8", "uint8", "int64", "uint64", "float32", "float64", "bool", "complex64", ">i4", "float16", "S3", "O",
           ml_dtypes.bfloat16]  # fmt: skip


def _arrays(dtype: Any) -> st.SearchStrategy[Any]:
    shapes = st.sampled_from([(), (2,), (2,), (1, 2), (0,)])
    return st.builds(lambda shape, value: np.full(shape, value).astype(dtype), shapes, st.integers(0, 1))


_VALUES = st.one_of(
    *_PLAIN,
    *(st.lists(each, min_size=2, max_size=2) for each in _PLAIN[:4]),
    st.lists(_INTS, max_size=3),
    st.tuples(_FLOATS, _INTS),
    st.sampled_from(
        ["text", "", b"bytes", None, [], {}, [[1, 2]], np.float32(0.5), np.int64(3), np.str_("t")]
    ),
    *map(_arrays, _DTYPES),
)
_KINDS: list[st.SearchStrategy[Any]] = [
    *_PLAIN, *(st.lists(each, min_size=2, max_size=2) for each in _PLAIN), *map(_arrays, _DTYPES),
    st.builds(np.float32, st.sampled_from([0.0, -0.0, 0.5, float("nan"), 2.0**64])),
    st.builds(np.int16, st.integers(-3, 3)), st.text(max_size=2), st.binary(max_size=2),
    st.lists(_INTS, max_size=2), st.tuples(_INTS, _FLOATS), _VALUES,
]  # fmt: skip
_KEYS = st.one_of(
    st.integers(-3, 40), st.text(max_size=2), st.sampled_from([2**63 - 1, -(2**63), "", "a\0b", np.int64(7)])
)
_ODD = st.sampled_from([True, 1.5, None, b"b", 2**63, (1, 2), (1, 2, 3), "\ud800"])
_BEFORE = st.sampled_from(
    [None, ("int64", ()), ("uint8", ()), ("float32", ()), ("float64", (2,)), ("int16", (None,)), ("bool", ()),
     ("bfloat16", ()), "string", "nested"]
)  # fmt: skip


def column(before: Any) -> ColumnDraft:
    made = ColumnDraft(objects := Objects(MemoryStore()), objects.writing(), "x")
    if before == "string":
        made.create(kind="string")
    elif before == "nested":
        made.create(dtype="int64", nested=True)
    elif before is not None:
        made.create(dtype=before[0], shape=before[1])
    return made


def done(call: Callable[[ColumnDraft], object], before: Any) -> tuple[str, ColumnRecord | None]:
    """What is said, and what is stored then."""
    draft = column(before)
    try:
        call(draft)
    except HopyardError as error:
        return f"{type(error).__name__}: {error}", draft.flush()
    return "", draft.flush()


def in_both_ways(call: Callable[[ColumnDraft], object], before: Any) -> None:
    together = done(call, before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "uniform", lambda values, settings: None)
        assert done(call, before) == together
    if together[0]:
        assert together[1] == column(before).flush()


@given(st.data(), st.sampled_from(_KINDS), _BEFORE)
def test_a_dict_is_stored_as_its_samples_are_one_by_one(data: st.DataObject, kind: Any, before: Any) -> None:
    values = data.draw(st.dictionaries(_KEYS, kind, min_size=8, max_size=20))
    if data.draw(st.integers(0, 9)) == 0:
        values[data.draw(_ODD)] = data.draw(kind)
    if data.draw(st.integers(0, 4)) == 0:
        values[data.draw(st.sampled_from(list(values)))] = data.draw(_VALUES)
    in_both_ways(lambda draft: draft.update(values), before)
    in_both_ways(lambda draft: draft.extend(list(values.values())), before)
    in_both_ways(lambda draft: draft.replace(values), before)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (2**64, "which is no int of 64 bits"),
        ("text", "is text|strings?|holds"),
        (np.zeros(3), r"shape"),
        (None, "is of type builtins.NoneType"),
        (0.5, "cannot hold exactly"),
    ],
)
def test_a_bad_sample_in_the_midst_of_many_stores_nothing(bad: Any, said: str) -> None:
    draft = column(("int64", ()))
    draft.update({key: key for key in range(3000)})
    before = draft.flush()
    with pytest.raises(DataError, match=rf"the sample 1500 .*({said}).*Nothing was written"):
        draft.update({key: bad if key == 1500 else -key for key in range(3000)})
    assert draft.flush() == before


def test_samples_of_a_dict_are_found_again_whatever_the_order_of_keys() -> None:
    draft = column(None)
    keys = [*np.random.default_rng(0).permutation(3000).tolist(), "b", "a", "\U0001f600"]
    draft.update({key: np.array([at, -at]) for at, key in enumerate(keys)})
    assert {key: value.tolist() for key, value in draft.items()} == {
        key: [at, -at] for at, key in enumerate(keys)
    }
    assert draft.append(np.array([1, 1])) == 3000
