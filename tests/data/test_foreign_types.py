"""Every type that Parquet files of other libraries hold, as rows of a dataset."""

import base64
import datetime
import decimal
import uuid

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import diagonal, sample

from hopyard.data import Column, Ragged, as_source, open_dataset, prepare
from hopyard.data.columns.structs import flat_columns
from hopyard.errors import CorruptError, DataError
from hopyard.storage import LocalStore, MemoryStore

D = decimal.Decimal
DAY = 86_400 * 10**9
NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


def rows_of(values):
    """A batch's column as plain Python values."""
    return [row.tolist() for row in values] if isinstance(values, Ragged) else values.tolist()


def prepared(data, **options):
    return prepare(data, MemoryStore(), validation=data, **options).train


def by_number(dataset):
    """All rows, in the order of the column ``n``."""
    return dataset[np.argsort(dataset[:]["n"])]


def array(values, kind):
    return pa.array(values, kind)


def extension(kind, values):
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


CUBE = np.arange(12).reshape(2, 2, 3)
TYPES = [
    *((array([0, 100], getattr(pa, f"{u}int{n}")()), [0, 100], f"{u}int{n}")
      for u in ("", "u") for n in (8, 16, 32, 64)),
    (array([2**64 - 1, 0], pa.uint64()), [2**64 - 1, 0], "uint64"),
    (pa.array(np.array([1, 0.5], np.float16)), [1, 0.5], "float16"),
    (array([1.5, float("inf")], pa.float32()), [1.5, float("inf")], "float32"),
    (array([True, False], pa.bool_()), [True, False], "bool"),
    *((array([D("1.50"), D("-2.25")], kind), [1.5, -2.25], "float64")
      for kind in (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(30, 2), pa.decimal256(60, 2))),
    (array([1, -2], pa.date32()), [DAY, -2 * DAY], "int64"),
    (array([DAY // 10**6], pa.date64()), [DAY], "int64"),
    *((array([1], pa.time32(u)), [NS[u]], "int64") for u in ("s", "ms")),
    *((array([1], pa.time64(u)), [NS[u]], "int64") for u in ("us", "ns")),
    *((array([1, -2], pa.timestamp(u)), [NS[u], -2 * NS[u]], "int64") for u in NS),
    *((array([1], pa.timestamp("us", zone)), [1000], "int64") for zone in ("UTC", "Europe/Berlin", "+02:00")),
    *((array([3], pa.duration(u)), [3 * NS[u]], "int64") for u in NS),
    *((array(["a", "", "é" * 20], kind), ["a", "", "é" * 20], "string")
      for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((array([b"a", b"", b"\x00\xff" * 9], kind), [b"a", b"", b"\x00\xff" * 9], "bytes")
      for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"], "bytes"),
    (pa.array(["x", "y", "x"]).dictionary_encode(), ["x", "y", "x"], "string"),
    (pa.array([1.5, 2, 1.5]).dictionary_encode(), [1.5, 2, 1.5], "float64"),
    (array(["x", "y"], pa.dictionary(pa.int8(), pa.large_string())), ["x", "y"], "string"),
    *((array([[1], [], [2, 3]], kind(pa.int16())), [[1], [], [2, 3]], "int16[*]")
      for kind in (pa.list_, pa.large_list)),
    *((array([[1, 2], [3, 4]], kind), [[1, 2], [3, 4]], "float32[2]")
      for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2))),
    (array([[True], [False, True]], pa.list_(pa.bool_())), [[True], [False, True]], "bool[*]"),
    (array([[1, 2]], pa.list_(pa.timestamp("s"))), [[10**9, 2 * 10**9]], "int64[2]"),
    (array([[D("0.5")]], pa.list_(pa.decimal128(5, 1))), [[0.5]], "float64[1]"),
    (array([[[1, 2], [3, 4], [5, 6]]], pa.list_(pa.list_(pa.int8()))), [[[1, 2], [3, 4], [5, 6]]], "int8[3, 2]"),
    (array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2))), [[[1, 2]], [[3, 4]]], "int8[1, 2]"),
    (array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int8()), 2)), [[[1], [2]], [[3], [4]]], "int8[2, 1]"),
    (extension(pa.uuid(), [uuid.UUID(int=5).bytes]), [uuid.UUID(int=5).bytes], "bytes"),
    (extension(pa.json_(), ['{"a": 1}']), ['{"a": 1}'], "string"),
    (extension(pa.bool8(), [1, 0]), [True, False], "bool"),
    (pa.FixedShapeTensorArray.from_numpy_ndarray(CUBE), CUBE.tolist(), "int64[2, 3]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "expected", "kind"),
    sample("types of Arrow", TYPES, quick=15, ci=len(TYPES)),
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_every_type_is_read_as_it_is_and_prepared(tmp_path, column, expected, kind):
    path = tmp_path / "a.parquet"
    table = pa.table({"n": range(len(column)), "x": column, "s": pa.StructArray.from_arrays([column], ["x"])})
    pq.write_table(table, path, row_group_size=2 if "view" not in str(column.type) else None)
    for dataset in (
        open_dataset(path, cache=False),
        open_dataset(path, cache=False, nulls="mask", ragged="keep"),
        prepared(path, ragged="keep"),
    ):
        assert [str(each) for each in dataset.schema][1:] == [f"x: {kind}", f"s.x: {kind}"]
        batch = by_number(dataset)
        assert rows_of(batch["x"]) == rows_of(batch["s.x"]) == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1.5, 2.5])),
        pa.array([[1], [2, 3]], pa.list_view(pa.int8())),
        pa.array([[1], [2, 3]], pa.large_list_view(pa.int8())),
        pa.ListViewArray.from_arrays(
            pa.array([2, 0], pa.int32()), pa.array([1, 2], pa.int32()), pa.array([1, 2, 3])
        ),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array(["x", None], pa.string_view())),
        pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=pa.array([True, False])).field(0),
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_only_memory_holds_are_prepared(column):
    for rows in (column, column.slice(1), pa.chunked_array([column, column.slice(1)])):
        source = as_source(pa.table({"x": rows, "y": range(len(rows))}))
        data = source.head_columns(len(rows))["x"]
        missing = np.zeros(len(rows), bool) if data.missing is None else data.missing
        read = [None if gone else row for row, gone in zip(rows_of(data.as_batch()), missing, strict=True)]
        assert read == rows.to_pylist()


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (
            array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
            r"x \(map<string, int8.*make its keys columns",
        ),
        (array([["a"]], pa.list_(pa.string())), r"x \(lists of strings: join them"),
        (
            array([[{"a": 1}]], pa.list_(pa.struct({"a": pa.int8()}))),
            r"x \(lists of struct.*make a column of lists of",
        ),
        (
            array([[[1], [2, 3]]], pa.list_(pa.list_(pa.int8()))),
            r"x \(lists that are ragged in more than one",
        ),
        (
            array([None, None], pa.null()),
            "column 'x' holds nothing but nulls or empty lists, so its type is unknown",
        ),
        (array([[], []], pa.list_(pa.int8(), 0)), r"x: int8\[0\] has rows of 0 bytes"),
        (
            array([10**17], pa.timestamp("us")),
            r"row group 0: x \(timestamp\[us\]: times that int64 nanoseconds do not",
        ),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_what_has_no_place_in_a_dataset_is_named(tmp_path, column, text):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": column, "ok": range(len(column))}), path)
    with pytest.raises(DataError, match=text):
        open_dataset(path)[:]
    with pytest.raises((DataError, CorruptError), match="x"):  # Arrow itself cannot read lists of size 0
        prepared(path, nulls="fill", ragged="keep")
    assert rows_of(open_dataset(path, columns=["ok"])[:]["ok"]) == list(range(len(column)))


