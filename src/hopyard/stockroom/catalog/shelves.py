"""The three shelves of whatever can be looked at: a revision, or what is written upon one."""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from hopyard.stockroom.catalog.registry import Registry
from hopyard.stockroom.data.shelf import DataShelf
from hopyard.stockroom.experiments import ExperimentShelf
from hopyard.stockroom.history.commits import Commit, read_commit
from hopyard.stockroom.history.locks import reading
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import SHELVES, Shelf
from hopyard.stockroom.views.shelf import ListedThing, listed_html
from hopyard.stockroom.views.view import Snapshot, View


class Shelves(ABC):
    """Data, models and experiments of a view."""

    @property
    @abstractmethod
    def view(self) -> View:
        """The things that the shelves show."""

    def _repr_html_(self) -> str:
        """A table of the things on all shelves, for notebooks."""
        view = self.view  # what another thread stages meanwhile is not half in it
        return listed_html(view.revision, list_shelves(ViewShelves(view)))

    @property
    def data(self) -> DataShelf:
        """Columns and datasets by name."""
        return DataShelf(self.view)

    @property
    def model(self) -> ModelShelf:
        """Models by name."""
        return ModelShelf(self.view)

    @property
    def experiment(self) -> ExperimentShelf:
        """Values by name, and runs."""
        return ExperimentShelf(self.view)

    @property
    def registry(self) -> Registry:
        """Registered models by name, each with its versions."""
        return Registry(self.view)


class ViewShelves(Shelves):
    """The shelves of a view."""

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def view(self) -> View:
        return self._view


def list_shelves(shelves: Shelves, shelf: Shelf | None = None) -> Iterator[ListedThing]:
    """Everything on the shelves, or on one of them: runs as they were begun, all else by name. Reads metadata only."""
    for each in SHELVES if shelf is None else (shelf,):
        if each == "run":
            yield from shelves.experiment.runs().listed()
        else:
            yield from {"data": shelves.data, "model": shelves.model, "experiment": shelves.experiment}[
                each
            ].listed()


class Revision(Shelves):
    """One commit, for reading only. It stays what it is; a pickled copy works in another process.

    As long as it lives, its commit is not collected as garbage.

    Args:
        objects: of the repository.
        digest: of the commit.
        name: what messages call it, beside its digest; None: nothing else.
    """

    def __init__(self, objects: Objects, digest: str, name: str | None = None) -> None:
        self._objects, self._name = objects, name or digest[:12]
        self.commit: Commit = read_commit(objects, digest)
        called = digest[:12] if self._name == digest[:12] else f"{self._name} ({digest[:12]})"
        self._view = Snapshot(objects, self.commit.root, called)
        locks = contextlib.ExitStack()
        locks.enter_context(reading(objects.store, digest))
        weakref.finalize(self, locks.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return Revision, (self._objects, self.commit.digest, self._name)

    def __repr__(self) -> str:
        return f"<{self._name}: {self.commit.message.partition(chr(10))[0]!r}, {self.commit.time[:16]}>"

    @property
    def view(self) -> Snapshot:
        return self._view
