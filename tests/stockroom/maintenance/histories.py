"""Repositories with all kinds of objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.stockroom.remotes.repositories import at, commit, samples, tip

from hopyard.stockroom.experiments import StockRun
from hopyard.stockroom.history.commits import read_commit, write_commit
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.remotes import Repository
from hopyard.stockroom.remotes.repository import claim
from hopyard.storage import LocalStore, Store


def begun(store: Store | Path) -> Repository:
    repository = at(store)
    claim(repository.store)
    return repository


def full(store: Store | Path, folder: Path) -> Repository:
    """All kinds of objects, two branches, a tag and a merge."""
    repository = begun(store)
    commit(repository, image=samples(40, size=30_000), values={"lr": 1})
    commit(repository, models={"net": {"w": np.arange(5000.0), "n": 3}}, label={0: "cat", 1: "dog", 2: "cow"})
    repository.references.set("heads/dev", tip(repository), "Ada")
    commit(repository, "dev", image=samples(2, start=100, size=30_000), values={"big": ["x" * 100] * 100})
    commit(repository, image=samples(2, size=30_000, seed=5), merged=tip(repository, "dev"))
    artifact = folder / "artifact"
    artifact.write_bytes(b"artifact" * 1000)
    with_run(repository, artifact)
    repository.references.set("tags/v1", tip(repository), "Ada")
    return repository


def with_run(repository: Repository, artifact: Path) -> None:
    draft = Draft(repository.objects, read_commit(repository.objects, tip(repository)).root)
    with StockRun(draft, {"lr": 0.1}, id="first") as run:
        run.log(loss=1.0)
        run.log_artifact(artifact)
    root = draft.flush()
    with repository.objects.writing() as writer:
        made = write_commit(writer, root, [tip(repository)], "a run", "Ada").digest
    repository.references.set("heads/main", made, "Ada")
    draft.release()


def size_of(store: Store) -> int:
    return sum(entry.size for prefix in ("packfiles", "files") for entry in store.list(prefix))


def holds(folder: Path, text: bytes) -> list[str]:
    """The files below a folder that have these bytes."""
    return [str(file) for file in folder.rglob("*") if file.is_file() and text in file.read_bytes()]


def reopened(repository: Repository) -> Repository:
    """As another process would open it, without an index."""
    return at(repository.store, index=False)


def local(folder: Path) -> LocalStore:
    return LocalStore(folder)


Samples = dict[Any, Any]
