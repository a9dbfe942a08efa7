"""The fingerprint of Parquet as it is tells its content, and files that change meanwhile are noticed."""

import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.data.reading import stored
from hopyard.errors import CorruptError
from hopyard.objects.digests import digest
from hopyard.storage import MemoryStore


def write(path, label=1.0, **options):
    """Footers say nothing of the label."""
    labels = np.zeros(1000)
    labels[500] = label
    pq.write_table(
        pa.table({"x": np.arange(1000), "label": labels}), path, write_statistics=False, use_dictionary=False,
        compression="none", **options,
    )  # fmt: skip


def rewrite_in_place(path, label):
    """One corrected label; size, inode and modification time stay."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    place = content.index(np.float64(1.0).tobytes())
    content[place : place + 8] = np.float64(label).tobytes()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_one_corrected_label_is_another_dataset(path):
    before = open_dataset(path, cache=False)
    state = before.loader(batch_size=10).state_dict()
    first = before.fingerprint
    footer = stored.StoredFile.open(None, str(path)).footer_digest
    rewrite_in_place(path, 2.0)
    after = open_dataset(path, cache=False)
    assert stored.StoredFile.open(None, str(path)).footer_digest == footer, "the footer does not tell"
    assert after.fingerprint != first
    assert after.partitions(1)[0].fingerprint != before.partitions(1)[0].fingerprint
    with pytest.raises(Exception, match=r"another dataset|other data|fingerprint"):
        after.loader(batch_size=10).load_state_dict(state)
    write(path)
    assert open_dataset(path, cache=False).fingerprint == first, "equal content is the same dataset"


@pytest.mark.parametrize("columns", [1, 500], ids=["short", "longer than what is read at first"])
def test_one_read_of_the_end_gives_the_footer_its_digest_and_that_there_are_no_checksums(tmp_path, columns):
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"column {number}": [1.0] for number in range(columns)}), path)
    content, file = path.read_bytes(), stored.StoredFile.open(None, str(path))
    length = int.from_bytes(content[-8:-4], "little")
    reads = []
    read = stored.StoredFile.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored.StoredFile, "read", lambda *given: reads.append(given) or read(*given))
        assert file.footer.num_columns == columns
        assert file.footer_digest == digest(content[-8 - length : -8], "hopyard.parquet-footer")
        assert file.checks is None
    assert len(reads) == (1 if length < stored._SHORT_FOOTER else 2)
    assert file.footer.equals(pq.read_metadata(path))


def test_a_loader_reads_no_file_to_name_it_before_its_state_is_asked_for(path, monkeypatch):
    named = []
    real = stored.hash_of
    monkeypatch.setattr(stored, "hash_of", lambda content: named.append(len(content)) or real(content))
    loader = open_dataset(path, cache=False).loader(batch_size=100)
    batches = iter(loader)
    next(batches)
    assert not named
    assert loader.state_dict()
    assert named == [path.stat().st_size]
    assert open_dataset(path, cache=False).fingerprint
    assert len(named) == 1, "the machine remembers"
    os.utime(path)
    assert open_dataset(path, cache=False).fingerprint == open_dataset(path, cache=False).fingerprint
    assert len(named) == 2


def test_a_file_rewritten_before_it_is_named_is_noticed(path):
    dataset = open_dataset(path, cache=False)
    rewrite_in_place(path, 2.0)
    with pytest.raises(CorruptError, match=r"rows.parquet was changed while it was being read"):
        dataset.fingerprint  # noqa: B018


def test_a_file_rewritten_before_it_is_read_is_noticed(path):
    dataset = open_dataset(path, cache=False)
    assert dataset.fingerprint
    rewrite_in_place(path, 2.0)
    with pytest.raises(CorruptError, match=r"rows.parquet was changed since the dataset was opened"):
        dataset[:]


def test_a_file_rewritten_between_two_epochs_is_noticed(path):
    dataset = open_dataset(path)
    loader = dataset.loader(batch_size=100)
    list(loader)
    loader.state_dict()
    rewrite_in_place(path, 2.0)
    with pytest.raises(CorruptError, match=r"rows.parquet was changed"):
        list(loader)


def test_entries_of_the_node_cache_are_of_the_file_as_it_is(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table({"x": ["a", "b"]}), path, compression="none", use_dictionary=False, write_statistics=False
    )
    assert open_dataset(path)[:]["x"].tolist() == ["a", "b"]
    status = path.stat()
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content.replace(b"\x01\0\0\0a", b"\x01\0\0\0c", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_dataset(path)[:]["x"].tolist() == ["c", "b"]


def test_a_pickled_dataset_opens_equal_content_and_nothing_else(path, tmp_path):
    pickled = pickle.dumps(open_dataset(path, cache=False))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)  # as on another machine: another file of the same name
    assert pickle.loads(pickled)[500:501]["label"].tolist() == [1.0]
    rewrite_in_place(path, 2.0)
    with pytest.raises(CorruptError, match=r"rows.parquet was changed since the dataset was opened"):
        pickle.loads(pickled)[:]


def test_objects_of_a_store_without_paths_are_never_read_to_be_named(path, monkeypatch):
    store = MemoryStore()
    store.put("rows.parquet", path.read_bytes())
    monkeypatch.setattr(stored, "hash_of", None)
    first = open_dataset(store, cache=False).fingerprint
    assert open_dataset(store, cache=False).fingerprint == first
    rewrite_in_place(path, 2.0)
    store.put("rows.parquet", path.read_bytes())
    if store.version("rows.parquet") is not None:
        assert open_dataset(store, cache=False).fingerprint != first
