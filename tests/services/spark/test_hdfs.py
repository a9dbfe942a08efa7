"""A search on Spark's executors with a store on HDFS, whose bits are those of a directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from tests.services.hdfs.conftest import folder as folder
from tests.services.hdfs.conftest import hdfs as hdfs
from tests.storage import test_object_rooms
from tests.storage.test_object_rooms import Stop, rows, search

from hopyard.backend import InlineBackend, SparkBackend
from hopyard.hopper.journal import read_records
from hopyard.storage import HDFSStore, LocalStore, open_store

# Executors cannot import these files.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(test_object_rooms)


def test_a_search_on_hdfs_goes_on_after_its_driver_to_the_bits_of_a_directory(
    folder: str, spark: Any, tmp_path: Path
) -> None:
    data = [{"features": x.tolist(), "label": int(y)} for x, y in zip(*rows().values(), strict=True)]
    frame = spark.createDataFrame(data, "features array<float>, label long")
    with pytest.raises(KeyboardInterrupt):
        search(HDFSStore(folder), backend=SparkBackend(num_workers=2), callbacks=[Stop()]).fit(frame)
    resumed = search(HDFSStore(folder), backend=SparkBackend(num_workers=2)).fit(frame)
    undisturbed = search(LocalStore(tmp_path), backend=InlineBackend()).fit(frame)
    sessions = [
        each for each in read_records(open_store(folder).runs.at(resumed.run_id)) if each["r"] == "session"
    ]
    assert len(sessions) == 2
    assert resumed.get_all_model_history() == undisturbed.get_all_model_history()
    for left, right in zip(resumed.torch().parameters(), undisturbed.torch().parameters(), strict=True):
        assert left.equal(right)
    traffic = resumed.run.traffic()  # Spark's driver tells where blocks are
    assert traffic.beside is not None
