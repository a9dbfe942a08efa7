"""One page of a sorted map: its JSON, where it ends, and reading it.

A leaf is ``{"keys": [...], "values": [...]}``. A page above is ``{"counts": [...], "keys": [...], "level": 1,
"pages": [...]}``: of each page below, in order, the number of entries in and under it, its first key, and its digest;
``level`` is 1 above leaves. A key stands as a JSON number or string, a pair as an array of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import lt
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError
from hopyard.stockroom.maps.keys import decode_many, encode_many, hash_many
from hopyard.stockroom.records import parsing

MINIMUM = 16
"""Entries that every page has but the last of its level: so each level has far fewer pages than the one below."""
MAXIMUM = 1024
"""Entries that no page exceeds, however unlucky its keys are."""
_RARE, _OFTEN, _LONG = 7, 3, 256
_PAGES_KEPT = 256
_HIGHEST = (
    16  # each level has a sixteenth of the pages of the one below, and there are less than 2**63 entries
)


class PageReader(Protocol):
    """A source of pages: ``Objects``, or a ``PackfileWriter`` for pages that are not published yet."""

    def read(self, digest: str, /) -> npt.NDArray[np.uint8]: ...


class PageWriter(PageReader, Protocol):
    """A writer of pages: a ``PackfileWriter``. It can read its pages at once, and all others."""

    def add_json(self, value: Any, /, kind: str) -> str: ...


class ChildPage(NamedTuple):
    """A page as an entry of the page above it: its digest, and the entries in and under it."""

    digest: str
    entries: int


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of one page. Level 0 is a leaf: its values are JSON; the values of others are of type ``ChildPage``."""

    level: int
    keys: list[bytes]
    values: list[Any]

    @property
    def count(self) -> int:
        """Entries of the map in and under this page."""
        return sum(child.entries for child in self.values) if self.level else len(self.keys)

    def to_json(self) -> dict[str, Any]:
        keys = decode_many(self.keys)
        if not self.level:
            return {"keys": keys, "values": self.values}
        digests = [child.digest for child in self.values]
        return {
            "counts": [child.entries for child in self.values], "keys": keys, "level": self.level, "pages": digests,
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Page:
        """The page; ``ValueError``, ``TypeError`` or ``KeyError`` if ``value`` is none."""
        if not isinstance(value["keys"], list):
            raise TypeError("its keys are no list")
        keys = encode_many([tuple(key) if isinstance(key, list) else key for key in value["keys"]])
        if not all(map(lt, keys, keys[1:])):
            raise ValueError("its keys are not in order")
        level = parsing.whole(value.get("level", 0), most=_HIGHEST)
        values = (
            value["values"]
            if not level
            else [
                ChildPage(parsing.digest(digest), parsing.whole(count, 1))
                for digest, count in zip(value["pages"], value["counts"], strict=True)
            ]
        )
        if not isinstance(values, list) or not keys or len(keys) != len(values):
            raise ValueError(f"it has {len(keys)} keys and {len(values)} values")
        return cls(level, keys, values)


class Pages:
    """Reads pages, and keeps the last few hundred. Threads may share it."""

    def __init__(self, objects: PageReader) -> None:
        self.objects = objects
        self._kept = lru_cache(_PAGES_KEPT)(self._parse)

    def read(self, digest: str) -> Page:
        """The page; its lists are not to be changed.

        Raises:
            CorruptError: what lies there is no page.
        """
        return self._kept(digest)

    def below(self, page: Page, at: int) -> Page:
        """The page that the entry of this number leads to.

        Raises:
            CorruptError: what lies there is no page, or another one than the entry says.
        """
        child = page.values[at]
        found = self.read(child.digest)
        if (found.level, found.keys[0], found.count) != (page.level - 1, page.keys[at], child.entries):
            raise _corrupt(
                child.digest, "it has another level, first key or count than the page above it says"
            )
        return found

    def _parse(self, digest: str) -> Page:
        data = self.objects.read(digest).tobytes()
        try:
            return Page.from_json(parsing.json_of(data))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _corrupt(digest, f"{type(error).__name__}: {error}") from error


def _corrupt(digest: str, why: str) -> CorruptError:
    return CorruptError(
        f"the object {digest} is not a page of a sorted map ({why}). Bring the repository's file that holds it from a "
        "remote or a copy; verify() lists all that is damaged, and what depends on it."
    )


def stops(keys: Sequence[bytes], level: int) -> list[int]:
    """Positions in ``keys`` before which a page ends, if one begins with the first: each page is complete,
    and what follows the last position is not.

    A page of at least ``MINIMUM`` entries ends behind a key of whose hash 7 bits are zero, beyond 256 entries
    behind one of whose hash 3 bits are zero, and at ``MAXIMUM`` in any case. Each level looks at other bits.
    """
    hashes = hash_many(keys) >> np.uint64(7 * level % 56)
    often = np.flatnonzero(hashes & np.uint64((1 << _OFTEN) - 1) == 0) + 1
    rare = np.flatnonzero(hashes & np.uint64((1 << _RARE) - 1) == 0) + 1
    found: list[int] = []
    start = 0
    while True:
        stop = min(_first(rare, start + MINIMUM), _first(often, start + _LONG + 1), start + MAXIMUM)
        if stop > len(keys):
            return found
        found.append(stop)
        start = stop


def _first(positions: npt.NDArray[np.intp], least: int) -> int:
    """The first of ``positions``, which ascend, that is no less than ``least``; a huge number if there is none."""
    at = int(np.searchsorted(positions, least))
    return int(positions[at]) if at < len(positions) else 1 << 62
