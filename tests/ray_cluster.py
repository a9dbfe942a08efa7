"""A Ray cluster of two nodes on this machine, one for each process that runs tests, and nodes that come and go."""

from __future__ import annotations

import gc
import importlib.util
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.sampling import FORKS

from hopyard.backend.testing import PATIENCE

MEMORY = 300 * 1024 * 1024  # bytes of a node's shared memory


_running: list[Any] = []


@pytest.fixture
def cluster_if_there() -> Any:
    """A head with 2 CPUs and a node with 2 more, where each has one of a resource "slot"; None without Ray.

    It lasts until a test does not ask for it (``stop``): Ray's threads are nothing to fork with.
    """
    if importlib.util.find_spec("ray") is None:
        return None
    if not _running:
        import ray
        from ray.cluster_utils import Cluster

        about = {"num_cpus": 2, "object_store_memory": MEMORY, "resources": {"slot": 1}}
        about["include_log_monitor"] = False  # which would send what workers print
        if FORKS:
            forked.connect()
            about["setup_worker_path"] = str(Path(__file__).with_name("ray_worker.py"))
        quickly = {"health_check_period_ms": 500}  # a lost node is noticed after 5 of them
        head = {**about, "include_dashboard": False, "_system_config": quickly}
        _running.append(Cluster(initialize_head=True, head_node_args=head))
        _running[0].add_node(**about)
        ray.init(address=_running[0].address, log_to_driver=False, logging_level="ERROR")
    return _running[0]


def stop() -> None:
    """End the cluster, if there is one."""
    if not _running:
        return
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sockets that Ray leaves to the garbage collector
        ray.shutdown()
        _running.pop().shutdown()
        gc.collect()


@pytest.fixture
def cluster(cluster_if_there: Any, needs: Callable[[object, str], None]) -> Any:
    needs(cluster_if_there, "Ray (the package ray[default])")
    return cluster_if_there


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for what Ray does a moment later."""

    def wait(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)

    return wait


def living() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())


@pytest.fixture
def spare(cluster: Any, until: Callable[..., None]) -> Iterator[Callable[..., Any]]:
    """Adds nodes, which go after the test. Only what asks for their resources runs there."""
    nodes: list[Any] = []
    before = living()

    def add(**about: Any) -> Any:
        nodes.append(cluster.add_node(**({"num_cpus": 1, "object_store_memory": MEMORY} | about)))
        return nodes[-1]

    yield add
    for node in nodes:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)
    until(lambda: living() == before)
