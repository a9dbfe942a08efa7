"""Power cuts: every state that a disk may be in after one, from a record of all that was done to the disk.

:func:`recording` puts a recorder in the place of ``os`` in ``hopyard.storage.files``, by which all that is relied upon
is changed. From the record a :class:`Disk` follows what is certain and what is not:

* the bytes of a file are certain since its ``fsync``: of those written later each 512 bytes may be the new ones, the
  old ones, or zeros where the file has grown, and its size any that it had since;
* a name in a directory is certain since the directory's ``fsync``: of what was done to it later (a file made, renamed,
  linked or removed there) each may be kept or lost, in whatever order it was done, and apart from what was done to any
  other name. A directory whose own name was lost is lost with all that is in it.

What SQLite writes is not recorded but looked at after each change, and never certain.
"""

# The recorder stands in the place of `os`, and 1,500 disks a second are written.
# ruff: noqa: PTH102, PTH105, PTH106, PTH108, PTH115, PTH116, PTH120, PTH123, PTH208

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.sampling import SEED, sample

from hopyard.data.cache import files as cache_files
from hopyard.data.cache import format as cache_format
from hopyard.storage import files, temporary

SECTOR = 512
_ROOT = -1
_SQLITE = re.compile(r"index.*\.sqlite")
"""Files that SQLite writes itself."""

Change = tuple[Any, ...]
Tree = dict[str, "bytes | Tree"]
"""The content of a directory."""
_Past = list[int | None]


@dataclass
class Record:
    """All that was done below ``root``, in order, with what was said to be done in between.

    Attributes:
        changes: each an action and what it acted upon; ``("done", value)`` says that a call has returned.
    """

    root: Path
    changes: list[Change] = field(default_factory=list)

    def done(self, value: Any = None) -> None:
        """Note that something is to outlast all power cuts from here on."""
        self.changes.append(("done", value))


@contextlib.contextmanager
def recording(root: Path) -> Iterator[Record]:
    """Record all changes below a directory that is there; they are made by another boot than the test's own."""
    recorder = _Recorder(Record(root))
    with (
        patch.object(files, "os", recorder),
        patch.object(temporary, "machine", lambda: "0" * 8),
        patch.object(cache_format, "boot_id", lambda: b"the boot before."),
        patch.object(cache_files, "boot_id", lambda: b"the boot before."),
    ):
        yield recorder.record


