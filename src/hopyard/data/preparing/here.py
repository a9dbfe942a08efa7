"""Rows of this process on their way into a dataset: an exchange with one worker, that hands rows to itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.columns.columns import ColumnData, as_expected
from hopyard.data.order import Rows, mix
from hopyard.data.preparing.exchange import Exchange, ShareReport
from hopyard.data.preparing.files import Writing, Written
from hopyard.data.preparing.packing import PackedLayout, in_order, packed, placed
from hopyard.data.preparing.split import check_flags, warn_of_equal
from hopyard.data.preparing.survey import ORDER_BITS, Survey
from hopyard.data.preparing.write import SplitWriter
from hopyard.data.sources.collect import SourceFindings
from hopyard.data.sources.hashing import row_sums

_LOW = np.uint64(0xFFFFFFFF)
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class _Frame:
    """All rows of a source.

    Attributes:
        part: see ``Packing``.
        seed: of the order.
    """

    collected: SourceFindings
    part: int | str | float
    seed: int

    @cached_property
    def columns(self) -> dict[str, ColumnData]:
        """Columns of the dataset: all but the one that splits the rows."""
        return {name: data for name, data in (self.collected.columns or {}).items() if name != self.part}

    @cached_property
    def placed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The rows' places, and their numbers for the split."""
        collected = self.collected
        return placed(collected.columns or {}, collected.hashes, self.part, self.seed)

    def survey(self) -> Survey:
        survey = Survey(self.part if isinstance(self.part, float) else None)
        survey.content = self.collected.content
        if not isinstance(self.part, str) or not survey.content.found[self.part].missing:
            survey.place(*self.placed)
        return survey


class HereExchange(Exchange):
    """Rows of one or two sources.

    Args:
        collected: the rows of each.
        parts: of each; see ``Packing``.
        seed: of the order.
    """

    def __init__(
        self, collected: Sequence[SourceFindings], parts: Sequence[int | str | float], seed: int
    ) -> None:
        if len(collected) > 1:
            train, val = collected
            val = _as_other(val, train)
            collected = [_as_other(train, val), val]
        self._frames = [_Frame(rows, part, seed) for rows, part in zip(collected, parts, strict=True)]
        for frame in self._frames:
            if isinstance(frame.part, str):
                check_flags(frame.collected.columns[frame.part].column)  # type: ignore[index]
        self._written: dict[int, Written] = {}

    def survey(self, report: ShareReport) -> list[list[Survey]]:
        return [[frame.survey()] for frame in self._frames]

    def write(self, writing: Writing, report: ShareReport) -> list[Written]:
        """Files that were written before it failed are not written again."""
        if len(self._frames) > 1 and not self._written:
            train, val = self._frames
            warn_of_equal(train.collected.hashes, val.collected.hashes)
        rows = sum(frame.collected.rows for frame in self._frames)
        done = 0
        for split in (1, 0):
            frame = self._frames[-1 if split else 0]
            order, numbers = frame.placed
            chosen = np.flatnonzero((numbers < writing.cut) == bool(split))
            chosen = sorted_rows(writing.layout, frame.columns, order, chosen)
            order = order[chosen]
            columns = {column.name: frame.columns[column.name] for column in writing.layout.columns}

            writer = SplitWriter(writing.policies, writing.stores[split])
            for number in writing.numbers_of(split):
                first, last = np.searchsorted(order, writing.orders(number))
                if number not in self._written and first < last:
                    self._written[number] = writing.write_with(
                        writer,
                        number,
                        columns,
                        chosen[first:last],
                        order[first:last],
                        partial(_report, report, done, rows),
                    )
                done += int(last - first)
        return list(self._written.values())

    def close(self) -> None:
        self._frames = []


def _as_other(mine: SourceFindings, other: SourceFindings) -> SourceFindings:
    """The rows, with columns that hold no value as those of the other."""
    columns = {
        name: as_expected(data, other.schema[name]) if name in other.schema else data
        for name, data in (mine.columns or {}).items()
    }
    schema = {name: data.column for name, data in columns.items()}
    return SourceFindings(mine.content.with_types(schema), schema, mine.hashes, columns)


def _report(report: ShareReport, before: int, rows: int, written: int) -> None:
    report((before + written) / rows)


def sorted_rows(
    layout: PackedLayout, columns: Mapping[str, ColumnData], order: npt.NDArray[np.int64], chosen: Rows
) -> Rows:
    """The ``chosen`` rows in the order of the dataset, by their places; see :func:`in_order`."""
    places = order[chosen]
    keys = places.view(np.uint64) >> np.uint64(ORDER_BITS - 32) << np.uint64(32)
    keys |= np.arange(len(keys), dtype=np.uint64)  # numbers alone are sorted ten times as fast as by an index
    keys.sort()
    positions = (keys & _LOW).view(np.int64)
    keys >>= np.uint64(32)
    if len(tied := _ties(keys)):
        positions[tied] = positions[tied][np.argsort(places[positions[tied]], kind="stable")]
    rows = chosen[positions]
    places = places[positions]
    if len(tied := _ties(places)):
        _settle(layout, columns, places, rows, tied)
    return rows


def _ties(values: npt.NDArray[Any]) -> Rows:
    """The positions of sorted values that are not alone."""
    same = np.flatnonzero(values[1:] == values[:-1])
    return np.union1d(same, same + 1) if len(same) else same


def _settle(
    layout: PackedLayout,
    columns: Mapping[str, ColumnData],
    places: npt.NDArray[np.int64],
    rows: Rows,
    tied: Rows,
) -> None:
    """Sort rows that have one place, if they differ: most have because they are equal."""
    hashes = np.empty(len(tied), np.uint64)
    for start in range(0, len(tied), _AT_ONCE):
        some = rows[tied[start : start + _AT_ONCE]]
        hashes[start : start + len(some)] = row_sums(_take(columns, some))[1]
    mix(hashes)
    differ = (places[tied][1:] == places[tied][:-1]) & (hashes[1:] != hashes[:-1])
    for place in np.unique(places[tied][1:][differ]):
        mine = slice(*np.searchsorted(places, [place, place + 1]))
        some = rows[mine]
        table = packed(layout, _take(columns, some), places[mine])
        rows[mine] = some[in_order(layout, table)]


def _take(columns: Mapping[str, ColumnData], rows: Rows) -> dict[str, ColumnData]:
    return {name: data.take(rows) for name, data in columns.items()}
