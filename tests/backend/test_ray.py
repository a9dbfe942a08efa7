"""RayBackend keeps the rules of a backend on a cluster of two nodes, and survives the loss of actors and nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from hopyard.backend import InlineBackend, RayBackend
from hopyard.backend._ray_cluster import Actors
from hopyard.backend.base import Backend
from hopyard.backend.testing import PATIENCE, BackendSuite, error_of, result_of
from hopyard.errors import UsageError, WorkerLostError, WorkerMismatchError
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.filterwarnings("ignore:.*ray.*:ResourceWarning")

MEMORY = 300 * 1024 * 1024  # bytes of a node's shared memory


@pytest.fixture(scope="module")
def cluster_if_there() -> Iterator[Any]:
    """A head with 2 CPUs and a node with 2 more, where each has one of a resource "slot"; None without Ray."""
    if importlib.util.find_spec("ray") is None:
        yield None
        return
    import ray
    from ray.cluster_utils import Cluster

    about = {"num_cpus": 2, "object_store_memory": MEMORY, "resources": {"slot": 1}}
    quickly = {"health_check_period_ms": 500}  # a lost node is noticed after 5 of them
    head = {**about, "include_dashboard": False, "_system_config": quickly}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**about)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def cluster(cluster_if_there: Any, needs: Callable[[object, str], None]) -> Any:
    needs(cluster_if_there, "Ray (the package ray[default])")
    return cluster_if_there


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what Ray does a moment later."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline


def living() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())


@pytest.fixture
def spare(cluster: Any) -> Iterator[Callable[..., Any]]:
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


def test_the_names_of_actors_say_which_worker_they_are(cluster: Any) -> None:
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
        ({"num_workers": 0}, "num_workers=0 was given, but must be an int >= 1"),
        ({"gpus_per_worker": 1.5}, "gpus_per_worker=1.5 was given, but must be 0, a fraction of one GPU such as 0.5"),
        ({"gpus_per_worker": True}, "gpus_per_worker=True was given"),
        ({"threads_per_worker": 0}, "threads_per_worker=0 was given, but must be an int >= 1"),
        ({"unit_timeout": -1}, "unit_timeout=-1 was given, but must be seconds > 0, or None for no limit"),
        ({"start_timeout": 0}, "start_timeout=0 was given, but must be seconds > 0, or None for no limit"),
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


# Actors and nodes that are lost


def test_a_lost_actor_is_reported_with_its_reason_and_replaced(cluster: Any) -> None:
    def kill_actor() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    with RayBackend(num_workers=1) as backend:
        before = result_of(backend.submit(0, os.getppid))
        lost, behind = backend.submit(0, kill_actor), backend.submit(0, os.getppid)
        error = error_of(lost)
        assert isinstance(error, WorkerLostError)
        assert f"Worker 0 (on {socket.gethostname()}) was lost while it ran the task" in str(error)
        assert "The actor is dead because its worker process has died." in str(error)
        assert "class_name" not in str(error)
        assert result_of(behind) != before


def test_an_actor_lost_between_two_searches_is_replaced_by_start(cluster: Any) -> None:
    with RayBackend(num_workers=1) as backend:
        before = result_of(backend.submit(0, os.getppid))
        os.kill(before, signal.SIGKILL)
        backend.start()
        assert result_of(backend.submit(0, os.getppid)) != before


class Unlucky(Actors):
    """The first actors are lost before they say anything, as on a node whose end Ray has not noticed yet."""

    losses = 0

    def _new_place(self, worker: int, *, is_late: bool = False) -> Any:
        import ray

        place = super()._new_place(worker, is_late=is_late)
        if self.losses:
            self.losses -= 1
            ray.kill(place.actor)
        return place


@pytest.fixture
def unlucky(cluster: Any) -> Iterator[Unlucky]:
    actors = Unlucky(1, {"CPU": 1.0}, PATIENCE)
    yield actors
    actors.stop()


def test_actors_lost_before_they_are_up_are_replaced_but_not_for_ever(unlucky: Unlucky) -> None:
    unlucky.losses = 2
    unlucky.start()
    assert unlucky._place(0).host == socket.gethostname()
    unlucky.losses = 3
    unlucky._forget(unlucky._places[0])
    with pytest.raises(
        WorkerLostError, match="Worker 0 was lost before it was up, 3 times in a row: The actor"
    ):
        unlucky._place(0)
    assert unlucky._place(0).host == socket.gethostname()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Strike:
    """Kills what keeps the worker, once, in the middle of the first unit that is trained."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.target = folder, target

    def __call__(self, batch: Any, rng: Any) -> Any:
        if (self.folder / "runs").exists() and self.is_first():  # not yet while one batch is checked
            if self.target == "actor":
                os.kill(os.getppid(), signal.SIGKILL)
            else:
                (self.folder / "pipe").write_text(str(parent_of(os.getppid())))
            signal.pause()
        return batch

    def is_first(self) -> bool:
        try:
            (self.folder / "struck").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def search(store: LocalStore, backend: Backend, transform: Any) -> Any:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
        return TorchEstimator(
            model,
            torch.optim.Adam,
            torch.nn.CrossEntropyLoss(),
            ["accuracy"],
            batch_size=8,
            optimizer_params={"lr": params["lr"]},
            transform=transform,
        )

    random = np.random.default_rng(0)
    features = random.standard_normal((64, 4)).astype(np.float32)
    data = {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}
    space = {"lr": hp_choice([0.01, 0.03, 0.1])}
    run = GridSearch(backend, store, estimator, space, 2, num_partitions=2, progress=False).fit(data).run
    assert run.broken_rules() == []
    return run


