"""Packed rows in files of one folder that all workers see, on their way from readers to writers.

A worker appends the rows that it reads to a file of its own, in runs: record batches that are sorted by the first
bits of the rows' order, and large, so that there are few. The writer of a file of the dataset maps all runs and takes
its rows, which are in one piece of every run. So rows never go through the engine, which would copy them; there
is as much space taken as by the dataset.
"""

from __future__ import annotations

import errno
import socket
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from hopyard.data.preparing.files import Writing, Written
from hopyard.data.preparing.packing import ORDER, PART, Packing
from hopyard.data.preparing.survey import ORDER_BITS, Survey
from hopyard.errors import StorageError, StorageFullError

_RUN_BYTES = 128 << 20
"""Bytes of a run, at most, unless a single batch is larger. A worker holds two runs for a moment."""

_OTHER_BITS = ORDER_BITS - 16  # by 16 bits, rows are sorted in two passes over them; by all, in twenty or so


@dataclass(frozen=True)
class Spilled:
    """A worker's report on the rows that it has spilled.

    Attributes:
        name: of the file in the folder.
        survey: of its rows.
    """

    name: str
    survey: Survey


def spill(packing: Packing, folder: Path, batches: Iterator[pa.RecordBatch | pa.Table]) -> Spilled:
    """Pack rows into a new file of the folder."""
    name = f"{uuid.uuid4().hex}.arrow"  # a task that is tried again, or runs twice, makes another file
    survey = packing.new_survey()
    if not folder.is_dir():
        survey.error = StorageError(
            f"{socket.gethostname()} does not see {folder}, where the driver made it for the rows on their way into "
            "the dataset. Every executor must see the store under the same address: mount it there, or use a store "
            "that all machines reach."
        )
        return Spilled(name, survey)
    try:
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, packing.layout.arrow) as file:
            for run in _runs(packing.rows(batches, survey)):
                file.write_batch(run)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        survey.error = StorageFullError(
            f"No space is left in {folder} for the rows on their way into the dataset; they take as much as the "
            "dataset itself until it is written. Make space there and run it again; nothing was half-written."
        )
    return Spilled(name, survey)


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > _RUN_BYTES:
            yield _sorted(held)
            size = 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield _sorted(held)


def _sorted(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows of the batches as one, which are let go."""
    rows = pa.concat_batches(held)
    held.clear()
    first_bits = (rows[ORDER].to_numpy() >> _OTHER_BITS).astype(np.uint16)
    return rows.take(pa.array(np.argsort(first_bits, kind="stable")))


def write_spilled(writing: Writing, folder: Path, names: Sequence[str], number: int) -> Written | None:
    """Write file ``number`` of a dataset, of its rows in all spilled files; None if it has none."""
    held: list[pa.RecordBatch] = []
    for name in names:
        with pa.memory_map(str(folder / name)) as source, pa.ipc.open_file(source) as file:
            for run in range(file.num_record_batches):
                held.extend(_rows_of(writing, number, file.get_batch(run)))
    return writing.write(number, pa.Table.from_batches(held)) if held else None


def _rows_of(writing: Writing, number: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    first, end = writing.orders(number)
    order = rows[ORDER].to_numpy()
    start = bisect_left(order, first >> _OTHER_BITS, key=_first_bits)
    stop = bisect_right(order, (end - 1) >> _OTHER_BITS, key=_first_bits)
    order, rows = order[start:stop], rows.slice(start, stop - start)
    of_split = (rows[PART].to_numpy() < writing.cut) == writing.is_val(number)
    chosen = rows.filter(pa.array(of_split & (order >= first) & (order < end)))
    if chosen.num_rows:
        yield chosen


def _first_bits(order: int) -> int:
    return order >> _OTHER_BITS
