"""Common part of backends on clusters: a queue and a thread per worker; the cluster only carries tasks to agents."""

from __future__ import annotations

import atexit
import copy
import logging
import os
import threading
import uuid
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Self, TypeAlias

from hopyard.backend._task import Task
from hopyard.backend.agent import AgentSettings, Answer
from hopyard.backend.base import Backend, check_timeout, check_worker
from hopyard.backend.output import Listener, Outlet
from hopyard.backend.surroundings import Prefix, Surroundings
from hopyard.checks import integer
from hopyard.errors import (
    StorageFullError,
    UnitTimeoutError,
    UsageError,
    WorkerError,
    WorkerLostError,
    WorkerMismatchError,
)
from hopyard.storage.oserrors import full_disk
from hopyard.worker_start import common_env, import_path

logger: logging.Logger = logging.getLogger(__name__)


class Cluster(ABC):
    """Carrier of tasks to agents: implemented per engine, used by one ``RemoteBackend`` from start to stop.

    ``call`` is called by many threads, one per worker and never two for the same worker.
    """

    @abstractmethod
    def start(self) -> None:
        """Find or begin to start the places of all workers. Where it raises, it leaves nothing behind.

        Raises:
            UsageError: the cluster cannot be reached, or has too few places.
        """

    @abstractmethod
    def call(self, settings: AgentSettings, worker: int, task: Task) -> Answer:
        """Have the agent of that worker run the task; return its answer.

        Raises:
            WorkerLostError: the place was lost, or none can be had; the next call finds another one.
            WorkerMismatchError: the place cannot run tasks.
            StorageFullError: a disk that the engine needs is full; once there is space, the task can be repeated.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the workers: calls under way return or raise soon. Called once."""


class RemoteBackend(Backend):
    """Workers of a cluster. Subclasses say how many there are, and make the ``Cluster``."""

    isolated = True

    def __init__(self, threads_per_worker: int, unit_timeout: float | None) -> None:
        check_timeout(unit_timeout)
        self.threads_per_worker: int = integer("threads_per_worker", threads_per_worker, 1)
        self.unit_timeout = unit_timeout
        self._surroundings = Surroundings()
        self._begin()

    def _begin(self) -> None:
        """Have no workers yet."""
        self._outlet = _OneByOne()
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._end: Callable[[], object] = lambda: None

    @abstractmethod
    def _cluster(self) -> Cluster:
        """A cluster that is not started."""

    @property
    def running(self) -> bool:
        return self._session is not None

    def start(self) -> None:
        """Start the workers that are not running; returns when all answer.

        Raises:
            UsageError: the cluster cannot be reached, or has too few places.
            WorkerLostError: a worker ended before it answered; none is left running.
            WorkerMismatchError: a worker cannot run tasks; none is left running.
        """
        try:
            answers = [self.submit(worker, _answer) for worker in range(self.num_workers)]
            for worker, answer in enumerate(answers):
                try:
                    answer.result()
                except WorkerLostError:  # it may have been so long ago; it is replaced for the next task
                    self.submit(worker, _answer).result()
        except BaseException:
            self.stop()
            raise

    def submit(self, worker: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``fn(*args)`` on that worker, which is started if it is not running.

        Raises:
            UsageError: there is no such worker, or the task cannot be pickled; the cluster cannot be reached, or
                has too few places.
        """
        check_worker(worker, self.num_workers)
        task = Task(fn, args)
        with self._lock:
            self._running().submit(worker, task)
        return task.future

    def stop(self) -> None:
        """End the workers; tasks under way are abandoned. Also happens at exit."""
        with self._lock:
            end, self._end, self._session = self._end, lambda: None, None
        end()

    def on_output(self, listener: Listener | None) -> None:
        self._outlet.listener = listener

    def surrounded(self, env: Mapping[str, str] | None = None, prefix: Prefix | None = None) -> Self:
        other = copy.copy(self)
        other._surroundings = self._surroundings.changed(env, prefix, common_env(self.threads_per_worker))
        other._begin()
        return other

    def _running(self) -> _Session:
        if self._session is None:
            cluster = self._cluster()
            cluster.start()
            surroundings = self._surroundings
            settings = AgentSettings(
                driver=uuid.uuid4().hex,
                env={**common_env(self.threads_per_worker), **surroundings.env},
                unit_timeout=self.unit_timeout,
                paths=tuple(import_path()),
                log_level=logging.getLogger().level,
                prefix=surroundings.prefix,
            )
            self._session = _Session(cluster, settings, self.num_workers, self._outlet)
            # The threads do not know this object, so forgetting it stops the workers.
            self._end = weakref.finalize(self, self._session.stop)
        return self._session


def _answer() -> None:
    """The task that shows that a worker is up."""


class _OneByOne(Outlet):
    """Takes the lines of one worker at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def emit(self, worker: int, stream: str, tag: str, line: str) -> None:
        with self._lock:
            super().emit(worker, stream, tag, line)


class _Session:
    """The workers from start to stop."""

    def __init__(self, cluster: Cluster, settings: AgentSettings, workers: int, outlet: Outlet) -> None:
        self._cluster, self._pid, self._stopped = cluster, os.getpid(), False
        self._lines = [_Line(cluster, settings, number, outlet) for number in range(workers)]
        # Finalizers would run at exit too, but maybe after the engine's own end, which this must come before: what
        # was registered last runs first, and the engine is imported by now.
        atexit.register(self.stop)

    def submit(self, worker: int, task: Task) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "This process was forked from the one that started the backend, and cannot use its connection to "
                "the cluster; make a backend of its own here, after the fork."
            )
        self._lines[worker].add(task)

    def stop(self) -> None:
        """End the workers. In a fork of the driver, whose workers they are not, nothing happens."""
        atexit.unregister(self.stop)
        if os.getpid() != self._pid or self._stopped:
            return
        self._stopped = True
        for line in self._lines:
            line.close()
        self._cluster.stop()
        for line in self._lines:
            line.join()