def test_all_columns_that_have_no_place_are_named_also_those_of_one_type(tmp_path):
    lists = array([["a"]], pa.list_(pa.string()))
    pq.write_table(pa.table({"x": lists, "ok": [1], "y": lists, "z": lists}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"x \(lists of strings.*y \(lists of strings.*z \(lists of strings"):
        open_dataset(tmp_path / "a.parquet")


def test_old_timestamps_are_never_other_times(tmp_path):
    path = tmp_path / "a.parquet"
    times = [datetime.datetime(2020, 1, 1, microsecond=123_456), datetime.datetime(9999, 12, 31)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us")), "id": [0, 1]})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    for read in (lambda: open_dataset(path)[:], lambda: as_source(path).head(2)):
        with pytest.raises(
            DataError, match="times that int64 nanoseconds do not reach, 1677 to 2262: replace"
        ):
            read()
    early = open_dataset(path, filters=[("t", "<", datetime.datetime(2100, 1, 1))])
    assert early[:]["t"].tolist() == [1_577_836_800_123_456_000]


NESTED = pa.table(
    {
        "n": [0, 1, 2],
        "a": [{"b": 1, "c": {"d": "x", "e": [1, 2]}}, None, {"b": None, "c": {"d": "z", "e": [3, 4]}}],
        "f": [{"b": 1.5}, {"b": 2.5}, {"b": 3.5}],
    }
)


def test_structs_are_their_fields_and_a_null_struct_has_null_fields(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(NESTED, path, row_group_size=2)
    with pytest.raises(DataError, match=r"row group 0: column 'a.b' has 2 nulls"):
        open_dataset(path)
    for dataset in (
        open_dataset(path, nulls="mask"),
        prepared(path, nulls="mask"),
        prepared(NESTED, nulls="mask"),
        prepared(pl.from_arrow(NESTED), nulls="mask"),
        prepared(NESTED.to_pandas(types_mapper=pd.ArrowDtype), nulls="mask"),
        prepare(NESTED.to_reader(), MemoryStore(), validation=NESTED, nulls="mask").train,
    ):
        batch = by_number(dataset)
        assert list(batch) == ["n", "a.b", "a.b_mask", "a.c.d", "a.c.d_mask", "a.c.e", "a.c.e_mask", "f.b"]
        assert batch["a.b"].tolist() == [1, 0, 0]
        assert batch["a.b_mask"].tolist() == [False, True, True]
        assert batch["a.c.d"].tolist() == ["x", "", "z"]
        assert batch["a.c.e"].tolist() == [[1, 2], [0, 0], [3, 4]]
        assert batch["a.c.e_mask"].tolist() == [False, True, False]
        assert batch["f.b"].tolist() == [1.5, 2.5, 3.5]
    assert open_dataset(path, columns=["f.b", "n"])[[2]]["f.b"].tolist() == [3.5]


def test_a_name_that_a_field_of_a_struct_has_too_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"a.b": [1], "a": [{"b": 2}]})
    pq.write_table(table, path)
    text = "the field 'b' of the struct 'a' and The column named 'a.b' would both be the column 'a.b'"
    for read in (lambda: open_dataset(path), lambda: as_source(path), lambda: as_source(table)):
        with pytest.raises(DataError, match=text):
            read()
    with pytest.raises(DataError, match="is a struct without fields"):
        flat_columns(pa.schema({"a": pa.struct([])}))


def test_dotted_names_are_names(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2], "a.b": [3, 4], "a.b.c": ["x", "y"]}), path)
    batch = open_dataset(path)[:]
    assert {name: rows_of(values) for name, values in batch.items()} == {
        "a": [1, 2],
        "a.b": [3, 4],
        "a.b.c": ["x", "y"],
    }


