"""Objects as files on HDFS, by the library ``hdfs-native``, which needs neither Java nor Hadoop on this machine, or
over HTTP.

A write goes to a temporary file, which is closed, so that its data nodes have it, and renamed: to all, and after any
crash of a client or a node, there is the whole object or none. ``put_new`` renames without overwriting, which the name
node lets one writer do. Whether data nodes sync what is closed to their disks is the cluster's setting.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from hopyard.errors import (
    CorruptError,
    InvalidNameError,
    NotFoundError,
    StorageError,
    UnreachableError,
    UsageError,
)
from hopyard.missing import missing_extra
from hopyard.storage.base import Buffer, Entry, Part, Store
from hopyard.storage.forks import check_process
from hopyard.storage.hdfsblocks import bytes_by_host, hosts_of_file
from hopyard.storage.hdfserrors import HDFS_SCHEMES, WEB_SCHEMES, hdfs_error, is_of_library
from hopyard.storage.names import TEMPORARY_PREFIX, validate_name
from hopyard.storage.parts import PathStore
from hopyard.storage.temporary import is_writer_gone, writer_name

_log = logging.getLogger("hopyard")

T = TypeVar("T")
_PathLike = str | os.PathLike[str]

_TEMPORARY = f"{TEMPORARY_PREFIX}writes"  # the folder of unfinished writes, below the store's root
_OLD_SECONDS = 24 * 3600.0
_PATIENCE = 60.0  # seconds for which what does not answer is asked again
_LONGEST_PAUSE = 5.0
_PIECE = 8 << 20  # bytes of a local file that are read at once
_AT_ONCE = 1 << 20  # bytes that the client puts together; of more, it would keep all packets to the end
_FIRST_SILENCE = 4.0  # seconds in which a web server must answer the first call

# How long the library asks for a name node, unless the user's Hadoop says it: some seconds in the first call, and about
# twelve in a later one, which is repeated for as long as a failover may take. By itself it would ask for three minutes,
# in which nobody is told that anything is wrong.
_LATER_CALLS = {
    "dfs.client.failover.max.attempts": "6",
    "dfs.client.failover.sleep.base.millis": "500",
    "dfs.client.failover.sleep.max.millis": "3000",
}
_FIRST_CALL = {**_LATER_CALLS, "dfs.client.failover.max.attempts": "3"}


class HDFSStore(PathStore):
    """A directory on HDFS, with the parts of a search's layout moved elsewhere if asked.

    Paths are URLs, ``hdfs://host:port/path`` or ``hdfs://nameservice/path``, or absolute paths without a scheme, which
    are on the default file system. That, name services and all other settings come from the files of Hadoop's
    configuration, in ``HADOOP_CONF_DIR`` or ``HADOOP_HOME/etc/hadoop``; the user from ``HADOOP_USER_NAME``, or from the
    Kerberos ticket. Directories are made at the first write into them.

    ``webhdfs://host:port/path``, or ``swebhdfs://`` for HTTPS, is reached over HTTP, where the ports of HDFS itself are
    closed. Of the settings only ``dfs.replication`` holds there.

    Args:
        prefix_path, train_path, val_path, runs_path, logs_path: as of ``LocalStore``.
        config: settings that hold instead of those of Hadoop's files. They are pickled with the store: give no secrets.

    Raises:
        UsageError: a path is no such URL.
        MissingExtraError: ``hdfs-native`` is not installed, and a path is not over HTTP.
    """

    _example = "hdfs://namenode:8020/user/me/experiments"

    def __init__(
        self,
        prefix_path: _PathLike | None = None,
        train_path: _PathLike | None = None,
        val_path: _PathLike | None = None,
        runs_path: _PathLike | None = None,
        logs_path: _PathLike | None = None,
        *,
        config: Mapping[str, str] | None = None,
    ) -> None:
        parts = {"train_data": train_path, "val_data": val_path, "runs": runs_path, "logs": logs_path}
        super().__init__(
            None if prefix_path is None else _checked_url(prefix_path),
            {part: _checked_url(path) for part, path in parts.items() if path is not None},
        )
        self._config = dict(config or {})
        for path in (self._root, *self._moved.values()):
            if path is not None:
                _library(path)
        self._connected: Any = None
        self._made: set[str] = set()  # directories that are there
        self._swept = False
        self._nobody_tells = False

    def _elsewhere(self, path: str) -> Store:
        return type(self)(path, config=self._config)

    def foreign(self) -> Store:
        return _ForeignFiles(self._root, **self._moved_paths(), config=self._config)

    def _moved_paths(self) -> dict[str, str]:
        return {f"{part.removesuffix('_data')}_path": path for part, path in self._moved.items()}

    def _checked(self, name: str) -> str:
        """The name, if it can be one of this store."""
        return validate_name(name)

    def _path(self, name: str) -> str:
        """The path of an object on the file system."""
        return f"{self._root_path()}/{self._checked(name)}"

    def _root_path(self) -> str:
        return urlsplit(self._directory()).path.rstrip("/")

    # Reading

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        self._client(name)
        return self._patiently(lambda: self._read(name, path, start, length))

    def receive(self, name: str, start: int, length: int, keep: Callable[[int, memoryview], object]) -> Part:
        path = self._path(name)
        self._client(name)
        try:
            self._patiently(lambda: self._receive(name, path, start, length, keep))
        except CorruptError:  # it may be another file by now
            return super().receive(name, start, length, keep)
        version, size = self._version_and_size(name)
        return super().receive(name, start, length, keep) if size is None else Part(b"", size, version)

    def _read(self, name: str, path: str, start: int, length: int | None) -> bytes:
        found = io.BytesIO()
        self._receive(name, path, start, length, lambda _, piece: found.write(piece))
        return found.getvalue()

    def _receive(
        self, name: str, path: str, start: int, length: int | None, keep: Callable[[int, memoryview], object]
    ) -> None:
        reader = self._called(name, self._client(name).read, path)
        size = len(reader)
        stop = size if length is None else start + length
        if start > size or stop > size:
            raise self._cut_off(name, start, stop, size)
        if start == stop:
            return
        if stop - start <= _AT_ONCE or _is_over_http(self.url):
            keep(start, memoryview(self._called(name, reader.read_range, start, stop - start)))
            return
        end, pieces = start, iter(self._called(name, reader.read_range_stream, start, stop - start))
        # Only errors of the client are the store's: those of what keeps the pieces are not.
        while (piece := self._called(name, next, pieces, None)) is not None:
            keep(end, memoryview(piece))
            end += len(piece)
        if end != stop:
            raise self._cut_off(name, start, stop, end)

    def _cut_off(self, name: str, start: int, stop: int, size: int) -> CorruptError:
        return CorruptError(
            f"bytes {start}..{stop} of {self.url}/{name} were asked for, but it has only {size}. "
            "The file was cut off or replaced: restore it from a copy, or make it again."
        )

    def size(self, name: str) -> int | None:
        status = self._status(name)
        return None if status is None else int(status.length)

    def version(self, name: str) -> str | None:
        return self._version_and_size(name)[0]

    def _version_and_size(self, name: str) -> tuple[str | None, int | None]:
        status = self._status(name)
        if status is None:
            return None, None
        return f"{status.modification_time}-{status.length}", int(status.length)

    def written_at(self, name: str) -> float | None:
        status = self._status(name)
        return None if status is None else float(status.modification_time) / 1000

    def hosts(self, name: str) -> Mapping[str, int]:
        try:
            return {} if self._nobody_tells else self._hosts(name, self._path(name))
        except UnreachableError as error:
            self._nobody_tells = True  # not asked again for each file
            _log.warning(
                f"where the blocks of {self.url} are is not known, so partitions live on any machine. {error}. Set "
                "dfs.namenode.http-address in the configuration in HADOOP_CONF_DIR, or use a Spark session."
            )
            return {}

    def _hosts(self, name: str, path: str) -> Mapping[str, int]:
        if _is_over_http(self.url):
            try:
                return bytes_by_host(self._called(name, self._client(name).blocks, path))
            except StorageError as error:
                raise UnreachableError(f"WebHDFS was asked: {str(error).rstrip('.')}") from None
        return hosts_of_file(self.url, path, self._settings())

    def _settings(self) -> dict[str, str]:
        return {**_hadoop_settings(), **self._config}

    def _status(self, name: str) -> Any:
        """What the name node knows of an object; None: there is none."""
        status = self._look(name, self._path(name))
        return None if status is None or status.isdir else status

    def _look(self, name: str, path: str) -> Any:
        """What the name node knows of a file or directory; None: there is none."""
        client = self._client(name)
        try:
            return self._patiently(lambda: self._called(name, client.get_file_info, path))
        except NotFoundError:
            return None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        found = self._listed(prefix, recursive=True)
        cut = len(self._root_path()) + 1
        named = ((status.path[cut:], status) for status in found if not status.isdir)
        return iter(sorted(Entry(name, status.length) for name, status in named if not _is_temporary(name)))

    def folders(self, prefix: str = "") -> Sequence[str]:
        names = (
            status.path.rpartition("/")[2] for status in self._listed(prefix, recursive=False) if status.isdir
        )
        return sorted(name for name in names if not _is_temporary(name))

    def _listed(self, prefix: str, recursive: bool) -> Sequence[Any]:
        """What is below a prefix; nothing where that is an object."""
        path = self._path(prefix) if prefix else self._root_path() or "/"
        client = self._client(prefix)
        try:
            found = self._patiently(
                lambda: self._called(prefix, lambda: list(client.list_status(path, recursive)))
            )
        except NotFoundError:
            return []
        return [status for status in found if status.path != path]

    # Writing

    def put(self, name: str, data: Buffer) -> None:
        self._write(name, [memoryview(data).cast("B")], self._rename_over)

    def put_new(self, name: str, data: Buffer) -> bool:
        view = memoryview(data).cast("B")
        validate_name(name)
        # The usual loser's case without a write; the rename is what decides.
        if self._status(name) is not None:
            return False
        return self._write(name, [view], self._rename_new)

    def put_file(self, name: str, path: Path) -> None:
        validate_name(name)
        self._write(name, _Pieces(path), self._rename_over)
        path.unlink()

    def _write(self, name: str, pieces: Iterable[Buffer], publish: Callable[[str, str, str], bool]) -> bool:
        path = self._path(validate_name(name))
        self._client(name)
        self._sweep_once()
        temporary = self._patiently(lambda: self._sent(name, pieces))
        try:
            # Apart from the sending: what was renamed, without an answer, would seem to be another writer's then.
            return self._patiently(lambda: publish(name, temporary, path))
        finally:
            with contextlib.suppress(Exception):  # of another writer that won, or an error
                self._client(name).delete(temporary)

    def _sent(self, name: str, pieces: Iterable[Buffer]) -> str:
        """The path of a new file with the pieces."""
        temporary = f"{self._root_path()}/{_TEMPORARY}/{writer_name()}"
        replication = self._settings().get("dfs.replication")  # the library takes the name node's (0.14.7)
        options = _library(self.url).WriteOptions(
            replication=None if replication is None else int(replication), overwrite=False, create_parent=True
        )
        writer = self._called(name, self._client(name).create, temporary, options, writing=True)
        try:
            for piece in pieces:
                self._called(name, writer.write, piece, writing=True)
            # hsync would bring it to the disks, but waits for ever beside a dead data node (0.14.7).
            self._called(name, writer.close, writing=True)
        except BaseException:
            with contextlib.suppress(Exception):
                self._client(name).delete(temporary)
            raise
        return temporary

    def _rename_over(self, name: str, temporary: str, path: str) -> bool:
        self._rename(name, temporary, path, overwrite=True)
        return True

    def _rename_new(self, name: str, temporary: str, path: str) -> bool:
        try:
            self._rename(name, temporary, path, overwrite=False)
        except FileExistsError:
            return False
        return True

    def _rename(self, name: str, temporary: str, path: str, overwrite: bool) -> None:
        """Give a file its name, once the directory is there and nothing is nested.

        Raises:
            FileExistsError: the name is taken, and is not to be overwritten.
        """
        self._make_directory(name, path.rpartition("/")[0])
        try:
            self._renamed(name, temporary, path, overwrite)
        except (FileExistsError, NotFoundError, InvalidNameError, UnreachableError) as error:
            if self._look(name, temporary) is None:
                return  # it has the name: only the answer was lost
            if isinstance(error, UnreachableError):
                self._renamed(name, temporary, path, overwrite)
                return
            status = self._look(name, path)
            if status is not None and status.isdir:
                self._remove_empty(name, path)
            elif isinstance(error, FileExistsError):
                raise
            self._made.clear()  # somebody removed the directory
            self._make_directory(name, path.rpartition("/")[0])
            self._renamed(name, temporary, path, overwrite)

    def _renamed(self, name: str, temporary: str, path: str, overwrite: bool) -> None:
        self._called(name, self._client(name).rename, temporary, path, overwrite, writing=True)

    def _make_directory(self, name: str, directory: str) -> None:
        if directory in self._made or not directory:
            return
        try:
            self._called(name, self._client(name).mkdirs, directory, 0o755, True, writing=True)
        except (FileExistsError, InvalidNameError):
            raise self._nested(name, self._file_above(name)) from None
        self._made.add(directory)

    def _remove_empty(self, name: str, directory: str) -> None:
        """Remove directories that deletes left empty where an object is to be.

        Raises:
            InvalidNameError: an object is below them.
        """
        below = self._listed(name, recursive=True)
        files = [status.path for status in below if not status.isdir]
        if files:
            raise self._nested(name, files[0][len(self._root_path()) + 1 :])
        for status in sorted(below, key=lambda status: -len(status.path)):
            self._called(name, self._client(name).delete, status.path, writing=True)
        self._called(name, self._client(name).delete, directory, writing=True)
        self._made.clear()

    def _file_above(self, name: str) -> str:
        """The object that stands where a directory of ``name`` should be."""
        above = name.rpartition("/")[0]
        while above and self._status(above) is None:
            above = above.rpartition("/")[0]
        return above

    def delete(self, name: str) -> None:
        path = self._path(name)
        if self._status(name) is not None:  # a directory is no object
            delete = self._client(name).delete
            self._patiently(lambda: self._called(name, delete, path, writing=True))

    def _sweep_once(self) -> None:
        """Remove unfinished writes of processes that are gone."""
        if self._swept:
            return
        self._swept = True
        with contextlib.suppress(NotFoundError):
            folder = f"{self._root_path()}/{_TEMPORARY}"
            client = self._client()
            listed = self._patiently(
                lambda: self._called("", lambda: list(client.list_status(folder, False)))
            )
            for status in listed:
                writer = status.path.rpartition("/")[2]
                if is_writer_gone(writer) or time.time() - status.modification_time / 1000 > _OLD_SECONDS:
                    with contextlib.suppress(Exception):
                        self._client().delete(status.path)

    # The library

    def _patiently(self, action: Callable[[], T]) -> T:
        """The result of an action that can be repeated, once nodes answer.

        When a node died it is some seconds until clients are no longer sent to it; blocks of a file that was replaced
        since it was opened are gone, and opened again it is whole.
        """
        end, pause = time.monotonic() + _PATIENCE, 0.25
        while True:
            try:
                return action()
            except UnreachableError:
                if time.monotonic() > end:
                    raise
            threading.Event().wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _client(self, name: str = "") -> Any:
        check_process("HDFSStore")
        if self._connected is None:
            self._connected = _connect(self._directory(), name, self._config)
        return self._connected

    def _called(self, name: str, function: Callable[..., Any], *arguments: Any, writing: bool = False) -> Any:
        """The result of a call of the library, whose errors become those of a store."""
        try:
            return function(*arguments)
        except FileNotFoundError:
            raise self._not_found(name) from None
        except FileExistsError:
            raise
        except BaseException as error:
            if not is_of_library(error):
                raise
            said = hdfs_error(self.url, name, error, writing)
            raise (
                said if writing or not isinstance(said, InvalidNameError) else self._not_found(name)
            ) from None

    def _not_found(self, name: str) -> NotFoundError:
        return NotFoundError(
            f"there is no object {name!r} in the store {self.url}. List the store to see what it holds."
        )

    def _nested(self, name: str, other: str) -> InvalidNameError:
        outer, inner = sorted((name, other), key=len)
        return InvalidNameError(
            f"cannot store {name!r} in {self.url}: {outer!r} would be both an object and a prefix of "
            f"{inner!r}, which no directory can hold. Use another name."
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connected": None, "_made": set(), "_swept": False}


class _ForeignFiles(HDFSStore):
    """An ``HDFSStore`` to be read, whose names may have any characters."""

    def _checked(self, name: str) -> str:
        return name


class _Pieces:
    """The content of a local file, piece by piece, as often as it is iterated."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece


