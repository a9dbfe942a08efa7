"""Policies for nulls and ragged rows, decided over all data and applied some rows at a time.

========  ============================================================================
nulls     ``"error"``; ``"fill"``: 0, False, "" or no values; ``"mask"``: filled, and a
          bool column ``<name>_mask`` that is True where the row was null
ragged    ``"error"``; ``"keep"``: values and offsets; ``"pad"``: zeros up to the longest
          row, and an int64 column ``<name>_length``
========  ============================================================================

Labels are never filled: a null label is an error under any ``nulls``. A mask or length column that is asked
for by name is made of every data, also of data without a null or with rows of one length.

NaN is a number, not null, except in pandas frames, where it is how null is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hopyard.checks import choice
from hopyard.data.columns.columns import ColumnData, ConvertedColumns, as_ragged
from hopyard.data.layout import Values
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.errors import ColumnError, DataError, NullsError

_MAX_WIDTH = (1 << 31) - 1
_SAID = 3
"""Rows that an error names."""


@dataclass(frozen=True)
class Nulls:
    """Null rows of a column, as errors tell of them.

    Attributes:
        count: number of null rows; None: some.
        first: the numbers of the first ones; none where rows have no numbers that are known outside.
        among: words for the rows that were looked at, if these were not all: ``"of the first 256"``.
    """

    count: int | None
    first: Sequence[int] = ()
    among: str = ""

    @classmethod
    def of(cls, parts: Iterable[npt.NDArray[np.bool_] | None], numbered: bool, among: str = "") -> Nulls:
        """Null rows of one run of rows after another; a part None has none. Rows are numbered within the first
        part that has some, and from its begin."""
        found = [np.flatnonzero(part) for part in parts if part is not None]
        return cls(sum(map(len, found)), found[0][:_SAID].tolist() if numbered and found else (), among)

    def __str__(self) -> str:
        rows = "row" if self.count == 1 and not self.among else "rows"
        where = f" ({'row' if self.count == 1 else 'the first are rows'} {', '.join(map(str, self.first))})"
        counted = "some" if self.count is None else str(self.count)
        return " ".join(filter(None, [counted, self.among, rows])) + (where if self.first else "")


@dataclass(frozen=True)
class Policies:
    """Policies by which rows become those of a dataset.

    Attributes:
        schema: of the result.
        masked: columns that get a mask.
        padded: the length that rows of a column get.
        nulls: ``"error"``, ``"fill"`` or ``"mask"``: the policy for nulls in rows that come later.
        times: columns of int64 nanoseconds that are known to have been dates, times or durations.
    """

    schema: Schema
    masked: frozenset[str] = frozenset()
    padded: Mapping[str, int] = field(default_factory=dict)
    nulls: str = "error"
    times: frozenset[str] = frozenset()

    @classmethod
    def of_settings(cls, schema: Schema, settings: Mapping[str, Any]) -> Policies:
        """The policies that a manifest with these settings was written by."""
        return cls(
            schema,
            frozenset(settings.get("masked", ())),
            settings.get("padded", {}),
            settings.get("nulls", "error"),
            frozenset(settings.get("times", ())),
        )

    def settings(self) -> dict[str, Any]:
        """The part of a manifest's settings from which ``of_settings`` restores them, beside ``nulls``."""
        times = {"times": sorted(self.times)} if self.times else {}
        return {"masked": sorted(self.masked), "padded": dict(self.padded), **times}

    @property
    def added(self) -> dict[str, str]:
        """The columns that these policies add, and the column that each is made of."""
        masks = {f"{name}_mask": name for name in self.masked}
        return {**masks, **{f"{name}_length": name for name in self.padded}}

    def sources(self, names: Iterable[str]) -> list[str]:
        """The columns that must be given for columns of these names to be made."""
        return list(dict.fromkeys(self.added.get(name, name) for name in names))

    def apply(self, columns: ConvertedColumns) -> dict[str, Values]:
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


