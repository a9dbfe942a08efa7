"""What Spark adds to a unit: tasks that do nothing, through SparkBackend and as bare jobs of one task.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value). Two executor processes with one slot
each on this machine; medians of tasks that take turns. The peer is the least that a pinned unit can cost on Spark:
``parallelize([0], 1).map(...).collect()``, a job of one task that runs a Python function. The goal is 150 ms.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

from hopyard.backend import SparkBackend

TASKS = 60
WARM_UP = 20  # Java compiles what runs often


def milliseconds(task: Callable[[], Any]) -> float:
    start = time.perf_counter()
    assert task() == 1
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    warnings.simplefilter("ignore")
    from pyspark import SparkConf, SparkContext

    os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"] = sys.executable, "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder:
        conf = SparkConf().set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
        conf.set("spark.local.dir", folder).set("spark.scheduler.maxRegisteredResourcesWaitingTime", "200s")
        context = SparkContext("local-cluster[2,1,1024]", "hopyard-bench", conf=conf)
        context.setLogLevel("ERROR")
        with SparkBackend(num_workers=2) as backend:
            tasks: dict[str, Callable[[], Any]] = {
                "ours": lambda: backend.submit(0, abs, -1).result(),
                "bare": lambda: context.parallelize([-1], 1).map(abs).collect()[0],
            }
            taken = [
                {name: milliseconds(task) for name, task in tasks.items()} for _ in range(WARM_UP + TASKS)
            ]
        context.stop()
    ours, bare = (median(turn[name] for turn in taken[WARM_UP:]) for name in ("ours", "bare"))
    figure = {"name": "backend spark: no-op unit", "value": round(ours, 1), "unit": "ms"}
    print(
        json.dumps(figure | {"peer": "a bare Spark job of one task", "ratio": round(ours / bare, 3)}),
        flush=True,
    )


if __name__ == "__main__":
    main()
