"""Places of prepared datasets in a store, and the search for one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hopyard.data.columns.policies import Nulls, null_label
from hopyard.data.contract import RowSource
from hopyard.data.dataset import Dataset
from hopyard.data.files.listed import are_all, is_whole
from hopyard.data.files.unfinished import finish_names
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.errors import CorruptError, DataError, NotFoundError, SettingsError
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


def check_labels(
    datasets: Iterable[object], labels: Iterable[str], role: Literal["label", "weight"] = "label"
) -> None:
    """Raise DataError if nulls of a column of labels, or of weights, were filled when one of the datasets was prepared
    or opened."""
    for dataset in datasets:
        filled = dataset.filled() if isinstance(dataset, RowSource) else {}
        for name in labels:
            if name in filled:
                raise null_label(name, Nulls(filled[name]), role)


def check_filled(datasets: Iterable[object], names: Iterable[str]) -> None:
    """Raise DataError if nulls of a column that steps read were filled before, so that nobody knows them."""
    for dataset in datasets:
        if not isinstance(dataset, RowSource):
            continue
        filled, there = dataset.filled(), set(dataset.schema.names)
        for name in names:
            if name in filled and f"{name}_mask" not in there:
                raise DataError(
                    f"preprocess reads column {name!r}, but its nulls were filled with zeros or empty texts "
                    f"in {dataset.split!r} data, and no column {name}_mask says which they were. Prepare or open the "
                    f"data with nulls='mask', or prepare(..., masked=[{name!r}])."
                )


def split_stores(store: Store, fingerprint: str) -> tuple[Store, Store]:
    """Stores of the training and the validation set of that fingerprint, which need not be there yet."""
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
        settings: of the request for the dataset; ``"validation"`` None: without a validation set.

    Raises:
        SettingsError: an explicit train_path or val_path holds another dataset.
    """
    places = split_stores(store, fingerprint)[: 1 if settings["validation"] is None else 2]
    manifests = [_readable_manifest(place, fingerprint) for place in places]
    for manifest, place in zip(manifests, places, strict=True):
        if manifest is not None and manifest.fingerprint != fingerprint:
            raise _other_dataset(manifest, place, settings)
    splits = [
        Dataset(place, manifest)
        for manifest, place in zip(manifests, places, strict=True)
        if manifest is not None and are_all(place, manifest.files, is_whole)
    ]
    if len(splits) < len(places):
        return None
    _log.info("found the dataset %s in %s: nothing to prepare", fingerprint[:12], places[0].url)
    return Prepared(splits[0], splits[1] if len(splits) > 1 else None, fingerprint, True)


def _readable_manifest(store: Store, fingerprint: str) -> Manifest | None:
    """The manifest at the root of ``store``; None if there is none, or a damaged one of that dataset.

    Raises:
        CorruptError: it is damaged, and may be that of another dataset.
    """
    try:
        return read_manifest(store)
    except CorruptError as error:
        if fingerprint.encode() not in store.get(MANIFEST_NAME) and not store.url.endswith(fingerprint):
            raise CorruptError(
                f"{error} It seems to be of another dataset than the one that is to be prepared here: prepare that, "
                "give another path, or delete it."
            ) from error
        _log.warning("%s The dataset is written again.", error)
        return None


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
    """Give the files their names, and write the manifest at the root of ``store``; the one that is there if another
    process was first (and nothing is missing of what it lists).

    Raises:
        SettingsError: that process wrote another dataset.
    """
    finish_names(store, manifest)
    if store.put_new(MANIFEST_NAME, manifest.to_bytes()):
        return manifest
    there = _readable_manifest(store, manifest.fingerprint)
    if there is not None and there.fingerprint != manifest.fingerprint:
        raise _other_dataset(there, store, manifest.settings)
    # It is damaged; or files were lost, and another version of Arrow had written other bytes.
    if there is None or not are_all(store, there.files, is_whole):
        store.put(MANIFEST_NAME, manifest.to_bytes())
        return manifest
    return there
