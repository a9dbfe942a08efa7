"""Writes in chunks: the file is what single writes would have made."""

from __future__ import annotations

import tempfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.reading.chunks import CHUNK, ChunkWriter

PLACES = st.integers(0, 40) | st.integers(CHUNK - 40, CHUNK + 40) | st.integers(0, 34 * CHUNK)
LENGTHS = st.integers(0, 40) | st.integers(CHUNK - 40, CHUNK + 40) | st.integers(0, 3 * CHUNK)


@given(st.lists(st.tuples(PLACES, LENGTHS), max_size=12), st.integers(0, 40))
def test_what_was_written_last_is_there_and_zeros_between(writes, more):
    size = max((place + length for place, length in writes), default=0) + more
    expected = np.zeros(size, np.uint8)
    with tempfile.TemporaryFile() as file:
        writer = ChunkWriter(file.fileno())
        for number, (place, length) in enumerate(writes):
            writer.write(np.full(length, number + 1, np.uint8), place)
            expected[place : place + length] = number + 1
        writer.finish(size)
        found = np.fromfile(file, np.uint8)
    assert np.array_equal(found[:size], expected)
    assert not found[size:].any()
    assert len(found) == size or (size >= 16 * CHUNK and len(found) == -(-size // CHUNK) * CHUNK)


def test_interleaved_blocks_of_many_columns_arrive():
    blocks, each = 40, 3 * CHUNK // 2  # more than chunks are held open
    with tempfile.TemporaryFile() as file:
        writer = ChunkWriter(file.fileno())
        for first in range(0, each, each // 8):
            for block in range(blocks):
                writer.write(np.full(each // 8, block, np.uint8), block * each + first)
        writer.finish(blocks * each)
        found = np.fromfile(file, np.uint8)
    assert np.array_equal(
        found[: blocks * each].reshape(blocks, each), np.repeat(np.arange(blocks), each).reshape(blocks, each)
    )


def test_arrays_of_any_dtype_are_written_as_their_bytes():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with tempfile.TemporaryFile() as file:
        writer = ChunkWriter(file.fileno())
        writer.write(values, 64)
        writer.finish(112)
        assert np.array_equal(np.fromfile(file, np.float32)[16:], values.reshape(-1))
