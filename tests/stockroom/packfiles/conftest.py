"""Repositories in a directory and in memory, and the packfiles that they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hopyard.stockroom.packfiles import Objects
from hopyard.storage import LocalStore, MemoryStore, Store


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore()


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "repository")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "repository" / "index.sqlite"


@pytest.fixture
def packfiles() -> Callable[[Store], list[str]]:
    """The names of all packfiles of a store."""
    return lambda store: [entry.name for entry in store.list("packfiles")]


@pytest.fixture
def write() -> Callable[..., list[str]]:
    """Publish bytes as one kind of object; their digests."""

    def published(objects: Objects, *contents: bytes, kind: str = "page") -> list[str]:
        with objects.writing() as writer:
            return [writer.add(kind, content) for content in contents]

    return published
