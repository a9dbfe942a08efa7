"""Whatever the libraries of the field have for samples and names is stored as it is, or refused with what to do."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch._subclasses import FakeTensorMode

from hopyard import StockRoom
from hopyard.errors import DataError, HopyardError, UsageError
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import MemoryStore

COMPLEX = torch.tensor([[1 + 2j, 3 - 4j], [5 + 6j, 7 + 8j]])
D = decimal.Decimal
_LIST = pa.list_(pa.int64())


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2)


def _not_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)  # type: ignore[no-any-return]


STORED: dict[str, tuple[Any, list[Any]]] = {
    "conj": (COMPLEX.conj(), [[1 - 2j, 3 + 4j], [5 - 6j, 7 - 8j]]),
    "imag": (COMPLEX.imag, [[2, -4], [6, 8]]),
    "negative bit": (COMPLEX.conj().imag, [[-2, 4], [-6, -8]]),
    "one element, negative, strided": (torch.tensor([1 + 2j]).conj().imag, [-2]),
    "one element, strided": (torch.arange(4)[1::4], [1]),
    "transposed": (torch.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
    "expanded": (torch.ones(1).expand(2), [1, 1]),
    "channels last": (torch.arange(8).reshape(1, 2, 2, 2).to(memory_format=torch.channels_last),
                      [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]),
    "needs gradients": (torch.ones(2, requires_grad=True), [1, 1]),
    "big endian": (np.array([1, 2], ">i4"), [1, 2]),
    "from behind": (np.arange(3)[::-1], [2, 1, 0]),
    "not masked": (np.ma.array([1, 2]), [1, 2]),
    "strings of NumPy": (np.array(["a", "bb"], np.dtypes.StringDType()), ["a", "bb"]),
    "pandas, categorical": (pd.Series([1, 2], dtype="category"), [1, 2]),
    "pandas, an array of its own": (pd.array([2**62 + 1, 2]), [2**62 + 1, 2]),
    "pandas, lists of Arrow": (pd.Series([[1], [2, 3]], dtype=pd.ArrowDtype(_LIST)), [[1], [2, 3]]),
    "polars, enum": (pl.Series(["a"], dtype=pl.Enum(["a"])), ["a"]),
    "polars, arrays": (pl.Series([[[1, 2]]], dtype=pl.Array(pl.Int64, (1, 2))), [[[1, 2]]]),
    "Arrow, dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "Arrow, string view": (pa.array(["a"], pa.string_view()), ["a"]),
    "Arrow, list view": (pa.array([[1], [2, 3]], pa.list_view(pa.int64())), [[1], [2, 3]]),
    "Arrow, run ends": (pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([7, 8])), [7, 8, 8]),
    "Arrow, an extension of text": (pa.array(["[1]"], pa.json_()), ["[1]"]),
    "Arrow, an extension of bytes": (pa.array([b"0123456789abcdef"], pa.uuid()), [b"0123456789abcdef"]),
    "Arrow, tensors": (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4).reshape(2, 1, 2)),
                       [[[0, 1]], [[2, 3]]]),
}  # fmt: skip

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "fake": (_fake, "is a FakeTensor whose elements PyTorch does not hand out .* Make a plain tensor of them"),
    "zeros without memory": (lambda: torch._efficientzerotensor((2,)), "is a Tensor whose elements PyTorch does not"),
    "meta": (lambda: torch.ones(2, device="meta"), "on meta. Make it dense, with elements"),
    "quantized": (_quantized, r"Make it dense, with elements: .to_dense\(\), .dequantize\(\)"),
    "sparse": (lambda: torch.eye(2).to_sparse_csr(), "was given a sparse Tensor, but columns are dense"),
    "half complex": (lambda: torch.ones(2, dtype=torch.complex32), r"torch.complex32. Convert it with .to\("),
    "long double": (lambda: np.ones(2, "longdouble"), r"Convert it with .astype\("),
    "objects": (lambda: np.array([None, 1], object), r"is of dtype object. Columns store numbers, text"),
    "records": (lambda: np.zeros(2, [("a", "i4")]), r"Convert it with .astype\("),
    "masked": (lambda: np.ma.array([1, 2], mask=[0, 1]), "is a masked array. A column stores no masks: fill it"),
    "half of a pair": (lambda: np.array(["\ud800", "a"]), "has half of a surrogate pair at character 0"),
    "pandas, interval": (lambda: pd.Series(pd.interval_range(0, 2)), "the sample 0 is of type pandas.Interval"),
    "pandas, period": (lambda: pd.Series(pd.period_range("2020", periods=2, freq="M")),
                       "the sample 0 is of type pandas.Period"),
    "pandas, an array that lacks some": (lambda: pd.array([2**53 + 1, None]), "1 missing value, the first under 1"),
    "polars, 128 bits": (lambda: pl.Series([2**64], dtype=pl.Int128),
                         r"a Series of Int128, which columns do not store .* Cast it: series.cast\(pl.Int64\)"),
    "polars, lists of 128 bits": (lambda: pl.Series([[1]], dtype=pl.List(pl.Int128)), "which columns do not store"),
    "Arrow, decimal": (lambda: pa.array([D("1.5")], pa.decimal256(50, 2)), "Columns store no times and no decimals"),
    "Arrow, lists of decimals": (lambda: pa.array([[D("0.1")]]), "Columns store no times and no decimals"),
    "polars, lists of decimals": (lambda: pl.Series([[D("0.1")]]), "Columns store no times and no decimals"),
    "Arrow, lists of times": (lambda: pa.array([[1]], pa.list_(pa.timestamp("us"))), "Columns store no times"),
    "Arrow, lists of records": (lambda: pa.array([[{"a": 1}]]), "make a column of lists of every field"),
    "Arrow, a map": (lambda: pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "make its keys columns"),
    "Arrow, a union": (lambda: pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
                       "cannot be samples"),
    "Arrow, no UTF-8": (_not_utf8, "text that is no UTF-8 .* Decode it in its own encoding first"),
    "a sample of polars that lacks some": (lambda: [pl.Series([2**53 + 1, None])], "is a Series with missing values"),
    "a sample of Arrow that lacks some": (lambda: [pa.array([2**53 + 1, None])], "is a Int64Array with missing values"),
    "a sample of pandas that lacks some": (lambda: [pd.array([2**53 + 1, None])], "with missing values"),
    "a table that lacks some": (lambda: [pa.table({"a": [2**53 + 1, None]})], "is a Table with missing values"),
    "a frame of polars that lacks some": (lambda: [pl.DataFrame({"a": [2**53 + 1, None]})], "missing values"),
    "a sample of 128 bits": (lambda: [pl.Series([1], dtype=pl.Int128)], "that cannot be made a NumPy array"),
}  # fmt: skip


@pytest.fixture
def draft() -> Any:
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        yield ColumnDraft(objects, writer, "x")


@pytest.mark.parametrize("name", STORED)
def test_odd_samples_are_read_as_they_were_given(draft: ColumnDraft, name: str) -> None:
    given, expected = STORED[name]
    draft.replace(given)
    found = [each.tolist() if hasattr(each, "tolist") else each for each in draft[list(draft.keys())]]
    assert found == expected


@pytest.mark.filterwarnings("ignore:.*(quantize|Sparse CSR|ComplexHalf):UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_odd_samples_are_refused_and_change_nothing(draft: ColumnDraft, name: str) -> None:
    make, text = REFUSED[name]
    draft.replace(["before"])
    with pytest.raises(UsageError, match=f"(?s){text}"):
        draft.replace(make())
    assert dict(draft.items()) == {0: "before"}


@pytest.mark.parametrize("name", [name for name in STORED if isinstance(STORED[name][0], torch.Tensor)])
def test_odd_tensors_of_models_come_back(tmp_path: Path, name: str) -> None:
    given, expected = STORED[name]
    with StockRoom.init(tmp_path / "own") as stock:
        with stock.enable_write():
            stock.model["net"] = {"w": given}
        assert stock.model["net"]["w"].tolist() == expected


@pytest.mark.parametrize("name", ["fake", "zeros without memory"])
def test_a_model_with_tensors_that_have_no_elements_is_refused(tmp_path: Path, name: str) -> None:
    text = r"The value at 'w' of the model 'net' is a \w*Tensor whose elements PyTorch does not hand out"
    with (
        StockRoom.init(tmp_path / "own") as stock,
        pytest.raises(DataError, match=text),
        stock.enable_write(),
    ):
        stock.model["net"] = {"w": REFUSED[name][0]()}


LONE = "a\ud800"
CALLS: dict[str, Callable[[StockRoom, Path], Any]] = {
    "branch": lambda stock, _: stock.branch(LONE),
    "branch from": lambda stock, _: stock.branch("dev", LONE),
    "tag": lambda stock, _: stock.tag(LONE),
    "switch": lambda stock, _: stock.switch(LONE),
    "delete a branch": lambda stock, _: stock.delete_branch(LONE),
    "at": lambda stock, _: stock.at(LONE),
    "log": lambda stock, _: stock.log(LONE),
    "diff": lambda stock, _: stock.diff(LONE),
    "merge": lambda stock, _: stock.merge(LONE),
    "merge, message": lambda stock, _: stock.merge("main", message=LONE),
    "message": lambda stock, _: stock.enable_write(LONE),
    "push, name": lambda stock, folder: stock.push(folder / "remote", name=LONE),
    "push, branch there": lambda stock, folder: stock.push(folder / "remote", {"main": LONE}),
    "push, tag": lambda stock, folder: stock.push(folder / "remote", tags=[LONE]),
    "forget": lambda stock, _: stock.forget_remote(LONE),
    "purge, column": lambda stock, _: stock.purge(LONE, 0, "asked"),
    "purge, key": lambda stock, _: stock.purge("x", LONE, "asked"),
    "purge, why": lambda stock, _: stock.purge("x", 0, LONE),
    "column": lambda stock, _: stock.data[LONE],
    "key": lambda stock, _: stock.data["x"][LONE],
    "model": lambda stock, _: stock.model[LONE],
    "value": lambda stock, _: stock.experiment[LONE],
    "init": lambda _, folder: StockRoom.init(folder / LONE),
    "open": lambda _, folder: StockRoom(folder / LONE),
    "clone": lambda stock, folder: StockRoom.clone(stock.place.root, folder / LONE),
    "clone from": lambda _, folder: StockRoom.clone(f"{folder}/{LONE}", folder / "copy"),
    "verify": lambda _, folder: StockRoom.verify_in(folder / LONE),
    "export": lambda stock, folder: stock.export("data/x", folder / LONE),
}


@pytest.mark.parametrize("name", CALLS)
def test_half_of_a_surrogate_pair_is_refused_wherever_a_text_is_given(tmp_path: Path, name: str) -> None:
    with StockRoom.init(tmp_path / "own") as stock:
        with stock.enable_write("begin"):
            stock.data["x"] = [1]
        before = stock.head
        with pytest.raises(HopyardError, match=re.escape(repr(LONE)[1:-1])):
            CALLS[name](stock, tmp_path)
        assert stock.head == before
        assert stock.data["x"][0] == 1
        assert stock.verify().ok


def test_names_and_paths_that_nothing_can_be_called(tmp_path: Path) -> None:
    with StockRoom.init(tmp_path / "own") as stock:
        with stock.enable_write("begin"):
            stock.data["x"] = [1]
        with pytest.raises(
            UsageError,
            match=r"the name of a branch 'a\\ud800' has half of a surrogate pair at character 1, which",
        ):
            stock.branch(LONE)
        with pytest.raises(
            UsageError, match=r"the message of a commit was given as 3 of type int. Give a text"
        ):
            stock.enable_write(3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the reason of a purge was given as 3 of type int"):
            stock.purge("x", 0, 3)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"is no path: it holds a null character, or half of a surrogate pair"
    ):
        StockRoom.init(f"{tmp_path}/a\0b")


def test_an_image_of_pil_is_an_array_of_colours_or_refused(tmp_path: Path) -> None:
    image = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    with StockRoom.init(tmp_path) as stock, stock.enable_write("begin"):
        stock.data["x"] = {"a": image}
        assert np.array_equal(stock.data["x"]["a"], np.asarray(image))
        with pytest.raises(
            DataError, match=r"column 'y' was given one PIL\.Image\.Image, not samples\. Give a list"
        ):
            stock.data["y"] = image
        palette = image.convert("P")
        for given in ([palette], {"a": palette}):
            with pytest.raises(
                DataError, match=r"is an image of PIL with a palette.*image\.convert\('RGB'\)"
            ):
                stock.data["y"] = given
        with pytest.raises(DataError, match="is an image of PIL with a palette"):
            stock.data["x"]["b"] = palette
        assert list(stock.data) == ["x"]
        assert list(stock.data["x"]) == ["a"]
