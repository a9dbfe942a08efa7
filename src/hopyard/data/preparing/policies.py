"""What becomes of nulls and of ragged rows, decided over all data and applied some rows at a time.

========  ============================================================================
nulls     ``"error"``; ``"fill"``: 0, False, "" or no values; ``"mask"``: filled, and a
          bool column ``<name>_mask`` that is True where the row was null
ragged    ``"error"``; ``"keep"``: values and offsets; ``"pad"``: zeros up to the longest
          row, and an int64 column ``<name>_length``
========  ============================================================================

NaN is a number, not null, except in pandas frames, where it is how null is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.preparing.layout import Values
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.data.sources.columns import ColumnData, as_ragged
from hopyard.errors import DataError, UsageError

Columns = Mapping[str, ColumnData]
_MAX_WIDTH = (1 << 31) - 1


@dataclass(frozen=True)
class Policies:
    """How rows become those of a dataset.

    Attributes:
        schema: of the result.
        masked: columns that get a mask.
        padded: the length that rows of a column get.
    """

    schema: Schema
    masked: frozenset[str]
    padded: Mapping[str, int]

    def apply(self, columns: Columns) -> dict[str, Values]:
        """The values of ``schema``'s columns for some rows."""
        result: dict[str, Values] = {}
        for name, data in columns.items():
            if name in self.padded:
                ragged = as_ragged(data).values
                assert isinstance(ragged, Ragged)
                result[name] = pad(ragged, self.padded[name])
                result[f"{name}_length"] = ragged.lengths
            else:
                result[name] = as_ragged(data).values if self.schema[name].kind == "ragged" else data.values
            if name in self.masked:
                result[f"{name}_mask"] = np.zeros(len(data), bool) if data.missing is None else data.missing
        return result


def plan_policies(splits: Sequence[Columns], nulls: str = "error", ragged: str = "error") -> Policies:
    """The policies that fit all ``splits`` (which have the same columns).

    Raises:
        DataError: nulls or ragged rows without a policy, or rows that no policy makes storable.
        ColumnError: the splits' columns differ.
    """
    check_choice("nulls", nulls, ("error", "fill", "mask"))
    check_choice("ragged", ragged, ("error", "keep", "pad"))
    _check_same(splits)
    with_nulls = [name for name in splits[0] if any(columns[name].missing is not None for columns in splits)]
    if with_nulls and nulls == "error":
        raise _nulls_error(splits, with_nulls)
    masked = frozenset(with_nulls if nulls == "mask" else ())
    schema: list[Column] = []
    padded: dict[str, int] = {}
    for name in splits[0]:
        schema += _result_columns(name, [columns[name] for columns in splits], ragged, padded)
        if name in masked:
            schema.append(Column(f"{name}_mask", "tensor", "bool"))
    return Policies(checked_schema(schema), masked, padded)


def pad(rows: Ragged, length: int) -> npt.NDArray[Any]:
    """(n, length, *shape): rows of at most that many elements, zeros behind them."""
    padded = np.zeros((len(rows), length, *rows.values.shape[1:]), rows.values.dtype)
    padded[np.arange(length) < rows.lengths[:, None]] = rows.values
    return padded


def check_choice(argument: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise UsageError(
            f"{argument}={given!r} is unknown; it must be one of {', '.join(map(repr, choices))}."
        )


def _result_columns(
    name: str, parts: Sequence[ColumnData], ragged: str, padded: dict[str, int]
) -> list[Column]:
    if all(part.kind != "ragged" for part in parts) and len({part.column for part in parts}) == 1:
        return [parts[0].column]
    lists = [as_ragged(part).values for part in parts]
    lengths = np.concatenate([part.lengths for part in lists if isinstance(part, Ragged)])
    column = as_ragged(parts[0]).column
    if ragged == "error":
        raise ragged_rows(name, int(lengths.min()), int(lengths.max()))
    if ragged == "pad":
        padded[name] = int(lengths.max())
        whole = Column(name, "tensor", column.dtype, (padded[name], *column.shape))
        return [whole, Column(f"{name}_length", "tensor", "int64")]
    return [nested_lists(column)]


def ragged_rows(name: str, shortest: int, longest: int) -> DataError:
    """The error of a column that may not be ragged, but is."""
    return DataError(
        f"Column {name!r} is ragged: its rows have {shortest} to {longest} values. Pass ragged='pad' "
        f"(zeros up to the longest, and a column {name}_length) or ragged='keep' (values and offsets)."
    )


def nested_lists(column: Column) -> Column:
    """The ragged column, if its rows are of single values."""
    if column.shape:
        raise DataError(
            f"Column {column.name!r} has ragged rows of arrays {list(column.shape)}; ragged='keep' holds rows of "
            "single values only. Pass ragged='pad'."
        )
    return column


def checked_schema(columns: Sequence[Column]) -> Schema:
    """The schema of these columns.

    Raises:
        DataError: two have one name, or rows of one are empty or too long.
    """
    names = Counter(column.name for column in columns)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise DataError(
            f"The data has columns named {', '.join(twice)}, which nulls='mask' or ragged='pad' would add. "
            "Rename them."
        )
    for column in columns:
        if column.width is not None and not 0 < column.width <= _MAX_WIDTH:
            raise DataError(
                f"Column {column} has rows of {column.width} bytes; a row must have 1 to {_MAX_WIDTH} bytes. "
                "Drop or split the column."
            )
    return Schema(columns)


def _check_same(splits: Sequence[Columns]) -> None:
    for val in splits[1:]:
        for name, data in splits[0].items():
            mine, its = data.column, val[name].column
            both_lists = "ragged" in (mine.kind, its.kind) and _as_lists(data) == _as_lists(val[name])
            if mine != its and not both_lists:
                raise DataError(
                    f"Column {name!r} is {mine} in the training data but {its} in the validation data. "
                    "Give both the same dtype and shape."
                )


def _as_lists(data: ColumnData) -> Column | None:
    """The column as lists, or None if its rows are no lists."""
    if data.kind == "ragged":
        return data.column
    return as_ragged(data[:0]).column if data.kind == "tensor" and data.column.shape else None


def _nulls_error(splits: Sequence[Columns], names: Sequence[str]) -> DataError:
    found = []
    for name in names:
        missing = next(columns[name].missing for columns in splits if columns[name].missing is not None)
        assert missing is not None
        found.append(f"{name!r} has {int(missing.sum())} (the first in row {int(np.argmax(missing))})")
    return DataError(
        f"There are null values: column {'; column '.join(found)}. Remove those rows, or pass nulls='fill' "
        "(0, False or an empty string instead) or nulls='mask' (filled, and a column <name>_mask that is True there)."
    )
