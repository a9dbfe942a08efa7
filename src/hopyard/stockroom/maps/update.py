"""Changing a map: level by level from the leaves up, only the pages that changes fall into."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias

from hopyard.stockroom.maps.keys import decode_many
from hopyard.stockroom.maps.pages import ChildPage, Page, Pages, PageWriter, stops

_Edits: TypeAlias = list[tuple[bytes, Any]]
"""New entries of one level, in order; None as the value: the key goes."""


def update(
    pages: Pages, root: str | None, writer: PageWriter, changes: Mapping[bytes, Any | None]
) -> str | None:
    """The root of the map that ``root`` is the root of, with ``changes``; None: it is empty.

    The pages that are replaced on one level are the changes of the level above.

    Raises:
        UsageError: a key is not an encoded key; nothing was written.
    """
    edits = sorted(changes.items(), key=itemgetter(0))
    decode_many([key for key, _ in edits])
    level = 0
    if root is None:
        entries = [(key, value) for key, value in edits if value is not None]
        written = _write(writer, 0, entries)
    else:
        top = pages.read(root).level
        while True:
            if not edits:
                return root
            replaced, written = _rewrite(pages, root, writer, level, edits)
            if level == top:
                break
            edits = _differing(replaced, written)
            level += 1
    while len(written) > 1:
        level += 1
        written = _write(writer, level, list(written.items()))
    return _highest(writer, next(iter(written.values())).digest) if written else None


def _highest(writer: PageWriter, digest: str) -> str:
    """The root below the page ``digest``: pages with a single page below them are left out, for an equal map that
    never was larger does not have them."""
    pages = Pages(writer)
    page = pages.read(digest)
    while page.level and len(page.values) == 1:
        digest = page.values[0].digest
        page = pages.read(digest)
    return digest


def _differing(replaced: dict[bytes, ChildPage], written: dict[bytes, ChildPage]) -> _Edits:
    keys = sorted(replaced.keys() | written.keys())
    return [(key, written.get(key)) for key in keys if replaced.get(key) != written.get(key)]


def _rewrite(
    pages: Pages, root: str, writer: PageWriter, level: int, edits: _Edits
) -> tuple[dict[bytes, ChildPage], dict[bytes, ChildPage]]:
    """Apply ``edits`` to a level. Returns the pages replaced and those written instead, by first key.

    From a page that an edit falls into on, entries are cut anew until a new page ends where an old one does.
    """
    replaced: dict[bytes, ChildPage] = {}
    written: dict[bytes, ChildPage] = {}
    done = 0
    while done < len(edits):
        rest: _Edits = []
        after: bytes | None = edits[done][0]
        while after is not None:
            digest, page, after = _locate(pages, root, level, after)
            upto = len(edits) if after is None else bisect_left(edits, after, lo=done, key=itemgetter(0))
            replaced[page.keys[0]] = ChildPage(digest, page.count)
            rest = _write_complete(writer, level, rest + _apply(page, edits[done:upto]), written)
            done = upto
            if not rest:
                break
        if rest:
            written.update([_write_page(writer, level, rest)])
    return replaced, written


def _locate(pages: Pages, root: str, level: int, key: bytes) -> tuple[str, Page, bytes | None]:
    """The page of a level where ``key`` is or would be: its digest, itself, and the first key of the page after it."""
    digest, after = root, None
    page = pages.read(root)
    while page.level > level:
        at = max(0, bisect_right(page.keys, key) - 1)
        after = page.keys[at + 1] if at + 1 < len(page.keys) else after
        digest = page.values[at].digest
        page = pages.below(page, at)
    return digest, page, after


def _apply(page: Page, edits: _Edits) -> _Edits:
    """The entries of ``page`` after ``edits``, in order."""
    entries = dict(zip(page.keys, page.values, strict=True))
    if not edits:
        return list(entries.items())
    entries.update(edits)
    return [(key, entries[key]) for key in sorted(entries) if entries[key] is not None]


def _write(writer: PageWriter, level: int, entries: _Edits) -> dict[bytes, ChildPage]:
    """Write all pages of a level; returns them by first key."""
    written: dict[bytes, ChildPage] = {}
    rest = _write_complete(writer, level, entries, written)
    if rest:
        written.update([_write_page(writer, level, rest)])
    return written


def _write_complete(
    writer: PageWriter, level: int, entries: _Edits, written: dict[bytes, ChildPage]
) -> _Edits:
    """Write the pages that are complete and add them to ``written``; returns the entries behind them."""
    ends = [0, *stops([key for key, _ in entries], level)]
    for start, stop in pairwise(ends):
        written.update([_write_page(writer, level, entries[start:stop])])
    return entries[ends[-1] :]


def _write_page(writer: PageWriter, level: int, entries: _Edits) -> tuple[bytes, ChildPage]:
    page = Page(level, [key for key, _ in entries], [value for _, value in entries])
    return page.keys[0], ChildPage(writer.add_json(page.to_json(), kind="page"), page.count)