def test_a_column_that_one_file_knows_only_as_nulls_has_the_type_of_the_others(tmp_path):
    for place, values in enumerate(([None, None], [1.5, 2.5])):
        pq.write_table(
            pa.table({"x": values, "t": [[v] if v else None for v in values]}), tmp_path / f"{place}.parquet"
        )
    with pytest.raises(DataError, match=r"0.parquet, row group 0: column 'x' has 2 nulls"):
        open_dataset(tmp_path)
    batch = open_dataset(tmp_path, nulls="mask")[:]
    assert batch["x"].tolist() == [0, 0, 1.5, 2.5]
    assert batch["x_mask"].tolist() == [True, True, False, False]


WRITTEN = pa.table(
    {
        "i": pa.array(range(40), pa.int64()),
        "f": pa.array([i / 4 for i in range(40)], pa.float32()),
        "s": [f"s{i % 7}" for i in range(40)],
        "b": [i % 2 == 0 for i in range(40)],
        "t": pa.array(
            [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=i) for i in range(40)],
            pa.timestamp("us"),
        ),
        "l": pa.array([[i, i + 1.5, 2.0] for i in range(40)], pa.list_(pa.float32())),
        "r": pa.array([list(range(i % 3)) for i in range(40)], pa.list_(pa.int64())),
    }
)


def by_duckdb(table, path):
    duckdb.from_arrow(table).write_parquet(str(path), row_group_size=2048)


def by_spark(table, path):
    """The layout of Spark: pages of version 1, dictionaries, snappy, INT96 times, lists of `element`."""
    pq.write_table(
        table, path, version="1.0", data_page_version="1.0", compression="snappy", use_dictionary=True,
        use_deprecated_int96_timestamps=True, use_compliant_nested_type=True, store_schema=False, row_group_size=15,
    )  # fmt: skip


