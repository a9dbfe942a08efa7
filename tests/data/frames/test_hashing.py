"""Hashes of rows: of their bytes alone, whatever batch they come in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.frames.hashing import row_hashes
from hopyard.data.ragged import Ragged


@given(
    rows=st.lists(st.tuples(st.binary(max_size=9), st.binary(min_size=5, max_size=5)), min_size=1, max_size=8)
)
def test_a_row_has_the_same_hash_in_every_batch(rows):
    def hashes(some):
        texts = Ragged.from_rows([np.frombuffer(text, np.uint8) for text, _ in some], np.uint8)
        fixed = np.array([np.frombuffer(row, np.uint8) for _, row in some])
        return np.stack(row_hashes(len(some), [fixed, texts]), axis=1).tolist()

    assert hashes(rows) == [hashes([row])[0] for row in rows]


def test_what_differs_in_one_bit_or_place_or_length_has_another_hash():
    def of(*texts):
        parts = [Ragged.from_rows([np.frombuffer(text, np.uint8)], np.uint8) for text in texts]
        return tuple(int(each[0]) for each in row_hashes(1, parts))

    rows = [
        (b"", b""),
        (b"\0", b""),
        (b"", b"\0"),
        (b"\0\0", b""),
        (b"ab", b"c"),
        (b"a", b"bc"),
        (b"ba", b"c"),
    ]
    rows += [(bytes([1 << bit]), b"") for bit in range(8)]
    assert len({of(*row)[0] for row in rows}) == len({of(*row)[1] for row in rows}) == len(rows)


@pytest.mark.parametrize("width", [1, 4, 3072])
def test_hashes_are_spread_evenly(width):
    rows = np.zeros((4096, width + 2), np.uint8)
    rows[:, :2] = np.arange(4096, dtype=np.uint16)[:, None].view(np.uint8)
    for hashes in row_hashes(4096, [rows]):
        counts = np.bincount((hashes >> np.uint64(60)).astype(np.int64), minlength=16)
        assert counts.min() > 190
        assert counts.max() < 330


def test_hashes_are_pinned():
    """Datasets of frames are ordered by them: a release that changed them would prepare all again."""
    rows = [np.arange(6, dtype=np.uint8).reshape(2, 3), Ragged.from_rows([[1], [2, 3]], np.uint8)]
    first, second = row_hashes(2, rows)
    assert [f"{value:016x}" for value in (*first.tolist(), *second.tolist())] == [
        "21721061eb8862a6",
        "0784554d7e6257a5",
        "652547fde454d495",
        "dcb6f8599d3fe566",
    ]
