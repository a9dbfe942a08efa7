"""Files of a dataset: their footers are read once, and those of remote files several at a time."""

import errno
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.data.files.stored import StoredFile
from hopyard.errors import CorruptError
from hopyard.storage import files, open_store


@pytest.fixture
def store(tmp_path):
    store = open_store(f"memory://{tmp_path.name}")
    for number in range(2):
        pq.write_table(pa.table({"x": range(number + 1)}), tmp_path / "a.parquet")
        store.put(f"{number}.parquet", (tmp_path / "a.parquet").read_bytes())
    return store


def test_remote_files_are_opened_together(store, monkeypatch):
    both = threading.Barrier(2, timeout=60)
    read = pq.read_metadata

    def together(source):
        both.wait()
        return read(source)

    monkeypatch.setattr(pq, "read_metadata", together)
    dataset = open_dataset(store.url)
    assert dataset[:]["x"].tolist() == [0, 0, 1]


def test_the_first_file_that_is_damaged_is_named_and_others_are_left_out_on_request(store):
    for number in (3, 2):
        store.put(f"{number}.parquet", b"PAR1 and no more")
    with pytest.raises(CorruptError, match=r"2\.parquet \(16 bytes\) is not a complete Parquet file"):
        open_dataset(store.url)
    dataset = open_dataset(store.url, corrupt="skip")
    assert dataset[:]["x"].tolist() == [0, 0, 1]
    assert [skipped.file[-9:] for skipped in dataset.skipped] == ["2.parquet", "3.parquet"]


@pytest.mark.parametrize("rows", [19, 21, -20])
def test_a_footer_that_contradicts_itself_is_no_footer(tmp_path, rows):
    """Footers have no checksum: one flipped bit in the rows of a row group, and rows are missing."""
    good, bad = tmp_path / "good.parquet", tmp_path / "z.parquet"
    pq.write_table(pa.table({"x": np.arange(40)}), good, row_group_size=20)
    data = good.read_bytes()
    # Of each row group: the field of its rows, an i64 in zigzag, behind its size.
    at = data.rindex(b"\x16" + bytes([20 << 1]))
    changed = {19: bytes([38]), 21: bytes([42]), -20: bytes([39])}[rows]
    bad.write_bytes(data[: at + 1] + changed + data[at + 2 :])
    found = pq.read_metadata(bad)
    assert [found.row_group(number).num_rows for number in range(2)] == [20, rows]
    with pytest.raises(
        CorruptError,
        match=rf"z\.parquet .* damaged footer: it tells of 40 rows, and of {20 + rows} in its 2 row",
    ):
        open_dataset(str(bad))
    dataset = open_dataset(str(tmp_path), corrupt="skip")
    assert len(dataset) == 40
    assert [part.file for part in dataset.skipped] == [str(bad)]


def test_a_column_whose_name_is_damaged_is_no_error_of_python(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"price": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"price", b"pric\xe4"))
    with pytest.raises(
        CorruptError, match=r"a\.parquet .* the name of a column is no UTF-8 \(b'pric\\xe4'\)"
    ):
        open_dataset(str(path))


def test_a_footer_is_read_once(store):
    file = StoredFile.open(store, "1.parquet")
    assert file.footer is file.footer


def test_a_digest_is_remembered_only_of_bytes_that_are_on_the_disk(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(errno.EIO, "injected")

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", refuse)
        content = StoredFile.open(None, str(path)).content
    assert StoredFile.open(None, str(path))._known_content() is None
    assert StoredFile.open(None, str(path)).content == content
    assert StoredFile.open(None, str(path))._known_content() == content
