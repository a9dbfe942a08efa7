"""DataFrames of Dask: partitions are packed, brought together by Dask's shuffle, and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopyard.data.columns.columns import check_names, empty_data
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
from hopyard.errors import UnsupportedTypeError

_ROWS_FOR_TYPES = 64


def source_of(data: Any) -> FrameSource:
    """The rows of a frame as a source."""
    return FrameSource(DaskFrame(data))


class DaskFrame(Frame):
    """A ``dask.dataframe.DataFrame``. As in pandas, NaN in a column of floats is null."""

    engine = "Dask"

    def __init__(self, data: Any) -> None:
        self.data = data

    def types(self) -> Types:
        """Types of the frame's columns; of columns of objects, by their first rows."""
        head = self.data.head(_ROWS_FOR_TYPES, npartitions=-1)
        if not len(head):
            raise empty_data()
        return {name: _type(name, head[name]) for name in check_names(head.columns)}

    def head(self, names: Sequence[str], rows: int) -> pa.Table:
        return _table(self.data[list(names)].head(rows, npartitions=-1))

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        for partition in self.data[list(names)].to_delayed():
            yield _table(partition.compute())

    def exchange(self, packings: Sequence[tuple[Frame, Types, Packing]], folder: Path | None) -> Exchange:
        packed = []
        for frame, types, packing in packings:
            assert isinstance(frame, DaskFrame)
            meta = _pandas(packing.layout.arrow.empty_table())
            packed.append(frame.data[list(types)].map_partitions(_pack, packing, types, meta=meta))
        return _DaskExchange(packed)


class _DaskExchange(Exchange):
    """Packed rows in the memory of Dask's workers."""

    def __init__(self, packed: list[Any]) -> None:
        self._packed = packed

    def survey(self, report: ShareReport) -> list[list[Survey]]:
        with _watched(report):
            self._packed = [frame.persist() for frame in self._packed]
        meta = _pandas(pa.schema([(FIXED, pa.binary())]).empty_table())
        found = [
            loaded(frame.map_partitions(_on_tables(surveys_of), meta=meta).compute()[FIXED])
            for frame in self._packed
        ]
        report(1.0)
        return found

    def write(self, writing: Writing, report: ShareReport) -> list[Written]:
        from dask import dataframe

        concat: Any = dataframe.concat
        rows = concat(self._packed) if len(self._packed) > 1 else self._packed[0]
        schema = writing.layout.arrow.append(pa.field(FILE, pa.int64()))
        placed = rows.map_partitions(_on_tables(numbered), writing, meta=_pandas(schema.empty_table()))
        grouped = placed.shuffle(on=FILE, npartitions=writing.count, ignore_index=True)
        meta = _pandas(pa.schema([(RESULT, pa.binary())]).empty_table())
        with _watched(report):
            done = grouped.map_partitions(_on_tables(write_block), writing, meta=meta).compute()
        report(1.0)
        return heard(done[RESULT])

    def close(self) -> None:
        self._packed = []


def _watched(report: ShareReport) -> Any:
    """Inside, ``report`` is told the share of the tasks that Dask's own schedulers have done; that of a cluster tells
    its dashboard."""
    from dask import callbacks

    watched_by: Any = callbacks.Callback  # which has no type

    def told(key: Any, result: Any, tasks: Any, state: Mapping[str, Any], worker: Any) -> None:
        done = len(state["finished"])
        report(done / (done + sum(len(state[left]) for left in ("ready", "waiting", "running"))))

    return watched_by(posttask=told)


class _on_tables:  # noqa: N801, it is used as a function
    """A function of Arrow tables as one of pandas frames."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, frame: Any, *arguments: Any) -> Any:
        return _pandas(self._function(pa.Table.from_pandas(frame, preserve_index=False), *arguments))


def _pack(frame: Any, packing: Packing, types: Mapping[str, pa.DataType]) -> Any:
    return _pandas(pack_block(lambda: _table(frame), packing, types))


def _table(frame: Any) -> pa.Table:
    return pa.table({name: _array(name, frame[name]) for name in frame.columns})


def _array(name: str, series: Any) -> pa.Array | pa.ChunkedArray:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UnsupportedTypeError(
            f"Column {name!r} holds what Arrow cannot: {error}. Convert it."
        ) from error


def _type(name: str, series: Any) -> pa.DataType | str:
    try:
        return _array(name, series).type
    except UnsupportedTypeError as error:
        return str(error.__cause__)


def _pandas(table: pa.Table) -> Any:
    """The table as a pandas frame of Arrow columns, so that bytes stay where they are."""
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype)
