"""Machines that share a directory as clients of NFS 4.2 were measured to, on a clock that only tests move.

The directory is what the server has. While a machine is at work, Python's calls of the file system below it go through
what that machine remembers, for as long as an attribute cache does (``actimeo``): which names there are and which there
are not, of which file each is, sizes and times. So it is with Linux's client (``tests/services/nfs`` compares both):

* a name that was looked up before it was there, a size and an unlink are seen when what is remembered is too old;
* opening a directory, as listing it does, lets all names in it be looked up anew;
* a file is opened as its name is remembered, so one that was replaced is opened as it was, if the server still has it;
* a file that is opened has the content and the size that it has on the server;
* what is written is on the server once the file is synced, closed, locked or unlocked;
* creating exclusively, links, renames and locks are the server's.

What C code opens by its path, such as SQLite's file, is the server's, and so are all calls where no machine is at work.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import io
import itertools
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hopyard.storage import Buffer, Entry, Part, Store

SECONDS = 3.0
"""The time for which a machine believes what it remembers."""

_REMEMBERED = 200  # names of a machine, each with a descriptor
_WRITABLE = os.O_WRONLY | os.O_RDWR

_real: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in (
        "open", "close", "read", "pread", "write", "pwrite", "writev", "fsync", "ftruncate", "fstat", "stat", "lstat",
        "scandir", "listdir", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link",
    )
}  # fmt: skip
_real_flock, _real_io_open = fcntl.flock, io.open


class _Name(NamedTuple):
    """What is remembered of a name: a descriptor of the file that it was of, or None: there was none."""

    descriptor: int | None
    seen: float


@dataclass
class _Unwritten:
    """What was written to a descriptor and is not on the server; ``offset`` None: it goes to the end."""

    position: int | None
    parts: list[tuple[int | None, bytes]] = field(default_factory=list)


def _above(path: str) -> str:
    return path.rpartition("/")[0]


class Nfs:
    """The directory ``root``, which machines share.

    Args:
        forgets: whether the server forgets replaced files at once, so that using one is ``ESTALE``.
    """

    def __init__(self, root: Path, forgets: bool = False) -> None:
        self.root = os.path.realpath(root)
        self.forgets = forgets
        self.clock = 0.0

    def __reduce__(self) -> tuple[Callable[..., Nfs], tuple[str, bool]]:
        return _elsewhere, (self.root, self.forgets)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock += seconds

    @contextmanager
    def mounted(self) -> Iterator[Nfs]:
        """Meanwhile machines can be at work, in this process."""
        replaced = [(os, name, getattr(os, name)) for name in _real]
        replaced += [(fcntl, "flock", fcntl.flock), (io, "open", io.open), (builtins, "open", builtins.open)]
        for name in _real:
            setattr(os, name, _through(name))
        fcntl.flock = _flock
        io.open = builtins.open = _io_open  # type: ignore[assignment]
        try:
            yield self
        finally:
            for module, name, before in replaced:
                setattr(module, name, before)


def _elsewhere(root: str, forgets: bool) -> Nfs:
    """The same directory in another process, mounted until that ends."""
    nfs = Nfs(Path(root), forgets)
    contextlib.ExitStack().enter_context(nfs.mounted())
    _kept.append(nfs)
    return nfs


_kept: list[Nfs] = []
_at_work = threading.local()


class Machine:
    """One client."""

    def __init__(self, nfs: Nfs) -> None:
        self.nfs = nfs
        self.root = Path(nfs.root)
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._status: dict[tuple[int, int], tuple[os.stat_result, float]] = {}
        self._unwritten: dict[int, _Unwritten] = {}
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Machine], tuple[Nfs]]:
        return Machine, (self.nfs,)

    @contextmanager
    def at_work(self) -> Iterator[Path]:
        """This thread's calls are the machine's meanwhile. Gives the directory."""
        before = getattr(_at_work, "machine", None)
        _at_work.machine = self
        try:
            yield self.root
        finally:
            _at_work.machine = before

    def knows(self, path: object) -> bool:
        """Whether a path is in the directory."""
        return isinstance(path, str | os.PathLike) and f"{os.fspath(path)}/".startswith(f"{self.nfs.root}/")

    # What is remembered

    def _is_old(self, seen: float) -> bool:
        return self.nfs.clock - seen >= SECONDS

    def _name(self, path: str) -> _Name:
        """What the machine takes a name for, whose directory it has been through."""
        known = self._names.get(path)
        return self._ask(path) if known is None or self._is_old(known.seen) else known

    def _ask(self, path: str) -> _Name:
        """What the server takes it for now."""
        self._forget(path)
        try:
            descriptor = _real["open"](path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            descriptor = None
        self._names[path] = name = _Name(descriptor, self.nfs.clock)
        if len(self._names) > _REMEMBERED:
            self._forget(next(iter(self._names)))
        return name

    def _forget(self, path: str) -> None:
        name = self._names.pop(path, None)
        if name is not None and name.descriptor is not None:
            _real["close"](name.descriptor)

    def _look_up(self, path: str) -> int:
        """A descriptor of the file that the machine takes a name to be of.

        Raises:
            FileNotFoundError: of none.
        """
        self._go_to(path)
        return self._there(path)

    def _there(self, path: str) -> int:
        descriptor = self._name(path).descriptor
        if descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return descriptor

    def _go_to(self, path: str) -> None:
        """Go through the directories above a name."""
        above = _above(path)
        if above != self.nfs.root and self.knows(above):
            self._look_up(above)

    def _open_directory(self, path: str) -> None:
        """Names in it are asked for anew from now on."""
        for known in [known for known in self._names if _above(known) == path]:
            self._forget(known)

    def _drop_status(self, descriptor: int) -> None:
        status = _real["fstat"](descriptor)
        self._status.pop((status.st_dev, status.st_ino), None)

    # Calls

    def open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None, is_buffered: bool = True
    ) -> int:
        path = os.fspath(path)
        with self._lock:
            self._go_to(path)
            is_new = flags & os.O_CREAT and (flags & os.O_EXCL or self._name(path).descriptor is None)
            if is_new:
                try:
                    descriptor = int(_real["open"](path, flags, mode))
                finally:
                    self._ask(path)
            else:
                there = self._there(path)
                status = _real["fstat"](there)
                if stat.S_ISREG(status.st_mode):
                    if status.st_nlink == 0 and self.nfs.forgets:
                        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
                    again = flags & ~(os.O_CREAT | os.O_NOFOLLOW)
                    descriptor = int(_real["open"](f"/proc/self/fd/{there}", again))
                    self._drop_status(there)
                else:
                    descriptor = int(_real["open"](path, flags, mode))
                    self._open_directory(path)
            self._unwritten.pop(descriptor, None)
            if flags & _WRITABLE and is_buffered:
                self._unwritten[descriptor] = _Unwritten(None if flags & os.O_APPEND else 0)
            return descriptor

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        path = os.fspath(path)
        with self._lock:
            there = self._look_up(path)
            now: os.stat_result = _real["fstat"](there)
            if stat.S_ISLNK(now.st_mode) and follow_symlinks:
                return _real["stat"](path)  # type: ignore[no-any-return]
            if stat.S_ISDIR(now.st_mode):
                return now
            key = now.st_dev, now.st_ino
            known = self._status.get(key)
            if known is not None and not self._is_old(known[1]):
                return known[0]
            if now.st_nlink == 0 and self.nfs.forgets:  # the system itself looks the name up once more
                self._forget(path)
                return self.stat(path, follow_symlinks=follow_symlinks)
            self._status[key] = now, self.nfs.clock
            return now

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        return self.stat(path, follow_symlinks=False)

    def _directory(self, path: Any) -> str:
        path = os.fspath(path)
        with self._lock:
            self._look_up(path)
            self._open_directory(path)
        return str(path)

    def scandir(self, path: Any = ".") -> Any:
        return _real["scandir"](self._directory(path))

    def listdir(self, path: Any = ".") -> Any:
        return _real["listdir"](self._directory(path))

    def _new(self, call: str, path: str, *arguments: Any) -> None:
        """A call that makes a name: what is remembered as there is not asked for."""
        with self._lock:
            self._go_to(path)
            known = self._names.get(path)
            if known is not None and known.descriptor is not None and not self._is_old(known.seen):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            try:
                _real[call](*arguments)
            finally:
                self._ask(path)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._new("mkdir", os.fspath(path), path, mode)

    def link(self, source: Any, target: Any, **_: Any) -> None:
        with self._lock:
            if self.knows(source):
                self._drop_status(self._look_up(os.fspath(source)))
            self._new("link", os.fspath(target), source, target)

    def _old(self, call: str, path: str, *arguments: Any) -> None:
        """A call that takes a name away."""
        with self._lock:
            self._look_up(path)
            try:
                _real[call](*arguments)
            finally:
                self._ask(path)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._old("rmdir", os.fspath(path), path)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._old("unlink", os.fspath(path), path)

    remove = unlink

    def replace(self, source: Any, target: Any, **_: Any) -> None:
        with self._lock:
            self._go_to(os.fspath(target))
            try:
                if self.knows(source):
                    self._old("replace", os.fspath(source), source, target)
                else:
                    _real["replace"](source, target)
            finally:
                if self.knows(target):
                    self._ask(os.fspath(target))

    rename = replace

    # What is written

    def write(self, descriptor: int, data: Buffer) -> int:
        return self.writev(descriptor, [data])

    def writev(self, descriptor: int, parts: Any) -> int:
        data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        with self._lock:
            unwritten = self._unwritten[descriptor]
            unwritten.parts.append((unwritten.position, data))
            if unwritten.position is not None:
                unwritten.position += len(data)
        return len(data)

    def pwrite(self, descriptor: int, data: Buffer, offset: int) -> int:
        with self._lock:
            self._unwritten[descriptor].parts.append((offset, bytes(data)))
        return memoryview(data).nbytes

    def flush(self, descriptor: int) -> None:
        """Bring to the server what was written to a descriptor."""
        with self._lock:
            unwritten = self._unwritten.get(descriptor)
            if unwritten is None or not unwritten.parts:
                return
            for offset, data in unwritten.parts:
                if offset is None:
                    _real["write"](descriptor, data)
                else:
                    _real["pwrite"](descriptor, data, offset)
            unwritten.parts.clear()
            self._drop_status(descriptor)

    def is_writing(self, descriptor: object) -> bool:
        return descriptor in self._unwritten

    def let_go(self, descriptor: int) -> None:
        """Write what is unwritten, and leave the descriptor to others."""
        self.flush(descriptor)
        self._unwritten.pop(descriptor, None)

    def lock(self, descriptor: int, how: int) -> None:
        self.flush(descriptor)
        _real_flock(descriptor, how)
        with self._lock:
            self._drop_status(descriptor)


def _machine() -> Machine | None:
    return getattr(_at_work, "machine", None)


_BUFFERED = ("write", "pwrite", "writev")
_FLUSHED = ("read", "pread", "fsync", "ftruncate", "fstat")


def _through(name: str) -> Callable[..., Any]:
    """The call of the file system that asks the machine at work, if there is one."""
    real = _real[name]

    def call(*arguments: Any, **options: Any) -> Any:
        machine = _machine()
        if machine is None or not arguments:
            return real(*arguments, **options)
        first = arguments[0]
        if name == "close":
            try:
                machine.let_go(first)
            finally:
                real(first)
            return None
        if name in _FLUSHED:
            machine.flush(first)
            return real(*arguments, **options)
        if name in _BUFFERED:
            is_its = machine.is_writing(first)
        else:
            is_its = options.get("dir_fd") is None and any(map(machine.knows, arguments[:2]))
        return (getattr(machine, name) if is_its else real)(*arguments, **options)

    call.__name__ = call.__qualname__ = name
    return call


def _flock(descriptor: Any, how: int) -> None:
    machine = _machine()
    if machine is None or not isinstance(descriptor, int):
        _real_flock(descriptor, how)
    else:
        machine.lock(descriptor, how)


def _io_open(file: Any, *arguments: Any, opener: Any = None, **options: Any) -> Any:
    machine = _machine()
    if machine is not None and opener is None:
        if isinstance(file, int):
            machine.let_go(file)  # written and closed in C from now on
        elif machine.knows(file):

            def opener(path: str, flags: int) -> int:
                return machine.open(path, flags, 0o666, is_buffered=False)

    return _real_io_open(file, *arguments, opener=opener, **options)


class TurnsStore(Store):
    """A store that several machines have: each call is made by another one than the call before.

    Args:
        machines: gives of each what lets it be at work, and the store as it has it.
    """

    def __init__(self, *machines: tuple[Callable[[], AbstractContextManager[object]], Store]) -> None:
        self._machines = machines
        self._turns = itertools.count()

    @contextmanager
    def _turn(self) -> Iterator[Store]:
        at_work, store = self._machines[next(self._turns) % len(self._machines)]
        with at_work():
            yield store

    @property
    def url(self) -> str:
        """The end of the path that all have in common: mounts may be at several places of one machine."""
        ends = zip(*(store.url.split("/")[::-1] for _, store in self._machines), strict=False)
        return "/".join([each[0] for each in itertools.takewhile(lambda end: len({*end}) == 1, ends)][::-1])

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with self._turn() as store:
            return store.get(name, start, length)

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        with self._turn() as store:
            return store.read(name, start, length)

    def put(self, name: str, data: Buffer) -> None:
        with self._turn() as store:
            store.put(name, data)

    def put_new(self, name: str, data: Buffer) -> bool:
        with self._turn() as store:
            return store.put_new(name, data)

    def put_file(self, name: str, path: Path) -> None:
        with self._turn() as store:
            store.put_file(name, path)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        with self._turn() as store:
            return iter([*store.list(prefix)])

    def names(self, prefix: str = "") -> set[str]:
        with self._turn() as store:
            return store.names(prefix)

    def folders(self, prefix: str = "") -> Any:
        with self._turn() as store:
            return store.folders(prefix)

    def size(self, name: str) -> int | None:
        with self._turn() as store:
            return store.size(name)

    def delete(self, name: str) -> None:
        with self._turn() as store:
            store.delete(name)

    def path(self, name: str) -> Path | None:
        return self._machines[0][1].path(name)

    def version(self, name: str) -> str | None:
        with self._turn() as store:
            return store.version(name)

    def written_at(self, name: str) -> float | None:
        with self._turn() as store:
            return store.written_at(name)

    def staging(self) -> Path | None:
        return None  # it is of one machine
