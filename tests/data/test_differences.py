"""Files that differ in their columns: missing ones, narrower numbers, keys; and what a transform depends on."""

import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset, prepare
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.schema import Column, Schema
from hopyard.errors import ColumnError, DataError, NotFoundError, NullsError, UsageError
from hopyard.storage import LocalStore

field = pc.field


@pytest.fixture
def grown(tmp_path):
    """A dataset whose second file has columns that the first lacks, and lacks one that the first has."""
    folder = tmp_path / "grown"
    folder.mkdir()
    first = {"id": range(10), "old": np.arange(10) / 2, "s": [{"a": i} for i in range(10)]}
    second = {
        "id": range(10, 25),
        "new": [float(i) for i in range(15)],
        "name": [f"n{i}" for i in range(15)],
        "words": [[1, 2, 3]] * 15,
        "s": [{"a": i, "b": -i} for i in range(15)],
    }
    pq.write_table(pa.table(first), folder / "a.parquet", row_group_size=4)
    pq.write_table(pa.table(second), folder / "b.parquet", row_group_size=4)
    return folder


def test_columns_that_files_lack_are_null_where_that_is_wanted(grown):
    with pytest.raises(
        DataError, match=r"b.parquet: column 'old' is missing, .*missing='null' and nulls='fill'"
    ):
        open_dataset(grown)
    with pytest.raises(NullsError, match=r"a.parquet.*'new' has 10 nulls|b.parquet.*'old' has 15 nulls"):
        open_dataset(grown, missing="null")
    dataset = open_dataset(grown, missing="null", nulls="mask")
    batch = dataset[:]
    here = batch["id"] >= 10
    assert batch["old"].tolist() == [*(np.arange(10) / 2), *[0] * 15]
    assert batch["new"].tolist() == [*[0] * 10, *range(15)]
    assert batch["name"].tolist() == [*[""] * 10, *(f"n{i}" for i in range(15))]
    assert batch["s.b"].tolist() == [*[0] * 10, *(-i for i in range(15))]
    assert batch["s.a"].tolist() == [*range(10), *range(15)]
    assert batch["words"].shape == (25, 3)
    assert batch["words"].any(axis=1).tolist() == here.tolist()
    for name in ("new", "name", "words", "s.b"):
        assert batch[f"{name}_mask"].tolist() == (~here).tolist()
    assert batch["old_mask"].tolist() == here.tolist()
    shuffled = list(dataset.loader(7, shuffle=True, seed=3))
    order = np.argsort(np.concatenate([each["id"] for each in shuffled]))
    assert np.concatenate([each["new"] for each in shuffled])[order].tolist() == batch["new"].tolist()


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_a_file_of_nothing_but_empty_lists_has_the_type_of_the_others(order, tmp_path):
    """As pandas writes them where all lists of a file are empty: lists of no type."""
    rows = {"a": [[], None, []], "b": [[1, 2], [3], [], None]}
    for name, lists in rows.items():
        table = pa.table({"id": pa.array(range(len(lists))), "words": pa.array(lists)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    paths = [tmp_path / f"{name}.parquet" for name in order]
    dataset = open_dataset(paths, nulls="mask", ragged="keep")
    batch = dataset[:]
    wanted = [row for name in order for row in rows[name]]
    assert [row.tolist() for row in batch["words"]] == [row or [] for row in wanted]
    assert batch["words_mask"].tolist() == [row is None for row in wanted]
    prepared = prepare(paths, LocalStore(tmp_path / "s"), None, nulls="mask", ragged="keep").train
    assert str(prepared.schema) == str(dataset.schema)
    assert sorted(map(str, prepared[:]["words"])) == sorted(map(str, batch["words"]))
    with pytest.raises(
        DataError, match="'words' holds nothing but nulls or empty lists, so its type is unknown"
    ):
        open_dataset(tmp_path / "a.parquet", nulls="mask")
    with pytest.raises(
        DataError, match=r"words \(nothing but empty lists, of no type: give it one, such as pyarrow's"
    ):
        prepare(tmp_path / "a.parquet", LocalStore(tmp_path / "t"), None, nulls="mask")


@pytest.mark.parametrize("columns", [["new"], ["old"], ["name", "id"], ["s.b"], ["words"]])
def test_some_columns_of_files_that_lack_them(grown, columns):
    every = open_dataset(grown, missing="null", nulls="fill")[:]
    some = open_dataset(grown, missing="null", nulls="fill", columns=columns)
    for name in columns:
        assert np.asarray(some[:][name]).tolist() == np.asarray(every[name]).tolist()
    with pytest.raises(ColumnError, match="Unknown column: 'nwe'; did you mean 'new'"):
        open_dataset(grown, missing="null", nulls="fill", columns=["nwe"])


def test_filters_see_null_where_a_file_lacks_the_column(grown):
    def ids(filters, **options):
        return open_dataset(grown, missing="null", filters=filters, columns=["id"], **options)[:][
            "id"
        ].tolist()

    assert ids(field("new") >= 5) == list(range(15, 25))
    assert ids(field("old") < 2) == [0, 1, 2, 3]
    assert ids(field("new").is_null()) == list(range(10))
    assert ids([("new", "not in", [1.0, 2.0])]) == [10, *range(13, 25)]
    assert ids(field("s.b") == -3) == [13]
    here = open_dataset(grown, missing="null", filters=field("new").is_valid(), columns=["id", "new"])
    assert here[:]["new"].tolist() == list(range(15))  # no null is left, so none needs a policy
    again = open_dataset(here, filters=field("new") > 12)
    assert again[:]["id"].tolist() == [23, 24]


def test_lists_that_files_lack_are_padded(tmp_path):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [3, 4], "w": [[1], [2, 3]]}), tmp_path / "b.parquet")
    batch = open_dataset(tmp_path, missing="null", nulls="fill", ragged="pad")[:]
    assert batch["w"].tolist() == [[0, 0], [0, 0], [1, 0], [2, 3]]
    assert batch["w_length"].tolist() == [0, 0, 1, 2]
    kept = open_dataset(tmp_path, missing="null", nulls="fill")[:]["w"]
    assert [row.tolist() for row in kept] == [[], [], [1], [2, 3]]


