"""Prepared datasets by reference: their files are objects, named in a map from a file's number to its entry.

What is stored opens as the ``Dataset`` that it was: the same rows in the same order, the same fingerprint. A newer
version of it shares all files that did not change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, Protocol

from hopyard.data import Dataset
from hopyard.data.files.stored import StoredFile
from hopyard.data.manifest import FORMAT_KIND, FileEntry, Manifest
from hopyard.errors import CorruptError, DataError, NotFoundError, NotWritableError
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import DatasetRecord
from hopyard.storage.base import Buffer, Entry, Store
from hopyard.storage.format import object_header

_COPIED_AT_ONCE = 16 << 20


class ManifestReader(Protocol):
    """Objects that hold manifests and maps: ``Objects``, or a ``PackfileWriter`` for what is not published yet."""

    def read(self, digest: str, /) -> Any: ...

    def json(self, digest: str, /) -> Any: ...


# Storing and opening


def store_dataset(writer: PackfileWriter, dataset: Dataset) -> DatasetRecord:
    """Store a prepared dataset's files, those that are new, and what its manifest says.

    Files on the repository's file system are linked, not copied, and made read only.

    Raises:
        DataError: it is not a whole dataset as ``prepare`` wrote it.
        CorruptError: a file is not what was prepared.
    """
    check_whole(dataset)
    for entry in dataset.manifest.files:
        found = _add_file(writer, dataset.store, entry)
        if found != entry.digest:
            raise CorruptError(
                f"{entry.name} of the dataset is not what was prepared: its digest differs from the manifest's. "
                "Restore it, or prepare the data again; nothing of the dataset is on the shelf."
            )
    return record_of(writer, dataset.manifest)


def check_whole(dataset: Dataset) -> None:
    """Raise DataError if it is not a whole dataset as ``prepare`` wrote it."""
    manifest = dataset.manifest
    if not dataset.prepared or dataset.store is None:
        raise DataError(
            "Parquet files that Hopyard did not prepare cannot be stored by reference: others may write to them. "
            "Prepare them first (prepare(dataset, store).train), or store their columns: "
            "stock.data['name'] = dataset[:]['column']."
        )
    changed = [
        said
        for said, holds in (
            ("policies, decoders or a transform", bool(dataset.recipe.digest)),
            ("a selection of columns", _columns_of_files(dataset) != set(dataset.schema.names)),
            ("a filter, or left-out row groups", any(bits is not None for bits in dataset.selected)),
            ("some of its row groups", dataset.num_row_groups != manifest.num_row_groups),
            ("one of its partitions", dataset.fingerprint != manifest.fingerprint),
        )
        if holds
    ]
    if changed:
        raise DataError(
            f"The dataset was opened with {changed[0]}, but what is stored by reference is a whole prepared dataset. "
            "Prepare this one first (prepare(dataset, store, validation=None).train), or store the dataset that it "
            "comes from and open the part again where it is needed."
        )


def _columns_of_files(dataset: Dataset) -> set[str]:
    """Names of the columns that the files have."""
    for entry in dataset.manifest.files:
        return set(StoredFile.open(dataset.store, entry.name).footer.schema.to_arrow_schema().names)
    return set(dataset.schema.names)


def _add_file(writer: PackfileWriter, store: Store | None, entry: FileEntry) -> str:
    assert store is not None
    path = store.path(entry.name)
    if path is not None:
        return writer.add_file(path)
    with tempfile.NamedTemporaryFile() as copy:
        for start in range(0, entry.size, _COPIED_AT_ONCE):
            copy.write(store.get(entry.name, start, min(_COPIED_AT_ONCE, entry.size - start)))
        copy.flush()
        return writer.add_file(Path(copy.name), link=False)


def record_of(writer: PackfileWriter, manifest: Manifest) -> DatasetRecord:
    """The record of a dataset whose files are stored."""
    fields = manifest.to_json()
    del fields["files"]
    fields["format"] = object_header(FORMAT_KIND)
    files = {encode(number): asdict(entry) for number, entry in enumerate(manifest.files)}
    root = SortedMap(writer, None).update(writer, files).root
    return DatasetRecord(writer.add_json(fields), root, manifest.rows, manifest.nbytes)


def open_stored(objects: Objects | PackfileWriter, record: DatasetRecord, where: str) -> Dataset:
    """The dataset as it was stored. Picklable; ``where`` names it in messages.

    Its files are mapped where the repository has files, and else read by ranges. Those that are not here are
    brought by ``objects`` when they are first read.
    """
    manifest = read_manifest(objects, record, where)
    files = objects.stored if isinstance(objects, PackfileWriter) else objects
    assert isinstance(files, Objects)
    return Dataset(StoredFiles(files, manifest.files, where), manifest)


def read_manifest(objects: ManifestReader, record: DatasetRecord, where: str) -> Manifest:
    """The dataset's manifest, as it was when it was stored.

    Raises:
        CorruptError, FormatError: what is stored is none that this version can read.
    """
    files = [entry for _, entry in SortedMap(objects, record.files).items()]
    return Manifest.from_json({**objects.json(record.manifest), "files": files}, where)


class StoredFiles(Store):
    """A stored dataset's files under the names that its manifest has for them, as a store that is read only.

    Args:
        objects: of the repository.
        files: of the dataset.
        where: what messages call it.
    """

    def __init__(self, objects: Objects, files: Sequence[FileEntry], where: str) -> None:
        self._objects, self._where = objects, where
        self._files = {entry.name: (entry.digest, entry.size) for entry in files}

    @property
    def url(self) -> str:
        """The dataset in words: it has no address of its own."""
        return self._where

    @property
    def shared(self) -> bool:
        """Whether other processes see the same files."""
        return self._objects.shared

    @property
    def remedy(self) -> str:
        """Text on how to bring back a file that is damaged here."""
        return (
            "`stock verify --repair-from URL_OR_FOLDER` brings it back from a remote or another clone; preparing the "
            "same data again and storing it under this name does so too."
        )

    def _digest(self, name: str) -> str:
        if name not in self._files:
            raise NotFoundError(f"{self._where} has no file {name}. It has {len(self._files)}: see list().")
        return self._files[name][0]

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A range of a file."""
        return self._objects.read_range(self._digest(name), start, length)

    def path(self, name: str) -> Path | None:
        """Path of the file; None if the repository has no files. Brings the file if it is not here."""
        return self._objects.file(self._digest(name), verify=False)

    def size(self, name: str) -> int | None:
        """Bytes of the file, as the manifest says; None if the dataset has none of this name."""
        return self._files[name][1] if name in self._files else None

    def version(self, name: str) -> str | None:
        """The file's digest."""
        return self._files[name][0] if name in self._files else None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """The files whose names begin so."""
        for name, (_, size) in sorted(self._files.items()):
            if not prefix or name.startswith(prefix + "/"):
                yield Entry(name, size)

    def put(self, name: str, data: Buffer) -> None:
        """Not possible."""
        self._refuse(name)

    def put_new(self, name: str, data: Buffer) -> bool:
        """Not possible."""
        self._refuse(name)

    def put_file(self, name: str, path: Path) -> None:
        """Not possible."""
        self._refuse(name)

    def delete(self, name: str) -> None:
        """Not possible."""
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise NotWritableError(
            f"{self._where} cannot be written to ({name}): versions never change. Prepare another dataset, and store "
            "it under this name."
        )
