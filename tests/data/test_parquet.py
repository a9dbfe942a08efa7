"""Prepared files are Parquet for everybody, and flat arrays with one stride for us."""

import math
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.layout import stored_dtype, stored_schema
from hopyard.data.preparing.files import FILE_BYTES, GROUP_BYTES, GROUPS, group_size
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.preparing.placement import Placement
from hopyard.data.ragged import Ragged
from hopyard.data.schema import TENSOR_DTYPES, Column, Schema
from hopyard.data.sources.sources import as_source


def random_values(column, rows, rng):
    if column.kind in ("string", "bytes"):
        return Ragged.from_rows([list(b"ab" * int(i)) for i in rng.integers(0, 4, rows)], np.uint8)
    if column.kind == "ragged":
        return Ragged.from_rows([rng.random(int(i)) for i in rng.integers(0, 4, rows)], column.dtype)
    bits = rng.integers(0, 256, (rows, *column.shape, np.dtype(column.dtype).itemsize), np.uint8)
    values = (bits & 1 if column.dtype == "bool" else bits).view(column.dtype).reshape(rows, *column.shape)
    return np.nan_to_num(values, posinf=1, neginf=1) if values.dtype.kind == "f" else values


def write(path, schema, groups):
    writer = FileWriter(path, schema)
    for group in groups:
        writer.write(group)
    return writer.close()


def bodies(path, schema, column):
    """Where the values of each row group begin, from the footer alone, and the rows there."""
    metadata = pq.read_metadata(path)
    width = stored_dtype(schema[column]).itemsize
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(pq.read_schema(path).names.index(column))
        end = chunk.data_page_offset + chunk.total_compressed_size
        yield end - metadata.row_group(group).num_rows * width, metadata.row_group(group).num_rows


columns = st.builds(
    lambda kind, dtype, shape: Column(
        "", kind, dtype if kind in ("tensor", "ragged") else "object", shape if kind == "tensor" else ()
    ),
    st.sampled_from(["tensor", "tensor", "tensor", "string", "bytes", "ragged"]),
    st.sampled_from(TENSOR_DTYPES[1:]),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
)
schemas = st.lists(columns, min_size=1, max_size=4).map(
    lambda found: Schema(Column(f"c{i}", c.kind, c.dtype, c.shape) for i, c in enumerate(found))
)


@given(schema=schemas, rows=st.integers(1, 40), groups=st.integers(1, 4), seed=st.integers(0, 99))
def test_any_reader_reads_what_was_written_and_we_read_it_from_the_footer(
    schema, rows, groups, seed, tmp_path_factory
):
    path = tmp_path_factory.mktemp("parquet") / "t.parquet"
    rng = np.random.default_rng(seed)
    written = [{c.name: random_values(c, rows, rng) for c in schema} for _ in range(groups)]
    entry = write(path, schema, written)
    assert entry.size == path.stat().st_size
    assert entry.group_rows == (rows,) * groups
    assert stored_schema(pq.read_schema(path).metadata) == schema
    back = as_source(path).collect().columns
    content = np.fromfile(path, np.uint8)
    for column in schema:
        parts = [group[column.name] for group in written]
        expected = Ragged.concatenate(parts) if isinstance(parts[0], Ragged) else np.concatenate(parts)
        if column.kind != "ragged" or back[column.name].kind == "ragged":
            assert back[column.name].column == column
            assert np.all(back[column.name].values == expected)
        if (dtype := stored_dtype(column)) is not None:
            for (start, n), part in zip(bodies(path, schema, column.name), parts, strict=True):
                raw = content[start : start + n * dtype.itemsize]
                if column.shape:
                    assert raw.tobytes() == part.tobytes()
                else:
                    np.testing.assert_array_equal(raw.view(dtype).astype(column.dtype), part)


def test_one_stride_fits_all_columns_of_a_file(tmp_path):
    schema = Schema(
        [
            Column("x", "tensor", "float32", (17,)),
            Column("y", "tensor", "int64"),
            Column("u", "tensor", "uint8"),
        ]
    )
    rng = np.random.default_rng(0)
    rows = 40_000  # more than the 20,000 rows after which pyarrow begins another page by default
    groups = [{c.name: random_values(c, n, rng) for c in schema} for n in (rows, rows, rows, 33_000)]
    path = tmp_path / "t.parquet"
    write(path, schema, groups)
    content = np.fromfile(path, np.uint8)
    for column in schema:
        starts = [start for start, _ in bodies(path, schema, column.name)]
        stride = starts[1] - starts[0]
        assert starts[2] - starts[1] == stride
        assert (starts[3] - starts[0]) % stored_dtype(column).itemsize == 0, "the last, shorter row group too"
        dtype = stored_dtype(column)
        assert stride % dtype.itemsize == 0
        place = 2 * rows + 5  # row 5 of row group 2
        virtual = 2 * stride // dtype.itemsize + 5
        found = content[starts[0] + virtual * dtype.itemsize :][: dtype.itemsize]
        expected = np.concatenate([group[column.name] for group in groups])[place]
        np.testing.assert_array_equal(
            found.view(column.dtype if column.shape else dtype).reshape(column.shape), expected
        )


