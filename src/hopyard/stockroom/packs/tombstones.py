"""Tombstones: what says of an object that its bytes were purged, and which object stands in for it.

``tombstones/<digest>/<id>`` is canonical JSON: ``{"column", "format", "instead", "object", "purged"}``. ``object`` is
the digest that history goes on to name, ``instead`` that of what is read in its place, ``purged`` a list of ``[key,
time, by, why]``: the audit record, which stays. ``<id>`` is the digest of the JSON. So repositories exchange them by
copying those that the other lacks, in whatever order, and nothing is ever replaced.

Of several tombstones of one object the one with the most keys counts. What stands in may have been purged further:
then its own tombstones are followed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from hopyard.errors import CorruptError
from hopyard.objects.digests import digest
from hopyard.storage import Store
from hopyard.storage.format import check_format, object_header

FOLDER = "tombstones"
_KIND = "tombstone"
_DOMAIN = "hopyard.tombstone"


class Purged(NamedTuple):
    """One sample that is gone: its key as JSON has it, when (ISO 8601, UTC), by whom, and why."""

    key: Any
    time: str
    by: str
    why: str


class Tombstone(NamedTuple):
    """Says what stands in for an object."""

    object: str
    instead: str
    column: str
    purged: tuple[Purged, ...]

    def encode(self) -> bytes:
        """Its JSON."""
        value = {
            **self._asdict(),
            "format": object_header(_KIND),
            "purged": [list(one) for one in self.purged],
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @property
    def name(self) -> str:
        """Of the store's object."""
        return f"{FOLDER}/{self.object}/{digest(self.encode(), _DOMAIN)}"


class Tombstones:
    """The tombstones of a repository, each read once. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Tombstone] = {}
        self._seen: dict[str, list[Tombstone]] = {}

    def __reduce__(self) -> tuple[type[Tombstones], tuple[Store]]:
        return Tombstones, (self._store,)

    def all(self) -> dict[str, list[Tombstone]]:
        """By object, those that are there now; of each object the one that counts first.

        Raises:
            CorruptError: one cannot be read.
        """
        found: dict[str, list[Tombstone]] = {}
        for entry in self._store.list(FOLDER):
            if entry.name not in self._known:
                self._known[entry.name] = read(self._store, entry.name)
            tombstone = self._known[entry.name]
            found.setdefault(tombstone.object, []).append(tombstone)
        for several in found.values():
            several.sort(key=lambda one: (-len(one.purged), one.name))
        self._seen = found
        return found

    def instead(self, digests: Iterable[str], again: bool = True) -> dict[str, str]:
        """What stands in for these objects in the end, for those that were purged.

        Args:
            again: look which tombstones there are now; False: as they were seen last.
        """
        return {name: options[0] for name, options in self.options(digests, again).items()}

    def options(self, digests: Iterable[str], again: bool = True) -> dict[str, list[str]]:
        """The same with all that may stand in: the one that counts first, then those that lack fewer samples, which are
        read until it is here."""
        every = self.all() if again else self._seen

        def ends(name: str) -> list[str]:
            return [end for one in every[name] for end in ends(one.instead)] if name in every else [name]

        return {name: ends(name) for name in digests if name in every}


def read(store: Store, name: str) -> Tombstone:
    """One tombstone.

    Raises:
        CorruptError: it is none, or not what was written; FormatError: a newer version of Hopyard wrote it.
    """
    data = store.get(name)
    try:
        value = json.loads(data)
        check_format(value.pop("format"), _KIND, where=f"{store.url}/{name}")
        tombstone = Tombstone(**{**value, "purged": tuple(Purged(*one) for one in value["purged"])})
        if name != f"{FOLDER}/{tombstone.object}/{digest(data, _DOMAIN)}":
            raise ValueError("it has another digest than its name says")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(
            f"{store.url}/{name} is not a tombstone ({error}). Copy this file from a remote or another clone, which "
            "has the same one."
        ) from error
    return tombstone
