"""Three-way merges of sorted maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopyard.stockroom.maps.diff import same
from hopyard.stockroom.maps.sorted import SortedMap

EntryResolver = Callable[[bytes, Any | None, Any | None, Any | None], Any | None]
"""Called with a key and its values in base, ours and theirs; returns the value to have, None for no entry."""


def merge(
    base: SortedMap, ours: SortedMap, theirs: SortedMap, conflict: EntryResolver
) -> dict[bytes, Any | None]:
    """The changes to ``ours`` (for ``update``) that bring in what ``theirs`` changed since ``base``.

    What both changed alike is no conflict. ``conflict`` decides where they changed a key differently; what it
    raises is not caught. Only pages in which ``base`` and ``theirs`` differ are read, and of ``ours`` those with
    these keys.
    """
    if ours.root == theirs.root:
        return {}
    changes: dict[bytes, Any | None] = {}
    for key, before, new in base.diff(theirs):
        present = ours.get(key)
        if same(present, new):
            continue
        if not same(present, before):
            new = conflict(key, before, present, new)
        if not same(present, new):
            changes[key] = new
    return changes
