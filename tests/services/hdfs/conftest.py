"""What tests of HDFS share."""

from __future__ import annotations

import os
import uuid
from typing import Any

import pytest
from tests import hdfs_cluster
from tests.hdfs_cluster import HdfsCluster


@pytest.fixture
def hdfs(hdfs_if_there: HdfsCluster | None, monkeypatch: pytest.MonkeyPatch) -> HdfsCluster:
    """One name node and two data nodes, also for processes that the test starts.

    The half of Hadoop that PySpark has not is in no package: without it tests are skipped, unless somebody gave it.
    """
    if hdfs_if_there is None:
        why = f"this test needs {hdfs_cluster.missing()}, which is not available here"
        if os.environ.get("CI") == "true" and "HOPYARD_HADOOP" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs_if_there.conf))
    return hdfs_if_there


@pytest.fixture
def folder(hdfs: HdfsCluster, request: Any) -> str:
    """The URL of a folder of the test's own."""
    return f"{hdfs.url}/tests/{uuid.uuid5(uuid.NAMESPACE_URL, request.node.nodeid).hex}"
