import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.storage import files


def written(path: Path, pieces: list[bytes | memoryview]) -> bytes:
    with path.open("wb", buffering=0) as file:
        files.write_pieces(file.fileno(), pieces)
    return path.read_bytes()


@given(
    pieces=st.lists(st.binary(max_size=20), max_size=30), most=st.integers(1, 7), longest=st.integers(1, 50)
)
def test_pieces_are_whole_however_little_a_call_writes(
    pieces: list[bytes], most: int, longest: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def short(fd: int, parts: list[memoryview]) -> int:
        assert 0 < len(parts) <= most
        return os.write(fd, b"".join(parts)[:longest])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_MOST_PIECES", most)
        patch.setattr(files.os, "writev", short)
        assert written(tmp_path_factory.mktemp("pieces") / "file", list(pieces)) == b"".join(pieces)


def test_more_pieces_than_one_call_takes_and_arrays_of_any_dtype(tmp_path: Path) -> None:
    arrays = [np.full((1, 2), number, np.int16) for number in range(3000)]
    pieces = [np.zeros((2, 0), np.int16).data, *(array.data for array in arrays)]
    assert written(tmp_path / "file", pieces) == b"".join(array.tobytes() for array in arrays)
