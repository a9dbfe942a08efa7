"""What other machines have written is waited for, and named if it does not come."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hopyard.errors import StorageError
from hopyard.storage import LocalStore
from hopyard.storage.visible import wait_for_objects


def test_what_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("whole", b"row")
    store.put("short", b"row")
    with pytest.raises(StorageError) as caught:
        wait_for_objects(store, {"whole": 3, "short": 4, "missing": 1}, "Executors", seconds=0)
    assert str(caught.value) == (
        f"Executors wrote 3 files into {store.url}, but 2 of them are not there for this machine: short, missing. It "
        "must be a place that all machines share: a bucket, or a directory that is mounted under the same path "
        "everywhere, such as file:///dbfs/... or /Volumes/..."
    )


def test_what_comes_later_is_waited_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    later = threading.Timer(0.2, lambda: store.put("late", b"row"))
    later.start()
    wait_for_objects(store, {"late": 3}, "Executors")
    later.join()
