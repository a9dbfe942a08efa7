"""The data of a search in a commit: by reference, under the name that it has there, or one of the run's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hopyard.data import Dataset
from hopyard.data.base import Partitioned
from hopyard.errors import UsageError
from hopyard.stockroom.data import DataShelf, JoinedSamples
from hopyard.stockroom.data.datasets import check_whole, read_manifest
from hopyard.stockroom.experiments import RunView
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import DatasetRecord

Given = tuple[Partitioned, Partitioned | None]
"""What a search was given to train on, and to validate on."""

_ROLES = ("train", "val")


def check_pinnable(given: Given) -> None:
    """Raise UsageError if data cannot be committed by reference: Parquet of others, parts of datasets."""
    for role, data in zip(_ROLES, given, strict=True):
        if isinstance(data, Dataset):
            try:
                check_whole(data)
            except UsageError as error:
                raise UsageError(
                    f"stock= commits what a search was trained on, but this {role} data cannot be: {error}"
                ) from error


def pin(draft: Draft, given: Given, prefix: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Have the data in a draft; where it is there already, nothing is added.

    Args:
        prefix: of the names of what is not there.

    Returns: how to find it again, as JSON; and the contents of files that this needs, by name.
    """
    described: dict[str, Any] = {}
    files: dict[str, str] = {}
    for role, data in zip(_ROLES, given, strict=True):
        if isinstance(data, Dataset):
            described[role] = {"dataset": _pin_dataset(draft, data, f"{prefix}/{role}")}
        elif isinstance(data, JoinedSamples):
            columns = _pin_columns(draft, data, f"{prefix}/{role}")
            described[role] = {"columns": columns}
            if JoinedSamples(data.columns, missing="drop").fingerprint != data.fingerprint:
                described[role]["keys"] = f"{role}.keys.json"
                files[f"{role}.keys.json"] = json.dumps(data.keys())
    return described, files


def names_of(described: dict[str, Any]) -> Iterator[str]:
    """The names on the data shelf that ``pin`` described."""
    for data in described.values():
        yield from [data["dataset"]] if "dataset" in data else data["columns"].values()


def unpin(shelf: DataShelf, described: dict[str, Any], run: RunView) -> Given:
    """The data that was pinned; ``run`` has the files."""
    train, val = (_open(shelf, described[role], run) if role in described else None for role in _ROLES)
    assert train is not None
    return train, val


def _open(shelf: DataShelf, described: dict[str, Any], run: RunView) -> Partitioned:
    if "dataset" in described:
        dataset: Partitioned = shelf[described["dataset"]]
        return dataset
    columns = {label: shelf[name] for label, name in described["columns"].items()}
    if "keys" not in described:
        return JoinedSamples(columns, missing="drop")
    keys = json.loads(run.read(described["keys"]))
    return JoinedSamples(columns, [tuple(key) if isinstance(key, list) else key for key in keys])


def _pin_dataset(draft: Draft, dataset: Dataset, name: str) -> str:
    files = [entry.digest for entry in dataset.manifest.files]
    for known in draft.names("data"):
        record = draft.record("data", known)
        if isinstance(record, DatasetRecord) and record.rows == dataset.manifest.rows:
            manifest = read_manifest(draft.objects, record, known)
            if (
                manifest.fingerprint == dataset.fingerprint
                and [entry.digest for entry in manifest.files] == files
            ):
                return known
    DataShelf(draft)[name] = dataset
    return name


def _pin_columns(draft: Draft, samples: JoinedSamples, prefix: str) -> dict[str, str]:
    found = {}
    for label, column in samples.columns.items():
        if draft.record("data", column.name) == column.record:
            found[label] = column.name
            continue
        found[label] = f"{prefix}/{label}"
        if _repository(column.objects) == _repository(draft.writer.stored):
            draft.set("data", found[label], column.record)
        else:
            DataShelf(draft)[found[label]] = column
    return found


def _repository(objects: object) -> str | None:
    return objects.store.url if isinstance(objects, Objects) else None