class _Recorder:
    """The module ``os``, which notes what it changes."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._root = f"{record.root}/"
        self._lock = threading.RLock()
        self._ids: dict[int, int] = {}  # of inodes
        self._given = 0
        self._looked: dict[str, tuple[tuple[int, int, int], bytes]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            is_new = flags & os.O_CREAT and not os.path.lexists(path)
            fd = os.open(path, flags, mode)
            if is_new:
                self._note("name", os.fspath(path), self._new_id(fd))
            return fd

    def write(self, fd: int, data: Any) -> int:
        return self.writev(fd, [data])

    def writev(self, fd: int, pieces: Any) -> int:
        with self._lock:
            is_at_end = os.get_blocking(fd) and self._flags(fd) & os.O_APPEND
            place = os.fstat(fd).st_size if is_at_end else os.lseek(fd, 0, os.SEEK_CUR)
            written = os.writev(fd, pieces)
            self._note("write", self._id(fd), place, b"".join(map(bytes, pieces))[:written])
            return written

    def pwrite(self, fd: int, data: Any, place: int) -> int:
        with self._lock:
            written = os.pwrite(fd, data, place)
            self._note("write", self._id(fd), place, bytes(data)[:written])
            return written

    def ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            os.ftruncate(fd, size)
            self._note("truncate", self._id(fd), size)

    def fsync(self, fd: int) -> None:
        with self._lock:
            os.fsync(fd)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                self._note("sync directory", os.readlink(f"/proc/self/fd/{fd}"))
            else:
                self._note("sync", self._id(fd))

    def replace(self, path: Any, target: Any) -> None:
        with self._lock:
            identity = self._id_at(path)
            os.replace(path, target)
            self._note("name", os.fspath(target), identity)
            self._note("unname", os.fspath(path))

    def link(self, path: Any, target: Any) -> None:
        with self._lock:
            identity = self._id_at(path)
            os.link(path, target)
            self._note("name", os.fspath(target), identity)

    def unlink(self, path: Any) -> None:
        with self._lock:
            os.unlink(path)
            self._note("unname", os.fspath(path))

    def mkdir(self, path: Any) -> None:
        with self._lock:
            os.mkdir(path)
            self._note("directory", os.fspath(path))

    def rmdir(self, path: Any) -> None:
        with self._lock:
            os.rmdir(path)
            self._note("unname", os.fspath(path))

    def _flags(self, fd: int) -> int:
        return int(Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)

    def _new_id(self, fd: int) -> int:
        self._given += 1
        self._ids[os.fstat(fd).st_ino] = self._given
        return self._given

    def _id(self, fd: int) -> int:
        found = self._ids.get(os.fstat(fd).st_ino)
        return found if found is not None else self._strange(Path(f"/proc/self/fd/{fd}"))

    def _id_at(self, path: Any) -> int:
        found = self._ids.get(os.stat(path).st_ino)
        return found if found is not None else self._strange(Path(path))

    def _strange(self, path: Path) -> int:
        """A file that was there before, as one of the user is that is linked: nothing of it was synced."""
        self._given += 1
        self._ids[path.stat().st_ino] = self._given
        self._note("write", self._given, 0, path.read_bytes())
        return self._given

    def _note(self, action: str, *what: Any) -> None:
        paths = [each for each in what if isinstance(each, str)]
        if all(path.startswith(self._root) or path == self._root[:-1] for path in paths):
            self.record.changes.append((action, *(self._below(each) for each in what)))
            self._look()

    def _below(self, what: Any) -> Any:
        return what[len(self._root) :] if isinstance(what, str) else what

    def _look(self) -> None:
        """Note what SQLite has written since the last change."""
        for folder in {
            os.path.dirname(each) for each in self.record.changes[-1][1:2] if isinstance(each, str)
        }:
            for name in filter(_SQLITE.fullmatch, os.listdir(f"{self._root}{folder}")):
                full = f"{self._root}{folder}/{name}"
                if full not in self._looked:
                    self._given += 1
                    self._looked[full] = (0, 0, 0), b""
                    self.record.changes.append(("name", f"{folder}/{name}", self._given))
        for full, (state, before) in list(self._looked.items()):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(full)
                now = status.st_ino, status.st_size, status.st_mtime_ns
                if now != state:
                    data = Path(full).read_bytes()
                    self._looked[full] = now, data
                    self._note_difference(full, before, data)

    def _note_difference(self, full: str, before: bytes, data: bytes) -> None:
        name = full[len(self._root) :]
        identity = next(each[2] for each in self.record.changes if each[:2] == ("name", name))
        for place in range(0, len(data), SECTOR):
            if data[place : place + SECTOR] != before[place : place + SECTOR]:
                self.record.changes.append(("write", identity, place, data[place : place + SECTOR]))
        if len(data) < len(before):
            self.record.changes.append(("truncate", identity, len(data)))


class _File:
    """The bytes of a file: those that are certain, and all that each sector was since."""

    def __init__(self) -> None:
        self.certain = b""
        self.now = bytearray()
        self.sizes = [0]
        self.sectors: dict[int, list[bytes]] = {}

    def write(self, place: int, data: bytes) -> None:
        self.now.extend(bytes(max(0, place + len(data) - len(self.now))))
        self.now[place : place + len(data)] = data
        self._changed(place // SECTOR, -(-(place + len(data)) // SECTOR))

    def truncate(self, size: int) -> None:
        first = min(size, len(self.now)) // SECTOR
        last = -(-max(size, len(self.now)) // SECTOR)
        del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))
        self._changed(first, last)

    def _changed(self, first: int, last: int) -> None:
        self.sizes.append(len(self.now))
        for sector in range(first, last):
            self.sectors.setdefault(sector, []).append(self._sector(self.now, sector))

    @staticmethod
    def _sector(data: bytes | bytearray, sector: int) -> bytes:
        return bytes(data[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def sync(self) -> None:
        self.certain, self.sizes, self.sectors = bytes(self.now), [len(self.now)], {}

    @property
    def is_uncertain(self) -> bool:
        return bool(self.sectors) or len(self.sizes) > 1

    @property
    def ways(self) -> int:
        """How many of the ways in which bytes can be lost are tried one by one."""
        return (6 if self.sectors else 2) if self.is_uncertain else 1

    def left(self, way: int, at: float, chance: random.Random) -> bytes:
        """The bytes after a power cut: all, none, only the size, a torn beginning (cut off or full of zeros), all but a
        sector, or any mixture.

        Args:
            at: where it is torn, from 0 to 1.
        """
        if way == 0:
            return bytes(self.now)
        if way == 1 or not self.sectors:
            return self.certain
        torn = sorted(self.sectors)[int(at * len(self.sectors))]
        if way == 2:
            return self._mixed(len(self.now), dict.fromkeys(self.sectors, 0))
        if way == 3:
            return bytes(self.now[: torn * SECTOR])
        if way == 4:
            return self._mixed(len(self.now), {each: 0 for each in self.sectors if each >= torn})
        if way == 5:
            return self._mixed(len(self.now), {torn: 0})
        versions = {each: chance.randrange(len(past) + 1) for each, past in self.sectors.items()}
        return self._mixed(chance.choice(self.sizes), versions)

    def _mixed(self, size: int, versions: dict[int, int]) -> bytes:
        """These versions of sectors, from 0, as it was at the last sync, on; the newest of all others."""
        data = bytearray(max(size, len(self.now)))
        data[: len(self.now)] = self.now
        for sector, version in versions.items():
            past = self._sector(self.certain, sector) if version == 0 else self.sectors[sector][version - 1]
            data[sector * SECTOR : (sector + 1) * SECTOR] = past
        return bytes(data[:size])


class Disk:
    """A disk as a record has changed it up to some change."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        # By directory, then by name, what the name was since it was certain: the number of a file, or below 0 of a
        # directory; or None: nothing.
        self._names: dict[int, dict[str, _Past]] = {_ROOT: {}}

    def apply(self, change: Change) -> None:
        action, *what = change
        if action == "name":
            self._past(what[0]).append(what[1])
            self._file(what[1])
        elif action == "directory":
            made = _ROOT - len(self._names)
            self._past(what[0]).append(made)
            self._names[made] = {}
        elif action == "unname":
            self._past(what[0]).append(None)
        elif action == "write":
            self._file(what[0]).write(what[1], what[2])
        elif action == "truncate":
            self._file(what[0]).truncate(what[1])
        elif action == "sync":
            self._file(what[0]).sync()
        elif action == "sync directory":
            names = self._names[self._directory(what[0])]
            for name, past in names.items():
                names[name] = past[-1:]

    def _file(self, number: int) -> _File:
        """One that has no name yet is another disk's, or gets one."""
        return self._files.setdefault(number, _File())

    def _past(self, path: str) -> _Past:
        folder, _, name = path.rpartition("/")
        return self._names[self._directory(folder)].setdefault(name, [None])

    def _directory(self, path: str) -> int:
        at = _ROOT
        for name in filter(None, path.split("/")):
            found = self._names[at][name][-1]
            assert found is not None
            at = found
        return at

    def uncertain(self, folder: str) -> list[str]:
        """The names in a directory to which something was done that a power cut may undo."""
        return sorted(name for name, past in self._names[self._directory(folder)].items() if len(past) > 1)

    @property
    def count(self) -> int:
        """How many states are tried one by one: each name's past with each way to lose a file's bytes."""
        return self._count(_ROOT)

    def _count(self, folder: int) -> int:
        return math.prod(sum(map(self._ways, set(past))) for past in self._names[folder].values())

    def _ways(self, each: int | None) -> int:
        if each is None:
            return 1
        return self._count(each) if each < 0 else self._files[each].ways

    def state(self, number: int) -> Tree:
        """One of the ``count`` states."""
        return self._state(_ROOT, number, {})

    def _state(self, folder: int, number: int, seen: dict[int, bytes]) -> Tree:
        tree: Tree = {}
        for name, past in self._names[folder].items():
            options = [(each, way) for each in dict.fromkeys(past) for way in range(self._ways(each))]
            number, chosen = divmod(number, len(options))
            each, left = options[chosen]
            if each is None:
                continue
            if each < 0:
                tree[name] = self._state(each, left, seen)
                continue
            if each not in seen:  # one file may have several names
                seen[each] = self._files[each].left(left, 0.5, random.Random(0))
            tree[name] = seen[each]
        return tree

    def drawn(self, seed: str) -> Tree:
        """Any of all states there are. How much is lost differs: all, most, little, only names, only bytes."""
        chance = random.Random(seed)
        keep_names, keep_bytes = (chance.choice([0.0, 0.1, 0.5, 0.9, 1.0]) for _ in range(2))

        def name(past: _Past) -> int | None:
            return past[-1] if chance.random() < keep_names else chance.choice(past)

        def content(number: int) -> bytes:
            # Of its own chance: how much SQLite has written differs from time to time.
            chance = random.Random(f"{seed} {number}")
            way = 0 if chance.random() < keep_bytes else chance.randrange(7)
            return self._files[number].left(way, chance.random(), chance)

        return self._tree(_ROOT, name, content, {})

    def newest(self) -> Tree:
        """All that was done."""
        return self._tree(_ROOT, lambda past: past[-1], lambda number: bytes(self._files[number].now), {})

    def _tree(
        self,
        folder: int,
        choose: Callable[[_Past], int | None],
        content: Callable[[int], bytes],
        seen: dict[int, bytes],
    ) -> Tree:
        tree: Tree = {}
        for name, past in self._names[folder].items():
            chosen = past[-1] if len(past) == 1 else choose(past)
            if chosen is None:
                continue
            if chosen < 0:
                tree[name] = self._tree(chosen, choose, content, seen)
                continue
            if chosen not in seen:  # one file may have several names
                file = self._files[chosen]
                seen[chosen] = content(chosen) if file.is_uncertain else file.certain
            tree[name] = seen[chosen]
        return tree


