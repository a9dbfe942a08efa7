"""What is small wherever Hopyard wrote it is never read into memory whatever its size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hopyard.errors import CorruptError, NotFoundError
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.format import FORMAT_NAME, claim_format, read_format
from hopyard.storage.small import get_small, get_whole, read_small

RULE = "the largest that Hopyard writes there have 10: it was damaged, or is not Hopyard's. Restore it from a copy."


@pytest.mark.parametrize("store", [LocalStore, lambda path: MemoryStore()], ids=["files", "memory"])
def test_small_objects_are_read_and_others_refused(store: Callable[[Path], Store], tmp_path: Path) -> None:
    made = store(tmp_path)
    made.put("small", b"0123456789")
    made.put("large", b"0123456789a")
    made.put("empty", b"")
    assert get_small(made, "small", 10) == b"0123456789"
    assert get_small(made, "empty", 10) == b""
    for size in (None, 11):
        with pytest.raises(CorruptError, match=RULE) as caught:
            get_small(made, "large", 10, size)
        assert "large has 11 bytes" in str(caught.value)
    with pytest.raises(NotFoundError):
        get_small(made, "none", 10)


def test_a_file_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    claim_format(store, "stockroom")
    os.truncate(tmp_path / FORMAT_NAME, 1 << 40)
    with pytest.raises(CorruptError, match=f"FORMAT has {1 << 40} bytes, and the largest"):
        read_format(store, "stockroom")
    with pytest.raises(CorruptError, match=f"has {1 << 40} bytes, and the largest"):
        read_small(tmp_path / FORMAT_NAME)
    with pytest.raises(CorruptError, match=f"has {1 << 40} bytes, which do not fit into memory"):
        get_whole(store, FORMAT_NAME)
