"""Any map-style dataset."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from hopyard.errors import DataError, UnsupportedTypeError, UsageError
from hopyard.stockroom.importers.run import read_columns
from hopyard.stockroom.importers.testing import ImporterSuite, gathered
from hopyard.stockroom.importers.torch_dataset import from_torch_dataset

COLUMNS = ["tensor", "image", "pixels", "label", "text", "raw", "score"]


class Everything(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return (
            torch.full((2, 3), i, dtype=torch.int16),
            np.full((i + 1, 2), i, np.uint8),
            Image.new("RGB", (3, 2), (i, 1, 2)),
            i % 2,
            f"text {i}",
            bytes([i]),
            i / 2,
        )


class TestTorchDataset(ImporterSuite):
    @pytest.fixture
    def importer(self):
        return from_torch_dataset(Everything(), COLUMNS)


class Item(NamedTuple):
    x: torch.Tensor
    y: int


def test_parts_are_columns_of_their_dtype():
    columns = {c.name: c for c in from_torch_dataset(Everything(), COLUMNS).columns()}
    assert [(c.kind, c.dtype, c.shape) for c in columns.values()] == [
        ("tensor", "int16", (2, 3)),
        ("tensor", "uint8", None),
        ("tensor", "uint8", (2, 3, 3)),
        ("tensor", "int64", ()),
        ("string", "object", ()),
        ("bytes", "object", ()),
        ("tensor", "float64", ()),
    ]
    assert columns["pixels"].read(4, 5)[0, 0, 0].tolist() == [4, 1, 2]


@pytest.mark.parametrize(
    "dataset", [[{"x": torch.ones(2), "y": 1}] * 3, [Item(torch.ones(2), 1)] * 3], ids=["dict", "named"]
)
def test_mappings_and_named_tuples_name_their_columns(dataset):
    assert [(c.name, c.count) for c in from_torch_dataset(dataset).columns()] == [("x", 3), ("y", 3)]


def test_columns_choose_among_the_keys_and_one_value_is_one_column():
    assert [c.name for c in from_torch_dataset([{"x": 1, "y": object()}], ["x"]).columns()] == ["x"]
    (column,) = from_torch_dataset(torch.arange(4), ["n"]).columns()
    assert column.read(1, 3).tolist() == [1, 2]


class Counting:
    def __init__(self):
        self.calls = 0

    def __len__(self):
        return 100

    def __getitem__(self, i):
        if not 0 <= i < 100:
            raise IndexError(i)
        self.calls += 1
        return i, i


def test_each_item_is_read_once_for_all_columns():
    dataset = Counting()
    columns = from_torch_dataset(dataset, ["a", "b"]).columns()
    dataset.calls = 0
    found = gathered(read_columns(columns, chunk_bytes=160))
    assert found["a"] == found["b"] == list(range(100))
    assert dataset.calls == 100


@pytest.mark.parametrize(
    ("items", "columns", "error", "text"),
    [
        (
            [(1, 2)],
            None,
            DataError,
            r"item 0 has 2 part\(s\), but columns= names 0: \[\]. Name one for each part",
        ),
        ([(1, 2)], ["a"], DataError, r"item 0 has 2 part\(s\), but columns= names 1: \['a'\]"),
        ([{"a": 1}], ["b"], DataError, r"item 0 has a, but not b. Name columns that all items have."),
        ([(1,)], "a", UsageError, r"columns='a' must be a list of different names."),
        ([], ["a"], DataError, r"The dataset is empty: its length is 0."),
        (
            [object()],
            ["a"],
            UnsupportedTypeError,
            r"Part 'a' of an item is a object, which no column can hold.",
        ),
        (
            iter([1]),
            ["a"],
            UsageError,
            r"list_iterator is no map-style dataset: it needs __len__ and __getitem__.",
        ),
    ],
)
def test_what_does_not_fit_is_said(items, columns, error, text):
    with pytest.raises(error, match=text):
        from_torch_dataset(items, columns).columns()


def test_another_shape_is_named_and_can_be_declared():
    items = [np.zeros(2)] * 50
    items[9] = np.zeros(3)
    with pytest.raises(
        DataError, match=r"Sample 9 of column 'x': it is of shape \(3,\), but the column of \(2,\)"
    ):
        gathered(read_columns(from_torch_dataset(items, ["x"]).columns()))
    (column,) = from_torch_dataset(items, ["x"], variable=["x"]).columns()
    assert len(gathered(read_columns([column]))["x"][9]) == 3
    with pytest.raises(UsageError, match=r"variable names \['z'\], but the columns are x."):
        from_torch_dataset(items, ["x"], variable=["z"]).columns()


def test_an_item_that_fails_is_named():
    class Failing(Counting):
        def __getitem__(self, i):
            if i == 41:
                raise RuntimeError("no such sample")
            return i

    with pytest.raises(
        DataError,
        match=r"Sample 41 of column 'x' cannot be read \(RuntimeError: no such sample\). Look at the source",
    ):
        gathered(read_columns(from_torch_dataset(Failing(), ["x"]).columns(), processes=1))
