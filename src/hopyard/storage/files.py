"""The file system: all that Hopyard changes on a disk, and relies upon later, it changes by the functions here.

Errors are plain ``OSError``. Every change is a call of ``os`` in this file, so that a test which puts a recorder in the
place of ``os`` knows all that happened, and in which order (``tests/power.py``). A power cut may keep or lose each
of them, in any combination, until the file (for its bytes) or the directory (for its names) was synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from hopyard.errors import UsageError
from hopyard.storage.base import Buffer, Entry
from hopyard.storage.names import SILLY_RENAMED, TEMPORARY_PREFIX, path_given
from hopyard.storage.oserrors import read_error
from hopyard.wording import nearest

T = TypeVar("T")

Publish = Callable[[str, str], bool]

_MOST_PIECES = 1024  # of one write: IOV_MAX of Linux and macOS
_LONG = 1 << 20  # bytes of a piece that is written alone: many of them in one call are slower

# What file systems without hard links answer to link(2): FAT, some FUSE and SMB mounts.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

_ATTEMPTS = 10  # at reading a file that others replace again and again


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path of a path or ``file://`` URL, with ``~`` expanded and links left alone."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"a store's path must be a non-empty string or Path, not {path!r}. Give a directory."
        )
    path_given(text)
    if text[:5].lower() == "file:":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise UsageError(
                f"the URL {text!r} names the host {parts.netloc!r}, but a directory is on this machine. "
                f"Write file:///{parts.netloc}{parts.path} if you meant a path."
            )
        text = unquote(parts.path)
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - Path drops no "..", and is slower


def look_anew(directory: str | os.PathLike[str]) -> bool:
    """Have the names in a directory as they are now, also where another machine changed them a moment ago; whether
    there is such a directory.

    Clients of network file systems remember for some seconds which names there are, which there are not, and of which
    file each is: so a file that was replaced is opened as it was. Opening its directory lets the client ask the server
    (close-to-open consistency, as of NFS, holds for directories, too). On a local disk it costs two microseconds.
    """
    for _ in range(2):
        try:
            os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                return error.errno != errno.ENOTDIR  # who may not list it has to take what is remembered
            above = os.path.dirname(directory)  # noqa: PTH120
            if above in ("", directory) or not look_anew(above):
                return False
        else:
            return True
    return False


def read_anew(file: str | os.PathLike[str], read: Callable[[int], T]) -> T:
    """The result of ``read`` for a descriptor of the file that has the name now.

    A server may forget a file that was replaced while it is read; then the one that replaced it is read.
    """
    for attempt in range(_ATTEMPTS):
        look_anew(os.path.dirname(file))  # noqa: PTH120
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return read(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno != errno.ESTALE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def read_range(fd: int, start: int, length: int) -> bytes:
    data = os.pread(fd, length, start)
    if len(data) == length:
        return data
    parts = [data]  # Linux reads at most 2 GiB at once
    while length > sum(map(len, parts)):
        part = os.pread(fd, length - sum(map(len, parts)), start + sum(map(len, parts)))
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


# Changes: files


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDWR) -> int:
    """A descriptor of a file that is to be written to; ``flags`` as of ``os.open``."""
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def create(path: str | os.PathLike[str]) -> int:
    """A descriptor of a new file, for writing and reading; a name that is taken is a ``FileExistsError``."""
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


@contextlib.contextmanager
def created(path: str | os.PathLike[str]) -> Iterator[int]:
    """The same, closed at the end of the block."""
    fd = create(path)
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: Buffer) -> None:
    """Write and sync."""
    write_pieces(fd, [data])
    os.fsync(fd)


def write_at(fd: int, data: Buffer, place: int) -> None:
    """Write at a place of a file, wherever its end is."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, place)
        view, place = view[written:], place + written


def truncate(fd: int, size: int) -> None:
    os.ftruncate(fd, size)


def sync_file(fd: int) -> None:
    """Bring the content of an open file to the disk."""
    os.fsync(fd)


def copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy the content of a file into a new one."""
    with Path(source).open("rb", buffering=0) as file, created(target) as fd:
        while data := file.read(_LONG):
            write_pieces(fd, [data])


def write_pieces(fd: int, pieces: Iterable[Buffer]) -> None:
    """Write short pieces together: ext4 and XFS keep the bytes of one call in huge pages, also when mapped."""
    rest = deque(memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes)
    while rest:
        short = list(takewhile(lambda piece: len(piece) < _LONG, islice(rest, _MOST_PIECES)))
        written = os.writev(fd, short or [rest[0]])
        while rest and written >= len(rest[0]):
            written -= len(rest.popleft())
        if written:
            rest[0] = rest[0][written:]


def sync(path: str | os.PathLike[str]) -> None:
    """Bring a file's content, or a directory's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync directories; they order such changes themselves.
        if error.errno not in (errno.EINVAL, errno.EBADF) or not Path(path).is_dir():
            raise
    finally:
        os.close(fd)


# Changes: names


def make_directory(directory: str | os.PathLike[str]) -> None:
    """Make a directory and those above it; the new entries are on the disk afterwards."""
    directory = os.fspath(directory)
    try:
        os.mkdir(directory)  # noqa: PTH102
    except FileExistsError:
        look_anew(os.path.dirname(directory))  # noqa: PTH120
        if not Path(directory).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None
        return
    except FileNotFoundError:
        make_directory(os.path.dirname(directory))  # noqa: PTH120
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(directory)  # noqa: PTH102 - where there is still none, none can be made: as in /proc
    sync(os.path.dirname(directory))  # noqa: PTH120


