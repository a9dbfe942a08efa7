"""One submitted task: the message to the worker, and the future that its answer settles."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from hopyard.backend._channel import MessagePart, dumps, loads
from hopyard.errors import UsageError


class Task:
    """``fn(*args)``, pickled when it is made: later changes of the arguments do not reach it.

    Attributes:
        name: the function's, for messages.
        label: what a cluster's own display calls the task: the ``label`` of the first argument that has one, else
            the name.
        worker: the number that messages call its worker by; None: that of its place.

    Raises:
        UsageError: the function or an argument cannot be pickled.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
        labels = (getattr(arg, "label", None) for arg in args)
        self.label: str = next((label for label in labels if isinstance(label, str)), self.name)
        self.worker: int | None = None
        self.future: Future[Any] = Future()
        try:
            self.parts: list[MessagePart] = dumps((fn, args), copy=True)
        except UsageError:
            raise  # an object that says itself why it cannot travel
        except Exception as error:
            raise UsageError(
                f"The task {self.name!r} cannot be sent to a worker ({type(error).__name__}: {error}). The "
                "function, what it captures and its arguments are pickled by cloudpickle, which rules out "
                "locks, threads, open files and connections; make those inside the function."
            ) from error

    def begin(self) -> bool:
        """False if the task was cancelled while it waited."""
        return self.future.set_running_or_notify_cancel()

    def cancel(self) -> None:
        """Give up on a task that has not begun."""
        self.future.cancel()
        self.begin()

    def succeed(self, parts: Sequence[MessagePart]) -> None:
        try:
            result = loads(parts)
        except Exception as error:
            error.add_note(f"The result of the task {self.name!r} could not be unpickled by the driver.")
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, parts: Sequence[MessagePart], where: str) -> None:
        """Set the exception that ``_worker._failure`` packed."""
        summary, text, pickled = (bytes(part) for part in parts)
        try:
            error = pickle.loads(pickled)
        except Exception:  # its class does not pickle, or does not exist here
            error = None
        if not isinstance(error, Exception):
            error = RuntimeError(summary.decode(errors="replace"))
        error.add_note(f"Traceback on {where}:\n{text.decode(errors='replace').rstrip()}")
        self.future.set_exception(error)
