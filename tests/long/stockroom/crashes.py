"""A process that dies at a chosen write, without a process: nothing that it does afterwards reaches the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hopyard.stockroom.git import Head, discard, write, write_beside
from hopyard.storage import LocalStore
from hopyard.storage.base import Buffer


class Crash(BaseException):
    """No handler of errors may take it for one."""


class _Counter:
    def __init__(self, at: int) -> None:
        self.left = at
        self.is_dead = False

    def step(self) -> None:
        self.left -= 1
        self.is_dead = self.is_dead or self.left < 0
        if self.is_dead:
            raise Crash


class CrashingStore(LocalStore):
    """Counts what changes files; from a number on nothing does."""

    counter: _Counter

    def put(self, name: str, data: Buffer) -> None:
        self.counter.step()
        super().put(name, data)

    def put_new(self, name: str, data: Buffer) -> bool:
        self.counter.step()
        return super().put_new(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self.counter.step()
        super().put_file(name, path)

    def delete(self, name: str) -> None:
        self.counter.step()
        super().delete(name)


@contextmanager
def dying(at: int) -> Iterator[_Counter]:
    """Stockrooms that are opened within die together before their change of a file number ``at``, from 0 on; then
    the block ends. ``is_dead`` says whether that came.
    """
    counter = _Counter(at)

    class Store(CrashingStore):
        pass

    Store.counter = counter

    def head(file: Path, value: Head, room_id: str | None = None, prepared: str | None = None) -> None:
        counter.step()
        write(file, value, room_id, prepared)

    def beside(file: Path, value: Head) -> str | None:
        counter.step()
        return write_beside(file, value)

    def gone(file: Path, prepared: str | None) -> None:
        counter.step()
        discard(file, prepared)

    targets: dict[str, Any] = {
        "hopyard.stockroom.session.opening.LocalStore": Store,
        "hopyard.stockroom.session.tree.write": head,
        "hopyard.stockroom.session.tree.write_beside": beside,
        "hopyard.stockroom.session.tree.discard": gone,
    }
    patches = [patch(target, new) for target, new in targets.items()]
    for each in patches:
        each.start()
    try:
        yield counter
    except Crash:
        pass
    finally:
        for each in patches:
            each.stop()
