"""Spark Connect: preparation, converters and predictions as with a session of the same process. One server for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.data import prepare
from hopyard.storage import LocalStore, MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

DAEMON = Path(__file__).parents[2] / "executors"
"""The folder of what Python workers are forked off: Connect's do not read `spark.executorEnv` within one process."""

SCRIPT = """
import os, sys, warnings
warnings.simplefilter("ignore")
os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
from pyspark.ml.functions import array_to_vector
from pyspark.sql import SparkSession
import hopyard
from hopyard.data import prepare
from hopyard.spark import SparkDatasetConverter, make_spark_converter

cache = SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file://" + os.path.abspath("cache")
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").config(*cache).getOrCreate()

frame = spark.range(80).selectExpr("id", "array(id, -id) pair")
assert "connect" in type(frame).__module__
print(prepare(frame.repartition(3), "prepared").fingerprint)

frame = spark.range(0, 10, 1, 2).selectExpr("id", "array(cast(id as double), 1D) as a")
frame = frame.select("id", array_to_vector("a").alias("v"))
converter = make_spark_converter(frame, compression_codec="zstd")
assert make_spark_converter(frame, compression_codec="zstd").cache_dir_url == converter.cache_dir_url
assert make_spark_converter(frame).cache_dir_url != converter.cache_dir_url
with converter.make_torch_dataloader(batch_size=10, shuffle=False) as loader:
    batch = next(iter(loader))
assert batch["v"][:, 0].tolist() == batch["id"].tolist() == list(range(10)), batch
converter.delete()
assert len(os.listdir("cache")) == 1

frame = spark.createDataFrame([([1.0, 2.0, 3.0, 4.0],), ([0.0, 0.0, 0.0, 0.0],)], "features array<float>")
model = hopyard.load_model("model").set_output_columns(["scores"])
for _ in range(2):
    print([row["scores"] for row in model.transform(frame).collect()])
spark.stop()
"""


def test_all_that_takes_frames_takes_those_of_connect(
    spark: Any, search: Callable[..., Any], make_rows: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("grpc_status")
    model = search(MemoryStore(), num_models=1, num_epochs=1).fit(make_rows())
    model.save(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(DAEMON)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    fingerprint, *found = done.stdout.splitlines()
    here = prepare(spark.range(80).selectExpr("id", "array(id, -id) pair"), LocalStore(tmp_path / "here"))
    assert fingerprint == here.fingerprint
    expected = model.predict(np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.float32))
    first, second = map(json.loads, found)
    assert first == second
    assert np.allclose(first, expected, atol=1e-6)  # some CPUs compute two rows otherwise than each alone
    assert not list((tmp_path / "cache").iterdir())  # what nobody could find again is deleted at exit
