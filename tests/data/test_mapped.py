"""Rows gathered from bytes as they lie: any width, wherever the row groups are."""

from itertools import pairwise

import numpy as np
import pytest

from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.mapped import Bodies, MappedColumn

GROUPS = (5, 1, 9)


@pytest.mark.parametrize("width", [1, 63, 64, 65, 1 << 10, (1 << 10) + 1, 1 << 13, (1 << 13) + 1])
@pytest.mark.parametrize("gap", [2, 2.5], ids=["one table", "two tables"])
def test_rows_of_any_width_are_those_that_lie_there(width, gap):
    content = np.frombuffer(np.random.default_rng(width).bytes(24 * width + 1), np.uint8)
    starts = np.array([1, 1 + 6 * width, 1 + int((7 + gap) * width)])
    first_rows = np.cumsum([0, *GROUPS[:-1]])
    bodies = Bodies(content, starts, first_rows, np.array(GROUPS))
    column = MappedColumn(("x",), np.dtype(np.uint8), (width,), np.dtype((np.void, width)), bodies, True)
    rows = np.random.default_rng(0).integers(0, sum(GROUPS), 40)
    groups = np.searchsorted(first_rows, rows, "right") - 1
    begin = starts[groups] + (rows - first_rows[groups]) * width
    expected = content[begin[:, None] + np.arange(width)]
    assert np.array_equal(column.gather(rows + column.shift[groups], groups, Buffers()), expected)


@pytest.mark.parametrize("groups", [2, 16, 17, 40])
def test_rows_that_lie_at_many_distances_are_gathered_and_seen_as_they_are(groups):
    """Bodies at as many remainders of the width as there are groups: up to 16 tables, and without any from there."""
    width, counts = 50, np.arange(groups) % 3 + 1
    firsts = np.append(0, np.cumsum(counts))
    rows = np.random.default_rng(0).integers(0, 256, (firsts[-1], width), np.uint8)
    content, starts = bytearray(), []
    for group, (first, last) in enumerate(pairwise(firsts.tolist())):
        content += bytes((group - len(content)) % width)
        starts.append(len(content))
        content += rows[first:last].tobytes()
    bodies = Bodies(np.frombuffer(content, np.uint8), np.array(starts), firsts[:-1], counts)
    column = MappedColumn(("x",), np.dtype("u1"), (width,), np.dtype((np.void, width)), bodies, True)
    group_of = np.repeat(np.arange(groups), counts)
    wanted = np.random.default_rng(1).permutation(len(rows))
    places = wanted + column.shift[group_of[wanted]]
    assert (column.gather(places, group_of[wanted], Buffers()) == rows[wanted]).all()
    for first, last in pairwise(firsts.tolist()):
        some = np.arange(first, last)
        seen = column.look(some + column.shift[group_of[some]], group_of[some])
        assert seen is not None
        assert (seen == rows[first:last]).all()
