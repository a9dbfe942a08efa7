"""Digest to location, remembered in a SQLite file that any number of processes use at once.

All of it stands in the headers of packfiles, so whatever is wrong with the file costs time only: one that is damaged or
of another format is made anew, and where SQLite cannot work (a directory that is read only, a file system without
locks, a disk that is full) the index of this process is in memory from then on.

One thing stands nowhere else: which data were in packfiles that are gone. It tells data that were lost from data that
were never brought here; where the file was lost, too, they are taken for the latter.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from hopyard.stockroom.packfiles.forking import LOCK
from hopyard.stockroom.packfiles.layout import META_KINDS, Location, Packfile
from hopyard.storage import temporary

_Result = TypeVar("_Result")

_FORMAT = 5
_SCHEMA = (
    "CREATE TABLE packfiles (number INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER, whole INTEGER, sum INTEGER)",
    """CREATE TABLE objects (digest BLOB, packfile INTEGER, start INTEGER, stop INTEGER, kind TEXT, dtype TEXT, shape
       TEXT, sum INTEGER, PRIMARY KEY (digest, packfile)) WITHOUT ROWID""",
    "CREATE TABLE gone (digest BLOB PRIMARY KEY) WITHOUT ROWID",
)
_PACKFILES = "SELECT name, size, whole, sum FROM packfiles"
_FIND = (
    "SELECT digest, name, start, stop, kind, dtype, shape, objects.sum "
    "FROM objects JOIN packfiles ON number = packfile WHERE digest IN "
)
_BEGINNING = "SELECT DISTINCT digest FROM objects WHERE digest BETWEEN ? AND ? AND kind = ? ORDER BY digest"
_DATA = f"kind NOT IN ({', '.join(map(repr, META_KINDS))})"
_GO = f"""INSERT OR IGNORE INTO gone SELECT digest FROM objects
    WHERE {_DATA} AND packfile NOT IN (SELECT number FROM packfiles)"""
_DIGITS = 64
_AT_ONCE = 500  # parameters of a statement; old versions of SQLite take 999
_BUSY = 5.0  # seconds to wait for other processes, whose transactions are short
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_ERRORS = (
    sqlite3.Error,
    ValueError,
    TypeError,
    AttributeError,
)  # the latter where a row is not what was written


class Index:
    """The content of all packfiles that were seen so far.

    Args:
        path: the file; None: in memory.

    Attributes:
        path: None from the moment when it had to be in memory.
        losses: how often it was found damaged, and begun anew, empty.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.losses: int = 0
        self._open: sqlite3.Connection | None = None
        self._pid = 0
        self._file: tuple[int, int] | None = None  # device and inode of the file that is open
        self._packfiles: tuple[int, dict[str, tuple[int, int]]] | None = (
            None  # and of which version of the file
        )

    def find(self, digests: Iterable[str]) -> dict[str, Location]:
        """Places of these objects, as far as they are known."""
        keys = sorted(bytes.fromhex(digest) for digest in digests)  # each page of the file is read once
        return self._run(lambda db: _find(db, keys))

    def places(self, digest: str) -> list[Location]:
        """Everywhere where an object is."""
        return self._run(lambda db: [place for _, place in _rows_of(db, [bytes.fromhex(digest)])])

    def beginning(self, prefix: str, kind: str) -> list[str]:
        """The known objects of a kind whose digests begin with these hex digits, in order."""
        ends = [bytes.fromhex(prefix.ljust(_DIGITS, digit)) for digit in "0f"]
        return self._run(lambda db: [key.hex() for (key,) in db.execute(_BEGINNING, (*ends, kind))])

    def packfiles(self) -> dict[str, tuple[int, int]]:
        """Of every known packfile how many bytes it had when its header was read, and how many it should have."""
        return self._run(lambda db: dict(self._read_packfiles(db)))

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Bytes that these packfiles had when their headers were read, as far as they are known."""
        return self._run(lambda db: dict(_sizes(db, list(names))))

    def _read_packfiles(self, db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
        # The version changes when another connection changes the file.
        (version,) = db.execute("PRAGMA data_version").fetchone()
        if self._packfiles is None or self._packfiles[0] != version:
            rows = map(_checked_packfile, db.execute(_PACKFILES))
            self._packfiles = version, {name: (size, whole) for name, size, whole in rows}
        return self._packfiles[1]

    def gone(self) -> set[str]:
        """Data that were in a packfile which is gone, or was cut off, and in no other one that was seen since."""
        return self._run(lambda db: {key.hex() for (key,) in db.execute("SELECT digest FROM gone")})

    def note_gone(self, digests: Iterable[str]) -> None:
        """Take these for gone, but for those that are in a packfile."""
        keys = [(bytes.fromhex(digest),) for digest in digests]
        self._run(lambda db: _note_gone(db, keys))

    def all_data(self) -> set[str]:
        """All data that are, or were, in a packfile that was seen."""
        wanted = f"SELECT digest FROM objects WHERE {_DATA} UNION SELECT digest FROM gone"
        return self._run(lambda db: {key.hex() for (key,) in db.execute(wanted)})

    def add(self, packfiles: Sequence[Packfile]) -> None:
        """Remember what these packfiles hold. Known ones are left as they are."""
        self._run(lambda db: self._change(db, packfiles, ()))

    def remove(self, names: Sequence[str]) -> None:
        """Forget these packfiles and what they hold."""
        self._run(lambda db: self._change(db, (), names))

    def _change(self, db: sqlite3.Connection, added: Sequence[Packfile], removed: Sequence[str]) -> None:
        new = _change(db, added, removed)
        if self._packfiles is not None:
            _, packfiles = self._packfiles
            packfiles |= {packfile.name: (packfile.size, packfile.whole) for packfile in new}
            for name in removed:
                packfiles.pop(name, None)

    def clear(self) -> None:
        """Forget everything: the file may be damaged where SQLite does not see it."""
        with LOCK:
            self._close()
            self._delete()

    def _run(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """``work``'s result: at once; or with a file opened anew, or made anew; or in memory."""
        with LOCK:
            try:
                return work(self._connection())
            except _ERRORS as error:
                self._close()
                # Otherwise the file may have been replaced by another process, which a second look finds out.
                if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGED:
                    self._delete()
                    self.losses += 1
            try:
                return work(self._connection())
            except _ERRORS:
                self._close()
                self.path = None
                return work(self._connection())

    def _connection(self) -> sqlite3.Connection:
        pid = os.getpid()
        if self._open is not None and self._pid == pid and self._is_replaced():
            self._close()
        if self._open is not None and self.path is not None and self._pid != pid:
            _of_parents.append(self._open)  # not even to be closed: SQLite forbids it after a fork
            self._open = None
        if self._open is None:
            self._open, self._pid, self._packfiles = _connect(self.path), pid, None
            self._file = None if self.path is None else _inode(self.path)
        return self._open

    def _is_replaced(self) -> bool:
        """Whether another process has made the index anew, as ``gc`` and ``purge`` do: the open file knows of nothing
        that was deleted since then."""
        if self.path is None:
            return False
        now = _inode(self.path)
        return now is not None and now != self._file

    def _close(self) -> None:
        if self._open is not None:
            with contextlib.suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    def _delete(self) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):
                # The journal first: left alone it would be rolled back into the next file.
                self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - it is looked at for each read, and Path takes twice as long
    except OSError:
        return None
    return status.st_dev, status.st_ino


