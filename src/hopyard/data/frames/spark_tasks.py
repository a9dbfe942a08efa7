"""Functions for Spark's executors that say why where they cannot run: without Hopyard, or with another version.

Spark pickles a function of ours by its name, so an executor that lacks the package would fail before a line of it
runs, with a traceback of PySpark's own. What travels instead is a function inside a function, which is pickled by
value: it looks around first, and only then unpickles the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

import hopyard

ENVIRONMENT = (
    "Executors need the driver's Python with the same packages: set PYSPARK_PYTHON, before the session is made, to one "
    "that all machines have (with spark-submit also spark.pyspark.python), or send it along with spark.archives; "
    "modules of your own go with spark.sparkContext.addPyFile. docs/spark.md shows all."
)
CANNOT_RUN = "Hopyard cannot run on"

ArrowTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``mapInArrow``."""


class OnExecutors:
    """A task of ``mapInArrow`` that names the machine where it cannot run, and the reason."""

    def __init__(self, task: ArrowTask) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._task(batches)

    def __reduce__(self) -> tuple[Callable[[], ArrowTask], tuple[()]]:
        # Now, and by PySpark's own pickler: it notes which broadcast variables go along, and knows modules that the
        # user has registered with it.
        from pyspark import cloudpickle

        dumps: Any = cloudpickle.dumps  # which has no type
        return _guarded(dumps(self._task), unfitness(hopyard.__version__)), ()


def _guarded(task: bytes, unfit: Callable[..., str | None]) -> Callable[[], ArrowTask]:
    """A function that returns, on an executor, the task that is pickled here."""
    cannot, advice = CANNOT_RUN, ENVIRONMENT

    def unpickled() -> ArrowTask:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pickle
            import socket

            why = unfit()
            if why is None:
                try:
                    yield from pickle.loads(task)(batches)
                except ImportError as error:
                    why = unfit(error)
            if why is not None:
                raise RuntimeError(f"{cannot} {socket.gethostname()}: {why}. {advice}")

        return run

    return unpickled


def unfitness(version: str) -> Callable[..., str | None]:
    """The function that says, in an executor's Python, why Hopyard cannot run there; None: it can.

    It takes what an import raised later, if one did. Pickled by value, it can say so where there is no Hopyard.

    Args:
        version: of the driver's Hopyard.
    """

    def unfit(error: Any = None) -> str | None:
        import platform
        import sys

        python = f"{sys.executable}, Python {platform.python_version()}"
        if error is None:
            try:
                import hopyard
            except ImportError as missing:
                error = missing
            else:
                if hopyard.__version__ == version:
                    return None
                return f"{python} has hopyard {hopyard.__version__}, and the driver has hopyard {version}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            return f"the package {error.name.partition('.')[0]!r} cannot be imported by {python}: {error}"
        return f"{python} cannot import all that is needed: {error}"

    return unfit
