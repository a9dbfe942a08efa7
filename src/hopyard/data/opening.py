"""From what a user names to a dataset: a store, a path, a URL, or Parquet files as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from hopyard.data.dataset import Dataset
from hopyard.data.foreign import open_foreign
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.data.sources_files import PARQUET, find_files
from hopyard.errors import DataError, NotFoundError, UsageError, nearest
from hopyard.storage import open_store
from hopyard.storage.base import Store

PathLike: TypeAlias = str | os.PathLike[str]

_SPLITS = ("train", "val")
_NO_SOURCES = ("train_data", "val_data", "runs", "logs")  # below a store: what Hopyard keeps there itself


def open_dataset(
    data: Store | PathLike | Sequence[PathLike], split: Literal["train", "val"] = "train"
) -> Dataset:
    """The dataset that ``data`` names.

    * a store, or its path or URL: the newest prepared dataset of the split in it;
    * a directory with a manifest: that dataset;
    * a Parquet file, a list of them, or a directory of them: their rows, without preparation.

    Raises:
        NotFoundError: there is no dataset; says what was looked for.
        DataError: Parquet files without a manifest differ in their columns, have nulls, or none are there.
        UsageError: an unknown split.
    """
    if split not in _SPLITS:
        raise UsageError(
            f"split={split!r}, but it must be 'train' or 'val'{nearest(str(split), _SPLITS, '.')}"
        )
    if isinstance(data, Store):
        return _from_store(data, split)
    if not isinstance(data, (str, os.PathLike)):
        return _from_files([file for path in data for file in find_files(os.fspath(path))])
    path = _local_path(data)
    if path is None:
        return _from_store(open_store(data), split)
    if path.is_dir():
        return _from_store(open_store(path), split)
    return _from_files(find_files(path))


def _from_files(files: Sequence[Path]) -> Dataset:
    other = [str(file) for file in files if not file.name.lower().endswith(PARQUET)]
    if other:
        raise DataError(
            f"{other[0]} is not a Parquet file, which alone is read without preparation. Prepare it with prepare()."
        )
    return open_foreign(None, [str(file.absolute()) for file in files])


def _local_path(data: PathLike) -> Path | None:
    """The path, if ``data`` is one or a ``file://`` URL."""
    text = os.fspath(data)
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return None if "://" in text else Path(text).expanduser()


def _from_store(store: Store, split: str) -> Dataset:
    """The newest dataset of the split below ``store``, or what ``store`` itself holds."""
    part = store.train_data if split == "train" else store.val_data
    places = [part, *([store] if _has_root(store) else [])]
    for place in places:
        dataset = _newest(place, split) or _foreign_in(place)
        if dataset is not None:
            return dataset
    raise NotFoundError(
        f"{store.url} holds no {split} dataset: neither a {MANIFEST_NAME} nor Parquet files are in "
        f"{' or '.join(place.url for place in places)}. Prepare one with prepare(data, store=...)."
    )


def _has_root(store: Store) -> bool:
    """Whether the store itself can be looked into; one of moved parts alone cannot."""
    try:
        store.exists(MANIFEST_NAME)
    except UsageError:
        return False
    return True


def _newest(place: Store, split: str) -> Dataset | None:
    """The dataset that ``place`` is, or the newest of those in the directories below it."""
    if place.exists(MANIFEST_NAME):
        return Dataset(place, Manifest.from_bytes(place.get(MANIFEST_NAME), f"{place.url}/{MANIFEST_NAME}"))
    found: list[tuple[str, str, Manifest]] = []
    for entry in place.list():
        directory, _, name = entry.name.rpartition("/")
        if name == MANIFEST_NAME and "/" not in directory:
            manifest = Manifest.from_bytes(place.get(entry.name), f"{place.url}/{entry.name}")
            if manifest.split == split:
                found.append((manifest.created, directory, manifest))
    if not found:
        return None
    _, directory, manifest = max(found, key=lambda each: each[:2])
    return Dataset(place.at(directory), manifest)


def _foreign_in(place: Store) -> Dataset | None:
    names = [entry.name for entry in place.list() if _is_source(entry.name)]
    return open_foreign(place, names) if names else None


def _is_source(name: str) -> bool:
    parts = name.split("/")
    hidden = any(part[0] in "._" for part in parts)
    return name.lower().endswith(PARQUET) and not hidden and parts[0] not in _NO_SOURCES
