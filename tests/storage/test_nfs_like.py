"""Machines of the model do what clients of NFS were measured to; and the store on them keeps its contract."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.nfs_facts import Clients, NfsFacts
from tests.nfs_like import SECONDS, Machine, Nfs, TurnsStore
from tests.storage.test_conformance import OwnSuite

from hopyard.errors import InvalidNameError
from hopyard.storage import LocalStore, Store, files


@pytest.fixture(params=[False, True], ids=["old", "stale"])
def nfs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nfs]:
    (tmp_path / "shared").mkdir()
    with Nfs(tmp_path / "shared", forgets=request.param).mounted() as nfs:
        yield nfs


class TestMachines(NfsFacts):
    @pytest.fixture
    def clients(self, nfs: Nfs) -> Clients:
        return Clients(Machine(nfs).at_work, Machine(nfs).at_work, partial(nfs.wait, SECONDS))


class TestLocalStoreOnNfs(OwnSuite):
    """The store of two machines, of which each makes every second call."""

    @pytest.fixture
    def store(self, nfs: Nfs) -> Store:
        store = LocalStore(Path(nfs.root) / "store")
        return TurnsStore(*((Machine(nfs).at_work, store) for _ in range(2)))


def test_an_object_that_another_machine_has_replaced_or_deleted_just_now(nfs: Nfs) -> None:
    a, b = Machine(nfs), Machine(nfs)
    store = LocalStore(nfs.root)
    for number in range(5):
        with a.at_work():
            store.put("folder/object", b"%d" % number)
        with b.at_work():
            assert store.get("folder/object") == b"%d" % number
            assert not store.put_new("folder/object", b"")
            store.delete("folder/object")
        with a.at_work():
            assert store.size("folder/object") is None
            assert store.put_new("folder/object", b"new")
        with b.at_work():
            assert store.names() == {"folder/object"}


def test_a_file_that_is_replaced_each_time_it_is_read_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    tries = 0

    def read(descriptor: int) -> bytes:
        nonlocal tries
        tries += 1
        if tries < 10:
            raise OSError(116, os.strerror(116))
        return os.read(descriptor, 100)

    assert files.read_anew(file, read) == b"content"
    tries = -1
    with pytest.raises(OSError, match="Stale file handle"):
        files.read_anew(file, read)


def test_deleted_files_that_are_open_are_no_objects(tmp_path: Path) -> None:
    name = ".nfs00000000000018d40000000e"
    store = LocalStore(tmp_path)
    store.put("folder/object", b"1")
    (tmp_path / "folder" / name).write_bytes(b"deleted")
    assert store.names() == {"folder/object"}
    assert [entry.name for entry in store.list()] == ["folder/object"]
    with pytest.raises(InvalidNameError, match="NFS calls deleted files that are still open so"):
        store.put(f"folder/{name}", b"")
    store.put(".nfs-of-mine", b"")
    assert store.get(".nfs-of-mine") == b""


def test_a_directory_that_may_not_be_listed_or_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not files.look_anew(tmp_path / "file")
    assert not files.look_anew(tmp_path / "file/below")
    assert not files.look_anew("nowhere")
    assert files.look_anew(tmp_path)
