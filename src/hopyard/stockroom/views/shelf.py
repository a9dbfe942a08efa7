"""The base of the three shelves: mappings from names to things of a view."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hopyard.errors import MissingKeyError
from hopyard.markup import Html, table
from hopyard.stockroom.records import Record, Shelf, check_name
from hopyard.stockroom.views.view import View, writable
from hopyard.wording import nearest, one_line, some_names


@dataclass(frozen=True)
class ListedThing:
    """One thing of a shelf in a list.

    Attributes:
        path: shelf and name.
        what: kind and contents, in words.
        count: samples, or rows; None: it has none.
        nbytes: of its values; None: they lie in the metadata.
    """

    path: str
    what: str
    count: int | None = None
    nbytes: int | None = None


def listed_html(title: str, things: Iterable[ListedThing]) -> Html:
    """A table of things of shelves, for notebooks."""
    rows = (
        (
            each.path,
            each.what,
            *("" if number is None else f"{number:,}" for number in (each.count, each.nbytes)),
        )
        for each in things
    )
    return table(title, ("", "", "samples", "bytes"), rows)


class NamedThings(MutableMapping[str, Any]):
    """Things by name, in the order of the names; a dict of them but for what is said here.

    Each write is one of the view's. Shelves are equal to themselves only: comparing would read all of both.

    Args:
        view: a revision, or a draft.
    """

    _shelf: ClassVar[Shelf]
    _what: ClassVar[str]  # one of its things, for messages

    def __init__(self, view: View) -> None:
        self._view = view

    def __repr__(self) -> str:
        return one_line(f"<{self._shelf} of {self._view.revision}: {some_names(list(self))}>")

    def _repr_html_(self) -> str:
        """A table of the things on the shelf, for notebooks."""
        return listed_html(f"{self._shelf} of {self._view.revision}", self.listed())

    def _ipython_key_completions_(self) -> list[str]:
        """The names on the shelf, which IPython and notebooks offer within brackets."""
        return list(self)

    def __eq__(self, other: object) -> bool:
        # Not that of mappings, which would read all of both.
        return object.__eq__(self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    @abstractmethod
    def __getitem__(self, name: str) -> Any: ...

    @abstractmethod
    def __setitem__(self, name: str, value: Any) -> None: ...

    def __delitem__(self, name: str) -> None:
        draft = writable(self._view)
        with draft.guard.write(f"a write to {self._shelf}/{self._checked(name)}"):
            self.check_there(name)
            draft.set(self._shelf, name, None)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The thing of this name; ``default``, which is stored first, if there is none."""
        with writable(self._view).guard.write(f"a write to {self._shelf}/{self._checked(name)}"):
            return super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """The thing of this name, which is deleted."""
        with writable(self._view).guard.write(f"a write to {self._shelf}/{name}"):
            return super().pop(name, *default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._view.has(self._shelf, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.names(self._shelf))

    def __len__(self) -> int:
        return len(self._view.names(self._shelf))

    def listed(self) -> Iterator[ListedThing]:
        """Lines on the things of the shelf, by name. Reads metadata only."""
        return map(self._line, self)

    @abstractmethod
    def _line(self, name: str) -> ListedThing: ...

    def record(self, name: str) -> Record:
        """The record of a thing in the view.

        Raises:
            MissingKeyError: there is none of this name. UsageError: no name can be so.
        """
        found = self._view.record(self._shelf, self._checked(name))
        if found is None:
            raise self._missing(name)
        return found

    def check_there(self, name: str) -> None:
        """See that there is a thing of this name.

        Raises:
            MissingKeyError: there is none. UsageError: no name can be so.
        """
        if not self._view.has(self._shelf, self._checked(name)):
            raise self._missing(name)

    def _missing(self, name: str) -> MissingKeyError:
        names = list(self)
        return MissingKeyError(
            f"there is no {self._what} {name!r} in {self._view.revision}{nearest(name, names, '.')} "
            f"It has {some_names(list(map(repr, names)))}."
        )

    def _checked(self, name: Any) -> str:
        return check_name(name, f"The {self._shelf} shelf")
