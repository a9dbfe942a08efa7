"""Datasets of Ray Data: packed by ``map_batches``, brought together by ``groupby``, written by ``map_groups``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns.convert_arrow import is_unknown
from hopyard.data.frames.gathering import (
    FILE,
    RESULT,
    loaded,
    numbered,
    pack_block,
    surveys_of,
    write_block,
)
from hopyard.data.preparing.exchange import Exchange, Frame, FrameSource, ShareReport, Types
from hopyard.data.preparing.files import Writing, Written, heard
from hopyard.data.preparing.packing import FIXED, Packing
from hopyard.data.preparing.survey import Survey

logger: logging.Logger = logging.getLogger(__name__)

_ROWS_FOR_TYPES = 64
_LEASE_SECONDS = 3.0
"""Longer than Ray keeps a CPU for the next task after one has ended."""


def source_of(data: Any) -> FrameSource:
    """The rows of a frame as a source."""
    return FrameSource(RayFrame(data))


class RayFrame(Frame):
    """A ``ray.data.Dataset``."""

    engine = "Ray Data"

    def __init__(self, data: Any) -> None:
        self.data = data

    def types(self) -> Types:
        schema = getattr(self.data.schema(), "base_schema", None)
        if not isinstance(schema, pa.Schema) or any(is_unknown(kind) for kind in schema.types):
            # Blocks are pandas frames, or the first row does not say it all.
            schema = self._first(_ROWS_FOR_TYPES).schema
        return {field.name: _plain_type(field.type) for field in schema}

    def head(self, names: Sequence[str], rows: int) -> pa.Table:
        return plain_tensors(self._first(rows)).select(list(names))

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        warn_if_full()
        for batch in self.data.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield plain_tensors(batch).select(list(names))

    def exchange(self, packings: Sequence[tuple[Frame, Types, Packing]], folder: Path | None) -> Exchange:
        packed = []
        for frame, types, packing in packings:
            assert isinstance(frame, RayFrame)
            packed.append(
                frame.data.map_batches(
                    _pack,
                    batch_format="pyarrow",
                    batch_size=None,
                    fn_kwargs={"packing": packing, "types": types},
                )
            )
        return _RayExchange(packed)

    def _first(self, rows: int) -> pa.Table:
        warn_if_full()
        batches = self.data.limit(rows).iter_batches(batch_size=None, batch_format="pyarrow")
        tables = list(batches)
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


class _RayExchange(Exchange):
    """Packed rows in Ray's object store."""

    def __init__(self, packed: list[Any]) -> None:
        self._packed = packed

    def survey(self, report: ShareReport) -> list[list[Survey]]:
        warn_if_full()
        self._packed = [data.materialize() for data in self._packed]
        found = []
        for data in self._packed:
            rows = data.map_batches(surveys_of, batch_format="pyarrow", batch_size=None)
            found.append(loaded(row[FIXED] for row in rows.take_all()))
        report(1.0)
        return found

    def write(self, writing: Writing, report: ShareReport) -> list[Written]:
        rows = self._packed[0].union(*self._packed[1:]) if len(self._packed) > 1 else self._packed[0]
        how = {"batch_format": "pyarrow", "fn_kwargs": {"writing": writing}}
        files = rows.map_batches(numbered, batch_size=None, **how).groupby(FILE, num_partitions=writing.count)
        done = heard(row[RESULT] for row in files.map_groups(write_block, **how).take_all())
        report(1.0)
        return done

    def close(self) -> None:
        self._packed = []


def warn_if_full() -> None:
    """Log why Ray Data, which reads by tasks, does nothing: Ray itself does not say it."""
    import ray

    available: Any = ray.available_resources  # which has no type
    deadline, never = time.monotonic() + _LEASE_SECONDS, threading.Event()
    while ray.is_initialized() and available().get("CPU", 0) < 1:
        if time.monotonic() >= deadline:
            logger.warning(
                "No CPU of the Ray cluster is free, so reading the dataset waits until one is. A RayBackend that runs "
                "holds one for each worker: let the search start it (no `with`), or give it fewer num_workers."
            )
            return
        never.wait(_LEASE_SECONDS / 20)


def _pack(block: pa.Table, packing: Packing, types: Mapping[str, pa.DataType]) -> pa.Table:
    return pack_block(lambda: plain_tensors(block), packing, types)


def plain_tensors(block: pa.Table) -> pa.Table:
    """The block with Ray's tensors as nested lists of fixed size."""
    for number, field in enumerate(block.schema):
        if _is_tensor(field.type):
            arrays = [_nested(chunk.to_numpy()) for chunk in block.column(number).chunks]
            plain = pa.chunked_array(arrays, _plain_type(field.type))
            block = block.set_column(number, field.name, plain)
    return block


def _is_tensor(kind: pa.DataType) -> bool:
    """Ray's own kind; Arrow's is read as it is."""
    return isinstance(kind, pa.ExtensionType) and hasattr(kind, "shape") and hasattr(kind, "value_type")


def _plain_type(kind: Any) -> pa.DataType:
    if not _is_tensor(kind):
        return kind
    plain = kind.value_type
    for size in reversed(kind.shape):
        plain = pa.list_(plain, size)
    return plain


def _nested(values: np.ndarray) -> pa.Array:
    values = np.ascontiguousarray(values)
    array = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
