"""A wire between clients and an HTTP server, with latency, a bandwidth and faults: a process of its own.

Faults are drawn for each request by the seed, its method, its target and how often that was asked for before, so that
the same requests meet the same faults in whatever order they come.

========  ==========================================================================
refused   the connection ends before the server hears of the request
lost      the server acts, and the connection ends without an answer
half      the connection ends in the middle of the answer
reset     the connection is reset behind some bytes of the answer, at any place of it
twice     the server gets the request twice, and the second answer comes back
503       the answer is "slow down", and the server hears nothing
========  ==========================================================================

Besides, a server may be gone for a while: the connection of every request is reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

FAULTS = ("refused", "lost", "half", "reset", "twice", "503")
_STATE = "/-/wire"  # where the wire itself answers
_PIECE = 1 << 18  # bytes
_REFUSALS = {  # as AWS words them
    "ExpiredToken": ("400 Bad Request", "The provided token has expired."),
    "RequestTimeTooSkewed": (
        "403 Forbidden", "The difference between the request time and the current time is too large."
    ),
    "AuthorizationHeaderMalformed": (
        "400 Bad Request",
        "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'",
    ),
    "PermanentRedirect": (
        "301 Moved Permanently",
        "The bucket you are attempting to access must be addressed using the specified endpoint.",
    ),
    "SlowDown": ("503 Slow Down", "Please reduce your request rate."),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of a wire.

    Attributes:
        server: URL of the server.
        latency: seconds from a request's end to the first byte that the server hears of it.
        bandwidth: bytes per second of all answers together, and of all requests together; 0: any.
        share: of the requests that meet a fault; of ``faults``, with this ``seed``.
        refusal: the code of the answer to the requests with the numbers [first, last) of ``refused``, which the
            server does not hear of.
        gone: the number of the request with which the server is gone, and seconds until it is back.
        jitter: seconds that the latency is longer at most, drawn for each request.
    """

    server: str
    latency: float = 0.0
    bandwidth: float = 0.0
    share: float = 0.0
    faults: Sequence[str] = FAULTS
    seed: int = 0
    refusal: str = "SlowDown"
    refused: Sequence[int] = (0, 0)
    gone: tuple[int, float] = (0, 0.0)
    jitter: float = 0.0


@dataclass(frozen=True)
class Passed:
    """Requests that passed a wire, bytes of answers, and the faults that they met: ``"lost GET /b/k"``..."""

    requests: int
    received: int
    faults: list[str] = field(default_factory=list)


class SlowWire:
    """A running wire: clients speak to ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url

    def passed(self) -> Passed:
        with urlopen(self.url + _STATE) as answer:
            return Passed(**json.load(answer))


@contextlib.contextmanager
def slow_wire(settings: Settings) -> Iterator[SlowWire]:
    """A wire with these settings, until the context is left."""
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(settings))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield SlowWire(process.stdout.readline().strip())
        finally:
            process.stdin.close()
            process.wait()


class _Line:
    """One direction: bytes of all connections pass one after another."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth, self._free_at = bandwidth, 0.0

    async def carry(self, size: int) -> None:
        if self._bandwidth:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._bandwidth
            wait = self._free_at - time.monotonic()
            if wait > 0.001:
                await asyncio.sleep(wait)


