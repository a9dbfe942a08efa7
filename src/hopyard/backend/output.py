"""Output of tasks: tags and last lines for tasks, lines and printing for the driver.

Workers' file descriptors 1 and 2 are pipes to the driver, so that what C code writes arrives too.
A tag travels inside both pipes, between NUL bytes, and so never overtakes or trails a line.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

Listener: TypeAlias = Callable[[int, str, str], None]

KEPT_LINES = 50
LONGEST_LINE = 64 * 1024  # bytes without a newline that are shown as a line anyway
# What TensorFlow tells of itself on stderr whenever it starts; no setting of its own keeps all of it from being said.
_GREETING = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|I0000 .*(port\.cc:\d+\] oneDNN custom operations are on|cpu_feature_guard\.cc:\d+\])"
    r"|To enable the following instructions: .* rebuild TensorFlow"
)
TAG_START, TAG_END = b"\0hopyard-tag:", b"\0"

logger: logging.Logger = logging.getLogger(__name__)


class Connection(Protocol):
    """Connection of a worker's process to its driver, as the functions of this module use it."""

    def set_tag(self, tag: str) -> None: ...
    def last_lines(self) -> list[str]: ...


_connection: Connection | None = None


def attach(connection: Connection | None) -> None:
    """Called once by a worker's main function."""
    global _connection
    _connection = connection


def set_tag(tag: str) -> None:
    """Mark the running task's further output: ``[trial 3 · worker 1] text`` after
    ``set_tag("trial 3")``. It ends with the task. Outside of a worker nothing happens."""
    if _connection is not None:
        _connection.set_tag(tag)


def last_lines() -> list[str]:
    """The last lines (at most 50, without tags) that the running task printed or logged, also from
    C code. Empty outside of a worker, and in threads other than the task's own."""
    return [] if _connection is None else _connection.last_lines()


def tag_marker(tag: str) -> bytes:
    """The bytes that stand for a change of tag in a worker's output."""
    return TAG_START + tag.replace("\0", " ").replace("\n", " ").encode() + TAG_END


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class LineSplitter:
    """Bytes of one stream in, lines out, as a terminal would show them in the end."""

    def __init__(self) -> None:
        self.tag: str = ""
        self._partial = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """The (tag, line) pairs that ``data`` completes."""
        data = self._partial + data
        self._partial = b""
        while (start := data.find(TAG_START)) >= 0 and (end := data.find(TAG_END, start + 1)) >= 0:
            yield from self._lines(data[:start])
            yield from self.finish()
            self.tag = data[start + len(TAG_START) : end].decode(errors="replace")
            data = data[end + 1 :]
        yield from self._lines(data)

    def finish(self) -> Iterator[tuple[str, str]]:
        """The unfinished line, if any."""
        if self._partial:
            yield self.tag, _shown(self._partial)
            self._partial = b""

    def _lines(self, data: bytes) -> Iterator[tuple[str, str]]:
        *lines, self._partial = data.split(b"\n")
        for line in lines:
            yield self.tag, _shown(line)
        if len(self._partial) > LONGEST_LINE:
            yield from self.finish()


def _shown(line: bytes) -> str:
    """A progress bar rewrites its line with carriage returns: the last state is what counts."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


class Outlet:
    """Outlet for the lines of all workers: a listener, or the driver's own streams."""

    def __init__(self) -> None:
        self.listener: Listener | None = None

    def emit(self, worker: int, stream: str, tag: str, line: str) -> None:
        if stream == "stderr" and _GREETING.match(line):
            return  # several from every worker, and nothing to do about them
        where = f"{tag} · worker {worker}" if tag else f"worker {worker}"
        text = f"[{where}] {line}"
        try:
            if self.listener is not None:
                self.listener(worker, stream, text)
            else:
                target = sys.stdout if stream == "stdout" else sys.stderr
                if target is not None:
                    target.write(text + "\n")
                    target.flush()
        except Exception:  # a closed stdout or a faulty listener must not stop the workers' training
            logger.exception("a line of worker %d could not be shown: %s", worker, line)


def kept_lines() -> deque[str]:
    """An empty memory of the last lines."""
    return deque(maxlen=KEPT_LINES)
