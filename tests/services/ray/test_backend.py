"""RayBackend keeps the rules of a backend on a cluster of two nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from hopyard.backend import RayBackend
from hopyard.backend.testing import PATIENCE, BackendSuite, error_of, result_of
from hopyard.errors import UsageError, WorkerLostError, WorkerMismatchError

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.filterwarnings("ignore:.*ray.*:ResourceWarning")


class TestRayBackend(BackendSuite):
    @property
    def setup(self) -> str:  # type: ignore[override]
        import ray

        address = ray.get_runtime_context().gcs_address
        return f"from hopyard.backend import RayBackend\nbackend = RayBackend({address!r}, num_workers=1)"

    @pytest.fixture(autouse=True)
    def session(self, cluster: Any) -> None:
        """Two nodes."""

    def make_backend(self, unit_timeout: float | None = None) -> RayBackend:
        return RayBackend(num_workers=2, unit_timeout=unit_timeout)


# What workers have


def look() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES")
    return {name: os.environ[name] for name in names}


def test_workers_have_the_environment_that_makes_results_repeat(cluster: Any) -> None:
    with RayBackend(num_workers=1, threads_per_worker=2) as backend:
        assert backend.asked == {"CPU": 2.0}
        assert list(result_of(backend.submit(0, look)).values()) == ["2", "0", ":4096:8", ""]


def test_workers_take_custom_resources_and_see_the_gpus_that_are_theirs(cluster: Any, spare: Any) -> None:
    spare(num_cpus=3, num_gpus=2, resources={"disk": 3})  # Ray believes what it is told
    assert RayBackend(resources={"disk": 1}).num_workers == 2  # a GPU each
    with RayBackend(resources={"disk": 1}, gpus_per_worker=0.5) as backend:
        assert repr(backend) == "RayBackend(num_workers=3, each with 1 CPU, 1 disk, 0.5 GPU)"
        assert (backend.resources, backend.gpus_per_worker) == ({"disk": 1}, 0.5)  # with which it is saved
        seen = [result_of(backend.submit(worker, look))["CUDA_VISIBLE_DEVICES"] for worker in range(3)]
        assert sorted(seen) == ["0", "0", "1"]
    with RayBackend(num_workers=1, resources={"disk": 1}, gpus_per_worker=2) as backend:
        assert result_of(backend.submit(0, look))["CUDA_VISIBLE_DEVICES"] == "0,1"
    with RayBackend(num_workers=1, resources={"disk": 1}, gpus_per_worker=0) as backend:
        assert result_of(backend.submit(0, look))["CUDA_VISIBLE_DEVICES"] == ""


def test_there_are_as_many_workers_as_there_is_room_for(cluster: Any) -> None:
    assert RayBackend().num_workers == 4
    assert RayBackend(threads_per_worker=2, resources={"slot": 0.5}).num_workers == 2


def actors() -> dict[str, str]:
    """What displays call the living actors, by their names."""
    import ray
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData

    infos = state._connect_and_get_accessor().get_actor_table(None, None)
    tables = map(ActorTableData.FromString, infos)
    living = set(ray.util.list_named_actors())
    return {table.name: table.repr_name for table in tables if table.name in living}


def test_the_names_of_actors_say_which_worker_they_are(cluster: Any, until: Any) -> None:
    others = actors().keys()
    with RayBackend(num_workers=2):
        own = {name: shown for name, shown in actors().items() if name not in others}
        assert sorted(own.values()) == ["hopyard worker 0", "hopyard worker 1"]
        assert all(name.startswith(f"{shown} (") for name, shown in own.items())
    until(lambda: actors().keys() == others)


def test_an_exception_says_on_which_host_it_was_raised(cluster: Any) -> None:
    with RayBackend(num_workers=1) as backend:
        (note,) = error_of(backend.submit(0, int, "x")).__notes__
    assert f") on {socket.gethostname()}:\n" in note.splitlines(keepends=True)[0]


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers=0, but it must be an integer of at least 1"),
        ({"gpus_per_worker": 1.5}, "gpus_per_worker=1.5, but it must be 0, a fraction of one GPU such as 0.5"),
        ({"gpus_per_worker": True}, "gpus_per_worker=True, but it must be"),
        ({"threads_per_worker": 0}, "threads_per_worker=0, but it must be an integer of at least 1"),
        ({"unit_timeout": -1}, "unit_timeout=-1, but it must be a number of seconds above 0, or None for no limit"),
        ({"start_timeout": 0}, "start_timeout=0, but it must be a number of seconds above 0, or None for no limit"),
        ({"resources": {"GPU": 1}}, "'GPU' is none of Ray's custom resources; .* give threads_per_worker and gpus_per"),
        ({"resources": {"disk": 0}}, "'disk' must be a number > 0: what each worker takes of it"),
    ],
)  # fmt: skip
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RayBackend(**arguments)


def test_too_little_room_is_said_with_what_there_is_and_what_to_do(cluster: Any) -> None:
    with pytest.raises(UsageError) as caught:
        RayBackend(num_workers=5, resources={"slot": 0.5})
    host = cluster.address.partition(":")[0]
    assert str(caught.value) == (
        "num_workers=5 was given, each with 1 CPU, 0.5 slot on one node, but the Ray cluster has room for 4 workers: "
        f"node {host} has 2 CPU, 1 slot; node {host} has 2 CPU, 1 slot. Give num_workers=4, or None for as many as "
        "there is room for, or add nodes to the cluster."
    )
    with pytest.raises(
        UsageError, match=r"A worker needs 3 CPU on one node, .* room for 0 workers: .* less to each"
    ):
        RayBackend(threads_per_worker=3)


def test_another_address_than_that_of_the_connection_is_refused(cluster: Any) -> None:
    RayBackend("auto", num_workers=1)
    RayBackend(f"localhost:{cluster.address.partition(':')[2]}", num_workers=1)
    with pytest.raises(
        UsageError, match=rf"'elsewhere:1' was given, but .* connected to .* at {cluster.address}\. Leave"
    ):
        RayBackend("elsewhere:1")


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ImportError, match=r"RayBackend needs the package 'ray', .* pip install 'hopyard\[ray\]'"
    ):
        RayBackend()


REFUSED = """
import sys
from hopyard.backend import RayBackend
for address in sys.argv[1:]:
    try:
        RayBackend(address)
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
"""


@pytest.fixture
def told_another_version(cluster: Any) -> Iterator[None]:
    """The cluster says that it was started with another version of Ray."""
    import ray
    from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER

    client = ray._private.worker.global_worker.gcs_client
    true = client.internal_kv_get(CLUSTER_METADATA_KEY, KV_NAMESPACE_CLUSTER)
    told = json.dumps(json.loads(true) | {"ray_version": "1.2.3"}).encode()
    client.internal_kv_put(CLUSTER_METADATA_KEY, told, True, KV_NAMESPACE_CLUSTER)
    yield
    client.internal_kv_put(CLUSTER_METADATA_KEY, true, True, KV_NAMESPACE_CLUSTER)


@pytest.mark.usefixtures("told_another_version")
def test_clusters_that_cannot_be_reached_or_differ_are_refused(cluster: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, closed, "nonsense", cluster.address],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    unreachable, unknown, differs = done.stdout.splitlines()
    assert (
        f"UsageError The Ray cluster at '{closed}' cannot be reached: [Errno 111] Connection refused."
        in unreachable
    )
    assert "`ray start --head` printed (port 6379 unless it says otherwise)" in unreachable
    assert "UsageError address='nonsense' was given, but no Ray cluster was found there" in unknown
    assert "WorkerMismatchError This process cannot work with the Ray cluster at" in differs
    assert "Ray: 1.2.3" in differs
    assert "Install here the versions of Ray and Python that the cluster has" in differs


def test_a_package_that_a_node_lacks_is_named_with_the_node(spare: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['blake3'] = None\n")
    spare(resources={"bare": 1}, env_vars={"PYTHONPATH": str(tmp_path)})
    backend = RayBackend(num_workers=1, resources={"bare": 1})
    with pytest.raises(WorkerMismatchError) as caught:
        backend.start()
    assert (
        f"Worker 0 on {socket.gethostname()} cannot run tasks: the package 'blake3' is not installed for"
        in str(caught.value)
    )
    assert "Install on every node what the driver has" in str(caught.value)
    assert not backend.running


def test_a_worker_that_finds_no_place_says_what_is_missing(cluster: Any) -> None:
    backend = RayBackend(num_workers=1, resources={"slot": 1}, start_timeout=1)
    with RayBackend(num_workers=2, resources={"slot": 1}), pytest.raises(WorkerLostError) as caught:
        backend.start()
    message = str(caught.value)
    assert (
        "Worker 0 found no place within 1 seconds: it needs 1 CPU, 1 slot on one node, and of that" in message
    )
    assert "0 slot are free in the whole cluster: node " in message
    assert (
        "End what else runs there, use fewer workers, add nodes, or give a longer start_timeout." in message
    )


# Who ends whom


def test_stop_leaves_the_connection_to_ray(cluster: Any) -> None:
    import ray

    backend = RayBackend(num_workers=1)
    assert result_of(backend.submit(0, abs, -1)) == 1
    backend.stop()
    assert ray.is_initialized()
    assert ray.get(ray.put(3)) == 3


def test_a_driver_that_forgets_to_stop_exits_well_and_a_fork_of_it_is_harmless(cluster: Any) -> None:
    script = f"""
import os, sys
from hopyard.backend import RayBackend
backend = RayBackend({cluster.address!r}, num_workers=1)
pid = backend.submit(0, os.getpid).result()
if os.fork() == 0:
    try:
        backend.submit(0, abs, -1)
    except ValueError as error:
        print(error, flush=True)
    backend.stop()
    os._exit(0)
os.wait()
print(backend.submit(0, os.getpid).result() == pid)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    forked, same = done.stdout.splitlines()
    assert forked.startswith("This process was forked from the one that started the backend")
    assert same == "True"
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
