"""Files of a dataset as this machine sees them: their footers, their checksums, and the digests of their content.

Of a file that carries checksums (``checks.py``) nothing is read that was not compared with them: once since the
machine started, as long as nobody touches the file, which all processes of the machine remember together. Files in
a store without paths are compared whenever they are read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.cache.format import boot_id
from hopyard.data.cache.known import DATA, KnownFacts, key_of, known
from hopyard.data.cache.node import cache_directory
from hopyard.data.files.checks import MAGIC as SEALED
from hopyard.data.files.checks import SHORT_END, Checks, damaged_chunks, hash_of, read_checks
from hopyard.errors import CorruptError, DataError, NotFoundError, UsageError
from hopyard.objects.digests import digest
from hopyard.storage import files
from hopyard.storage.base import REMEDY, Buffer, Store
from hopyard.storage.oserrors import read_error

READ_OPTIONS: dict[str, Any] = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""Options of ``pyarrow.parquet.ParquetFile``: checksums of pages are looked at, and old timestamps (INT96)
that nanoseconds do not reach, as 9999-12-31, become errors instead of other times."""

_SIGNATURE = 28  # bytes behind a signed footer: a nonce and a tag
_REMEMBERED_FOOTERS = 4096
_SHORT_FOOTER = 16 << 10  # bytes
_FOOTER_DOMAIN = "hopyard.parquet-footer"
_READ_WHOLE = 256 << 10  # bytes

Chunks = npt.NDArray[np.bool_]
"""Mask of chunks of a file, (row groups, leaves)."""


