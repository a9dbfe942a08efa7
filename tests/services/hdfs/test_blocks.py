"""Partitions live where their blocks are: searches on HDFS whose data nodes have names of their own."""

from __future__ import annotations

import json
import logging
import socket
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from tests.hdfs_cluster import HdfsCluster
from tests.storage.test_object_rooms import rows, search
from typer.testing import CliRunner

from hopyard.backend.preflight import WorkerFacts
from hopyard.cli import app
from hopyard.data import open_dataset, prepare
from hopyard.hopper.orders import homes_of
from hopyard.storage import HDFSStore, LocalStore
from hopyard.tune.whereabouts import held_by_nodes, whereabouts


@pytest.fixture
def single(folder: str) -> HDFSStore:
    """A store each of whose blocks is on one data node."""
    return HDFSStore(folder, config={"dfs.replication": "1"})


def told_by_name_node(hdfs: HdfsCluster, path: str) -> Counter[str]:
    """Bytes of a file by host, from what the name node's own operation for clients of old tells."""
    query = f"http://{hdfs.web}/webhdfs/v1{path}?op=GET_BLOCK_LOCATIONS"
    with urllib.request.urlopen(query) as answer:
        blocks = json.load(answer)["LocatedBlocks"]["locatedBlocks"]
    found = Counter[str]()
    for block in blocks:
        found.update({place["hostName"]: block["block"]["numBytes"] for place in block["locations"]})
    return found


def test_a_file_is_where_its_blocks_are(hdfs: HdfsCluster, folder: str, single: HDFSStore) -> None:
    HDFSStore(folder).put("a/both", b"x" * 1000)
    store = HDFSStore(folder).at("a")
    hdfs.until_everywhere(store, "both")
    assert store.hosts("both") == dict.fromkeys(hdfs.hosts, 1000)
    single.put("one", b"x" * 10_000)
    hosts = single.hosts("one")
    assert sum(hosts.values()) == 10_000
    assert hosts == told_by_name_node(hdfs, f"{folder.removeprefix(hdfs.url)}/one")


def test_partitions_live_on_the_machines_that_have_them(hdfs: HdfsCluster, single: HDFSStore) -> None:
    for number in range(6):
        prepare(rows(), store=single.at(f"part{number}"))
    places = [whereabouts(open_dataset(single.at(f"part{number}")), 1)[0] for number in range(6)]
    assert [place.size for place in places] == [sum(place.held.values()) for place in places]
    facts = [fact(number, host) for number, host in enumerate(hdfs.hosts)]
    held = held_by_nodes(facts, [places])
    homes = homes_of([each.node for each in facts], 6, held)
    assert homes is not None
    local = sum(
        next(iter(place.held)) == hdfs.hosts[min(homes[number])] for number, place in enumerate(places)
    )
    apart = Counter(next(iter(place.held)) for place in places)
    assert local == sum(min(3, count) for count in apart.values())


def fact(worker: int, host: str) -> WorkerFacts:
    return WorkerFacts(worker, host, 1, "/cache", "3", "1", "2", "2", "x", None)


def test_a_run_tells_what_its_reader_had(
    hdfs: HdfsCluster, single: HDFSStore, folder: str, tmp_path: Path
) -> None:
    run = search(single, num_models=1, num_epochs=1).fit(rows()).run
    traffic = run.traffic()
    held = [place.shares.get(socket.gethostname(), 0.0) for place in whereabouts(open_dataset(single), 2)]
    units = [unit for unit in run.units() if unit["ph"] == "train"]
    assert [unit["beside"] for unit in units] == [round(unit["read"] * held[unit["p"]]) for unit in units]
    assert traffic.beside is not None
    assert traffic.away is not None
    assert traffic.beside + traffic.away == traffic.read
    described = CliRunner().invoke(app, ["run", "describe", folder, run.run_id]).output
    assert "where the reader's host has the blocks" in described
    local = search(LocalStore(tmp_path), num_models=1, num_epochs=1).fit(rows()).run
    assert (local.traffic().beside, local.traffic().away) == (None, None)
    assert "blocks" not in CliRunner().invoke(app, ["run", "describe", str(tmp_path), local.run_id]).output


def test_why_nobody_tells_is_said_once(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    store = HDFSStore(folder, config={"dfs.namenode.http-address": "127.0.0.1:1"})
    store.put("a", b"1")
    with caplog.at_level(logging.WARNING, "hopyard"):
        assert [store.hosts("a"), store.hosts("a")] == [{}, {}]
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        f"where the blocks of {folder} are is not known, so partitions live on any machine."
    )
    assert "WebHDFS was asked (127.0.0.1:1: [Errno 111] Connection refused)" in said
    assert said.endswith(
        "Set dfs.namenode.http-address in the configuration in HADOOP_CONF_DIR, or use a Spark session."
    )
