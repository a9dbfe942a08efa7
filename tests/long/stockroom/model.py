"""What a stockroom holds, as plain dicts, and how three of them merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hopyard.stockroom.catalog.shelves import Shelves

Content = dict[str, Any]
"""``shelf/name`` to a value; of a column to a dict of its samples, which are lists, numbers or strings."""


def content(stock: Shelves) -> Content:
    """All that can be read."""
    found: Content = {}
    for name in stock.data:
        column = stock.data[name]
        found[f"data/{name}"] = {key: plain(column[key]) for key in column}
        assert len(column) == len(found[f"data/{name}"])
    for name in stock.model:
        found[f"model/{name}"] = {key: plain(value) for key, value in stock.model[name].items()}
    for name in stock.experiment:
        found[f"experiment/{name}"] = stock.experiment[name]
    return found


def plain(sample: Any) -> Any:
    return sample if isinstance(sample, str | bytes) else np.asarray(sample).tolist()


def copied(state: Content) -> Content:
    return {path: dict(value) if isinstance(value, dict) else value for path, value in state.items()}


def merged(base: Content, ours: Content, theirs: Content, resolve: str | None) -> tuple[Content, set[Any]]:
    """Ours with what theirs changed since base, and what conflicts: ``(path, key)``, where key None is the whole."""
    conflicts: set[Any] = set()
    result: Content = {}
    for path in sorted({*base, *ours, *theirs}):
        sides = [state.get(path) for state in (base, ours, theirs)]
        if path.startswith("data/") and sides[1] is not None and sides[2] is not None:
            rows = _rows(path, [side or {} for side in sides], resolve, conflicts)
            result[path] = rows
            continue
        chosen = _one((path, None), sides, resolve, conflicts)
        if chosen is not None:
            result[path] = dict(chosen) if isinstance(chosen, dict) else chosen
    return result, conflicts


def _rows(path: str, sides: list[dict[Any, Any]], resolve: str | None, conflicts: set[Any]) -> dict[Any, Any]:
    found = {}
    for key in {*sides[0], *sides[1], *sides[2]}:
        chosen = _one((path, key), [side.get(key) for side in sides], resolve, conflicts)
        if chosen is not None:
            found[key] = chosen
    return found


def _one(where: Any, sides: list[Any], resolve: str | None, conflicts: set[Any]) -> Any:
    base, ours, theirs = sides
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    if resolve is None:
        conflicts.add(where)
    return theirs if resolve == "theirs" else ours


def bases(parents: Mapping[str, Iterable[str]], a: str, b: str) -> list[str]:
    """The last common ancestors."""
    common = ancestors(parents, a) & ancestors(parents, b)
    return [one for one in common if not any(one in ancestors(parents, o) - {o} for o in common)]


def ancestors(parents: Mapping[str, Iterable[str]], start: str | None) -> set[str]:
    found: set[str] = set()
    waiting = [] if start is None else [start]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += parents[one]
    return found