def test_there_is_one_plain_page_a_chunk_and_nothing_else(tmp_path):
    schema = Schema([Column("x", "tensor", "float32", (3,)), Column("y", "tensor", "int64")])
    rng = np.random.default_rng(0)
    path = tmp_path / "t.parquet"
    write(path, schema, [{c.name: random_values(c, 300_000, rng) for c in schema}])
    metadata = pq.read_metadata(path)
    for i, width in enumerate((12, 8)):
        chunk = metadata.row_group(0).column(i)
        assert chunk.compression == "UNCOMPRESSED"
        assert not chunk.has_dictionary_page
        assert not chunk.is_stats_set
        assert not chunk.has_column_index
        # A page's header takes at least ten bytes; two of them would not fit into what is not values.
        assert chunk.total_compressed_size - 300_000 * width < 40
        assert metadata.schema.column(i).max_definition_level == 0, "REQUIRED"
        pages = [line for line in str(chunk.encodings).split(",") if "PLAIN" in line]
        assert pages


def test_the_place_of_a_row_group_is_found_in_little_memory_among_thousands_of_columns():
    placement = Placement(Schema(Column(f"c{i}", "tensor", "float64") for i in range(2000)))
    first = placement.start(4, 3, 0)
    tracemalloc.start()
    second = placement.start(first + (64 << 20) + 3, 3, 64 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (second - first) % 8 == 0
    assert peak < 100 << 20  # 13 GB if every place were tried for all columns at once


def test_padding_that_would_cost_much_is_left_out(tmp_path):
    schema = Schema(
        [Column("a", "tensor", "uint8", (9973,)), Column("b", "tensor", "uint8", (9967,))]
    )  # two primes
    rng = np.random.default_rng(0)
    path = tmp_path / "t.parquet"
    groups = [{c.name: random_values(c, 50, rng) for c in schema} for _ in range(3)]
    entry = write(path, schema, groups)
    assert entry.size < 1.01 * 3 * 50 * (9973 + 9967)


def test_other_libraries_read_the_numbers(tmp_path):
    schema = Schema(
        [
            Column("i8", "tensor", "int8"),
            Column("u64", "tensor", "uint64"),
            Column("f16", "tensor", "float16"),
            Column("flag", "tensor", "bool"),
            Column("text", "string"),
            Column("lists", "ragged", "float32"),
            Column("x", "tensor", "float32", (2,)),
        ]
    )
    group = {
        "i8": np.array([-1, 2], np.int8),
        "u64": np.array([1, 2**63], np.uint64),
        "f16": np.array([0.5, 1.5], np.float16),
        "flag": np.array([True, False]),
        "text": Ragged.from_rows([list("ö".encode()), []], np.uint8),
        "lists": Ragged.from_rows([[1, 2], []], np.float32),
        "x": np.array([[1, 2], [3, 4]], np.float32),
    }
    path = tmp_path / "t.parquet"
    write(path, schema, [group, group])
    expected = {
        "i8": [-1, 2],
        "u64": [1, 2**63],
        "f16": [0.5, 1.5],
        "flag": [True, False],
        "text": ["ö", ""],
        "lists": [[1.0, 2.0], []],
        "x": [group["x"][0].tobytes(), group["x"][1].tobytes()],
    }
    doubled = {name: values * 2 for name, values in expected.items()}
    assert pq.read_table(path).to_pydict() == doubled
    assert pl.read_parquet(path).to_dict(as_series=False) == doubled
    frame = pd.read_parquet(path)
    assert {name: [list(v) if name == "lists" else v for v in frame[name]] for name in frame} == doubled


@given(rows=st.integers(1, 10**7), row_bytes=st.integers(1, 10**6))
def test_row_groups_are_a_multiple_of_24_where_rows_allow(rows, row_bytes):
    size = group_size(rows, row_bytes)
    groups = math.ceil(rows / size)
    assert size == 1 or size * row_bytes <= GROUP_BYTES + row_bytes * GROUPS
    if rows >= GROUPS:
        assert groups >= GROUPS
        possible = GROUPS * max(1, math.ceil(rows * row_bytes / (GROUPS * GROUP_BYTES)))
        assert groups % GROUPS == 0 or math.ceil(rows / math.ceil(rows / possible)) != possible
    else:
        assert groups == rows


def test_files_are_between_64_and_256_mib():
    assert FILE_BYTES - GROUP_BYTES >= 64 << 20
    assert FILE_BYTES + GROUP_BYTES <= 256 << 20


@pytest.mark.parametrize("rows", [24, 576, 1348, 200_000])
def test_usual_numbers_of_rows_give_24_groups(rows):
    assert math.ceil(rows / group_size(rows, 100)) == 24
