"""Completions that a shell offers after the Tab key, once ``hopyard --install-completion`` was called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import typer

from hopyard.data import Dataset
from hopyard.errors import HopyardError
from hopyard.stockroom import StockRoom
from hopyard.stockroom.catalog.shelves import list_shelves
from hopyard.stockroom.data import SampleColumn
from hopyard.stockroom.importers.registry import find_importer, importer_names
from hopyard.stockroom.maps.typed_keys import typed
from hopyard.stockroom.records import SHELVES
from hopyard.stockroom.remotes.fetching import SHOWN

_COMMITS = 100  # that are offered by their digests
_SAMPLES = 10_000  # whose keys are looked at
_KEYS = 100
_HEX = re.compile("[0-9a-f]{1,64}")


def complete_revision(incomplete: str) -> list[str]:
    """Branches, tags and branches of remotes that begin so; also late commits, once a digit of one was typed."""

    def names(room: StockRoom) -> Iterator[str]:
        yield from (*room.branches(), *room.tags())
        yield from room.local.references.names("remotes")
        if _HEX.fullmatch(incomplete):
            length = max(len(incomplete), SHOWN)
            yield from (commit.digest[:length] for commit in room.log(limit=_COMMITS, branches="all"))

    return _of_room(incomplete, names)


def complete_importer(incomplete: str) -> list[str]:
    """Importers that begin so."""
    return _beginning(incomplete, importer_names())


def complete_import_option(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings of the importer that was named, such as ``nulls=fill``, that begin so."""
    # An option without its value yet ends parsing before the arguments are named.
    name = ctx.params.get("name") or next(iter(ctx.args), "")
    try:
        options = find_importer(name).options()
    except HopyardError:
        return []
    named = [f"{option.name}={choice}" for option in options for choice in (option.choices or ("",))]
    return _beginning(incomplete, named)


def complete_shelf(incomplete: str) -> list[str]:
    """Shelves that begin so."""
    return _beginning(incomplete, SHELVES)


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


def complete_registered(incomplete: str) -> list[str]:
    """Registered models that begin so."""
    return _of_room(incomplete, lambda room: room.registry)


def complete_version(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of versions, the latest first, and labels, of the registered model that was named, that begin so."""
    # An option without its value yet ends parsing before the arguments are named.
    name = ctx.params.get("name") or next(iter(ctx.args), "")

    def versions(room: StockRoom) -> Iterator[str]:
        if name in room.registry:
            found = room.registry[name]
            yield from map(str, sorted(found, reverse=True))
            yield from (label for version in found.values() for label in version.labels)

    return _of_room(incomplete, versions)


def complete_number(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of versions, as ``complete_version``, without labels."""
    return [each for each in complete_version(ctx, incomplete) if each.isdecimal()]


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


def complete_dataset_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Columns of the datasets that were named, as ``image,label``: the last one, where it begins so."""
    # An option without its value yet ends parsing before the arguments are named.
    names = [*(ctx.params.get("names") or ()), *ctx.args]
    before, comma, begun = incomplete.rpartition(",")

    def columns(room: StockRoom) -> Iterator[str]:
        for name in names:
            found = _in(room, name)
            if isinstance(found, Dataset):
                yield from found.schema.names

    return [f"{before}{comma}{each}" for each in _of_room(begun, columns) if each not in before.split(",")]


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys of samples of the column that was named, as they are typed, that begin so; of the first samples only."""
    name = ctx.params.get("column") or next(iter(ctx.args), "")

    def keys(room: StockRoom) -> Iterator[str]:
        found = _in(room, name)
        if isinstance(found, SampleColumn):
            yield from (typed(key) for key in islice(found, _SAMPLES))

    return _of_room(incomplete, keys)[:_KEYS]


def _in(room: StockRoom, name: str) -> Any:
    """The column or dataset of this name; None: there is none."""
    return room.data.get(name.removeprefix("data/"))


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
