"""Columns that are kept as they are stored and decoded for every batch: encoded images, and names of their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.data.order import Rows
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.strings import MappedStrings
from hopyard.data.recipe.decoding import Decoder, DecodingThreads, begin_decoding
from hopyard.data.recipe.images import ImageDecoder
from hopyard.data.schema import Column


class RowGroupPlace(NamedTuple):
    """A row group among the files, so that errors can name its rows.

    Attributes:
        file: its name.
        within: number of the row group in the file.
        numbers: gives the numbers in the row group of the rows that belong to the dataset; None: all do.
    """

    file: str
    within: int
    numbers: Callable[[], Rows] | None


class DecodedColumn:
    """A column gathered as it is stored, and decoded by threads: at once, or, where ``buffers.begun`` says so, later.

    Args:
        stored: the column as it is stored.
        column: as it is once it is decoded.
        decoder: of a row.
        groups: places of the row groups.
    """

    whole_groups = False
    is_apart = False

    def __init__(
        self, stored: MappedStrings, column: Column, decoder: Decoder, groups: Sequence[RowGroupPlace]
    ) -> None:
        self.names: tuple[str, ...] = (column.name,)
        self.shift: Rows = stored.shift
        self._stored, self._column, self._decoder, self._groups = stored, column, decoder, groups

    def gather(self, places: Rows, groups: Rows, buffers: Buffers) -> npt.NDArray[Any]:
        column = self._column

        def at(row: int) -> str:
            file, within, numbers = self._groups[int(groups[row])]
            number = int(places[row]) if numbers is None else int(numbers()[places[row]])
            return f"{file}, row group {within}, column {column.name!r}, row {number}"

        rows: Sequence[bytes | str | memoryview]
        if isinstance(self._decoder.function, ImageDecoder):
            rows = self._stored.slices(places, groups)
        else:
            # A list: to make an array of objects Arrow imports pandas, which takes longer than many batches.
            rows = self._stored.gather(places, groups, Buffers(arrow_strings=True)).to_pylist()
        out = buffers.empty(len(places), np.dtype(column.dtype), column.shape)
        if buffers.begun is not None:
            threads, waits = buffers.begun
            waits.append(begin_decoding(rows, self._decoder, column, at, out, threads))
            return out
        with closing(DecodingThreads()) as threads:
            begin_decoding(rows, self._decoder, column, at, out, threads, helps=True)()
        return out

    def look(self, places: Rows, groups: Rows) -> None:
        """Nothing lies there as a batch holds it."""
