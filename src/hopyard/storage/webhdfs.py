"""HDFS over HTTP: a client of WebHDFS, as name nodes and gateways speak it, with the methods of hdfs-native's client.

A name node answers what it knows itself, and sends for bytes to the web server of a data node. A gateway (HttpFS)
answers everything itself, under the same paths, but does not know how a file is renamed over another.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import select
import socket
import ssl
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from hopyard.storage.base import Buffer
from hopyard.storage.hdfserrors import NO_REPLACING, NO_WEBHDFS, TOKEN, WEB_SCHEMES

T = TypeVar("T")

_PORTS = dict(zip(WEB_SCHEMES, (9870, 9871), strict=True))  # of a name node that is not told another
_API = "/webhdfs/v1"
_CONNECTING = 4.0  # seconds
_SILENCE = 30.0
_DATA_NODES = 3  # that are tried for one file
_PASSING = (502, 503, 504)  # what a proxy answers whose server is gone


@dataclass(frozen=True)
class FileStatus:
    """What a server tells of a file or directory."""

    path: str
    length: int
    isdir: bool
    modification_time: int


@dataclass(frozen=True)
class WriteOptions:
    """How a file is created; directories above it are made."""

    replication: int | None = None
    overwrite: bool = False
    create_parent: bool = True


@dataclass(frozen=True)
class _Answer:
    status: int
    reason: str
    location: str | None
    body: bytes


class Client:
    """The file system behind a URL. Threads may use one at once.

    Args:
        url: ``webhdfs://host:port``, or ``swebhdfs://`` for HTTPS.
        silence: seconds in which the server must say something.

    Methods raise FileNotFoundError, FileExistsError, RuntimeError for other answers, or another OSError where nothing
    answers. No error tells more of a URL than host and port: the rest of it may hold a token.
    """

    def __init__(self, url: str, silence: float = _SILENCE) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == WEB_SCHEMES[1]
        self._address = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
        self._silence = silence
        self._idle: list[HTTPConnection] = []
        # No __del__: of a circle that is garbage, sockets may be looked at first, which warn that nobody closed them.
        weakref.finalize(self, _close_all, self._idle)
        self._replaces = False  # whether the server is known to heed renameoptions
        token = os.environ.get(TOKEN, "").strip()
        self._caller = {"delegation": token} if token else {"user.name": _user()}

    # Names

    def get_file_info(self, path: str) -> FileStatus:
        return _status(path, self._asked("GET", path, "GETFILESTATUS", "FileStatus"))

    def list_status(self, path: str, recursive: bool = False) -> Iterator[FileStatus]:
        for each in self._asked("GET", path, "LISTSTATUS", "FileStatuses")["FileStatus"]:
            status = _status(f"{path.rstrip('/')}/{each['pathSuffix']}".rstrip("/"), each)
            yield status
            if recursive and status.isdir:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    yield from self.list_status(status.path, recursive)

    def blocks(self, path: str) -> list[tuple[list[str], int]]:
        """The hosts and the length of each block of a file."""
        return [(block["hosts"], block["length"]) for block in self._block_locations(path)]

    def _block_locations(self, path: str) -> list[dict[str, Any]]:
        found = self._asked("GET", path, "GETFILEBLOCKLOCATIONS", "BlockLocations")["BlockLocation"]
        return list(found)

    def mkdirs(self, path: str, permission: int, create_parent: bool) -> None:
        """Make a directory, and those above it: WebHDFS has no other way."""
        self._asked("PUT", path, "MKDIRS", "boolean", permission=f"{permission:o}")

    def delete(self, path: str) -> bool:
        return bool(self._asked("DELETE", path, "DELETE", "boolean"))

    def rename(self, before: str, after: str, overwrite: bool) -> None:
        """Give a file another name, in one step.

        Raises:
            RuntimeError: the server cannot rename over a file, or the name is one of a directory. Nothing was changed.
        """
        # A gateway would move the file into a directory of that name.
        if not self._replaces and (found := self._there(after)) is not None and found.isdir:
            raise _both_directories(before, after)
        options = "OVERWRITE" if overwrite else "NONE"
        done = self._asked("PUT", before, "RENAME", "boolean", destination=after, renameoptions=options)
        if done is None:
            self._replaces = True
        else:  # the options were not heeded
            self._check_renamed(before, after, overwrite, done)

    def _check_renamed(self, before: str, after: str, overwrite: bool, done: bool) -> None:
        found = self._there(after)
        if found is not None and found.isdir:
            if done:  # somebody made it meanwhile, and the file is in it
                inside = f"{after}/{before.rpartition('/')[2]}"
                self._asked("PUT", inside, "RENAME", "boolean", destination=before)
            raise _both_directories(before, after)
        if done:
            return
        if found is None or self._there(before) is None:
            raise FileNotFoundError(f"{before}, or the directory of {after}, is not there")
        if not overwrite:
            raise FileExistsError(f"{after} already exists")
        raise RuntimeError(f"{self._place} {NO_REPLACING}")

    def _there(self, path: str) -> FileStatus | None:
        try:
            return self.get_file_info(path)
        except FileNotFoundError:
            return None

    # Bytes

    def read(self, path: str) -> Reader:
        status = self.get_file_info(path)
        if status.isdir:
            raise FileNotFoundError(f"{path} is a directory")
        return Reader(self, path, status.length)

    def open_range(self, path: str, start: int, length: int | None) -> bytes:
        """The bytes of a range, or those up to the end; fewer where the file has no more. All are of one version."""
        dead: list[str] = []
        asked = {"offset": str(start)} | ({} if length is None else {"length": str(length)})
        while True:
            without = self._replicas_at(path, start, dead) if dead else []
            answer = self._answer("GET", self._target(path, "OPEN", **asked, **_without(without)))
            if answer.location is None:
                return self.checked(answer).body
            found = self._at_data_node(answer.location, dead, _fetched)
            if found is not None:
                return self.checked(found).body

    def _replicas_at(self, path: str, start: int, hosts: Sequence[str]) -> list[str]:
        """The data nodes on these hosts that have the block at ``start``, as the name node can leave them out: by their
        addresses for data, while it sends to those of their web servers. None if no others have it, or nobody tells."""
        try:
            blocks = self._block_locations(path)
        except RuntimeError:  # an old server
            return []
        block = next((each for each in reversed(blocks) if each["offset"] <= start), None)
        if block is None:
            return []
        nodes = [name for host, name in zip(block["hosts"], block["names"], strict=True) if host in hosts]
        return nodes if len(nodes) < len(block["names"]) else []

    def create(self, path: str, options: WriteOptions) -> Writer:
        """A writer of a new file."""
        dead: list[str] = []
        asked = {"overwrite": str(options.overwrite).lower()}
        if options.replication is not None:
            asked["replication"] = str(options.replication)
        while True:
            without = [address for host in dead for address in _addresses(host)]
            answer = self._answer("PUT", self._target(path, "CREATE", **asked, **_without(without)))
            if answer.location is None:
                self.checked(answer)
                raise self._no_webhdfs(f"it answers HTTP {answer.status} where a file is to be sent")
            begun = self._at_data_node(answer.location, dead, _begun)
            if begun is not None:
                return Writer(self, begun)

    def _at_data_node(
        self, location: str, dead: list[str], ask: Callable[[HTTPConnection, str], T]
    ) -> T | None:
        """The result of asking where a server sent, on a new connection; None: that node is ``dead``, ask again."""
        parts = urlsplit(location)
        secure = parts.scheme == "https"
        if self._secure and not secure:
            raise RuntimeError(
                f"{self._place} sends to {parts.scheme}://{parts.netloc}, which is not encrypted"
            )
        connection = self._connection(secure, parts.hostname or "", parts.port or (443 if secure else 80))
        try:
            with failures(f"the data node {parts.netloc}"):
                _connect(connection, self._silence)
                return ask(connection, f"{parts.path}?{parts.query}")
        except BaseException as error:
            connection.close()
            if not isinstance(error, ConnectionError | TimeoutError):
                raise
            dead.append(parts.hostname or "")
            if len(dead) == _DATA_NODES:
                raise
            return None

    # Requests

    @property
    def _place(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _target(self, path: str, operation: str, **parameters: str) -> str:
        query = urlencode({"op": operation, **self._caller, **parameters}, quote_via=quote)
        return f"{_API}{quote(path)}?{query}"

    def _asked(self, method: str, path: str, operation: str, key: str, **parameters: str) -> Any:
        """The value of a key of the JSON that the server answers; None: it answers nothing."""
        answer = self.checked(self._answer(method, self._target(path, operation, **parameters)))
        if not answer.body and operation == "RENAME":
            return None
        try:
            return json.loads(answer.body)[key]
        except (ValueError, LookupError, TypeError):
            raise self._no_webhdfs(f"its answer to {operation} is none") from None

    def _answer(self, method: str, target: str) -> _Answer:
        connection = self._taken()
        try:
            with failures(self._place):
                if connection.sock is None:
                    _connect(connection, self._silence)
                connection.request(method, target)
                answer = read_answer(connection)
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append(connection)
        return answer

    def _taken(self) -> HTTPConnection:
        """A connection to the server that it has not closed meanwhile."""
        with contextlib.suppress(IndexError):
            while connection := self._idle.pop():
                if not _is_readable(connection):
                    return connection
                connection.close()
        return self._connection(self._secure, *self._address)

    def _connection(self, secure: bool, host: str, port: int) -> HTTPConnection:
        if secure:
            return HTTPSConnection(host, port, timeout=_CONNECTING, context=self._trust)
        return HTTPConnection(host, port, timeout=_CONNECTING)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def checked(self, answer: _Answer) -> _Answer:
        """The answer, if it is one to what was asked."""
        if answer.status in (200, 201):
            return answer
        try:
            remote = json.loads(answer.body)["RemoteException"]
            kind, message = str(remote["exception"]), str(remote["message"])
        except (ValueError, LookupError, TypeError):
            raise self._strange(answer) from None
        if kind == "FileNotFoundException":
            raise FileNotFoundError(message)
        if kind == "FileAlreadyExistsException":
            raise FileExistsError(message)
        raise RuntimeError(f"{kind}: {message}")

    def _strange(self, answer: _Answer) -> Exception:
        said = f"HTTP {answer.status} {answer.reason}".strip()
        if answer.status in _PASSING:
            return ConnectionError(f"{self._place}: {said}")
        if answer.status == 401:
            return RuntimeError(f"{self._place}: {said}")
        return self._no_webhdfs(f"it answers {said}")

    def _no_webhdfs(self, why: str) -> RuntimeError:
        return RuntimeError(f"{self._place} {NO_WEBHDFS}: {why}")


class Reader:
    """A file as long as it was when it was opened."""

    def __init__(self, client: Client, path: str, length: int) -> None:
        self._client, self._path, self._length = client, path, length

    def __len__(self) -> int:
        return self._length

    def read_range(self, start: int, length: int) -> bytes:
        """The bytes of a range that is not empty.

        Raises:
            ConnectionError: the file was replaced by one of another length: it is to be opened anew.
        """
        to_end = start + length == self._length  # the answer shows whether it still is
        found = self._client.open_range(self._path, start, None if to_end else length)
        if len(found) != length:
            raise ConnectionError("the file was replaced while it was read")
        return found


class Writer:
    """A file that is sent piece by piece, and is whole once ``close`` has returned."""

    def __init__(self, client: Client, connection: HTTPConnection) -> None:
        self._client, self._connection = client, connection
        weakref.finalize(self, connection.close)

    def write(self, piece: Buffer) -> None:
        size = memoryview(piece).nbytes
        if size:  # an empty chunk is the end
            self._send(b"%x\r\n" % size, piece, b"\r\n")

    def close(self) -> None:
        self._send(b"0\r\n\r\n")
        with self._failures():
            answer = read_answer(self._connection)
        self._connection.close()
        self._client.checked(answer)

    def _send(self, *pieces: Buffer) -> None:
        try:
            with self._failures():
                for piece in pieces:
                    self._connection.send(piece)
        except OSError:
            # A node that refuses a file says why, and does not read on.
            with contextlib.suppress(ConnectionError, TimeoutError), self._failures():
                self._client.checked(read_answer(self._connection))
            raise

    def _failures(self) -> contextlib.AbstractContextManager[None]:
        return failures(f"the data node {self._connection.host}:{self._connection.port}")


def _user() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        raise RuntimeError("this process has no user name; HADOOP_USER_NAME gives it one") from None


def _status(path: str, told: Mapping[str, Any]) -> FileStatus:
    return FileStatus(path, int(told["length"]), told["type"] == "DIRECTORY", int(told["modificationTime"]))


def _both_directories(before: str, after: str) -> RuntimeError:
    """The error of a name node that is to rename a file to the name of a directory."""
    return RuntimeError(f"Source {before} and destination {after} must both be directories")


def _without(nodes: Sequence[str]) -> dict[str, str]:
    return {"excludedatanodes": ",".join(nodes)} if nodes else {}


def _close_all(connections: list[HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _addresses(host: str) -> list[str]:
    """The address of a data node's host, by which the name node can leave it out; none if it is not known here."""
    try:
        return [socket.gethostbyname(host)]
    except OSError:
        return []


