"""Rows of a DataFrame as the executors read them, and tasks over them that answer the driver."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from hopyard.data.frames.spark_parquet import ParquetScan
from hopyard.data.frames.spark_progress import run_watched
from hopyard.data.frames.spark_tasks import ArrowTask, OnExecutors
from hopyard.data.preparing.exchange import ShareReport

Answering: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[bytes]]
"""A task over the batches of a partition, which gives its answers to the driver."""

_RESULT = "hopyard_result"


def answers(frame: Any, task: Answering, what: str, report: ShareReport) -> list[bytes]:
    """Run a task over each partition of a frame; returns all answers, in the order of the partitions.

    Args:
        what: is done, as messages call it.

    Raises:
        Errors of ``run_watched``.
    """
    results = mapped(frame, _Answers(task), f"{_RESULT} binary")
    return [row[_RESULT] for row in run_watched(frame.sparkSession, what, report, results.collect)]


def mapped(frame: Any, task: ArrowTask, schema: str) -> Any:
    """The frame of the rows that a task makes of each partition.

    Args:
        schema: of these rows, in Spark's words.
    """
    with warnings.catch_warnings():  # rows do not pass through pandas here
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        return frame.mapInArrow(OnExecutors(task), schema)


@dataclass(frozen=True)
class _Answers:
    task: Answering

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for answer in self.task(batches):
            yield pa.RecordBatch.from_pydict({_RESULT: [answer]}, pa.schema([(_RESULT, pa.binary())]))


@dataclass(frozen=True)
class SparkRows:
    """The rows of one frame.

    Attributes:
        frame: has them, or with a ``scan`` the number of a part of it in every row.
    """

    frame: Any
    scan: ParquetScan | None = None

    def answers(self, task: Answering, what: str, report: ShareReport) -> list[bytes]:
        """Answers of a task over the rows of each partition; see :func:`answers`."""
        return answers(self.frame, _Reading(task, self.scan), what, report)

    def mapped(self, task: ArrowTask, schema: str) -> Any:
        """The frame of the rows that a task makes of those of each partition; see :func:`mapped`."""
        return mapped(self.frame, _Reading(task, self.scan), schema)


@dataclass(frozen=True)
class _Reading:
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]
    scan: ParquetScan | None

    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        if self.scan is None:
            return self.task(given)
        scan = self.scan
        return self.task(rows for parts in given for part in parts[0].to_pylist() for rows in scan.read(part))
