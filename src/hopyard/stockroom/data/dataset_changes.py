"""Differences between two versions of a dataset, file by file, and merging two versions of a third."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hopyard.data.manifest import FileEntry, Manifest
from hopyard.objects.digests import digest_json
from hopyard.stockroom.data.datasets import ManifestReader, read_manifest, record_of
from hopyard.stockroom.maps import SortedMap
from hopyard.stockroom.packfiles import PackfileWriter
from hopyard.stockroom.records import DatasetRecord
from hopyard.wording import counted


@dataclass(frozen=True)
class DatasetDiff:
    """Differences between two versions of a dataset.

    Attributes:
        removed: files that only the first has.
        added: files that only the second has.
        changed: what else differs, of ``"schema"``, ``"split"``, ``"settings"`` and ``"order of files"``.
    """

    removed: tuple[FileEntry, ...]
    added: tuple[FileEntry, ...]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{sign}{counted(len(files), 'file')} "
            f"({counted(sum(len(file.group_rows) for file in files), 'row group')}, "
            f"{counted(sum(file.rows for file in files), 'row')})"
            for sign, files in (("-", self.removed), ("+", self.added))
            if files
        ]
        return ", ".join([*parts, *(f"{what} differs" for what in self.changed)]) or "no difference"


def diff_datasets(objects: ManifestReader, old: DatasetRecord, new: DatasetRecord) -> DatasetDiff:
    """The differences of two datasets. Reads manifests and the pages of files that are not in both; no data."""
    removed: dict[str, FileEntry] = {}
    added: dict[str, FileEntry] = {}
    moved = False
    for _, before, after in SortedMap(objects, old.files).diff(SortedMap(objects, new.files)):
        for entry, found in ((before, removed), (after, added)):
            if entry is not None:
                found[entry["digest"]] = _entry(entry)
    for digest in removed.keys() & added.keys():
        moved = True
        del removed[digest], added[digest]
    changed: list[str] = []
    if old.manifest != new.manifest:
        mine, its = objects.json(old.manifest), objects.json(new.manifest)
        changed = [name for name in ("schema", "split", "settings") if mine[name] != its[name]]
    if moved and not removed:
        changed.append("order of files")
    return DatasetDiff(tuple(removed.values()), tuple(added.values()), tuple(changed))


def _entry(fields: dict[str, Any]) -> FileEntry:
    return FileEntry(**{**fields, "group_rows": tuple(fields["group_rows"])})


def merge_datasets(
    writer: PackfileWriter, base: DatasetRecord | None, ours: DatasetRecord, theirs: DatasetRecord
) -> DatasetRecord | None:
    """The dataset with the files that either side added to ``base``, without those that either removed.

    The files of ``base`` come first, then the new ones in the order of their digests: both ways of merging two
    versions give the same. Statistics that differ are left out.

    Returns:
        None for a conflict: both sides took the same files away, and so replaced the same rows; their columns differ;
        or nothing is left.
    """
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    mine, its = read_manifest(writer, ours, "ours"), read_manifest(writer, theirs, "theirs")
    before = read_manifest(writer, base, "base").files if base is not None else ()
    if base is None or (mine.schema, mine.split) != (its.schema, its.split):
        return None
    if not _gone(before, mine).isdisjoint(_gone(before, its)):
        return None
    files = _merged_files(before, mine, its)
    names = {entry.name for entry in files}
    if not files or len(names) < len(files):
        return None
    merged = replace(
        mine,
        fingerprint=digest_json(
            [mine.schema.to_json(), [entry.digest for entry in files]], "hopyard.merged-dataset"
        ),
        files=files,
        statistics={
            name: values for name, values in mine.statistics.items() if its.statistics.get(name) == values
        },
        settings={"merged": sorted([mine.fingerprint, its.fingerprint])},
        created=max(mine.created, its.created),
    )
    return record_of(writer, merged)


def _gone(before: Sequence[FileEntry], after: Manifest) -> set[str]:
    """Digests of the files that were taken away."""
    return {entry.digest for entry in before} - {entry.digest for entry in after.files}


def _merged_files(before: Sequence[FileEntry], mine: Manifest, its: Manifest) -> tuple[FileEntry, ...]:
    known = {entry.digest for entry in before}
    gone = _gone(before, mine) | _gone(before, its)
    added = {entry.digest: entry for entry in (*mine.files, *its.files) if entry.digest not in known}
    kept = [entry for entry in before if entry.digest not in gone]
    return (*kept, *(added[digest] for digest in sorted(added)))
