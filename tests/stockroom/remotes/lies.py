"""Repositories whose remote lies, and its lies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.stockroom.maintenance.histories import begun
from tests.stockroom.maintenance.purges import readable
from tests.stockroom.remotes.repositories import at, commit, root_of, samples

from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.data.repacking import bury_samples
from hopyard.stockroom.packfiles.tombstones import Purged, Tombstone
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import OnDemand, Repository, fetch, needs, push
from hopyard.stockroom.views.view import Snapshot

RECORD = (Purged(0, "2026-01-01T00:00:00+00:00", "Mallory", "because"),)
Content = dict[tuple[str, Any], Any]


def column(repository: Repository, digest: str, name: str = "image") -> SampleColumn:
    record = Snapshot(repository.objects, root_of(repository, digest), digest).record("data", name)
    assert isinstance(record, ColumnRecord)
    return SampleColumn(repository.objects, name, record)


def fragment(repository: Repository, digest: str) -> str:
    return next(need.digest for need in needs(repository.objects, [digest]) if need.kind == "fragment")


def lie(remote: Path, name: str, keys: tuple[Purged, ...] = RECORD, values: int = 9) -> Tombstone:
    """A tombstone that lets a fragment of other values stand in for one; the one is deleted."""
    other = begun(Path(tempfile.mkdtemp()))
    made = commit(other, image={key: np.full(8, values, np.uint8) for key in range(4)})
    source = fragment(other, made)
    instead = bury_samples(other.objects, source, "image", keys).instead
    for entry in other.store.list("packfiles"):
        if "data-" in entry.name:
            (remote / entry.name).write_bytes(other.store.get(entry.name))
    shutil.rmtree(other.store.url)
    tombstone = Tombstone(name, instead, "image", keys)
    (remote / tombstone.name).parent.mkdir(parents=True, exist_ok=True)
    (remote / tombstone.name).write_bytes(tombstone.encode())
    return tombstone


def pushed(folder: Path) -> tuple[Repository, Repository, str]:
    """A repository with four samples, the remote that it was pushed to, and the commit."""
    repository = begun(folder / "own")
    made = commit(repository, image=samples(4))
    push(repository, at(folder / "remote", "origin", index=False), ["main"])
    return repository, at(folder / "remote", "origin", index=False), made


def read_from(clone: Repository, remote: Repository, made: str) -> None:
    fetch(clone, remote)
    readable(column(clone, made))


def head_of(file: Path) -> bytes:
    """A file that is not larger than these have; of a huge one the beginning."""
    with file.open("rb") as opened:
        return opened.read(1 << 20)


def lazy(folder: Path, remote: Repository) -> Repository:
    """An empty repository that brings from the remote what is read."""
    plain = begun(folder)
    return Repository.at(plain.store, absent=OnDemand(plain, [remote]))
