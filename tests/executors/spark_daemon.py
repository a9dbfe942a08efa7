"""What executors of Spark fork Python workers off: as PySpark's own, but it has imported what the workers need.

Executors find it by ``spark.executorEnv.PYTHONPATH``. Where an import fails, a worker says so. It is forked itself, as
all processes that tests start (``tests/forked.py``), and so is what its workers start.
"""

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

EXECUTOR = "HOPYARD_TESTS_EXECUTOR"
"""The variable that tells a forked one, and its workers, which process is the executor."""


def is_forked() -> bool:
    """Run another one that is forked, if it can be, to its end; whether that was done."""
    if EXECUTOR in os.environ or "HOPYARD_TESTS_FORKS" not in os.environ:
        return False
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests import forked

    if forked.FRESH in os.environ:
        return False
    os.environ[EXECUTOR] = str(os.getppid())
    os.environ.pop("PYTHONUNBUFFERED", None)  # which is read at the start
    return forked.run(["-m", "spark_daemon", *sys.argv[1:]]) == 0


def main() -> None:
    from pyspark.daemon import manager

    for name in (
        "torch",
        "hopyard.training.unit",
        "hopyard.backend.agent",
        "hopyard.data.frames.spark_tasks",
    ):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.freeze()
    manager()


if __name__ == "__main__" and not is_forked():
    main()
