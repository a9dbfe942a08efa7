"""Repositories that have something to purge, and what can be read of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from tests.stockroom.maintenance.histories import begun
from tests.stockroom.remotes.repositories import commit, root_of, tip

from hopyard.errors import PurgedError
from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.data.rows import plain as plain_keys
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.maintenance import purge
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import (
    Repository,
)
from hopyard.stockroom.views.view import Snapshot

SECRET = bytes(range(60, 100))
DAY = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def secret() -> Any:
    return np.frombuffer(SECRET, np.uint8)


def plain(*keys: int) -> dict[Any, Any]:
    return {key: np.full(40, key + 1, np.uint8) for key in keys}


def column(repository: Repository, digest: str | None = None, name: str = "image") -> SampleColumn:
    digest = digest or tip(repository)
    record = Snapshot(repository.objects, root_of(repository, digest), digest).record("data", name)
    assert isinstance(record, ColumnRecord)
    return SampleColumn(repository.objects, name, record)


def readable(given: SampleColumn) -> dict[Any, Any]:
    """The samples under all keys, also those that purged ones had: None."""
    found = {}
    for key in (key for fragment in given.fragments() for key in plain_keys(fragment.keys)):
        try:
            found[key] = np.asarray(given[key]).tolist()
        except PurgedError:
            found[key] = None
    return found


def with_secret(store: Path) -> tuple[Repository, list[str]]:
    """Three commits that have the secret under 3, in two versions of its fragment, and one without it."""
    repository = begun(store)
    commits = [
        commit(repository, image=plain(1, 2, 4) | {3: secret()}),
        commit(repository, label={"a": "x"}),
        commit(repository, image=plain(7)),
    ]
    repository.references.set("tags/v1", commits[0], "Ada")
    draft = Draft(repository.objects, root_of(repository, tip(repository)))
    del draft.column("image")[3]
    return repository, commits


def purged(repository: Repository, keys: Any = 3, name: str = "image") -> Any:
    return purge(repository, name, keys, "asked to", "Ada", clock=lambda: DAY)
