"""Columns of Parquet files that are no flat arrays: decoded by Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from hopyard.data import sparse
from hopyard.data.columns.columns import ColumnData, all_missing, as_ragged, of_shape, settle, valueless
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.columns.restore import lists_of_arrays
from hopyard.data.columns.structs import flat_columns
from hopyard.data.files.fetching import fetched
from hopyard.data.files.stored import StoredFile
from hopyard.data.layout import WIDENED, Values
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column
from hopyard.errors import CorruptError, DataError, NullsError, UnsupportedTypeError


def read_as(column: Column, array: pa.ChunkedArray, where: str) -> Values:
    """The values of an Arrow column without nulls; see :func:`read_column`."""
    return read_column(column, array, where).values


def read_column(
    column: Column, array: pa.Array | pa.ChunkedArray, where: str, nullable: bool = False
) -> ColumnData:
    """The rows of an Arrow column that is expected to be ``column``; ``where`` names it in errors.

    Raises:
        DataError: there are nulls and they are not expected, or rows are of another type or shape.
    """
    if pa.types.is_null(array.type) and nullable:
        return all_missing(column, len(array))
    if array.null_count and not nullable:
        found = f"{where}: column {column.name!r} has {array.null_count} nulls"
        raise NullsError(
            f"{found}, which training cannot use. Drop or fill them, or say nulls='fill' or nulls='mask'.",
            found,
        )
    if column.sparse:
        return _sparse(column, array, where)
    if column.kind == "ragged" and column.shape:
        rows = lists_of_arrays(column, array)
        if rows is not None:
            return ColumnData(column.name, "ragged", rows)
    try:
        data = from_arrow(column.name, array)
    except UnsupportedTypeError as error:
        if error.unknown is None:
            raise UnsupportedTypeError(f"{where}: {error}") from error
        return valueless(column, np.asarray(error.unknown, bool))
    except DataError as error:
        raise type(error)(f"{where}: {error}") from error
    if column.kind == "tensor" and data.kind == "ragged":
        data = settle(data)
    if column.kind == "ragged" and data.kind == "tensor" and data.column.shape:
        data = as_ragged(data)  # fixed-size lists of one file beside lists of others
    if column.kind == "ragged" and data.kind == "bytes" and isinstance(data.values, Ragged):
        # Arrays of one file beside lists, or arrays of another length, of others.
        elements = data.values.values.view(column.dtype).reshape(-1, *column.shape)
        offsets = data.values.offsets // column.value_width
        return ColumnData(column.name, "ragged", Ragged(elements, offsets), data.missing)
    if column.kind == "ragged":
        data = of_shape(data, column.shape)
    if column.kind == "tensor" and data.kind == "bytes" and isinstance(data.values, Ragged):
        tensor = data.values.values.view(column.dtype).reshape(len(data), *column.shape)
        return ColumnData(column.name, "tensor", tensor)
    if data.column != column:
        data = _expected(column, data, where)
    return data


def _sparse(column: Column, array: pa.Array | pa.ChunkedArray, where: str) -> ColumnData:
    rows = sparse.from_arrow(array, column.dtype, *column.shape)
    if rows is None:
        raise DataError(
            f"{where}: column {column.name!r} holds {array.type} or indices out of range, but its file says that it is "
            f"{column}. The file was changed: restore it, or prepare the data again."
        )
    return ColumnData(column.name, "tensor", rows, length=column.shape[0])


def _expected(column: Column, data: ColumnData, where: str) -> ColumnData:
    """``data`` as ``column`` if it only lacks rows to be seen as such, or is stored wider than it is."""
    nothing = not len(data) if data.missing is None else bool(data.missing.all())
    if column.kind == "tensor" and nothing and data.kind == "ragged":
        return replace(all_missing(column, len(data)), missing=data.missing)
    if (
        column.kind == data.kind == "tensor"
        and column.shape == data.column.shape
        and column.dtype in _narrowed(data)
    ):
        assert isinstance(data.values, np.ndarray)
        return replace(data, values=data.values.astype(column.dtype))
    if (column.kind, column.shape) == (data.kind, data.column.shape) and (
        wider(column.dtype, data.column.dtype) == column.dtype
    ):
        if isinstance(data.values, Ragged):
            return replace(data, values=Ragged(data.values.values.astype(column.dtype), data.values.offsets))
        return replace(data, values=data.values.astype(column.dtype))
    of_other_lengths = column.dtype == data.column.dtype and "tensor" in (column.kind, data.kind)
    rule = (
        "Open the data with ragged='pad', or prepare it with ragged='keep' or ragged='pad'."
        if of_other_lengths
        else "Write the file again, or leave it out."
    )
    raise DataError(
        f"{where}: column {column.name!r} holds {data.column}, but the rows before are {column}. All rows must be "
        f"alike. {rule}"
    )


def wider(one: str, other: str) -> str | None:
    """The dtype that holds all numbers of both, both ints or both floats; None: there is none."""
    kinds = {np.dtype(each).kind.replace("u", "i") for each in (one, other)}
    both = np.promote_types(one, other)
    return both.name if kinds in ({"i"}, {"f"}) and both.kind.replace("u", "i") in kinds else None


def _narrowed(data: ColumnData) -> list[str]:
    """The dtypes whose scalars prepared files hold as ``data``'s dtype."""
    return [narrow for narrow, wide in WIDENED.items() if wide == data.column.dtype]