def contents(run: Any) -> dict[int, Any]:
    return {
        number: (t.params, t.status, t.history, t.best and (t.best.epoch, t.best.value, t.best.state.digest))
        for number, t in run.state.trials.items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return contents(search(LocalStore(folder), InlineBackend(), lambda batch, rng: batch))


def lost(run: Any, store: LocalStore) -> list[str]:
    """Why workers were lost, by the run's journal."""
    return [record["why"] for record in read_records(store.runs.at(run.run_id)) if record["r"] == "lost"]


def test_an_actor_killed_in_a_unit_costs_no_result(cluster: Any, undisturbed: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with RayBackend(num_workers=2) as backend:
        run = search(store, backend, Strike(tmp_path, "actor"))
    assert contents(run) == undisturbed
    (why,) = lost(run, store)
    assert "was lost while it ran the task" in why
    assert "its worker process has died" in why


@pytest.fixture
def kill_node(cluster: Any, tmp_path: Path) -> Iterator[None]:
    """Kills the node whose process is named in the pipe."""
    os.mkfifo(tmp_path / "pipe")

    def kill() -> None:
        pid = int((tmp_path / "pipe").read_text())
        (node,) = (n for n in cluster.worker_nodes if n.all_processes["raylet"][0].process.pid == pid)
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    yield
    thread.join()


@pytest.mark.usefixtures("kill_node")
def test_a_node_killed_in_a_unit_costs_no_result(undisturbed: Any, spare: Any, tmp_path: Path) -> None:
    for _ in range(3):
        spare(resources={"brief": 1})
    store = LocalStore(tmp_path)
    with RayBackend(num_workers=2, resources={"brief": 1}) as backend:
        run = search(store, backend, Strike(tmp_path, "node"))
    assert contents(run) == undisturbed
    (why,) = lost(run, store)
    assert "was lost while it ran the task 'run_tagged': The actor" in why


@pytest.mark.usefixtures("kill_node")
def test_a_worker_whose_node_is_not_replaced_takes_turns_with_another_until_it_is(
    undisturbed: Any, spare: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def places() -> set[int]:
        return {result_of(backend.submit(worker, os.getppid)) for worker in range(2)}

    for _ in range(2):
        spare(resources={"brief": 1})
    store = LocalStore(tmp_path)
    with RayBackend(num_workers=2, resources={"brief": 1}) as backend:
        backend._session._cluster._start_timeout = 1  # type: ignore[union-attr]
        run = search(store, backend, Strike(tmp_path, "node"))
        assert contents(run) == undisturbed
        assert len(lost(run, store)) == 1
        assert len(places()) == 1
        (message,) = (r.getMessage() for r in caplog.records if r.name == "hopyard.backend._ray_cluster")
        assert "found no place within 1 seconds: it needs 1 CPU, 1 brief on one node" in message
        assert "Until there is one, its tasks take turns with another worker's." in message
        spare(resources={"brief": 1})
        until(lambda: len(places()) == 2)
