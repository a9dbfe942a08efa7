"""Columns on their way into a dataset: one form for all that sources hold.

Strings and bytes are kept as a ``Ragged`` of their UTF-8 or plain bytes, which is how Arrow and
Parquet hold them. Rows that are null keep a place: zeros in a tensor, no values in a ``Ragged``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.layout import Values
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Kind
from hopyard.errors import DataError


@dataclass(frozen=True)
class ColumnData:
    """All, or some consecutive, rows of one column.

    Attributes:
        name: of the column.
        kind: as of a ``Column``; ``"ragged"`` lists may turn out to have one length, see :func:`settle`.
        values: (n, *shape), or a Ragged whose values have the column's shape.
        missing: (n,) bool, the rows that are null, or None if none is.
        length: of the rows of a sparse column, whose values are a Ragged of pairs (see ``sparse.py``); else None.
        times: whether the numbers were dates, times or durations, which are int64 nanoseconds here.
    """

    name: str
    kind: Kind
    values: Values
    missing: npt.NDArray[np.bool_] | None = None
    length: int | None = None
    times: bool = False

    def __post_init__(self) -> None:
        if self.missing is not None and not self.missing.any():
            object.__setattr__(self, "missing", None)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def column(self) -> Column:
        if self.kind in ("string", "bytes"):
            return Column(self.name, self.kind)
        values = self.values.values if isinstance(self.values, Ragged) else self.values
        if self.length is not None:
            return Column(self.name, self.kind, values.dtype[1].name, (self.length,), True)
        return Column(self.name, self.kind, values.dtype.name, values.shape[1:])

    @property
    def nbytes(self) -> int:
        if isinstance(self.values, Ragged):
            return self.values.values.nbytes + self.values.offsets.nbytes
        return self.values.nbytes

    def __getitem__(self, rows: slice) -> ColumnData:
        missing = None if self.missing is None else self.missing[rows]
        return replace(self, values=self.values[rows], missing=missing)

    def take(self, rows: npt.NDArray[np.int64], out: npt.NDArray[Any] | None = None) -> ColumnData:
        """The rows at these positions, in this order, copied; see :func:`gather`."""
        missing = None if self.missing is None else self.missing[rows]
        return replace(self, values=gather(self.values, rows, out), missing=missing)

    def present(self) -> npt.NDArray[Any]:
        """The elements of the rows that are not null, as they are digested and spooled."""
        if isinstance(self.values, Ragged):
            return self.values.values
        return self.values if self.missing is None else self.values[~self.missing]

    def as_batch(self) -> Values | npt.NDArray[np.object_]:
        """The rows as a batch holds them: strings and bytes as an object array."""
        if self.kind not in ("string", "bytes"):
            return self.values
        assert isinstance(self.values, Ragged)
        data, offsets = self.values.values.tobytes(), self.values.offsets.tolist()
        rows: list[Any] = [data[a:b] for a, b in itertools.pairwise(offsets)]
        batch = np.empty(len(rows), object)
        batch[:] = [row.decode() for row in rows] if self.kind == "string" else rows
        return batch


ConvertedColumns: TypeAlias = Mapping[str, ColumnData]
"""Columns of a source by name, as many rows of each."""


def all_missing(column: Column, rows: int) -> ColumnData:
    """Rows of a column that are all null."""
    values: Values
    if column.kind == "tensor":
        values = np.zeros((rows, *column.shape), column.dtype)
    else:
        elements = np.empty((0, *column.shape), np.uint8 if column.dtype == "object" else column.dtype)
        values = Ragged(elements, np.zeros(rows + 1, np.int64))
    return ColumnData(column.name, column.kind, values, np.ones(rows, bool))


def valueless(column: Column, missing: npt.NDArray[np.bool_]) -> ColumnData:
    """Rows of a column that are null where ``missing`` says so, and empty lists elsewhere.

    Raises:
        DataError: some are empty lists, and the column holds none.
    """
    if missing.all():
        return all_missing(column, len(missing))
    if not holds_lists(column):
        raise DataError(
            f"Column {column.name!r} holds empty lists, but it is {column} in the data that it must be like. Give a "
            "value a row, or None for a missing one."
        )
    shape = column.shape if column.kind == "ragged" else column.shape[1:]
    rows = Ragged(np.empty((0, *shape), column.dtype), np.zeros(len(missing) + 1, np.int64))
    return ColumnData(column.name, "ragged", rows, missing)


def holds_lists(column: Column) -> bool:
    """Whether the column's rows are lists, of any length or of one."""
    return column.kind == "ragged" or (column.kind == "tensor" and bool(column.shape))