def test_what_is_missing_is_prepared(grown, tmp_path):
    data = open_dataset(grown, missing="null", nulls="fill", columns=["id", "new", "old"])
    made = prepare(data, LocalStore(tmp_path / "store"), validation=None).train[:]
    assert dict(zip(made["id"].tolist(), made["new"].tolist(), strict=True))[24] == 14


NARROW = [
    ("int32", "int64", "int64"), ("int8", "int16", "int16"), ("uint8", "int16", "int16"),
    ("uint32", "int64", "int64"), ("uint8", "uint32", "uint32"), ("float32", "float64", "float64"),
    ("float16", "float32", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "wide"), NARROW)
@pytest.mark.parametrize("flat", [True, False])
def test_numbers_of_narrower_dtypes_are_widened_where_that_is_wanted(tmp_path, one, other, wide, flat):
    def largest(dtype):
        return np.finfo(dtype).max if "float" in dtype else np.iinfo(dtype).max

    options = {"use_dictionary": False, "compression": "none"} if flat else {}
    parts = [np.array([1, 0, largest(dtype)], dtype) for dtype in (one, other)]
    for order in ([0, 1], [1, 0]):
        folder = tmp_path / str(order[0])
        folder.mkdir()
        for number, part in enumerate(order):
            columns = {"x": pa.array(parts[part]), "v": list(np.stack([parts[part]] * 2, axis=1))}
            kinds = [("x", pa.from_numpy_dtype(parts[part].dtype))]
            kinds.append(("v", pa.list_(kinds[0][1])))
            table = pa.table(columns, schema=pa.schema([pa.field(*each, nullable=False) for each in kinds]))
            pq.write_table(table, folder / f"{number}.parquet", **options)
        with pytest.raises(
            DataError, match=rf"column 'x' is .*open them with widen=True, which makes all {wide}"
        ):
            open_dataset(folder)
        dataset = open_dataset(folder, widen=True)
        expected = np.concatenate([parts[part] for part in order]).astype(wide)
        for batch in (dataset[:], next(iter(dataset.loader(6)))):
            assert batch["x"].dtype == batch["v"].dtype == wide
            assert np.array_equal(batch["x"], expected)
            assert np.array_equal(batch["v"], np.stack([expected] * 2, axis=1))


@pytest.mark.parametrize(("one", "other"), [("int64", "uint64"), ("int32", "float64"), ("bool", "int8")])
def test_numbers_that_no_dtype_holds_exactly_are_not_widened(tmp_path, one, other):
    for dtype in (one, other):
        pq.write_table(pa.table({"x": np.array([1, 0], dtype)}), tmp_path / f"{dtype}.parquet")
    with pytest.raises(
        DataError, match="All files of a dataset must have the same columns: leave the column out"
    ):
        open_dataset(tmp_path, widen=True)


def write_arrays(path, arrays):
    """A file as prepared data is stored."""
    with FileWriter(path, Schema([Column("v", "tensor", arrays.dtype.name, arrays.shape[1:])])) as writer:
        writer.write({"v": arrays})
        writer.close()


