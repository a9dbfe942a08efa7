"""What a shell offers after the Tab key: ``hopyard --install-completion`` lets it ask here."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.errors import HopyardError
from hopyard.stockroom.looking.listing import list_shelves
from hopyard.stockroom.room import StockRoom


def complete_revision(incomplete: str) -> list[str]:
    """Branches and tags that begin so."""
    try:
        with StockRoom() as room:
            return _beginning(incomplete, [*room.branches(), *room.tags()])
    except HopyardError:  # no stockroom, so nothing to offer
        return []


def complete_thing(incomplete: str) -> list[str]:
    """Things on the shelves, such as ``data/image``, that begin so; what is staged too."""
    try:
        with StockRoom(enable_write=True) as room:
            return _beginning(incomplete, (each.path for each in list_shelves(room)))
    except HopyardError:
        return []


def complete_column(incomplete: str) -> list[str]:
    """Columns and datasets that begin so."""
    begun = incomplete.removeprefix("data/")
    return [each.removeprefix("data/") for each in complete_thing(f"data/{begun}")]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
