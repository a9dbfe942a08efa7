"""Datasets in the layout of save_to_disk, read without the library."""

import json
import os
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from hopyard.errors import CorruptError, DataError, UnsupportedTypeError
from hopyard.stockroom.importers.huggingface import HuggingFace
from hopyard.stockroom.importers.run import read_columns
from hopyard.stockroom.importers.testing import ImporterSuite, gathered

from .formats import encoded, saved_to_disk

PIXELS = [np.random.default_rng(n).integers(0, 256, (3 + n, 4, 3), np.uint8) for n in range(5)]
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "text": {"dtype": "string", "_type": "Value"},
    "tokens": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "Sequence"},
    "box": {"feature": {"dtype": "float32", "_type": "Value"}, "length": 4, "_type": "Sequence"},
    "matrix": {"shape": [2, 2], "dtype": "int64", "_type": "Array2D"},
    "meta": {"source": {"dtype": "string", "_type": "Value"}, "n": {"dtype": "uint8", "_type": "Value"}},
}


def table(rows, first=0):
    numbers = range(first, first + rows)
    return pa.table(
        {
            "image": pa.array(
                [{"bytes": encoded(PIXELS[n]), "path": f"{n}.png"} for n in numbers],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            ),
            "label": pa.array([n % 2 for n in numbers], pa.int64()),
            "text": [f"text {n}" for n in numbers],
            "tokens": pa.array([list(range(n)) for n in numbers], pa.list_(pa.int32())),
            "box": pa.array([[n, 1, 2, 3] for n in numbers], pa.list_(pa.float32(), 4)),
            "matrix": pa.array([[[n, 1], [2, 3]] for n in numbers], pa.list_(pa.list_(pa.int64()))),
            "meta": pa.array(
                [{"source": "web", "n": n} for n in numbers],
                pa.struct([("source", pa.string()), ("n", pa.uint8())]),
            ),
        }
    )


@pytest.fixture
def dataset(tmp_path):
    return saved_to_disk(tmp_path / "d", [table(3), table(2, 3)], FEATURES)


class TestHuggingFace(ImporterSuite):
    @pytest.fixture
    def importer(self, dataset):
        with HuggingFace(dataset) as importer:
            yield importer


def test_every_feature_is_a_column(dataset):
    with HuggingFace(dataset) as importer:
        columns = {column.name: column for column in importer.columns()}
        assert [(c.name, c.kind, c.dtype, c.shape) for c in columns.values()] == [
            ("image", "tensor", "uint8", None),
            ("label", "tensor", "int64", ()),
            ("text", "string", "object", ()),
            ("tokens", "tensor", "int32", None),
            ("box", "tensor", "float32", (4,)),
            ("matrix", "tensor", "int64", (2, 2)),
            ("meta.source", "string", "object", ()),
            ("meta.n", "tensor", "uint8", ()),
        ]
        for found, pixels in zip(columns["image"].read(0, 5), PIXELS, strict=True):
            np.testing.assert_array_equal(found, pixels)
        assert [row.tolist() for row in columns["tokens"].read(2, 5)] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
        assert columns["matrix"].read(2, 4).tolist() == [[[2, 1], [2, 3]], [[3, 1], [2, 3]]]
        assert columns["meta.n"].read(1, 4).tolist() == [1, 2, 3]
        (split,) = importer.identity()["splits"]
        assert split["classes"] == {"label": ["cat", "dog"]}
        assert [file["name"] for file in split["files"]] == [
            "data-00000-of-00002.arrow",
            "data-00001-of-00002.arrow",
        ]


def test_a_dict_of_splits_gives_prefixes(tmp_path):
    for split, rows in (("train", 3), ("test", 2)):
        saved_to_disk(tmp_path / "d" / split, [table(rows).select(["label", "text"])], FEATURES)
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with HuggingFace(tmp_path / "d") as importer:
        columns = importer.columns()
        assert [(c.name, c.count) for c in columns] == [
            ("label", 3),
            ("text", 3),
            ("test-label", 2),
            ("test-text", 2),
        ]
        assert columns[3].read(0, 2) == ["text 0", "text 1"]
        assert importer.identity()["splits"][1]["classes"] == {"test-label": ["cat", "dog"]}


