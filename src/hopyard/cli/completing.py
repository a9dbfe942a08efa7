"""Completions that a shell offers after the Tab key, once ``hopyard --install-completion`` was called."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hopyard.errors import HopyardError
from hopyard.stockroom.looking.listing import list_shelves
from hopyard.stockroom.room import StockRoom


def complete_revision(incomplete: str) -> list[str]:
    """Branches and tags that begin so."""
    return _of_room(incomplete, lambda room: [*room.branches(), *room.tags()])


def complete_branch(incomplete: str) -> list[str]:
    """Branches that begin so."""
    return _of_room(incomplete, StockRoom.branches)


def complete_tag(incomplete: str) -> list[str]:
    """Tags that begin so."""
    return _of_room(incomplete, StockRoom.tags)


def complete_remote(incomplete: str) -> list[str]:
    """The names of remotes that begin so."""
    return _of_room(incomplete, StockRoom.remotes)


def complete_model(incomplete: str) -> list[str]:
    """Models that begin so."""
    return _on_shelf("model", incomplete)


def complete_run(incomplete: str) -> list[str]:
    """Runs that begin so."""
    return _on_shelf("run", incomplete)


def complete_thing(incomplete: str) -> list[str]:
    """Things on the shelves, such as ``data/image``, that begin so; what is staged too."""
    try:
        with StockRoom(enable_write=True) as room:
            return _beginning(incomplete, (each.path for each in list_shelves(room)))
    except HopyardError:
        return []


def complete_column(incomplete: str) -> list[str]:
    """Columns and datasets that begin so."""
    return _on_shelf("data", incomplete)


def _on_shelf(shelf: str, incomplete: str) -> list[str]:
    begun = incomplete.removeprefix(f"{shelf}/")
    return [each.removeprefix(f"{shelf}/") for each in complete_thing(f"{shelf}/{begun}")]


def _of_room(incomplete: str, names: Callable[[StockRoom], Iterable[str]]) -> list[str]:
    try:
        with StockRoom() as room:
            return _beginning(incomplete, names(room))
    except HopyardError:  # no stockroom, so nothing to offer
        return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
