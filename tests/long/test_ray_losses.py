"""What RayBackend does when actors and nodes are lost, alone and in the middle of a run."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tests import ancestors
from tests.ancestors import keeper as actor

from hopyard.backend import InlineBackend, RayBackend
from hopyard.backend._ray_cluster import Actors
from hopyard.backend.base import Backend
from hopyard.backend.testing import PATIENCE, error_of, result_of
from hopyard.errors import WorkerLostError
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(ancestors)

pytestmark = pytest.mark.filterwarnings("ignore:.*ray.*:ResourceWarning")


def test_a_lost_actor_is_reported_with_its_reason_and_replaced(cluster: Any) -> None:
    def kill_actor() -> None:
        os.kill(actor(), signal.SIGKILL)
        signal.pause()

    with RayBackend(num_workers=1) as backend:
        before = result_of(backend.submit(0, actor))
        lost, behind = backend.submit(0, kill_actor), backend.submit(0, actor)
        error = error_of(lost)
        assert isinstance(error, WorkerLostError)
        assert f"Worker 0 (on {socket.gethostname()}) was lost while it ran the task" in str(error)
        assert "The actor is dead because its worker process has died." in str(error)
        assert "class_name" not in str(error)
        assert result_of(behind) != before


def test_an_actor_lost_between_two_searches_is_replaced_by_start(cluster: Any) -> None:
    with RayBackend(num_workers=1) as backend:
        before = result_of(backend.submit(0, actor))
        os.kill(before, signal.SIGKILL)
        backend.start()
        assert result_of(backend.submit(0, actor)) != before


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


class Strike:
    """Kills what keeps the worker, once, in the middle of the first unit that is trained."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.target = folder, target

    def __call__(self, batch: Any, rng: Any) -> Any:
        if (self.folder / "runs").exists() and self.is_first():  # not yet while one batch is checked
            if self.target == "actor":
                os.kill(actor(), signal.SIGKILL)
            else:
                (self.folder / "pipe").write_text(os.environ["RAY_RAYLET_PID"])
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
    assert "was lost while it ran the task 'trial " in why


@pytest.mark.usefixtures("kill_node")
def test_a_worker_whose_node_is_not_replaced_takes_turns_with_another_until_it_is(
    undisturbed: Any, spare: Any, until: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def places() -> set[int]:
        return {result_of(backend.submit(worker, actor)) for worker in range(2)}

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
