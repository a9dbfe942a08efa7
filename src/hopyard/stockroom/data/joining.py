"""Joining columns by their keys: which samples all have, and where these are in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.order import Rows
from hopyard.errors import DataError, UsageError
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.rows import Keys, alike, encoded, find, keys_of, plain
from hopyard.stockroom.maps import SortedMap
from hopyard.stockroom.packfiles import Objects, PackfileWriter

MissingPolicy: TypeAlias = Literal["error", "drop"]


def named(columns: Mapping[str, Any] | Sequence[Any]) -> dict[str, SampleColumn]:
    """Columns by name, those that are being written as they are now.

    Raises:
        UsageError: none, others than columns, or two of one name.
    """
    if isinstance(columns, SampleColumn | ColumnDraft):
        columns = [columns]
    pairs = (
        list(columns.items())
        if isinstance(columns, Mapping)
        else [(getattr(each, "name", ""), each) for each in columns]
    )
    other = [type(each).__name__ for _, each in pairs if not isinstance(each, SampleColumn | ColumnDraft)]
    if other or not pairs:
        raise UsageError(
            f"Samples were asked of {'a ' + other[0] if other else 'no columns'}, but they are made of columns, at "
            "least one, as stock.data['image'] is."
        )
    found = {name: _still(each) for name, each in pairs}
    if len(found) < len(pairs):
        raise UsageError(
            f"Samples were asked of columns of equal names: {', '.join(name for name, _ in pairs)}. Name each: "
            "Samples({'a': one, 'b': other})."
        )
    return found


def _still(column: SampleColumn | ColumnDraft) -> SampleColumn:
    """The column as it is now; mapped and picklable, if all that it needs is published."""
    if isinstance(column, SampleColumn):
        return column
    seen = column.snapshot()
    writer = seen.objects
    if isinstance(writer, PackfileWriter) and isinstance(writer.stored, Objects):
        needed = {entry[0] for _, entry in SortedMap(writer, seen.record.pages).items()}
        if not writer.stored.missing(needed.union(SortedMap(writer, seen.record.pages).pages())):
            return SampleColumn(writer.stored, seen.name, seen.record)
    return seen


def joined(
    columns: Mapping[str, SampleColumn], keys: Keys | None, missing: MissingPolicy
) -> tuple[dict[str, Rows | None], int]:
    """For each column, the positions in it of the samples that all have, and how many these are.

    (n,) int64; None: 0 to n - 1, as in all columns if they have the same keys.
    """
    first = next(iter(columns.values()))
    codes = first.codes() if keys is None else keys
    positions = {
        name: _find(column, codes, keys is None and column is first) for name, column in columns.items()
    }
    there = np.ones(len(codes), bool)
    for places in positions.values():
        if places is not None:
            there &= places >= 0
    count = int(there.sum())
    complete = count == len(codes) and (
        keys is not None or all(len(each) == count for each in columns.values())
    )
    if not complete:
        if missing == "error" and (keys is not None or not _only_purged(columns, codes, there)):
            raise _incomplete(columns, positions, codes, count, keys is not None)
        chosen = np.flatnonzero(there)
        positions = {name: chosen if places is None else places[chosen] for name, places in positions.items()}
    if not count:
        names = " and ".join(map(repr, columns))
        raise DataError(f"no sample is in all of {names}: they have no key in common. See .keys() of each.")
    return positions, count


def _only_purged(columns: Mapping[str, SampleColumn], codes: Keys, there: npt.NDArray[np.bool_]) -> bool:
    """Whether all columns have the same samples, but for those that were purged from one of them."""
    purged = {code for column in columns.values() for code in encoded(column.purged_codes())}
    gone = keys_of(sorted(purged))
    others = [len(column) - int((column.find(gone) >= 0).sum()) for column in columns.values()]
    return bool((find(gone, codes[~there]) >= 0).all()) and set(others) == {int(there.sum())}


def _find(column: SampleColumn, codes: Keys, is_all: bool) -> Rows | None:
    """Positions of keys, -1 for those that are not there; None if they are all of the column's."""
    if not is_all and len(column) == len(codes):
        mine, its = alike(column.codes(), codes)
        is_all = np.array_equal(mine, its)
    return None if is_all else column.find(codes)


def _incomplete(
    columns: Mapping[str, SampleColumn],
    positions: Mapping[str, Rows | None],
    codes: Keys,
    common: int,
    chosen: bool,
) -> DataError:
    what = f"{len(codes)} keys" if chosen else repr(next(iter(columns)))
    said = [] if chosen else [f"{name!r} has {len(column)}" for name, column in columns.items()]
    for name, places in positions.items():
        rows = np.empty(0, np.int64) if places is None else np.flatnonzero(places < 0)
        if len(rows):
            first = plain(codes[rows[:1]])[0]
            columns[name].missing(first)  # raises, if it was purged
            said.append(f"{len(rows)} of {what} are not in {name!r} (the first: {first!r})")
    text = f"not all samples are in all columns: {'; '.join(said)}; {common} are in all"
    return DataError(
        f"{text}. To leave out the others: stock.data.samples({[*columns]!r}, missing='drop'); or add what is missing."
    )
