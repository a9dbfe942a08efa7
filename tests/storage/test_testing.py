"""The suite of stores takes whatever keeps the contract, and refuses what breaks a rule of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hopyard.errors import CorruptError, InvalidNameError, NotFoundError, UsageError
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.base import Buffer, Part
from hopyard.storage.testing import StoreSuite


def _found_elsewhere(pid: int, found: Callable[..., Store], arguments: tuple[Any, ...]) -> Store:
    if pid != os.getpid():
        raise UsageError("wrong process")
    return found(*arguments)


class OwnWords(MemoryStore):
    """Errors of the right kinds, which name the store and the object, and share no other word with ours; and no
    versions."""

    def version(self, name: str) -> str | None:
        return None

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return super().get(name, start, length)
        except (NotFoundError, CorruptError) as error:
            raise type(error)(f"{self.url}: {name}?") from None

    def _nested(self, name: str, outer: str, inner: str) -> NoReturn:
        raise InvalidNameError(f"{self.url}: {name}!")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _found_elsewhere, (os.getpid(), *super().__reduce__())


class TestStoreWithErrorsInItsOwnWords(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return OwnWords()


class Nameless(OwnWords):
    """Errors that do not say where."""

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return MemoryStore.get(self, name, start, length)
        except (NotFoundError, CorruptError) as error:
            raise type(error)(name) from None

    def _nested(self, name: str, outer: str, inner: str) -> NoReturn:
        raise InvalidNameError(self.url)


class Everywhere(MemoryStore):
    """Says that it is of one process, and lets every process have an empty copy."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return MemoryStore, ()


class DeletesFirst(LocalStore):
    """Loses the object if the write fails or the process dies, and shows a gap to readers."""

    def put(self, name: str, data: Buffer) -> None:
        self.delete(name)
        super().put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self.delete(name)
        super().put_file(name, path)


class DeletesBetween(LocalStore):
    """Reads the bytes before it deletes, so that only a reader can see the gap."""

    def put(self, name: str, data: Buffer) -> None:
        data = bytes(data)
        self.delete(name)
        super().put(name, data)


class DeletesInMemory(MemoryStore):
    """The same with nothing slow in the gap."""

    def put(self, name: str, data: Buffer) -> None:
        data = bytes(data)
        self.delete(name)
        super().put(name, data)


class MovesAfterDeleting(LocalStore):
    def put_file(self, name: str, path: Path) -> None:
        if path.exists():
            self.delete(name)
        super().put_file(name, path)


class InPlace(LocalStore):
    """Writes into the file that readers have."""

    def put(self, name: str, data: Buffer) -> None:
        if (path := self.path(name)) is not None and path.exists():
            path.write_bytes(data)
        else:
            super().put(name, data)


class Consuming(LocalStore):
    """Takes the file although the write fails."""

    def put_file(self, name: str, path: Path) -> None:
        data = path.read_bytes()
        path.unlink()
        self.put(name, data)


class Trusts(MemoryStore):
    """Takes the size that an object had for that which it has, and so reads behind the end of a shorter one."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        size = self.size(name) or 0
        begin = max(start + size, 0) if start < 0 else start
        return Part(self.get(name, begin, length), size, self.version(name))


class AsksLater(MemoryStore):
    """Tells the size of the object that is there after reading."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> Part:
        data = self.get(name)
        return Part(data[start:], self.size(name) or 0, self.version(name))


FAILING = "test_a_write_that_fails_changes_nothing"
READING_A_PART = "test_what_is_read_and_told_is_of_one_object_while_it_is_replaced"
READING = "test_a_reader_finds_the_old_object_or_the_new_one_at_every_moment"


@pytest.mark.parametrize(
    ("kind", "test", "text"),
    [
        (
            Nameless,
            "test_ranges_are_read_and_may_not_go_beyond_the_end",
            "does not name the store memory://unnamed-",
        ),
        (Nameless, "test_a_name_that_is_not_there", "does not name the store memory://unnamed-"),
        (Nameless, "test_an_object_is_never_a_prefix_of_another", "does not name the object 'a/b/c'"),
        (
            Everywhere,
            "test_one_of_many_processes_wins_each_name",
            "not shared, but another process has a copy",
        ),
        (DeletesFirst, FAILING, "a write that failed changed the store"),
        (DeletesFirst, READING, "a reader found nothing"),
        (DeletesBetween, READING, "a reader found nothing"),
        (DeletesInMemory, READING, "a reader found nothing"),
        (MovesAfterDeleting, READING, "a reader found nothing"),
        (InPlace, READING, r"a reader found [\d,]+ bytes that are neither"),
        (
            Trusts,
            READING_A_PART,
            "an object was replaced while it was read, which raised: bytes 80..10 of 'a'",
        ),
        (AsksLater, READING_A_PART, "replaced while it was read: 20 bytes of one of 10 were told"),
        (Consuming, FAILING, "put_file failed, and took the file"),
    ],
)
def test_the_suite_refuses_a_store_that_breaks_a_rule(
    kind: type[Store], test: str, text: str, tmp_path: Path
) -> None:
    rule = getattr(StoreSuite(), test)
    given = {
        "store": kind(tmp_path / "store") if issubclass(kind, LocalStore) else kind(),
        "tmp_path": tmp_path,
    }
    with pytest.raises(AssertionError, match=text):
        rule(**{name: given[name] for name in inspect.signature(rule).parameters})
