"""Places that the dashboard shows: stores and stockrooms."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hopyard import stockroom
from hopyard.errors import HopyardError, NotFoundError, UsageError
from hopyard.stockroom.git import find
from hopyard.storage import LocalStore, Store, open_store
from hopyard.tune.listing import list_runs
from hopyard.web.shapes import PlaceJson


@dataclass(frozen=True)
class ShownPlace:
    """A store or a stockroom.

    Attributes:
        number: position among those given, from 0.
        url: as it was given, without what is secret in it.
        kind: of it.
        given: path or URL.
        is_missing: it was not there at the start.
    """

    number: int
    url: str
    kind: Literal["store", "stockroom"]
    given: str
    is_missing: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether each look at it is a request to another machine."""
        return "://" in self.given and not self.given.startswith("file:")

    def store(self) -> Store:
        """The store.

        Raises:
            UsageError: it is a stockroom.
            NotFoundError: it has vanished.
        """
        if self.kind != "store":
            raise UsageError(
                f"{self.url} is a stockroom, which holds no runs of its own. Look at its versions."
            )
        return _existing(self.given)

    def stockroom(self) -> stockroom.StockRoom:
        """The stockroom, open for reading; nothing is fetched for it.

        Raises:
            UsageError: it is a store.
            NotFoundError: it has vanished.
        """
        if self.kind != "stockroom":
            raise UsageError(f"{self.url} is a store, which has no versions. Look at its runs and data.")
        return stockroom.StockRoom(self.given, fetch="never")

    def problem(self) -> str | None:
        """Why it cannot be looked at now, or None."""
        try:
            if self.kind == "store":
                self.store()
            else:
                self.stockroom().close()
        except HopyardError as error:
            return str(error)
        return None


def find_places(given: Sequence[str]) -> list[ShownPlace]:
    """The places at some paths and URLs: a folder in a stockroom is that stockroom, all else is a store. One that is
    not there is among them, and shown once it is.

    Raises:
        UsageError: none was given, or one twice.
        NotFoundError: there is nothing at any of them.
    """
    if not given:
        raise UsageError("no store was given, but the dashboard shows at least one. Write hopyard web STORE.")
    doubled = next((each for index, each in enumerate(given) if each in given[:index]), None)
    if doubled is not None:
        raise UsageError(f"{doubled} was given twice; each store is shown once. Give it once.")
    places = [_place(number, each) for number, each in enumerate(given)]
    if all(place.is_missing for place in places):
        raise NotFoundError(missing_places(places))
    return places


def missing_places(places: Sequence[ShownPlace]) -> str:
    """The places that were not there at the start, in words with the next step; empty if all were."""
    missing = [place.given for place in places if place.is_missing]
    if not missing:
        return ""
    which = (
        f"{missing[0]} is no directory" if len(missing) == 1 else f"{', '.join(missing)} are no directories"
    )
    return (
        f"{which}, so there is nothing to show there. Give the path that LocalStore(...) was given, or the folder of a "
        "stockroom; a directory that is made later is shown once it is there."
    )


def _place(number: int, given: str) -> ShownPlace:
    if "://" not in given and Path(given).is_dir():
        with contextlib.suppress(NotFoundError):
            if find(Path(given)).root.resolve() == Path(given).resolve() and not list_runs(LocalStore(given)):
                return ShownPlace(number, given, "stockroom", given)
    try:
        return ShownPlace(number, _existing(given).url, "store", given)
    except NotFoundError:
        return ShownPlace(number, open_store(given).url, "store", given, is_missing=True)


def _existing(given: str) -> Store:
    store = open_store(given)
    if isinstance(store, LocalStore) and not Path(store.url).is_dir():
        raise NotFoundError(
            f"{given} is no directory, so it holds no runs. Give the path that LocalStore(...) was given, or the "
            "folder of a stockroom; if it was moved, start the dashboard again with its new path."
        )
    return store


def place_of(places: Sequence[ShownPlace], number: int | str) -> ShownPlace:
    """The place with a number.

    Raises:
        NotFoundError: there is none.
    """
    known = {str(place.number): place for place in places}
    if str(number) not in known:
        raise NotFoundError(
            f"there is no store number {number}; there are {', '.join(known)}. /api/places lists them."
        )
    return known[str(number)]


def place_json(place: ShownPlace, problem: str | None = None) -> PlaceJson:
    """A place, and why it cannot be looked at, if so.

    Args:
        problem: that asking it had a moment ago: of a store with a URL, nothing else tells.
    """
    error = place.problem() or problem
    return {"place": str(place.number), "url": place.url, "kind": place.kind, "error": error}
