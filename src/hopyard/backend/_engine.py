"""The thread of a local backend: starts workers, gives them tasks, hears of the ends of both.

One thread owns all processes and sleeps in one selector over their channels, their output and their
ends. Other threads only give it commands, so that the rest needs no locks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from hopyard.backend._process import LaunchSettings
from hopyard.backend._slot import NEVER, Slot
from hopyard.backend._task import Task
from hopyard.backend.output import Outlet
from hopyard.errors import WorkerLostError
from hopyard.worker_start import LEFT_TO_THE_DRIVER

GRACE = 0.5  # seconds that a busy worker has to notice the end of its channel, before it is killed


class Engine:
    """The running workers of one backend, from start to stop."""

    def __init__(
        self, launches: Sequence[LaunchSettings], unit_timeout: float | None, outlet: Outlet
    ) -> None:
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda mask: self._obey())
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._stopping = self._ended = False
        self._slots = [
            Slot(number, launch, unit_timeout, outlet, self._selector)
            for number, launch in enumerate(launches)
        ]
        self._thread = threading.Thread(target=self._run, name="hopyard-local-backend", daemon=True)
        self._thread.start()

    def submit(self, worker: int, task: Task) -> None:
        """Queue the task for that worker."""
        if not self._post(functools.partial(self._slots[worker].add, task)):
            task.future.set_exception(WorkerLostError(f"Worker {worker} had ended; submit the task again."))

    def start_workers(self) -> list[Future[None]]:
        """A future for each worker, done when it answers."""
        answers: list[Future[None]] = [Future() for _ in self._slots]
        for slot, answer in zip(self._slots, answers, strict=True):
            if not self._post(functools.partial(slot.start, answer)):
                answer.set_exception(WorkerLostError("The workers had ended; start them again."))
        return answers

    def stop(self) -> None:
        """End all workers; returns when they have ended. Safe at exit and in a forked child."""
        if os.getpid() != self._pid:
            return  # a fork of the driver has copies of the channels, but the workers are not its own
        self._post(self._begin_to_stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether the thread takes no more commands, or is not this process's."""
        return self._ended or os.getpid() != self._pid

    def _post(self, command: Callable[[], None]) -> bool:
        """Have the thread run ``command``; False, and nothing happens, once it has ended."""
        with self._lock:
            if self._ended:
                return False
            self._commands.append(command)
            if len(self._commands) == 1:  # else the thread is about to take this one with those before it
                os.write(self._wake, b"\0")
        return True

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 65536)
        while self._commands:
            self._commands.popleft()()

    def _begin_to_stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        # Workers inherit this, so that what reaches the whole group cannot end one that does not ignore it yet.
        signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_DRIVER)
        reason = "the backend was stopped"
        try:
            while not self._stopping:
                self._wait(min(slot.deadline for slot in self._slots))
                for slot in self._slots:
                    slot.expire()
        except BaseException as error:
            reason = f"the backend's own thread failed with {type(error).__name__}: {error}"
            raise
        finally:
            self._end(reason)

    def _wait(self, until: float) -> None:
        """Handle what happens next, or return at that time of the monotonic clock."""
        timeout = None if until == NEVER else max(0.0, until - time.monotonic())
        for key, mask in self._selector.select(timeout):
            key.data(mask)

    def _end(self, reason: str) -> None:
        """End the processes: idle ones by closing their channels, busy ones by force after a grace."""
        with self._lock:
            self._ended = True
        for slot in self._slots:
            slot.close(reason)
        self._obey()
        deadline = time.monotonic() + GRACE
        while self._alive() and time.monotonic() < deadline:
            self._wait(deadline)
        for slot in self._alive():
            slot.kill()
        while self._alive():
            self._wait(NEVER)
        self._selector.close()
        os.close(self._woken)
        os.close(self._wake)

    def _alive(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.process is not None]