@dataclass(frozen=True)
class StoredFile:
    """A file as this machine sees it: at a path, or in a store without paths.

    Attributes:
        name: for messages.
        size: bytes.
        identity: differs if the file was replaced or written to.
        path: where it is, or None.
        store, key: the store that holds it, and its name there, if it has no path.
        remedy: a sentence for errors: how a damaged file is brought back.
        origin: the object in a store of which parts are in memory, at ``path``; else None.
    """

    name: str
    size: int
    identity: tuple[Any, ...]
    path: Path | None = field(default=None, compare=False)
    store: Store | None = field(default=None, repr=False, compare=False)
    key: str = ""
    remedy: str = field(default=REMEDY, repr=False, compare=False)
    origin: StoredFile | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, store: Store | None, name: str) -> StoredFile:
        """The object ``name`` of ``store``, or, without a store, the file at the path ``name``.

        Raises:
            NotFoundError: it is not there.
        """
        path: str | Path | None = name if store is None else store.path(name)
        if path is None and store is not None:
            try:
                end = store.read(name, -SHORT_END)
            except NotFoundError:
                raise NotFoundError(
                    f"{store.url} holds no {name}, a file of the dataset. Restore it, or prepare the data again."
                ) from None
            identity: tuple[Any, ...] = store.url, name, end.size, end.version
            file = cls._in_store(store, name, identity)
            file.__dict__["_end"] = bytes(end.data)
            return file
        assert path is not None
        text = os.fspath(path)
        identity, size = _identity_at(text)
        remedy = REMEDY if store is None else store.remedy
        return cls(text, size, identity, Path(text), remedy=remedy)

    @classmethod
    def _in_store(cls, store: Store, name: str, identity: tuple[Any, ...]) -> StoredFile:
        return cls(f"{store.url}: {name}", identity[2], identity, None, store, name, store.remedy)

    @classmethod
    def known(cls, store: Store | None, name: str, identity: tuple[Any, ...]) -> StoredFile | None:
        """An object as this process opened it before, without a request: reading from it shows whether it is still
        that one. None if its end, or its version, is not known."""
        found = _footers.get(identity)
        if store is None or store.path(name) is not None or identity[-1] is None:
            return None
        if found is None or identity not in _checks:
            return None
        file = cls._in_store(store, name, identity)
        file.__dict__["_footer"], file.__dict__["_digest"] = found
        file.__dict__["_checks"] = _checks[identity]
        return file

    def check_unchanged(self) -> None:
        """Look whether the file is still the one that was opened.

        Raises:
            CorruptError: it was written to or replaced since.
            NotFoundError: it is gone.
        """
        if self.origin is not None:  # nobody changes what is in memory
            return
        if self.path is not None:
            if _identity_at(str(self.path))[0] == self.identity:
                return
            now = StoredFile.open(None, str(self.path))
        else:
            assert self.store is not None
            version = self.identity[-1]
            if version is not None and self.store.version(self.key) == version:
                return
            now = StoredFile.open(self.store, self.key)
        if now.identity != self.identity and not self._has_content_of(now):
            raise self._changed(now.size)

    def check_not_written(self) -> None:
        """Look whether the file that was opened, though it may be replaced or gone, is still as it was.

        Raises:
            CorruptError: it was written to since, so that the mapped bytes changed.
        """
        if self.path is None:
            return
        try:
            if _identity_at(str(self.path))[0] == self.identity:
                return
            now = StoredFile.open(None, str(self.path))
        except NotFoundError:
            return
        is_same_file = now.identity[1:3] == self.identity[1:3]
        if is_same_file and now.identity != self.identity and not self._has_content_of(now):
            raise self._changed(now.size)

    def _has_content_of(self, now: StoredFile) -> bool:
        """Whether the file in this one's place has the same bytes: it was linked, moved, or written again as it was.

        Without checksums that shows only if the content was asked for before.
        """
        if self.checks is not None:
            try:
                now.check_sealed(self.checks.seal)
                return not now.damage()
            except CorruptError:
                return False
        before = self._known_content() if self.path is not None else None
        return before is not None and now.size == self.size and before == now.content

    def _changed(self, size: int) -> CorruptError:
        return CorruptError(
            f"{self.name} was changed while it was being read ({self.size} bytes when it was opened, {size} "
            "now). Restore it, or open the dataset again: its rows are others now."
        )

    # Checksums

    @property
    def checks(self) -> Checks | None:
        """The checksums that the file carries, or None; read once per process.

        Raises:
            CorruptError: they are not what was written.
        """
        if "_checks" not in self.__dict__:
            if self.path is None:
                self._read_object_end()
            else:
                found = _checks.get(self.identity, _UNREAD)
                if found is _UNREAD:
                    found = read_checks(self.read, self.size, self.name, self.remedy)
                    remember(_checks, self.identity, found, _REMEMBERED_FOOTERS)
                self.__dict__["_checks"] = found
        checks: Checks | None = self.__dict__["_checks"]
        return checks

    def check_sealed(self, seal: str) -> None:
        """Look whether the file's content is the one that this seal stands for, as far as its end tells.

        Raises:
            CorruptError: it is not.
        """
        if self.checks is None or self.checks.seal != seal:
            raise CorruptError(
                f"{self.name} is not the file that its dataset's manifest lists under this name: the seal at its end "
                f"is {self.checks.seal if self.checks else 'missing'}, not {seal}. It was damaged, or another file was "
                f"put in its place. {self.remedy}"
            )

    def leaves_of(self, columns: Iterable[str] | None) -> list[int]:
        """Numbers of the leaves that these columns, or fields of structs, have in the file; None: all."""
        if columns is None:
            return list(range(self.footer.num_columns))
        leaves = self._leaves
        return sorted({leaf for name in columns for leaf in leaves.get(name, ())})

    def held(self, columns: Iterable[str]) -> list[str]:
        """Columns of these, or fields of structs, that are in the file."""
        leaves = self._leaves
        return [name for name in columns if name in leaves]

    @property
    def _leaves(self) -> Mapping[str, Sequence[int]]:
        """Numbers of the leaves of each column, and of each field of structs."""
        known: Mapping[str, Sequence[int]] | None = self.__dict__.get("_by_name")
        if known is None:
            known = self.__dict__["_by_name"] = _leaves_of(self.footer.schema)
        return known

    def damage(self) -> list[tuple[int, int]]:
        """(row group, leaf) of the chunks that are not as they were written."""
        checks = self.checks
        if checks is None:
            return []
        if self.path is None:
            return self._far_damage(checks)
        return _damage_of([(self, np.ones(checks.chunks.shape, bool), None)])[0]

    def found_damaged(self) -> CorruptError:
        """The error of a file whose digest is not what was written, after a look at all its chunks; noted, so that
        ``prepare`` writes the file again."""
        self._remember_damaged()
        if bad := self.damage():
            return self._damaged(*bad[0])
        return CorruptError(f"{self.name} is not what was written, by its digest. {self.remedy}")

    def _far_damage(self, checks: Checks) -> list[tuple[int, int]]:
        bad = []
        for group, leaf in np.ndindex(*checks.chunks.shape):
            start, end, _ = checks.chunks[group, leaf]
            if not checks.is_good(group, leaf, self.read(int(start), int(end - start))):
                bad.append((group, leaf))
        if bad:
            self._remember_damaged()
        return bad

    def _mapped(self) -> npt.NDArray[np.uint8]:
        """The file's bytes, which are those of the file that was opened."""
        assert self.path is not None
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if _identity(self.path, status) != self.identity:
                    raise self._changed(status.st_size)
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except FileNotFoundError as error:
            raise _missing(self.path, error) from error
        except OSError as error:
            raise read_error(self.name, error) from error

    def _good_chunks(self, checks: Checks) -> Chunks:
        """Mask of the chunks that were found good since the machine started."""
        good = _good.get(self.identity)
        if good is None:
            good = np.zeros(checks.chunks.shape, bool)
            flat = good.reshape(-1)
            for number, data in () if self.is_known_damaged else _known().find(self._good_key(checks)):
                part = flat[number * _BITS : (number + 1) * _BITS]
                part |= np.unpackbits(np.frombuffer(data, np.uint8), count=len(part)).view(bool)
            remember(_good, self.identity, good, _REMEMBERED_FOOTERS)
        return good

    def _good_key(self, checks: Checks) -> bytes:
        return key_of("good", boot_id(), self.identity[1:], checks.seal)

    def _remember_good(self, checks: Checks, good: Chunks, added: npt.NDArray[np.int64]) -> None:
        if boot_id() is None or not len(added):
            return
        flat = good.reshape(-1)
        numbers = np.unique(added // _BITS).tolist()
        _known().add(
            self._good_key(checks),
            [
                (
                    number,
                    np.packbits(flat[number * _BITS : (number + 1) * _BITS]).tobytes().ljust(DATA, b"\0"),
                )
                for number in numbers
            ],
        )

    @property
    def is_known_damaged(self) -> bool:
        """Whether somebody on this machine found damage in the file as it is."""
        return None not in self.identity and bool(_known().find(key_of("damaged", self.identity[1:])))

    def _remember_damaged(self) -> None:
        """Remember that the file as it is has damage; chunks that were found good before count no more."""
        _good.pop(self.identity, None)
        if None not in self.identity:
            _known().add(key_of("damaged", self.identity[1:]), [(0, b"")])

    def _damaged(self, group: int, leaf: int) -> CorruptError:
        column = self.footer.row_group(group).column(leaf).path_in_schema.split(".")[0]
        return CorruptError(
            f"{self.name}, row group {group}, column {column!r}: the bytes are not what was written, by their "
            f"checksum. {self.remedy}"
        )

    # What the content is called

    @property
    def content(self) -> str:
        """A text that differs if the file's bytes do: of a file at a path they are read, once as long as nobody touches
        it, which the machine remembers; of an object it is the store's version of it, else its size and footer.

        Raises:
            CorruptError: it was changed since it was opened.
        """
        if self.path is None:
            version = self.identity[-1]
            return f"version {version}" if version is not None else f"{self.size} {self.footer_digest}"
        known_content = self._known_content()
        if known_content is None:
            known_content = hash_of(self._mapped() if self.size else np.empty(0, np.uint8))
            status = self.path.stat()
            if _identity(self.path, status) != self.identity:
                raise self._changed(status.st_size)
            with contextlib.suppress(
                OSError
            ):  # what is not on the disk may be another content after a power cut
                files.sync(self.path)
                _known().add(self._content_key, [(0, bytes.fromhex(known_content))])
        return known_content

    @property
    def _content_key(self) -> bytes:
        return key_of("content", self.identity[1:])

    def _known_content(self) -> str | None:
        for _, data in _known().find(self._content_key):
            return data[:16].hex()
        return None

    # Reading

    def parquet(self, group: int | None = None, columns: Iterable[str] | None = None) -> pq.ParquetFile:
        """The file, which is at a path, for decoding.

        Args:
            group: the row group that is to be read; None: any.
            columns: of it that are to be read; None: all. Where there are checksums, only they may be.

        Raises:
            CorruptError: they are not what was written.
        """
        assert self.path is not None
        if group is not None:
            self.check_columns(group, columns)
        return pq.ParquetFile(pa.OSFile(str(self.path)), metadata=self.footer, **READ_OPTIONS)

    def batches(self, group: int, columns: Iterable[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Columns of a row group of the file, which is at a path, as Arrow decodes them, at most ``rows`` rows at a
        time. Checksums are not looked at.

        Raises:
            CorruptError: the file was changed since it was opened.
            pyarrow.ArrowInvalid, OSError: the row group cannot be decoded.
        """
        reader = pq.ParquetReader()
        is_whole = self.size <= _READ_WHOLE
        if is_whole:
            file = self._whole()
        elif self.origin is not None:  # nobody makes it shorter: what is mapped need not be copied
            file = pa.memory_map(str(self.path))
        else:
            file = pa.OSFile(str(self.path))
        reader.open(file, metadata=self.footer, **READ_OPTIONS)
        leaves = self.leaves_of(columns)
        if self.footer.row_group(group).num_rows <= rows:  # by one call
            yield from reader.read_row_group(group, column_indices=leaves, use_threads=False).to_batches()
        else:
            yield from reader.iter_batches(rows, [group], leaves, use_threads=False)
        if not is_whole:
            self.check_unchanged()

    def _whole(self) -> pa.NativeFile:
        """The bytes of a small file, which are those of the file that was opened."""
        content = pa.allocate_buffer(self.size)
        descriptor = os.open(str(self.path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = os.readv(descriptor, [content])
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if self.origin is None and _identity(str(self.path), status) != self.identity:
            self.check_unchanged()
        if count < self.size:
            raise self._changed(count)
        return pa.BufferReader(content)

    def check_columns(self, group: int, columns: Iterable[str] | None) -> None:
        """Compare columns of a row group with their checksums, if the file is at a path and carries any.

        Raises:
            CorruptError: one differs.
        """
        if self.path is not None and self.checks is not None:
            wanted = np.zeros(self.checks.chunks.shape, bool)
            wanted[group, self.leaves_of(columns)] = True
            check_chunks([(self, wanted, None)])

    def chunk_bounds(self, group: int, leaf: int) -> tuple[int, int]:
        """[start, end) of a chunk in the file, as its checksums or its footer say."""
        if self.checks is not None:
            start, end, _ = self.checks.chunks[group, leaf]
            return int(start), int(end)
        chunk = self.footer.row_group(group).column(leaf)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        return start, start + chunk.total_compressed_size

    def check_fetched(self, descriptor: int, chunks: Iterable[tuple[int, int]]) -> None:
        """Compare chunks, which were copied to their places in another file, with their checksums, if there are any.

        Raises:
            CorruptError: one differs.
        """
        if self.checks is None or not self.size:
            return
        with (
            mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ) as content,
            memoryview(content) as bytes_,
        ):
            for group, leaf in chunks:
                start, end = self.chunk_bounds(group, leaf)
                with bytes_[start:end] as chunk:
                    is_good = self.checks.is_good(group, leaf, chunk)
                if not is_good:
                    self._remember_damaged()
                    raise self._damaged(group, leaf)

    def _read_object_end(self) -> None:
        """Keep checksums, footer and the digest of the footer of an object: from the bytes that came when it was
        opened, as long as they are short."""
        start = max(self.size - SHORT_END, 0)
        tail = memoryview(self.__dict__.get("_end") or self.read(start, self.size - start))

        def near(first: int, length: int) -> Buffer:
            at = first - start
            return tail[at : at + length] if at >= 0 else self.read(first, length)

        self.__dict__["_checks"] = read_checks(near, self.size, self.name, self.remedy)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        end = near(self.size - length, length) if len(tail) < length <= self.size else tail
        self.__dict__["_footer"] = self._footer_in(end)
        self.__dict__["_digest"] = digest(memoryview(end)[-length:-8], _FOOTER_DOMAIN)
        self.__dict__.pop("_end", None)
        remember(_checks, self.identity, self.__dict__["_checks"], _REMEMBERED_FOOTERS)
        remember(
            _footers, self.identity, (self.__dict__["_footer"], self.__dict__["_digest"]), _REMEMBERED_FOOTERS
        )

    @property
    def footer(self) -> pq.FileMetaData:
        """The footer's metadata; read once per process.

        Raises:
            CorruptError: it is no Parquet file, or only a part of one.
            DataError: it is encrypted.
            StorageError: it may not be read.
        """
        # No cached_property: before Python 3.12 its lock is one for all files, and threads would wait for each other.
        known: pq.FileMetaData | None = self.__dict__.get("_footer")
        if known is None and self.path is None:
            self._read_object_end()
            known = self.__dict__["_footer"]
        elif known is None:
            found = _footers.get(self.identity)
            if found is None:
                found = self._read_end()
                remember(_footers, self.identity, found, _REMEMBERED_FOOTERS)
            known, self.__dict__["_digest"] = found
        self.__dict__["_footer"] = known
        return known

    def _read_end(self) -> tuple[pq.FileMetaData, str]:
        """The footer of a file at a path, and its digest: one read for both as long as it is short.

        It tells too whether the file carries no checksums, as files that others wrote.
        """
        start = max(self.size - _SHORT_FOOTER, 0)
        tail = self.read(start, self.size - start)
        length = int.from_bytes(tail[-8:-4], "little")
        end = length + 8 + len(SEALED)
        if len(tail) < end <= self.size:
            tail = self.read(self.size - end, end)
        footer = self._footer_in(tail)
        if len(tail) >= end and not bytes(tail).endswith(SEALED, 0, -8 - length):
            remember(_checks, self.identity, None, _REMEMBERED_FOOTERS)
        return footer, digest(tail[-8 - length : -8], _FOOTER_DOMAIN)

    def _footer_in(self, tail: Buffer) -> pq.FileMetaData:
        """The footer, of whose file ``tail`` is the end; in an object it may begin before that."""
        try:
            footer = self._parsed(tail)
        except PermissionError as error:
            raise read_error(self.name, error) from error
        except (pa.ArrowInvalid, OSError) as error:
            if "encrypted" in str(error):
                raise self._encrypted() from error
            raise CorruptError(
                f"{self.name} ({self.size} bytes) is not a complete Parquet file: {str(error).rstrip('. ')}. Restore "
                "it, write it again, or leave it out with open_dataset(..., corrupt='skip')."
            ) from error
        # A footer that is not encrypted, of columns that are, carries a signature. Arrow ends the process when it is
        # asked for such a column.
        if footer.serialized_size + _SIGNATURE == int.from_bytes(tail[-8:-4], "little"):
            raise self._encrypted()
        if wrong := _contradiction(footer):
            raise CorruptError(
                f"{self.name} ({self.size} bytes) has a damaged footer: {wrong}. Restore it, write it again, or leave "
                "it out with open_dataset(..., corrupt='skip')."
            )
        return footer

    def _parsed(self, tail: Buffer) -> pq.FileMetaData:
        try:
            reader = (
                pq.ParquetReader()
            )  # ParquetFile makes tables of names too, which takes a third of the time
            reader.open(pa.BufferReader(tail))
            return reader.metadata
        except pa.ArrowInvalid:
            if self.path is None:
                raise
            return pq.read_metadata(self.path)  # says what is wrong with the whole file

    def _encrypted(self) -> DataError:
        return DataError(
            f"{self.name} is encrypted Parquet, for which Hopyard takes no keys. Decrypt it: read it with pyarrow and "
            "its keys (pyarrow.parquet.ParquetFile(..., decryption_properties=...)) and write it again, or give the "
            "table to prepare()."
        )

    @property
    def footer_digest(self) -> str:
        """Digest of the footer as it is in the file."""
        self.footer  # noqa: B018, to read it
        return str(self.__dict__["_digest"])

    def receive(self, start: int, length: int, keep: Callable[[int, memoryview], object]) -> None:
        """Bytes of an object, piece by piece; see ``Store.receive``. Raises as ``read``."""
        assert self.store is not None
        part = self.store.receive(self.key, start, length, keep)
        if (part.size, part.version) != (self.size, self.identity[-1]):
            raise self._changed(part.size)

    def read(self, start: int, length: int) -> Buffer:
        """Bytes of the file.

        Raises:
            CorruptError: an object was replaced since it was opened.
        """
        if self.path is None:
            assert self.store is not None
            part = self.store.read(self.key, start, length)
            if (part.size, part.version) != (self.size, self.identity[-1]):
                raise self._changed(part.size)
            return part.data
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(descriptor, length, start)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise _missing(self.path, error) from error
        except OSError as error:
            raise read_error(self.name, error) from error


def _contradiction(footer: pq.FileMetaData) -> str | None:
    """A fault of a footer that Arrow reads without a word: footers carry no checksum."""
    rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    if sum(rows) != footer.num_rows or min(rows, default=0) < 0:
        return f"it tells of {footer.num_rows} rows, and of {sum(rows)} in its {len(rows)} row groups"
    try:
        footer.schema.names  # noqa: B018, to decode them
    except UnicodeDecodeError as error:
        return f"the name of a column is no UTF-8 ({error.object!r})"
    return None


_UNREAD: Any = object()
_BITS = 8 * DATA
_footers: OrderedDict[tuple[Any, ...], tuple[pq.FileMetaData, str]] = OrderedDict()
_checks: OrderedDict[tuple[Any, ...], Checks | None] = OrderedDict()
_good: OrderedDict[tuple[Any, ...], Chunks] = OrderedDict()


_latest_leaves: tuple[Any, Mapping[str, Sequence[int]]] | None = None


def check_chunks(files: Sequence[tuple[StoredFile, Chunks, npt.NDArray[np.uint8] | None]]) -> None:
    """Compare chunks of files at paths with the checksums that the files carry, on all cores, unless it was done
    before.

    Args:
        files: each with the mask of the chunks, and with the file's bytes if they are mapped.

    Raises:
        CorruptError: a chunk differs; names file, row group and column.
    """
    for (file, *_), damage in zip(files, _damage_of(files), strict=True):
        if damage:
            raise file._damaged(*damage[0])


def _damage_of(
    files: Sequence[tuple[StoredFile, Chunks, npt.NDArray[np.uint8] | None]],
) -> list[list[tuple[int, int]]]:
    """(row group, leaf) of the chunks that are not as they were written, of each file; see ``check_chunks``."""
    doubted = []
    for number, (file, wanted, content) in enumerate(files):
        checks = file.checks
        assert checks is not None
        good = file._good_chunks(checks)
        todo = wanted & ~good
        if todo.any():
            doubted.append((number, checks, good, todo, file._mapped() if content is None else content))
    damage: list[list[tuple[int, int]]] = [[] for _ in files]
    if not doubted:
        return damage
    found = damaged_chunks([(checks, np.argwhere(todo), content) for _, checks, _, todo, content in doubted])
    for (number, checks, good, todo, _), bad in zip(doubted, found, strict=True):
        damage[number] = bad
        for place in bad:
            todo[place] = False
        good |= todo
        file = files[number][0]
        file._remember_good(checks, good, np.flatnonzero(todo))
        if bad:
            file._remember_damaged()
    return damage


def _leaves_of(schema: pq.ParquetSchema) -> Mapping[str, Sequence[int]]:
    """Numbers of the leaves of each column, and of each field of structs. Files of a dataset mostly are alike."""
    global _latest_leaves
    latest = _latest_leaves
    if latest is None or not latest[0].equals(schema):
        leaves: dict[str, list[int]] = {}
        for leaf in range(len(schema)):
            parts = schema.column(leaf).path.split(".")
            for end in range(1, len(parts) + 1):
                leaves.setdefault(".".join(parts[:end]), []).append(leaf)
        _latest_leaves = latest = schema, leaves
    return latest[1]


def _missing(path: str | Path, error: OSError) -> NotFoundError:
    return NotFoundError(
        f"{path}, a file of the dataset, cannot be read ({error.strerror}). Restore it, or prepare the data again."
    )


def _identity_at(path: str) -> tuple[tuple[Any, ...], int]:
    """The identity of the file that is at a path now, and its size."""
    try:
        status = os.stat(path)  # noqa: PTH116 - pathlib takes longer than the call
    except OSError as error:
        raise _missing(path, error) from error
    return _identity(path, status), status.st_size


def _identity(path: str | Path, status: os.stat_result) -> tuple[Any, ...]:
    return (
        str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip


def _known() -> KnownFacts:
    """The memory of this machine; where it has no place for one, that of this process."""
    try:
        return known(cache_directory())
    except UsageError:
        return known(os.devnull)


def remember(cache: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any, limit: int) -> None:
    """Keep a value for this process, and forget the oldest ones beyond ``limit``."""
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)