def test_bytes_of_images_are_kept_and_paths_are_followed(tmp_path):
    file = tmp_path / "here.png"
    file.write_bytes(encoded(PIXELS[0]))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [
        {"bytes": None, "path": str(file)},
        {"bytes": b"x", "path": None},
        {"bytes": None, "path": "gone.png"},
    ]
    saved_to_disk(tmp_path / "d", [pa.table({"image": pa.array(rows, kind)})], FEATURES)
    with HuggingFace(tmp_path / "d", decode=False) as importer:
        (column,) = importer.columns()
        assert (column.kind, column.read(0, 2)) == ("bytes", [file.read_bytes(), b"x"])
        with pytest.raises(
            DataError, match=r"Sample 2 of column 'image': .* has neither bytes nor a file that is there"
        ):
            gathered(read_columns([column]))
    with (
        HuggingFace(tmp_path / "d") as importer,
        pytest.raises(CorruptError, match=r"row 1 of the image column 'image'"),
    ):
        importer.columns()[0].read(1, 2)


def test_lists_that_are_sometimes_empty_stay_ragged(tmp_path):
    rows = pa.table(
        {"l": pa.array([[], []], pa.list_(pa.int8())), "m": pa.array([[1], [2]], pa.list_(pa.int8()))}
    )
    more = pa.table(
        {"l": pa.array([[1], [2]], pa.list_(pa.int8())), "m": pa.array([[1], [2]], pa.list_(pa.int8()))}
    )
    saved_to_disk(tmp_path / "d", [rows, more], {})
    with HuggingFace(tmp_path / "d") as importer:
        ragged, even = importer.columns()
        assert (ragged.shape, even.shape) == (None, (1,))
        assert [row.tolist() for row in ragged.read(0, 4)] == [[], [], [1], [2]]


def test_what_is_no_saved_dataset_is_refused(tmp_path, dataset):
    with pytest.raises(
        DataError, match=r"expected is state.json or dataset_dict.json, but there is d. Give the folder"
    ):
        HuggingFace(tmp_path).columns()
    with pytest.raises(DataError, match=r"there is one file. Give the folder that save_to_disk wrote."):
        HuggingFace(dataset / "state.json").columns()
    (dataset / "dataset_info.json").unlink()
    with pytest.raises(DataError, match=r"There is no .*dataset_info.json. Give the whole folder"):
        HuggingFace(dataset).columns()
    (dataset / "state.json").write_text("{")
    with pytest.raises(CorruptError, match=r"state.json is no JSON: .* Restore it."):
        HuggingFace(dataset).columns()
    (dataset / "state.json").write_text("[]")
    with pytest.raises(CorruptError, match=r"state.json must hold a JSON object."):
        HuggingFace(dataset).columns()


def test_damaged_missing_and_different_files_are_named(tmp_path, dataset):
    second = dataset / "data-00001-of-00002.arrow"
    os.truncate(second, second.stat().st_size // 2)
    with pytest.raises(
        CorruptError, match=r"data-00001-of-00002.arrow is no whole Arrow stream: it was truncated"
    ):
        HuggingFace(dataset).columns()
    second.unlink()
    with pytest.raises(
        DataError, match=r"data-00001-of-00002.arrow is not there, though state.json names it."
    ):
        HuggingFace(dataset).columns()
    mixed = saved_to_disk(tmp_path / "m", [table(2), table(2).select(["label"])], FEATURES)
    with pytest.raises(
        DataError, match=r"data-00001-of-00002.arrow has other columns than .*Save the dataset again."
    ):
        HuggingFace(mixed).columns()


def test_selections_nulls_and_empty_datasets_are_refused(tmp_path):
    plain = pa.table({"a": pa.array([1, None, 3])})
    with pytest.raises(DataError, match=r"is a selection of rows of its files. .*flatten_indices"):
        HuggingFace(
            saved_to_disk(tmp_path / "s", [plain], {}, _indices_files=[{"filename": "i.arrow"}])
        ).columns()
    with pytest.raises(DataError, match=r"has no rows. Leave the split out"):
        HuggingFace(saved_to_disk(tmp_path / "e", [plain.slice(0, 0)], {})).columns()
    with HuggingFace(saved_to_disk(tmp_path / "n", [plain], {})) as importer:
        columns = importer.columns()
        with pytest.raises(
            DataError, match=r"Sample 1 of column 'a': Column 'a' has 1 null, the first in row 1"
        ):
            gathered(read_columns(columns))


def test_decimals_are_refused_unless_floats_are_asked_for(tmp_path):
    saved_to_disk(tmp_path / "d", [pa.table({"price": pa.array([Decimal("0.10")]), "n": [1]})], {})
    with (
        HuggingFace(tmp_path / "d") as importer,
        pytest.raises(UnsupportedTypeError, match=r"'price'.*decimals=float"),
    ):
        importer.columns()
    with HuggingFace(tmp_path / "d", decimals="float") as importer:
        assert list(gathered(read_columns(importer.columns()))["price"]) == [0.1]
