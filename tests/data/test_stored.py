"""Files of a dataset: their footers are read once, and those of remote files several at a time."""

import errno
import threading

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
