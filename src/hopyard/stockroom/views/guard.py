"""Writers of one ``StockRoom`` object: one thread, asyncio task and process at a time.

* **A block belongs to who opened it**: a thread, in it an asyncio task, and a process. While it is open, others that
  write with the same object get an error at once. They do not wait: the block may be waiting for them.
* **Outside of blocks** one write at a time happens, under a lock that is held for that write only.
* **A forked child** has a copy of what is in memory, and writes nothing with it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from hopyard.errors import UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class User(NamedTuple):
    """A thread, and the asyncio task that runs in it, if one does."""

    thread: threading.Thread
    task: Any

    def __str__(self) -> str:
        thread = f"the thread {self.thread.name!r}{'' if self.thread.is_alive() else ', which has ended'}"
        return thread if self.task is None else f"the task {self.task.get_name()!r} of {thread}"


def _current() -> User:
    asyncio = sys.modules.get("asyncio")
    task = None
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
    return User(threading.current_thread(), task)


class Guard:
    """Order among the threads of a process, and its forked children, that use what is not committed yet.

    As a context manager it is the lock, for reading as well; ``write`` is the lock for those who may write.

    Args:
        path: of the stockroom, for messages.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._inside: threading.Thread | None = None
        self._depth = 0
        self._owner: User | None = None
        self._doing = ""
        self._process: int | None = None  # which writes; None: whichever has the object
        self._is_torn = False
        self.settle: Callable[[], None] | None = None  # what is to be done before anything else
        _GUARDS.add(self)

    # The lock

    def __enter__(self) -> Self:
        if self._is_torn:
            raise UsageError(
                f"the process {os.getpid()} was forked while another thread was writing, so its copy of what is not "
                f"committed is not whole. {self._advice}"
            )
        me = threading.current_thread()
        if self._inside is not me:
            try:
                self._lock.acquire()
                self._inside = me
            except BaseException:
                # A Ctrl-C may come when the lock is held already.
                with suppress(RuntimeError):
                    self._lock.release()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._inside = None
            self._lock.release()

    def write(self, what: str) -> _Write:
        """The lock, for a write.

        Args:
            what: is written or called, for the error.

        Raises:
            UsageError: on entering: another thread, task or process has a block open.
        """
        return _Write(self, what)

    @contextmanager
    def alone(self, what: str, doing: str) -> Iterator[None]:
        """For a write that waits for code of the user, as an iterator's: others that write meanwhile get an error
        that names what is being done. The lock is free, so that they can read."""
        with self.write(what):
            is_mine = self._owner is not None
            if not is_mine:
                self.own(doing)
        try:
            yield
        finally:
            if not is_mine:
                self.disown()

    # Whose it is

    def own(self, doing: str) -> None:
        """From now on this thread and task alone writes."""
        self._owner, self._doing = _current(), doing

    def disown(self) -> None:
        """Let any thread and task write again."""
        self._owner = None

    def stay_in_process(self, yes: bool) -> None:
        """Let no forked child write with what this process has in memory."""
        self._process = os.getpid() if yes else None

    @property
    def is_others(self) -> bool:
        """Whether somebody else has it now."""
        owner = self._owner
        return owner is not None and (self.is_forked or owner != _current())

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child of the one that writes."""
        return self._process not in (None, os.getpid())

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in the middle of a write."""
        return self._depth > 0 and self._inside is threading.current_thread()

    def check(self, what: str) -> None:
        """See that this thread, task and process may write.

        Raises:
            UsageError: another has a block open, or this process was forked from the one that writes.
        """
        if self.is_forked:
            raise UsageError(
                f"{what}: this StockRoom object was opened for writing in the process {self._process}, from which "
                f"this one ({os.getpid()}) was forked. It writes and commits in that process only. {self._advice}"
            )
        if self.settle is not None:
            self.tidy()
        owner = self._owner
        if owner is not None and owner != (me := _current()):
            raise UsageError(
                f"{what}: {owner} {self._doing} with this StockRoom object, and this is {me}. A block belongs to the "
                "thread, the asyncio task and the process that opened it, and nobody else writes meanwhile. "
                f"{self._advice} Or wait until the other has ended."
            )

    def tidy(self) -> None:
        """Do what ``settle`` says, unless this is in the middle of a write."""
        with self:
            settle = self.settle
            if settle is not None and self._depth == 1:
                try:
                    settle()
                except Exception:
                    self.settle = None
                    raise
                # After a Ctrl-C it is still to be done.
                self.settle = None

    @property
    def _advice(self) -> str:
        path = "path" if self._path is None else repr(self._path)
        return f"Open a StockRoom of its own in each thread, task and process that writes: StockRoom({path})."

    def _after_fork(self) -> None:
        if self._depth and self._inside is not threading.current_thread():
            self._is_torn = True
        if not self.is_inside:
            self._lock, self._depth, self._inside = threading.RLock(), 0, None


class _Write:
    __slots__ = ("_guard", "_what")

    def __init__(self, guard: Guard, what: str) -> None:
        self._guard, self._what = guard, what

    def __enter__(self) -> None:
        guard = self._guard
        guard.check(self._what)  # before waiting: a block may be waiting for this thread
        guard.__enter__()
        try:
            guard.check(self._what)
        except BaseException:
            guard.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._guard.__exit__()


class _Guarded(Protocol):
    @property
    def guard(self) -> Guard: ...


_G = TypeVar("_G", bound=_Guarded)


def guarded(method: Callable[Concatenate[_G, _P], _T]) -> Callable[Concatenate[_G, _P], _T]:
    """A method that holds the lock of its object."""

    @functools.wraps(method)
    def locked(self: _G, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self.guard:
            return method(self, *args, **kwargs)

    return locked


def exclusive(method: Callable[Concatenate[_G, _P], _T]) -> Callable[Concatenate[_G, _P], _T]:
    """A method of a stockroom that is a write: see :meth:`Guard.write`."""

    @functools.wraps(method)
    def written(self: _G, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self.guard.write(f"stock.{method.__name__}()"):
            return method(self, *args, **kwargs)

    return written


_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


def _after_fork() -> None:
    for guard in list(_GUARDS):
        guard._after_fork()


os.register_at_fork(after_in_child=_after_fork)