_of_parents: list[sqlite3.Connection] = []


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        with contextlib.suppress(OSError):  # opening the file says what is wrong
            path.parent.mkdir(parents=True, exist_ok=True)
    name = ":memory:" if path is None else str(path)
    db = sqlite3.connect(name, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        # A crash of the process damages nothing; what one of the machine has damaged is made anew.
        db.execute("PRAGMA synchronous = OFF")
        if path is not None:
            _check_since_boot(db)
        if _version(db) != _FORMAT:
            db.execute("BEGIN IMMEDIATE")
            if _version(db) != _FORMAT:  # no other process was faster
                _make(db)
            db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def _check_since_boot(db: sqlite3.Connection) -> None:
    """See, once since the machine started, that the file is whole. One that a power cut has left, of old and new pages,
    may lack rows in some queries and have them in others.

    Raises:
        ValueError: it is not.
    """
    here = int(temporary.machine(), 16) - (1 << 31)
    if db.execute("PRAGMA application_id").fetchone()[0] == here:
        return
    if (found := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
        raise ValueError(found)
    with contextlib.suppress(sqlite3.Error):  # it can only be read, or others write: the next one looks, too
        db.execute(f"PRAGMA application_id = {here}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _make(db: sqlite3.Connection) -> None:
    """The tables, instead of those of another format."""
    for table in ("packfiles", "objects", "gone"):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {_FORMAT}")


def _sizes(db: sqlite3.Connection, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        for row in db.execute(f"{_PACKFILES} WHERE name IN ({','.join('?' * len(some))})", some):
            yield _checked_packfile(row)[0], row[1]


def _checked_packfile(row: tuple[Any, ...]) -> tuple[str, int, int]:
    """Name, size and whole size of a packfile; raises what the index takes for damage."""
    name, size, whole, check = row
    if check != _sum((name, size, whole)):
        raise ValueError(f"the row of {name!r} is not what was written")
    return name, size, whole


def _find(db: sqlite3.Connection, keys: list[bytes]) -> dict[str, Location]:
    return {key.hex(): place for key, place in _rows_of(db, keys)}


def _rows_of(db: sqlite3.Connection, keys: list[bytes]) -> Iterator[tuple[bytes, Location]]:
    shapes: dict[str, tuple[int, ...]] = {}  # a model has many tensors of few shapes
    for first in range(0, len(keys), _AT_ONCE):
        some = keys[first : first + _AT_ONCE]
        for row in db.execute(f"{_FIND} ({','.join('?' * len(some))})", some):
            key, packfile, start, stop, kind, dtype, shape, check = row
            if check != _sum(row[:-1]):
                raise ValueError(f"the row of {key!r} is not what was written")
            if shape is None:
                lengths: tuple[int, ...] = (stop - start,)
            elif shape in shapes:
                lengths = shapes[shape]
            else:
                lengths = shapes[shape] = tuple(map(int, shape.split()))
            yield key, Location(packfile, start, stop, kind, dtype or "U8", lengths)


def _change(db: sqlite3.Connection, added: Sequence[Packfile], removed: Sequence[str]) -> list[Packfile]:
    """The packfiles that were not known."""
    new = []
    is_any_gone = bool(removed) or db.execute("SELECT 1 FROM gone LIMIT 1").fetchone() is not None
    db.execute("BEGIN IMMEDIATE")
    try:
        if removed:
            db.executemany("DELETE FROM packfiles WHERE name = ?", [(name,) for name in removed])
            db.execute(_GO)
            db.execute("DELETE FROM objects WHERE packfile NOT IN (SELECT number FROM packfiles)")
        for packfile in added:
            row = db.execute(
                "INSERT OR IGNORE INTO packfiles (name, size, whole, sum) VALUES (?, ?, ?, ?) RETURNING number",
                (*packfile[:3], _sum(packfile[:3])),
            ).fetchone()
            if row is not None:
                db.executemany(
                    "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)", sorted(_rows(packfile, row[0]))
                )
                new.append(packfile)
                if packfile.cut:
                    db.executemany("INSERT OR IGNORE INTO gone VALUES (?)", _keys(packfile.cut))
                if is_any_gone or packfile.cut:
                    db.executemany("DELETE FROM gone WHERE digest = ?", _keys(packfile.objects))
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return new


def _note_gone(db: sqlite3.Connection, keys: list[tuple[bytes]]) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        db.executemany("INSERT OR IGNORE INTO gone VALUES (?)", keys)
        db.execute("DELETE FROM gone WHERE digest IN (SELECT digest FROM objects)")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _keys(digests: Iterable[str]) -> Iterator[tuple[bytes]]:
    return ((bytes.fromhex(digest),) for digest in digests)


def _rows(packfile: Packfile, number: int) -> Iterator[tuple[Any, ...]]:
    for digest, (name, start, stop, kind, dtype, shape) in packfile.objects.items():
        described = (dtype, " ".join(map(str, shape))) if kind == "tensor" else (None, None)
        key = bytes.fromhex(digest)
        yield key, number, start, stop, kind, *described, _sum((key, name, start, stop, kind, *described))


def _sum(row: tuple[Any, ...]) -> int:
    return crc32(repr(row).encode())
