"""Where prepared datasets are in a store, and which is there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.errors import NotFoundError, SettingsError
from hopyard.storage.base import Store

_log = logging.getLogger("hopyard")


@dataclass(frozen=True)
class Prepared:
    """A prepared dataset.

    Attributes:
        train, val: its splits; val is None without a validation set.
        fingerprint: of the data and the arguments.
        reused: it was there already, and nothing was written.
    """

    train: Dataset
    val: Dataset | None
    fingerprint: str
    reused: bool


def split_stores(store: Store, fingerprint: str) -> tuple[Store, Store]:
    """Where the training and the validation set of that fingerprint are, or would be."""
    train = store.train_data if store.single_train else store.train_data.at(fingerprint)
    val = store.val_data if store.single_val else store.val_data.at(fingerprint)
    return train, val


def read_manifest(store: Store) -> Manifest | None:
    """The manifest at the root of ``store``, or None if there is none."""
    try:
        data = store.get(MANIFEST_NAME)
    except NotFoundError:
        return None
    return Manifest.from_bytes(data, f"{store.url}/{MANIFEST_NAME}")


def find_prepared(store: Store, fingerprint: str, settings: Mapping[str, Any]) -> Prepared | None:
    """The dataset of that fingerprint, if its preparation was finished and its files are there.

    Args:
        settings: what the dataset was asked for with; ``"validation"`` None: without a validation set.

    Raises:
        SettingsError: an explicit train_path or val_path holds another dataset.
    """
    places = split_stores(store, fingerprint)[: 1 if settings["validation"] is None else 2]
    manifests = [read_manifest(place) for place in places]
    for manifest, place in zip(manifests, places, strict=True):
        if manifest is not None and manifest.fingerprint != fingerprint:
            raise _other_dataset(manifest, place, settings)
    splits = [
        Dataset(place, manifest)
        for manifest, place in zip(manifests, places, strict=True)
        if manifest is not None and _has_files(place, manifest)
    ]
    if len(splits) < len(places):
        return None
    _log.info("found the dataset %s in %s: nothing to prepare", fingerprint[:12], places[0].url)
    return Prepared(splits[0], splits[1] if len(splits) > 1 else None, fingerprint, True)


def _has_files(store: Store, manifest: Manifest) -> bool:
    """Whether no file was lost since; one that was is written again by ``prepare``."""
    sizes = {entry.name: entry.size for entry in store.list()}
    return all(sizes.get(entry.name) == entry.size for entry in manifest.files)


def _other_dataset(manifest: Manifest, place: Store, settings: Mapping[str, Any]) -> SettingsError:
    differing = [
        f"{key} {manifest.settings.get(key)!r} there, {value!r} asked"
        for key, value in settings.items()
        if manifest.settings.get(key) != value
    ] or ["the rows themselves"]
    return SettingsError(
        f"{place.url} holds another {manifest.split} dataset ({manifest.rows} rows, prepared {manifest.created}); "
        f"what differs: {'; '.join(differing)}. A path given as train_path or val_path holds one dataset: give another "
        "path, delete what is there, or give only prefix_path, under which datasets stand side by side."
    )


def publish(store: Store, manifest: Manifest) -> Manifest:
    """Write the manifest at the root of ``store``; the one that is there if another process was first
    (and nothing is missing of what it lists).

    Raises:
        SettingsError: that process wrote another dataset.
    """
    if store.put_new(MANIFEST_NAME, manifest.to_bytes()):
        return manifest
    there = read_manifest(store)
    assert there is not None
    if there.fingerprint != manifest.fingerprint:
        raise _other_dataset(there, store, manifest.settings)
    if not _has_files(store, there):  # some were lost, and another version of Arrow had written other bytes
        store.put(MANIFEST_NAME, manifest.to_bytes())
        return manifest
    return there
