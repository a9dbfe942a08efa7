"""Objects that a URL leads to: one, all below a prefix, or those that match a pattern."""

from __future__ import annotations

import glob
import http.client
import logging
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn
from urllib.parse import urlsplit

from hopyard.data.files.parallel import of_each
from hopyard.errors import (
    CorruptError,
    NotFoundError,
    NotWritableError,
    StorageError,
    UnreachableError,
    UsageError,
)
from hopyard.storage import LocalStore, files, open_store
from hopyard.storage.base import Buffer, Entry, Part, Store
from hopyard.storage.opening import STORE_SCHEMES
from hopyard.wording import nearest

REQUEST = 8 << 20
"""Bytes of one request at most: over 30 ms and 100 MB/s, larger ones gain nothing."""

_WEB = ("http", "https")
_SCHEMES = ("file", *STORE_SCHEMES, *_WEB)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/?(.*)", re.DOTALL)
_WILD = re.compile(r"[*?[]")
_SILENCE = 60.0  # seconds without a byte after which a connection to a web server counts as broken
_WAITS = (0.2, 1.0, 3.0, 10.0)  # seconds before a request to a web server is sent again
_PASSING = (408, 429, 500, 502, 503, 504)  # what a web server answers that may serve later
_PIECE = 256 << 10  # bytes

_log = logging.getLogger("hopyard")


@dataclass(frozen=True)
class RemoteObject:
    """An object in a store, as it was when it was looked at.

    Attributes:
        store, name: the store, and the object's name there.
        size: bytes.
        request: bytes that one request may ask for; all, where the server gives no ranges.
        version: of the object; None: unknown, or not asked for.
    """

    store: Store
    name: str
    size: int
    request: int
    version: str | None = None

    @property
    def url(self) -> str:
        """URL of the object, or its path."""
        return f"{self.store.url.rstrip('/')}/{self.name}"

    def receive(self, start: int, length: int, keep: Callable[[int, memoryview], object]) -> str | None:
        """Have ``keep(position, piece)`` called for the bytes of a range, as ``Store.receive`` does; the version that
        the object has now.

        Raises:
            CorruptError: it is another object now than the one that was looked at; or its store cannot give all of it.
            StorageError: it cannot be read.
        """
        if not length:
            return self.version
        try:
            part = self.store.receive(self.name, start, length, keep)
        except CorruptError:
            if self.is_there():
                raise
            raise self._replaced(self.store.size(self.name)) from None
        if part.size != self.size or (self.version is not None and part.version != self.version):
            raise self._replaced(part.size)
        return part.version

    def is_there(self) -> bool:
        """Whether the store still has this object."""
        now = look(self.store, self.name)
        return now is not None and now.size == self.size and self.version in (None, now.version)

    def _replaced(self, size: int | None) -> CorruptError:
        now = "it is gone" if size is None else f"an object of {size:,} bytes is there"
        return CorruptError(
            f"{self.url} was replaced while it was read: it had {self.size:,} bytes, and now {now}. Let nothing write "
            "to it while it is used, and start again."
        )


@dataclass(frozen=True)
class Found:
    """Objects that a URL leads to.

    Attributes:
        url: as it was given.
        objects: in the order of their names.
        prefix: of the names of all objects, where the URL is that of a folder, with ``/`` at its end, or empty; None:
            the URL is that of one object, or a pattern.
    """

    url: str
    objects: tuple[RemoteObject, ...]
    prefix: str | None = None

    def pinned(self) -> Found:
        """The same with the versions that the objects have now; without those that are gone."""
        if self.prefix is None:
            return self
        store, names = self.objects[0].store, [each.name for each in self.objects]
        looked = of_each(store, names, names, lambda name: look(store, name))
        return Found(self.url, tuple(each for each in looked if each is not None), self.prefix)


def find(
    url: str | os.PathLike[str], stores: dict[str, Store] | None = None, patterns: bool = False
) -> Found:
    """The objects at a URL or path: that one; else all below it, as below one that ends with ``/``.

    Args:
        stores: that were opened before, by the beginnings of URLs; new ones are added.
        patterns: ``*``, ``?`` and ``[...]`` stand for any characters of a name, but ``/``.

    Raises:
        NotFoundError: there are none.
        UsageError: it is no URL of a kind that can be read.
        StorageError: the store cannot be read.
    """
    text = _as_text(url)
    store, key = _place(text, {} if stores is None else stores)
    if patterns and _WILD.search(key):
        names = _matching(store, key)
        objects = [RemoteObject(store, entry.name, entry.size, REQUEST) for entry in names]
        if not objects:
            raise NotFoundError(f"no object matches {text}. Correct the pattern, or put the objects there.")
        return Found(text, tuple(objects))
    if isinstance(store, WebStore):
        return Found(text, (store.look(key),))
    folder = key.rstrip("/")
    if key and key == folder and (found := look(store, key)) is not None:
        return Found(text, (found,))
    below = tuple(RemoteObject(store, entry.name, entry.size, REQUEST) for entry in store.list(folder))
    if not below:
        what = f"object {text}, and none below it" if key == folder and key else f"object below {text}"
        raise NotFoundError(f"there is no {what}. Correct the URL, or put the object there.")
    return Found(text, below, folder and folder + "/")


