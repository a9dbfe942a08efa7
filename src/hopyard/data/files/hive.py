"""Hive partitions: columns whose values stand in the names of directories, ``key=value/``.

Spark, pyarrow, polars and DuckDB write them alike. A column is int64 if all its values are integers, else
strings; ``__HIVE_DEFAULT_PARTITION__`` is null. A column that the files hold too must be equal there, and is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from hopyard.data.columns import compute as pc
from hopyard.data.columns.structs import FlatColumn, field_of
from hopyard.data.files.stored import StoredFile
from hopyard.data.schema import Column
from hopyard.errors import DataError

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?\d{1,18}")


def hive_values(relative: str) -> dict[str, str | None]:
    """The values that the directories of a file's name, relative to the dataset's directory, give it."""
    values: dict[str, str | None] = {}
    for directory in relative.split("/")[:-1]:
        key, equals, value = directory.partition("=")
        if equals and key:
            values[unquote(key)] = None if value == NULL else unquote(value)
    return values


def is_hidden(relative: str) -> bool:
    """Whether the name is one for other things than data files: ``_SUCCESS``, ``_metadata``, ``_temporary/``."""
    *directories, name = relative.split("/")
    return name[:1] in ("_", ".") or any(
        part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in directories
    )


def hive_columns(relative: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The values of each column of the partitions, one a file: ints, strings, or None.

    Args:
        relative: names of the files, relative to the dataset's directory.

    Raises:
        DataError: a file lies in directories of other keys than the first.
    """
    values = [hive_values(name) for name in relative]
    for name, its in zip(relative, values, strict=True):
        if list(its) != list(values[0]):
            raise DataError(
                f"{name} lies in a partition of {_listed(its)}, but {relative[0]} in one of {_listed(values[0])}. All "
                "files of a dataset must lie in directories key=value/ of the same keys: move the file, or name "
                "the files to open one by one."
            )
    return {key: _typed([its[key] for its in values]) for key in (values[0] if values else ())}


def _listed(values: dict[str, str | None]) -> str:
    return ", ".join(values) or "no keys"


def _typed(values: Sequence[str | None]) -> tuple[Any, ...]:
    given = [value for value in values if value is not None]
    if given and all(_INTEGER.fullmatch(value) for value in given):
        return tuple(None if value is None else int(value) for value in values)
    return tuple(values)


def check_own(
    name: str,
    files: Sequence[StoredFile],
    relative: Sequence[str],
    flats: Sequence[Mapping[str, FlatColumn]],
    read: Callable[[int, int, list[str]], pa.Table | None],
) -> None:
    """Look whether a column that the files hold agrees with their directories.

    Args:
        name: of the column, which is a key of the directories.
        relative: names of the files, relative to the dataset's directory.
        flats: of each file, its columns.
        read: columns of one row group of a file, by their numbers; None if they cannot be decoded.

    Raises:
        DataError: a row differs.
    """
    for number, file in enumerate(files):
        flat, text = flats[number].get(name), hive_values(relative[number])[name]
        for group in range(file.footer.num_row_groups if flat is not None else 0):
            assert flat is not None
            if _statistics_say(text, file, group, flat) or (table := read(number, group, [name])) is None:
                continue
            values = field_of(table, flat.path)
            same = values.is_null() if text is None else _equals(values, text)
            if not pc.all(same).as_py() and len(values):
                row = pc.index(same, False).as_py()
                raise DataError(
                    f"{file.name}, row group {group}: column {name!r} holds {values[row]} in row {row}, but the file "
                    f"lies in {name}={NULL if text is None else text}/. Both name one column, which must be equal. "
                    f"Rename or drop one, or open the files as a list of paths: then directories are no columns."
                )


def _statistics_say(text: str | None, file: StoredFile, group: int, flat: FlatColumn) -> bool:
    """Whether the footer tells that all rows are equal to the key."""
    column = file.footer.row_group(group).column(flat.leaf)
    its = column.statistics
    if its is None or not its.has_null_count:
        return False
    if text is None:
        return bool(its.null_count == column.num_values)
    # Bounds of texts may be cut off, and none speaks of NaN.
    if not pa.types.is_integer(flat.type) or its.null_count or not its.has_min_max:
        return False
    return str(its.min) == str(its.max) == text


def _equals(values: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """Mask of the rows that equal the value in a directory's name; False for a null."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        return pc.equal(values, pa.scalar(text).cast(values.type)).fill_null(False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # no such value
        return pa.chunked_array([pa.repeat(False, len(values))])


def constant_column(name: str, values: Sequence[Any]) -> Column:
    """The column of these values of partitions: int64 if one is an integer, else strings."""
    return (
        Column(name, "tensor", "int64")
        if any(isinstance(each, int) for each in values)
        else Column(name, "string")
    )


def constant_type(column: Column) -> pa.DataType:
    """Arrow type of a column of partitions."""
    return pa.int64() if column.kind == "tensor" else pa.string()


def constant_array(column: Column, value: Any, rows: int) -> pa.Array:
    """A column of partitions for some rows of one file."""
    return pa.repeat(pa.scalar(value, constant_type(column)), rows)
