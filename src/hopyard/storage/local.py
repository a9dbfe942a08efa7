"""Objects as files: a directory on a local disk or a network file system.

A write goes to a temporary name in the object's own directory, is synced, renamed, and the
directory synced: after a crash there is the whole object or none. ``put_new`` links instead
of renaming, because a link fails if the name is taken, also on NFS.
"""

from __future__ import annotations

import atexit
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path

from hopyard.errors import (
    CorruptError,
    NotFoundError,
    StorageError,
)
from hopyard.storage import files
from hopyard.storage.base import Buffer, Entry, Part, Store
from hopyard.storage.names import validate_name, validate_prefix
from hopyard.storage.oserrors import read_error, write_error
from hopyard.storage.parts import PathStore
from hopyard.storage.temporary import remove_if_empty, staging_name, sweep, temporary_name

_PathLike = str | os.PathLike[str]

_staged: set[str] = set()  # directories of this process


class LocalStore(PathStore):
    """A directory, with the parts of a search's layout moved elsewhere if asked.

    Paths are strings, ``Path`` objects or ``file://`` URLs; ``~`` is the home directory, and
    relative paths are taken from where the process is now. Directories are made at the first
    write into them.

    Args:
        prefix_path: the store itself; everything that is not moved is below it. May be left
            out if only the parts given here are used.
        train_path: holds one training dataset, itself (not one per fingerprint).
        val_path: the same for validation data.
        runs_path: instead of ``<prefix>/runs``.
        logs_path: instead of ``<prefix>/logs``.
    """

    def __init__(
        self,
        prefix_path: _PathLike | None = None,
        train_path: _PathLike | None = None,
        val_path: _PathLike | None = None,
        runs_path: _PathLike | None = None,
        logs_path: _PathLike | None = None,
    ) -> None:
        parts = {"train_data": train_path, "val_data": val_path, "runs": runs_path, "logs": logs_path}
        super().__init__(
            None if prefix_path is None else files.absolute(prefix_path),
            {part: files.absolute(path) for part, path in parts.items() if path is not None},
        )
        self._swept: set[str] = set()
        self._links = True  # whether links below the root are followed
        self._syncs = True  # whether a write is on the disk when it returns

    def _elsewhere(self, path: str) -> Store:
        return LocalStore(path)

    def without_links(self) -> LocalStore:
        store = copy(self)
        store._links, store._swept = False, set()
        return store

    def unsynced(self) -> LocalStore:
        store = copy(self)
        store._syncs = False
        return store

    def sync(self, names: Iterable[str]) -> None:
        written = {self._file(name): None for name in names}
        for path in [*written, *{file[: file.rindex("/")]: None for file in written}]:
            try:
                files.sync(path)
            except OSError as error:
                raise write_error(path, error) from error

    def sync_deleted(self, names: Iterable[str]) -> None:
        for folder in {os.path.dirname(self._file(name, is_replaced=True)) for name in names}:  # noqa: PTH120
            try:
                files.sync(files.nearest_directory(folder))
            except OSError as error:
                raise write_error(folder, error) from error

    def _file(self, name: str, is_replaced: bool = False) -> str:
        """The path of an object.

        Args:
            is_replaced: it is written or deleted, which changes a link itself, and not where it leads.

        Raises:
            CorruptError: a link that is not to be followed is on the way.
        """
        root = self._directory()
        file = f"{root}/{validate_name(name)}"
        if not self._links:
            self._refuse_links(root, name.split("/")[: -1 if is_replaced else None])
        return file

    def _refuse_links(self, root: str, parts: Sequence[str]) -> None:
        at = root
        for part in parts:
            at = f"{at}/{part}"
            try:
                status = os.lstat(at)
            except (FileNotFoundError, NotADirectoryError):
                return
            except OSError as error:
                raise read_error(at, error) from None
            if files.is_foreign(status):
                what = "a link" if stat.S_ISLNK(status.st_mode) else "no file"
                raise CorruptError(
                    f"{at} is {what}. In a folder that others may write to, what is below {root} is read only where it "
                    "is a file or a directory, and no link is followed. Put there what the link leads to, or delete it."
                )

    # Reading

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return self._read(name, start, length)[0]

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        data, status = self._read(name, start, length)
        return Part(data, status.st_size, _version(status))

    def _read(self, name: str, start: int, length: int | None) -> tuple[bytes, os.stat_result]:
        file = self._file(name)

        def read(fd: int) -> tuple[bytes, os.stat_result]:
            status = os.fstat(fd)
            size = status.st_size
            begin = max(start + size, 0) if start < 0 else start
            stop = size if length is None else begin + length
            if begin > size or stop > size:
                raise CorruptError(
                    f"bytes {begin}..{stop} of {file} were asked for, but it has only {size}. "
                    "The file was cut off or replaced: restore it from a copy, or make it again."
                )
            return files.read_range(fd, begin, stop - begin), status

        try:
            return files.read_anew(file, read)
        except OSError as error:
            raise self._read_error(name, file, error) from None

    def size(self, name: str) -> int | None:
        status = self._status(name)
        return None if status is None else status.st_size

    def version(self, name: str) -> str | None:
        status = self._status(name)
        return None if status is None else _version(status)

    def written_at(self, name: str) -> float | None:
        status = self._status(name)
        return None if status is None else status.st_mtime

    def _status(self, name: str) -> os.stat_result | None:
        file = self._file(name)
        files.look_anew(file[: file.rindex("/")])
        try:
            status = os.stat(file)  # noqa: PTH116 - hot, and the path is a string already
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._read_error(name, file, error) from None
        return None if files.is_directory(status) else status

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return files.walk(*self._below(prefix), self._links)

    def names(self, prefix: str = "") -> set[str]:
        return files.names(*self._below(prefix), self._links)

    def _below(self, prefix: str) -> tuple[str, str]:
        """The directory of a prefix, and the begin of the names of its objects."""
        below = validate_prefix(prefix) and prefix + "/"
        if below and not self._links:
            self._refuse_links(self._directory(), prefix.split("/"))
        directory = f"{self._directory()}/{below}".rstrip("/")
        files.look_anew(directory)
        return directory, below

    def folders(self, prefix: str = "") -> Sequence[str]:
        directory, _ = self._below(prefix)
        return files.directories(directory, self._links)

    def path(self, name: str) -> Path | None:
        return Path(self._file(name))

    # Writing

    def put(self, name: str, data: Buffer) -> None:
        self._write(name, data, files.rename_over)

    def put_new(self, name: str, data: Buffer) -> bool:
        file = self._file(name, is_replaced=True)
        # The usual loser's case without a write; the link below is what decides.
        files.look_anew(file[: file.rindex("/")])
        if os.path.lexists(file) and not Path(file).is_dir():
            return False
        return self._write(name, data, files.link_new)

    def _write(self, name: str, data: Buffer, publish: files.Publish) -> bool:
        file = self._file(name, is_replaced=True)
        directory = file[: file.rindex("/")]
        temporary = f"{directory}/{temporary_name()}"
        try:
            try:
                fd = self._create(directory, temporary)
                try:
                    files.write_pieces(fd, [data])
                    if self._syncs:
                        files.sync_file(fd)
                finally:
                    os.close(fd)
                published = publish(temporary, file)
            except BaseException:
                files.unlink_quietly(temporary)
                raise
            if self._syncs:
                files.sync(directory)
        except OSError as error:
            raise write_error(file, error) from error
        return published

    def put_file(self, name: str, path: Path) -> None:
        file = self._file(name, is_replaced=True)
        directory = file[: file.rindex("/")]
        try:
            files.make_directory(directory)
            if self._syncs:
                files.sync(path)
            try:
                files.rename_over(str(path), file)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy_in(path, directory, file)
            if self._syncs:
                files.sync(directory)
        except OSError as error:
            raise write_error(file, error) from error

    def _copy_in(self, path: Path, directory: str, file: str) -> None:
        temporary = f"{directory}/{temporary_name()}"
        try:
            self._sweep_once(directory)
            files.copy(path, temporary)
            if self._syncs:
                files.sync(temporary)
            files.rename_over(temporary, file)
        except BaseException:
            files.unlink_quietly(temporary)
            raise
        files.unlink(path)

    def staging(self) -> Path | None:
        # One per process and named like a temporary file, so that it is swept if the process dies.
        root = self._directory()
        staging = f"{root}/{staging_name()}"
        if not self._links:
            self._refuse_links(root, [staging_name()])
        try:
            files.make_directory(staging)
        except OSError as error:
            raise write_error(staging, error) from error
        if staging not in _staged:
            _staged.add(staging)
            atexit.register(remove_if_empty, staging)
        self._sweep_once(root)
        return Path(staging)

    def _create(self, directory: str, temporary: str) -> int:
        try:
            fd = files.create(temporary)
        except FileNotFoundError:
            files.make_directory(directory)
            fd = files.create(temporary)
        self._sweep_once(directory)
        return fd

    def _sweep_once(self, directory: str) -> None:
        if directory not in self._swept:
            self._swept.add(directory)
            sweep(directory)

    def delete(self, name: str) -> None:
        file = self._file(name, is_replaced=True)
        files.look_anew(file[: file.rindex("/")])
        try:
            files.unlink(file)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise write_error(file, error) from error

    def _read_error(self, name: str, file: str, error: OSError) -> StorageError:
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return NotFoundError(
                f"there is no object {name!r} in the store {self.url}{files.nearest_file(file)}. "
                "List the store to see what it holds."
            )
        return read_error(file, error)


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