def look(store: Store, name: str) -> RemoteObject | None:
    """An object as it is now; None: there is none."""
    if isinstance(store, WebStore):
        return store.look(name)
    try:
        part = store.read(name, -1)
    except NotFoundError:
        return None
    return RemoteObject(store, name, part.size, REQUEST, part.version)


def local_path(url: str | os.PathLike[str]) -> Path | None:
    """The absolute path, where the URL is that of a file or folder of this machine's file system; else None.

    Raises:
        UsageError: it is no URL of a kind that can be read.
    """
    text = _as_text(url)
    found = _URL.fullmatch(text)
    return Path(files.absolute(text)) if found is None or found[1].lower() == "file" else None


def _as_text(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"{url!r} is no URL of an object. Give a text such as 's3://bucket/key', or a path of this machine."
        )
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?", text)
    if found is None:
        return text
    scheme = found[1].lower()
    if found[2] is None and scheme in _SCHEMES and scheme != "file":
        raise UsageError(
            f"{text!r} begins like a URL, but lacks '//'. Write {scheme}://{text[found.end() :].lstrip('/')}"
        )
    if found[2] is not None and scheme not in _SCHEMES:
        raise UsageError(
            f"the URL {text!r} has the scheme {scheme!r}, but objects are read from a path or from "
            f"{', '.join(each + '://' for each in _SCHEMES)}{nearest(scheme, _SCHEMES, '.')} Give one of these."
        )
    return text


def _place(text: str, stores: dict[str, Store]) -> tuple[Store, str]:
    """The store that a URL begins with, and the name of the object there."""
    found = _URL.fullmatch(text)
    if found is None or found[1].lower() == "file":
        is_folder = text.endswith("/")
        return stores.setdefault("", _Files("/")), files.absolute(text)[1:] + "/" * is_folder
    if found[1].lower() in _WEB:
        store = WebStore(text)
        return store, store.key
    beginning = f"{found[1]}://{found[2]}"
    if beginning not in stores:
        stores[beginning] = open_store(beginning).foreign()
    return stores[beginning], found[3]


def _matching(store: Store, pattern: str) -> list[Entry]:
    if isinstance(store, _Files):
        paths = sorted(path for path in map(Path, glob.glob(f"/{pattern}")) if path.is_file())  # noqa: PTH207
        return [Entry(str(path)[1:], path.stat().st_size) for path in paths]
    fixed = _WILD.split(pattern, maxsplit=1)[0].rpartition("/")[0]
    return [entry for entry in store.list(fixed) if PurePosixPath(f"/{entry.name}").match(f"/{pattern}")]


class _Files(LocalStore):
    """The file system of this machine, to be read; files may have any names."""

    def _file(self, name: str, is_replaced: bool = False) -> str:
        return f"/{name}"

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return files.walk(f"/{prefix}", prefix and f"{prefix}/")


