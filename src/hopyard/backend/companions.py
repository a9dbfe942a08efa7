"""Companions of a worker: processes that it starts, which run what it tells them at the same time as itself."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from hopyard.backend._engine import Engine
from hopyard.backend._process import LaunchSettings
from hopyard.backend._slot import _AbandonedError
from hopyard.backend._task import Task
from hopyard.backend.output import Outlet
from hopyard.errors import WorkerLostError

T = TypeVar("T")


class Companions:
    """Processes on this machine, numbered from 1, which end with this one however it ends.

    They import what this one can import, and what they print is part of its output. One thread calls them.

    Args:
        variables: environment variables of each, over those of this process.
        called: what messages and lines call them, before their numbers.

    Raises:
        WorkerLostError: one could not be started.
    """

    def __init__(self, variables: Sequence[Mapping[str, str]], called: str) -> None:
        launches = [LaunchSettings(env, called=called) for env in variables]
        self._engine = Engine(launches, None, _Lines(called))
        self.stop: Callable[[], Any] = weakref.finalize(self, self._engine.stop)
        """Ends them."""
        self._numbers = range(1, len(launches) + 1)
        self._failures: deque[BaseException] = deque()
        self._pids = self.call(_nothing, os.getpid)[1]

    def call(self, own: Callable[[], T], fn: Callable[..., Any], *args: Any) -> tuple[T, list[Any]]:
        """Run ``own()`` here and ``fn(*args)`` in all of them, at the same time.

        Where one fails, all end at once, since the others and this process may wait for it. What this raises is what
        failed first. Connections to a process that ended raise RuntimeError, so that one of ``own`` counts for
        nothing where a companion has failed.

        Returns:
            What ``own`` gave, and what they gave, by their numbers.

        Raises:
            Exception: of ``own``, or of one of them, with its traceback there among the notes.
            WorkerLostError: one has died.
        """
        others = self._submit(fn, *args)
        try:
            mine = own()
        except BaseException as error:
            failure = self._failure()
            if failure is None or not isinstance(error, RuntimeError) or str(error) == str(failure):
                raise
            raise failure from None
        if any(map(_failed, others)):
            failure = self._failure()
            assert failure is not None
            raise failure
        return mine, [other.result() for other in others]

    @property
    def alive(self) -> bool:
        """Whether all are the processes that were started."""
        if self._engine.ended:
            return False
        try:
            return self.call(_nothing, os.getpid)[1] == self._pids
        except WorkerLostError:
            return False

    def _submit(self, fn: Callable[..., Any], *args: Any) -> list[Future[Any]]:
        futures = []
        for number in self._numbers:
            task = Task(fn, args)
            task.worker = number
            task.future.add_done_callback(self._heard)
            self._engine.submit(number - 1, task)
            futures.append(task.future)
        return futures

    def _heard(self, future: Future[Any]) -> None:
        """Called by the engine's thread."""
        if not future.cancelled() and (error := future.exception()) is not None:
            self._failures.append(error)
            self._engine.stop()

    def _failure(self) -> BaseException | None:
        """The first failure of one of them, if there is any. Ends all."""
        self.stop()
        failures = [each for each in self._failures if not isinstance(each, _AbandonedError)]
        # Errors of those that were connected to one that died may be heard of before its end.
        lost = [each for each in failures if isinstance(each, WorkerLostError)]
        return next(iter(lost + failures), None)


class _Lines(Outlet):
    """Puts lines into the output of this process."""

    def __init__(self, called: str) -> None:
        super().__init__()
        self._called = called

    def emit(self, worker: int, stream: str, tag: str, line: str) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.write(f"[{self._called} {worker + 1}] {line}\n")


def _nothing() -> None:
    """What this process does while companions do something by themselves."""


def _failed(future: Future[Any]) -> bool:
    try:
        return future.exception() is not None
    except CancelledError:
        return True
