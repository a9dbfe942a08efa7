"""A search on HDFS, whose bits are those of a directory; for the backends that have machines of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.storage.test_object_rooms import Stop, search

from hopyard.backend import InlineBackend
from hopyard.hopper.journal import read_records
from hopyard.storage import HDFSStore, LocalStore, open_store


def check_goes_on(folder: str, backend: Callable[[], Any], data: Any, tmp_path: Path) -> None:
    """Interrupt a search on HDFS, go on with it, and compare it with an undisturbed one here.

    Args:
        folder: URL of a folder on HDFS.
        backend: makes the backend of a driver.
    """
    with pytest.raises(KeyboardInterrupt):
        search(HDFSStore(folder), backend=backend(), callbacks=[Stop()]).fit(data)
    resumed = search(HDFSStore(folder), backend=backend()).fit(data)
    undisturbed = search(LocalStore(tmp_path), backend=InlineBackend()).fit(data)
    records = read_records(open_store(folder).runs.at(resumed.run_id))
    assert len([each for each in records if each["r"] == "session"]) == 2
    assert resumed.get_all_model_history() == undisturbed.get_all_model_history()
    for left, right in zip(resumed.torch().parameters(), undisturbed.torch().parameters(), strict=True):
        assert left.equal(right)
    assert resumed.run.traffic().beside is not None, "somebody tells where blocks are"
