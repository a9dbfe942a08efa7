"""Sources that come a batch at a time: rows of datasets and iterables, and readers of Arrow batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from hopyard.data.columns.columns import ConvertedColumns, check_names, empty_data
from hopyard.data.columns.convert import convert_columns, from_rows
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.columns.convert_json import json_texts
from hopyard.data.columns.structs import flatten_structs
from hopyard.data.schema import Column
from hopyard.data.sources.base import Source
from hopyard.data.sources.collect import pick
from hopyard.data.sources.memory import Convert, MemorySource, from_mapping
from hopyard.errors import DataError

RawBatch = Mapping[str, Any]
_ROWS_AT_ONCE = 4096


class RawBatches:
    """Batches not yet converted; batches read ahead from a one-shot stream are kept for the pass."""

    def __init__(self, start: Callable[[], Iterator[RawBatch]], one_shot: bool) -> None:
        self._start = start
        self._once = start() if one_shot else None
        self._kept: list[RawBatch] = []
        self._read = False

    @property
    def one_shot(self) -> bool:
        return self._once is not None

    def read(self) -> Iterator[RawBatch]:
        if self._once is None:
            yield from self._start()
            return
        if self._read:
            raise DataError(
                "This source can be read once, and was. Give the iterator itself only once, or a list, a frame "
                "or files, which can be read again."
            )
        self._read = True
        while self._kept:
            yield self._kept.pop(0)
        yield from self._once

    def peek(self) -> Iterator[RawBatch]:
        """Batches as far as they are asked for; all of them remain to be read."""
        if self._once is None or self._read:
            yield from self.read()
            return
        yield from self._kept
        for batch in self._once:
            self._kept.append(batch)
            yield batch


class StreamSource(Source):
    """Batches of a stream, with only the wanted columns converted."""

    def __init__(self, stream: RawBatches, convert: Convert, columns: Sequence[str] | None = None) -> None:
        self._stream = stream
        self._convert = convert
        self.one_shot: bool = stream.one_shot
        self.columns: list[str] = check_names(columns or next(stream.peek(), {}))
        if not self.columns:
            raise empty_data()

    def select(self, names: Sequence[str]) -> StreamSource:
        wanted = list(pick(dict.fromkeys(self.columns), names))
        return StreamSource(self._stream, self._convert, wanted)

    def with_json(self, names: Sequence[str]) -> StreamSource:
        return StreamSource(self._stream, json_texts(self._convert, names), self.columns)

    def batches(self) -> Iterator[ConvertedColumns]:
        return self._converted(self._stream.read())

    def head_batches(self) -> Iterator[ConvertedColumns]:
        return self._converted(self._stream.peek())

    def _converted(self, batches: Iterator[RawBatch]) -> Iterator[ConvertedColumns]:
        """The batches; batches in which a column has no value wait until others tell its type."""
        known: dict[str, Column] = dict(self.expected)
        waiting: list[tuple[RawBatch, ConvertedColumns]] = []
        for raw in batches:
            chosen = pick(raw, self.columns)
            converted = convert_columns(chosen, self._convert, known, leave_out=True)
            known.update({name: data.column for name, data in converted.items() if name not in known})
            waiting.append((chosen, converted))
            if len(known) == len(self.columns):
                yield from (self._completed(*batch, known) for batch in waiting)
                waiting.clear()
        for left, _ in waiting:
            yield convert_columns(left, self._convert)

    def _completed(
        self, raw: RawBatch, converted: ConvertedColumns, known: Mapping[str, Column]
    ) -> ConvertedColumns:
        left = {name: values for name, values in raw.items() if name not in converted}
        columns = {**converted, **convert_columns(left, self._convert, known)}
        return {name: columns[name] for name in raw}


def from_reader(reader: pa.RecordBatchReader) -> StreamSource:
    """A reader of Arrow record batches: one-shot."""
    check_names(reader.schema.names)
    batches = (
        flatten_structs(dict(zip(batch.schema.names, batch.columns, strict=True)))
        for batch in reader
        if batch.num_rows
    )
    return StreamSource(RawBatches(lambda: batches, one_shot=True), from_arrow)


def from_dict_rows(rows: Iterable[Any]) -> StreamSource:
    """Rows as dicts, all with the same keys: a list, or anything one-shot that is iterated."""
    one_shot = not isinstance(rows, Sequence)
    return StreamSource(RawBatches(lambda: _row_batches(iter(rows), None), one_shot), from_rows)


def from_torch(data: Any, names: Sequence[str] | None = None) -> StreamSource | MemorySource:
    """A torch Dataset, map-style or iterable (one-shot).

    Items that are dicts name their columns. Columns of tuples are named ``names``, if there are as many, else
    ``"features"``, ``"label"``, then ``"column_2"`` and so on; a single value is ``"features"``.
    """
    if hasattr(data, "tensors"):
        return from_mapping(_named(data.tensors, names))
    if not hasattr(data, "__len__"):
        return StreamSource(RawBatches(lambda: _row_batches(iter(data), names), one_shot=True), from_rows)
    return StreamSource(RawBatches(lambda: _row_batches(_items(data), names), one_shot=False), from_rows)


def _items(data: Any) -> Iterator[Any]:
    for start in range(0, len(data), _ROWS_AT_ONCE):
        numbers = range(start, min(start + _ROWS_AT_ONCE, len(data)))
        yield from (
            data.__getitems__(list(numbers))
            if hasattr(data, "__getitems__")
            else map(data.__getitem__, numbers)
        )


def _row_batches(rows: Iterator[Any], names: Sequence[str] | None) -> Iterator[RawBatch]:
    done = 0
    for chunk in _batched(rows):
        named = [_named(row, names) for row in chunk]
        first = named[0]
        for number, row in enumerate(named):
            if row.keys() != first.keys():
                raise DataError(
                    f"Row {done + number} has the columns {', '.join(row)}, but row {done} has {', '.join(first)}. "
                    "Give every row the same columns; None stands for a missing value."
                )
        done += len(named)
        yield {name: [row[name] for row in named] for name in first}


def _batched(rows: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    while chunk := tuple(itertools.islice(rows, _ROWS_AT_ONCE)):
        yield chunk


def _named(item: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    if not isinstance(item, (tuple, list)):
        item = (item,)
    if hasattr(item, "_fields"):
        names = item._fields
    if names is None or len(names) != len(item):
        names = ["features", "label", *(f"column_{i}" for i in range(2, len(item)))][: len(item)]
    return dict(zip(names, item, strict=True))


def is_torch_dataset(data: Any) -> bool:
    return any(base.__module__.startswith("torch.utils.data") for base in type(data).__mro__)
