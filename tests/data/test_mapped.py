"""Rows gathered from bytes as they lie: any width, wherever the row groups are."""

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
