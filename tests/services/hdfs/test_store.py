"""``HDFSStore`` on real name nodes and data nodes."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.hdfs_cluster import HdfsCluster, free_ports, write_settings
from tests.storage.test_conformance import OwnSuite

from hopyard.errors import (
    CorruptError,
    InvalidNameError,
    NotFoundError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UnreachableError,
    UsageError,
)
from hopyard.storage import HDFSStore, open_store
from hopyard.storage import hdfs as hdfs_module


class TestHDFSStore(OwnSuite):
    @pytest.fixture
    def store(self, folder: str) -> HDFSStore:
        return HDFSStore(folder)


@pytest.fixture
def store(folder: str) -> HDFSStore:
    return HDFSStore(folder)


# Addresses


def test_paths_without_a_scheme_are_on_the_default_file_system(hdfs: HdfsCluster, folder: str) -> None:
    HDFSStore(folder).put("a", b"1")
    path = folder.removeprefix(hdfs.url)
    for same in (
        HDFSStore(path),
        open_store(folder),
        open_store(f"hdfs://{path}"),
        HDFSStore(f"hdfs://{path}/"),
    ):
        assert same.get("a") == b"1"
    assert HDFSStore(path).url == f"hdfs://{path}"
    assert HDFSStore("/").at(path[1:]).get("a") == b"1"


def test_the_parts_of_a_search_lie_where_they_were_moved_to(hdfs: HdfsCluster, folder: str) -> None:
    path = folder.removeprefix(hdfs.url)
    store = HDFSStore(train_path=f"{path}/training_dataset", val_path=f"{path}/val_dataset")
    store.train_data.put("x", b"train")
    pickle.loads(pickle.dumps(store)).val_data.put("x", b"val")
    assert HDFSStore(folder).get("training_dataset/x") == b"train"
    assert HDFSStore(folder).get("val_dataset/x") == b"val"
    assert (store.single_train, store.single_val) == (True, True)
    with pytest.raises(
        UsageError, match=r"this HDFSStore has only train_data, val_data, but something else is to be kept"
    ):
        store.runs.put("x", b"")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "experiments",
            r"'experiments' is no path on HDFS. Give hdfs://host:port/path, hdfs://nameservice/path, webhdfs://",
        ),
        ("s3://bucket/a", r"'s3://bucket/a' is no path on HDFS. Give hdfs://host:port/path"),
        ("", r"'' is no path on HDFS"),
        (
            "hdfs://me@host/a",
            r"was given with a user in it. Leave out what stands before '@', and set HADOOP_USER_NAME",
        ),
        (
            "hdfs://host/a?b=c",
            r"goes on with '\?' or '#', but it is a file system and a path only. Give settings as config",
        ),
        ("hdfs://host/a:b", r"the path '/a:b' holds ':', which HDFS does not take. Use another path\."),
    ],
)
def test_a_path_that_is_none_is_refused(path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        HDFSStore(path)


def test_a_store_needs_a_path() -> None:
    with pytest.raises(
        UsageError, match=r"HDFSStore\(\) was given no path. Give the directory, as HDFSStore\('hdfs://"
    ):
        HDFSStore()


# Writing


def test_a_directory_that_deletes_left_empty_gives_way_to_an_object(store: HDFSStore) -> None:
    for name in ("a/b/c", "a/d"):
        store.put(name, b"1")
        store.delete(name)
    assert store.put_new("a", b"now free")
    assert store.get("a") == b"now free"


def test_a_directory_that_somebody_removes_is_made_again(store: HDFSStore, hdfs: HdfsCluster) -> None:
    store.put("a/b", b"1")
    other = HDFSStore(store.url)
    other.delete("a/b")
    other.put("a", b"an object")
    other.delete("a")
    store.put("a/b", b"2")
    assert store.get("a/b") == b"2"


def test_a_write_of_a_dead_process_is_swept_and_never_seen(store: HDFSStore, tmp_path: Path) -> None:
    dying = (
        "import os, pickle, sys\n"
        "store = pickle.load(sys.stdin.buffer)\n"
        "store._rename_over = lambda *_: os._exit(7)\n"
        "store.put('a', b'unfinished')\n"
    )
    done = subprocess.run([sys.executable, "-c", dying], input=pickle.dumps(store), env=os.environ)
    assert done.returncode == 7
    client = store._client()
    folder = f"{store._root_path()}/.tmp-writes"
    assert len(list(client.list_status(folder))) == 1
    assert list(store.list()) == []
    assert store.names() == set()
    assert store.folders() == []
    HDFSStore(store.url).put("b", b"2")
    assert list(client.list_status(folder)) == []


def test_a_rename_whose_answer_is_lost_is_no_conflict(
    store: HDFSStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, renamed = store._client(), []

    class Losing:
        """The answer to a rename is lost, and so is the next request."""

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def rename(self, before: str, after: str, overwrite: bool) -> None:
            renamed.append(before)
            client.rename(before, after, overwrite)
            if renamed.count(before) == 1:
                raise OSError("connection reset")

        def get_file_info(self, path: str) -> Any:
            if renamed.count(path) == 1:
                renamed.append(path)
                raise OSError("connection reset")
            return client.get_file_info(path)

    monkeypatch.setattr(store, "_connected", Losing())
    assert store.put_new("a", b"1") is True
    store.put("a", b"2")
    assert len(renamed) == 4
    monkeypatch.undo()
    assert store.get("a") == b"2"
    assert store.put_new("a", b"3") is False


# Errors


def test_a_name_node_that_is_not_there_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    url = f"hdfs://127.0.0.1:{free_ports(1)[0]}/a"
    with pytest.raises(UnreachableError) as caught:
        HDFSStore(url).get("x")
    assert str(caught.value) == (
        f"{url}/x cannot be read: no node answers (Connection refused (os error 111)). Look at the network, at the "
        "data nodes, and at the address, which is that of the name node's RPC (dfs.namenode.rpc-address; often port "
        "8020 or 9000)."
    )


def test_a_name_node_that_hangs_up_is_asked_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listening.accept()[0].close()
                    asked.append(1)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        with pytest.raises(UnreachableError, match="no node answers"):
            HDFSStore(f"hdfs://127.0.0.1:{listening.getsockname()[1]}/a").put("x", b"1")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert 1 <= len(asked) < 12  # some thirty times, and for minutes, by the library's own settings


def test_the_users_own_patience_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings(tmp_path / "hdfs-site.xml", {"dfs.client.failover.max.attempts": "0"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    from hopyard.storage.hdfs import _FIRST_CALL, _hadoop_settings

    assert _hadoop_settings() & _FIRST_CALL.keys() == {"dfs.client.failover.max.attempts"}


def test_without_a_default_file_system_it_is_said_where_settings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(
        StorageError, match=r"No fs.defaultFS setting found. Set HADOOP_CONF_DIR to the folder with"
    ):
        HDFSStore("/a").get("x")
    with pytest.raises(StorageError, match=r"No NameNode hosts found. Set HADOOP_CONF_DIR|no node answers"):
        HDFSStore("hdfs://nowhere/a").get("x")


def test_who_may_not_write_is_told(store: HDFSStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    other = HDFSStore(store.url)
    assert other.get("a") == b"1"
    for write in (other.put, other.put_new):
        with pytest.raises(NotWritableError) as caught:
            write("b", b"2")
        assert str(caught.value).startswith(
            f"{store.url}/b cannot be written: Permission denied: user=somebody, access=WRITE, inode="
        )
        assert str(caught.value).endswith(
            "Give this user the right to write there, or set HADOOP_USER_NAME to another."
        )
    with pytest.raises(NotWritableError):
        other.delete("a")
    assert [entry.name for entry in store.list()] == ["a"]


def test_a_quota_that_is_used_up_is_a_full_store(store: HDFSStore, hdfs: HdfsCluster) -> None:
    store.put("a", b"1")
    path = store._root_path()
    hdfs.admin("-setSpaceQuota", "1m", path)
    with pytest.raises(
        StorageFullError, match=r"no space is left for .*/b: .*quota.* Nothing was half-written\. Make"
    ):
        store.put("b", bytes(2_000_000))
    hdfs.admin("-clrSpaceQuota", path)
    store.put("b", bytes(2_000_000))
    assert [entry.name for entry in store.list()] == ["a", "b"]


def test_in_safe_mode_it_is_read_and_not_written(
    store: HDFSStore, hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_module, "_PATIENCE", 0.0)
    store.put("a", b"1")
    hdfs.admin("-safemode", "enter")
    try:
        assert store.get("a") == b"1"
        with pytest.raises(
            UnreachableError, match=r"cannot be written: the name node is in safe mode and takes no changes"
        ):
            HDFSStore(store.url).put("b", b"2")
    finally:
        hdfs.admin("-safemode", "leave")
    store.put("b", b"2")


def test_what_goes_beyond_the_end_never_reaches_the_library(store: HDFSStore) -> None:
    store.put("a", b"0123456789")
    for start, length in ((0, 11), (8, 3), (11, None), (11, 0)):
        with pytest.raises(CorruptError, match="were asked for, but it has only 10"):
            store.get("a", start, length)


def test_an_object_is_no_folder_and_a_folder_no_object(store: HDFSStore) -> None:
    store.put("a/b", b"1")
    with pytest.raises(
        NotFoundError, match=r"there is no object 'a' in the store hdfs://.*\. List the store"
    ):
        store.get("a")
    with pytest.raises(InvalidNameError, match="'a' would be both an object and a prefix of 'a/b'"):
        store.put("a", b"2")
    with pytest.raises(InvalidNameError, match="'a/b' would be both an object and a prefix of 'a/b/c/d'"):
        store.put("a/b/c/d", b"2")
    store.delete("a")
    assert store.get("a/b") == b"1"


def test_a_forked_process_is_told_to_start_otherwise(store: HDFSStore) -> None:
    store.put("a", b"1")
    pid = os.fork()
    if pid == 0:
        try:
            HDFSStore(store.url).get("a")
        except UsageError as error:
            os._exit(
                0 if "already used an HDFSStore; its connections do not survive a fork" in str(error) else 1
            )
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
