"""The contract of an engine's frame, and the frame as a source of rows.

Rules that every engine keeps:

* **Workers** read, pack and write; the driver gets surveys and entries of files.
* **One pass.** The frame's rows are computed once and kept packed until the exchange is closed, on the workers
  or in a folder of the store; rows that a lost worker kept are computed again.
* **Grouping.** ``Exchange.write`` gives all rows of a file, and no others, to one call of ``Writing.write``.
* **Errors** of the data come in surveys, errors of workers as the engine raises them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from hopyard.data.columns.columns import ConvertedColumns, empty_data
from hopyard.data.preparing.files import Writing, Written
from hopyard.data.preparing.packing import Packing
from hopyard.data.preparing.survey import Survey
from hopyard.data.schema import Column
from hopyard.data.sources.base import Source
from hopyard.data.sources.collect import pick
from hopyard.data.sources.frame_batches import FrameReading, columns_of_types, flat_paths
from hopyard.errors import DataError

ShareReport = Callable[[float], None]
"""Called with the share of a phase that is done, 0 to 1."""

Types = Mapping[str, pa.DataType | str]
"""Types of columns by name, in order; a text names a type that Arrow does not have."""


class Exchange(ABC):
    """The rows of one or two frames on their way into a dataset."""

    @abstractmethod
    def survey(self, report: ShareReport) -> list[list[Survey]]:
        """Read and pack all rows; returns the surveys of each frame's tasks. May be called again after it failed."""

    @abstractmethod
    def write(self, writing: Writing, report: ShareReport) -> list[Written]:
        """Bring the rows of each file together and write it. May be called again after it failed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the rows that are kept."""


class Frame(ABC):
    """A frame of an engine."""

    engine: str
    """Name of the engine in messages."""

    vectors: frozenset[str] = frozenset()
    """Columns that are vectors of Spark ML; their type is then that of lists."""

    @abstractmethod
    def types(self) -> Types:
        """Types of the frame's own columns."""

    @abstractmethod
    def head(self, names: Sequence[str], rows: int) -> pa.Table:
        """The first rows of these columns of the frame."""

    @abstractmethod
    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        """All rows of these columns of the frame, on the driver."""

    @abstractmethod
    def exchange(self, packings: Sequence[tuple[Frame, Types, Packing]], folder: Path | None) -> Exchange:
        """The exchange of frames of this engine, each with its columns' types and its packing.

        Args:
            folder: a directory that workers see wherever they see the store, for rows on their way; None: there
                is none.
        """

    def plan_key(self) -> str | None:
        """Equal for frames that have the same rows; None if that cannot be known without reading them."""
        return None


class FrameSource(Source):
    """A frame of a cluster as a source. ``prepare`` has it read and written by the engine's own workers.

    Args:
        names: the columns, fields of structs dotted; None: all.
        types: of the frame's columns, if they are known; some engines look at rows for them.
    """

    one_shot = True  # its fingerprint is known once it was read
    numbered = False

    def __init__(self, frame: Frame, names: Sequence[str] | None = None, types: Types | None = None) -> None:
        self.frame = frame
        self._types = frame.types() if types is None else types
        self.columns: list[str] = list(flat_paths(self._types)) if names is None else list(names)

    def select(self, names: Sequence[str]) -> FrameSource:
        return FrameSource(self.frame, list(pick(dict.fromkeys(self.columns), names)), self._types)

    def with_json(self, names: Sequence[str]) -> Source:
        with contextlib.suppress(DataError):  # columns of lists of dicts have no kind
            if all(column.kind == "string" for column in self.layout() if column.name in names):
                return self
        return super().with_json(names)

    @property
    def roots(self) -> list[str]:
        """The frame's own columns in which the source's are."""
        paths = flat_paths(self._types)
        return list(dict.fromkeys(paths[name][0] for name in self.columns))

    @property
    def types(self) -> Types:
        """Types of these columns."""
        return {name: self._types[name] for name in self.roots}

    @property
    def reading(self) -> FrameReading:
        return FrameReading(tuple(self.columns), tuple(self.roots), self.frame.vectors & set(self.columns))

    def layout(self) -> tuple[Column, ...]:
        """Names, kinds and dtypes of the columns; lists are ``"ragged"``.

        Raises:
            DataError: names all columns that a dataset cannot hold.
        """
        return tuple(columns_of_types(self.types, self.columns).values())

    def batches(self) -> Iterator[ConvertedColumns]:
        known = {**self.expected}
        for name, column in columns_of_types(self.types, self.columns, known).items():
            known.setdefault(name, column)
        for batch in self.frame.batches(self.roots):
            if batch.num_rows:
                yield self.reading.columns(batch, known)

    def head_columns(self, n: int) -> ConvertedColumns:
        self.layout()
        rows = self.frame.head(self.roots, n)
        if not rows.num_rows:
            raise empty_data()
        return self.reading.columns(rows)