def plan_policies(
    splits: Sequence[ConvertedColumns],
    nulls: str = "error",
    ragged: str = "error",
    labels: Collection[str] = (),
    added: Collection[str] = (),
    numbered: bool = True,
    among: str = "",
) -> Policies:
    """The policies that fit all ``splits`` (which have the same columns).

    Args:
        labels: columns whose nulls are errors.
        added: mask and length columns to make in any case; nulls of a column with such a mask are no errors.
        numbered, among: for errors about null rows, see ``Nulls``.

    Raises:
        DataError: nulls or ragged rows without a policy, a null label, or rows that no policy makes storable.
        ColumnError: the splits' columns differ.
    """
    choice("nulls", nulls, ("error", "fill", "mask"))
    choice("ragged", ragged, ("error", "keep", "pad"))
    _check_same(splits)
    with_nulls = [name for name in splits[0] if any(columns[name].missing is not None for columns in splits)]
    found = {
        name: Nulls.of((columns[name].missing for columns in splits), numbered, among) for name in with_nulls
    }
    refuse_nulls(found, nulls, labels, added)
    masked = frozenset(
        name for name in splits[0] if f"{name}_mask" in added or (nulls == "mask" and name in with_nulls)
    )
    schema: list[Column] = []
    padded: dict[str, int] = {}
    for name in splits[0]:
        parts = [columns[name] for columns in splits]
        schema += _result_columns(name, parts, ragged, padded, f"{name}_length" in added)
        if name in masked:
            schema.append(Column(f"{name}_mask", "tensor", "bool"))
    times = frozenset(name for name, data in splits[0].items() if data.times)
    return Policies(checked_schema(schema), masked, padded, nulls, times)


def added_columns(names: Iterable[str], there: Collection[str], nulls: str, ragged: str) -> dict[str, str]:
    """Names among ``names`` that policies add to data with the columns ``there``, with the column each is made of.

    Raises:
        ColumnError: a name is of a column that another policy would add.
    """
    suffixes = {"_mask": ("nulls", "mask", nulls), "_length": ("ragged", "pad", ragged)}
    found = {}
    for name in names:
        for suffix, (argument, wanted, given) in suffixes.items():
            base = name.removesuffix(suffix)
            if name in there or base == name or base not in there:
                continue
            if given != wanted:
                raise ColumnError(
                    f"the data has no column {name!r}. {argument}={wanted!r} makes it of {base!r}, but {argument} is "
                    f"{given!r}. Give {argument}={wanted!r}, or leave {name!r} out."
                )
            found[name] = base
    return found


def refuse_nulls(
    found: Mapping[str, Nulls], nulls: str, labels: Collection[str], added: Collection[str]
) -> None:
    """Raise NullsError where rows to train on are null that may not be; DataError for labels.

    Args:
        found: of the columns that have some.
        nulls, labels, added: as in ``plan_policies``.
    """
    for name, rows in found.items():
        if name in labels:
            raise null_label(name, rows)
    refused = [f"column {name!r} in {rows}" for name, rows in found.items() if f"{name}_mask" not in added]
    if refused and nulls == "error":
        raise NullsError(
            f"There are null values: {'; '.join(refused)}. Remove those rows (where labels or weights are null there "
            "is no other way), or pass nulls='fill' (0, False or an empty string instead) or nulls='mask' (filled, and "
            "a column <name>_mask that is True there). A search can also learn what to put there: "
            "preprocess=[Impute('column'), ...]."
        )


def null_label(name: str, rows: Nulls, role: Literal["label", "weight"] = "label") -> DataError:
    """The error of a column of labels, or of weights, with these null rows."""
    return DataError(
        f"The {role} column {name!r} is null in {rows}. {role.capitalize()}s are never "
        f"filled, whatever nulls= says: nothing could be learned or measured there. Remove these rows, for example "
        f"with .dropna(subset=[{name!r}]) in pandas and Spark or .drop_nulls({name!r}) in polars."
    )


