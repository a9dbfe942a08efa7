"""The main function of a local worker's process: receive a task, run it, send its result.

The main thread waits for tasks and runs them. A second thread sleeps until the driver's end of the
channel closes, which happens however the driver dies, and then ends the process in the middle of
any task; should the task hold the interpreter at that moment, the kernel does it (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn, TextIO

import cloudpickle

from hopyard.backend import output
from hopyard.backend._channel import Channel, MessageKind, MessagePart, dumps, loads
from hopyard.backend.base import without_exit
from hopyard.backend.surroundings import checked_words
from hopyard.errors import HopyardError
from hopyard.worker_start import LEFT_TO_THE_DRIVER

PR_SET_PDEATHSIG = 1
LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"


def main(descriptor: int, modules: Sequence[str] = ()) -> None:
    """Serve the driver at the other end of the socket ``descriptor`` until it goes away.

    Args:
        modules: imported before; those that cannot be imported are left out.
    """
    os.set_inheritable(descriptor, False)
    libc = ctypes.CDLL(None)
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _leave_to_the_driver()
    faulthandler.enable()
    channel = Channel(socket.socket(fileno=descriptor))
    threading.Thread(target=_exit_with_driver, args=(descriptor,), daemon=True).start()
    for module in modules:
        with contextlib.suppress(Exception):  # whoever needs it will hear of it
            importlib.import_module(module)
    try:
        _serve(channel, libc)
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _leave_to_the_driver() -> None:
    """Outlive signals that reach the whole group of processes: the driver decides, and with it this one ends."""
    own = os.getpid()

    def outlive(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not ignored, as programs that a task starts would, and torch's DataLoader ends its processes with SIGTERM.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, outlive)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_DRIVER)


def _exit_with_driver(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))  # POLLHUP and POLLERR are always reported
    poll.poll()
    os._exit(0)


def _serve(channel: Channel, libc: ctypes.CDLL) -> None:
    kind, parts = _receive(channel)
    if kind is MessageKind.PREFIX:
        _start_through(channel, parts)
        _, parts = _receive(channel)
    settings = loads(parts)
    os.environ.update(settings["env"])  # its GPUs, if it was started before they were known
    for stream in (sys.stdout, sys.stderr):
        assert hasattr(stream, "reconfigure")
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    logging.basicConfig(level=settings["log_level"], format=LOG_FORMAT, stream=sys.stderr)
    server = _Server(channel, libc)
    output.attach(server)
    channel.send(MessageKind.READY, [str(os.getpid()).encode()])
    while True:
        server.serve_one()


def _start_through(channel: Channel, parts: Sequence[MessagePart]) -> None:
    """Start this program again in this process, through the prefix of the message. Returns if the prefix is empty.

    Where that fails, the driver is told why, and the process ends.
    """
    try:
        words = checked_words(loads(parts)())
        if not words:
            return
        os.set_inheritable(channel.sock.fileno(), True)
        # Until the worker leaves them to the driver again; a program that watches over it goes on to block them.
        signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_DRIVER)
        _flush()
        os.execvp(words[0], [*words, sys.executable, *sys.orig_argv[1:]])
    except BaseException as error:
        is_explained = isinstance(error, HopyardError)
        reason = str(error) if is_explained else "".join(traceback.format_exception(error)).rstrip()
        channel.send(MessageKind.REFUSED, [reason.encode(errors="replace")])
        _flush()
        os._exit(0)


def _flush() -> None:
    """Flush the streams of Python."""
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # the task may have closed it
                stream.flush()


def _receive(channel: Channel) -> tuple[MessageKind, list[MessagePart]]:
    message = channel.receive()
    assert message is not None, "the worker's socket is blocking"
    return message


class _Server:
    """Runs tasks, and answers what they ask about their output."""

    def __init__(self, channel: Channel, libc: ctypes.CDLL) -> None:
        self._channel = channel
        self._libc = libc
        self._running = False
        self._pid = os.getpid()

    def serve_one(self) -> None:
        """Wait for one task, run it, answer. Nothing of the task outlives the call."""
        _, parts = _receive(self._channel)
        self._running = True
        kind, answer = _run(parts)
        self._running = False
        self._flush()
        if os.getpid() != self._pid:
            self._leave(kind, answer)
        self._channel.send(kind, answer)

    def _leave(self, kind: MessageKind, answer: list[MessagePart]) -> NoReturn:
        """End a process that the task forked and let return: the worker itself serves and answers."""
        if kind is MessageKind.FAILED:
            output.write_all(2, bytes(answer[1]))
        os._exit(int(kind is MessageKind.FAILED))

    def set_tag(self, tag: str) -> None:
        self._flush()
        for descriptor in (1, 2):
            output.write_all(descriptor, output.tag_marker(tag))

    def last_lines(self) -> list[str]:
        if not self._running or threading.current_thread() is not threading.main_thread():
            return []
        if os.getpid() != self._pid:
            return []  # a process that the task forked has no say on the channel
        self._flush()
        self._channel.send(MessageKind.LINES, [b""])
        _, (text,) = _receive(self._channel)
        return bytes(text).decode().split("\n") if text else []

    def _flush(self) -> None:
        """Flush the task's output into the pipes before the driver hears that the task is done."""
        _flush()
        self._libc.fflush(None)


def _run(parts: Sequence[MessagePart]) -> tuple[MessageKind, list[MessagePart]]:
    try:
        fn, args = loads(parts)
        return MessageKind.DONE, dumps(fn(*args), copy=False)
    except BaseException as error:
        return MessageKind.FAILED, _failure(error)


def _failure(error: BaseException) -> list[MessagePart]:
    """Summary, traceback, and the exception itself if it can be pickled."""
    own_frame = error.__traceback__
    lines = traceback.format_exception(type(error), error, own_frame and own_frame.tb_next)
    error = without_exit(error)
    summary = "".join(traceback.format_exception_only(error)).rstrip()  # copes with a broken __str__
    try:
        pickled = cloudpickle.dumps(error.with_traceback(None), protocol=5)
    except Exception:
        pickled = b""
    return [summary.encode(errors="replace"), "".join(lines).encode(errors="replace"), pickled]
