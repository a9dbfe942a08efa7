"""A search on Spark's executors with a store on HDFS, whose bits are those of a directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
from tests.services.hdfs.conftest import folder as folder
from tests.services.hdfs.conftest import hdfs as hdfs
from tests.services.hdfs.searching import check_goes_on
from tests.storage import test_object_rooms
from tests.storage.test_object_rooms import rows

from hopyard.backend import SparkBackend

# Executors cannot import these files.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(test_object_rooms)


def test_a_search_on_hdfs_goes_on_after_its_driver_to_the_bits_of_a_directory(
    folder: str, spark: Any, tmp_path: Path
) -> None:
    data = [{"features": x.tolist(), "label": int(y)} for x, y in zip(*rows().values(), strict=True)]
    frame = spark.createDataFrame(data, "features array<float>, label long")
    # Spark's driver tells where blocks are.
    check_goes_on(folder, lambda: SparkBackend(num_workers=2), frame, tmp_path)