@dataclass(frozen=True)
class Cut:
    """A power cut: before the change number ``at`` of a record, the state number ``number``."""

    at: int
    number: int


class Cuts:
    """All power cuts of a record that are tried at this level, and what is left after each.

    Only moments before something becomes certain matter: until then, more and more is possible.

    Args:
        name: of the scenario; which cuts are sampled, and what they leave, depends on it and the seed.
        most: states tried of a moment that has more than that: so many are drawn.
    """

    def __init__(self, name: str, record: Record, most: int, quick: int, ci: int) -> None:
        self._name, self._record = name, record
        self._counts: dict[int, int] = {}
        disk = Disk()
        changes = record.changes
        for at, change in enumerate([*changes, ("done",)]):
            if change[0] in ("sync", "sync directory", "done"):
                self._counts[at] = disk.count
            if at < len(changes):
                disk.apply(change)
        past = set(_listed(_recorded(disk.newest()))) ^ set(_listed(_recorded(read_tree(record.root))))
        assert not past, f"these were changed past the layer: {sorted(past)}"
        cuts = [Cut(at, number) for at, count in self._counts.items() for number in range(min(count, most))]
        self._most = most
        self.cuts = sample(name, cuts, quick, ci)

    def __iter__(self) -> Iterator[tuple[Cut, list[Any], Tree]]:
        """Each cut, what was done before it, and what it leaves."""
        disk, applied, done = Disk(), 0, []
        for cut in self.cuts:
            for change in self._record.changes[applied : cut.at]:
                disk.apply(change)
                if change[0] == "done":
                    done.append(change[1])
            applied = cut.at
            if self._counts[cut.at] <= self._most:
                yield cut, list(done), disk.state(cut.number)
            else:
                yield cut, list(done), disk.drawn(f"{SEED} {self._name} {cut.at} {cut.number}")

    def check(self, root: Path, look: Callable[[list[Any], Cut], None]) -> None:
        """Put the disk into each state, and look at it.

        Args:
            look: given what was done before the cut. An exception is told with the cut it belongs to.
        """
        for cut, done, tree in self:
            shutil.rmtree(root)
            write_tree(root, tree)
            try:
                look(done, cut)
            except BaseException as error:
                last = [_told(each) for each in self._record.changes[max(0, cut.at - 8) : cut.at]]
                error.add_note(
                    f"{self._name}: {cut} (HOPYARD_SEED={SEED}), after:\n  "
                    + "\n  ".join(last)
                    + "\nleft:\n  "
                    + "\n  ".join(_listed(tree))
                )
                raise


