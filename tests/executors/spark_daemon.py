"""What executors of Spark fork Python workers off: as PySpark's own, but it has imported what the workers need.

Executors find it by ``spark.executorEnv.PYTHONPATH``. Where an import fails, a worker says so, as ever.
"""

import contextlib
import gc
import importlib

from pyspark.daemon import manager

for name in ("torch", "hopyard.training.unit", "hopyard.backend.agent", "hopyard.data.frames.spark_tasks"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)

if __name__ == "__main__":
    gc.freeze()
    manager()
