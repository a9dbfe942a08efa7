"""Other places of samples that are to be purged: fragments that several columns share, and equal bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hopyard.errors import NotFoundError
from hopyard.objects.tensors import ITEM_SIZES
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.rows import plain
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.maintenance.walk import Walk
from hopyard.stockroom.maps import Key, SortedMap
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.views.view import Snapshot
from hopyard.wording import counted, describe_bytes

LOOKED = 256 << 20
"""Bytes of fragments that are compared with what was purged, at most."""

_WANTED = 1000  # purged samples that others are compared with, at most
_SHOWN = 5

_Value = tuple[str, str, tuple[int, ...] | None, bytes]
"""Kind, dtype and shape of a sample, and its bytes."""


@dataclass
class Equal:
    """Samples of the present commits whose bytes are those of a purged one.

    Attributes:
        found: column and key of the first of them; ``count`` of all.
        left: bytes that were not looked at, since there are too many.
    """

    found: list[tuple[str, Key]] = field(default_factory=list)
    count: int = 0
    left: int = 0

    def __str__(self) -> str:
        told = ""
        if self.count:
            named = ", ".join(f"{column!r}[{key!r}]" for column, key in self.found)
            more = f" and {self.count - len(self.found):,} more" if self.count > len(self.found) else ""
            them, they = ("it", "it") if self.count == 1 else ("them", "they")
            told = (
                f"; the same bytes still stand in {named}{more}: purge {them} as well, if {they} must go too"
            )
        if self.left:
            told += f"; whether the same bytes stand in {describe_bytes(self.left)} of other samples was not looked at"
        return told


def shared_with(
    objects: Objects, walk: Walk, column: str, fragments: Collection[str]
) -> dict[str, dict[str, None]]:
    """By name, the other columns of any commit or staged write that are made of some of these fragments, with those."""
    wanted = set(fragments)
    by_pages: dict[str, list[str]] = {}
    for thing, versions in walk.columns.items():
        name = thing.removeprefix("data/")
        for pages in versions if name != column else ():
            by_pages.setdefault(pages, []).append(name)
    reach = {digest: walk.fragments[digest] for digest in wanted if digest in walk.fragments}
    found: dict[str, dict[str, None]] = {}
    for pages, columns in by_pages.items():
        entries = SortedMap(objects, pages)
        for digest, (_, entry) in reach.items():
            value = entries.get(entry.first)
            if value is not None and FragmentEntry.of(entry.first, value).digest == digest:
                for name in columns:
                    found.setdefault(name, {})[digest] = None
    return dict(sorted(found.items()))


def present_columns(
    objects: Objects, commits: Iterable[str], staged: Mapping[str, ColumnRecord]
) -> dict[str, list[ColumnRecord]]:
    """The columns of these commits, and those staged, by name; each version once."""
    found: dict[str, dict[str | None, ColumnRecord]] = {}
    for commit in sorted(set(commits)):
        try:
            view = Snapshot(objects, read_commit(objects, commit).root, commit)
            records = {name: view.record("data", name) for name in view.names("data")}
        except NotFoundError:  # of another clone
            continue
        for name, record in records.items():
            if isinstance(record, ColumnRecord):
                found.setdefault(name, {})[record.pages] = record
    for name, record in staged.items():
        found.setdefault(name, {})[record.pages] = record
    return {name: list(versions.values()) for name, versions in sorted(found.items())}


def values_of(objects: Objects, fragments: Mapping[str, Sequence[Key]]) -> set[_Value]:
    """The values of samples by fragments and keys, without those of one number, which say nothing of anybody."""
    values: set[_Value] = set()
    for digest, keys in fragments.items():
        fragment = Fragment(objects.read(digest))
        wanted = set(keys)
        for at, key in enumerate(plain(fragment.keys)):
            if key in wanted and at not in fragment.purged and len(values) < _WANTED:
                value = _value(fragment, at)
                if value[0] != "tensor" or len(value[3]) > ITEM_SIZES[value[1]]:
                    values.add(value)
    return {value for value in values if value[3]}


def find_equal(objects: Objects, columns: Mapping[str, Sequence[ColumnRecord]], values: set[_Value]) -> Equal:
    """The samples of columns that have one of these values. What is not here, and more than ``LOOKED`` bytes, is not
    looked at."""
    equal = Equal()
    kinds = {(kind, dtype) for kind, dtype, _, _ in values}
    wanted = [
        (name, entry)
        for name, records in columns.items()
        for record in records
        if (record.kind, record.dtype) in kinds
        for entry in _entries(objects, record)
    ]
    wanted = list({(name, entry.digest): (name, entry) for name, entry in wanted}.values())
    missing = objects.missing({entry.digest for _, entry in wanted})
    seen: dict[tuple[str, Key], None] = {}
    looked = 0
    for name, entry in wanted:
        if entry.digest in missing:
            continue
        if looked + entry.nbytes > LOOKED:
            equal.left += entry.nbytes
            continue
        looked += entry.nbytes
        fragment = Fragment(objects.read(entry.digest))
        for at in _candidates(fragment, values):
            if at not in fragment.purged and _value(fragment, at) in values:
                (key,) = plain(fragment.keys[at : at + 1])
                seen[name, key] = None
    equal.found, equal.count = list(seen)[:_SHOWN], len(seen)
    return equal


def described(shared: Mapping[str, Sequence[Key]], present: Collection[str] | None = None) -> str:
    """Columns with keys of samples in them, in words.

    Args:
        present: the columns that commits have now; others are marked. None: none is marked.
    """
    told = []
    for column, keys in list(shared.items())[:_SHOWN]:
        named = ", ".join(map(repr, keys[:_SHOWN])) + (", ..." if len(keys) > _SHOWN else "")
        past = present is not None and column not in present
        told.append(f"{column!r}[{named}]{' (in earlier commits only)' if past else ''}")
    more = len(shared) - _SHOWN
    return ", ".join(told) + (f" and {counted(more, 'more column')}" if more > 0 else "")


def _entries(objects: Objects, record: ColumnRecord) -> Iterator[FragmentEntry]:
    if record.pages is not None:
        for first, value in SortedMap(objects, record.pages).items():
            yield FragmentEntry.of(first, value)


def _value(fragment: Fragment, at: int) -> _Value:
    data, shape = fragment.rows.sample(at)
    header = fragment.described
    if header["kind"] == "tensor" and shape is None:
        shape = tuple(header["shape"])
    return header["kind"], header["dtype"], shape, data.tobytes()


def _candidates(fragment: Fragment, values: set[_Value]) -> list[int]:
    """Positions of samples that have the size of one of the values and begin as it does."""
    header, rows = fragment.described, fragment.rows
    same = [value for *what, _, value in values if what == [header["kind"], header["dtype"]]]
    sizes = rows.sizes()
    at = np.flatnonzero(np.isin(sizes, [len(value) for value in same]))
    starts = at * sizes[0] if rows.offsets is None else rows.offsets[at]
    flat = rows.data.reshape(-1)
    for place in range(min(8, min(map(len, same), default=0))):
        firsts = np.array(sorted({value[place] for value in same}), np.uint8)
        kept: npt.NDArray[np.bool_] = np.isin(flat[starts + place], firsts)
        at, starts = at[kept], starts[kept]
    return [int(each) for each in at]
