"""The Backend contract: N workers, each runs a function and returns a future.

Rules that every implementation must keep (``backend.testing`` checks them):

* **Workers** are numbered from 0. Each runs one task at a time, in the order submitted.
* **submit** never blocks on the task. The function and its arguments travel by cloudpickle
  (closures, lambdas and ``__main__`` functions work); the result comes back the same way.
* **Failures.** An exception of the task is set on the future; one that comes from another process
  has its traceback there among its ``__notes__``. SystemExit arrives as a RuntimeError, so that a
  task cannot end the driver. What cannot be pickled raises ``UsageError`` in ``submit``. A worker
  that dies sets ``WorkerLostError``, one that exceeds ``unit_timeout`` is killed and sets
  ``UnitTimeoutError``; both are replaced by a fresh worker of the same number before the next
  task, without being asked.
* **Memory is a hint.** What a task leaves in its process may be gone at the next task.
* **Output.** What tasks print or log reaches the driver's stdout and stderr, each line tagged
  (``[trial 3 · worker 1] text``), and all lines of a task before its future is done.
* **Threads.** ``submit`` may be called from any thread. Futures' callbacks run on a thread of
  the backend and must be short.
* **Surroundings.** ``surrounded`` gives a backend of the same kind and size whose workers' processes have more
  environment variables, and are started through a command that a function gives on the machine of each worker. Where
  that function fails, all tasks that wait there, and ``start``, get one ``WorkerMismatchError`` with its text.
* **Life.** Workers start at the first ``start`` (or ``submit``) and exit with ``stop`` or when
  the driver dies, however it dies. A stopped backend may be started again. ``stop`` cancels the
  futures of tasks that have not begun and sets ``WorkerLostError`` on those under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hopyard.backend.surroundings import Prefix
from hopyard.checks import number
from hopyard.errors import UsageError
from hopyard.storage import Store

if TYPE_CHECKING:
    from hopyard.data import Prepared


class Backend(ABC):
    """The workers of one engine. See the module's text for the rules."""

    name: str
    """How records and messages call this engine: ``"inline"``, ``"local"``, ..."""

    isolated: bool
    """Whether workers are processes of their own. If so, tasks are pickled, a worker may die without
    the driver, tasks can be timed out, and output is tagged."""

    on_this_machine: bool = False
    """Whether workers and the driver are processes of one machine, which fails as a whole."""

    threads_per_worker: int
    """CPU threads that the mathematics of a task may use; a setting of every run."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """Number of workers, also before they are started."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether ``start`` was called and ``stop`` was not yet, so that workers keep what they have in memory."""

    @abstractmethod
    def start(self) -> None:
        """Start the workers that are not running; returns when all answer."""

    @abstractmethod
    def submit(self, worker: int, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``fn(*args)`` on that worker."""

    @abstractmethod
    def stop(self) -> None:
        """End the workers; tasks under way are abandoned."""

    def place(self, worker: int) -> str:
        """Name, in messages, of that worker and its place."""
        return f"worker {worker}"

    def on_output(self, listener: Callable[[int, str, str], None] | None) -> None:  # noqa: B027
        """Send workers' lines to ``listener(worker, stream, line)`` instead of the driver's own
        streams; None restores. ``stream`` is ``"stdout"`` or ``"stderr"``, ``line`` the text with its
        tag as it would be printed, without newline; calls come from one thread at a time. Backends
        that run tasks in the driver's process ignore this."""

    @abstractmethod
    def surrounded(self, env: Mapping[str, str] | None = None, prefix: Prefix | None = None) -> Self:
        """A backend of the same kind and size that is not started, and whose workers start within surroundings.

        It takes the same places as this one, so that only one of both should run at a time. What this one has of
        surroundings, it has too.

        Args:
            env: environment variables of its workers, over those of the process that starts them.
            prefix: gives the words that are put before the command of a worker's process, such as
                ``["nice", "-n", "5"]``, or none. It is called on the worker's machine whenever one starts there, in a
                process of the worker's own, and travels by cloudpickle. None: that of this backend, if it has one.

        Raises:
            UsageError: a variable cannot be set, or contradicts one that the backend sets; the prefix cannot be
                pickled, or workers are no processes that it could start.
        """

    def prepare_data(
        self,
        store: Store,
        df: Any,
        validation: Any = 0.25,
        feature_columns: str | Sequence[str] | None = None,
        label_columns: str | Sequence[str] | None = None,
        *,
        feature_column: str | None = None,
        label_column: str | None = None,
        seed: int = 0,
        nulls: str = "error",
        ragged: str = "error",
        compress_sparse: bool = False,
        progress: bool = True,
    ) -> Prepared:
        """Write ``df`` into ``store``, as :func:`hopyard.data.prepare` does, for ``fit_on_prepared_data``.

        Args:
            feature_column, label_column: other names of ``feature_columns`` and ``label_columns``.
            progress: show how far it is, on standard error: a bar on a terminal, elsewhere a line twice a minute.
            The other arguments are those of :func:`hopyard.data.prepare`.

        Raises:
            UsageError: both names of an argument are given; and what ``prepare`` raises.
        """
        # Workers import this file, and need none of these.
        from hopyard.data import prepare
        from hopyard.data.progress import SELDOM, RowProgress

        features = _either("feature_column", feature_column, feature_columns)
        labels = _either("label_column", label_column, label_columns)
        with RowProgress(every=SELDOM) if progress else nullcontext() as watch:
            return prepare(
                df, store, validation, features, labels, seed, nulls, ragged,
                compress_sparse=compress_sparse, watch=watch,
            )  # fmt: skip

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()


def _either(name: str, one: str | None, several: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """The column or columns, whichever name they were given under."""
    if one is not None and several is not None:
        raise UsageError(
            f"{name}={one!r} and {name}s={several!r} were given, which mean the same. Give {name}s only."
        )
    return several if one is None else one


def check_worker(worker: int, num_workers: int) -> None:
    """Refuse the number of a worker that does not exist."""
    if not 0 <= worker < num_workers:
        raise UsageError(
            f"Worker {worker} was asked for, but this backend has {num_workers}, numbered from 0; "
            f"use a number from 0 to {num_workers - 1}."
        )


def check_timeout(value: float | None, name: str = "unit_timeout") -> None:
    """Refuse a time limit that is no number of seconds."""
    if value is not None:
        number(name, value, above=0, rule="a number of seconds above 0, or None for no limit")


def without_exit(error: BaseException) -> Exception:
    """``error``, or for SystemExit and its like an error that does not end the driver that raises it."""
    if isinstance(error, Exception):
        return error
    stand_in = RuntimeError(
        f"The task raised {type(error).__name__}({error}), which would end its process; "
        "let it return a value or raise an Exception instead."
    )
    stand_in.__cause__ = error
    return stand_in
