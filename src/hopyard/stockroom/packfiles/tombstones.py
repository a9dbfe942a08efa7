"""Tombstones: what says of a fragment that samples of it were purged, and which fragment stands in for it.

``tombstones/<digest>/<id>`` is canonical JSON: ``{"column", "format", "instead", "object", "purged"}``. ``object`` is
the digest that history goes on to name, ``instead`` that of what is read in its place, ``purged`` a list of ``[key,
time, by, why]``: the audit record, which stays. ``<id>`` is the digest of the JSON. So repositories exchange them by
copying, in whatever order, and nothing is ever replaced. The stand-in has the same record in its own header.

Of several tombstones of one object the one with the most keys counts. A stand-in has no tombstone itself.

A repository believes the tombstones that it holds. Those of a remote are claims, see ``remotes.purges``. Where one was
accepted without the fragment, so that nothing could prove what stands in, ``unproven/<digest>`` is the address of the
remote whose word it is, until the fragment turns up somewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from hopyard.errors import CorruptError, FormatError, NotFoundError, UsageError
from hopyard.objects.digests import digest
from hopyard.stockroom.maps.keys import Key, check_key
from hopyard.storage import Store
from hopyard.storage.format import check_format, object_header

FOLDER = "tombstones"
UNPROVEN = "unproven"
_KIND = "tombstone"
_DOMAIN = "hopyard.tombstone"
_LONGEST = 4096  # bytes of an address that are read
_MOST = 64 << 20  # bytes: the record of all samples of a fragment of many small ones
_DIGEST = re.compile("[0-9a-f]{64}")


class Purged(NamedTuple):
    """One sample that is gone: its key as JSON has it, when (ISO 8601, UTC), by whom, and why."""

    key: Any
    time: str
    by: str
    why: str


class Tombstone(NamedTuple):
    """Says what stands in for a fragment."""

    object: str
    instead: str
    column: str
    purged: tuple[Purged, ...]

    def encode(self) -> bytes:
        """The JSON of the tombstone."""
        value = {
            **self._asdict(),
            "format": object_header(_KIND),
            "purged": [list(one) for one in self.purged],
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @property
    def keys(self) -> set[Key]:
        """Of the samples that are gone."""
        return {key_of(one.key) for one in self.purged}

    @property
    def name(self) -> str:
        """Of the store's object."""
        return f"{FOLDER}/{self.object}/{digest(self.encode(), _DOMAIN)}"


class Tombstones:
    """The tombstones that a store holds, each read once. Threads may share it.

    Attributes:
        refused: by name, why a file among them is none. It counts as if it were not there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Tombstone] = {}
        self._seen: dict[str, list[Tombstone]] = {}
        self.refused: dict[str, str] = {}

    def __reduce__(self) -> tuple[type[Tombstones], tuple[Store]]:
        return Tombstones, (self._store,)

    def all(self) -> dict[str, list[Tombstone]]:
        """By object, those that are there now; of each object the one that counts first."""
        found: dict[str, list[Tombstone]] = {}
        refused: dict[str, str] = {}
        try:
            entries = list(self._store.list(FOLDER))
        except CorruptError as error:  # the folder is a link
            entries = []
            refused[FOLDER] = str(error)
        for entry in entries:
            if entry.name not in self._known:
                try:
                    self._known[entry.name] = read(self._store, entry.name, entry.size)
                except (CorruptError, FormatError, NotFoundError) as error:
                    refused[entry.name] = str(error)
                    continue
            tombstone = self._known[entry.name]
            found.setdefault(tombstone.object, []).append(tombstone)
        for several in found.values():
            several.sort(key=lambda one: (-len(one.purged), one.name))
        self._seen, self.refused = found, refused
        return found

    def instead(self, digests: Iterable[str], again: bool = True) -> dict[str, str]:
        """The stand-ins of the objects, among these, that were purged.

        Args:
            again: look which tombstones there are now; False: as they were seen last.
        """
        return {name: options[0] for name, options in self.options(digests, again).items()}

    def options(self, digests: Iterable[str], again: bool = True) -> dict[str, list[str]]:
        """The same with all that may stand in: the one that counts first, then those that lack fewer samples, which are
        read until it is here."""
        every = self.all() if again else self._seen
        return {name: [one.instead for one in every[name]] for name in digests if name in every}


def note_unproven(store: Store, name: str, remote: str) -> None:
    """Remember, before a tombstone of the object ``name`` is accepted, that it rests on this remote's word."""
    store.put(f"{UNPROVEN}/{name}", remote.encode(errors="replace"))


def unproven(store: Store) -> dict[str, str]:
    """By object the remote on whose word it is read in part."""
    return {
        entry.name.partition("/")[2]: store.get(entry.name, 0, min(entry.size, _LONGEST)).decode(
            errors="replace"
        )
        for entry in store.list(UNPROVEN)
    }


def forget_unproven(store: Store, name: str) -> None:
    """Forget that the stand-in for the object ``name`` is unproven: it was compared with the object."""
    store.delete(f"{UNPROVEN}/{name}")


def read(store: Store, name: str, size: int) -> Tombstone:
    """The tombstone that a store has under a name, of so many bytes.

    Raises:
        CorruptError: it is none, or not what was written; FormatError: a newer version of Hopyard wrote it.
    """
    try:
        if size > _MOST:
            raise ValueError(f"it has {size} bytes, and the largest have {_MOST}")
        data = store.get(name, 0, size)
        value = json.loads(data)
        check_format(value.pop("format"), _KIND, where=f"{store.url}/{name}")
        tombstone = Tombstone(**{**value, "purged": tuple(Purged(*one) for one in value["purged"])})
        _check(tombstone)
        if tombstone.encode() != data:
            raise ValueError("it is not written as tombstones are")
        if name != tombstone.name:
            raise ValueError("it has another digest than its name says")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError) as error:
        raise CorruptError(
            f"{store.url}/{name} is not a tombstone ({error}). Nothing is read or deleted because of it. Copy this "
            "file from a remote or another clone that has it, or delete it."
        ) from error
    return tombstone


def key_of(value: Any) -> Key:
    """A key as JSON has it, where a pair is a list.

    Raises:
        UsageError: it is none.
    """
    return check_key(tuple(value) if isinstance(value, list) else value)


def _check(tombstone: Tombstone) -> None:
    """See that every field is what it must be, and that the record says of each sample who removed it, when and why."""
    for digest_of in (tombstone.object, tombstone.instead):
        if not _DIGEST.fullmatch(digest_of):
            raise ValueError(f"{digest_of!r} is no digest")
    if tombstone.object == tombstone.instead:
        raise ValueError("it says that the object stands in for itself")
    if not isinstance(tombstone.column, str) or not tombstone.column:
        raise ValueError("it names no column")
    keys = {key_of(one.key) for one in tombstone.purged}
    if not keys or len(keys) < len(tombstone.purged):
        raise ValueError("its record names no sample, or one twice")
    for one in tombstone.purged:
        if not (isinstance(one.by, str) and isinstance(one.why, str) and one.why.strip()):
            raise ValueError(f"its record does not say who purged the sample {one.key!r}, and why")
        if datetime.fromisoformat(one.time).tzinfo is None:
            raise ValueError(f"its record has the time {one.time!r}, without a time zone")
