"""Repositories with a little of everything, and stores that count what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.experiments import ExperimentShelf
from hopyard.stockroom.history.commits import log, read_commit, write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.remotes import Repository, needs
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, Store


def at(store: Store | Path, name: str = "", index: bool = True) -> Repository:
    store = LocalStore(store) if isinstance(store, Path) else store
    return Repository.at(store, store.path("index.sqlite") if index else None, name=name)


def commit(
    repository: Repository,
    branch: str = "main",
    message: str = "",
    merged: str | None = None,
    models: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    **columns: Mapping[Any, Any] | None,
) -> str:
    """Commit samples, models and values on a branch, as a merge if ``merged`` is given. None removes a column."""
    tip = repository.references.tip(f"heads/{branch}")
    parents = [one for one in (tip.commit, merged) if one is not None]
    draft = Draft(repository.objects, root_of(repository, tip.commit))
    for name, samples in columns.items():
        if samples is None:
            draft.set("data", name, None)
        else:
            draft.column(name).update(samples)
    for name, model in (models or {}).items():
        ModelShelf(draft)[name] = model
    for name, value in (values or {}).items():
        ExperimentShelf(draft)[name] = value
    root = draft.flush()
    with repository.objects.writing() as writer:
        made = write_commit(writer, root, parents, message, "Ada").digest
    assert repository.references.move(f"heads/{branch}", tip, made, "Ada") is not None
    draft.release()
    return made


def root_of(repository: Repository, digest: str | None) -> str | None:
    return None if digest is None else read_commit(repository.objects, digest).root


def tip(repository: Repository, branch: str = "main") -> str:
    found = repository.references.tip(f"heads/{branch}").commit
    assert found is not None
    return found


def content(repository: Repository, digest: str) -> dict[str, Any]:
    """All that a commit has, read through its shelves."""
    snapshot = Snapshot(repository.objects, root_of(repository, digest), digest)
    found: dict[str, Any] = {}
    for name in snapshot.names("data"):
        record = snapshot.record("data", name)
        assert isinstance(record, ColumnRecord)
        column = SampleColumn(repository.objects, name, record)
        found[f"data/{name}"] = {key: np.asarray(column[key]).tolist() for key in column}
    for name in snapshot.names("model"):
        found[f"model/{name}"] = repr(ModelShelf(snapshot)[name])
    for name in snapshot.names("experiment"):
        found[f"experiment/{name}"] = ExperimentShelf(snapshot)[name]
    return found


def whole(store: Store) -> set[str]:
    """All commits that a store shows: of each, all that it and those before it need was read and checked."""
    repository = at(store, index=False)
    shown = set()
    for kind in ("heads", "tags"):
        shown.update(repository.references.names(kind).values())
    wanted = list(needs(repository.objects, shown))
    assert {one.digest for one in log(repository.objects, *shown)} <= {need.digest for need in wanted}
    repository.objects.read_many(need.digest for need in wanted)
    for digest in shown:
        content(repository, digest)
    return shown


def samples(count: int, start: int = 0, size: int = 8, seed: int = 0) -> dict[int, Any]:
    random = np.random.default_rng([seed, start])
    return {start + n: random.integers(0, 255, size, np.uint8) for n in range(count)}
