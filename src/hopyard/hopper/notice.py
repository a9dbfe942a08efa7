"""The notice that a process is to end soon: SIGTERM or SIGUSR1, as schedulers of clusters and clouds send it.

While the process checks and prepares, the notice is an exception in the main thread, as Ctrl-C is. While a run hops,
the run loop is told instead: it begins no more units, and gives those under way ``grace`` seconds. Python runs
handlers of signals between two instructions of the main thread, whatever locks that holds, so the handlers here take
none: they set attributes, put into a ``SimpleQueue``, which may be interrupted by itself, and raise.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from hopyard.errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
CLOSING = 5.0
"""Seconds after the grace in which the run's end is recorded, before a store that does not answer is left alone."""


class Notice:
    """Listens for the notice while it is entered in the main thread; in another one it hears nothing.

    Signals that are ignored, or handled by other than Python, stay so. Leaving it gives the signals back to whoever had
    them, and raises Preempted if the notice was given.

    Args:
        grace: seconds that units under way have to end.
        announce: takes messages for the user.

    Attributes:
        given: the name of the first signal that came, or None.
        expired: whether the grace is over.
    """

    def __init__(self, grace: float = 0.0, announce: Callable[[str], None] = print) -> None:
        self.given: str | None = None
        self.expired: bool = False
        self.grace = grace
        self._announce = announce
        self._when = "before its first unit; run the same script again to go on."
        self._previous: dict[int, Any] = {}
        self._pid = os.getpid()
        self._outer: BaseException | None = None
        self._tell: Callable[[], None] | None = None
        self._in_unit = self._given_up = False
        self._closed = True
        self._countdown: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._count_down, name="hopyard-notice", daemon=True)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._outer = sys.exception()
            self._thread.start()
            self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            if self._thread.ident is not None:
                # First, so that what it sends is handled here.
                self._countdown.put(None)
                self._thread.join()
        finally:
            for number, previous in self._previous.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, previous)
        if self.given is None:
            return
        told = self._exit()  # anew: what is to be said may have changed since one was raised
        announce_if_heard(self._announce, str(told))
        raise told from error

    def check(self) -> None:
        """Raise what was given and has not arrived. Listen again where a library, such as Ray, listens instead.

        The first call, right after entering, lets signals raise by themselves.

        Raises:
            Preempted: the notice was given.
        """
        if self._thread.ident is not None:
            self._listen()
        self._closed = False
        if self.given is not None:
            raise self._exit()

    def note(self, when: str) -> None:
        """What the exception says of the time at which the notice was given, and of how to go on."""
        self._when = when

    @contextmanager
    def deferred(self, tell: Callable[[], None]) -> Iterator[None]:
        """Within, ``tell`` is called instead of an exception raised: with each signal, and when the grace is over.
        ``tell`` must take no lock. If the end takes ``CLOSING`` seconds more, the exception is raised all the same.
        """
        self._tell = tell
        try:
            yield
        finally:
            self._tell = None

    @contextmanager
    def in_unit(self) -> Iterator[None]:
        """Within is a unit that runs in this thread, where nobody else can end it: the end of the grace does."""
        if self._thread.ident is None:
            yield
            return
        self._in_unit = True
        try:
            if self.expired:
                raise self._exit()
            yield
        finally:
            self._in_unit = False

    def _exit(self) -> Preempted:
        return Preempted(f"preempted by {self.given} {self._when}")

    def _listen(self) -> None:
        for number in SIGNALS:
            now = signal.getsignal(number)
            if now not in (signal.SIG_IGN, None, self._handle):
                self._previous[number] = now
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a fork, which has the handler, but to which the rest does not belong
            signal.signal(number, self._previous[number])
            os.kill(os.getpid(), number)
            return
        first = self.given is None
        if first:
            self.given = signal.Signals(number).name
            self.expired = self.grace == 0  # at once: what is under way may be about to wait for ever
            self._countdown.put(number)
        if self._closed or self._is_ending():
            return  # leaving raises it
        if self._tell is None:
            raises = first or self.expired
        else:
            self._tell()
            raises = self._given_up or (self.expired and self._in_unit)
        if raises:
            raise self._exit()

    def _is_ending(self) -> bool:
        """Whether the main thread cleans up behind a Ctrl-C or an exit, such as that of this very notice."""
        error = sys.exception()
        while error is not None and error is not self._outer:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                return True
            error = error.__context__
        return False

    def _count_down(self) -> None:
        """Wait for the notice, then for the end of the grace, which it signals to the main thread, which may run a
        unit, or wait for a store; on the thread of its own."""
        number = self._countdown.get()
        if number is None or self._ends_within(self.grace):
            return
        self.expired = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        if self._ends_within(CLOSING):
            return
        self._given_up = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._countdown.get(timeout=seconds)
        except queue.Empty:
            return False
        return True


def announce_if_heard(announce: Callable[[str], None], message: str) -> None:
    """Announce what nobody may hear any more: the same signal may have ended what reads this process's output, for
    which Rich raises SystemExit."""
    try:
        announce(message)
    except Preempted:
        raise
    except (OSError, SystemExit):
        return