def as_expected(data: ColumnData, column: Column) -> ColumnData:
    """Rows without a value, nulls or empty lists, as such of ``column``: their own type is only a guess. Any other data
    as it is."""
    if not len(data) or column.sparse or data.length is not None:
        return data
    missing = np.zeros(len(data), bool) if data.missing is None else data.missing
    if not missing.all():
        if not holds_lists(data.column) or not holds_lists(column):
            return data
        if len(data.values.values) if isinstance(data.values, Ragged) else data.values.shape[1]:
            return data
    return valueless(column, missing)


def settle(data: ColumnData) -> ColumnData:
    """Lists that all have one length as a tensor; anything else, and lists that are all empty, as it is."""
    if data.kind != "ragged" or not isinstance(data.values, Ragged) or not len(data):
        return data
    lengths = data.values.lengths
    present = lengths if data.missing is None else lengths[~data.missing]
    if not len(present) or not present[0] or (present != present[0]).any():
        return data
    tensor = data.values.values.reshape(len(present), int(present[0]), *data.values.values.shape[1:])
    return replace(data, kind="tensor", values=expand(tensor, data.missing))


def expand(present: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    """All rows, null ones as zeros, from the rows that are not null."""
    if missing is None:
        return present
    rows = np.zeros((len(missing), *present.shape[1:]), present.dtype)
    rows[~missing] = present
    return rows


def of_shape(data: ColumnData, shape: tuple[int, ...]) -> ColumnData:
    """Ragged rows that are all empty as such of arrays of that shape, if they may be; anything else as it is."""
    column = data.column
    is_open = data.kind == "ragged" and 0 in column.shape and len(column.shape) == len(shape)
    if not is_open or not isinstance(data.values, Ragged) or len(data.values.values):
        return data
    return replace(data, values=Ragged(np.empty((0, *shape), column.dtype), data.values.offsets))


def as_ragged(data: ColumnData) -> ColumnData:
    """A tensor of lists as ragged, for the case that another part has lists of another length."""
    if isinstance(data.values, Ragged):
        return data
    present = data.present()
    lengths = np.full(len(data), data.values.shape[1], np.int64)
    if data.missing is not None:
        lengths[data.missing] = 0
    flat = present.reshape(-1, *present.shape[2:])
    return replace(data, kind="ragged", values=Ragged(flat, np.concatenate([[0], np.cumsum(lengths)])))


def gather(values: Values, rows: npt.NDArray[np.int64], out: npt.NDArray[Any] | None = None) -> Values:
    """The rows at these positions, in this order, copied; a tensor's into ``out`` if given."""
    if isinstance(values, Ragged):
        return values.take(rows)
    return np.take(values, rows, axis=0, out=out, mode="clip")  # other modes copy through a buffer


def check_lengths(columns: Mapping[str, ColumnData]) -> int:
    """The number of rows that all columns have.

    Raises:
        DataError: they differ, or there are no columns, or no rows.
    """
    lengths = {name: len(data) for name, data in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"All columns must have the same number of rows, but they have: {listed}.")
    if not lengths or not next(iter(lengths.values())):
        raise empty_data()
    return next(iter(lengths.values()))


def empty_data() -> DataError:
    return DataError("The data is empty: it has no rows, or no columns. Give at least one row.")


def check_names(names: Iterable[Any]) -> list[str]:
    """The names, if all are non-empty strings and none occurs twice."""
    names = list(names)
    if bad := [name for name in names if not isinstance(name, str) or not name]:
        index = " ('' is often the index that pandas writes without index=False)" if "" in bad else ""
        raise DataError(
            f"Column names must be non-empty strings, but there are: {', '.join(map(repr, bad))}{index}. Rename them."
        )
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise DataError(
            f"Column names must be unique, but these occur more than once: {', '.join(twice)}. Rename them."
        )
    return names