def leaves_of(schema: pa.Schema) -> dict[str, int]:
    """Number of the first leaf in a Parquet file of each column, and of each field of structs, dotted."""
    flats = flat_columns(schema).values()
    leaves: dict[str, int] = {}
    for column in flats:
        leaves.setdefault(column.path[0], column.leaf)
    return leaves | {column.name: column.leaf for column in flats}


def read_group(file: StoredFile, group: int, columns: Sequence[str], rows: int | None = None) -> pa.Table:
    """Columns of a row group, or of its first ``rows`` rows, decoded by Arrow.

    Raises:
        CorruptError: they cannot be; names file, row group and column.
    """
    columns = present(file, columns)
    try:
        opened = fetched(file, [group], columns).parquet(group, columns)
        if rows is None:
            return opened.read_row_group(group, columns=columns, use_threads=False)
        first = next(opened.iter_batches(rows, [group], columns, use_threads=False), None)
    except (pa.ArrowInvalid, OSError) as error:
        raise undecodable(file, group, columns, error) from error
    if first is None:
        return opened.schema_arrow.empty_table()
    return pa.Table.from_batches([first])


def present(file: StoredFile, columns: Iterable[str]) -> list[str]:
    """The columns, or fields of structs, that a file holds; if none, any other, so that its rows are counted."""
    return file.held(columns) or file.footer.schema.to_arrow_schema().names[:1]


def undecodable(file: StoredFile, group: int, columns: Sequence[str], error: Exception) -> CorruptError:
    """The error of a row group that cannot be decoded, after looking which column it is."""
    named = f"columns {', '.join(columns)}"
    if (damaged := damaged_column(file, group, columns)) is not None:
        named, error = f"column {damaged[0]!r}", damaged[1]
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return CorruptError(
        f"{file.name}, row group {group}, {named}: cannot be decoded ({reason}); the file was truncated or changed. "
        "Restore it, write it again, or leave such row groups out with open_dataset(..., corrupt='skip')."
    )


def damaged_column(file: StoredFile, group: int, columns: Iterable[str]) -> tuple[str, Exception] | None:
    """The first of these columns of a row group that Arrow cannot decode, and why; None if it can all."""
    for column in columns:
        opened = fetched(file, [group], [column]).parquet()
        try:
            opened.read_row_group(group, columns=[column], use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            return column, error
    return None
