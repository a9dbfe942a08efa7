"""Spark's messages about failed tasks, in one sentence and with the next step."""

from __future__ import annotations

import re
from typing import Any

from hopyard import errors
from hopyard.data.frames.spark_tasks import CANNOT_RUN, ENVIRONMENT
from hopyard.errors import (
    HopyardError,
    StorageError,
    StorageFullError,
    WorkerError,
    WorkerLostError,
    WorkerMismatchError,
)

LAST_FAILURE = re.compile(
    r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>\S+) executor (?P<id>\S+)\): (?P<why>.*)", re.S
)
"""Pattern of the last failure in the message of a job that was given up."""

_UNFIT = (
    "Cannot run program",
    "Error from python worker",
    "PYTHON_VERSION_MISMATCH",
    "No module named 'pyspark",
)
_FULL = ("No space left on device", "Disk quota exceeded")
_LOST = ("ExecutorLostFailure", "FetchFailed", "Python worker exited unexpectedly", "OutOfMemoryError")
_GIVEN_UP = "Job aborted due to stage failure: "
_TRACEBACK = "Traceback (most recent call last):"
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*\Z")
_OURS = re.compile(rf"RuntimeError: {CANNOT_RUN} (?P<host>\S+): (?P<why>.*)\. {re.escape(ENVIRONMENT)}", re.S)
_MISSING = re.compile(r"^ModuleNotFoundError: No module named \S+\Z", re.M)
_RAISED = re.compile(r"^hopyard\.errors\.(?P<kind>\w+): (?P<message>.*)", re.M | re.S)


def executor_name(executor: str, host: str) -> str:
    """Name of an executor in messages; in local mode its id in Spark is ``"driver"``."""
    return "the driver's own executor" if executor == "driver" else f"executor {executor} on {host}"


def is_unfit(why: str) -> bool:
    """Whether a task failed because the executor's Python cannot run it."""
    return any(sign in why for sign in _UNFIT)


def is_full(why: str) -> bool:
    """Whether a task failed because a disk is full."""
    return any(sign in why for sign in _FULL)


def without_stack(text: str) -> str:
    """The lines of a Java exception before its stack."""
    lines = text.partition("\n\tat ")[0].partition("Driver stacktrace:")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip())


def explained(error: Exception, doing: str, place: str | None = None) -> HopyardError | None:
    """A job's failure in words of ours; None: Spark's own are about the rows themselves, and say it best.

    Args:
        doing: purpose of the job, as in "Spark gave up reading rows".
        place: the executor on which a task failed, if it is known.
    """
    said = _said(error)
    found = LAST_FAILURE.search(said)
    if found is not None:
        place = executor_name(found["id"], found["host"])
    if (unfit := _unfit(said)) is not None:
        host, why = unfit
        return WorkerMismatchError(
            f"Spark gave up {doing}: {place or f'an executor{host}'} cannot run it: {why}. {ENVIRONMENT}"
        )
    place = place or "an executor"
    if raised := _RAISED.search(said.rpartition(_TRACEBACK)[2]):
        kind = getattr(errors, raised["kind"], errors.HopyardError)
        if issubclass(kind, StorageError):
            return kind(f"{raised['message'].strip()} (On {place}, {doing}.)")
    if is_full(said):
        return StorageFullError(
            f"Spark gave up {doing}, because there was no space on {place}: {_why(said)}. Make space there; where "
            "Spark's own folders are, SPARK_LOCAL_DIRS or spark.local.dir says."
        )
    if _GIVEN_UP not in said:
        return None
    if any(sign in said for sign in _LOST):
        return WorkerLostError(
            f"Spark gave up {doing}, because {place} was lost again and again, the last time so: {_why(said)}. Its log "
            "has more. If its memory ran out, give executors more (spark.executor.memory; "
            "spark.executor.memoryOverhead is for Python), or the frame more partitions; then run it again."
        )
    return WorkerError(
        f"Spark gave up {doing}, because a task failed on {place}: {_why(said)}. Spark's logs have more; mend that, "
        "and run it again: nothing was half-written."
    )


def _said(error: Exception) -> str:
    java: Any = getattr(error, "java_exception", None)  # of exceptions that PySpark has no class for
    said = str(error) if java is None else str(java.getMessage())
    return _STATE.sub("", said.partition("\n\nJVM stacktrace:\n")[0]).rstrip()


def _why(said: str) -> str:
    found = LAST_FAILURE.search(said)
    if found is None and _TRACEBACK in said:
        return said.splitlines()[-1].rstrip(".")
    return without_stack(found["why"] if found else said.removeprefix(_GIVEN_UP)).rstrip(".")


def _unfit(said: str) -> tuple[str, str] | None:
    """(host, if it is known, and why the executor's Python cannot run the task); None if it is something else."""
    if found := _OURS.search(said):
        return f" on {found['host']}", found["why"]
    return ("", _why(said)) if is_unfit(said) or _MISSING.search(said) else None