def _fetched(connection: HTTPConnection, target: str) -> _Answer:
    connection.request("GET", target)
    answer = read_answer(connection)
    connection.close()
    return answer


def _begun(connection: HTTPConnection, target: str) -> HTTPConnection:
    """The connection, on which chunks are to follow."""
    connection.putrequest("PUT", target)
    connection.putheader("Content-Type", "application/octet-stream")  # without it HttpFS refuses
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    return connection


def _connect(connection: HTTPConnection, silence: float) -> None:
    connection.connect()
    connection.sock.settimeout(silence)


def read_answer(connection: HTTPConnection) -> _Answer:
    """The answer to a request. The connection is closed where the server closes it."""
    answer = connection.getresponse()
    location = answer.getheader("Location") if answer.status == 307 else None
    read = _Answer(answer.status, answer.reason, location, answer.read())
    if answer.will_close:
        connection.close()
    return read


def _is_readable(connection: HTTPConnection) -> bool:
    """Whether a server to which nothing was sent says something: that it has closed the connection."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def failures(place: str) -> Iterator[None]:
    """Name the server in errors of a connection, and nothing that was sent."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):  # answers
        raise
    except RemoteDisconnected:
        raise ConnectionError(f"{place}: it hung up") from None
    except BadStatusLine:
        raise RuntimeError(f"{place} {NO_WEBHDFS}: it does not answer in HTTP") from None
    except ssl.SSLError as error:
        raise RuntimeError(f"{place} {NO_WEBHDFS}: {error.reason or 'no HTTPS'}") from None
    except TimeoutError:
        raise TimeoutError(f"{place}: timed out") from None
    except HTTPException as error:
        raise ConnectionError(f"{place}: the answer was cut off ({type(error).__name__})") from None
    except OSError as error:
        raise ConnectionError(f"{place}: {error.strerror or type(error).__name__}") from None
