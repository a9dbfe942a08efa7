"""The sorted map: looking up, walking, and the ways to another map."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from hopyard.errors import CorruptError
from hopyard.stockroom.maps import diff, update
from hopyard.stockroom.maps.pages import Page, PageReader, Pages, PageWriter


class SortedMap:
    """An immutable map from encoded keys to JSON values, in the order of the keys.

    Values are anything that JSON has but null, and are the caller's own: changing one changes no map. Every look-up
    reads at most one page a level, and the last few hundred pages are kept.

    Args:
        objects: where the pages are: ``Objects``, or a ``PackfileWriter``.
        root: digest of the root page; None: the empty map.

    Attributes:
        root: as given. Maps of equal content have equal roots.

    Raises (all methods that read):
        NotFoundError: a page is not here.
        CorruptError: a page is damaged.
    """

    def __init__(self, objects: PageReader, root: str | None) -> None:
        self.root = root
        self._pages = Pages(objects)

    def __reduce__(self) -> tuple[type[SortedMap], tuple[PageReader, str | None]]:
        return type(self), (self._pages.objects, self.root)

    def __repr__(self) -> str:
        return f"SortedMap(root={self.root!r})"

    def __len__(self) -> int:
        return 0 if self.root is None else self._pages.read(self.root).count

    def get(self, key: bytes) -> Any | None:
        """The value of ``key``; None if it has none."""
        found = self.floor(key)
        return found[1] if found is not None and found[0] == key else None

    def floor(self, key: bytes) -> tuple[bytes, Any] | None:
        """The entry with the greatest key that is not above ``key``; None if there is none."""
        page = None if self.root is None else self._pages.read(self.root)
        while page is not None:
            at = bisect_right(page.keys, key) - 1
            if at < 0:
                break
            if not page.level:
                return page.keys[at], own(page.values[at])
            page = self._pages.below(page, at)
        return None

    def at(self, position: int) -> tuple[bytes, Any]:
        """The entry that ``position`` entries come before.

        Raises:
            IndexError: there are not so many, or ``position`` is negative.
        """
        if self.root is None or not 0 <= position < len(self):
            raise IndexError(f"position {position} of a map with {len(self)} entries")
        page = self._pages.read(self.root)
        while page.level:
            ends = list(accumulate(child.entries for child in page.values))
            child = bisect_right(ends, position)
            position -= ends[child - 1] if child else 0
            page = self._pages.below(page, child)
        return page.keys[position], own(page.values[position])

    def items(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, Any]]:
        """Entries from ``start`` (None: from the first) to before ``stop`` (None: to the last), in order."""
        for page, first, last in self._leaves(start, stop):
            for at in range(first, last):
                yield page.keys[at], own(page.values[at])

    def keys(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[bytes]:
        """The keys of ``items(start, stop)``."""
        for page, first, last in self._leaves(start, stop):
            yield from page.keys[first:last]

    def _leaves(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[Page, int, int]]:
        """Leaves with entries in the range, and which of their entries those are."""
        waiting: list[tuple[Page | None, int]] = [] if self.root is None else [(None, 0)]
        while waiting:
            above, at = waiting.pop()
            page = self._pages.read(str(self.root)) if above is None else self._pages.below(above, at)
            last = len(page.keys) if stop is None else bisect_left(page.keys, stop)
            if page.level:
                first = 0 if start is None else max(0, bisect_right(page.keys, start) - 1)
                waiting.extend((page, number) for number in reversed(range(first, last)))
            else:
                yield page, 0 if start is None else bisect_left(page.keys, start), last

    def pages(self) -> Iterator[str]:
        """Digests of all pages, each before those below it. Leaves are named without being read."""
        waiting = [] if self.root is None else [(self.root, self._pages.read(self.root).level)]
        while waiting:
            digest, level = waiting.pop()
            yield digest
            if level:
                children = self._pages.read(digest).values
                waiting.extend((child.digest, level - 1) for child in reversed(children))

    def update(self, writer: PageWriter, changes: Mapping[bytes, Any | None]) -> SortedMap:
        """The map with ``changes``: new values of keys, None for keys that it shall not have. This map stays as it is.

        Only pages that changes fall into are read and written. The map returned reads from ``writer``:
        once that is closed, open it as ``SortedMap(objects, returned.root)``.

        Raises:
            UsageError: a key is not an encoded key; nothing was written.
        """
        return SortedMap(writer, update.update(self._pages, self.root, writer, changes))

    def diff(self, other: SortedMap) -> Iterator[tuple[bytes, Any | None, Any | None]]:
        """Keys whose values differ, in order, each with its value here and in ``other``; None: it has none.

        Pages that both maps have are not read.
        """
        for key, mine, theirs in diff.differences(self._pages, self.root, other._pages, other.root):
            yield key, own(mine), own(theirs)


def own(value: Any) -> Any:
    """A copy of a JSON value, so that whoever changes it changes no page that is kept.

    Raises:
        CorruptError: it is nested deeper than what this process can walk through.
    """
    try:
        return _copy(value)
    except RecursionError:
        raise CorruptError(
            "a page of a sorted map holds a value that is nested too deep, as Hopyard writes none. Bring that column, "
            "model or value from a remote or a copy; verify() says which it is."
        ) from None


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(each) for each in value]
    if isinstance(value, dict):
        return {name: _copy(each) for name, each in value.items()}
    return value