class _Relay:
    def __init__(self, settings: Settings) -> None:
        place = urlsplit(settings.server)
        self._host, self._port = str(place.hostname), place.port or 80
        self._settings = settings
        self._up, self._down = _Line(settings.bandwidth), _Line(settings.bandwidth)
        self._asked: Counter[bytes] = Counter()
        self._requests = self._received = 0
        self._faults: list[str] = []
        self._gone_until = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await _head(reader)
                if head.split(b" ", 2)[1].decode() == _STATE:
                    state = asdict(Passed(self._requests, self._received, self._faults))
                    writer.write(_answer("200 OK", json.dumps(state).encode()))
                    continue
                if _fields(head).get(b"expect") == b"100-continue":  # the client waits for it
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, flags=re.IGNORECASE)
                body = await _body(reader, head)
                self._requests += 1
                await self._up.carry(len(head) + len(body))
                key = self._key(head)
                await asyncio.sleep(
                    self._settings.latency + self._settings.jitter * _drawn("late", key, 1000) / 1000
                )
                if self._is_gone():
                    _reset(writer)
                    break
                first, last = self._settings.refused
                if first <= self._requests < last:
                    writer.write(_refusal(self._settings.refusal, head))
                    continue
                fault = self._fault(head, key)
                if fault == "refused":
                    break
                if fault == "503":
                    writer.write(_refusal("SlowDown", head))
                    continue
                if server is None or server[1].is_closing() or server[0].at_eof():
                    server = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
                for _ in range(2 if fault == "twice" else 1):
                    server[1].write(head + body)
                    await server[1].drain()
                    answer = await _head(server[0])
                    is_last = fault != "twice" or _ == 1
                    await self._answer(server[0], writer, key, head, answer, fault, is_last)
                if fault == "reset":
                    _reset(writer)
                if fault in ("lost", "half", "reset"):
                    break
        for end in (writer, server[1] if server else None):
            if end is not None:
                with contextlib.suppress(ConnectionError):
                    end.close()

    async def _answer(
        self,
        server: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        key: str,
        request: bytes,
        head: bytes,
        fault: str,
        is_last: bool,
    ) -> None:
        silent = fault == "lost" or not is_last
        status = head.split(b" ", 2)[1]
        fields = _fields(head)
        bare = request.startswith(b"HEAD ") or status in (b"204", b"304") or status.startswith(b"1")
        size = 0 if bare else int(fields.get(b"content-length", b"0"))
        if fields.get(b"transfer-encoding") == b"chunked" and not bare:
            chunks = await _chunked(server)
            if not silent:
                client.write(head + chunks)
            return
        if not silent:
            client.write(head)
        passing = 0 if silent else size
        if fault in ("half", "reset"):
            passing -= size // 2 if fault == "half" else _drawn("reset", key, size)
        left = size
        while left:
            data = await server.read(min(left, _PIECE))
            if not data:
                raise ConnectionResetError
            left -= len(data)
            data = data[:passing]
            passing -= len(data)
            if data:
                self._received += len(data)
                await self._down.carry(len(data))
                client.write(data)
                await client.drain()

    def _is_gone(self) -> bool:
        number, seconds = self._settings.gone
        if seconds and self._requests >= number and not self._gone_until:
            self._gone_until = time.monotonic() + seconds
            self._faults.append(f"gone for {seconds} s")
        return time.monotonic() < self._gone_until

    def _key(self, head: bytes) -> str:
        """What a request's faults are drawn by: the seed, the request, and how often it was asked for."""
        told = _told(head)
        self._asked[told] += 1
        return f"{self._settings.seed} {told!r} {self._asked[told]}"

    def _fault(self, head: bytes, key: str) -> str:
        drawn = _drawn("", key, 1 << 63)
        if drawn % 1_000_000 >= self._settings.share * 1_000_000:
            return ""
        fault = self._settings.faults[drawn // 1_000_000 % len(self._settings.faults)]
        self._faults.append(f"{fault} {_told(head).decode(errors='replace').strip()}")
        return fault


def _told(head: bytes) -> bytes:
    """Method, target and range of a request."""
    return head.split(b"\r\n", 1)[0].rsplit(b" ", 1)[0] + b" " + _fields(head).get(b"range", b"")


def _drawn(what: str, key: str, below: int) -> int:
    """A number from 0, below ``below`` (0: it is 0)."""
    digest = hashlib.blake2b(f"{what}{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % max(below, 1)


def _reset(client: asyncio.StreamWriter) -> None:
    """End a connection as a machine does that knows nothing of it."""
    client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


async def _head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    fields = _fields(head)
    if fields.get(b"transfer-encoding") == b"chunked":
        return await _chunked(reader)
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts += [line, await reader.readexactly(size + 2)]
        if not size:
            return b"".join(parts)


def _answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _refusal(code: str, request: bytes) -> bytes:
    status, message = _REFUSALS[code]
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return _answer(status, b"" if request.startswith(b"HEAD ") else body.encode())


async def _main(settings: Settings) -> None:
    relay = _Relay(settings)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=1 << 20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent is gone
    os._exit(0)  # connections need no farewell


if __name__ == "__main__":
    asyncio.run(_main(Settings(**json.loads(sys.argv[1]))))
