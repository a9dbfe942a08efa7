"""The actors of a Ray cluster that keep workers' processes, and the room there is for them."""

from __future__ import annotations

import logging
import platform
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import hopyard
from hopyard.backend._task import Task
from hopyard.backend.agent import AgentSettings, Answer
from hopyard.backend.remote import Cluster
from hopyard.errors import StorageFullError, UsageError, WorkerLostError, WorkerMismatchError
from hopyard.wording import counted
from hopyard.worker_start import import_path

logger = logging.getLogger(__name__)

# Actors in a row: Ray also sends them to dead nodes, as long as it does not know that these are dead.
START_ATTEMPTS = 3
RESERVED = ("CPU", "GPU", "memory", "object_store_memory")
NEEDED = (
    "hopyard",
    "blake3",
    "cloudpickle",
    "numpy",
    "pyarrow",
    "safetensors",
)  # by what a worker's process runs
FRAMEWORKS = {"hopyard.torch": "torch", "hopyard.keras": "keras"}  # needed too, if the driver uses the first


@dataclass(frozen=True)
class Node:
    """A living node: its address, and its total of each resource."""

    address: str
    has: dict[str, float]

    def room(self, asked: Mapping[str, float]) -> int:
        """Number of workers that the node has room for when nothing else runs there."""
        return min(int(self.has.get(name, 0) / amount + 1e-6) for name, amount in asked.items())


def living_nodes() -> list[Node]:
    import ray

    nodes: Any = ray.nodes  # which has no type
    return [Node(node["NodeManagerAddress"], node["Resources"]) for node in nodes() if node["Alive"]]


def fitting(nodes: list[Node], asked: Mapping[str, float], num_workers: int | None) -> int:
    """``num_workers`` if the nodes have room for them, or as many as they have room for.

    Raises:
        UsageError: there is too little room.
    """
    room = sum(node.room(asked) for node in nodes)
    if room >= (num_workers or 1):
        return num_workers or room
    given = f"num_workers={num_workers} was given, each with" if num_workers else "A worker needs"
    fewer = f"num_workers={room}, or None for as many as there is room for" if room else "less to each worker"
    raise UsageError(
        f"{given} {listed(asked)} on one node, but the Ray cluster has room for {counted(room, 'worker')}: "
        f"{listed_nodes(nodes, asked)}. Give {fewer}, or add nodes to the cluster."
    )


def listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items())


def listed_nodes(nodes: list[Node], asked: Mapping[str, float]) -> str:
    """List each node with its amounts of the resources asked for."""
    return "; ".join(
        f"node {node.address} has {listed({name: node.has.get(name, 0) for name in asked})}" for node in nodes
    )


@dataclass(eq=False)
class _Place:
    """A worker's actor.

    Attributes:
        actor: its handle.
        greeting: the reference of what it says of itself, which is there once the actor is.
        replaces: whether the worker had another one before.
        host: its machine's name, once it has greeted.
        is_late: the worker has waited for it in vain.
    """

    actor: Any
    greeting: Any
    replaces: bool
    host: str = ""
    is_late: bool = False


