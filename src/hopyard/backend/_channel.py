"""Messages between a driver and one worker: a kind and one or more byte strings, over a socket.

A message is a header (kind, number of parts, bytes of the first part), the sizes of the other
parts, and the parts. Objects travel by cloudpickle, protocol 5: the first part is the pickle, the
others are its large buffers, which are received straight into the memory that arrays then use.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections import deque
from collections.abc import Generator, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, TypeAlias

from hopyard.objects import pickles

MessagePart: TypeAlias = bytes | bytearray | memoryview

HEADER = struct.Struct("<IIQ")
OUT_OF_BAND = 64 * 1024  # smaller buffers are cheaper inside the pickle
MAX_PARTS_PER_CALL = 64  # far below the kernel's limit of 1,024 buffers for one sendmsg


class MessageKind(IntEnum):
    """Kind of a message. The direction is in brackets."""

    HELLO = 1  # [to the worker] a pickled dict of settings
    READY = 2  # [to the driver] the worker has read them; its process id
    TASK = 3  # [to the worker] pickled (fn, args)
    DONE = 4  # [to the driver] the pickled result
    FAILED = 5  # [to the driver] the traceback as text, one pickled part for the exception
    LINES = 6  # [both] ask for the last lines of output; the answer, joined by newlines
    PREFIX = 7  # [to the worker] before HELLO: a pickled ``surroundings.Prefix`` to start again through
    REFUSED = 8  # [to the driver] why the worker could not; its process ends


def dumps(value: Any, *, copy: bool) -> list[MessagePart]:
    """``value`` as parts of a message.

    With ``copy`` the parts are the caller's to keep: later changes of the arrays in ``value`` do not
    reach them. Without, large buffers are views of those arrays.
    """
    buffers: list[MessagePart] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND:
            return True
        buffers.append(view.tobytes() if copy else view)
        return False

    return [pickles.dumps(value, keep), *buffers]


def loads(parts: Sequence[MessagePart]) -> Any:
    """The value that ``dumps`` made these parts of; its arrays share the parts' memory."""
    return pickle.loads(parts[0], buffers=parts[1:])


class Channel:
    """One end of the connection. With a non-blocking socket, ``send`` keeps what does not fit."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._backlog: deque[memoryview] = deque()
        self._decoder = _decode()
        self._wanted = self._next_wanted()

    def _next_wanted(self) -> memoryview:
        wanted = next(self._decoder)
        assert isinstance(wanted, memoryview)
        return wanted

    def send(self, kind: MessageKind, parts: Sequence[MessagePart]) -> bool:
        """Queue a message and send what the socket takes; True when nothing is left to send."""
        sizes = [len(part) for part in parts]
        header = HEADER.pack(kind, len(parts), sizes[0]) + struct.pack(f"<{len(sizes) - 1}Q", *sizes[1:])
        self._backlog.extend(memoryview(part) for part in (header, *parts) if len(part))
        return self.flush()

    def flush(self) -> bool:
        """Send more of what is queued; True when nothing is left."""
        while self._backlog:
            try:
                sent = self.sock.sendmsg(list(islice(self._backlog, MAX_PARTS_PER_CALL)))
            except BlockingIOError:
                return False
            while sent:
                first = self._backlog.popleft()
                if sent < len(first):
                    self._backlog.appendleft(first[sent:])
                    break
                sent -= len(first)
        return True

    def receive(self) -> tuple[MessageKind, list[MessagePart]] | None:
        """The next message, or None if it has not arrived completely (non-blocking sockets only).

        Raises:
            EOFError: the other end is closed.
        """
        while True:
            try:
                count = self.sock.recv_into(self._wanted)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                count = 0
            if count == 0:
                raise EOFError("the other end of the channel is closed")
            self._wanted = self._wanted[count:]
            if len(self._wanted):
                continue
            event = next(self._decoder)
            if isinstance(event, tuple):
                self._wanted = self._next_wanted()
                return event
            self._wanted = event

    def close(self) -> None:
        self.sock.close()


def _decode() -> Generator[memoryview | tuple[MessageKind, list[MessagePart]], None, None]:
    """Yields the memory to be filled next, and each message once all of it is filled."""
    while True:
        header = bytearray(HEADER.size)
        yield memoryview(header)
        kind, count, size = HEADER.unpack(header)
        rest = bytearray(8 * (count - 1))
        if rest:
            yield memoryview(rest)
        parts = [bytearray(length) for length in (size, *struct.unpack(f"<{count - 1}Q", rest))]
        for part in parts:
            if part:
                yield memoryview(part)
        yield MessageKind(kind), list(parts)
        del parts, part  # the next message may be long in coming: do not keep the memory of this one
