"""Verification of every byte of prepared datasets against their manifests, also if it was found good before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hopyard.data.dataset import Dataset, check_bytes
from hopyard.data.files.unfinished import refuse_leftovers
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.errors import CorruptError, DataError, FormatError, NotFoundError
from hopyard.storage import open_store
from hopyard.storage.base import Store
from hopyard.wording import counted, describe_bytes


@dataclass(frozen=True)
class VerifiedData:
    """Findings of the verification of prepared datasets.

    Attributes:
        datasets: URL or path of each.
        files: number of files that were read; nbytes: bytes of these.
        problems: one sentence for each file or manifest that is damaged, missing or unfinished.
    """

    datasets: tuple[str, ...]
    files: int
    nbytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.problems

    def __str__(self) -> str:
        files = f"{counted(len(self.datasets), 'dataset')}, {counted(self.files, 'file')}"
        read = f"{files}, {describe_bytes(self.nbytes)} read"
        if self.ok:
            return f"{read}: everything is as it was written"
        return "\n".join([*self.problems, f"{read}: {counted(len(self.problems), 'problem')}"])


def verify(
    data: Dataset | Store | str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> VerifiedData:
    """Read every byte of prepared datasets, and compare with their manifests. Damage is reported, not raised; what is
    found is remembered on this machine, so that ``prepare`` of the same data writes anew what is damaged.

    Args:
        data: a store, or its path or URL: all datasets in it; a dataset's folder; or a dataset.
        progress: called with (files read, files in all) after each.

    Raises:
        NotFoundError: no prepared dataset is there.
    """
    if isinstance(data, Dataset):
        if not data.prepared or data.store is None:
            raise NotFoundError(
                "The dataset is of Parquet files that prepare() did not write, so there is nothing to compare them "
                "with. Prepare it, and verify that."
            )
        return _verified([(data.store, data.manifest)], [], progress)
    store = data if isinstance(data, Store) else open_store(data)
    found, problems = list_prepared(store)
    if not found and not problems:
        raise NotFoundError(
            f"{store.url} holds no prepared dataset: there is no {MANIFEST_NAME} in it. Check the path, or prepare one "
            "with prepare(data, store=...)."
        )
    return _verified(found, problems, progress)


def list_prepared(store: Store) -> tuple[list[tuple[Store, Manifest]], list[str]]:
    """The prepared datasets in a store with their manifests, and manifests and files in words that are damaged or
    unfinished."""
    found: list[tuple[Store, Manifest]] = []
    problems: list[str] = []
    for place in _places(store):
        names = [entry.name for entry in place.list()]
        for name in names:
            folder, _, base = name.rpartition("/")
            if base == MANIFEST_NAME:
                try:
                    manifest = Manifest.from_bytes(place.get(name), f"{place.url}/{name}")
                    found.append((place.at(folder), manifest))
                except (CorruptError, FormatError) as error:
                    problems.append(str(error))
        problems += _leftovers(names, place)
    return found, problems


def _places(store: Store) -> list[Store]:
    """Places of a store's datasets: the root, and the places that parts of it were moved to."""
    places = [store] if store.has_root else []
    places += [store.train_data] if store.single_train else []
    return places + ([store.val_data] if store.single_val else [])


def _leftovers(names: Iterable[str], place: Store) -> list[str]:
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(name.rpartition("/")[0], []).append(name)
    said = []
    for folder, its in by_folder.items():
        try:
            refuse_leftovers(its, place, f"{place.url}/{folder}".rstrip("/"))
        except DataError as error:
            said.append(str(error))
    return said


def _verified(
    found: list[tuple[Store, Manifest]], problems: list[str], progress: Callable[[int, int], None] | None
) -> VerifiedData:
    files = [(store, entry) for store, manifest in found for entry in manifest.files]
    for number, (store, entry) in enumerate(files, 1):
        try:
            check_bytes(store, entry)
        except (CorruptError, NotFoundError) as error:
            problems.append(str(error))
        if progress is not None:
            progress(number, len(files))
    return VerifiedData(
        tuple(store.url for store, _ in found),
        len(files),
        sum(entry.size for _, entry in files),
        tuple(problems),
    )