class WebStore(Store):
    """A web server, as a store of one object that is only read.

    An object's version is its ``ETag`` and ``Last-Modified``; of a server that tells neither it is unknown, and a
    change is noticed by the length only.

    Args:
        url: of the object. Its query is part of each request, and of no message, since it may hold a signature.

    Raises:
        UsageError: there is a user name or a password in the URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc or not parts.netloc:
            raise UsageError(
                f"the URL of a web server must name a host, and must not hold a user name or password, which messages "
                f"would repeat; this one begins with {parts.scheme}://. Give a public or a signed URL."
            )
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._query = f"?{parts.query}" if parts.query else ""
        self.key: str = parts.path[1:]
        """Name of the object: the path of the URL."""

    @property
    def url(self) -> str:
        return self._base

    def look(self, name: str) -> RemoteObject:
        """The object as it is now.

        Raises:
            NotFoundError: there is none.
            StorageError: the server does not tell how long it is, or cannot be read.
        """
        part, has_ranges = self._asked(name, 0, 1, lambda *_: None, only_look=True)
        if part.version is None:
            _log.warning(
                f"{self._base}/{name}: the server tells neither ETag nor Last-Modified, so that a change of the object "
                "is only noticed if its length changes, too."
            )
        return RemoteObject(self, name, part.size, REQUEST if has_ranges else max(part.size, 1), part.version)

    def receive(self, name: str, start: int, length: int, keep: Callable[[int, memoryview], object]) -> Part:
        return self._asked(name, start, length, keep)[0]

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        length = self.look(name).size - start if length is None else length
        data = bytearray(length)

        def keep(position: int, piece: memoryview) -> None:
            data[position - start : position - start + len(piece)] = piece

        self.receive(name, start, length, keep)
        return bytes(data)

    def size(self, name: str) -> int | None:
        try:
            return self.look(name).size
        except NotFoundError:
            return None

    def _asked(
        self,
        name: str,
        start: int,
        length: int,
        keep: Callable[[int, memoryview], object],
        only_look: bool = False,
    ) -> tuple[Part, bool]:
        """The size and version that an answer tells, and whether the server gives ranges. The request is sent again
        where it may succeed then."""
        url = f"{self._base}/{name}"
        for wait in (*_WAITS, None):
            request = urllib.request.Request(
                url + self._query, headers={"Range": f"bytes={start}-{start + length - 1}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=_SILENCE) as answer:
                    part, has_ranges = _told(answer, url)
                    if not only_look:
                        _pass_on(answer, url, 0 if not has_ranges else start, start, length, keep)
                    return part, has_ranges
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 416 and only_look:  # nothing is in it
                    version = f"{error.headers['ETag'] or ''} {error.headers['Last-Modified'] or ''}".strip()
                    return Part(b"", 0, version or None), True
                if error.code not in _PASSING:
                    raise _refused(url, error) from None
                why = f"HTTP {error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                why = str(getattr(error, "reason", None) or error or type(error).__name__)
            if wait is not None:
                threading.Event().wait(wait)
        raise UnreachableError(
            f"{url} cannot be read: {why}. Look at the network and at the server, and start again."
        )

    def list(self, prefix: str = "") -> Iterator[Entry]:
        raise UsageError(f"{self._base} is a web server, which lists no objects. Give the URL of one.")

    def _read_only(self) -> NoReturn:
        raise NotWritableError(f"{self._base} is a web server, which is only read. Write to a store.")

    def put(self, name: str, data: Buffer) -> None:
        self._read_only()

    def put_new(self, name: str, data: Buffer) -> bool:
        self._read_only()

    def put_file(self, name: str, path: Path) -> None:
        self._read_only()

    def delete(self, name: str) -> None:
        self._read_only()


def _told(answer: http.client.HTTPResponse, url: str) -> tuple[Part, bool]:
    """What the headers of an answer tell of the whole object, and whether the answer is a range of it."""
    has_ranges = answer.status == 206
    size = answer.headers["Content-Range"] if has_ranges else answer.headers["Content-Length"]
    length = (size or "").rpartition("/")[2]
    if not length.isdigit():
        raise StorageError(
            f"{url} cannot be read: the server does not tell how long the object is, so that nobody could see that a "
            "part is missing. Download it by other means, and give its path."
        )
    version = f"{answer.headers['ETag'] or ''} {answer.headers['Last-Modified'] or ''}".strip()
    return Part(b"", int(length), version or None), has_ranges


def _pass_on(
    answer: http.client.HTTPResponse,
    url: str,
    position: int,
    start: int,
    length: int,
    keep: Callable[[int, memoryview], object],
) -> None:
    """Hand on the bytes [start, start + length) of an answer that begins at ``position`` of the object."""
    end = start + length
    while position < end:
        piece = answer.read(min(_PIECE, end - position))
        if not piece:
            raise http.client.IncompleteRead(b"", end - position)
        if position + len(piece) > start:
            skipped = max(start - position, 0)
            keep(position + skipped, memoryview(piece)[skipped:])
        position += len(piece)


def _refused(url: str, error: urllib.error.HTTPError) -> StorageError:
    if error.code in (404, 410):
        return NotFoundError(f"there is no object {url} (HTTP {error.code}). Correct the URL.")
    if error.code == 416:
        return CorruptError(f"{url} is shorter than it was: it was replaced. Start again.")
    if error.code in (401, 403):
        return StorageError(
            f"{url} cannot be read: the server forbids it (HTTP {error.code} {error.reason}). Give a signed URL, or "
            "one that needs no rights."
        )
    return StorageError(
        f"{url} cannot be read: HTTP {error.code} {error.reason}. Look at the URL and at the server."
    )
