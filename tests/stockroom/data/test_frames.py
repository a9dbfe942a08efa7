"""Series of pandas and polars, arrays of Arrow and nested tensors as samples of a column."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from hopyard.errors import DataError, UsageError
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import MemoryStore

Draft = Callable[[], ColumnDraft]


@pytest.fixture
def draft() -> Any:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        yield lambda: ColumnDraft(objects, writer, "x")


def _content(column: ColumnDraft) -> dict[Any, Any]:
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in column.items()}


SERIES = [
    (pd.Series(["a", "b"]), "str", {0: "a", 1: "b"}),
    (pd.Series(["a", "b"], dtype=object), "str", {0: "a", 1: "b"}),
    (pd.Series(["a", "b"], dtype="category"), "str", {0: "a", 1: "b"}),
    (pd.Series(["a", "b"], dtype="string"), "str", {0: "a", 1: "b"}),
    (pd.Series(["a", "b"], index=["k", "j"]), "str", {"j": "b", "k": "a"}),
    (pd.Series([1, 2, 3], dtype="uint8", index=[7, 5, 6]), "uint8", {5: 2, 6: 3, 7: 1}),
    (pd.Series([1.5, np.nan]), "float64", None),
    (pd.Series([1, 2], dtype="Int32"), "int32", {0: 1, 1: 2}),
    (pd.Series([True, False]), "bool", {0: True, 1: False}),
    (pd.Series([b"a", b"b"]), "bytes", {0: b"a", 1: b"b"}),
    (pd.Series([np.arange(2), np.arange(3)]), "int64", {0: [0, 1], 1: [0, 1, 2]}),
    (pd.Series([3, 4], index=pd.MultiIndex.from_tuples([("a", 0), ("a", 1)])), "int64", {("a", 0): 3, ("a", 1): 4}),
    (pd.Series(pd.arrays.SparseArray([0, 1])), "int64", {0: 0, 1: 1}),
    (pd.Index(["b", "a"]), "str", {0: "b", 1: "a"}),
    (pl.Series(["a", "b"]), "str", {0: "a", 1: "b"}),
    (pl.Series([[1.0, 2.0], [3.0]]), "float64", {0: [1.0, 2.0], 1: [3.0]}),
    (pl.Series([1, 2], dtype=pl.Int8), "int8", {0: 1, 1: 2}),
    (pa.array(["a", "b"]), "str", {0: "a", 1: "b"}),
    (pa.chunked_array([[1, 2], [3]]), "int64", {0: 1, 1: 2, 2: 3}),
    (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), "float32", {0: [1, 2], 1: [3, 4]}),
    (pa.array(["a", "b", "a"]).dictionary_encode(), "str", {0: "a", 1: "b", 2: "a"}),
    (pa.array([b"a"]), "bytes", {0: b"a"}),
]  # fmt: skip


@pytest.mark.parametrize(("series", "dtype", "content"), SERIES, ids=lambda each: type(each).__name__)
def test_a_series_is_a_column_under_the_keys_of_its_index(
    draft: Draft, series: Any, dtype: str, content: Any
) -> None:
    column = draft()
    column.replace(series)
    assert column.dtype == dtype
    if content is not None:
        assert _content(column) == content


def test_a_frame_filtered_and_shuffled_keeps_which_row_is_which(draft: Draft) -> None:
    frame = pd.DataFrame({"x": np.arange(100) ** 2, "text": [str(n) for n in range(100)]})
    chosen = frame[frame.x % 3 == 0].sample(frac=1, random_state=0)
    for name in frame.columns:
        column = draft()
        column.replace(chosen[name])
        assert _content(column) == dict(sorted(chosen[name].to_dict().items()))
    column.update(frame["text"][:2])
    assert column[1] == "1"


def test_extend_takes_what_has_no_keys_of_its_own(draft: Draft) -> None:
    column = draft()
    column.extend(pd.Series(["a", "b"]))
    column.extend(pl.Series(["c"]))
    column.extend(pa.array(["d"]))
    assert _content(column) == {0: "a", 1: "b", 2: "c", 3: "d"}
    series = pd.Series(["e"], index=[9])
    with pytest.raises(
        DataError, match=r"the first is 9\), which extend\(\) would drop. update\(series\) stores"
    ):
        column.extend(series)
    assert len(column) == 4
    column.extend(series.reset_index(drop=True))
    column.update(series)
    assert _content(column) == {0: "a", 1: "b", 2: "c", 3: "d", 4: "e", 9: "e"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (pd.Series([1, 2], index=["a", "a"]), "has 1 key more than once, the first is 'a'.*reset_index"),
        (pd.Series([1, 2], index=["a", None]), r"lacks some of them \(NaN\)"),
        (pd.Series([1, 2], index=[0.5, 1.0]), "the key 0.5 is of type float, but keys are ints, strings"),
        (pd.Series([1], index=pd.MultiIndex.from_tuples([(1, 2, 3)])), "an index of 3 levels"),
        (pd.Series(["a", None]), "given 1 missing value, the first under 1; samples cannot be null. Drop"),
        (pd.Series(["a", None], index=["p", "q"]), "the first under 'q'"),
        (pd.Series([1, None], dtype="Int64"), "1 missing value, the first under 1"),
        (pl.Series([1, None]), "1 missing value, the first under 1"),
        (pa.array([None, 1]), "1 missing value, the first under 0"),
        (pd.Series(pd.to_datetime(["2020-01-01"])), "is of dtype datetime64.*Columns store no times"),
        (pa.array([1], pa.timestamp("s")), "Columns store no times"),
        (pa.array([{"a": 1}]), "An Arrow array cannot be samples.*make its fields columns"),
        (pl.Series([object()]), "Series of Python objects"),
        (pd.DataFrame({"a": [1]}), r"given a DataFrame of pandas, which has several columns. Store each"),
        (pl.DataFrame({"a": [1]}), r"a DataFrame of polars, which has .* columns. Store each .* frame.columns"),
        (pl.LazyFrame({"a": [1]}), r"LazyFrame of polars, .*frame = frame.collect\(\), and store each"),
        (pa.table({"a": [1]}), r"given a Table of Arrow, which has several columns"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_column_is_an_error_and_changes_nothing(draft: Draft, given: Any, text: str) -> None:
    column = draft()
    column.replace(["before"])
    with pytest.raises(UsageError, match=f"(?s){text}"):
        column.replace(given)
    assert _content(column) == {0: "before"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_the_tensors_that_it_holds(draft: Draft, layout: Any) -> None:
    nested = torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=layout)
    column = draft()
    column.replace(nested)
    assert column.shape == (None,)
    column.extend(nested)
    assert _content(column) == {0: [0, 1], 1: [0, 1, 2], 2: [0, 1], 3: [0, 1, 2]}
    with pytest.raises(
        DataError, match=re.escape("is a nested tensor, which is several tensors. Give them as samples")
    ):
        column[4] = nested
    with pytest.raises(DataError, match=r"update was given a .*Tensor, which has no keys"):
        column.update(nested)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (pa.array(["a", "bc"]), ["a", "a", "bc"]),
        (pa.array(["a", "bc"]).dictionary_encode(), ["a", "a", "bc"]),
        (pa.array(["a", "bc"], pa.string_view()), ["a", "a", "bc"]),
        (pa.array([b"a", b"bc"]), [b"a", b"a", b"bc"]),
        (pa.array([1, 2], pa.int16()), [1, 1, 2]),
    ],
    ids=["text", "dictionary", "view", "bytes", "numbers"],
)
def test_runs_of_arrow_are_stored_as_the_values_that_they_stand_for(
    draft: Draft, values: pa.Array, want: list[Any]
) -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], values)
    for given, samples in (
        (runs, want),
        (runs[1:], want[1:]),
        (pa.chunked_array([runs, runs[1:]]), want + want[1:]),
    ):
        column = draft()
        column.replace(given)
        assert list(_content(column).values()) == samples


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, 2], pa.timestamp("s")), "Columns store no times"),
        (pa.array(["a", None]), "1 missing value, the first under 2"),
    ],
)
def test_runs_of_arrow_that_cannot_be_samples_are_refused(
    draft: Draft, values: pa.Array, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        draft().replace(pa.RunEndEncodedArray.from_arrays([2, 3], values))
