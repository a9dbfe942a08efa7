"""The units of a run as a table in little memory, and the part of it that a picture of some pixels shows."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.hopper.history import rules_broken_by
from hopyard.hopper.scheduler import Layout
from hopyard.hopper.state import JournalRecord

PHASES = {"train": 0, "validate": 1}
MERGED = 255
MOST_CHECKED = 100_000
"""Units of a run above which its schedule is not checked against the rules."""

_UNIT = np.dtype(
    [
        ("begin", "<f4"), ("end", "<f4"), ("worker", "<u4"), ("trial", "<u4"), ("partition", "<u4"), ("phase", "u1"),
    ]
)  # fmt: skip
_PACKED = struct.Struct("<ffIIIB")
_EXACT = struct.Struct("<ddIIIBII")
_ROWS = 1 << 16
Units = npt.NDArray[Any]
"""Units of trials, each by itself: begin and end in seconds since the run began, worker, trial, partition, phase
(``PHASES``, or ``MERGED``)."""


class UnitTable:
    """The committed units of a run, added as the journal gives them, in pieces of the same size: those that are full
    are compressed, to some nine bytes a unit."""

    def __init__(self) -> None:
        self._full: list[bytes] = []
        self._last = bytearray()
        self._spans: list[tuple[float, float]] = []
        """When the first unit of each piece begins and the last one ends."""
        self._count = 0
        self._exact: bytearray | None = bytearray()
        """What the rules of a schedule look at, as long as the units are few."""
        self._busy: dict[int, float] = {}
        self._trained: dict[int, float] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, unit: JournalRecord) -> None:
        """Add a unit, as the journal records it."""
        begin, end, worker = unit["a"], unit["z"], unit["w"]
        self._busy[worker] = self._busy.get(worker, 0.0) + end - begin
        for trial in unit["t"]:
            self._trained[trial] = self._trained.get(trial, 0.0) + end - begin
            place = self._count % _ROWS
            if place == 0:
                if self._last:
                    self._full.append(_compressed(self._last))
                self._last = bytearray(_ROWS * _PACKED.size)
                self._spans.append((math.inf, -math.inf))
            phase = PHASES.get(unit["ph"], 1)
            _PACKED.pack_into(self._last, place * _PACKED.size, begin, end, worker, trial, unit["p"], phase)
            first, last = self._spans[-1]
            if begin < first or end > last:
                self._spans[-1] = min(first, begin), max(last, end)
            self._count += 1
            if self._exact is not None:
                self._exact += _EXACT.pack(begin, end, worker, trial, unit["p"], phase, unit["e"], unit["n"])
        if self._count > MOST_CHECKED:
            self._exact = None

    @property
    def begin(self) -> float:
        """When the first unit begins, in seconds since the run began; infinite without any."""
        return min((first for first, _ in self._spans), default=math.inf)

    @property
    def end(self) -> float:
        """When the last unit ends, in seconds since the run began; 0 without any."""
        return max((last for _, last in self._spans), default=0.0)

    @property
    def busy(self) -> dict[int, float]:
        """The workers, and the seconds in which each was in a unit: trials of a pack share theirs."""
        return dict(sorted(self._busy.items()))

    def longest(self, later: UnitTable) -> float:
        """Seconds in units, here and in later ones, of the trial that was in them longest; 0 without any."""
        both = (self._trained.get(trial, 0.0) + more for trial, more in later._trained.items())
        return max(itertools.chain(self._trained.values(), both), default=0.0)

    def broken_rules(self, rest: Iterator[JournalRecord], layout: Layout) -> list[str] | None:
        """See ``hopyard.hopper.history.rules_broken_by``, ``rest`` being later units; None: there are too many."""
        if self._exact is None:
            return None
        return rules_broken_by([*_records(_EXACT.iter_unpack(self._exact)), *rest], layout)

    def between(self, low: float, high: float, pixels: int) -> Units:
        """The units that are under way between two moments, as a picture so many pixels wide shows them: those of the
        same worker that begin in the same pixel are one, of the phase ``MERGED``, if each is narrower than a pixel. Its
        trial is the one that has most of the time of these; where they lie in several pieces of the table, most of that
        of the trials that lead in one. Where they are few, each is there."""
        width = (high - low) / pixels if high > low else 0.0
        inside = sum(first >= low and last <= high for first, last in self._spans)
        is_few = (inside - 1) * _ROWS <= 4 * pixels and sum(map(len, self._within(low, high))) <= 4 * pixels
        if width == 0 or is_few:
            return np.concatenate([np.empty(0, _UNIT), *self._within(low, high)])
        wide, merged, counts, times = [], [], [], []
        for units in self._within(low, high):
            narrow = units["end"] - units["begin"] < width
            wide.append(units[~narrow])
            units = units[narrow]
            once = np.ones(len(units), np.int64)
            some, many, seconds = _merge(units, once, units["end"] - units["begin"], low, width)
            merged.append(some)
            counts.append(many)
            times.append(seconds)
        joined = np.concatenate(merged), np.concatenate(counts), np.concatenate(times)
        small, many, _ = _merge(*joined, low, width)
        small["phase"][many > 1] = MERGED
        return np.concatenate([*wide, small])

    def _within(self, low: float, high: float) -> Iterator[Units]:
        for number, (first, last) in enumerate(self._spans):
            if last >= low and first <= high:
                is_full = number < len(self._full)
                units = _expanded(self._full[number]) if is_full else np.frombuffer(self._last, _UNIT)
                units = units[: self._count - number * _ROWS]
                is_inside = first >= low and last <= high
                yield units if is_inside else units[(units["end"] >= low) & (units["begin"] <= high)]


def _compressed(piece: bytearray) -> bytes:
    """Units, byte by byte of all of them: these are much alike."""
    return zlib.compress(np.frombuffer(piece, np.uint8).reshape(-1, _PACKED.size).T.tobytes(), 1)


def _expanded(data: bytes) -> Units:
    table = np.frombuffer(zlib.decompress(data), np.uint8).reshape(_PACKED.size, -1)
    return np.ascontiguousarray(table.T).reshape(-1).view(_UNIT)


def _records(rows: Iterator[tuple[Any, ...]]) -> Iterator[JournalRecord]:
    """Units as the journal records them, as far as the rules of a schedule look at them: trials that were in one
    together have its worker and its seconds in common."""
    names = {number: name for name, number in PHASES.items()}
    for (begin, end, worker), together in groupby(rows, key=lambda row: row[:3]):
        done = list(together)
        _, _, _, _, partition, phase, epoch, trained = done[0]
        yield {
            "t": [row[3] for row in done], "w": worker, "p": partition, "ph": names[phase], "e": epoch, "n": trained,
            "a": begin, "z": end,
        }  # fmt: skip


def _merge(
    units: Units, counts: npt.NDArray[np.int64], seconds: npt.NDArray[np.float32], low: float, width: float
) -> tuple[Units, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """One unit in place of those of a worker that begin in the same pixel, of the trial that has most of their
    ``seconds``; how many it stands for, and the seconds of that trial."""
    if not len(units):
        return units, counts, seconds
    pixel = ((units["begin"] - low) / width).astype(np.int64)
    pixel -= pixel.min()
    cell = units["worker"].astype(np.int64) * (pixel.max() + 1) + pixel
    key = cell * (int(units["trial"].max()) + 1) + units["trial"]
    order = np.argsort(key)
    cell, key = cell[order], key[order]
    first, each = _starts(cell), _starts(key)
    merged = units[order[first]]
    merged["begin"] = np.minimum.reduceat(units["begin"][order], first)
    merged["end"] = np.maximum.reduceat(units["end"][order], first)
    spent = np.add.reduceat(seconds[order], each)
    # Of each pixel the first trial with the most.
    begins = _starts(cell[each])
    most = np.repeat(np.maximum.reduceat(spent, begins), np.diff(begins, append=len(each)))
    leading = np.flatnonzero(spent == most)
    leading = leading[_starts(cell[each[leading]])]
    merged["trial"] = units["trial"][order[each[leading]]]
    return merged, np.add.reduceat(counts[order], first), spent[leading]


def _starts(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where equal values that follow each other begin."""
    return np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