class Actors(Cluster):
    """An actor per worker. One that dies is replaced at the worker's next call."""

    def __init__(self, num_workers: int, asked: Mapping[str, float], start_timeout: float | None) -> None:
        self._num_workers, self._asked, self._start_timeout = num_workers, asked, start_timeout
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        self._had: set[int] = set()
        self._class: Any = None
        self._stopped = False

    def start(self) -> None:
        import ray

        custom = {name: amount for name, amount in self._asked.items() if name not in RESERVED}
        make: Any = ray.remote  # whose type knows neither all options nor classes
        self._class = make(
            num_cpus=self._asked["CPU"],
            num_gpus=self._asked.get("GPU", 0),
            resources=custom,
            scheduling_strategy="SPREAD",
            max_concurrency=1,
            max_restarts=0,
            max_task_retries=0,
        )(_actor_class())
        for worker in range(self._num_workers):
            self._new_place(worker)

    def call(self, settings: AgentSettings, worker: int, task: Task) -> Answer:
        import ray

        if "GPU" not in self._asked:
            settings = replace(settings, env={**settings.env, "CUDA_VISIBLE_DEVICES": ""})
        place = self._place(worker)
        try:
            run = place.actor.run.options(name=task.label)
            answer: Answer = ray.get(run.remote(settings, worker, task.label, task.parts))
            is_failure = answer.kind == "failed"
            return replace(answer, where=f"{answer.where} on {place.host}") if is_failure else answer
        except ray.exceptions.OutOfDiskError as error:
            raise StorageFullError(
                f"Ray found no space for the task {task.label!r} of worker {worker} (on {place.host}) in the folders "
                f"that its object store spills to: {_reason(error)}. Make space there."
            ) from error
        except ray.exceptions.RayTaskError:
            raise  # the actor has answered
        except ray.exceptions.RayError as error:  # it has ended, for one of many reasons
            self._forget(place)
            raise WorkerLostError(
                f"Worker {worker} (on {place.host}) was lost while it ran the task {task.label!r}: {_reason(error)}"
            ) from error

    def stop(self) -> None:
        import ray

        with self._lock:
            self._stopped = True
            places, self._places = list(self._places.values()), {}
        if ray.is_initialized():  # else Ray has ended them; it would start again for being asked
            for place in places:
                ray.kill(place.actor)

    def _new_place(self, worker: int, *, is_late: bool = False) -> _Place:
        title = f"hopyard worker {worker}"
        with self._lock:
            if self._stopped:
                raise WorkerLostError(f"Worker {worker} had ended; submit the task again.")
            # Ray wants names that no other living actor has.
            actor = self._class.options(name=f"{title} ({uuid.uuid4().hex[:8]})").remote(title)
            packages = (
                *NEEDED,
                *(package for module, package in FRAMEWORKS.items() if module in sys.modules),
            )
            greeting = actor.greet.options(name="greet").remote(tuple(import_path()), packages)
            self._places[worker] = place = _Place(actor, greeting, worker in self._had, is_late=is_late)
        return place

    def _forget(self, place: _Place) -> None:
        """Give the worker a new place at its next call."""
        import ray

        with self._lock:
            self._places = {worker: other for worker, other in self._places.items() if other is not place}
        ray.kill(place.actor)

    def _place(self, worker: int) -> _Place:
        """The worker's place, or another one's if it waits in vain for a new one."""
        import ray

        place = self._places.get(worker) or self._new_place(worker)
        if place.host:
            return place
        for attempt in range(1, START_ATTEMPTS + 1):
            greeted, _ = ray.wait([place.greeting], timeout=0 if place.is_late else self._start_timeout)
            if not greeted:
                return self._instead(worker, place)
            try:
                facts = ray.get(place.greeting)
                break
            except ray.exceptions.RayError as error:
                self._forget(place)
                if attempt == START_ATTEMPTS:
                    raise WorkerLostError(
                        f"Worker {worker} was lost before it was up, {attempt} times in a row: {_reason(error)}"
                    ) from error
                place = self._new_place(worker, is_late=place.is_late)
        if wrong := _wrong(facts):
            self._forget(place)
            raise WorkerMismatchError(f"Worker {worker} on {facts['host']} cannot run tasks: {wrong}")
        place.host = facts["host"]
        self._had.add(worker)
        return place

    def _instead(self, worker: int, place: _Place) -> _Place:
        """Place of another worker, for a task of a worker that waited in vain for a place of its own."""
        with self._lock:
            others = [other for other in self._places.values() if other.host]
        missing = (
            f"Worker {worker} found no place within {self._start_timeout} seconds: it needs {listed(self._asked)} "
            f"on one node, and of that {listed(_free(self._asked))} are free in the "
            f"whole cluster: {listed_nodes(living_nodes(), self._asked)}"
        )
        if not place.replaces or not others:
            self._forget(place)
            raise WorkerLostError(
                f"{missing}. End what else runs there, use fewer workers, add nodes, or give a longer start_timeout."
            )
        if not place.is_late:
            place.is_late = True
            logger.warning("%s. Until there is one, its tasks take turns with another worker's.", missing)
        return others[worker % len(others)]


def _free(asked: Mapping[str, float]) -> dict[str, float]:
    """Free amounts, in the whole cluster, of the resources asked for."""
    import ray

    available: Any = ray.available_resources  # which has no type
    left = available()
    return {name: left.get(name, 0) for name in asked}


def _reason(error: Exception) -> str:
    """Ray's text without its table of the actor's properties."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(("\t", "  "))]
    return " ".join(lines)


def _wrong(facts: dict[str, Any]) -> str:
    """Reason why an actor's machine cannot run tasks, and the remedy; empty if there is none."""
    python = ".".join(platform.python_version_tuple()[:2])
    if facts["missing"]:
        several = len(facts["missing"]) > 1
        return (
            f"the package{'s' if several else ''} {', '.join(map(repr, facts['missing']))} "
            f"{'are' if several else 'is'} not installed for {facts['executable']} there. Install on every node what "
            "the driver has, or have Ray do it: ray.init(runtime_env={'pip': [...]})."
        )
    if facts["python"] != python:
        return f"it has Python {facts['python']} and the driver {python}. Install the same on every node."
    if facts["hopyard"] != hopyard.__version__:
        versions = f"hopyard {facts['hopyard']} and the driver {hopyard.__version__}"
        return f"it has {versions}. Install the same on every node."
    return ""


def _actor_class() -> type:
    """The class of the actors. It is made here, and so travels by value: where the package is missing, it runs and
    says so."""

    class Worker:
        def __init__(self, title: str) -> None:
            self._title = title

        def __repr__(self) -> str:  # Ray's dashboard and logs show it
            return self._title

        def greet(self, paths: tuple[str, ...], packages: tuple[str, ...]) -> dict[str, Any]:
            """Facts of this process and its missing packages; the driver's import path comes after the own one."""
            import importlib.util
            import socket
            import sys

            sys.path += [path for path in paths if path not in sys.path]
            missing = [package for package in packages if importlib.util.find_spec(package) is None]
            facts = {
                "host": socket.gethostname(),
                "executable": sys.executable,
                "python": ".".join(map(str, sys.version_info[:2])),
                "missing": missing,
                "hopyard": None,
            }
            if not missing:
                import hopyard

                facts["hopyard"] = hopyard.__version__
            return facts

        def run(self, settings: AgentSettings, worker: int, name: str, parts: Any) -> Answer:
            from hopyard.backend.agent import run_here

            return run_here(settings, worker, name, parts)

    return Worker