def null_feature(name: str, rows: Nulls, policies: Policies) -> NullsError:
    """The error of a feature with these null rows in data for a model that was trained with these policies."""
    why = "nulls='error'" if policies.nulls == "error" else "nulls='mask', but no null in this column"
    return NullsError(
        f"column {name!r} is null in {rows}, and the model was trained with {why}, so that it gives nothing for them. "
        f"Remove or fill these rows, or train with nulls='fill' or nulls='mask' (with {name}_mask as a feature) on "
        f"data that has such rows, or with preprocess=[Impute({name!r}), ...]."
    )


def pad(rows: Ragged, length: int) -> npt.NDArray[Any]:
    """Padded rows, (n, length, *shape): at most that many elements each, zeros behind them."""
    padded = np.zeros((len(rows), length, *rows.values.shape[1:]), rows.values.dtype)
    padded[np.arange(length) < rows.lengths[:, None]] = rows.values
    return padded


def _result_columns(
    name: str, parts: Sequence[ColumnData], ragged: str, padded: dict[str, int], with_length: bool
) -> list[Column]:
    lengths_wanted = with_length and ragged == "pad" and _as_lists(parts[0]) is not None
    alike = all(part.kind != "ragged" for part in parts) and len({part.column for part in parts}) == 1
    if alike and not lengths_wanted:
        return [parts[0].column]
    lists = [as_ragged(part).values for part in parts]
    lengths = np.concatenate([part.lengths for part in lists if isinstance(part, Ragged)])
    column = as_ragged(parts[0]).column
    if ragged != "keep" and not lengths.any():
        raise nothing_but_empty(name)
    if ragged == "error":
        raise ragged_rows(name, int(lengths.min()), int(lengths.max()))
    if ragged == "pad":
        padded[name] = int(lengths.max())
        whole = Column(name, "tensor", column.dtype, (padded[name], *column.shape))
        return [whole, Column(f"{name}_length", "tensor", "int64")]
    return [column]


def nothing_but_empty(name: str) -> DataError:
    """The error of a column that would be padded to nothing."""
    return DataError(
        f"Column {name!r} holds nothing but empty lists, so that there is no length to give all rows. Leave it out, "
        "give rows that have values, or pass ragged='keep' (values and offsets)."
    )


def ragged_rows(name: str, shortest: int, longest: int) -> DataError:
    """The error of a column that may not be ragged, but is."""
    return DataError(
        f"Column {name!r} is ragged: its rows have {shortest} to {longest} values. Pass ragged='pad' "
        f"(zeros up to the longest, and a column {name}_length) or ragged='keep' (values and offsets)."
    )


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
        if column.kind == "ragged" and 0 in column.shape:
            raise DataError(
                f"Column {column.name!r} has rows of arrays {list(column.shape)}, which hold nothing. Leave it out."
            )
        width = column.width
        if width is not None and not 0 < width <= _MAX_WIDTH:
            raise DataError(
                f"Column {column} has rows of {width} bytes; a row must have 1 to {_MAX_WIDTH} bytes. "
                "Drop or split the column."
            )
    return Schema(columns)


def _check_same(splits: Sequence[ConvertedColumns]) -> None:
    for val in splits[1:]:
        for name, data in splits[0].items():
            mine, its = data.column, val[name].column
            both_lists = "ragged" in (mine.kind, its.kind) and _as_lists(data) == _as_lists(val[name])
            if mine != its and not both_lists:
                raise DataError(
                    f"Column {name!r} is {mine} in the training data but {its} in the validation data. Give both the "
                    f"same dtype and shape{_as_text(name) if 'string' in (mine.kind, its.kind) else ''}."
                )


def _as_text(name: str) -> str:
    return f"; as_source(path, types={{{name!r}: 'text'}}) instead of a path reads a column of CSV as text"


def _as_lists(data: ColumnData) -> Column | None:
    """The column as lists, or None if its rows are no lists."""
    if data.kind == "ragged":
        return data.column
    return as_ragged(data[:0]).column if data.kind == "tensor" and data.column.shape else None
