"""Repositories for columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.stockroom.data import ColumnDraft, SampleColumn
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.storage import LocalStore, MemoryStore

Written = Callable[[Any], SampleColumn]


@pytest.fixture(params=["files", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return Objects(LocalStore(tmp_path / "repository") if request.param == "files" else MemoryStore())


@pytest.fixture
def writer(objects: Objects) -> Iterator[PackfileWriter]:
    with objects.writing() as writer:
        yield writer


@pytest.fixture
def draft(objects: Objects, writer: PackfileWriter) -> ColumnDraft:
    return ColumnDraft(objects, writer, "image")


@pytest.fixture
def published(objects: Objects, writer: PackfileWriter) -> Callable[[ColumnDraft], SampleColumn]:
    """The column of a draft, published."""

    def publish(draft: ColumnDraft) -> SampleColumn:
        record = draft.flush()
        assert record is not None
        writer.publish()
        return SampleColumn(objects, draft.name, record)

    return publish