def nearest_directory(path: str) -> str:
    """The directory, or the one above it that is there: what deletes have left empty is removed."""
    while not Path(path).is_dir():
        path = os.path.dirname(path)  # noqa: PTH120
    return path


def new_directory(directory: str | os.PathLike[str]) -> None:
    """Make a directory that need not outlive the machine."""
    os.mkdir(directory)  # noqa: PTH102


def remove_directory(directory: str | os.PathLike[str]) -> None:
    """Remove a directory that nothing is in."""
    os.rmdir(directory)  # noqa: PTH106


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a file, or a directory with all that is in it, as far as that can be done; no link is followed."""
    with contextlib.suppress(OSError):
        if not is_directory(os.lstat(path)):
            os.unlink(path)  # noqa: PTH108
            return
        with os.scandir(path) as entries:
            below = [entry.path for entry in entries]
        for each in below:
            remove_tree(each)
        os.rmdir(path)  # noqa: PTH106


def rename(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file another name, in place of the file that has it."""
    os.replace(path, target)  # noqa: PTH105


def link(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file a second name; one that is taken is a ``FileExistsError``."""
    os.link(path, target)


def unlink(file: str | os.PathLike[str]) -> None:
    os.unlink(file)  # noqa: PTH108


def unlink_quietly(file: str | os.PathLike[str]) -> None:
    """Remove a file, if it is there and that can be done."""
    with contextlib.suppress(OSError):
        os.unlink(file)  # noqa: PTH108


def is_directory(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)


# How a complete temporary file gets its name. True: it has it. False: the name is taken.


def rename_over(temporary: str, file: str) -> bool:
    """Give the file its name, replacing the file that has it."""
    try:
        os.replace(temporary, file)  # noqa: PTH105
    except IsADirectoryError:
        os.rmdir(file)  # noqa: PTH106 - left empty by deletes; else the error says that it is a prefix
        os.replace(temporary, file)  # noqa: PTH105
    return True


def link_new(temporary: str, file: str) -> bool:
    """Give the file its name if that is free. The temporary name is gone afterwards."""
    try:
        published = _link(temporary, file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _rename_new(temporary, file)
    os.unlink(temporary)  # noqa: PTH108
    return published


def _link(temporary: str, file: str) -> bool:
    try:
        os.link(temporary, file)
    except FileExistsError:
        if Path(file).is_dir():
            os.rmdir(file)  # noqa: PTH106
            return _link(temporary, file)
        # NFS may do the link, lose the reply and answer the repeated request with "exists".
        return os.stat(temporary).st_nlink == 2  # noqa: PTH116
    return True


def _rename_new(temporary: str, file: str) -> bool:
    """Give the file its name if that is free, without links: look and rename under the directory's lock, as all
    writers here do."""
    directory = os.open(os.path.dirname(file), os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH120
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if Path(file).is_file():
            os.unlink(temporary)  # noqa: PTH108
            return False
        return rename_over(temporary, file)
    finally:
        os.close(directory)


def is_foreign(status: os.stat_result) -> bool:
    """Whether an entry is neither a file nor a directory: a link, if links were not followed, a pipe, a device."""
    return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def walk(directory: str, name: str, links: bool = True) -> Iterator[Entry]:
    """All files below, in the order of their names; ``name`` is the prefix of the directory's names.

    Args:
        links: whether they are followed; if not they are taken for files.

    Raises:
        StorageError: a directory may not be read.
    """
    try:
        with os.scandir(directory) as found:
            # "a.b" comes before "a/b", so a directory is ordered by its name with the slash.
            entries = sorted(
                (e.name + "/" * e.is_dir(follow_symlinks=links), e)
                for e in found
                if not _is_temporary(e.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise read_error(directory, error) from error
    for key, entry in entries:
        if key.endswith("/"):
            yield from walk(entry.path, name + key, links)
        else:
            with contextlib.suppress(FileNotFoundError):
                yield Entry(name + key, entry.stat(follow_symlinks=links).st_size)


def names(directory: str, name: str, links: bool = True) -> set[str]:
    """The names of all files below, as :func:`walk` gives them. No file is looked at."""
    found = set()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if _is_temporary(entry.name):
                continue
            if entry.is_dir(follow_symlinks=links):
                found |= names(entry.path, f"{name}{entry.name}/", links)
            else:
                found.add(name + entry.name)
    return found


def directories(directory: str, links: bool = True) -> list[str]:
    """The names of the directories in a directory, in order."""
    try:
        with os.scandir(directory) as found:
            return sorted(
                entry.name
                for entry in found
                if entry.is_dir(follow_symlinks=links) and not _is_temporary(entry.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_temporary(segment: str) -> bool:
    """Whether no object is called so: it is unfinished, or was deleted."""
    return segment.startswith(TEMPORARY_PREFIX) or SILLY_RENAMED.fullmatch(segment) is not None


def nearest_file(file: str) -> str:
    """A suggestion from the same directory. Looks at few names: callers may expect not to find."""
    directory, _, segment = file.rpartition("/")
    try:
        with os.scandir(directory) as entries:
            return nearest(segment, [e.name for e in islice(entries, 100) if not _is_temporary(e.name)])
    except OSError:
        return ""


def give_usual_rights(path: Path) -> None:
    """Give a file that a library made for its user alone the rights that new files have."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
