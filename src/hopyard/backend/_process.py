"""One worker's process as the driver sees it: starting it, its descriptors, and how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from hopyard.backend._channel import Channel, MessageKind, dumps
from hopyard.backend.output import LineSplitter, Outlet, kept_lines
from hopyard.worker_start import import_path, start_worker, take_spare

PIPE_CAPACITY = 1024 * 1024  # what an unprivileged process can have written to a pipe at once

HINTS = {
    signal.SIGKILL: "SIGKILL often comes from the kernel's out-of-memory killer: use fewer workers, smaller "
    "batches or a machine with more memory.",
    signal.SIGTERM: "SIGTERM comes from outside: another program or the machine's shutdown ended it.",
    signal.SIGSEGV: "SIGSEGV is a crash in native code, often of mismatched packages; the Python stack is "
    "in its last lines.",
    signal.SIGABRT: "SIGABRT is native code that gave up; its reason is in the last lines.",
    signal.SIGBUS: "SIGBUS often means that a mapped file was truncated, or that /dev/shm is full.",
}


@dataclass(frozen=True)
class LaunchSettings:
    """Settings that a worker's process is started with.

    Attributes:
        env: environment variables, over those of this process.
        paths: entries of the worker's import path after this process's own.
        log_level: of its root logger; None: as this process's is at that moment.
        prefix: gives what its command is started through, as in ``surroundings.Surroundings``.
        called: what messages call it, before its number.
    """

    env: Mapping[str, str]
    paths: tuple[str, ...] = ()
    log_level: int | None = None
    prefix: bytes = b""
    called: str = "worker"


class OutputPipe:
    """A worker's stdout or stderr: a pipe, read without blocking, split into lines."""

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        self.name = name
        self.pipe = pipe
        self.open = True
        self._splitter = LineSplitter()
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> Iterator[tuple[str, str]]:
        """The (tag, line) pairs that are complete after reading all bytes there are."""
        total = 0
        while self.open and total <= PIPE_CAPACITY:
            try:
                data = os.read(self.pipe.fileno(), 65536)
            except BlockingIOError:
                return
            self.open = bool(data)
            total += len(data)
            yield from self._splitter.feed(data)

    def end_task(self) -> Iterator[tuple[str, str]]:
        """Lines that the task left, and a last one without newline. The task's tag ends with them."""
        yield from self.read()
        yield from self._splitter.finish()
        self._splitter.tag = ""


class WorkerProcess:
    """A started worker. Only the backend's thread uses it.

    That thread also starts it, because Linux kills the worker when the *thread* that started it ends.

    Attributes:
        pid: the worker's process, once it is up; before, and mostly then, the one that was started. The worker is a
            child of that where its prefix is a program that watches over it, such as bubblewrap.
    """

    def __init__(self, number: int, launch: LaunchSettings, outlet: Outlet) -> None:
        self.number = number
        self.lines = kept_lines()
        self._outlet = outlet
        self.popen, ours = _started(launch)
        self.pid = self.popen.pid
        ours.setblocking(False)
        self.channel = Channel(ours)
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        self.streams = [OutputPipe("stdout", self.popen.stdout), OutputPipe("stderr", self.popen.stderr)]
        self.exit_descriptor = _exit_descriptor(self.popen.pid)
        # Read when the worker is up; the pipe holds it until then.
        with contextlib.suppress(OSError):  # it is dead already, which its exit will report
            if launch.prefix:
                self.channel.send(MessageKind.PREFIX, [launch.prefix])
            level = logging.getLogger().level if launch.log_level is None else launch.log_level
            hello = {"log_level": level, "env": dict(launch.env)}
            self.channel.send(MessageKind.HELLO, dumps(hello, copy=True))

    def show(self, stream: OutputPipe, *, end_of_task: bool = False) -> None:
        """Pass on the lines that the stream has, and remember them for evidence."""
        for tag, line in stream.end_task() if end_of_task else stream.read():
            self.lines.append(line)
            self._outlet.emit(self.number, stream.name, tag, line)

    def show_all(self) -> None:
        """Everything that the worker wrote up to now."""
        for stream in self.streams:
            self.show(stream, end_of_task=True)

    @property
    def exit_code(self) -> int:
        """How it ended, as ``subprocess`` says it. A program that watches over it says signals as shells do."""
        code: int = self.popen.returncode
        return 128 - code if self.pid != self.popen.pid and code > 128 else code

    def close(self) -> None:
        """Reap the process, which has ended, and close everything that belongs to it."""
        self.popen.wait()
        self.channel.close()
        for stream in self.streams:
            stream.pipe.close()
        if self.exit_descriptor is not None:
            os.close(self.exit_descriptor)

    def last_words(self) -> str:
        """The last lines it printed, for messages."""
        if not self.lines:
            return "It printed nothing."
        return "Its last lines:\n  " + "\n  ".join(self.lines)


def _started(launch: LaunchSettings) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and this end of its channel."""
    paths = import_path()
    paths += [path for path in launch.paths if path not in paths]
    env = {**os.environ, **launch.env}
    if not launch.prefix and (spare := take_spare(env, paths)) is not None:
        return spare.popen, spare.sock
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as on_error:
        on_error.callback(ours.close)
        with theirs:
            popen = start_worker(theirs.fileno(), env, paths)
        on_error.pop_all()
    return popen, ours


def _exit_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is no such thing,
    and the end of the channel has to tell."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def how_it_ended(code: int) -> str:
    """An exit code as part of a sentence, with a hint where there is one."""
    if code >= 0:
        return f"ended by itself with exit code {code} (something called os._exit or exit of C)"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    hint = HINTS.get(name)
    return f"was killed by {name.name}" + (f" ({hint})" if hint else "")
