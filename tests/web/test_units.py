"""The table of units: what a picture of some pixels shows of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.hopper.history import rules_broken_by
from hopyard.hopper.scheduler import Layout
from hopyard.web import units as units_module
from hopyard.web.units import MERGED, PHASES, UnitTable

Record = dict[str, Any]


@st.composite
def schedules(draw: st.DrawFn) -> list[Record]:
    """Units on a few workers, one after the other on each, some of several trials."""
    clocks = dict.fromkeys(range(draw(st.integers(1, 3))), 0.0)
    records = []
    for _ in range(draw(st.integers(0, 60))):
        worker = draw(st.sampled_from(sorted(clocks)))
        begin = clocks[worker] + draw(st.sampled_from([0.0, 0.0, 0.25, 3.0]))
        clocks[worker] = begin + draw(st.sampled_from([0.125, 0.5, 1.0, 8.0]))
        first = draw(st.integers(0, 9)) * 2
        records.append(
            {
                "t": [first, first + 1][: draw(st.integers(1, 2))], "w": worker, "p": draw(st.integers(0, 4)),
                "ph": draw(st.sampled_from(["train", "validate"])), "e": 0, "n": 0, "a": begin, "z": clocks[worker],
            }
        )  # fmt: skip
    return sorted(records, key=lambda record: record["z"])


def shown(records: list[Record], low: float, high: float, pixels: int) -> set[tuple[Any, ...]]:
    """The same picture, unit by unit."""
    each = [
        (r["a"], r["z"], r["w"], trial, r["p"], PHASES[r["ph"]])
        for r in records
        for trial in r["t"]
        if r["z"] >= low and r["a"] <= high
    ]
    width = (high - low) / pixels if high > low else 0.0
    if width == 0 or len(each) <= 4 * pixels:
        return set(each)
    cells: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    wide = []
    for unit in each:
        if unit[1] - unit[0] < width:
            cells.setdefault((unit[2], int((unit[0] - low) / width)), []).append(unit)
        else:
            wide.append(unit)
    merged = [
        (min(u[0] for u in found), max(u[1] for u in found), *found[0][2:5], MERGED)
        if len(found) > 1
        else found[0]
        for found in cells.values()
    ]
    return {*wide, *merged}


def nameless(units: set[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Units without trial and partition where they are merged: those of any of them."""
    return sorted((*unit[:3], *((-1, -1) if unit[5] == MERGED else unit[3:5]), unit[5]) for unit in units)


def of_their_trials(found: set[tuple[Any, ...]], records: list[Record], width: float, exact: bool) -> bool:
    """Whether each merged unit has the trial with most of the time of those that begin in its pixel: of a table in
    several pieces, one of theirs."""
    for begin, end, worker, trial, _, phase in found:
        if phase != MERGED:
            continue
        spent: dict[int, float] = {}
        for r in records:
            if r["w"] == worker and begin <= r["a"] and r["z"] <= end and r["z"] - r["a"] < width:
                spent.update({each: spent.get(each, 0.0) + r["z"] - r["a"] for each in r["t"]})
        if trial not in spent or (exact and spent[trial] != max(spent.values())):
            return False
    return True


@pytest.mark.parametrize("rows", [1 << 16, 5])
@given(
    records=schedules(),
    window=st.tuples(st.sampled_from([0.0, 1.0, 4.5]), st.sampled_from([0.0, 2.0, 16.0, 64.0])),
    pixels=st.integers(1, 9),
)
def test_a_picture_has_what_its_pixels_can_show(
    rows: int, records: list[Record], window: tuple[float, float], pixels: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units_module, "_ROWS", rows)
        table = UnitTable()
        for record in records:
            table.add(record)
        low, high = window[0], window[0] + window[1]
        found = {tuple(row) for row in table.between(low, high, pixels).tolist()}
    assert nameless(found) == nameless(shown(records, low, high, pixels))
    assert of_their_trials(found, records, window[1] / pixels, exact=rows > len(records) * 2)
    assert len(table) == sum(len(record["t"]) for record in records)
    assert table.end == max((record["z"] for record in records), default=0.0)
    for worker, busy in table.busy.items():
        assert busy == sum(r["z"] - r["a"] for r in records if r["w"] == worker)
    assert table.broken_rules(iter(records[:1]), Layout(5, 5)) == rules_broken_by(
        [*records, *records[:1]], Layout(5, 5)
    )


def test_too_many_units_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units_module, "MOST_CHECKED", 2)
    table = UnitTable()
    for number in range(3):
        assert table.broken_rules(iter(()), Layout(3, 0)) is not None
        table.add(
            {"t": [0], "w": 0, "p": number, "ph": "train", "e": 0, "n": number, "a": number, "z": number + 1}
        )
    assert table.broken_rules(iter(()), Layout(3, 0)) is None
    assert np.array_equal(table.between(0, 3, 100)["begin"], [0, 1, 2])