WRITERS = {
    "pandas": lambda table, path: table.to_pandas().to_parquet(path),
    "pandas, fastest": lambda table, path: table.to_pandas().to_parquet(path, compression=None, index=False),
    "polars": lambda table, path: pl.from_arrow(table).write_parquet(path, row_group_size=16),
    "polars, lz4": lambda table, path: pl.from_arrow(table).write_parquet(
        path, compression="lz4", statistics=False
    ),
    "duckdb": by_duckdb,
    "spark": by_spark,
    "pyarrow": lambda table, path: pq.write_table(table, path, row_group_size=7, data_page_version="2.0"),
    "pyarrow, small pages": lambda table, path: pq.write_table(
        table, path, data_page_size=32, compression="zstd"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_every_writer_are_read_and_prepared(tmp_path, writer):
    path = tmp_path / "a.parquet"
    WRITERS[writer](WRITTEN, path)
    for dataset in (open_dataset(path), prepared(path, ragged="keep")):
        assert dataset.schema.select(WRITTEN.column_names).columns == (
            Column("i", "tensor", "int64"),
            Column("f", "tensor", "float32"),
            Column("s", "string"),
            Column("b", "tensor", "bool"),
            Column("t", "tensor", "int64"),
            Column("l", "tensor", "float32", (3,)),
            Column("r", "ragged", "int64"),
        )
        assert len(dataset) == 40
        for batch in dataset.loader(16, True, seed=3):
            ids = batch["i"]
            assert np.array_equal(batch["f"], ids / 4)
            assert batch["s"].tolist() == [f"s{i % 7}" for i in ids]
            assert np.array_equal(batch["b"], ids % 2 == 0)
            assert np.array_equal(
                batch["t"], np.datetime64("2020-01-01", "ns").astype(int) + ids * 3600 * 10**9
            )
            assert np.array_equal(batch["l"], np.stack([ids, ids + 1.5, np.full(len(ids), 2)], axis=1))
            assert rows_of(batch["r"]) == [list(range(i % 3)) for i in ids]


def optional(values):
    return st.one_of(st.none(), values)


COLUMNS = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(max_size=5)),
    "bytes": (pa.large_binary(), st.binary(max_size=5)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates(datetime.date(1970, 1, 1), datetime.date(2200, 1, 1))),
    "kind": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from("abc")),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(-128, 127), max_size=4)),
    "pair": (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2)),
    "struct": (pa.struct({"a": pa.int16(), "b": pa.string()}),
               st.fixed_dictionaries({"a": optional(st.integers(-9, 9)), "b": st.text(max_size=2)})),
}  # fmt: skip
EMPTY = {
    "int": 0,
    "float": 0.0,
    "text": "",
    "bytes": b"",
    "flag": False,
    "day": 0,
    "kind": "",
    "list": [],
    "pair": [0, 0],
}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 30))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, min_size=1))
    columns = {}
    for name in names:
        kind, values = COLUMNS[name]
        columns[name] = pa.array(draw(st.lists(optional(values), min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


def flat_values(table):
    for name in table.column_names:
        values = table[name].to_pylist()
        if name == "struct":
            yield "struct.a", [row and row["a"] for row in values], 0
            yield "struct.b", [None if row is None else row["b"] for row in values], ""
        else:
            if name == "day":
                values = [day and (day - datetime.date(1970, 1, 1)).days * DAY for day in values]
            yield name, values, EMPTY[name]


@given(
    table=tables(),
    group=st.integers(1, 20),
    files=st.integers(1, 2),
    compression=st.sampled_from(["none", "snappy", "zstd"]),
    statistics=st.booleans(),
)
def test_any_table_is_read_as_its_values(tmp_path_factory, table, group, files, compression, statistics):
    directory = tmp_path_factory.mktemp("any")
    cut = table.num_rows // files
    parts = [table] if files == 1 else [table.slice(0, cut), table.slice(cut)]
    for number, part in enumerate(parts):
        options = {"row_group_size": group, "compression": compression, "write_statistics": statistics}
        pq.write_table(part, directory / f"{number}.parquet", **options)
    batch = open_dataset(directory, nulls="mask", cache=False)[:]
    for name, values, empty in flat_values(table):
        nulls = [value is None for value in values]
        assert (f"{name}_mask" in batch) == any(nulls)
        if any(nulls):
            assert batch[f"{name}_mask"].tolist() == nulls
        if name == "list" and not isinstance(batch[name], Ragged):
            length = max(len(row) for row in values if row is not None)
            empty = [0] * length
        assert rows_of(batch[name]) == [empty if value is None else value for value in values]


@pytest.mark.long
@given(table=tables(), nulls=st.sampled_from(["fill", "mask"]), ragged=st.sampled_from(["keep", "pad"]))
def test_opening_and_preparing_agree(tmp_path_factory, table, nulls, ragged):
    path = tmp_path_factory.mktemp("both") / "a.parquet"
    pq.write_table(table.append_column("n", pa.array(range(table.num_rows))), path, row_group_size=7)
    reads = (
        lambda: prepared(path, nulls=nulls, ragged=ragged),
        lambda: open_dataset(path, nulls=nulls, ragged=ragged, cache=False),
    )
    if ragged == "pad" and "list" in table.column_names and not any(table["list"].to_pylist()):
        for read in reads:
            with pytest.raises(
                DataError, match="'list' holds nothing but empty lists, so that there is no length"
            ):
                read()
        return
    made, batch = (by_number(read()) for read in reads)
    assert list(batch) == list(made)
    for name, values in made.items():
        assert isinstance(batch[name], type(values))
        assert rows_of(batch[name]) == rows_of(values)


LISTS = {"list": [None, [0], [0, 1], []], "pair": [None, [1.0, 2.0]]}


@pytest.mark.long
@given(
    name=st.sampled_from(list(LISTS)),
    picks=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    ragged=st.sampled_from(["keep", "pad"]),
)
def test_lists_that_are_null_in_one_row_group_and_not_in_another_are_read_and_prepared_alike(
    tmp_path_factory, name, picks, ragged
):
    kind = {"list": pa.list_(pa.int8()), "pair": pa.list_(pa.float32(), 2)}[name]
    values = [LISTS[name][pick % len(LISTS[name])] for pick in picks]
    table = pa.table({"x": pa.array(values, kind), "n": range(5)})
    path = tmp_path_factory.mktemp("lists") / "a.parquet"
    pq.write_table(table, path, row_group_size=2)
    results = []
    for read in (
        lambda: open_dataset(path, nulls="fill", ragged=ragged, cache=False),
        lambda: prepared(path, nulls="fill", ragged=ragged),
        lambda: prepared(table, nulls="fill", ragged=ragged),
    ):
        try:
            dataset = read()
            results.append((str(dataset.schema), rows_of(by_number(dataset)["x"])))
        except DataError as error:
            results.append(str(error))
    assert results[0] == results[1] == results[2]


class Keys(encryption.KmsClient):
    """Keys that are wrapped by nothing, as no test of encryption."""

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key, name):
        return base64.b64encode(key)

    def unwrap_key(self, key, name):
        return base64.b64decode(key)


@pytest.mark.parametrize("plaintext_footer", [False, True])
@pytest.mark.parametrize("read", [open_dataset, as_source], ids=["open", "prepare"])
def test_encrypted_files_are_called_so(tmp_path, plaintext_footer, read):
    how = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["x"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"x": [1, 2], "y": [3, 4]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(
        DataError, match=r"a.parquet is encrypted Parquet, .* takes no keys. Decrypt it: read it with"
    ):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("kind", "dictionary", "statistics"),
    diagonal("nulls of bytes", [pa.binary(4), pa.binary(), pa.uuid()], [True, False], [True, False]),
)
def test_nulls_in_columns_of_bytes_follow_the_policy(tmp_path, kind, statistics, dictionary):
    values = [None if i % 3 == 1 else (b"%04d" % i) * (4 if kind == pa.uuid() else 1) for i in range(20)]
    storage = kind.storage_type if kind == pa.uuid() else kind
    column = pa.array(values, storage)
    if kind == pa.uuid():
        column = pa.ExtensionArray.from_storage(kind, column)
    table = pa.table({"u": column, "i": range(20)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, write_statistics=statistics, use_dictionary=dictionary, row_group_size=6)
    for read in (
        open_dataset,
        lambda *args, **how: prepare(*args, LocalStore(tmp_path), validation=None, **how).train,
    ):
        with pytest.raises(
            DataError, match=r"column 'u' (has \d+ nulls|in \d+ rows \(the first are rows 1, 4, 7\))"
        ):
            next(iter(read(path).loader(20)))
        for policy in ("fill", "mask"):
            batch = read(path, nulls=policy)[:]
            expected = [values[i] or b"" for i in batch["i"]]
            assert batch["u"].tolist() == expected
            assert ("u_mask" in batch) == (policy == "mask")
            if policy == "mask":
                assert batch["u_mask"].tolist() == [values[i] is None for i in batch["i"]]
