"""How fast executors prepare and convert a Spark DataFrame, beside what Petastorm's converter does with it.

    python benchmarks/prepare_spark.py [--rows 100000] [--pairs 5] [--master local-cluster[2,1,2048]]

W2: rows of an int64, an int32 and float32[768], read from the Parquet files that Spark writes of them, and the same
rows beside a column that Spark must compute. Prints JSON lines: name, value, unit, peer (same unit), ratio (median
of the pairs). ``prepare`` reads once, digests, shuffles all rows, splits, computes statistics and writes durable
files that are flat arrays. ``make_spark_converter`` writes such files in the order that the rows have. The peer is
the Spark work of ``petastorm.spark.make_spark_converter`` by the same calls (Petastorm itself does not import beside
the pyarrow that PySpark 4 needs): the frame as uncompressed Parquet with row groups of 32 MB, in the order that it
has, then a count of the rows. All on the same executors, in turn, each to a new folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _workloads import WORKLOADS, parquet_files
from hopyard.data import prepare
from hopyard.spark import SparkDatasetConverter, make_spark_converter
from hopyard.storage import LocalStore

ROOT = Path(__file__).resolve().parent.parent / "build" / "bench"
_ROW_GROUP_BYTES = 32 << 20  # Petastorm's default


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("hopyard-bench").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def petastorms(frame: Any, directory: Path) -> None:
    """As ``make_spark_converter`` of Petastorm 0.13 with its defaults."""
    writer = frame.write.option("compression", "uncompressed")
    writer.option("parquet.block.size", _ROW_GROUP_BYTES).parquet(str(directory))
    frame.sparkSession.read.parquet(str(directory)).count()


def converted(frame: Any, directory: Path) -> None:
    frame.sparkSession.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{directory}")
    make_spark_converter(frame)


def prepared(frame: Any, directory: Path) -> None:
    prepare(frame, LocalStore(directory))


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--master", default="local-cluster[2,1,2048]")
    options = parser.parse_args()
    source = parquet_files(WORKLOADS["W2"], ROOT, options.rows)
    spark = session(options.master)
    frames = {
        "of files": spark.read.parquet(str(source)),
        "with a computed column": spark.read.parquet(str(source)).selectExpr("*", "1 as one"),
    }
    actions = {"prepare": prepared, "make_spark_converter": converted, "Petastorm's converter": petastorms}
    for kind, frame in frames.items():
        taken: dict[str, list[float]] = {name: [] for name in actions}
        for number in range(options.pairs + 1):
            directory = Path(tempfile.mkdtemp(prefix="hopyard-bench-"))
            for name, action in actions.items():
                passed = seconds(lambda: action(frame, directory / "data"))  # noqa: B023
                shutil.rmtree(directory / "data")
                if number:  # the first pair starts Python workers and compiles
                    taken[name].append(passed)
            directory.rmdir()
        peers = taken.pop("Petastorm's converter")
        for name, ours in taken.items():
            ratio = statistics.median(peer / own for own, peer in zip(ours, peers, strict=True))
            line = {
                "name": f"{name} of a Spark DataFrame ({kind}), W2 ({options.rows} x float32[768]), "
                "against Petastorm's converter",
                "value": round(options.rows / statistics.median(ours), 1),
                "unit": "rows/s",
                "peer": round(options.rows / statistics.median(peers), 1),
                "ratio": round(ratio, 3),
                "pairs": options.pairs,
            }
            print(json.dumps(line), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
