"""Which rows are for validation, and the order in which rows are stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.combining.windows import Windows
from hopyard.data.frames.hashing import Hashes
from hopyard.data.frames.packing import content_hashes, split_key
from hopyard.data.order import Rows, permutation
from hopyard.data.preparing.policies import Nulls
from hopyard.data.sources.columns import ColumnData
from hopyard.errors import DataError

_log = logging.getLogger("hopyard")
_SHARE_OFF = 0.02
"""How far the share of the validation set may be off without a word; of a few rows, one is more."""


@dataclass(frozen=True)
class Split:
    """Numbers of the source's rows, in the order in which they are stored; val None: no such split."""

    train: Rows
    val: Rows | None


def check_share(validation: Any) -> None:
    """Refuse a share that is not between 0 and 1."""
    if isinstance(validation, bool) or not 0 < validation < 1:
        raise DataError(
            f"validation={validation!r} is not a share: it must be greater than 0 and less than 1. Give a share "
            "such as 0.25, the name of a bool or int column, a second frame, or None for no validation set."
        )


def warn_of_overlap(data: Any, validation: Any) -> None:
    """Say that a share of windows that overlap is no test, if ``validation`` is a share and ``data`` is such."""
    if isinstance(data, Windows) and data.overlap and isinstance(validation, float):
        _log.warning(
            "validation=%s draws at random from windows that overlap, so that rows of the validation set are trained "
            "on too, and its metrics say little about new data. Give windows of other rows as val=, chosen by time or "
            "series with open_dataset(filters=...).windows(...); or make windows that do not overlap, with a larger "
            "step=.",
            validation,
        )


def split_rows(columns: Mapping[str, ColumnData], validation: float | str | None, seed: int) -> Split:
    """One permutation of all rows, and which are for validation: by column those whose value is True or above 0; by
    share those whose content has the lowest hashes, so that rows that are equal are on one side.

    Raises:
        DataError: the column is not of bools or ints, has nulls, or one of the sets would be empty.
    """
    rows = len(next(iter(columns.values())))
    order = permutation(rows, seed)
    if validation is None:
        return Split(order, None)
    if isinstance(validation, str):
        flags = _flags(columns[validation])[order]
        split = Split(order[~flags], order[flags])
    else:
        return split_by_share(content_hashes(columns), order, validation, seed)
    assert split.val is not None
    check_split(validation, rows, len(split.val))
    return split


def split_by_share(hashes: Hashes, order: Rows, share: float, seed: int) -> Split:
    """Rows in this order, with the share of them for validation whose content has the lowest hashes.

    Raises:
        DataError: one of the sets would be empty.
    """
    held = _lowest(split_key(hashes, seed), share)[order]
    split = Split(order[~held], order[held])
    check_split(share, len(order), int(held.sum()))
    return split


def warn_of_equal(train: Hashes, val: Hashes) -> None:
    """Say how many rows of a validation set that was given are equal to rows for training, by their hashes."""
    warn_of_common(int(np.count_nonzero(np.isin(val, train))), len(val))


def warn_of_common(common: int, rows: int) -> None:
    """Say that so many of the rows of a validation set are trained on, if any are."""
    if common:
        _log.warning(
            "%d of the %d rows of the validation set are equal to rows for training in all columns that are used. If "
            "they are the same samples, its metrics say little about new data: leave them out of one of the two.",
            common,
            rows,
        )


def check_split(validation: Any, rows: int, val_rows: int) -> None:
    """Raise DataError if a set is empty; say it if equal rows kept a share from being what was asked for."""
    if not 0 < val_rows < rows:
        raise DataError(
            f"validation={validation!r} leaves the {'training' if val_rows else 'validation'} set empty ({rows} rows "
            "in all). Give another share or column, more rows, or None for no validation set; rows that are equal stay "
            "together where a share splits them."
        )
    if isinstance(validation, float) and abs(val_rows / rows - validation) > _SHARE_OFF:
        _log.warning(
            "validation=%s was asked for, but %.3f of the rows are in the validation set: rows that are equal stay "
            "on one side, and many of these %d are. A column that splits says it exactly.",
            validation,
            val_rows / rows,
            rows,
        )


def _lowest(keys: Hashes, share: float) -> npt.NDArray[np.bool_]:
    """The rows with the lowest keys, as many as come nearest to the share if rows with equal keys stay together."""
    count = round(len(keys) * share)
    if count in (0, len(keys)):
        return np.full(len(keys), count > 0)
    bound = np.partition(keys, count)[count]
    candidates = [held for held in (keys < bound, keys <= bound) if 0 < held.sum() < len(keys)]
    return min(candidates, key=lambda held: abs(int(held.sum()) - count), default=keys < bound)


def _flags(data: ColumnData) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    column, values = data.column, data.values
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "biu":
        raise DataError(
            f"Column {column.name!r} cannot split the data: it is {column}, but must hold bools or ints, True or "
            "above 0 for rows of the validation set."
        )
    if data.missing is not None:
        raise DataError(
            f"Column {column.name!r} splits the data but is null in {Nulls.of([data.missing], numbered=True)}. Say for "
            "every row whether it is for validation."
        )
    return np.asarray(values > 0)
