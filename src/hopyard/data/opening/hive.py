"""Hive partitions: columns whose values stand in the names of directories, ``key=value/``.

Spark, pyarrow, polars and DuckDB write them alike. A column is int64 if all its values are integers, else
strings; ``__HIVE_DEFAULT_PARTITION__`` is null. A column that the files hold themselves stays theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

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
    """Whether writers of Parquet keep something else there: ``_SUCCESS``, ``_metadata``, ``_temporary/``."""
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


def constant_column(name: str, values: Sequence[Any]) -> Column:
    """What a column of the partitions is."""
    return (
        Column(name, "tensor", "int64")
        if any(isinstance(each, int) for each in values)
        else Column(name, "string")
    )


def constant_type(column: Column) -> pa.DataType:
    """Its Arrow type."""
    return pa.int64() if column.kind == "tensor" else pa.string()


def constant_array(column: Column, value: Any, rows: int) -> pa.Array:
    """Such a column for some rows of one file."""
    return pa.repeat(pa.scalar(value, constant_type(column)), rows)