_ERRORS: dict[str, type[WorkerError]] = {
    "lost": WorkerLostError,
    "timeout": UnitTimeoutError,
    "refused": WorkerMismatchError,
}

_Answered: TypeAlias = Answer | WorkerError | StorageFullError


class _Line:
    """One worker's tasks, in the order submitted, and the thread that has them run."""

    def __init__(self, cluster: Cluster, settings: AgentSettings, worker: int, outlet: Outlet) -> None:
        self._cluster, self._settings, self._worker, self._outlet = cluster, settings, worker, outlet
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._under_way: Task | None = None
        self._thread = threading.Thread(target=self._serve, name=f"hopyard-worker-{worker}", daemon=True)
        self._thread.start()

    def add(self, task: Task) -> None:
        with self._changed:
            if not self._closed:
                self._tasks.append(task)
                self._changed.notify()
                return
        task.future.set_exception(WorkerLostError(f"Worker {self._worker} had ended; submit the task again."))

    def close(self) -> None:
        """Cancel the tasks that wait, and give up the task under way."""
        with self._changed:
            self._closed = True
            waiting, self._tasks = list(self._tasks), deque()
            abandoned, self._under_way = self._under_way, None
            self._changed.notify()
        for task in waiting:
            task.cancel()
        if abandoned is not None:
            abandoned.future.set_exception(
                WorkerLostError(
                    f"Worker {self._worker} was ended in the middle of the task {abandoned.name!r}, because the "
                    "backend was stopped; submit the task again."
                )
            )

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            try:
                answer: _Answered = self._cluster.call(self._settings, self._worker, task)
            except (WorkerError, StorageFullError) as error:
                answer = error
            except Exception as error:  # of any kind, from the engine's client: the task was not answered
                answer = full_disk(
                    error, f"the task {task.label!r} of worker {self._worker}"
                ) or WorkerLostError(
                    f"Worker {self._worker} did not answer for the task {task.label!r}: "
                    f"{type(error).__name__}: {error}"
                )
            with self._changed:
                is_wanted, self._under_way = self._under_way is task, None
            if is_wanted:
                try:
                    self._settle(task, answer)
                except BaseException:  # of a callback of the future: the tasks that follow are not its own
                    logger.exception("a callback of the task %r of worker %d failed", task.name, self._worker)

    def _next(self) -> Task | None:
        with self._changed:
            while True:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return None
                task = self._tasks.popleft()
                if task.begin():
                    self._under_way = task
                    return task

    def _settle(self, task: Task, answer: _Answered) -> None:
        if not isinstance(answer, Answer):
            task.future.set_exception(answer)
            return
        for stream, tag, line in answer.lines:
            self._outlet.emit(self._worker, stream, tag, line)
        if answer.kind == "done":
            task.succeed(answer.parts)
        elif answer.kind == "failed":
            task.fail(answer.parts, answer.where)
        else:
            task.future.set_exception(_ERRORS[answer.kind](answer.where))
