"""Whatever holds rows gives the same columns and the same fingerprint."""

import datetime
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import prepare
from hopyard.data.ragged import Ragged
from hopyard.data.sources.sources import as_source
from hopyard.errors import ColumnError, CorruptError, DataError, NotFoundError, UsageError
from hopyard.storage import LocalStore, MemoryStore

ROWS = 700


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    return {
        "image": rng.random((ROWS, 3, 2), np.float32),
        "label": rng.integers(0, 10, ROWS),
        "text": np.array([f"wört {i % 7}" * (i % 3) for i in range(ROWS)], object),
        "small": rng.integers(0, 200, ROWS).astype(np.uint8),
        "flag": rng.random(ROWS) > 0.5,
        "score": rng.random(ROWS),
    }


@pytest.fixture(scope="module")
def table(arrays):
    lists = pa.array(arrays["image"].tolist(), pa.list_(pa.list_(pa.float32())))
    return pa.table({name: lists if name == "image" else pa.array(v) for name, v in arrays.items()})


def dict_rows(arrays):
    return [{name: values[i] for name, values in arrays.items()} for i in range(ROWS)]


class MapStyle(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Iterable(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def in_every_form(arrays, table, folder):
    pq.write_table(table, folder / "one.parquet", row_group_size=100, compression="zstd")
    (folder / "many").mkdir()
    for part in range(2):
        piece = table.slice(part * 300, 300 if part == 0 else None)
        pq.write_table(piece, folder / "many" / f"{part}.parquet")
    frame = pd.DataFrame({name: list(v) if v.ndim > 1 else v for name, v in arrays.items()})
    batches = table.to_batches(max_chunksize=123)
    return {
        "dict of arrays": arrays,
        "dict of lists": {name: list(v) for name, v in arrays.items()},
        "fortran order": {name: np.asfortranarray(v) for name, v in arrays.items()},
        "pandas": frame,
        "pandas with nullable dtypes": frame.astype(
            {"label": "Int64", "flag": "boolean", "score": "Float64"}
        ),
        "pandas with a categorical": frame.assign(text=frame["text"].astype("category")),
        "polars": pl.DataFrame(arrays),
        "polars lazy": pl.DataFrame(arrays).lazy(),
        "table": table,
        "batches": batches,
        "reader": table.to_reader(max_chunksize=99),
        "parquet": folder / "one.parquet",
        "parquet directory": str(folder / "many"),
        "parquet pattern": str(folder / "many" / "*.parquet"),
        "parquet list": [folder / "many" / "0.parquet", folder / "many" / "1.parquet"],
        "url": (folder / "one.parquet").as_uri(),
        "rows": dict_rows(arrays),
        "generator of rows": iter(dict_rows(arrays)),
        "torch map-style": MapStyle(dict_rows(arrays)),
        "torch iterable": Iterable(dict_rows(arrays)),
    }


def test_equal_rows_have_equal_fingerprints_whatever_holds_them(arrays, table, tmp_path):
    expected = as_source(arrays).fingerprint()
    for kind, data in in_every_form(arrays, table, tmp_path).items():
        source = as_source(data)
        assert source.columns == list(arrays), kind
        assert source.collect().fingerprint == expected, kind
        assert source.fingerprint() == expected, kind


def test_every_form_gives_the_same_first_rows(arrays, table, tmp_path):
    for kind, data in in_every_form(arrays, table, tmp_path).items():
        head = as_source(data).head(5)
        for name, values in arrays.items():
            np.testing.assert_array_equal(head[name], values[:5], err_msg=f"{kind}: {name}")
            assert head[name].dtype == values.dtype, (kind, name)


@pytest.mark.parametrize("change", ["value", "name", "dtype", "shape", "order"])
def test_the_fingerprint_differs_if_the_content_does(arrays, change):
    other = dict(arrays)
    if change == "value":
        other["small"] = arrays["small"].copy()
        other["small"][-1] ^= 1
    elif change == "name":
        other["little"] = other.pop("small")
    elif change == "dtype":
        other["small"] = arrays["small"].view(np.int8)
    elif change == "shape":
        other["image"] = arrays["image"].reshape(ROWS, 2, 3)
    else:
        other["image"] = arrays["image"][::-1]
    assert as_source(other).fingerprint() != as_source(arrays).fingerprint()


def test_strings_that_join_alike_are_told_apart():
    assert as_source({"t": ["ab", "c"]}).fingerprint() != as_source({"t": ["a", "bc"]}).fingerprint()


def test_lists_of_one_length_in_each_batch_but_not_overall_are_ragged():
    tables = [pa.table({"x": [[1, 2], [3, 4]]}), pa.table({"x": [[5], [6]]})]
    batches = [batch for table in tables for batch in table.to_batches()]
    streamed = as_source(pa.RecordBatchReader.from_batches(batches[0].schema, batches)).collect()
    whole = as_source({"x": [[1, 2], [3, 4], [5], [6]]}).collect()
    assert streamed.columns["x"].kind == whole.columns["x"].kind == "ragged"
    assert streamed.fingerprint == whole.fingerprint
    assert streamed.columns["x"].values == Ragged.from_rows([[1, 2], [3, 4], [5], [6]], np.int64)


@pytest.mark.parametrize("first", [0, 5000, 9000])
def test_streams_may_tell_late_what_a_column_is_and_be_null_for_long(first):
    def rows():
        for i in range(14_000):
            there = first <= i < first + 10
            yield {
                "id": i,
                "x": i / 2 if there else None,
                "t": [i, i] if there else None,
                "s": "a" if there else None,
            }

    for source in (as_source(rows()), as_source(list(rows()))):
        assert source.head(2)["id"].tolist() == [0, 1]
        columns = source.collect().columns
        present = (np.arange(14_000) >= first) & (np.arange(14_000) < first + 10)
        for name, dtype in (("x", "float64"), ("t", "int64"), ("s", "object")):
            assert columns[name].column.dtype == dtype
            assert np.array_equal(columns[name].missing, ~present)
        assert columns["x"].values[present].tolist() == [i / 2 for i in range(first, first + 10)]
        assert columns["t"].values[first + 9].tolist() == [first + 9] * 2


def test_rows_taken_from_a_one_shot_source_go_on_into_the_pass():
    source = as_source({"x": i} for i in range(10_000))
    assert source.fingerprint() is None
    np.testing.assert_array_equal(source.head(5000)["x"], np.arange(5000))
    np.testing.assert_array_equal(source.collect().columns["x"].values, np.arange(10_000))
    assert source.fingerprint() == as_source({"x": np.arange(10_000)}).fingerprint()
    with pytest.raises(DataError, match="can be read once, and was"):
        list(source.batches())


def test_what_exceeds_the_memory_is_spooled_and_the_same(arrays, table, tmp_path, monkeypatch):
    in_memory = as_source(table.to_reader(max_chunksize=50)).collect()
    monkeypatch.setattr("hopyard.data.sources.collect.MEMORY", 4000)
    source = as_source(table.to_reader(max_chunksize=50))
    spooled = source.collect(tmp_path)
    assert spooled.fingerprint == in_memory.fingerprint
    for name, data in in_memory.columns.items():
        np.testing.assert_array_equal(spooled.columns[name].as_batch(), data.as_batch())
    assert not list(tmp_path.iterdir()), "temporary files have no names"


def test_a_large_source_is_read_again_rather_than_spooled_for_its_fingerprint(table, tmp_path, monkeypatch):
    pq.write_table(table, tmp_path / "t.parquet")
    monkeypatch.setattr("hopyard.data.sources.collect.MEMORY", 4000)
    source = as_source(tmp_path / "t.parquet")
    fingerprint = source.fingerprint()
    assert source._collected.columns is None
    assert source.collect(tmp_path).columns is not None
    assert source.fingerprint() == fingerprint


def test_times_become_int64_nanoseconds():
    moment = datetime.datetime(2024, 2, 29, 12, 30, 0, 250_000)
    nanoseconds = np.datetime64(moment, "ns").astype(np.int64)
    data = {
        "numpy": np.array([moment], "datetime64[us]"),
        "objects": [moment],
        "arrow": pa.array([moment], pa.timestamp("ms")),
        "zone": pa.array([moment.replace(tzinfo=datetime.UTC)], pa.timestamp("us", "Europe/Berlin")),
    }
    head = as_source(data).head(1)
    assert {name: int(values[0]) for name, values in head.items()} == dict.fromkeys(data, int(nanoseconds))
    assert int(as_source({"d": [datetime.timedelta(seconds=2)]}).head(1)["d"][0]) == 2_000_000_000
    assert int(as_source({"d": [datetime.date(1970, 1, 2)]}).head(1)["d"][0]) == 86_400_000_000_000


def test_bfloat16_is_widened_and_decimals_become_floats():
    head = as_source({"x": torch.tensor([1.5, 2.5], dtype=torch.bfloat16)}).head(2)["x"]
    assert head.dtype == np.float32
    assert head.tolist() == [1.5, 2.5]
    decimals = pa.array([1, 2]).cast(pa.decimal128(30, 2))
    assert as_source({"x": decimals}).head(2)["x"].dtype == np.float64


def test_sparse_columns_of_pandas_are_dense():
    head = as_source(pd.DataFrame({"x": pd.arrays.SparseArray([0, 0, 1])})).head(3)["x"]
    assert head.tolist() == [0, 0, 1]


@pytest.mark.parametrize("empty", [None, np.datetime64("NaT")])
def test_times_that_are_missing_are_null(empty):
    source = as_source({"x": np.array(["2020-01-01", empty], "datetime64[D]")})
    assert source.collect().columns["x"].missing.tolist() == [False, True]


def test_big_endian_arrays_become_native():
    head = as_source({"x": np.array([1, 2], ">i4")}).head(2)["x"]
    assert head.dtype == np.dtype("int32")
    assert head.dtype.isnative
    assert head.tolist() == [1, 2]


def test_fixed_shape_tensors_of_arrow_keep_their_shape():
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.int16).reshape(4, 3, 2))
    np.testing.assert_array_equal(
        as_source(pa.table({"x": tensors})).head(4)["x"], np.arange(24).reshape(4, 3, 2)
    )
    np.testing.assert_array_equal(
        as_source(pa.table({"x": tensors}).slice(1, 2)).head(4)["x"], np.arange(24).reshape(4, 3, 2)[1:3]
    )


