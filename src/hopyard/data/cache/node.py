"""Decoded data, kept by this machine: flat files under keys, shared by its processes, bounded in bytes.

An entry is written to ``<key>.part`` by the one process that claimed its key, and renamed to ``<key>.flat``
when it is whole; nothing changes or moves it afterwards, so it can be mapped. Before that, entries that were
not used for longest go, until it fits. A process that has a deleted entry open or mapped keeps reading it.

A kill at any moment leaves whole entries and unfinished files, which no lock protects any more and which the
next eviction removes. A loss of power, a bad disk or another program may damage an entry: find() compares it
with its checksum, once since the machine started and once since somebody wrote to it, and gives no damaged one.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hopyard.data.cache import files as cache_files
from hopyard.data.cache import format as cache_format
from hopyard.data.cache.durability import durability
from hopyard.data.cache.files import FLAT, PART, Book
from hopyard.errors import UsageError
from hopyard.storage import files

DEFAULT_LIMIT: int = 20 * 10**9
"""Bytes that a cache keeps unless it is told otherwise."""

_SLACK = 16  # a sixteenth of the limit is freed at once, so that the directory is rarely listed
_REFRESH = 60.0  # seconds in which an entry counts as used once
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_FREE = 2 * 10**9  # bytes left free on the file system, or a fiftieth of it


@dataclass(frozen=True)
class CacheHit:
    """An entry: its file, the bytes of its content (which begin the file), and its writer's description.

    The description is shared: do not change it.
    The file may be gone by the time it is opened, if the cache was full. Its modification time is when it was
    used last, so it says nothing about the content: size and inode do.
    """

    path: Path
    size: int
    description: dict[str, Any]
    inode: int


@dataclass(frozen=True)
class CacheEntry:
    """An entry in a list: ``nbytes`` of its file, ``used`` in seconds since the epoch."""

    key: str
    path: Path
    nbytes: int
    used: float
    description: dict[str, Any]


class NodeCache:
    """Decoded data of this machine: immutable flat files under keys, bounded in bytes, least recently used goes first.

    Keys are hex digests of all that decides the content. Threads and processes may share a directory, each
    through an object of its own or a copy; it should be on a local disk.

    Args:
        path: the directory; None: ``$HOPYARD_CACHE``, else ``$XDG_CACHE_HOME/hopyard/data``, else
            ``~/.cache/hopyard/data``. It is made at the first :meth:`claim`. One that holds other files is refused.
        limit: bytes; None: ``$HOPYARD_CACHE_BYTES``, else ``DEFAULT_LIMIT``.

    Raises:
        UsageError: the path is no path, or the limit no number of bytes.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, limit: int | None = None) -> None:
        self._given = path, limit
        self._folder = cache_directory(path)
        self.path: Path = Path(self._folder)
        self.limit: int = _as_bytes(limit)
        self._prepared = False

    def __repr__(self) -> str:
        return f"NodeCache({self._folder!r}, limit={self.limit})"

    def __reduce__(self) -> tuple[type[NodeCache], tuple[Any, int | None]]:
        path, limit = self._given
        # The default one is that of the machine.
        return NodeCache, (None if path is None else self._folder, limit)

    def prepare(self) -> None:
        """Make the directory, if need be. :meth:`claim` does so too; this tells earlier that it cannot be.

        Raises:
            UsageError: it holds other files and is not a cache's.
            NotWritableError: it cannot be made or written.
            OSError: the disk is full.
        """
        cache_files.prepare(self._folder)
        self._prepared = True

    def find(self, key: str) -> CacheHit | None:
        """The entry, which counts as used now; None if there is none, or a damaged one, which goes."""
        file = self._file(key, FLAT)
        fd = _open(file)
        if fd is None:
            return None
        try:
            trailer = cache_format.read(fd, key)
            if trailer is None or not (trailer.marked or _is_good(fd, key, trailer)):
                cache_files.remove(file, fd)
                return None
            if trailer.marked and abs(time.time() - trailer.used) > _REFRESH:
                cache_format.mark(fd, key)
            inode = os.fstat(fd).st_ino
        except OSError:
            return None
        finally:
            os.close(fd)
        if not trailer.durable:
            durability.add(file)
        return CacheHit(Path(file), trailer.size, trailer.description, inode)

    def holds(self, key: str) -> bool:
        """Whether there is an entry, which may be damaged. It does not count as used by that."""
        return os.path.exists(self._file(key, FLAT))  # noqa: PTH110

    def claim(self, key: str, *, wait: bool) -> Claim | None:
        """The exclusive right, among all threads and processes, to make the entry.

        None if another one has it and ``wait`` is False. With ``wait`` it comes when the other one published,
        gave up or died, so look with :meth:`find` again before making it. Do not wait for a claim of the same thread.

        Raises:
            UsageError: the directory holds other files and is not a cache's.
            NotWritableError: the directory cannot be made or written.
            OSError: the disk is full.
        """
        part = self._file(key, PART)
        if not self._prepared:
            self.prepare()
        with cache_files.write_errors(self._folder):
            try:
                file = cache_files.lock_part(part, wait)
            except FileNotFoundError:  # someone removed the directory
                self.prepare()
                file = cache_files.lock_part(part, wait)
        return None if file is None else Claim(self, key, part, file)

    def admits(self, nbytes: int, present: int = 0) -> bool:
        """Whether an entry of this size may be kept: it is within the limit, and the file system has room.

        Of several entries, ``present`` bytes may be there already. Where the file system is short of room,
        entries that were not used for longest go to make some.
        """
        if nbytes > self.limit:
            return False
        missing = nbytes - present
        if not self._lacking(missing):
            return True
        with contextlib.suppress(OSError):
            if cache_files.is_own(self._folder):
                with Book(self._folder) as book:
                    book.set_total(self._evict(lacking=self._lacking(missing)))
        return not self._lacking(missing)

    def entries(self) -> list[CacheEntry]:
        """All entries that can be read, least recently used first. They do not count as used by that.

        Raises:
            UsageError: the directory holds other files and is not a cache's.
        """
        found = []
        for listed in self._list():
            path = self.path / listed.name
            with contextlib.suppress(OSError):
                fd = os.open(path, _READ)
                try:
                    trailer = cache_format.read(fd)
                finally:
                    os.close(fd)
                if trailer is not None:
                    key = listed.name.removesuffix(FLAT)
                    found.append(CacheEntry(key, path, listed.nbytes, listed.used / 1e9, trailer.description))
        return found

    def clear(self) -> int:
        """Delete all entries and leftovers of killed processes, and nothing else; returns the bytes freed.

        Raises:
            UsageError: the directory holds other files and is not a cache's.
            NotWritableError: the directory cannot be read or written.
        """
        if not self._list() and not cache_files.is_own(self._folder):
            return 0
        freed = left = 0
        with cache_files.write_errors(self._folder), Book(self._folder) as book:
            for listed in cache_files.entries(self._folder):
                if cache_files.unlink(f"{self._folder}/{listed.name}"):
                    freed += listed.nbytes
                else:
                    left += listed.nbytes
            freed += cache_files.sweep(self._folder)
            book.set_total(left)
        return freed

    def _file(self, key: str, suffix: str) -> str:
        if not cache_files.is_key(key):
            raise UsageError(
                f"the key {key!r} cannot name an entry of a cache: it must be a hex digest, 16 to 128 digits in "
                "lower case. Give the digest of what decides the content."
            )
        return f"{self._folder}/{key}{suffix}"

    def _list(self) -> list[cache_files.Listed]:
        with cache_files.write_errors(self._folder):
            cache_files.check_own(self._folder)
            try:
                return cache_files.entries(self._folder)
            except FileNotFoundError:
                return []

    def _keep(self, key: str, part: str, nbytes: int) -> str:
        """Give a whole file its name, when there is room for it within the limit."""
        file = self._file(key, FLAT)
        with Book(self._folder) as book:
            total = book.total()
            if total is not None:
                with contextlib.suppress(FileNotFoundError):
                    total -= os.stat(file).st_size  # noqa: PTH116
            lacking = self._lacking(0)
            if total is None or total + nbytes > self.limit or lacking:
                total = self._evict(nbytes, lacking, besides=key + FLAT)
            book.set_total(total + nbytes)  # before the entry is there: a kill in between counts it, no more
            files.rename(part, file)
        return file

    def _evict(self, nbytes: int = 0, lacking: int = 0, besides: str = "") -> int:
        """Make ``nbytes`` fit into the limit, and free ``lacking`` ones if there are so many. Bytes that remain."""
        cache_files.sweep(self._folder)
        listed = [each for each in cache_files.entries(self._folder) if each.name != besides]
        total = sum(each.nbytes for each in listed)
        target = total - lacking if lacking <= total else total
        if total + nbytes > self.limit:
            target = min(target, self.limit - self.limit // _SLACK - nbytes)
        for each in listed:
            if total <= target:
                break
            if cache_files.unlink(f"{self._folder}/{each.name}"):
                total -= each.nbytes
        return total

    def _lacking(self, nbytes: int) -> int:
        """Bytes that the file system is short of, if so many more are to be written to it."""
        folder = self.path
        while True:
            try:
                space = os.statvfs(folder)
                break
            except OSError:
                if folder == folder.parent:
                    return 0
                folder = folder.parent
        size = space.f_blocks * space.f_frsize  # 0: unknown
        spare = min(size // 50, _MOST_FREE)
        return max(0, nbytes + spare - space.f_bavail * space.f_frsize) if size else 0


class Claim:
    """The right to make one entry, to be left as a context: without :meth:`publish` nothing remains.

    Attributes:
        key: of the entry.
        file: open for reading and writing, unbuffered: ``write`` may write a part, as it says. What is written
            can be mapped before it is published, and stays readable, also if it never is.
    """

    def __init__(self, cache: NodeCache, key: str, part: str, file: io.FileIO) -> None:
        self.key = key
        self.file: BinaryIO = file
        self._file = file
        self._cache = cache
        self._part = part

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the claim back. The file goes, unless it was published. Again, or in a fork, nothing happens."""
        if not self._file.closed:
            cache_files.abandon(self._file, self._part)

    def publish(self, description: dict[str, Any]) -> CacheHit:
        """End the entry, and let everyone find it. This process brings it to the disk later, in a thread.

        Args:
            description: JSON values; :meth:`NodeCache.find` gives them back.

        Raises:
            OSError: no space, or the entry is larger than the limit. The claim is given back, and the
                entry is not kept; mapped parts of it stay readable.
        """
        try:
            fd = self._file.fileno()
            size = cache_format.finish(fd, self.key, description)
            status = os.fstat(fd)
            nbytes = status.st_size
            if nbytes > self._cache.limit:
                reason = f"an entry of {nbytes} bytes is larger than the cache's limit of {self._cache.limit}"
                raise OSError(errno.EFBIG, reason, self._part)
            file = self._cache._keep(self.key, self._part, nbytes)
        except BaseException:
            self.close()
            raise
        cache_files.unlock(self._file)
        durability.add(file, new=True)
        return CacheHit(Path(file), size, description, status.st_ino)


_good: set[tuple[int, int, int, str]] = set()
"""Entries that this process found good, but may not write to: device, inode, modification time, key."""


def _is_good(fd: int, key: str, trailer: cache_format.Trailer) -> bool:
    status = os.fstat(fd)
    state = status.st_dev, status.st_ino, status.st_mtime_ns, key
    if state in _good:
        return True
    good = cache_format.is_good(fd, key, trailer)
    if good and os.fstat(fd).st_mtime_ns == status.st_mtime_ns:
        _good.add(state)
    return good


def _open(file: str) -> int | None:
    """An entry, for reading, and for noting that it is good if this process may."""
    for access in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(file, access | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                return None
    return None


def cache_directory(path: str | os.PathLike[str] | None = None) -> str:
    """The absolute path of a node cache's directory; None: that of this process's own one."""
    if path is None:
        path = os.environ.get("HOPYARD_CACHE") or _default()
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"a cache's path must be a non-empty string or Path, not {path!r}. Give a directory."
        )
    text = os.path.expanduser(text)  # noqa: PTH111
    if text.startswith("~"):
        raise UsageError(
            f"the cache's directory {text} cannot be found, since this user has no home directory. Give a "
            "directory as cache= or in the environment variable HOPYARD_CACHE."
        )
    return os.path.abspath(text)  # noqa: PTH100


def _default() -> str:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has a path that is not absolute ignored.
    return f"{base if base.startswith('/') else '~/.cache'}/hopyard/data"


def _as_bytes(limit: object) -> int:
    given, where = limit, "limit"
    if limit is None:
        given, where = os.environ.get("HOPYARD_CACHE_BYTES") or DEFAULT_LIMIT, "HOPYARD_CACHE_BYTES"
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        number = float(given) if isinstance(given, str) else given
        if (
            not isinstance(number, bool)
            and isinstance(number, int | float)
            and number >= 0
            and number == int(number)
        ):
            return int(number)
    raise UsageError(
        f"{where}={given!r}, but it must be a whole number of bytes, such as 20e9 for 20 GB, or 0 to keep nothing."
    )
