"""Files that are damaged, change or go while rows are read: said by name; never wrong rows."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.errors import CorruptError, DataError, NotFoundError

LAYOUT = [[20, 20, 20], [20, 20, 20]]


WINDOW = 2000  # bytes: a row group or two


PLAIN = {"compression": "none", "use_dictionary": False}


FEW = ["id", "twice", "x", "y"]


def flip(path, group, column, byte=-8, count=8):
    """Flip bytes of a column's chunk, counted from its end."""
    described = pq.read_metadata(path).row_group(group)
    chunk = next(
        chunk
        for chunk in map(described.column, range(described.num_columns))
        if chunk.path_in_schema.split(".")[0] == column
    )
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    end = start + chunk.total_compressed_size
    content = bytearray(path.read_bytes())
    for place in range(end + byte, end + byte + count):
        content[place] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("cache", ["cache", False])
@pytest.mark.parametrize(
    "options", [{"data_page_size": 64}, {"compression": "snappy"}], ids=["pages", "snappy"]
)
def test_a_page_that_does_not_fit_its_checksum_is_named(write, rows, tmp_path, cache, options):
    options = {**PLAIN, **options}
    directory = write(LAYOUT, write_page_checksum=True, write_batch_size=4, columns=FEW, **options)
    flip(directory / "001.parquet", 1, "x")
    dataset = open_dataset(directory, cache=cache and tmp_path / "cache")
    expected = r"001\.parquet, row group 1, column 'x': cannot be decoded \(.*CRC.*corrupt='skip'"
    with pytest.raises(CorruptError, match=expected):
        dataset[:]
    loader, seen = dataset.loader(10, window=1), []
    with pytest.raises(CorruptError, match=expected):
        seen.extend(row for batch in loader for row in batch["id"].tolist())
    assert seen == list(range(80)), "what comes before it is read"
    assert rows.ids(dataset.loader(10, columns=["id", "y"])) == list(range(120)), "other columns are whole"


def test_damaged_compressed_pages_are_named_without_a_checksum_too(write):
    directory = write(LAYOUT, columns=FEW, compression="zstd", write_page_checksum=False)
    flip(directory / "000.parquet", 2, "twice", byte=-40, count=32)
    with pytest.raises(CorruptError, match=r"000\.parquet, row group 2, column 'twice': cannot be decoded"):
        open_dataset(directory)[:]


def test_damaged_row_groups_can_be_left_out(write, rows, warnings_of):
    directory = write(LAYOUT, columns=FEW, write_page_checksum=True)
    flip(directory / "001.parquet", 1, "x")
    (directory / "002.parquet").write_bytes(b"")
    dataset = open_dataset(directory, corrupt="skip")
    assert rows.ids(dataset.loader(10, True, window=WINDOW)) != []
    assert dataset[:]["id"].tolist() == [*range(80), *range(100, 120)]
    assert [(skipped.row_group, skipped.rows) for skipped in dataset.skipped] == [(None, None), (1, 20)]
    assert len(warnings_of()) == 1


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_a_file_that_lost_its_end_is_named(write, size):
    directory = write(LAYOUT)
    content = (directory / "001.parquet").read_bytes()
    (directory / "001.parquet").write_bytes(content[:size])
    with pytest.raises(CorruptError, match=r"001\.parquet \(\d+ bytes\) is not a complete Parquet file"):
        open_dataset(directory)


@pytest.mark.parametrize("how", ["replaced", "appended to", "truncated"])
@pytest.mark.parametrize("cache", ["cache", False])
def test_a_file_that_changes_while_rows_are_decoded_ends_the_epoch_and_is_named(
    write, rows, tmp_path, how, cache
):
    directory, other = write(LAYOUT), write(LAYOUT, first=1000)
    dataset = open_dataset(directory, cache=cache and tmp_path / "cache")
    loader = dataset.loader(10, window=WINDOW)
    epoch = iter(loader)
    batches = [next(epoch)]
    file = directory / "001.parquet"
    if how == "replaced":
        (other / "001.parquet").replace(file)
    elif how == "appended to":
        with file.open("ab") as end:
            end.write(b"more")
    else:
        os.truncate(file, 1000)
    with pytest.raises(
        CorruptError, match=r"001\.parquet was changed while it was being read.*open the dataset again"
    ):
        batches.extend(epoch)
    for batch in batches:
        rows.check(batch)
    seen = rows.ids(batches)
    assert seen == list(range(len(seen))), "rows of the old file only"
    assert len(seen) <= 60
    with pytest.raises(CorruptError, match=r"001\.parquet was changed"):
        next(iter(loader))


