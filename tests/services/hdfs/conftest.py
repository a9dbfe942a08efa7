"""What tests of HDFS share."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests import hdfs_cluster
from tests.hdfs_cluster import HdfsCluster


@pytest.fixture
def hdfs(
    hdfs_if_there: HdfsCluster | None,
    needs: Callable[[object, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> HdfsCluster:
    """One name node and two data nodes, also for processes that the test starts."""
    needs(hdfs_if_there, hdfs_cluster.missing() or "HDFS")
    assert hdfs_if_there is not None
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs_if_there.conf))
    return hdfs_if_there


@pytest.fixture
def folder(hdfs: HdfsCluster, request: Any) -> str:
    """The URL of a folder of the test's own."""
    return f"{hdfs.url}/tests/{uuid.uuid5(uuid.NAMESPACE_URL, request.node.nodeid).hex}"
