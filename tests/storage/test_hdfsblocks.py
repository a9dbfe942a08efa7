"""Addresses that are asked where blocks are; a real HDFS answers in tests/services/hdfs/test_blocks.py."""

from __future__ import annotations

import pytest

from hopyard.storage.hdfsblocks import web_addresses

SERVICE = {
    "fs.defaultFS": "hdfs://nest",
    "dfs.ha.namenodes.nest": "one, two",
    "dfs.namenode.rpc-address.nest.one": "a:8020",
    "dfs.namenode.rpc-address.nest.two": "b:8020",
    "dfs.namenode.http-address.nest.two": "0.0.0.0:99",
}


@pytest.mark.parametrize(
    ("url", "settings", "expected"),
    [
        ("hdfs://a:8020/x", {}, ["a:9870"]),
        ("hdfs://a/x", {"dfs.namenode.http-address": "web:80"}, ["web:80"]),
        ("hdfs://a:8020", {"dfs.namenode.http-address": "0.0.0.0:80"}, ["a:80"]),
        ("hdfs:///x", {"fs.defaultFS": "hdfs://a:9000"}, ["a:9870"]),
        ("hdfs://nest/x", SERVICE, ["a:9870", "b:99"]),
        ("hdfs:///x", SERVICE, ["a:9870", "b:99"]),
        ("hdfs:///x", {}, []),
        ("viewfs://table/x", {}, []),
    ],
)
def test_web_servers_of_name_nodes_come_from_hadoops_settings(
    url: str, settings: dict[str, str], expected: list[str]
) -> None:
    assert web_addresses(url, settings) == expected
