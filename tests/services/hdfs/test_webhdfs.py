"""``HDFSStore`` over HTTP: on the web servers of a real name node and its data nodes, and through a gateway."""

from __future__ import annotations

import socket
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.hdfs_cluster import HdfsCluster
from tests.storage.test_conformance import OwnSuite
from tests.storage.test_object_rooms import Stop, batches, rows, same, search
from tests.web_servers import Relay, serving
from typer.testing import CliRunner

from hopyard import open_run
from hopyard.cli import app
from hopyard.data import open_dataset, prepare
from hopyard.errors import (
    InvalidNameError,
    NotWritableError,
    StorageError,
    StorageFullError,
    UnreachableError,
)
from hopyard.storage import HDFSStore, LocalStore, open_store, webhdfs
from hopyard.storage import hdfs as hdfs_module
from hopyard.training.unit import residents


class TestHDFSStoreOverHTTP(OwnSuite):
    @pytest.fixture
    def store(self, web: str) -> HDFSStore:
        return HDFSStore(web)


@pytest.fixture(autouse=True)
def _names(hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a data node that no name server knows is known in this process.

    In processes that a test starts it is not, and what is there is asked of the other one.
    """
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if host in hdfs.hosts else host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def path(request: Any) -> str:
    """A folder of the test's own."""
    return f"/tests/{uuid.uuid5(uuid.NAMESPACE_URL, request.node.nodeid).hex}"


@pytest.fixture
def web(hdfs: HdfsCluster, path: str) -> str:
    return f"webhdfs://{hdfs.web}{path}"


@pytest.fixture
def relay(hdfs: HdfsCluster) -> Relay:
    return Relay(hdfs.web, gateway=False)


@pytest.fixture
def relayed(relay: Relay, path: str) -> Iterator[HDFSStore]:
    with serving(relay) as place:
        yield HDFSStore(f"webhdfs://{place}{path}")


@pytest.fixture
def gateway(hdfs: HdfsCluster) -> Relay:
    return Relay(hdfs.web, gateway=True)


@pytest.fixture
def behind(gateway: Relay, path: str) -> Iterator[HDFSStore]:
    """The test's folder behind a gateway."""
    with serving(gateway) as place:
        yield HDFSStore(f"webhdfs://{place}{path}")


def test_it_is_the_same_file_system(hdfs: HdfsCluster, web: str, path: str) -> None:
    over_http, native = open_store(web), HDFSStore(f"{hdfs.url}{path}")
    over_http.put("a/b", b"1")
    assert native.get("a/b") == b"1"
    native.put("a/b", b"22")
    assert over_http.get("a/b") == b"22"
    assert over_http.version("a/b") == native.version("a/b")
    assert list(over_http.list()) == list(native.list())
    assert native.put_new("a/b", b"3") is over_http.put_new("a/b", b"3") is False
    hdfs.until_everywhere(native, "a/b")
    assert over_http.hosts("a/b") == native.hosts("a/b") == dict.fromkeys(hdfs.hosts, 2)


def test_the_setting_of_replication_holds(hdfs: HdfsCluster, web: str) -> None:
    store = HDFSStore(web, config={"dfs.replication": "1"})
    store.put("a", b"1")
    assert len(store.hosts("a")) == 1


def test_names_that_others_gave_are_read(hdfs: HdfsCluster, web: str, path: str) -> None:
    import hdfs_native

    client = hdfs_native.Client(hdfs.url)
    name = "größe 100%+x&y=z;#?.txt"
    writer = client.create(f"{path}/{name}")
    writer.write(b"content")
    writer.close()
    store = HDFSStore(web).foreign()
    assert [entry.name for entry in store.list()] == [name]
    assert store.get(name, 3) == b"tent"


def test_a_connection_that_the_server_closed_is_not_used_again(relay: Relay, relayed: HDFSStore) -> None:
    relayed.put("a", b"1")
    for connection in relayed._client()._idle:
        connection.sock.shutdown(2)  # as by the other side
    assert relayed.get("a") == b"1"


# Lost answers


@pytest.mark.parametrize("as_gateway", [False, True])
def test_a_rename_whose_answer_is_lost_is_no_conflict(as_gateway: bool, hdfs: HdfsCluster, path: str) -> None:
    relay = Relay(hdfs.web, gateway=as_gateway)
    with serving(relay) as place:
        store = HDFSStore(f"webhdfs://{place}{path}")
        relay.loses = ["RENAME"]
        assert store.put_new("a", b"1") is True
        relay.loses = ["RENAME", "GETFILESTATUS", "MKDIRS", "CREATE", "OPEN", "LISTSTATUS"]
        store.put("b", b"2")
        assert store.get("b") == b"2"
        assert store.put_new("a", b"3") is False
        assert {name: store.get(name) for name in ("a", "b")} == {"a": b"1", "b": b"2"}
        assert store.names() == {"a", "b"}


# Data nodes


def test_a_data_node_that_dies_in_the_middle_of_a_read(
    hdfs: HdfsCluster, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, content = HDFSStore(web), np.random.default_rng(0).bytes(64_000_000)
    store.put("a", content)
    hdfs.until_everywhere(store, "a")
    monkeypatch.setattr(hdfs_module, "_PATIENCE", 0.0)  # it is asked of another data node at once
    killed = []

    def read(connection: Any) -> Any:
        if killed or f"{connection.host}:{connection.port}" == hdfs.web:
            return webhdfs_read(connection)
        asked = (
            f"http://{connection.host}:{connection.port}/jmx?qry=Hadoop:service=DataNode,name=FSDatasetState*"
        )
        with urllib.request.urlopen(asked) as answer:
            killed.append("data0" if b"/data0/" in answer.read() else "data1")
        answer = connection.getresponse()
        begun = answer.read(1000)
        hdfs.kill(killed[0])
        return webhdfs._Answer(answer.status, answer.reason, None, begun + answer.read())

    webhdfs_read = webhdfs.read_answer
    monkeypatch.setattr(webhdfs, "read_answer", read)
    try:
        assert store.get("a") == content
        assert len(killed) == 1
        for start in range(
            0, 30_000_000, 1_000_000
        ):  # the name node goes on to send there, and leaves it out if asked
            assert store.get("a", start, 10) == content[start : start + 10]
        monkeypatch.setattr(hdfs_module, "_PATIENCE", 60.0)  # until the name node hands it out no more
        store.put("b", b"written meanwhile")
        assert store.get("b") == b"written meanwhile"
    finally:
        hdfs.start()


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(relay: Relay, relayed: HDFSStore) -> None:
    old, new = b"old" * 1000, b"newer" * 1000
    relayed.put("a", old)
    other = HDFSStore(relayed.url)

    def replace(operation: str) -> None:
        if operation == "OPEN":
            relay.before = lambda operation: None
            other.put("a", new)

    relay.before = replace
    assert relayed.get("a") == new
    assert relay.asked.count("OPEN") == 2


# Gateways


def test_a_gateway_serves_what_it_can(behind: HDFSStore, gateway: Relay, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(300_000)
    behind.put("a/b", content)
    (tmp_path / "f").write_bytes(content)
    behind.put_file("a/c", tmp_path / "f")
    assert behind.put_new("d", b"") is True
    assert behind.put_new("d", b"2") is False
    assert behind.get("a/b") == content == behind.get("a/c")
    assert behind.get("a/b", 1000, 100_000) == content[1000:101_000]
    assert [entry.name for entry in behind.list()] == ["a/b", "a/c", "d"]
    behind.delete("d")
    assert behind.get("a/b", 299_999) == content[-1:]
    assert behind.names() == {"a/b", "a/c"}


def test_a_gateway_never_replaces_in_two_steps(behind: HDFSStore) -> None:
    behind.put("a", b"old")
    with pytest.raises(StorageError) as caught:
        behind.put("a", b"new")
    place = behind.url.removeprefix("webhdfs://").partition("/")[0]
    assert str(caught.value) == (
        f"{behind.url}/a cannot be replaced: {place} does not rename a file over another, which gateways like HttpFS "
        "cannot, and to delete the old one first would leave none to readers. Give the address of the name node's own "
        "web server (dfs.namenode.http-address), or of another gateway."
    )
    assert behind.get("a") == b"old"
    assert list(behind._client().list_status(f"{behind._root_path()}/.tmp-writes")) == []


def test_a_gateway_moves_no_object_into_a_folder(behind: HDFSStore, gateway: Relay) -> None:
    behind.put("a/b", b"1")
    with pytest.raises(InvalidNameError, match="'a' would be both an object and a prefix of 'a/b'"):
        behind.put("a", b"2")
    assert behind.names() == {"a/b"}
    behind.delete("a/b")
    behind.put("a", b"now free")
    other = HDFSStore(behind.url)

    def make_folder(operation: str) -> None:
        if operation == "RENAME":
            gateway.before = lambda operation: None
            other.put("c/d", b"3")

    gateway.before = make_folder
    with pytest.raises(InvalidNameError, match="'c' would be both an object and a prefix of 'c/d'"):
        behind.put_new("c", b"4")
    assert behind.names() == {"a", "c/d"}


# Refusals of a real name node


def test_who_may_not_write_is_told(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    HDFSStore(web).put("a", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    other = HDFSStore(web)
    assert other.get("a") == b"1"
    for write in (other.put, other.put_new):
        with pytest.raises(
            NotWritableError, match="b cannot be written: Permission denied: user=somebody, access=WRITE"
        ):
            write("b", b"2")
    with pytest.raises(NotWritableError):
        other.delete("a")


def test_a_quota_that_is_used_up_is_a_full_store(hdfs: HdfsCluster, web: str, path: str) -> None:
    store = HDFSStore(web)
    store.put("a", b"1")
    hdfs.admin("-setSpaceQuota", "1m", path)
    try:
        with pytest.raises(
            StorageFullError, match=r"no space is left for .*/b: .*quota.* Nothing was half-written"
        ):
            store.put("b", bytes(2_000_000))
    finally:
        hdfs.admin("-clrSpaceQuota", path)
    store.put("b", bytes(2_000_000))
    assert [entry.name for entry in store.list()] == ["a", "b"]


def test_in_safe_mode_it_is_read_and_not_written(
    hdfs: HdfsCluster, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_module, "_PATIENCE", 0.0)
    store = HDFSStore(web)
    store.put("a", b"1")
    hdfs.admin("-safemode", "enter")
    try:
        assert store.get("a") == b"1"
        with pytest.raises(UnreachableError, match="the name node is in safe mode and takes no changes"):
            HDFSStore(web).put("b", b"2")
    finally:
        hdfs.admin("-safemode", "leave")
    store.put("b", b"2")


def test_the_port_of_the_name_nodes_rpc_is_no_webhdfs(hdfs: HdfsCluster) -> None:
    with pytest.raises(
        StorageError, match=r"is no WebHDFS: .* Give host and port of the name node's web server"
    ):
        HDFSStore(f"web{hdfs.url}/a").get("x")


# The other rooms


def test_what_is_prepared_over_http_is_loaded_as_from_a_directory(web: str, tmp_path: Path) -> None:
    for store in (web, tmp_path):
        prepare(rows(), store=store, validation=0.25)
    assert same(batches(open_dataset(web)), batches(open_dataset(tmp_path)))


def test_parquet_that_others_wrote_is_read(web: str, tmp_path: Path) -> None:
    for day in range(3):
        part = tmp_path / "part.parquet"
        pq.write_table(pa.table({"x": np.arange(10 * day, 10 * day + 10)}), part, row_group_size=5)
        HDFSStore(web).put_file(f"data/day={day}/part.parquet", part)
    assert open_dataset(f"{web}/data/day=[12]/*.parquet")[:]["x"].tolist() == [*range(10, 30)]
    assert open_dataset(f"{web}/data", filters=[("day", ">", 1)])[:]["x"].tolist() == [*range(20, 30)]


def test_an_interrupted_search_goes_on_to_the_same_bits(web: str, tmp_path: Path) -> None:
    store = HDFSStore(web)
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[Stop()]).fit(rows())
    (run_id,) = {entry.name.partition("/")[0] for entry in store.runs.list()}
    assert open_run(web, run_id).status != "completed"
    residents.clear()  # as in a new process: states come from HDFS
    resumed, undisturbed = search(store).fit(rows()), search(LocalStore(tmp_path)).fit(rows())
    assert resumed.run.run_id == run_id
    assert resumed.get_all_model_history() == undisturbed.get_all_model_history()
    for left, right in zip(resumed.torch().parameters(), undisturbed.torch().parameters(), strict=True):
        assert left.equal(right)


def test_the_command_that_checks_stores_knows_it(web: str) -> None:
    done = CliRunner().invoke(app, ["store", "check", web, "--megabytes", "1"])
    assert done.exit_code == 0, done.output
    assert "of 8 writers at once one won" in done.output