@pytest.mark.parametrize("element", [(), (2, 3)])
def test_stored_arrays_of_several_lengths_are_lists_together(tmp_path, element):
    pair, triple = (np.arange(4 * n * np.prod(element, dtype=int), dtype=np.float32) for n in (2, 3))
    pair, triple = pair.reshape(4, 2, *element), triple.reshape(4, 3, *element)
    write_arrays(tmp_path / "1.parquet", pair)
    write_arrays(tmp_path / "2.parquet", triple)
    dataset = open_dataset(tmp_path)
    assert list(dataset.schema) == [Column("v", "ragged", "float32", element)]
    for batch in (dataset[:], next(iter(dataset.loader(8)))):
        assert [row.tolist() for row in batch["v"]] == [*pair.tolist(), *triple.tolist()]
    padded = open_dataset(tmp_path, ragged="pad")[:]
    assert padded["v"].shape == (8, 3, *element)
    assert padded["v_length"].tolist() == [2] * 4 + [3] * 4
    with pytest.raises(DataError, match="2 to 3"):
        open_dataset(tmp_path, ragged="error")


def test_stored_arrays_stand_beside_lists_with_nulls(tmp_path):
    write_arrays(tmp_path / "1.parquet", np.ones((2, 3), np.float32))
    lists = pa.array([[1, 2], None], pa.list_(pa.float32()))
    pq.write_table(pa.table({"v": lists}), tmp_path / "2.parquet")
    kept = open_dataset(tmp_path, nulls="mask")[:]
    assert [row.tolist() for row in kept["v"]] == [[1, 1, 1], [1, 1, 1], [1, 2], []]
    assert kept["v_mask"].tolist() == [False, False, False, True]
    assert open_dataset(tmp_path, nulls="fill", ragged="pad")[:]["v"].shape == (4, 3)


def test_stored_arrays_are_not_widened(tmp_path):
    write_arrays(tmp_path / "1.parquet", np.ones((2, 3), np.float32))
    write_arrays(tmp_path / "2.parquet", np.ones((2, 3), np.float64))
    text = r"1\.parquet: column 'v' is v: float32\[3\], but float64 in other files, and widen=True is not for arrays"
    with pytest.raises(DataError, match=text):
        open_dataset(tmp_path, widen=True)


@pytest.mark.parametrize(
    ("option", "text"), [({"missing": "nul"}, "missing='nul'"), ({"widen": 1}, "widen=1, but")]
)
def test_policies_are_checked(grown, option, text):
    with pytest.raises(UsageError, match=text):
        open_dataset(grown, **option)


# What a transform depends on


def test_a_transform_that_depends_on_files_is_computed_again_where_they_change(tmp_path, monkeypatch):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "more").mkdir()
    factor = tmp_path / "more" / "factor.txt"
    monkeypatch.setenv("OFFSET", "1")

    def scaled(columns):
        return {"y": columns["x"] * int(factor.read_text()) + int(os.environ["OFFSET"])}

    def opened():
        depends_on = [Path(factor), factor.parent, os.environ["OFFSET"], np.arange(3), {"a": 1}]
        dataset = open_dataset(
            tmp_path / "a.parquet", cached_transform=scaled, depends_on=depends_on, cache=tmp_path / "cache"
        )
        return next(iter(dataset.loader(2)))["y"].tolist(), dataset.fingerprint

    factor.write_text("10")
    first = opened()
    assert first[0] == [11, 21]
    assert opened() == first
    factor.write_text("20")
    second = opened()
    assert second[0] == [21, 41]
    monkeypatch.setenv("OFFSET", "2")
    third = opened()
    assert third[0] == [22, 42]
    assert len({first[1], second[1], third[1]}) == 3
    factor.write_text("10")
    monkeypatch.setenv("OFFSET", "1")
    assert opened() == first


def test_what_a_transform_cannot_depend_on_is_said(grown):
    options = {"columns": ["id"], "missing": "null", "nulls": "fill", "cached_transform": dict}
    with pytest.raises(
        NotFoundError, match=r"depends_on names /nowhere/x, which is not there. Check the path"
    ):
        open_dataset(grown, depends_on=[Path("/nowhere/x")], **options)
    with pytest.raises(
        UsageError, match=r"depends_on\[1\] is lock, which has no digest .*pathlib.Path of a file"
    ):
        open_dataset(grown, depends_on=[1, threading.Lock()], **options)
    with pytest.raises(UsageError, match="depends_on='a', but it must be a list"):
        open_dataset(grown, depends_on="a", **options)
    with pytest.raises(UsageError, match="neither cached_transform= nor decode="):
        open_dataset(grown, depends_on=["a"])
