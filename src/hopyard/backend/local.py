"""One fresh process per worker on this machine."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Self

from hopyard.backend import devices
from hopyard.backend._engine import Engine
from hopyard.backend._process import LaunchSettings
from hopyard.backend._task import Task
from hopyard.backend.base import Backend, check_timeout, check_worker
from hopyard.backend.output import Listener, Outlet
from hopyard.backend.surroundings import Prefix, Surroundings
from hopyard.checks import integer
from hopyard.errors import UsageError
from hopyard.worker_start import common_env


class LocalBackend(Backend):
    """Workers are processes of this machine, started fresh: no fork, no ``__main__`` guard.

    Args:
        num_workers: how many; None is one per ``gpus_per_worker`` GPUs, or without GPUs one per two
            cores. More workers than GPUs share them.
        device: ``"auto"`` uses the GPUs there are, ``"cpu"`` hides them, ``"cuda"`` insists on them.
        gpus_per_worker: GPUs that each worker sees, if there are any.
        threads_per_worker: CPU threads that the mathematics of a task may use.
        unit_timeout: seconds that a task may take before its worker is killed; None for no limit.

    Raises:
        UsageError: an argument is impossible.
    """

    name = "local"
    isolated = True
    on_this_machine = True

    def __init__(
        self,
        num_workers: int | None = None,
        device: str = "auto",
        gpus_per_worker: int = 1,
        threads_per_worker: int = 1,
        unit_timeout: float | None = None,
    ) -> None:
        if num_workers is not None:
            integer("num_workers", num_workers, 1)
        integer("gpus_per_worker", gpus_per_worker, 1)
        check_timeout(unit_timeout)
        self.threads_per_worker: int = integer("threads_per_worker", threads_per_worker, 1)
        self.unit_timeout = unit_timeout
        self.gpus_per_worker = gpus_per_worker
        self.device: str
        self.device, self._envs = _plan(num_workers, device, gpus_per_worker, threads_per_worker)
        self._surroundings = Surroundings()
        self._begin()

    def _begin(self) -> None:
        """Have no workers yet."""
        self._outlet = Outlet()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def num_workers(self) -> int:
        return len(self._envs)

    @property
    def running(self) -> bool:
        return self._engine is not None and not self._engine.ended

    def start(self) -> None:
        """Start the workers that are not running; returns when all answer.

        Raises:
            WorkerLostError: a worker ended before it answered; none is left running.
            WorkerMismatchError: the prefix that ``surrounded`` was given fails; none is left running.
        """
        with self._lock:
            answers = self._running().start_workers()
        try:
            for answer in answers:
                answer.result()
        except BaseException:
            self.stop()
            raise

    def submit(self, worker: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``fn(*args)`` on that worker, which is started if it is not running.

        Raises:
            UsageError: there is no such worker, or the task cannot be pickled.
        """
        check_worker(worker, self.num_workers)
        task = Task(fn, args)
        with self._lock:
            self._running().submit(worker, task)
        return task.future

    def stop(self) -> None:
        """End the workers; tasks under way are abandoned. Also happens at exit."""
        with self._lock:
            end, self._end, self._engine = self._end, lambda: None, None
        end()

    def on_output(self, listener: Listener | None) -> None:
        self._outlet.listener = listener

    def surrounded(self, env: Mapping[str, str] | None = None, prefix: Prefix | None = None) -> Self:
        other = copy.copy(self)
        other._surroundings = self._surroundings.changed(env, prefix, self._envs[0])
        other._begin()
        return other

    def _running(self) -> Engine:
        if self._engine is None or self._engine.ended:
            around = self._surroundings
            launches = [LaunchSettings({**env, **around.env}, prefix=around.prefix) for env in self._envs]
            self._engine = Engine(launches, self.unit_timeout, self._outlet)
            # The engine's thread does not know this object, so forgetting it stops the workers.
            self._end = weakref.finalize(self, self._engine.stop)
        return self._engine

    def __repr__(self) -> str:
        return (
            f"LocalBackend(num_workers={self.num_workers}, device={self.device!r}, "
            f"threads_per_worker={self.threads_per_worker}, unit_timeout={self.unit_timeout})"
        )


def _plan(
    num_workers: int | None, device: str, gpus_per_worker: int, threads: int
) -> tuple[str, list[dict[str, str]]]:
    """The device that workers use, and the environment variables of each worker."""
    if device not in devices.DEVICES:
        raise UsageError(f"device={device!r}, but it must be one of {', '.join(devices.DEVICES)}.")
    gpus = [] if device == "cpu" else devices.visible_gpus()
    if device == "cuda" and not gpus:
        raise UsageError(
            "device='cuda' was given, but this machine shows no NVIDIA GPU; see `nvidia-smi` and "
            "CUDA_VISIBLE_DEVICES, or use device='auto'."
        )
    if gpus:
        visible = devices.assign_gpus(gpus, num_workers, gpus_per_worker)
    else:
        visible = [""] * (num_workers or max(1, devices.usable_cores() // 2))
    common = common_env(threads)
    return "cuda" if gpus else "cpu", [{**common, "CUDA_VISIBLE_DEVICES": ids} for ids in visible]
