"""One worker's place: a process while there is one, the task it runs, and the tasks that wait for it.

    absent --work arrives--> starting --READY--> idle <--answer / task--> busy
      ^------------------------- the process ends, in any state ------------'

Only the backend's thread calls these methods.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import time
from collections import deque
from concurrent.futures import Future

from hopyard.backend._channel import MessageKind, MessagePart
from hopyard.backend._process import LaunchSettings, OutputPipe, WorkerProcess, how_it_ended
from hopyard.backend._task import Task
from hopyard.backend.output import Outlet
from hopyard.errors import UnitTimeoutError, WorkerError, WorkerLostError, WorkerMismatchError
from hopyard.wording import beginning

NEVER = float("inf")


class _AbandonedError(WorkerLostError):
    """The worker was ended by its own backend."""


class Slot:
    """A numbered worker that is replaced by a fresh one whenever it dies and there is work."""

    def __init__(
        self,
        number: int,
        launch: LaunchSettings,
        unit_timeout: float | None,
        outlet: Outlet,
        selector: selectors.BaseSelector,
    ) -> None:
        self.deadline = NEVER
        self.process: WorkerProcess | None = None
        self._number = number
        self._launch = launch
        self._unit_timeout = unit_timeout
        self._outlet = outlet
        self._selector = selector
        self._ready = False
        self._task: Task | None = None
        self._waiting: deque[Task] = deque()
        self._starts: list[Future[None]] = []
        self._verdict: WorkerError | None = None  # why we ended the process, if it was us
        self._killed = False  # whether it did not end by itself
        self._closed: str | None = None  # why there is no more work

    def add(self, task: Task) -> None:
        """Queue a task."""
        self._waiting.append(task)
        self._advance()

    def start(self, answer: Future[None]) -> None:
        """Set ``answer`` once the worker is up."""
        if self._ready:
            answer.set_result(None)
            return
        self._starts.append(answer)
        self._advance()

    def expire(self) -> None:
        """Kill the worker if its task has had its time."""
        if self.process is None or time.monotonic() < self.deadline:
            return
        self.deadline = NEVER
        assert self._task is not None
        self.kill(
            UnitTimeoutError(
                f"The task {self._task.label!r} took longer than unit_timeout={self._unit_timeout:g} "
                f"seconds on {self._place()}, which was killed. If it needs that long, give the "
                "backend a larger unit_timeout, or None for no limit."
            )
        )

    def kill(self, verdict: WorkerError | None = None) -> None:
        """End the process now; its task gets ``verdict``."""
        if self.process is not None:
            self._verdict, self._killed = self._verdict or verdict, True
            self._end_process(self.process)

    def _end_process(self, process: WorkerProcess) -> None:
        process.popen.kill()
        if process.exit_descriptor is None:
            self._on_exit(process, 0)

    def close(self, reason: str) -> None:
        """Take no more work and tell the process to exit; a task under way is abandoned."""
        self._closed = reason
        self._advance()
        if self.process is not None:
            self._verdict = _AbandonedError(
                f"{self._place()} was ended in the middle of a task, because {reason}; submit the task again."
            )
            with contextlib.suppress(OSError):  # it is gone
                self.process.channel.sock.shutdown(socket.SHUT_WR)

    def _place(self) -> str:
        assert self.process is not None
        return f"{self._name()} (pid {self.process.pid})"

    def _name(self) -> str:
        """What messages call this worker: an agent's has the numbers of its tasks."""
        task = self._task or (self._waiting[0] if self._waiting else None)
        number = self._number if task is None or task.worker is None else task.worker
        return f"{self._launch.called} {number}"

    def _advance(self) -> None:
        """Do what can be done next: refuse, start a process, or start a task."""
        if self._closed is not None:
            while self._waiting:
                self._waiting.popleft().cancel()
            self._answer_starts(
                WorkerLostError(f"{beginning(self._name())} was not started: {self._closed}.")
            )
        while self.process is None and (self._waiting or self._starts):
            self._start_process()
        while self._ready and self._task is None and self._waiting:
            self._dispatch(self._waiting.popleft())

    def _start_process(self) -> None:
        try:
            self.process = process = WorkerProcess(self._number, self._launch, self._outlet)
        except OSError as error:
            message = f"{beginning(self._name())} could not be started: {error}. Every worker is a process of its own; "
            message += "see the limits on processes, open files and memory, or use fewer workers."
            self._fail_to_start(WorkerLostError(message))
            return
        self._watch(process.channel.sock, functools.partial(self._on_channel, process))
        with contextlib.suppress(OSError):  # as it may be when the process says hello
            if not process.channel.flush():
                self._listen(process, selectors.EVENT_READ | selectors.EVENT_WRITE)
        for stream in process.streams:
            self._watch(stream.pipe, functools.partial(self._on_output, process, stream))
        if process.exit_descriptor is not None:
            self._watch(process.exit_descriptor, functools.partial(self._on_exit, process))

    def _watch(self, source: object, handler: functools.partial[None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, handler)  # type: ignore[arg-type]

    def _dispatch(self, task: Task) -> None:
        if not task.begin():
            return
        assert self.process is not None
        self._task = task
        self.process.lines.clear()
        if self._unit_timeout is not None:
            self.deadline = time.monotonic() + self._unit_timeout
        self._send(self.process, MessageKind.TASK, task.parts)

    def _send(self, process: WorkerProcess, kind: MessageKind, parts: list[MessagePart]) -> None:
        try:
            everything_sent = process.channel.send(kind, parts)
        except OSError:
            return  # it is dead, which its exit will report
        if not everything_sent:
            self._listen(process, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _listen(self, process: WorkerProcess, events: int) -> None:
        sock = process.channel.sock
        self._selector.modify(sock, events, self._selector.get_key(sock).data)

    def _on_channel(self, process: WorkerProcess, mask: int) -> None:
        if process is not self.process:
            return  # it ended a moment ago
        try:
            if mask & selectors.EVENT_WRITE and process.channel.flush():
                self._listen(process, selectors.EVENT_READ)
            message = process.channel.receive() if mask & selectors.EVENT_READ else None
        except (EOFError, OSError):
            self._selector.unregister(process.channel.sock)
            self._end_process(process)  # without a channel it is of no use; mostly it is ending anyway
            return
        if message is not None:
            self._on_message(process, *message)

    def _on_message(self, process: WorkerProcess, kind: MessageKind, parts: list[MessagePart]) -> None:
        if kind is MessageKind.READY:
            self._ready, process.pid = True, int(bytes(parts[0]))
            self._answer_starts(None)
            self._advance()
        elif kind is MessageKind.LINES:
            for stream in process.streams:
                process.show(stream)
            self._send(process, MessageKind.LINES, ["\n".join(process.lines).encode()])
        elif kind is MessageKind.REFUSED:
            self._verdict = self._refusal(bytes(parts[0]).decode())
        else:
            self._settle(process, kind, parts)

    def _refusal(self, reason: str) -> WorkerMismatchError:
        return WorkerMismatchError(
            f"{beginning(self._name())} cannot be started on {socket.gethostname()}: {reason}"
        )

    def _settle(self, process: WorkerProcess, kind: MessageKind, parts: list[MessagePart]) -> None:
        """The task has answered: its output first, then the next task, then its future."""
        place = self._place()
        task, self._task = self._task, None
        assert task is not None
        self.deadline = NEVER
        process.show_all()
        self._advance()
        if kind is MessageKind.DONE:
            task.succeed(parts)
        else:
            task.fail(parts, place)

    def _on_output(self, process: WorkerProcess, stream: OutputPipe, mask: int) -> None:
        if process is not self.process:
            return
        process.show(stream)
        if not stream.open:
            self._selector.unregister(stream.pipe)

    def _on_exit(self, process: WorkerProcess, mask: int) -> None:
        """The process has ended. What it sent before is still believed."""
        if process is not self.process:
            return
        was_ready, self._ready = self._ready, False
        self._read_last_answer(process)
        process.show_all()
        for source in (process.channel.sock, *(s.pipe for s in process.streams), process.exit_descriptor):
            if source is not None and source in self._selector.get_map():
                self._selector.unregister(source)
        process.close()
        place = f"{beginning(self._place())} {how_it_ended(process.exit_code)}"
        self.process, self.deadline = None, NEVER
        task, self._task = self._task, None
        verdict, self._verdict = self._verdict, None
        was_killed, self._killed = self._killed, False
        if isinstance(verdict, _AbandonedError) and not was_killed and process.exit_code != 0:
            verdict = None  # it has died by itself at the same time
        if task is not None:
            lost = f"{place} while it ran the task {task.label!r}. {process.last_words()}"
            task.future.set_exception(verdict or WorkerLostError(lost))
        elif not was_ready:
            self._fail_to_start(
                verdict or WorkerLostError(f"{place} before it was up. {process.last_words()}")
            )
        self._advance()

    def _read_last_answer(self, process: WorkerProcess) -> None:
        try:
            message = process.channel.receive()
        except (EOFError, OSError):
            return
        if message is not None and message[0] in (MessageKind.DONE, MessageKind.FAILED, MessageKind.REFUSED):
            self._on_message(process, *message)

    def _fail_to_start(self, error: WorkerError) -> None:
        """Tell the callers that asked for a start, and the first task, of the failure; the next task tries again.

        A machine on which the worker cannot be started fails all tasks that wait, since none would fare better.
        """
        self._answer_starts(error)
        failing = len(self._waiting) if isinstance(error, WorkerMismatchError) else min(1, len(self._waiting))
        for task in [self._waiting.popleft() for _ in range(failing)]:
            if task.begin():
                task.future.set_exception(error)

    def _answer_starts(self, error: WorkerError | None) -> None:
        starts, self._starts = self._starts, []
        for answer in starts:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)