def test_slices_of_arrow_columns_of_every_kind(table, arrays):
    head = as_source(table.slice(13, 20)).head(20)
    for name, values in arrays.items():
        np.testing.assert_array_equal(head[name], values[13:33])


def test_items_of_torch_datasets_that_are_tuples_are_named():
    x, y, z = torch.arange(6).reshape(3, 2), torch.arange(3), torch.ones(3)
    assert as_source(torch.utils.data.TensorDataset(x, y)).columns == ["features", "label"]
    assert as_source(torch.utils.data.TensorDataset(x, y, z)).columns == ["features", "label", "column_2"]
    assert as_source(torch.utils.data.TensorDataset(x, y), ["image", "class"]).columns == ["image", "class"]
    mapped = as_source(MapStyle([(x[i], int(y[i])) for i in range(3)]))
    assert mapped.columns == ["features", "label"]
    np.testing.assert_array_equal(mapped.head(3)["features"], x.numpy())


def test_only_selected_columns_are_converted_and_fingerprinted(arrays):
    source = as_source({**arrays, "bad": [{"a": 1}] * ROWS})
    wanted = source.select(["label", "image"])
    assert wanted.columns == ["image", "label"], "in the order of the data"
    alone = {"image": arrays["image"], "label": arrays["label"]}
    assert wanted.fingerprint() == as_source(alone).fingerprint()
    with pytest.raises(ColumnError, match=r"Unknown columns: 'lable'; did you mean 'label'\?, 'zzz'"):
        source.select(["lable", "zzz"])


