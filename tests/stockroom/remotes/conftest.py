"""A repository here, and remotes in a directory, in memory and in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stockroom.remotes.repositories import at

from hopyard.stockroom.remotes import Repository
from hopyard.storage import LocalStore, MemoryStore, Store, open_store


@pytest.fixture
def local(tmp_path: Path) -> Repository:
    return at(tmp_path / "local")


@pytest.fixture(params=["files", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Where the remote is."""
    if request.param == "files":
        return LocalStore(tmp_path / "remote")
    if request.param == "memory":
        return MemoryStore()
    return open_store(request.getfixturevalue("s3_url"))


@pytest.fixture
def remote(store: Store, tmp_path: Path) -> Repository:
    return Repository.at(store, tmp_path / "local" / "index-origin.sqlite", name="origin")
