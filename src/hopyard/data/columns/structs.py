"""Structs as columns of their own: field ``b`` of a struct column ``a`` is the column ``a.b``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hopyard.data.columns.columns import check_names
from hopyard.errors import DataError


@dataclass(frozen=True)
class FlatColumn:
    """A column of an Arrow schema that is no struct, or a field of structs that is none.

    Attributes:
        name: dotted.
        path: the names that lead to it.
        type: of its values.
        leaf: number of its first leaf in a Parquet file of that schema.
        nullable: it, or a struct around it, may be null.
    """

    name: str
    path: tuple[str, ...]
    type: pa.DataType
    leaf: int
    nullable: bool


_latest: tuple[pa.Schema, Mapping[str, FlatColumn]] | None = None


def flat_columns(schema: pa.Schema) -> Mapping[str, FlatColumn]:
    """The columns of a schema and the fields of its structs, in order. Those of equal schemas may be one object.

    Raises:
        DataError: two would have one name, or a struct has no fields.
    """
    global _latest
    latest = _latest  # files of a dataset mostly are alike, and of a wide one this takes long
    if latest is None or not latest[0].equals(schema):
        _latest = latest = schema, _flat_columns(schema)
    return latest[1]


def _flat_columns(schema: pa.Schema) -> dict[str, FlatColumn]:
    check_names(schema.names)
    columns: dict[str, FlatColumn] = {}
    leaf = 0
    for field in schema:
        kind = field.type
        for column in _fields(field, kind, (), leaf, False):
            if (other := columns.get(column.name)) is not None:
                raise DataError(
                    f"{_described(column)} and {_described(other)} would both be the column {column.name!r}. "
                    "Rename one of them."
                )
            columns[column.name] = column
        leaf += count_leaves(kind)
    return columns


def _fields(
    field: pa.Field, kind: pa.DataType, around: tuple[str, ...], leaf: int, nullable: bool
) -> list[FlatColumn]:
    path, nullable = (*around, field.name), nullable or field.nullable
    if not is_struct(kind):
        return [FlatColumn(".".join(path), path, kind, leaf, nullable)]
    check_names(inner.name for inner in kind.fields)
    if not kind.num_fields:
        raise DataError(f"Column {'.'.join(path)!r} is a struct without fields. Drop the column.")
    found = []
    for inner in kind.fields:
        found += _fields(inner, inner.type, path, leaf, nullable)
        leaf += count_leaves(inner.type)
    return found


def _described(column: FlatColumn) -> str:
    if len(column.path) == 1:
        return f"The column named {column.name!r}"
    return f"the field {'.'.join(column.path[1:])!r} of the struct {column.path[0]!r}"


def is_struct(kind: Any) -> bool:
    """Whether the type is an Arrow type of structs. Extension types are not, also if their storage is."""
    return isinstance(kind, pa.StructType)


def count_leaves(kind: pa.DataType) -> int:
    """Number of columns that a type takes in a Parquet file."""
    if isinstance(kind, pa.BaseExtensionType):
        return count_leaves(kind.storage_type)
    fields = kind.num_fields
    return sum(count_leaves(kind.field(i).type) for i in range(fields)) if fields or is_struct(kind) else 1


def field_of(table: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """The column, or the field of structs, at this path; null where a struct around it is, and where there is none
    of that name, as in a file that lacks a column of the others."""
    place = table.schema.get_field_index(path[0])
    if place < 0:
        return pa.chunked_array([pa.nulls(table.num_rows)])
    return _inside(table.column(place), path[1:])


def flatten_structs(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns in which Arrow arrays of structs are replaced by their fields.

    Raises:
        DataError: two columns would have one name.
    """
    if not any(is_struct(getattr(values, "type", None)) for values in columns.values()):
        return dict(columns)
    types = {
        name: values.type if is_struct(getattr(values, "type", None)) else pa.null()
        for name, values in columns.items()
    }
    flat = flat_columns(pa.schema(types.items()))
    structs = {name: columns[name] for name, kind in types.items() if is_struct(kind)}
    return {
        column.name: columns[column.path[0]]
        if len(column.path) == 1
        else _inside(structs[column.path[0]], column.path[1:])
        for column in flat.values()
    }


def _inside(array: Any, path: Sequence[str]) -> Any:
    for name in path:
        place = array.type.get_field_index(name)
        if place < 0:
            return pa.chunked_array([pa.nulls(len(array))])
        array = array.flatten()[place]
    return array