def _told(change: Change) -> str:
    return " ".join(f"{len(each)} bytes" if isinstance(each, bytes) else str(each) for each in change)


def _listed(tree: Tree, folder: str = "") -> Iterator[str]:
    for name, content in sorted(tree.items()):
        if isinstance(content, bytes):
            zeros = " zeros" if content and not content.strip(bytes(1)) else ""
            yield f"{folder}{name}: {len(content)} bytes, {hashlib.sha256(content).hexdigest()[:8]}{zeros}"
        else:
            yield f"{folder}{name}/"
            yield from _listed(content, f"{folder}{name}/")


def write_tree(folder: Path, tree: Tree) -> None:
    """Make a directory with this content. What a dead process left unfinished was left two days ago."""
    os.mkdir(folder)
    for name, content in tree.items():
        path = f"{folder}/{name}"
        if isinstance(content, bytes):
            with open(path, "wb", buffering=0) as file:
                file.write(content)
            if ".tmp-" in name:
                os.utime(path, (0, 0))
        else:
            write_tree(Path(path), content)
            if ".tmp-" in name:
                os.utime(path, (0, 0))


def _recorded(tree: Tree) -> Tree:
    """Without what SQLite writes."""
    return {
        name: content if isinstance(content, bytes) else _recorded(content)
        for name, content in tree.items()
        if not _SQLITE.match(name)
    }


def read_tree(folder: Path) -> Tree:
    """The content of a directory."""
    return {each.name: read_tree(each) if each.is_dir() else each.read_bytes() for each in folder.iterdir()}


@contextlib.contextmanager
def scratch_disk() -> Iterator[Path]:
    """A directory in memory, if there is such, for disks that live a moment each."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as folder:
        root = Path(folder, "disk")
        root.mkdir()
        yield root


def files_of(folder: Path) -> list[Path]:
    """All files below a directory."""
    return [path for path in folder.rglob("*") if path.is_file()]
