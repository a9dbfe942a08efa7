"""Rows of Spark DataFrames on their way into a dataset: through a folder that all executors see, or through Spark."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopyard.data.frames.spark_progress import run_watched
from hopyard.data.frames.spark_rows import SparkRows, answers
from hopyard.data.frames.spilling import Spilled, spill, write_spilled
from hopyard.data.preparing.exchange import Exchange, ShareReport
from hopyard.data.preparing.files import HALF, Writing, Written, heard, told
from hopyard.data.preparing.packing import FIXED, ORDER, PART, Packing
from hopyard.data.preparing.survey import Survey
from hopyard.errors import StorageError
from hopyard.storage.temporary import temporary_name

_FILE = "hopyard_file"
_TOUCH_SECONDS = 600.0


class SpilledExchange(Exchange):
    """Packed rows in a folder of their own, which every executor sees as it sees the store.

    Args:
        rows: of each frame, and how they are packed.
        folder: in which that folder is made. It is the driver's; if that dies, the store sweeps it.
    """

    def __init__(self, rows: Sequence[tuple[SparkRows, Packing]], folder: Path) -> None:
        self._rows = rows
        self._folder = folder / temporary_name()
        self._folder.mkdir()
        self._names: list[str] = []
        self._closed = threading.Event()
        threading.Thread(target=_touch, args=(self._folder, self._closed), daemon=True).start()

    def survey(self, report: ShareReport) -> list[list[Survey]]:
        for left in self._folder.iterdir():  # by an attempt that found no space
            left.unlink()
        self._names, found = [], []
        for rows, packing in self._rows:
            reports = rows.answers(_Spiller(packing, self._folder), "reading rows", report)
            spilled: list[Spilled] = [pickle.loads(answer) for answer in reports]
            for task in spilled:
                if isinstance(task.survey.error, StorageError):
                    raise task.survey.error
            self._names += [task.name for task in spilled]
            found.append([task.survey for task in spilled])
        return found

    def write(self, writing: Writing, report: ShareReport) -> list[Written]:
        session = self._rows[0][0].frame.sparkSession
        files = session.range(0, writing.count, 1, writing.count)  # a task for each
        return heard(
            answers(files, _SpilledWriter(writing, self._folder, self._names), "writing files", report)
        )

    def close(self) -> None:
        self._closed.set()
        shutil.rmtree(self._folder, ignore_errors=True)


def _touch(folder: Path, closed: threading.Event) -> None:
    """Now and then until it is closed: stores sweep what nobody has touched for a day, and this may take longer."""
    while not closed.wait(_TOUCH_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(folder)
            os.utime(folder.parent)


@dataclass(frozen=True)
class _Spiller:
    packing: Packing
    folder: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        yield pickle.dumps(spill(self.packing, self.folder, batches))


@dataclass(frozen=True)
class _SpilledWriter:
    writing: Writing
    folder: Path
    names: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        for numbers in batches:
            for number in numbers[0].to_pylist():
                yield told(partial(write_spilled, self.writing, self.folder, self.names, number))


class KeptExchange(Exchange):
    """Packed rows that Spark keeps in memory, on disk where they do not fit, and then shuffles."""

    def __init__(self, rows: Sequence[tuple[SparkRows, Packing]]) -> None:
        from pyspark.storagelevel import StorageLevel

        self._packed = [
            each.mapped(packing.pack, _ddl(packing.layout.arrow)).persist(StorageLevel.MEMORY_AND_DISK)
            for each, packing in rows
        ]

    def survey(self, report: ShareReport) -> list[list[Survey]]:
        found = []
        for frame in self._packed:
            rows = run_watched(frame.sparkSession, "reading rows", report, _collected(frame))
            found.append([pickle.loads(row[FIXED]) for row in rows])
        return found

    def write(self, writing: Writing, report: ShareReport) -> list[Written]:
        rows = self._packed[0]
        for other in self._packed[1:]:
            rows = rows.unionAll(other)
        numbered = rows.where(f"{ORDER} >= 0").selectExpr("*", f"{_file_number(writing)} as {_FILE}")
        if hasattr(numbered, "repartitionById"):  # Spark 4.1: task i has the rows of file i, and no others
            grouped = numbered.repartitionById(writing.count, _FILE)
        else:
            grouped = numbered.repartition(writing.count, _FILE).sortWithinPartitions(_FILE)
        return heard(answers(grouped, _Writer(writing), "writing files", report))

    def close(self) -> None:
        for frame in self._packed:
            frame.unpersist()


def _collected(frame: Any) -> Callable[[], list[Any]]:
    return lambda: list(frame.where(f"{ORDER} < 0").select(FIXED).collect())


class _Writer:
    """A task: rows of one file after those of another."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        number, held = -1, list[pa.RecordBatch]()
        for batch in batches:
            for part in _parts(batch):
                following = part[_FILE][0].as_py()
                if held and following != number:
                    yield self._write(number, held)
                    held = []
                number = following
                held.append(part)
        if held:
            yield self._write(number, held)

    def _write(self, number: int, held: list[pa.RecordBatch]) -> bytes:
        rows = pa.Table.from_batches(held)
        held.clear()
        return told(partial(self._writing.write, number, rows))


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of rows of one file."""
    numbers = batch[_FILE].to_numpy()
    start = 0
    while start < len(numbers):
        stop = start + int((numbers[start:] == numbers[start]).argmin() or len(numbers) - start)
        yield batch.slice(start, stop - start)
        start = stop


def _file_number(writing: Writing) -> str:
    """``Writing.numbers`` in SQL."""
    train, val = writing.files
    place = f"shiftright({ORDER}, {HALF})"
    in_train = f"shiftright({place} * {train.count}L, {HALF})"
    in_val = f"{train.count}L + shiftright({place} * {val.count}L, {HALF})"
    return f"cast(if({PART} < {writing.cut}, {in_val}, {in_train}) as int)"


def _ddl(schema: pa.Schema) -> str:
    kinds = {pa.int64(): "bigint", pa.int32(): "int", pa.binary(): "binary"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in schema)