def test_csv_is_read_with_its_types(tmp_path):
    table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.0], "s": ["x", "", "z"]})
    pa.csv.write_csv(table, tmp_path / "t.csv")
    assert as_source(tmp_path / "t.csv").fingerprint() == as_source(table).fingerprint()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "The data is empty"),
        ({"x": []}, "The data is empty"),
        ({"x": np.zeros((0, 3))}, "The data is empty"),
        ([], "The data is empty"),
        (iter([]), "The data is empty"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "same number of rows, but they have: x 3, y 4"),
        ({"x": np.float32(3)}, "a single value"),
        ({1: np.zeros(3)}, "must be non-empty strings, but there are: 1"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "must be unique, but these occur more than once: a"),
        (
            {"x": np.zeros(3, complex), "ok": np.zeros(3), "y": [{"a": 1}, {"a": "b"}, {}]},
            r"x \(complex128\); y \(objects: Could not convert 'b' .*\). Supported are numbers",
        ),
        ({"x": [[[1], [2, 3]], [[4]]]}, "ragged in more than one dimension"),
        ({"x": [["a"], ["b"]]}, "lists of strings"),
        ({"x": [[1, None], [2, 3]]}, "1 null inside its lists. `nulls` is about whole rows: fill it"),
        ({"x": [None, None]}, r"x \(nothing but nulls\)"),
        (
            {"x": np.array(["2900-01-01"], "datetime64[D]")},
            "times that int64 nanoseconds do not reach: 1678 to 2262",
        ),
        ({"x": pa.array([datetime.date(2900, 1, 1)])}, r"x \(date32\[day\]: .*nanoseconds do not reach"),
        (pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)}), r"x \(Python objects\)"),
        (pd.Series([1, 2]), "Series cannot be read"),
        (np.ones((3, 2)), "numpy.ndarray cannot be read"),
        (object(), "builtins.object cannot be read. Give a dict of arrays"),
        (iter([1, 2]), "row 0 is a int"),
        ([{"a": 1}, {"b": 1}], "Row 1 has the columns b, but row 0 has a"),
        ("ftp://host/data", "is not a path of this machine"),
    ],
)
def test_what_is_wrong_is_said(data, text):
    with pytest.raises(DataError, match=text):
        as_source(data).collect()


