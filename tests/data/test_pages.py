"""Lists of one length that are read from their pages are what Arrow reads; everything else is left to Arrow."""

import itertools
import os
import zlib

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.sampling import diagonal

from hopyard.data import open_dataset
from hopyard.data.files.stored import StoredFile
from hopyard.data.reading import pages, pieces
from hopyard.data.reading.page_header import read_page_header
from hopyard.data.reading.pages import Chunk, are_all, are_rows, find_chunk, may_be_paged, read_rows
from hopyard.data.schema import Column
from hopyard.errors import CorruptError, DataError

NUMBER = itertools.count()  # a file written again within a clock tick would be taken for the one before
CODECS = ("none", "snappy", "zstd", "gzip", "brotli")


@pytest.fixture(scope="module", autouse=True)
def small_pages():
    """Small pages are left to Arrow, which is faster there; here they are read, since they make small tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_SMALL_PAGE", 0)
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def without_arrow(monkeypatch):
    """``without_arrow()``: from then on Arrow decodes nothing."""

    def forbid():
        def opened(file, group=None):
            raise AssertionError(f"Arrow was asked for {file.name}")

        monkeypatch.setattr(StoredFile, "parquet", opened)

    return forbid


@pytest.fixture
def by_arrow(monkeypatch):
    """``by_arrow(dataset, name)``: the column as Arrow decodes it, or the text of the error."""

    def read(dataset, name="x"):
        with monkeypatch.context() as patch:
            patch.setattr(pieces, "may_be_paged", lambda column: False)
            return rows_or_error(dataset, name)

    return read


def rows_or_error(dataset, name="x"):
    try:
        return dataset[:][name]
    except (CorruptError, DataError) as error:
        return str(error)


def values(rows, length, dtype="float32"):
    """(rows, length) of any bits, also NaNs."""
    drawn = np.random.default_rng(rows * length).integers(0, 256, rows * length * np.dtype(dtype).itemsize)
    return drawn.astype(np.uint8).view(dtype).reshape(rows, length)


def as_list(array, kind="list", nullable=False, element_nullable=True):
    """(field, column) of the rows."""
    flat, length = pa.array(array.reshape(-1)), array.shape[1]
    element = pa.field("element", flat.type, nullable=element_nullable)
    offsets = np.arange(0, len(flat) + 1, length)
    if kind == "fixed":
        column = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(element, length))
    elif kind == "large":
        column = pa.LargeListArray.from_arrays(pa.array(offsets), flat, type=pa.large_list(element))
    else:
        offsets = pa.array(offsets.astype(np.int32))
        column = pa.ListArray.from_arrays(offsets, flat, type=pa.list_(element))
    return pa.field("x", column.type, nullable=nullable), column


def write(directory, columns, group=1 << 20, **options):
    path = directory / f"{next(NUMBER)}.parquet"
    table = pa.table([column for _, column in columns], schema=pa.schema([field for field, _ in columns]))
    settings = {"use_dictionary": False, "row_group_size": group, **options}
    pq.write_table(table, path, **settings)
    return path


def chunk_rows(path, group=0, name="x"):
    """The chunk's rows, read from its pages; as long as the file's first one."""
    [first] = next(pq.ParquetFile(path).iter_batches(1, columns=[name])).to_pydict()[name]
    dtype = pq.read_schema(path).field(name).type.value_type.to_pandas_dtype()
    column = Column(name, "tensor", np.dtype(dtype).name, (len(first),))
    assert may_be_paged(column)
    chunk = find_chunk(StoredFile.open(None, str(path)), group, column)
    if chunk is None:
        return None
    with path.open("rb", buffering=0) as file:
        parts = [part.copy() for part in read_rows(file, chunk)]
    return np.concatenate(parts)


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@given(
    rows=st.integers(1, 300),
    length=st.integers(1, 70),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
    kind=st.sampled_from(["list", "large", "fixed"]),
    nullable=st.booleans(),
    element_nullable=st.booleans(),
    page=st.sampled_from([64, 1000, 1 << 20]),
    batch=st.sampled_from([1, 7, 64, 1024]),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(CODECS),
    index=st.booleans(),
    checksums=st.booleans(),
)
def test_pages_are_read_as_arrow_reads_them(
    directory, rows, length, dtype, kind, nullable, element_nullable, page, batch, version, codec, index,
    checksums,
):  # fmt: skip
    array = values(rows, length, dtype)
    path = write(
        directory, [as_list(array, kind, nullable, element_nullable)], compression=codec, data_page_size=page,
        write_batch_size=batch, data_page_version=version, write_page_index=index,
        write_page_checksum=checksums,
    )  # fmt: skip
    assert same(chunk_rows(path), array)
    path.unlink()


@pytest.mark.parametrize("length", [1, 8, 26, 768, 5000])
def test_arrow_is_not_asked_for_lists_of_one_length(tmp_path, without_arrow, length):
    array = values(20_000 // length + 3, length)
    path = write(tmp_path, [as_list(array)], group=len(array) // 2, compression="snappy")
    dataset = open_dataset(path, cache=False)
    without_arrow()
    assert same(dataset[:]["x"], array)
    assert same(dataset[[len(array) - 1, 0]]["x"], array[[-1, 0]])


@pytest.mark.parametrize("writer", ["polars", "polars-arrays", "duckdb"])
def test_files_of_other_writers_are_read_from_pages(tmp_path, without_arrow, writer):
    array, path = values(3000, 33), tmp_path / "a.parquet"
    array[np.isnan(array)] = 0  # polars has one NaN
    if writer == "duckdb":
        with duckdb.connect() as connection:
            connection.register("t", pa.table([as_list(array)[1]], ["x"]))
            connection.execute(f"copy t to '{path}' (format parquet)")
    else:
        kind = pl.List(pl.Float32) if writer == "polars" else pl.Array(pl.Float32, 33)
        frame = pl.DataFrame({"x": pl.Series(array.tolist(), dtype=kind)})
        frame.write_parquet(path, compression="snappy" if writer == "polars" else "zstd")
    dataset = open_dataset(path, cache=False)
    without_arrow()
    assert same(dataset[:]["x"], array)


@pytest.mark.parametrize("cached", [True, False])
def test_other_columns_and_filters_go_with_it(tmp_path, cached):
    count = 3000
    array, number = values(count, 9), np.arange(count)
    texts = pa.array([f"{row}" for row in number])
    columns = [
        as_list(array),
        (pa.field("row", pa.int64()), pa.array(number)),
        (pa.field("text", pa.string()), texts),
        (pa.field("kind", pa.int64()), pa.array(number % 5)),
    ]
    path = write(tmp_path, columns, group=700, data_page_size=2000, write_batch_size=64)
    for filters, keep in ((None, number >= 0), ([("kind", "in", [1, 4])], np.isin(number % 5, [1, 4]))):
        dataset = open_dataset(path, filters=filters, cache=None if cached else False)
        got = dataset[:]
        assert same(got["x"], array[keep])
        assert got["row"].tolist() == number[keep].tolist()
        assert got["text"].tolist() == [f"{row}" for row in number[keep]]
        for batch in dataset.loader(100, shuffle=True):
            assert same(batch["x"], array[batch["row"]])


def null_row(lists):
    lists[333] = None


def null_value(lists):
    lists[333][1] = None


def short(lists):
    lists[333] = [1.0]


def exchanged(lists):  # as many values in all
    lists[333], lists[334] = [1.0, 2.0], [3.0, 4.0, 5.0, 6.0]


def empty(lists):
    lists[333], lists[334] = [], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("spoil", [null_row, null_value, short, exchanged, empty])
def test_rows_that_are_otherwise_are_not_read_from_pages(tmp_path, spoil, version):
    kind = pa.list_(pa.float32())
    good = [[float(row), row + 0.25, row + 0.5] for row in range(400)]
    bad = [list(row) for row in good]
    spoil(bad)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(
        path, pa.schema({"x": kind}), use_dictionary=False, data_page_version=version
    ) as writer:
        for lists in (good, bad):
            writer.write_table(pa.table({"x": pa.array(lists, kind)}))
    assert chunk_rows(path, 0).tolist() == good
    with pytest.raises(ValueError):
        chunk_rows(path, 1)


def test_chunks_that_are_otherwise_are_not_looked_at(tmp_path):
    array = values(100, 6)
    dictionary = write(tmp_path, [as_list(np.zeros((100, 6), "float32"))], use_dictionary=True)
    assert chunk_rows(dictionary) is None
    assert chunk_rows(write(tmp_path, [as_list(array)], compression="lz4")) is None
    streams = write(tmp_path, [as_list(array)], column_encoding={"x.list.element": "BYTE_STREAM_SPLIT"})
    assert chunk_rows(streams) is None
    for path in (dictionary, streams):
        assert same(open_dataset(path, cache=False)[:]["x"], pq_rows(path))


def test_lists_in_structs_and_lists_of_structs_are_arrows(tmp_path):
    plain, inner = values(50, 4), pa.array([[{"a": float(row)}] * 4 for row in range(50)])
    struct = pa.StructArray.from_arrays([as_list(plain)[1]], ["x"])
    pq.write_table(pa.table({"s": struct, "l": inner}), tmp_path / "a.parquet", use_dictionary=False)
    stored = StoredFile.open(None, str(tmp_path / "a.parquet"))
    for name in ("s", "l", "x"):
        assert find_chunk(stored, 0, Column(name, "tensor", "float32", (4,))) is None


def pq_rows(path):
    return np.array(pq.read_table(path)["x"].to_pylist(), "float32")


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("filters", [None, [("row", ">", 100)]])
def test_pages_that_turn_out_unusual_are_written_over_by_arrow(
    tmp_path, monkeypatch, cached, together, filters
):
    array, number = values(2000, 8), np.arange(2000)
    columns = [as_list(array), (pa.field("row", pa.int64()), pa.array(number))]
    path = write(tmp_path, columns, group=1000, data_page_size=2000, write_batch_size=64)
    asked = []

    def unusual_once(*levels):
        asked.append(levels)
        return len(asked) != 3 and are_all(*levels)

    monkeypatch.setattr(pages, "are_all", unusual_once)
    dataset = open_dataset(path, filters=filters, cache=None if cached else False)
    # An epoch decodes both row groups together.
    parts = dataset.loader(batch_size=300) if together else [dataset[:]]
    got = np.concatenate([part["x"] for part in parts])
    assert len(asked) > 6, "the other row group was read from its pages"
    assert same(got, array if filters is None else array[101:])


@pytest.mark.parametrize(("codec", "version"), diagonal("damaged pages", CODECS, ["1.0", "2.0"]))
def test_damage_gives_what_it_gives_with_arrow_and_never_wrong_rows(tmp_path, by_arrow, codec, version):
    array = values(40, 7)
    for checksums in (True, False):
        path = write(
            tmp_path, [as_list(array)], compression=codec, data_page_version=version, data_page_size=500,
            write_batch_size=64, write_page_checksum=checksums,
        )  # fmt: skip
        chunk = pq.read_metadata(path).row_group(0).column(0)
        whole, written = path.read_bytes(), path.stat().st_mtime_ns

        def damaged(place, bit, path=path, whole=whole, written=written):
            """The dataset, opened before a bit of the file was turned over."""
            path.write_bytes(whole)
            os.utime(path, ns=(written, written))
            dataset = open_dataset(path, cache=False)
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            os.utime(path, ns=(written, written))
            return dataset

        rng = np.random.default_rng(0)
        for place in rng.integers(0, chunk.total_compressed_size, 25).tolist():
            where = chunk.data_page_offset + place, int(rng.integers(8))
            got, arrows = rows_or_error(damaged(*where)), by_arrow(damaged(*where))
            if isinstance(got, str):
                assert got == arrows
            else:
                assert same(got, array) or (not checksums and same(got, arrows)), where


# What follows are pages made by hand: the compact protocol of Thrift is written here again.


def varint(value):
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def struct(fields):
    """Of {number: int, bool, bytes or struct}, in order."""
    written, before = b"", 0
    for number, value in fields.items():
        kind = {bool: 1 if value is True else 2, int: 5, bytes: 8, dict: 12}[type(value)]
        written += bytes([(number - before) << 4 | kind])
        before = number
        if kind == 5:
            written += varint(value << 1 if value >= 0 else (-value << 1) - 1)
        elif kind == 8:
            written += varint(len(value)) + value
        elif kind == 12:
            written += struct(value)
    return written + b"\0"


ARRAY = np.arange(24, dtype="float32").reshape(4, 6)
DEFINED = varint(24 << 1) + b"\1"
REPEATED = b"\7" + np.packbits(np.arange(24) % 6 != 0, bitorder="little").tobytes()
LEVELS = b"".join(len(each).to_bytes(4, "little") + each for each in (REPEATED, DEFINED))
FIRST = {1: 24, 2: 0, 3: 3, 4: 3}
SECOND = {1: 24, 2: 0, 3: 4, 4: 0, 5: len(DEFINED), 6: len(REPEATED)}


def handmade(directory, body, within, codec="UNCOMPRESSED", size=None, after=b"", **given):
    """The rows that are read from one page, of version 1 or 2."""
    second = len(within) > 5
    fields = {1: 3 if second else 0, 2: len(body) if size is None else size, 3: len(body)}
    fields |= {int(name[1:]): value for name, value in given.items()} | {8 if second else 5: within}
    content = b"PAR1" + struct(fields) + body
    path = directory / str(next(NUMBER))
    path.write_bytes(content + after)
    chunk = Chunk(4, len(content) - 4, codec, np.dtype("float32"), 4, 6, 1)
    with path.open("rb", buffering=0) as file:
        return np.concatenate([part.copy() for part in read_rows(file, chunk)])


def test_pages_made_by_hand_are_read(tmp_path):
    first, second = LEVELS + ARRAY.tobytes(), REPEATED + DEFINED + ARRAY.tobytes()
    assert same(handmade(tmp_path, first, FIRST), ARRAY)
    assert same(handmade(tmp_path, first, FIRST | {5: {1: b"highest", 2: b"lowest"}}), ARRAY)
    assert same(handmade(tmp_path, first, FIRST, _4=zlib.crc32(first) - (1 << 32)), ARRAY)
    assert same(handmade(tmp_path, second, SECOND), ARRAY)
    assert same(handmade(tmp_path, second, SECOND | {7: False}, "SNAPPY"), ARRAY)
    for codec in CODECS[1:]:
        packed = pa.compress(first, codec, asbytes=True)
        assert same(handmade(tmp_path, packed, FIRST, codec.upper(), len(first)), ARRAY)
        packed = REPEATED + DEFINED + pa.compress(ARRAY.tobytes(), codec, asbytes=True)
        assert same(handmade(tmp_path, packed, SECOND, codec.upper(), len(second)), ARRAY)


def test_pages_that_promise_what_is_not_there_are_unusual(tmp_path):
    first, second = LEVELS + ARRAY.tobytes(), REPEATED + DEFINED + ARRAY.tobytes()

    def refused(text, *page, **given):
        with pytest.raises(ValueError, match=text):
            handmade(tmp_path, *page, **given)

    for codec in CODECS[1:]:
        packed = pa.compress(first, codec, asbytes=True)
        for size in (len(first) - 1, len(first) + 1):
            with pytest.raises((ValueError, OSError)):
                handmade(tmp_path, packed, FIRST, codec.upper(), size)
    refused("another size", first, FIRST, size=len(first) + 1)
    refused("a size that its values cannot have", first, FIRST, size=1 << 40)
    refused("a size that its values cannot have", first, FIRST, size=-1)
    refused("more values than rows", first, FIRST | {1: 1 << 40})
    refused("more values than rows", first, FIRST | {1: 25})
    refused("more values than rows", first, FIRST | {1: 0})
    refused("more values than rows", first, FIRST | {1: -24})
    refused("another encoding", first, FIRST | {2: 9})
    refused("another encoding", first, FIRST | {3: 4})
    refused("another encoding", first, FIRST | {4: 4})
    refused("larger than its chunk", first, FIRST, _3=len(first) + 1, after=bytes(100))
    refused("larger than its chunk", first, FIRST, _3=-1)
    refused("larger than its chunk", first, FIRST, _3=0)
    refused("another checksum", first, FIRST, _4=1)
    refused("no data page", first, FIRST, _1=2)
    refused("no data page", first, FIRST, _1=3)
    refused("levels outside", b"\xff\xff\xff\x7f" + first[4:], FIRST)
    refused("not as many values", first + bytes(4), FIRST)
    refused("not as many values", first[:-4], FIRST)
    for number in (5, 6):
        for size in (-1, 1, 1 << 40):
            refused("levels outside|not as many values", second, SECOND | {number: size})
    refused("without a number", first, {1: 24})
    refused("without a number", first, FIRST | {1: b"24"})
    refused("cut or long", first, FIRST | {5: {1: bytes(600)}})


def test_fields_that_are_not_known_are_passed_over():
    known = struct({1: 0, 2: 100, 3: 90, 5: FIRST})[:-1]
    later = [
        bytes([0x57]) + bytes(8),  # field 10, a double
        bytes([0x13, 7]),  # a byte
        bytes([0x19, 0x25, 2, 4]),  # a list of two i32
        bytes([0x19, 0xF1, 20, *[1] * 20]),  # a list of twenty truths
        bytes([0x1A, 0x18, 2]) + b"ab",  # a set of one binary
        bytes([0x1B, 0]),  # a map of nothing
        bytes([0x1B, 1, 0x8C, 1]) + b"k" + struct({1: 3}),  # a map of one struct
        bytes([0x06, 200, 1, 6]),  # field 100, an i64
    ]
    for end in range(len(later) + 1):
        header = known + b"".join(later[:end]) + b"\0"
        page, length = read_page_header(header + b"more")
        assert length == len(header)
        assert (page.version, page.uncompressed_size, page.size, page.values) == (1, 100, 90, 24)
        assert page.checksum is None


@given(st.data())
@example(None)
def test_headers_of_any_bytes_are_read_or_refused(data):
    known = struct({1: 3, 2: 100, 3: 90, 4: 5, 8: SECOND | {7: True, 8: {1: b"most", 3: 0}}})
    if data is None:  # lists and maps that say to be endless, and structs in each other
        headers = [
            bytes([kind, *more, *[0xFF] * 9, 1, *bytes(400)])
            for kind, more in ((0x19, [0xF7]), (0x19, [0xF3]), (0x1B, []), (0x18, []))
        ] + [bytes([0x1C] * 500), bytes([0x19, *[0x19] * 500]), bytes([0x15, *[0xFF] * 400]), b""]
    elif data.draw(st.booleans()):
        headers = [data.draw(st.binary(max_size=80))]
    else:
        place, byte = data.draw(st.integers(0, len(known) - 1)), data.draw(st.integers(0, 255))
        headers = [known[:place] + bytes([byte]) + known[place + 1 :], known[:place]]
    for header in headers:
        try:
            page, length = read_page_header(header)
        except ValueError:
            continue
        assert 0 < length <= len(header)
        assert {type(page.size), type(page.values), type(page.definition_size)} == {int}


def encoded(levels, width, draw):
    """The levels in runs of any kind, as writers are free to choose them."""
    written, place = b"", 0
    while place < len(levels):
        alike = next((end for end in range(place, len(levels)) if levels[end] != levels[place]), len(levels))
        if draw(st.booleans()):
            end = draw(st.integers(place + 1, alike))
            written += varint((end - place) << 1) + bytes([levels[place]])
        else:
            groups = draw(st.integers(1, 3))
            end = min(place + 8 * groups, len(levels))
            padded = [*levels[place:end], *[0] * (place + 8 * groups - end)]
            bits = [level >> bit & 1 for level in padded for bit in range(width)]
            written += varint(groups << 1 | 1) + np.packbits(bits, bitorder="little").tobytes()
        place = end
    return written


@given(st.integers(1, 12), st.integers(0, 11), st.integers(1, 60), st.data())
def test_levels_are_those_of_rows_whatever_runs_they_come_in(length, phase, count, data):
    phase %= length
    levels = [int((phase + place) % length != 0) for place in range(count)]
    assert are_rows(encoded(levels, 1, data.draw), count, length, phase)
    levels[data.draw(st.integers(0, count - 1))] ^= 1
    assert not are_rows(encoded(levels, 1, data.draw), count, length, phase)


@given(st.integers(1, 3), st.integers(1, 60), st.data())
def test_values_are_all_there_whatever_runs_their_levels_come_in(defined, count, data):
    width = defined.bit_length()
    levels = [defined] * count
    assert are_all(encoded(levels, width, data.draw), defined, count)
    assert not are_all(encoded(levels, width, data.draw)[:-1], defined, count)
    levels[data.draw(st.integers(0, count - 1))] -= data.draw(st.integers(1, defined))
    assert not are_all(encoded(levels, width, data.draw), defined, count)


@given(st.binary(max_size=40), st.integers(1, 100))
def test_levels_of_any_bytes_are_judged(levels, count):
    assert are_rows(levels, count, 7, 3) in (True, False)
    assert are_all(levels, 3, count) in (True, False)
