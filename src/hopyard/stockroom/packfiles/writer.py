"""Adds objects: they wait in memory until there is a packfile of them, or until they are published."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from hopyard.errors import ChangedError, DataError, NotFoundError, UsageError
from hopyard.objects.digests import Hasher, digest
from hopyard.objects.tensors import Tensor
from hopyard.stockroom.packfiles.index import Index
from hopyard.stockroom.packfiles.layout import (
    DATA_KINDS,
    META_KINDS,
    Location,
    ObjectToPack,
    Packfile,
    file_location,
    private,
    put_packfile,
)
from hopyard.stockroom.packfiles.mapped import Bytes
from hopyard.stockroom.records import parsing
from hopyard.storage import Store, files
from hopyard.storage.temporary import temporary_name

PACKFILE_BYTES = 64 << 20
PACKFILE_OBJECTS = 100_000  # their header has about 12 MB; safetensors reads headers up to 100 MB

_LOOKED_UP_AT_ONCE = 1 << 18  # bytes; smaller objects are looked up together, when they are packed
_PACKFILES_AT_ONCE = 2
_CHUNK = 4 << 20
_GROUPS = dict.fromkeys(META_KINDS, "meta") | dict.fromkeys(DATA_KINDS, "data")
_DOMAINS = {kind: f"hopyard.{kind}" for kind in _GROUPS}

Data = bytes | bytearray | memoryview | np.ndarray[Any, Any]


class StoredObjects(Protocol):
    """The objects as a writer that adds to them needs them."""

    def read(self, digest: str) -> Bytes: ...
    def read_many(self, digests: Iterable[str]) -> dict[str, Bytes]: ...
    def tensors(
        self, digests: Iterable[str], verify: bool = True, private: bool = False
    ) -> dict[str, Tensor]: ...
    def file(self, digest: str, verify: bool = True) -> Path | None: ...
    def damaged(self, places: Mapping[str, Location]) -> set[str]: ...
    def forget_cut(self, packfiles: Collection[str]) -> bool: ...


class PackfileWriter:
    """Writer that :meth:`Objects.writing` gives: a context manager, for one thread, or several if it was given a lock.

    On success everything is published at its end. After an exception nothing more is: packfiles that were full by then,
    and files, stay, and are found again if the same is written again.
    """

    def __init__(
        self, store: Store, index: Index, stored: StoredObjects, before: Callable[[], None] | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:  # fmt: skip
        self._lock = nullcontext() if lock is None else lock
        self._store, self._index, self._stored, self._before = store, index, stored, before
        self._pending: dict[str, dict[str, ObjectToPack]] = {"data": {}, "meta": {}}
        self._bytes = {"data": 0, "meta": 0}
        self._looked: set[str] = set()  # packfiles that were seen to be as the index says
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[tuple[dict[str, ObjectToPack], Future[Packfile]]] = []

    @property
    def stored(self) -> StoredObjects:
        """The objects that it adds to: where files are found, which never wait."""
        return self._stored

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.publish()
        self.discard()

    def discard(self) -> None:
        """Store nothing of what is pending."""
        for group in self._pending:
            self._forget_pending(group)

    # Adding

    def look_anew(self) -> None:
        """See of each packfile again whether it is as the index says, before it is trusted to hold something."""
        self._looked.clear()

    def begin(self) -> None:
        """See that nothing is deleted from now on, before objects are read whose content is to be added anew: what
        was purged until now is not among that."""
        if self._before is not None:
            with self._lock:
                self._before()

    def add(self, kind: str, data: Data, width: int = 0, body: int = 0) -> str:
        """The digest of ``data``, which is stored at the latest by :meth:`publish`.

        Args:
            kind: ``commit``, ``page``, ``json`` or ``fragment``.
            data: contiguous bytes, or an array; copied.
            width: bytes of a row. Of less than 32 KiB, byte ``body`` of the object is at a multiple of it in the
            packfile. body: where the rows begin in ``data``.

        Raises:
            UsageError: another kind.
        """
        if kind not in _GROUPS or kind == "tensor":
            raise UsageError(
                f"an object of kind {kind!r} was added, but bytes are of kind commit, page, json or fragment. "
                "Use add_tensor for tensors and add_file for files."
            )
        # Hashed is what is kept: the memory may be written to meanwhile.
        view = data.data if isinstance(data, np.ndarray) else data
        content = view if type(view) is bytes else bytes(view)
        name = digest(content, _DOMAINS[kind])
        self._keep(ObjectToPack(name, kind, content, "U8", (len(content),), width, body))
        return name

    def add_json(self, value: Any, kind: str = "json") -> str:
        """The digest of a JSON value, stored as its canonical text: sorted keys, no spaces, ASCII.

        Raises:
            DataError: it is not a JSON value.
        """
        try:
            text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
            if "\\ud" in text:  # a surrogate: other programs read it as half of a pair only
                json.dumps(value, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"a value cannot be stored as JSON: {error}. It may be made of dicts with string keys, lists, strings "
                "of valid Unicode, finite numbers, booleans and None; convert what else is in it."
            ) from None
        return self.add(kind, text.encode())

    def add_tensor(self, tensor: Tensor) -> str:
        """The digest of a tensor, which may be changed afterwards: what is kept is copied."""
        return self.add_tensors([tensor])[0]

    def add_tensors(self, tensors: Iterable[Tensor]) -> list[str]:
        """The digests of many, which may be changed afterwards.

        What fills packfiles on the way is not copied, and a packfile is stored while the next is filled.

        Raises:
            ChangedError: one of them was written to meanwhile. Nothing of it was stored.
        """
        with self._lock:
            return self._add_tensors(tensors)

    def _add_tensors(self, tensors: Iterable[Tensor]) -> list[str]:
        names: list[str] = []
        seen: set[str] = set()
        try:
            with ThreadPoolExecutor(_PACKFILES_AT_ONCE) as self._pool:
                for tensor in tensors:
                    names.append(tensor.digest)
                    if tensor.digest not in seen:
                        seen.add(tensor.digest)
                        self._keep(
                            ObjectToPack(
                                tensor.digest, "tensor", tensor.data.data, tensor.dtype, tensor.shape
                            )
                        )
        finally:
            self._pool = None
            failed = self._settle()
            pending = self._pending["data"]
            # Only of this call: going through all that is pending makes many small calls quadratic.
            for name in seen:
                try:
                    if name in pending:
                        pending[name] = private(pending[name])
                except ChangedError as error:
                    failed = failed or error
                    self._bytes["data"] -= len(pending.pop(name).data)
        if failed is not None:
            raise failed
        return names

    def _settle(self) -> Exception | None:
        """Note the packfiles that were stored meanwhile; what was to be in one that could not be is pending again."""
        failed = None
        for pieces, packfile in self._under_way:
            try:
                self._index.add([packfile.result()])
            except Exception as error:
                failed = error
                self._pending["data"] |= pieces
                self._bytes["data"] += sum(len(piece.data) for piece in pieces.values())
        self._under_way.clear()
        return failed

    def _keep(self, piece: ObjectToPack) -> None:
        with self._lock:
            self._keep_locked(piece)

    def _keep_locked(self, piece: ObjectToPack) -> None:
        if self._before is not None:
            self._before()
        group = _GROUPS[piece.kind]
        pending = self._pending[group]
        size = len(piece.data)
        if piece.digest in pending or (size >= _LOOKED_UP_AT_ONCE and self._present((piece.digest,))):
            return
        pending[piece.digest] = piece
        self._bytes[group] += size
        if self._bytes[group] >= PACKFILE_BYTES or len(pending) >= PACKFILE_OBJECTS:
            if group == "meta" and self._pending["data"]:
                self._put("data")
            self._put(group, PACKFILE_BYTES // 2, PACKFILE_OBJECTS // 2)

    def _present(self, digests: Collection[str]) -> Collection[str]:
        """The objects, of these, that need not be stored. Damaged ones, and those of a cut packfile, are stored
        again."""
        found = self._index.find(digests)
        packfiles = {place.packfile for place in found.values()} - self._looked
        self._looked |= packfiles
        if packfiles and self._stored.forget_cut(packfiles):
            found = self._index.find(digests)
        return found.keys() - self._stored.damaged(found) if found else ()

    # Publishing

    def publish(self) -> None:
        """Store durably what is pending: data, then what refers to them. If it fails it can be called again.

        Raises:
            StorageFullError, NotWritableError, StorageError: as the store; what was stored until then stays.
        """
        with self._lock:
            packfiles: dict[str, Packfile] = {}
            try:
                for group in ("data", "meta"):
                    self._drop_present(group)
                    if self._pending[group]:
                        packfiles[group] = self._stored_packfile(group)
            finally:
                self._note(packfiles)

    def _put(self, group: str, least_bytes: int = 0, least_objects: int = 0) -> None:
        """Store what is pending as one packfile, unless what the repository lacks of it is less than asked for."""
        self._drop_present(group)
        pending = self._pending[group]
        if pending and (self._bytes[group] >= least_bytes or len(pending) >= least_objects):
            if self._pool is None:
                self._note({group: self._stored_packfile(group)})
            else:
                future = self._pool.submit(put_packfile, self._store, group, list(pending.values()))
                self._under_way.append((dict(pending), future))
                self._forget_pending(group)

    def _drop_present(self, group: str) -> None:
        """Do not store what is pending and need not be stored."""
        pending = self._pending[group]
        for known in self._present(pending):
            self._bytes[group] -= len(pending.pop(known).data)

    def _stored_packfile(self, group: str) -> Packfile:
        """A new packfile of all that is pending, which stays pending until the index knows the packfile."""
        pending = self._pending[group]
        try:
            return put_packfile(self._store, group, list(pending.values()))
        except ChangedError as error:  # of a call that was interrupted: nothing has its digest
            self._bytes[group] -= len(pending.pop(error.digest).data)
            raise

    def _note(self, packfiles: Mapping[str, Packfile]) -> None:
        """Let the index know what was pending, in one transaction. Reading needs no lock: at any time a piece is
        pending, under way, or in the index."""
        if packfiles:
            self._index.add(list(packfiles.values()))
            for group in packfiles:
                self._forget_pending(group)

    def _forget_pending(self, group: str) -> None:
        self._pending[group].clear()
        self._bytes[group] = 0

    # Files

    def add_file(self, path: Path, link: bool = True) -> str:
        """The digest of a file, stored durably when this returns.

        Where the store has files on the same file system it is linked, not copied, and made read only: writing to the
        linked file would change what is stored. (Whoever writes all the same, as root may, is found out when the
        object is read and checked, and what was changed is replaced when the same is added again. Replacing or deleting
        the file changes nothing here.) A file that cannot be made read only, since it is another user's, is copied.

        Args:
            link: False to copy it in any case, and leave it as it is: it may be written to later.

        Raises:
            NotFoundError: there is no such file.
        """
        if not path.is_file():
            raise NotFoundError(f"there is no file {path} to be stored. Give the path of a file that exists.")
        if self._before is not None:
            with self._lock:
                self._before()
        name = _digest_of_file(path)
        size = self._store.size(f"files/{name}")
        if size is not None and not self._stored.damaged({name: file_location(name, size)}):
            return name
        staging = self._store.staging()
        if staging is not None:
            return self._put_file(path, staging, link)
        with tempfile.TemporaryDirectory() as directory:
            return self._put_file(path, Path(directory), link=False)

    def _put_file(self, path: Path, staging: Path, link: bool) -> str:
        temporary = staging / temporary_name()
        mode = path.stat().st_mode
        linked = link and _link(path, temporary)
        try:
            if not linked:
                files.copy(path, temporary)
            # Of what is stored, whatever happened to the file since its digest was looked up.
            name = _digest_of_file(temporary)
            self._store.put_file(f"files/{name}", temporary)
            return name
        except BaseException:
            if linked:
                path.chmod(mode)
            raise
        finally:
            files.unlink_quietly(temporary)

    # Reading what was added

    def read(self, digest: str) -> Bytes:
        """The bytes of an object that is pending or stored, read only."""
        found, rest = self._split((digest,))
        return self._stored.read(digest) if rest else found[digest]

    def read_many(self, digests: Iterable[str]) -> dict[str, Bytes]:
        """The same for many."""
        found, rest = self._split(digests)
        return found | self._stored.read_many(rest) if rest else found

    def tensors(
        self, digests: Iterable[str], verify: bool = True, private: bool = False
    ) -> dict[str, Tensor]:
        """Tensors, as :meth:`Objects.tensors`."""
        found, rest = self._split(digests)
        tensors = self._stored.tensors(rest, verify, private) if rest else {}
        for name, data in found.items():
            piece = self._pending["data"][name]
            tensors[name] = Tensor(piece.dtype, piece.shape, data.copy() if private else data)
            tensors[name].know(name)
        return tensors

    def json(self, digest: str) -> Any:
        """The JSON value that is pending or stored."""
        return parsing.named_json(digest, self.read(digest))

    def file(self, digest: str, verify: bool = True) -> Path | None:
        """The path of a file, as :meth:`Objects.file`."""
        return self._stored.file(digest, verify)

    def _split(self, digests: Iterable[str]) -> tuple[dict[str, Bytes], list[str]]:
        """Objects that are pending, read only, and the digests of the others."""
        found = {}
        rest = []
        for name in digests:
            piece = self._pending["meta"].get(name) or self._pending["data"].get(name)
            if piece is None and self._under_way:
                piece = next((pieces[name] for pieces, _ in self._under_way if name in pieces), None)
            if piece is None:
                rest.append(name)
            else:
                found[name] = np.frombuffer(piece.data, np.uint8)
        return found, rest


def _digest_of_file(path: Path) -> str:
    hasher = Hasher("hopyard.file")
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _link(path: Path, temporary: Path) -> bool:
    """Whether the file has this second name now, and cannot be written to any more."""
    try:
        files.link(path.resolve(), temporary)
        temporary.chmod(temporary.stat().st_mode & 0o555)
    except OSError:
        files.unlink_quietly(temporary)
        return False
    return True
