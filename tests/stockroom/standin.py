"""A revision in memory that is open for writing: objects, a writer, and records in a dict."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import Record, Shelf
from hopyard.stockroom.views.guard import Guard
from hopyard.stockroom.views.view import ObjectReader, Snapshot
from hopyard.storage import MemoryStore, Store


class _Records:
    """What is on the shelves, in a dict."""

    revision = "the commit 0123abcd"

    def __init__(self, objects: ObjectReader, records: dict[tuple[Shelf, str], Record]) -> None:
        self.objects = objects
        self.records = records

    def record(self, shelf: Shelf, name: str) -> Record | None:
        return self.records.get((shelf, name))

    def has(self, shelf: Shelf, name: str) -> bool:
        return (shelf, name) in self.records

    def names(self, shelf: Shelf) -> list[str]:
        return sorted(name for of, name in self.records if of == shelf)


class Revision(_Records, Snapshot):  # type: ignore[misc]
    """Only for reading."""


class Staged(_Records):
    """For writing too."""

    def __init__(self, store: Store | None = None) -> None:
        self.stored = Objects(MemoryStore() if store is None else store)
        self.guard = Guard()
        self.writer: PackfileWriter = self.stored.writing()
        super().__init__(self.writer, {})

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def noted(self, shelf: Shelf, name: str) -> Record | None:
        return self.record(shelf, name)

    def set(self, shelf: Shelf, name: str, record: Record | None) -> None:
        if record is None:
            del self.records[shelf, name]
        else:
            self.records[shelf, name] = record

    def committed(self) -> Revision:
        self.writer.publish()
        return Revision(self.stored, dict(self.records))
