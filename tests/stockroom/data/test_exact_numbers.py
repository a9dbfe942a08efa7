"""Numbers of Python and lists of them: each is stored as it is, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard import StockRoom
from hopyard.errors import DataError
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import MemoryStore

BIG = 2**63 + 1


def column() -> ColumnDraft:
    writer = Objects(MemoryStore()).writing()
    return ColumnDraft(writer, writer, "c")


WAYS: dict[str, Callable[[ColumnDraft, list[Any]], None]] = {
    "list": lambda column, values: column.extend(values),
    "iterator": lambda column, values: column.extend(iter(values)),
    "dict": lambda column, values: column.update(dict(enumerate(values))),
    "replaced": lambda column, values: column.replace(values),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, BIG], "uint64"), ([BIG, 0], "uint64"), ([-1, 2**63 - 1], "int64"), ([1, 0.5], "float64"),
        ([2**53, 0.5], "float64"), ([[1, BIG], [2, 3]], "uint64"), ([[0, 1], [BIG, 1]], "uint64"),
        ([True, False], "bool"), ([[1, 0.5], [2, 3]], "float64"), ([1, 2j], "complex128"),
        ([1, math.inf], "float64"), ([[np.int64(1), np.uint64(BIG)]], "uint64"),
    ],
)  # fmt: skip
def test_numbers_are_what_was_given(way: str, values: list[Any], dtype: str) -> None:
    made = column()
    WAYS[way](made, values)
    assert made.dtype == dtype
    assert [sample.tolist() for sample in made.values()] == values


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 2**64], "the sample 1 holds 18446744073709551616, which is no int of 64 bits. Give it as text"),
        ([1, -(2**63) - 1], "the sample 1 holds -9223372036854775809, which is no int of 64 bits"),
        ([-1, BIG], "the sample 0 is -1, which uint64, the dtype of the others, cannot hold exactly"),
        ([2**53 + 1, 0.5], "the sample 0 is 9007199254740993, which float64, the dtype of the others, cannot"),
        ([0.5, BIG], "the sample 1 is 9223372036854775809, which float64"),
        ([True, 2], "the sample 0 is True, which int64, the dtype of the others, cannot hold exactly"),
        ([[1], [-1, BIG]][1:], "the sample 0 holds -1 and 9223372036854775809: int64 cannot hold the one, and uint64"),
        ([[2**53 + 1, 0.5]], "holds 9007199254740993 together with floats, and float64 cannot hold it exactly. Give"),
        ([[2**53 + 1, 1j]], "holds 9007199254740993 together with floats"),
        ([[True, 2]], "the sample 0 holds bools and numbers. Give bools alone, or int"),
        ([[0.5, True]], "the sample 0 holds bools and numbers"),
        ([[[2**64]]], "holds 18446744073709551616, which is no int of 64 bits"),
        ([10**400], "holds an int of 1329 bits, which is no int of 64 bits"),
        ([[np.array([2**53 + 1]), np.array([0.5])]], "holds 9007199254740993 together with floats"),
    ],
)  # fmt: skip
def test_numbers_that_no_dtype_holds_are_refused_by_key_and_value(
    way: str, values: list[Any], said: str
) -> None:
    made = column()
    with pytest.raises(DataError) as error:
        WAYS[way](made, values)
    assert said in str(error.value)
    assert "Nothing was written" in str(error.value)
    assert len(made) == 0


@pytest.mark.parametrize("dtype", ["int64", "uint8", "uint64", "float32", "bool"])
@pytest.mark.parametrize("value", [1.5, 300, math.nan, 2**53 + 1, -1, True, BIG, 0.1])
def test_columns_that_are_there_take_only_what_they_hold_exactly(dtype: str, value: Any) -> None:
    for way in ("list", "iterator", "dict"):
        made = column()
        made.create(dtype=dtype)
        try:
            WAYS[way](made, [value])
        except DataError as error:
            assert f"the sample 0 is {value!r}, which {dtype}" in str(error)  # noqa: PT017
            assert len(made) == 0
        else:
            kept = made[0].item()
            assert kept == value or (math.isnan(kept) and math.isnan(value))
            assert type(value) is not bool or dtype == "bool"


NUMBERS = (
    st.integers(-(2**65), 2**65)
    | st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64])
    | st.floats(allow_nan=False)
    | st.booleans()
)


@given(
    st.lists(NUMBERS | st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=4),
    st.sampled_from(list(WAYS)),
)
def test_whatever_is_stored_equals_what_was_given(values: list[Any], way: str) -> None:
    made = column()
    try:
        WAYS[way](made, values)
    except DataError:
        assert len(made) == 0
        return
    kept = [sample.tolist() for sample in made.values()]
    assert kept == values

    def bools(found: Any) -> Any:
        return [bools(each) for each in found] if isinstance(found, list) else isinstance(found, bool)

    assert bools(kept) == bools(values)


def test_object_arrays_are_refused_with_the_way_that_is_exact() -> None:
    made = column()
    with pytest.raises(
        DataError, match=r"is of dtype object.*give a list, \.tolist\(\) of numbers, which are kept"
    ):
        made.extend(np.array([1, BIG], object))
    made.extend(np.array([1, BIG], object).tolist())
    assert [int(sample) for sample in made.values()] == [1, BIG]


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockRoom]:
    with StockRoom.init(tmp_path, enable_write=True) as stock:
        yield stock


def test_values_keep_ints_of_any_size_and_refuse_times(stock: StockRoom) -> None:
    value = {"id": 2**70, "neg": -(2**64), "ids": [2**53 + 1, 0.5, True], "np": np.uint64(BIG)}
    stock.experiment["v"] = value
    stock.commit("one")
    again = StockRoom(stock.place.root).experiment["v"]
    assert again == value
    assert type(again["ids"][2]) is bool
    for time in (np.timedelta64(5, "ns"), np.datetime64("2030-01-01T00:00:00.000000000")):
        with pytest.raises(DataError, match="but values are int, float, bool, str, None"):
            stock.experiment["t"] = time


def test_a_metric_that_would_be_rounded_is_refused(stock: StockRoom) -> None:
    with stock.run() as run:
        run.log(loss=2**63, tokens=np.int64(5))
        for value in (2**53 + 1, np.int64(2**53 + 1), np.uint64(BIG)):
            with pytest.raises(
                DataError, match=rf"'tokens' was logged as {value}, but metrics are float64, which w"
            ):
                run.log(loss=0.5, tokens=value)
    assert stock.experiment.runs()[0].metrics["loss"][1].tolist() == [2.0**63]
    assert stock.experiment.runs()[0].metrics["tokens"][1].tolist() == [5.0]
