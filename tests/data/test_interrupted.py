"""Preparation that is killed, or finds the store full, is done again as if nothing had been."""

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.data.files.unfinished import UNFINISHED, finish_names
from hopyard.data.layout import writer_options
from hopyard.data.manifest import MANIFEST_NAME
from hopyard.data.preparing import parquet
from hopyard.data.preparing.prepare import prepare
from hopyard.errors import CorruptError, DataError, NotFoundError, StorageFullError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.faults import Fault, FaultyStore

KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from conftest import rows_to_prepare
from hopyard.data.preparing.prepare import prepare
from hopyard.data.files.unfinished import UNFINISHED, finish_names
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
prepare(rows_to_prepare(), FaultyStore(LocalStore({path!r}), Fault({action!r}, at={at})))
"""


@pytest.mark.parametrize(
    ("action", "at"), [("kill_before", 1), ("kill_after", 1), ("kill_after", 2), ("kill_after", 3)]
)
def test_a_killed_preparation_is_done_again_with_the_same_files(action, at, tmp_path, data, files_of):
    expected = LocalStore(tmp_path / "expected")
    fingerprint = prepare(data(), expected).fingerprint
    path = tmp_path / "killed"
    program = KILLED.format(tests=str(Path(__file__).parent), path=str(path), action=action, at=at)
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    store = LocalStore(path)
    again = prepare(data(), store)
    assert not again.reused, "the training manifest is the last write"
    assert again.fingerprint == fingerprint
    assert files_of(store) == files_of(expected)
    assert prepare(data(), store).reused


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_full_store_is_said_and_leaves_nothing_believed(at, tmp_path, data):
    store = FaultyStore(LocalStore(tmp_path / "s"), Fault("full", at=at))
    with pytest.raises(StorageFullError, match="injected"):
        prepare(data(), store)
    again = prepare(data(), store)
    assert not again.reused
    assert len(again.train) == 150


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_full_store_pauses_the_preparation_if_it_may_wait(at, tmp_path, data, files_of):
    expected = LocalStore(tmp_path / "expected")
    prepare(data(), expected)
    room = tmp_path / "room"
    inner = LocalStore(tmp_path / "s")
    store = FaultyStore(inner, Fault("full", at=at, times=100, until=room))
    said = []

    def make_room(seconds):
        room.touch()
        return False

    prepare(data(), store, wait=make_room, announce=said.append)
    assert len(said) == 1
    assert "paused" in said[0]
    assert files_of(inner) == files_of(expected)


def test_a_lost_file_is_written_again(store, data, files_of):
    first = prepare(data(), store)
    files = files_of(store)
    store.delete(f"train_data/{first.fingerprint}/{first.train.manifest.files[0].name}")
    again = prepare(data(), store)
    assert not again.reused
    assert again.train.manifest == first.train.manifest
    assert files_of(store) == files


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_is_full_while_a_file_is_written_pauses_the_preparation(tmp_path, monkeypatch, data):
    staging = tmp_path / "staging"

    attempts = []

    def with_a_full_device(**arguments):
        staging.mkdir()
        attempts.append(staging)
        if len(attempts) < 3:
            (staging / "0.parquet").symlink_to("/dev/full")
        return str(staging)

    monkeypatch.setattr("hopyard.data.preparing.write.tempfile.mkdtemp", with_a_full_device)
    with pytest.raises(
        StorageFullError,
        match=r"No space is left in .*staging for a file on its way into memory:.*\. Make space there;",
    ):
        prepare(data(), MemoryStore(), None)
    assert not staging.exists()
    said = []
    prepared = prepare(data(), MemoryStore(), None, wait=lambda seconds: False, announce=said.append)
    assert len(said) == 1
    assert len(prepared.train) == 200


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_is_full_while_rows_are_spooled_is_said(store, monkeypatch):
    monkeypatch.setattr("hopyard.data.sources.collect.MEMORY", 100)
    monkeypatch.setattr(
        "hopyard.data.sources.collect.tempfile.TemporaryFile",
        lambda **arguments: Path("/dev/full").open("r+b", buffering=0),  # noqa: SIM115
    )
    with pytest.raises(StorageFullError, match="for the rows of a source that is read once"):
        prepare(({"x": i} for i in range(200)), store)
    assert not list(store.list())


def test_a_damaged_file_is_written_again_as_the_error_says(store, data):
    prepared = prepare(data(), store)
    entry = prepared.train.manifest.files[0]
    file = prepared.train.store.path(entry.name)
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(
        CorruptError, match="Prepare the same data with the same arguments again, which writes a"
    ):
        pickle.loads(pickle.dumps(prepared.train)).verify()
    again = prepare(data(), store)
    assert not again.reused
    again.train.verify()
    assert file.read_bytes() == whole
    assert prepare(data(), store).reused


def test_a_lost_file_is_replaced_by_one_of_other_bytes(store, monkeypatch, data):
    """As after an update of Arrow: the manifest that is there lists a file that nobody will write again."""
    with monkeypatch.context() as older:
        older.setattr(parquet, "writer_options", lambda: {**writer_options(), "write_statistics": True})
        before = prepare(data(), store)
    [lost] = before.train.manifest.files
    before.train.store.delete(lost.name)
    after = prepare(data(), store)
    assert not after.reused
    assert after.train.manifest.files[0].name != lost.name
    assert np.array_equal(
        np.sort(after.train[:]["id"]), np.sort(np.setdiff1d(np.arange(200), after.val[:]["id"]))
    )
    assert prepare(data(), store).reused


@pytest.mark.parametrize("what", ["killed between files", "killed before the manifest", "manifest deleted"])
def test_an_unfinished_preparation_is_no_dataset(what, tmp_path, monkeypatch):
    """Neither for a store, nor for its path, nor as the folder of files that others wrote."""
    monkeypatch.setattr("hopyard.data.preparing.files.FILE_BYTES", 400)
    rows = {"x": np.arange(300)}
    store = LocalStore(tmp_path / "s")
    if what == "manifest deleted":
        fingerprint = prepare(rows, store, validation=None).fingerprint
        store.delete(f"train_data/{fingerprint}/manifest.json")
    else:
        at = 2 if what == "killed between files" else 7
        with pytest.raises(StorageFullError, match="injected"):
            prepare(rows, FaultyStore(store, Fault("full", at=at)), validation=None)
        [folder] = (tmp_path / "s" / "train_data").iterdir()
        fingerprint = folder.name
    folder = tmp_path / "s" / "train_data" / fingerprint
    left = [path.name for path in folder.iterdir()]
    assert left
    if what == "killed between files":
        assert all(name.endswith(".parquet.unfinished") for name in left)
    said = r"holds \d+ files? of a prepared dataset.*no manifest\.json.*Prepare the same data"
    for opened in (store, str(tmp_path / "s"), folder.parent, folder):
        with pytest.raises(DataError, match=said):
            open_dataset(opened, "train")
    for source in (str(folder), str(tmp_path / "s")):
        with pytest.raises(DataError, match=said):
            prepare(source, tmp_path / "other", validation=None)
    again = prepare(rows, store, validation=None)
    assert not again.reused
    assert sorted(open_dataset(store)[:]["x"]) == list(range(300))
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", *(entry.name for entry in again.train.manifest.files)
    }  # fmt: skip


def test_parquet_of_others_is_a_dataset_where_it_is_named_and_not_in_a_store(tmp_path):
    folder = tmp_path / "s" / "train_data"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": range(10)}), folder / "part.parquet")
    for store in (LocalStore(tmp_path / "s"), tmp_path / "s"):
        with pytest.raises(
            NotFoundError, match=r"1 Parquet file but no manifest.json.*open_dataset\('.*train_data'\)"
        ):
            open_dataset(store)
    assert len(open_dataset(folder)) == 10
    assert len(open_dataset(LocalStore(tmp_path / "s", train_path=folder))) == 10


class Overtaken(LocalStore):
    """Another preparation gives the files of the dataset their names just after this one looked at them."""

    def __init__(self, path, manifest):
        super().__init__(path)
        self.manifest, self.asked = manifest, []

    def path(self, name):
        self.asked.append(name)
        path = super().path(name)
        if self.asked.count(name) < 2:
            return path
        finish_names(LocalStore(self.url), self.manifest)
        return path.with_name("not there when it was looked at")


def test_files_that_another_preparation_names_first_are_as_good(tmp_path, data):
    train = prepare(data(), LocalStore(tmp_path)).train
    (entry,) = train.manifest.files
    path = train.store.path(entry.name)
    path.rename(path.with_name(path.name + UNFINISHED))
    store = Overtaken(train.store.url, train.manifest)
    finish_names(store, train.manifest)
    assert store.asked.count(entry.name) > 1
    assert sorted(LocalStore(train.store.url).names()) == sorted([MANIFEST_NAME, entry.name])
