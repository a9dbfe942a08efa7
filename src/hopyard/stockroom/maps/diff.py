"""Differences of two maps, and merges of three, without reading the pages that they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from hopyard.errors import CorruptError
from hopyard.stockroom.maps.pages import Pages

_ENTRY = -1
_text = json.JSONEncoder(sort_keys=True).encode


class _Node(NamedTuple):
    """A page not read yet (its first key, level, digest) or an entry (key, level -1, value)."""

    key: bytes
    level: int
    what: Any


def differences(
    pages: Pages, root: str | None, other_pages: Pages, other_root: str | None
) -> Iterator[tuple[bytes, Any | None, Any | None]]:
    """Keys in order, with their value in the first and the second map, where these differ.

    Both maps are walked from the left. What stands at the front of each is compared: pages of one digest are
    passed over, unread; otherwise the page that begins first is opened, of two that begin alike the higher one. So a
    page of both maps is reached in both at once: it begins where they stand, and nothing above it is left.
    """
    if root == other_root:
        return
    mine, theirs = _Front(pages, root), _Front(other_pages, other_root)
    while mine.waiting or theirs.waiting:
        a, b = mine.peek(), theirs.peek()
        if b is None or (a is not None and (a.key, -a.level) < (b.key, -b.level)):
            entry = mine.pop_or_open()
            if entry is not None:
                yield entry.key, entry.what, None
        elif a is None or (b.key, -b.level) < (a.key, -a.level):
            entry = theirs.pop_or_open()
            if entry is not None:
                yield entry.key, None, entry.what
        elif a.level == _ENTRY:
            mine.waiting.pop()
            theirs.waiting.pop()
            if not same(a.what, b.what):
                yield a.key, a.what, b.what
        elif a.what == b.what:
            mine.waiting.pop()
            theirs.waiting.pop()
        else:
            mine.pop_or_open()
            theirs.pop_or_open()


class _Front:
    """The rest of one map: nodes in order, the next one last."""

    def __init__(self, pages: Pages, root: str | None) -> None:
        self._pages = pages
        self.waiting: list[_Node] = []
        if root is not None:
            page = pages.read(root)
            self.waiting.append(_Node(page.keys[0], page.level, root))

    def peek(self) -> _Node | None:
        return self.waiting[-1] if self.waiting else None

    def pop_or_open(self) -> _Node | None:
        """Take the next node away. An entry is returned; a page's own nodes take its place."""
        node = self.waiting.pop()
        if node.level == _ENTRY:
            return node
        self._open(node.what)
        return None

    def _open(self, digest: str) -> None:
        page = self._pages.read(digest)
        for key, value in zip(reversed(page.keys), reversed(page.values), strict=True):
            self.waiting.append(
                _Node(key, page.level - 1, value.digest) if page.level else _Node(key, _ENTRY, value)
            )


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values, or None, are stored alike: 1, 1.0 and true are not."""
    try:
        return repr(a) == repr(b) or _text(a) == _text(b)  # mostly they are equal, and repr is found faster
    except RecursionError:
        raise CorruptError(
            "a page of a sorted map holds a value that is nested too deep, as Hopyard writes none. Bring that column, "
            "model or value from a remote or a copy; verify() says which it is."
        ) from None
