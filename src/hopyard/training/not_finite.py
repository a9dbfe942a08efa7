"""Columns that hold NaN or infinite numbers, named once a loss or a metric is not finite."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from hopyard.training.estimator import Visit
from hopyard.training.metrics import canonical
from hopyard.training.program import Program

_ROWS_AT_ONCE = 4096


def columns_not_finite(program: Program, visit: Visit) -> str:
    """A sentence, after a space, that names the features and labels of a visit's rows that are not finite, and how
    many rows; empty if all are."""
    names = list(dict.fromkeys([*program.feature_columns, *program.label_columns]))
    bad = dict.fromkeys(names, 0)
    for batch in visit.validation_batches(_ROWS_AT_ONCE, names, "numpy"):
        for name, values in batch.items():
            bad[name] += _rows_not_finite(values)
    found = [f"{name!r} in {count} of {len(visit.rows)} rows" for name, count in bad.items() if count]
    if not found:
        return ""
    return (
        f" NaN or infinite numbers are in the data: column {', '.join(found)} of this partition. Fill them or leave "
        "these rows out; Hopyard takes NaN for a number, but in pandas frames for a missing one."
    )


def undefined_metrics(names: Collection[str], where: str) -> str:
    """A sentence that these metrics are nan, and why that may be."""
    listed = ", ".join(names)
    why = (
        " An AUC is nan where all rows are of one class, or outputs are not finite: measure it on rows of each class."
        if any(canonical(name.removeprefix("train_")) == "auc" for name in names)
        else " There is no such number for these rows and outputs."
    )
    return f"{listed} {where} is nan, so that nothing can be ranked by it.{why}"


def _rows_not_finite(values: Any) -> int:
    """Number of rows that hold a number that is not finite; 0 for columns without floats."""
    if not isinstance(values, np.ndarray):  # rows of different lengths
        parts = [] if values.values.dtype.kind != "f" else list(values)
        return sum(not np.isfinite(part).all() for part in parts)
    if values.dtype.kind != "f":
        return 0
    return int((~np.isfinite(values.reshape(len(values), -1))).any(axis=1).sum())
