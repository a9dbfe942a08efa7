"""The Backend contract: N workers, each runs a function and returns a future.

Rules that every implementation must keep (``backend.testing`` checks them):

* **Workers** are numbered from 0. Each runs one task at a time, in the order submitted.
* **submit** never blocks on the task. The function and its arguments travel by cloudpickle
  (closures, lambdas and ``__main__`` functions work); the result comes back the same way.
* **Failures.** An exception of the task is set on the future, with its traceback on the
  worker as ``__notes__``. A worker that dies sets ``WorkerLostError``, one that exceeds
  ``unit_timeout`` is killed and sets ``UnitTimeoutError``; both are replaced by a fresh
  worker of the same number before the next task, without being asked.
* **Memory is a hint.** What a task leaves in its process may be gone at the next task.
* **Output.** What tasks print or log reaches the driver's stdout and stderr, tagged.
* **Threads.** ``submit`` may be called from any thread. Futures' callbacks run on a thread of
  the backend and must be short.
* **Life.** Workers start at the first ``start`` (or ``submit``) and exit with ``stop`` or when
  the driver dies, however it dies. A stopped backend may be started again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self


class Backend(ABC):
    """The workers of one engine. See the module's text for the rules."""

    name: str
    """How records and messages call this engine: ``"inline"``, ``"local"``, ..."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers there are, also before they are started."""

    @abstractmethod
    def start(self) -> None:
        """Start the workers that are not running; returns when all answer."""

    @abstractmethod
    def submit(self, worker: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``fn(*args)`` on that worker."""

    @abstractmethod
    def stop(self) -> None:
        """End the workers; tasks under way are abandoned."""

    def on_output(self, listener: Callable[[int, str, str], None] | None) -> None:
        """Send workers' lines to ``listener(worker, stream, line)`` instead of the driver's own
        streams; None restores. Backends that run tasks in the driver's process ignore this."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