def test_a_dtype_that_changes_in_the_stream_is_an_error():
    rows = [{"x": 1}] * 4096 + [{"x": 0.5}]
    with pytest.raises(DataError, match="'x' is x: int64 up to row 4096 and x: float64 from there"):
        as_source(iter(rows)).collect()


def test_a_missing_path_is_said(tmp_path):
    with pytest.raises(
        NotFoundError, match=r"There is no file or directory .*nothing\.parquet\. Check the path"
    ):
        as_source(tmp_path / "nothing.parquet")


def test_files_of_two_kinds_or_other_columns_are_refused(tmp_path, table):
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match=r"files of one kind, .* but there is .*b.csv"):
        as_source(tmp_path)
    pq.write_table(table.select(["label"]), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c.parquet has the columns label, but .*a.parquet has image"):
        as_source([tmp_path / "a.parquet", tmp_path / "c.parquet"])


def test_truncated_parquet_is_named(tmp_path, table):
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        CorruptError, match=r"t.parquet \(\d+ bytes\) is not a complete Parquet file: .* Restore it"
    ):
        as_source(path)


def test_changed_parquet_names_row_group_and_column(tmp_path, table):
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=100, compression="zstd")
    chunk = pq.read_metadata(path).row_group(3).column(table.column_names.index("score"))
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"t.parquet, row group 3, column 'score': cannot be decoded"):
        as_source(path).collect()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("twice.csv", b"a,a\n1,2\n", "must be unique, but these occur more than once: a"),
        (
            "plain.csv.gz",
            b"a,b\n1,2\n",
            r"plain\.csv\.gz cannot be read as CSV: .*header check. Correct the file",
        ),
        (
            "latin.csv",
            "a,b\nK\xf6ln,2\n".encode("latin1"),
            "column 'a': its text is not UTF-8. Save the file as UTF-8",
        ),
        ("empty.csv", b"", r"empty\.csv cannot be read as CSV: Empty CSV file"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_said(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=text):
        as_source(tmp_path / name)


def test_patterns_lead_to_directories_too(tmp_path, table):
    for day in range(3):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(table.select(["label"]), tmp_path / f"day={day}" / "part.parquet")
    for pattern in ("day=[12]", "day=[12]/*.parquet", "day=[12]/**"):
        days = as_source(tmp_path / pattern).collect().columns["day"].values
        assert days.tolist() == [1] * len(table) + [2] * len(table)


@pytest.fixture
def shared():
    """A directory that every user may look into, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_files_that_may_not_be_read_are_said(shared, table):
    pq.write_table(table, shared / "a.parquet")
    (shared / "b.csv").write_text("a\n1\n")
    (shared / "closed").mkdir()
    names = ["a.parquet", "b.csv", "closed", "closed/c.parquet"]
    code = (
        "import os, sys\nfrom hopyard.data import as_source, open_dataset\nfrom hopyard.errors import StorageError\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "for path in sys.argv[1:]:\n"
        "    for use in (as_source, open_dataset):\n"
        "        try: use(path)\n"
        "        except StorageError as error: print(error)\n"
        "        except Exception as error: print(repr(error))\n"
    )
    for name in names[:3]:
        (shared / name).chmod(0)
    try:
        paths = [str(shared / name) for name in names]
        said = subprocess.run(
            [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
        )
    finally:
        for name in names[:3]:
            (shared / name).chmod(0o755)
    lines = said.stdout.splitlines()
    assert len(lines) == 8
    assert "b.csv is not a Parquet file" in lines.pop(3)
    for line in lines:
        assert re.search(r" cannot be read: Permission denied\. Give this user the right to read it\.", line)


@pytest.mark.parametrize("offsets", [[0, 2, 9], [1, 2, 5], [0, 6, 5], [0, 2, 4]])
def test_offsets_that_do_not_cut_the_values_into_rows_are_refused(offsets):
    ragged = Ragged(np.arange(5), np.array(offsets))
    with pytest.raises(DataError, match="'x' is a Ragged whose offsets do not cut its 5 values into rows"):
        as_source({"x": ragged}).fingerprint()


def test_times_in_nanoseconds_are_taken_as_they_are():
    table = pa.table({"t": pa.array([5], pa.timestamp("ns")), "d": pa.array([6], pa.duration("ns"))})
    assert {name: values.tolist() for name, values in as_source(table).head(1).items()} == {
        "t": [5],
        "d": [6],
    }


WITHOUT_PANDAS = """
import sys
from hopyard.data import prepare
from hopyard.storage import LocalStore
prepare(sys.argv[1], LocalStore(sys.argv[2]), None, ragged="keep")
sys.exit("pandas" in sys.modules)
"""


def test_files_are_prepared_without_importing_pandas(tmp_path):
    """It takes as long as to prepare a hundred megabytes."""
    lists = pa.array([[1.0], [2.0, 3.0], []])  # and no nulls: to fill them imports it
    columns = {
        "x": [1.5, 2.5, 3.5],
        "n": [1, 2, 3],
        "b": [True, False, True],
        "s": ["a", "b", "c"],
        "l": lists,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    arguments = [str(tmp_path / "a.parquet"), str(tmp_path / "store")]
    assert subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, *arguments], check=False).returncode == 0


def dicts():
    return [{"a": 1, "b": {"c": 1.5}}, {"a": 2, "b": {"c": 2.5}}, {"a": 3, "b": {"c": 3.5}, "d": "x"}, None]


@pytest.mark.parametrize("kind", ["pandas", "mapping", "arrow"])
def test_dicts_are_structs_whatever_holds_them(kind):
    data = {"id": [0, 1, 2, 3], "s": dicts()}
    given = {"pandas": pd.DataFrame, "mapping": dict, "arrow": pa.table}[kind](data)
    made = prepare(given, MemoryStore(), validation=None, nulls="mask").train
    batch = made[:]
    order = np.argsort(batch["id"])
    assert batch["s.a"][order].tolist() == [1, 2, 3, 0]
    assert batch["s.b.c"][order].tolist() == [1.5, 2.5, 3.5, 0]
    assert batch["s.d"][order].tolist() == ["", "", "x", ""]
    assert batch["s.d_mask"][order].tolist() == [True, True, False, True]


def test_dicts_that_are_no_structs_are_refused_by_name():
    frame = pd.DataFrame({"id": [0, 1], "s": [{"a": 1}, {"a": "one"}]})
    with pytest.raises(DataError, match=r"what a dataset cannot: s \("):
        prepare(frame, MemoryStore(), validation=None)
    assert prepare(frame, MemoryStore(), feature_columns=["id"], validation=None).train.schema.names == ["id"]


def test_types_of_csv_are_what_the_user_says(tmp_path):
    (tmp_path / "a.csv").write_text("id,n,x\n1,2,3\n4,5,6\n")
    given = {"id": "text", "n": np.int16, "x": float}
    for types in (
        given,
        {"id": str, "n": "int16", "x": "float64"},
        {"id": pa.string(), "n": pa.int16(), "x": pa.float64()},
    ):
        columns = as_source(tmp_path / "a.csv", types=types).collect().columns
        assert {name: data.column.dtype for name, data in columns.items()} == {
            "id": "object",
            "n": "int16",
            "x": "float64",
        }
        assert columns["id"].as_batch().tolist() == ["1", "4"]
    assert (
        as_source(tmp_path / "a.csv").fingerprint()
        != as_source(tmp_path / "a.csv", types=given).fingerprint()
    )
    (tmp_path / "b.csv").write_text("id;n\n007;1\n")
    both = (
        as_source([tmp_path / "b.csv", tmp_path / "b.csv"], types={"n": "text"}, delimiter=";")
        .collect()
        .columns
    )
    assert {name: data.as_batch().tolist() for name, data in both.items()} == {
        "id": ["007", "007"],
        "n": ["1", "1"],
    }


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"n": "int17"}, r"types=\{'n': 'int17'\} is no type of a column of CSV; did you mean 'int16'\?"),
        ({"n": "float16"}, r"types=\{'n': 'float16'\} is no type of a column of CSV"),
        ({"n": None}, r"types=\{'n': None\} is no type of a column of CSV"),
        ({"n": pa.list_(pa.int8())}, "is no type of a column of CSV"),
        ("n=text", "types='n=text' must be a dict of columns: types="),
        ({"m": "text"}, "a.csv has no column 'm'. Its columns are n."),
    ],
)
def test_impossible_types_of_csv_are_refused(tmp_path, types, message):
    (tmp_path / "a.csv").write_text("n\n1\n")
    with pytest.raises(UsageError, match=message):
        as_source(tmp_path / "a.csv", types=types)


def test_types_and_delimiters_are_for_csv_alone(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    message = "types= and delimiter= say how CSV files are read, but "
    with pytest.raises(UsageError, match=message + r".*a\.parquet is none\. Leave them out"):
        as_source(tmp_path / "a.parquet", types={"n": "text"})
    with pytest.raises(UsageError, match=message + "the data is a dict"):
        as_source({"n": [1]}, delimiter=";")
    with pytest.raises(UsageError, match=r"delimiter=';;' must be one character"):
        as_source(tmp_path / "a.parquet", delimiter=";;")


def test_an_error_about_types_of_csv_says_the_call_that_gives_them(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\n007,1\n008,2\n009,2\n")
    (tmp_path / "b.csv").write_text("id,x\n7,1\n8,2\n")
    train, val = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    advice = r"column 'id' is id: string .* id: int64 .* as_source\(path, types=\{'id': 'text'\}\) instead of a path"
    with pytest.raises(DataError, match=f"(?i){advice}"):
        prepare(train, LocalStore(tmp_path / "store"), val=val)
    prepared = prepare(train, LocalStore(tmp_path / "store"), val=as_source(val, types={"id": "text"}))
    assert prepared.val[:]["id"].tolist() in (["7", "8"], ["8", "7"])


def test_nothing_is_null_in_csv_whatever_the_column_holds(tmp_path):
    """And "" in quotes is the empty text; "NA" is a text among texts and missing among numbers."""
    (tmp_path / "a.csv").write_text('city,n,flag\nRome,1,true\n,,\n"",NA,NA\nNA,3,false\n"a\n,b",4,true\n')
    found = as_source(tmp_path / "a.csv").collect().columns
    assert found["city"].missing.tolist() == [False, True, False, False, False]
    assert list(found["city"].as_batch()) == ["Rome", "", "", "NA", "a\n,b"]
    assert found["n"].missing.tolist() == found["flag"].missing.tolist() == [False, True, True, False, False]
    (tmp_path / "b.csv").write_text("id\n007\n\n8\n")
    assert as_source(tmp_path / "b.csv").collect().columns["id"].missing.tolist() == [False, True, False]
    typed = as_source(tmp_path / "a.csv", types={"n": "text"}).collect().columns["n"]
    assert typed.missing.tolist() == [False, True, False, False, False]
    assert list(typed.as_batch()) == ["1", "", "NA", "3", "4"]


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
            st.none() | st.integers(-9, 9),
        ),
        min_size=1,
    ),
    st.booleans(),
)
def test_a_table_is_the_same_as_csv_that_tells_null_from_empty(rows, with_polars):
    texts, numbers = [text for text, _ in rows], [number for _, number in rows]
    columns = {
        "row": range(len(rows)),
        "text": pa.array(texts, pa.string()),
        "n": pa.array(numbers, pa.int64()),
    }
    table = pa.table(columns)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        if with_polars:
            pl.from_arrow(table).write_csv(path)
        else:
            pa.csv.write_csv(table, path)
        types = {"row": "int64", "text": "text", "n": "int64"}
        assert as_source(path, types=types).fingerprint() == as_source(table).fingerprint()