def test_a_mapped_file_that_is_replaced_is_read_to_the_end_of_the_epoch_and_named_at_the_next(write, rows):
    directory, other = (
        write(LAYOUT, first=first, columns=FEW, required=True, **PLAIN) for first in (0, 1000)
    )
    dataset = open_dataset(directory)
    assert all(dataset.reader().is_mapped(column) for column in dataset.schema)
    loader = dataset.loader(10, True, seed=1)
    seen = []
    for batch in loader:
        rows.check(batch)
        seen += batch["id"].tolist()
        if len(seen) == 10:
            (other / "001.parquet").replace(directory / "001.parquet")
    assert sorted(seen) == list(range(120)), "rows of the old file only"
    with pytest.raises(CorruptError, match=r"001\.parquet was changed while it was being read"):
        next(iter(loader))


def test_what_is_cached_is_read_to_the_end_though_its_file_is_gone_and_named_at_the_next_epoch(
    write, rows, tmp_path
):
    directory = write(LAYOUT)
    loader = open_dataset(directory, cache=tmp_path / "cache").loader(10, True, seed=1, window=WINDOW)
    rows.ids(loader)
    epoch = iter(loader)
    seen = next(epoch)["id"].tolist()
    (directory / "000.parquet").unlink()
    assert sorted(seen + rows.ids(epoch)) == list(range(120))
    with pytest.raises(
        NotFoundError, match=r"000\.parquet, a file of the dataset, cannot be read.*Restore it"
    ):
        next(iter(loader))


@pytest.mark.parametrize("cache", ["cache", False])
def test_a_file_that_goes_before_it_is_decoded_is_named(write, rows, tmp_path, cache):
    directory = write(LAYOUT)
    loader = open_dataset(directory, cache=cache and tmp_path / "cache").loader(10, window=WINDOW)
    epoch = iter(loader)
    batches = [next(epoch)]
    (directory / "001.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"001\.parquet, a file of the dataset, cannot be read"):
        batches.extend(epoch)
    assert rows.ids(batches) == list(range(10 * len(batches)))


@pytest.mark.parametrize(
    ("drifted", "text"),
    [
        ({"x": pa.array(["a"] * 5)}, r"001\.parquet.*x"),
        ({"x": pa.array([1] * 5, pa.int32())}, r"001\.parquet.*x"),
        ({}, r"001\.parquet.*x"),
    ],
)
def test_files_whose_columns_drifted_are_named(write, drifted, text):
    directory = write([[10]], columns=["id", "x"])
    pq.write_table(pa.table({"id": np.arange(5), **drifted}), directory / "001.parquet")
    with pytest.raises(DataError, match=text):
        open_dataset(directory)


def test_arrays_of_one_length_in_one_file_and_of_another_in_the_next_are_ragged_or_refused(tmp_path):
    for length in (3, 4):
        column = pa.array([[float(length)] * length] * 100, pa.list_(pa.float64(), length))
        pq.write_table(pa.table({"v": column}), tmp_path / f"{length}.parquet", row_group_size=50)
    assert open_dataset(tmp_path / "3.parquet").schema["v"].shape == (3,)
    dataset = open_dataset(tmp_path)
    assert dataset.schema["v"].kind == "ragged"
    for batch in dataset.loader(16, True, window=1):
        assert all(row.tolist() == [float(len(row))] * len(row) for row in batch["v"])
    with pytest.raises(DataError, match=r"Column 'v' is ragged: its rows have 3 to 4 values"):
        open_dataset(tmp_path, ragged="error")
    padded = open_dataset(tmp_path, ragged="pad")[[99, 100]]
    assert padded["v"].tolist() == [[3.0, 3.0, 3.0, 0.0], [4.0] * 4]
    assert padded["v_length"].tolist() == [3, 4]
