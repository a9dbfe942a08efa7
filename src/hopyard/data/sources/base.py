"""The contract of sources, which ``prepare`` and ``fit`` take: one for everything that holds rows.

Rules of a source:

* **Columns.** Names are unique strings; their order is the data's own.
* **Batches** come in the order of the rows, every one with all columns and at least one row.
* **Twice.** A source may be read again, unless it is ``one_shot``: then rows that ``head`` took
  are kept and come first in ``batches``, and a second pass is an error.
* **Fingerprint.** Digest of the logical content; equal for the same rows in any order and any container.

pandas, polars and PyTorch are recognised by the modules of their types, never imported.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hopyard.data.columns.columns import ConvertedColumns, check_lengths
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.data.sources.collect import Collector, SourceFindings
from hopyard.errors import DataError


class Source(ABC):
    """Rows of named columns. See the module's text for the rules.

    Attributes:
        columns: names, in order.
        rows: number of rows, or None if it is known only after reading.
        one_shot: rows can be read once.
        watch: called with the rows read so far while all of them are, after each batch.
        numbered: whether rows have numbers that somebody could find them by; rows of a cluster's frame have none.
        expected: columns by name, for batches that hold no value of a column, only nulls and empty lists, and so do
            not tell its type.
        settings: of what made the rows, as JSON values, for the manifest; none of rows that are as they came.
    """

    columns: list[str]
    rows: int | None = None
    one_shot = False
    watch: Callable[[int], None] | None = None
    numbered = True
    expected: Mapping[str, Column] = {}
    settings: Mapping[str, Any] = {}
    _collected: SourceFindings | None = None

    @abstractmethod
    def batches(self) -> Iterator[ConvertedColumns]:
        """The rows, some at a time."""

    def head_batches(self) -> Iterator[ConvertedColumns]:
        """Batches like those of ``batches``, but the rows remain to be read."""
        return self.batches()

    @abstractmethod
    def select(self, names: Sequence[str]) -> Source:
        """The source with only these columns (in its own order); ColumnError names all unknown ones."""

    def with_json(self, names: Sequence[str]) -> Source:
        """The source with these columns as texts: rows that are lists or dicts as JSON, see ``convert_json``."""
        raise DataError(
            f"Rows of {', '.join(map(repr, names))} cannot be read as lists of dicts from this data. Write it to "
            "Parquet files and give their paths, or make the column texts of JSON."
        )

    def where(self, row: int) -> str:
        """Where a row is, as errors say it."""
        return f"row {row}"

    def head(self, n: int) -> dict[str, npt.NDArray[Any] | Ragged]:
        """The first ``n`` rows, or all if fewer, as a batch holds them; nulls as zeros."""
        return {name: data.as_batch() for name, data in self.head_columns(n).items()}

    def head_columns(self, n: int) -> ConvertedColumns:
        """The first ``n`` rows, with masks of the null ones."""
        collector = Collector(memory=sys.maxsize)
        taken = 0
        for batch in self.head_batches():
            rows = min(n - taken, check_lengths(batch))
            collector.add({name: data[:rows] for name, data in batch.items()})
            taken += rows
            if taken >= n:
                break
        return collector.finish().columns or {}

    def schema(self) -> Mapping[str, Column]:
        """The columns, if all rows were read; else empty."""
        return {} if self._collected is None else self._collected.schema

    def known_columns(self) -> ConvertedColumns | None:
        """All rows, if they are in memory already."""
        return None if self._collected is None else self._collected.columns

    def fingerprint(self) -> str | None:
        """Digest of the logical content; None for one-shot sources until they are collected."""
        if self._collected is None and self.one_shot:
            return None
        return self._collect(None).fingerprint

    def collect(self, spool: Path | None = None) -> SourceFindings:
        """All rows, with the fingerprint. Rows that exceed the memory go to files in ``spool``."""
        return self._collect(spool or Path(tempfile.gettempdir()))

    def _collect(self, spool: Path | None) -> SourceFindings:
        known = self._collected
        if known is None or (known.columns is None and spool is not None):
            with contextlib.closing(
                Collector(spool, expected=self.rows, numbered=self.numbered)
            ) as collector:
                for batch in self.batches():
                    collector.add(batch)
                    if self.watch is not None:
                        self.watch(collector.rows)
                self._collected = known = collector.finish()
        return known
