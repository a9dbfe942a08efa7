"""One worker: the caller's own thread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any, Self

from hopyard.backend.base import Backend, check_worker, without_exit
from hopyard.backend.surroundings import Prefix, checked_env, checked_words, variables_set
from hopyard.checks import integer
from hopyard.errors import Preempted, UsageError


class InlineBackend(Backend):
    """Runs each task inside ``submit``, in the caller's thread and process.

    The simplest backend to debug with: breakpoints, profilers and prints work as usual. Tasks are not
    pickled, so they share the caller's objects. Ctrl-C leaves ``submit`` as KeyboardInterrupt, the notice that the
    process is to end as Preempted.

    Args:
        threads_per_worker: CPU threads that a task's mathematics may use; part of a run's settings.
    """

    name = "inline"
    isolated = False
    on_this_machine = True

    def __init__(self, threads_per_worker: int = 1) -> None:
        self.threads_per_worker: int = integer("threads_per_worker", threads_per_worker, 1)
        self._env: dict[str, str] = {}
        self._one_at_a_time = threading.RLock()

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
            with self._surroundings() if self._env else nullcontext():
                result = fn(*args)
            future.set_result(result)
        except (KeyboardInterrupt, Preempted):
            raise
        except BaseException as error:
            future.set_exception(without_exit(error))
        return future

    def stop(self) -> None:
        """Nothing needs ending."""

    def surrounded(self, env: Mapping[str, str] | None = None, prefix: Prefix | None = None) -> Self:
        """As in every backend; ``prefix`` is called at once, and what it raises is raised here."""
        if prefix is not None and (words := checked_words(prefix())):
            raise UsageError(
                f"Workers are to be started through the command {words!r}, but {self!r} runs tasks in this process, "
                "which has been started. Use LocalBackend(num_workers=1), whose worker is a process of its own."
            )
        other = copy.copy(self)
        other._env = {**self._env, **checked_env(env or {}, {})}
        other._one_at_a_time = threading.RLock()
        return other

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Have the environment variables of tasks, which other threads of the caller must not mix up."""
        with self._one_at_a_time, variables_set(self._env):
            yield

    def __repr__(self) -> str:
        return f"InlineBackend(threads_per_worker={self.threads_per_worker})"
