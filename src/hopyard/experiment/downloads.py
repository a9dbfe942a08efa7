"""Objects of stores as files of this machine: transferred once, resumed, checked, shared by all processes.

What a URL leads to is an entry of the download cache: a folder whose name is the digest of the URL and of all that the
store tells of the objects (names, sizes, versions), so that a changed object is another entry::

    <key>/lock       held (flock) by all processes that use the entry, together, or by one that deletes it, alone
    <key>/transfer   held by the process that transfers
    <key>/plan       URL and bytes, as JSON
    <key>/parts      records of the parts that were written: object, part, checksum of its bytes
    <key>/partial/   the files, as long as parts of them are missing
    <key>/whole/     the files, read only, once nothing is missing
    <key>/stamp      boot, and digest of the files' sizes and times, at which the content was known to be right

Locks die with their holders. One process transfers, and the others wait. If it is killed, one of them goes on: parts
that are recorded are compared with their checksums and kept. So is the content of a whole entry where the stamp is
another one: after a boot, since nothing is synced, and when somebody wrote to a file.

While there are more bytes than the limit, the entry that was used longest ago is deleted, if nobody uses it. Who
deletes holds the lock alone until the folder has another name; who waited for the lock looks afterwards whether the
folder still has that file. So nothing is deleted that a process uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from hopyard.checks import integer
from hopyard.data.cache import files as cache_files
from hopyard.data.cache.format import boot_id
from hopyard.data.cache.node import cache_directory
from hopyard.errors import CorruptError, NotFoundError, StorageFullError, UsageError
from hopyard.experiment.remote import Found, find, local_path
from hopyard.storage import files
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import sweep, temporary_name
from hopyard.wording import describe_bytes

DEFAULT_LIMIT: int = 100 * 10**9
"""Bytes that the download cache keeps unless ``HOPYARD_DOWNLOAD_BYTES`` says otherwise."""

_LOCK, _TRANSFER, _PLAN, _PARTS, _PARTIAL, _WHOLE, _STAMP = (
    "lock", "transfer", "plan", "parts", "partial", "whole", "stamp",
)  # fmt: skip
_AT_ONCE = 8  # requests
_ATTEMPTS = 3  # at an object that is replaced while it is downloaded
_LOOK = 1.0  # seconds between two looks how far another process is
_SELDOM = 10.0  # seconds between two lines of progress
_MOST_FREE = 2 * 10**9  # bytes left free on the file system, or a fiftieth of it
_RECORD = struct.Struct("<IIQQ")  # object, part, checksum of the part; checksum of the bytes before
_CHECKED = _RECORD.size - 8

_exclusive: set[int] = set()
_of_process: dict[str, Downloads] = {}


def download(url: str | os.PathLike[str], directory: str | os.PathLike[str] | None = None) -> Path:
    """The file with the content of an object, or the folder with all objects below a prefix, in use until this process
    ends. Arguments and errors are those of :meth:`Downloads.download`."""
    folder = _default_folder()
    return _of_process.setdefault(folder, Downloads(folder)).download(url, directory)


class Downloads:
    """Downloaded objects in use: they stay on this machine until this is closed.

    Args:
        folder: of the download cache; None: beside the node cache, ``$HOPYARD_CACHE-downloads`` or
            ``~/.cache/hopyard/data-downloads``.
        limit: bytes that are kept, of what no process uses and what some do; more only if the latter are more. None:
            ``$HOPYARD_DOWNLOAD_BYTES``, or ``DEFAULT_LIMIT``.

    Raises:
        UsageError: the limit is no number of bytes.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | None = None) -> None:
        self._folder = _default_folder() if folder is None else files.absolute(folder)
        self._limit = _limit_of_machine() if limit is None else integer("limit", limit, 0)
        self._held: dict[str, int] = {}  # descriptors of locks

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let what was downloaded be deleted when there is no more room. A process that was forked since it was
        downloaded still keeps it."""
        while self._held:
            os.close(self._held.popitem()[1])

    def download(self, url: str | os.PathLike[str], directory: str | os.PathLike[str] | None = None) -> Path:
        """The file with the content that an object has now; or the folder with all objects below a prefix.

        Nothing is transferred if this machine has it already; a transfer that was interrupted is continued; while
        another process transfers it, this one waits. A path of this machine is returned as it is.

        Args:
            url: of an object (``s3://``, ``gs://``, ``az://``, ``abfss://``, ``hdfs://``, ``webhdfs://``, ``https://``),
                or a prefix (``s3://bucket/images/``); or a path.
            directory: where a copy is made, which the caller may write to and which is never deleted; None: the file
                is the one that all processes of the machine share, and nobody may write to it.

        Raises:
            NotFoundError: there is no object.
            UsageError: it is no URL of a kind that can be read; ``directory`` has another file of that name.
            StorageFullError: there is no room on the disk; what has come is kept.
            CorruptError: the object was replaced again and again, or somebody wrote to a file that is in use.
            StorageError: the store cannot be read, or the cache not be written.
        """
        path = local_path(url)
        if path is not None:
            if not path.exists():
                raise NotFoundError(f"there is no file or folder {path}. Correct the path.")
            return path if directory is None else _copied(path, directory)
        for _ in range(_ATTEMPTS):
            found = find(url).pinned()
            if not found.objects:  # they were deleted meanwhile
                continue
            if not found.objects[0].store.shared:
                raise UsageError(
                    f"{os.fspath(url)} is in the memory of this process, and other processes cannot have it. Read it "
                    "from its store."
                )
            entry = _Entry(self._folder, found)
            with write_errors(self._folder):
                cache_files.prepare(self._folder)
            with contextlib.ExitStack() as ending:
                lock = entry.lock_shared()
                ending.callback(os.close, lock)
                if not self._is_brought(entry, lock):
                    continue
                if directory is not None:
                    return _copied(entry.place, directory)
                ending.pop_all()
                if self._held.setdefault(entry.key, lock) != lock:
                    os.close(lock)
                return entry.place
        raise CorruptError(
            f"{os.fspath(url).partition('?')[0]} was replaced while it was downloaded, {_ATTEMPTS} times. Let nothing "
            "write to it meanwhile, and start again."
        )

    def _is_brought(self, entry: _Entry, lock: int) -> bool:
        """Whether the entry is whole, which it is brought to by one process; False: it has to be looked for again."""
        if entry.is_stamped():
            return True
        with entry.transferring():
            if entry.is_stamped():
                return True
            if entry.is_whole():
                if entry.is_right():
                    entry.stamp()
                    return True
                if not _discard(entry.path, lock):
                    raise CorruptError(
                        f"{entry.place} is not what was downloaded from {entry.title}: somebody wrote to it, and other "
                        "processes use it. End them, and start again. To change files, download them with directory=."
                    )
                return False
            entry.begin()
            try:
                self._make_room(entry)
            except StorageFullError:
                if not entry.written():
                    _discard(entry.path, lock)
                raise
            if entry.is_transferred():
                entry.end()
                return True
            _discard(entry.path, lock)  # unless others have not seen yet that the object was replaced
            return False

    def _make_room(self, entry: _Entry) -> None:
        """Delete what was not used for longest and is not in use, until the limit and the disk have room for an entry.

        Raises:
            StorageFullError: the disk has not.
        """
        sweep(self._folder)
        kept = sorted(_kept(self._folder))
        total = sum(size for _, size, _ in kept)
        missing = entry.size - entry.written()
        for _, size, path in kept:
            space = os.statvfs(self._folder)
            free = space.f_bavail * space.f_frsize
            spare = min(space.f_blocks * space.f_frsize // 50, _MOST_FREE)
            if total <= self._limit and free >= missing + spare:
                return
            with contextlib.suppress(OSError):
                lock = files.open_file(f"{path}/{_LOCK}")
                try:
                    total -= size if _discard(path, lock) else 0
                finally:
                    os.close(lock)
        space = os.statvfs(self._folder)
        if space.f_bavail * space.f_frsize < missing:
            raise StorageFullError(
                f"no space is left for {entry.title}: {describe_bytes(missing)} are to come, and where {self._folder} "
                f"is {describe_bytes(space.f_bavail * space.f_frsize)} are free. Make space there, or set "
                "HOPYARD_CACHE to a folder on a larger disk."
            )


class _Entry:
    """The files of what a URL leads to, and how much of them is here.

    Attributes:
        path: of the entry's folder.
        title: URL, without what a signed one has behind ``?``.
        size: bytes of all objects.
        place: path of the file, or of the folder, once the entry is whole.
    """

    def __init__(self, folder: str, found: Found) -> None:
        self.objects = found.objects
        facts = [[each.url, each.size, each.version] for each in found.objects]
        self.key = xxh3_128_hexdigest(json.dumps([found.url.rstrip("/"), facts]).encode())
        self.path = f"{folder}/{self.key}"
        first = found.objects[0]
        self.title = first.url if found.prefix is None else f"{first.store.url}/{found.prefix}"
        self.size = sum(each.size for each in found.objects)
        name = self.title.rstrip("/").rpartition("/")[2]
        self._names = [name]
        if found.prefix is not None:
            self._names = [f"{name}/{each.name[len(found.prefix) :]}" for each in found.objects]
        for relative, each in zip(self._names, found.objects, strict=True):
            if "\0" in relative or {"", ".", ".."} & set(relative.split("/")):
                raise UsageError(
                    f"{each.url} cannot become a file: a part of its name between slashes is empty, '.' or '..', or "
                    "holds a null character. Copy the object to another name."
                )
        self.place = Path(self.path, _WHOLE, name)

    # Locks

    def lock_shared(self) -> int:
        """A descriptor of the entry's lock, which is held together with others until it is closed."""
        while True:
            with write_errors(self.path):
                files.make_directory(self.path)
                try:
                    lock = files.open_file(f"{self.path}/{_LOCK}", os.O_RDWR | os.O_CREAT)
                except FileNotFoundError:  # deleted just now
                    continue
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    if _is_at(lock, f"{self.path}/{_LOCK}"):
                        os.utime(lock)
                        return lock
                except BaseException:
                    os.close(lock)
                    raise
                os.close(lock)

    @contextlib.contextmanager
    def transferring(self) -> Iterator[None]:
        """Be the only process that transfers meanwhile; says how far another one is while that is waited for."""
        with write_errors(self.path):
            lock = files.open_file(f"{self.path}/{_TRANSFER}", os.O_RDWR | os.O_CREAT)
        _exclusive.add(lock)
        try:
            with write_errors(self.path):
                self._wait(lock)
            yield
        finally:
            _exclusive.discard(lock)
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _wait(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        from hopyard.data.progress import RowProgress

        is_over = threading.Event()

        def tell() -> None:
            with RowProgress(unit="bytes", every=_SELDOM) as progress:
                while not is_over.wait(_LOOK):
                    progress(f"waiting for a process that downloads {self.title}", self.written(), self.size)

        telling = threading.Thread(target=tell, name="hopyard-download", daemon=True)
        telling.start()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            is_over.set()
            telling.join()

    # How much is here

    def is_whole(self) -> bool:
        """Whether all parts were written once."""
        return Path(self.path, _WHOLE).is_dir()

    def is_stamped(self) -> bool:
        """Whether the content is known to be right: since then the machine did not start, and nobody wrote to it."""
        try:
            said = Path(self.path, _STAMP).read_text()
        except FileNotFoundError:
            return False
        return boot_id() is not None and said == self._stamp()

    def _stamp(self) -> str | None:
        """Digest of what is told without reading files; None: one is missing."""
        try:
            found = [os.stat(f"{self.path}/{_WHOLE}/{name}") for name in self._names]  # noqa: PTH116
        except OSError:
            return None
        facts = [[status.st_size, status.st_mtime_ns, status.st_ino] for status in found]
        return xxh3_128_hexdigest(repr((boot_id(), facts)).encode())

    def stamp(self) -> None:
        """Note that the content is right now."""
        with write_errors(self.path):
            self._write(_STAMP, self._stamp() or "")

    def is_right(self) -> bool:
        """Whether all parts of a whole entry are as they were written."""
        return self._stamp() is not None and self._good_parts(_WHOLE) == set(self._parts())

    def written(self) -> int:
        """Bytes of the parts that are recorded, about."""
        try:
            records = os.stat(f"{self.path}/{_PARTS}").st_size // _RECORD.size  # noqa: PTH116
        except FileNotFoundError:
            return 0
        return min(self.size, records * max(each.request for each in self.objects))

    def _parts(self) -> Iterator[tuple[int, int]]:
        for number, each in enumerate(self.objects):
            for part in range(-(-each.size // each.request)):
                yield number, part

    def _span(self, number: int, part: int) -> tuple[int, int]:
        """First byte and length of a part."""
        each = self.objects[number]
        return part * each.request, min(each.request, each.size - part * each.request)

    def _good_parts(self, folder: str) -> set[tuple[int, int]]:
        """Parts that are recorded and have the bytes of their checksums."""
        try:
            data = Path(self.path, _PARTS).read_bytes()
        except FileNotFoundError:
            return set()
        recorded: dict[tuple[int, int], int] = {}
        for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            number, part, checksum, check = _RECORD.unpack_from(data, at)
            if xxh3_64_intdigest(data[at : at + _CHECKED]) == check:
                recorded[number, part] = checksum
        good = set()
        for number, name in enumerate(self._names):
            with contextlib.suppress(FileNotFoundError), open(f"{self.path}/{folder}/{name}", "rb") as file:  # noqa: PTH123
                if folder == _WHOLE and os.fstat(file.fileno()).st_size != self.objects[number].size:
                    continue
                for part in range(-(-self.objects[number].size // self.objects[number].request)):
                    checksum = recorded.get((number, part), -1)
                    if checksum == _checksum(file.fileno(), *self._span(number, part)):
                        good.add((number, part))
        return good

    # Transfer

    def begin(self) -> None:
        """Make the files that parts are written to, where an earlier process has not."""
        with write_errors(self.path):
            self._write(_PLAN, json.dumps({"url": self.title, "size": self.size}))
            for name in self._names:
                file = Path(self.path, _PARTIAL, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                os.close(files.open_file(file, os.O_RDWR | os.O_CREAT))

    def is_transferred(self) -> bool:
        """Transfer the parts that are missing; False: an object was replaced meanwhile.

        Raises:
            StorageError: it cannot be read or written. What was written is kept.
        """
        good = self._good_parts(_PARTIAL)
        missing = [each for each in self._parts() if each not in good]
        if not missing:
            return True
        from hopyard.data.progress import RowProgress

        done = self.size - sum(self._span(*each)[1] for each in missing)
        with write_errors(self.path):
            log = files.open_file(f"{self.path}/{_PARTS}", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        pool = ThreadPoolExecutor(_AT_ONCE, "hopyard-download")
        try:
            with write_errors(self.path):  # a kill may have left a piece of a record
                files.truncate(log, os.fstat(log).st_size // _RECORD.size * _RECORD.size)
            coming = {pool.submit(self._fetch, *each, log): each for each in missing}
            with RowProgress(unit="bytes", every=_SELDOM) as progress:
                progress(f"downloading {self.title}", done, self.size)
                for each in as_completed(coming):
                    if not each.result():
                        return False
                    done += self._span(*coming[each])[1]
                    progress(f"downloading {self.title}", done, self.size)
        finally:
            pool.shutdown(cancel_futures=True)
            os.close(log)
        return True

    def _fetch(self, number: int, part: int, log: int) -> bool:
        """Write a part and record it; False: its object was replaced."""
        each, path = self.objects[number], f"{self.path}/{_PARTIAL}/{self._names[number]}"
        start, length = self._span(number, part)

        def keep(position: int, piece: memoryview) -> None:
            with write_errors(path):
                files.write_at(file, piece, position)

        with write_errors(path):
            file = files.open_file(path)
        try:
            each.receive(start, length, keep)
            record = _RECORD.pack(number, part, _checksum(file, start, length), 0)[:_CHECKED]
        except (CorruptError, NotFoundError):
            if each.is_there():
                raise
            return False
        finally:
            os.close(file)
        with write_errors(path):
            files.write_pieces(log, [record + xxh3_64_intdigest(record).to_bytes(8, "little")])
        return True

    def end(self) -> None:
        """Let all processes find the entry, which nobody may write to."""
        with write_errors(self.path):
            for name, each in zip(self._names, self.objects, strict=True):
                file = Path(self.path, _PARTIAL, name)
                os.truncate(file, each.size)  # where another program has written to it meanwhile
                file.chmod(0o444)
            files.rename(f"{self.path}/{_PARTIAL}", f"{self.path}/{_WHOLE}")
        self.stamp()

    def _write(self, name: str, text: str) -> None:
        temporary = f"{self.path}/{temporary_name()}"
        Path(temporary).write_text(text)
        files.rename(temporary, f"{self.path}/{name}")


def _checksum(file: int, start: int, length: int) -> int | None:
    """Checksum of bytes of an open file; None: it has fewer."""
    if os.fstat(file).st_size < start + length:
        return None
    with mmap.mmap(file, length, access=mmap.ACCESS_READ, offset=start) as mapped:
        return int(xxh3_64_intdigest(mapped))


def _is_at(file: int, path: str) -> bool:
    """Whether the file at a path is the one that is open."""
    files.look_anew(os.path.dirname(path))  # noqa: PTH120
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _discard(path: str, lock: int) -> bool:
    """Delete the entry of a lock that is open; False: others use it. The lock is no longer held then."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if _is_at(lock, f"{path}/{_LOCK}"):
        trash = f"{os.path.dirname(path)}/{temporary_name()}"  # noqa: PTH120
        files.rename(path, trash)
        files.remove_tree(trash)
    return True


def _kept(folder: str) -> Iterator[tuple[int, int, str]]:
    """Of each entry: when it was used last, in nanoseconds since 1970; bytes; path."""
    with os.scandir(folder) as found:
        for each in found:
            if not cache_files.is_key(each.name):
                continue
            with contextlib.suppress(OSError):  # deleted just now
                used, size = os.stat(f"{each.path}/{_LOCK}").st_mtime_ns, 0  # noqa: PTH116
                with contextlib.suppress(ValueError):  # a power cut may leave half of a plan
                    size = int(json.loads(Path(each.path, _PLAN).read_bytes())["size"])
                yield used, size, each.path


def _copied(source: Path, directory: str | os.PathLike[str]) -> Path:
    """A copy of a file, or of a folder with all that is in it, in a directory.

    Raises:
        UsageError: another file has the name of one of these.
    """
    target = Path(files.absolute(directory)) / source.name
    if source.is_dir():
        for file in sorted(source.rglob("*")):
            if file.is_file():
                _copied(file, target / file.parent.relative_to(source))
        return target
    with write_errors(target):
        files.make_directory(target.parent)
        if not target.is_file():
            temporary = str(target.parent / temporary_name())
            try:
                files.copy(source, temporary)
                if files.link_new(temporary, str(target)):
                    return target
            finally:
                files.unlink_quietly(temporary)
        if filecmp.cmp(source, target, shallow=False):
            return target
    raise UsageError(
        f"{target} is to be a copy of {source}, but is another file already, with other content. Delete it, or give "
        "another directory=."
    )


def _default_folder() -> str:
    return f"{cache_directory()}-downloads"


def _limit_of_machine() -> int:
    given = os.environ.get("HOPYARD_DOWNLOAD_BYTES") or DEFAULT_LIMIT
    with contextlib.suppress(ValueError, OverflowError):
        number = float(given)
        if number >= 0 and number == int(number):
            return int(number)
    raise UsageError(
        f"HOPYARD_DOWNLOAD_BYTES={given!r}, but it must be a whole number of bytes, such as 100e9 for 100 GB."
    )


def _leave_locks_to_the_parent() -> None:
    for lock in _exclusive:
        os.close(lock)
    _exclusive.clear()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