def _is_temporary(name: str) -> bool:
    return any(segment.startswith(TEMPORARY_PREFIX) for segment in name.split("/"))


def _is_over_http(url: str) -> bool:
    return urlsplit(url).scheme in WEB_SCHEMES


def _library(url: str) -> Any:
    """The module with the client for a URL, which no import of Hopyard loads."""
    if _is_over_http(url):
        return import_module("hopyard.storage.webhdfs")
    try:
        return import_module("hdfs_native")
    except ImportError:
        raise missing_extra("hdfs-native", "hdfs", "a store on HDFS") from None


def _checked_url(path: _PathLike) -> str:
    """The URL of a path, without a slash at its end.

    Raises:
        UsageError: it is none of a directory on HDFS.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    parts = urlsplit(text)
    if (parts.scheme and parts.scheme not in HDFS_SCHEMES) or not (parts.scheme or text.startswith("/")):
        raise UsageError(
            f"{path!r} is no path on HDFS. Give hdfs://host:port/path, hdfs://nameservice/path, "
            "webhdfs://host:port/path, or an absolute path, which is on the default file system of Hadoop's "
            "configuration."
        )
    if "@" in parts.netloc:
        raise UsageError(
            f"the URL of a store on {parts.scheme}:// was given with a user in it. Leave out what stands before '@', "
            "and set HADOOP_USER_NAME or get a Kerberos ticket by kinit."
        )
    if parts.query or parts.fragment:
        raise UsageError(
            f"the URL of a store on {parts.scheme}://{parts.netloc} goes on with '?' or '#', but it is a file system "
            "and a path only. Give settings as config={...}."
        )
    if parts.scheme in WEB_SCHEMES and not _has_address(parts):
        raise UsageError(
            f"{path!r} names no server. Give host and port of the name node's web server or of a gateway: "
            f"{parts.scheme}://host:port/path."
        )
    if ":" in parts.path:
        raise UsageError(f"the path {parts.path!r} holds ':', which HDFS does not take. Use another path.")
    return f"{parts.scheme or 'hdfs'}://{parts.netloc}/{parts.path.strip('/')}".rstrip("/") or "hdfs:///"


def _has_address(parts: SplitResult) -> bool:
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _connect(url: str, name: str, config: Mapping[str, str]) -> Any:
    """A client of the file system of a URL, which has answered.

    Raises:
        StorageError: nothing answers, or what does is no name node that serves.
    """
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc}"
    client = _library(url).Client
    given = {*config, *_hadoop_settings()}
    first, later = (
        {key: value for key, value in settings.items() if key not in given} | dict(config)
        for settings in (_FIRST_CALL, _LATER_CALLS)
    )
    try:
        if _is_over_http(url):
            client(address, _FIRST_SILENCE).get_file_info("/")
            return client(address)
        client(address, first).get_file_info("/")
        return client(address, later)
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise hdfs_error(url, name, error, False) from None


def _hadoop_settings() -> dict[str, str]:
    """The settings in the files of Hadoop's configuration."""
    etree = import_module("xml.etree.ElementTree")
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)
    settings: dict[str, str] = {}
    for file in ("core-site.xml", "hdfs-site.xml"):
        with contextlib.suppress(OSError, etree.ParseError):  # which the library says
            if folder is not None:
                for each in etree.parse(Path(folder) / file).iter("property"):
                    settings[each.findtext("name", "").strip()] = each.findtext("value", "").strip()
    return settings
