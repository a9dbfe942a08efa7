"""The split: choice of the rows for validation."""

from __future__ import annotations

import logging
import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.data.combining.windows import Windows
from hopyard.data.preparing.survey import SplitCounts, split_numbers
from hopyard.data.schema import Column
from hopyard.data.sources.hashing import Hashes
from hopyard.errors import DataError

_log = logging.getLogger("hopyard")
_SHARE_OFF = 0.02
"""Deviation of the validation set's share that is not warned of; of a few rows, one is more."""


def check_share(validation: Any) -> None:
    """Refuse a share that is not between 0 and 1."""
    if isinstance(validation, bool) or not 0 < validation < 1:
        raise DataError(
            f"validation={validation!r} is not a share: it must be greater than 0 and less than 1. Give a share "
            "such as 0.25, the name of a bool or int column, a second frame, or None for no validation set."
        )


def validation_of(validation: Any, val: Any) -> tuple[float | str | None, Any]:
    """How rows are split, by a share or a column, and the explicit validation set; at most one of them.

    Raises:
        DataError: the share is none.
    """
    if val is not None or validation is None or isinstance(validation, str):
        return None if val is not None else validation, val
    if not isinstance(validation, numbers.Real):
        return None, validation
    check_share(validation)
    return float(validation), None


def warn_of_overlap(data: Any, validation: Any) -> None:
    """Log that a share of overlapping windows is no test, if ``validation`` is a share and ``data`` such windows."""
    if isinstance(data, Windows) and data.overlap and isinstance(validation, float):
        _log.warning(
            "validation=%s draws at random from windows that overlap, so that rows of the validation set are trained "
            "on too, and its metrics say little about new data. Give windows of other rows as val=, chosen by time or "
            "series with open_dataset(filters=...).windows(...); or make windows that do not overlap, with a larger "
            "step=.",
            validation,
        )


def held_by_share(hashes: Hashes, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """(n,) the rows for validation, by their hashes before ``mix``: the share of them with the lowest numbers.

    Raises:
        DataError: one of the sets would be empty.
    """
    numbers, counts = split_numbers(hashes, seed), SplitCounts(share)
    counts.add(numbers)
    cut, val_rows = counts.cut(explicit=False)
    check_split(share, len(numbers), val_rows)
    return numbers < cut


def warn_of_equal(train: Hashes, val: Hashes) -> None:
    """Log the number of rows of a given validation set that are equal to rows for training, by their hashes."""
    warn_of_common(int(np.count_nonzero(np.isin(val, train))), len(val))


def warn_of_common(common: int, rows: int) -> None:
    """Log that ``common`` of the ``rows`` of a validation set are trained on, if any are."""
    if common:
        _log.warning(
            "%d of the %d rows of the validation set are equal to rows for training in all columns that are used. If "
            "they are the same samples, its metrics say little about new data: leave them out of one of the two.",
            common,
            rows,
        )


def check_split(validation: Any, rows: int, val_rows: int) -> None:
    """Raise DataError if a set is empty; log it if equal rows kept the share from the one asked for."""
    if not 0 < val_rows < rows:
        raise DataError(
            f"validation={validation!r} leaves the {'training' if val_rows else 'validation'} set empty ({rows} rows "
            "in all). Give another share or column, more rows, or None for no validation set; rows that are equal stay "
            "together where a share splits them."
        )
    off = abs(val_rows - validation * rows) if isinstance(validation, float) else 0.0
    if off > max(_SHARE_OFF * rows, 1.0):  # less than a row is rounding
        _log.warning(
            "validation=%s was asked for, but %.3f of the rows are in the validation set: rows that are equal stay "
            "on one side, and many of these %d are. A column that splits says it exactly.",
            validation,
            val_rows / rows,
            rows,
        )


def check_flags(column: Column) -> None:
    """Raise DataError if a column cannot say which rows are for validation."""
    if column.kind != "tensor" or column.shape or np.dtype(column.dtype).kind not in "biu":
        raise DataError(
            f"Column {column.name!r} cannot split the data: it is {column}, but must hold bools or ints, True or "
            "above 0 for rows of the validation set."
        )
