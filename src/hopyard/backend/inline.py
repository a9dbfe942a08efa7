"""One worker: the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from hopyard.backend.base import Backend, check_worker, without_exit
from hopyard.checks import integer


class InlineBackend(Backend):
    """Runs each task inside ``submit``, in the caller's thread and process.

    The simplest backend to debug with: breakpoints, profilers and prints work as usual. Tasks are not
    pickled, so they share the caller's objects. Ctrl-C leaves ``submit`` as KeyboardInterrupt.

    Args:
        threads_per_worker: CPU threads that a task's mathematics may use; part of a run's settings.
    """

    name = "inline"
    isolated = False
    on_this_machine = True

    def __init__(self, threads_per_worker: int = 1) -> None:
        self.threads_per_worker: int = integer("threads_per_worker", threads_per_worker, 1)

    @property
    def num_workers(self) -> int:
        return 1

    @property
    def running(self) -> bool:
        return True

    def start(self) -> None:
        """Nothing needs starting."""

    def submit(self, worker: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``fn(*args)`` now and return its finished future."""
        check_worker(worker, 1)
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            future.set_exception(without_exit(error))
        return future

    def stop(self) -> None:
        """Nothing needs ending."""

    def __repr__(self) -> str:
        return f"InlineBackend(threads_per_worker={self.threads_per_worker})"
