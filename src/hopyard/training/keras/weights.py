"""Weights of rows by their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hopyard.errors import EstimatorError
from hopyard.training.estimator import ClassWeight


def class_table(class_weight: ClassWeight) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """A function from labels (n,), (n, 1) or one-hot (n, classes) to (n,) float32: classes that are not in a dict
    weigh 1.

    Raises:
        EstimatorError: keys are not classes, or weights are below 0.
    """
    if isinstance(class_weight, Mapping):
        keys: list[Any] = list(class_weight)
        if any(isinstance(key, bool) or not isinstance(key, (int, np.integer)) or key < 0 for key in keys):
            raise EstimatorError(
                f"class_weight={class_weight!r} was given, but its keys must be classes: ints from 0, as in the label "
                "column; e.g. class_weight={0: 1.0, 1: 5.0}."
            )
        table = np.ones(max(keys, default=0) + 2, np.float32)  # the last entry is that of all further classes
        for key, weight in class_weight.items():
            table[key] = weight
    else:
        table = np.append(np.asarray(class_weight, np.float32), np.float32(1))
    if not (table >= 0).all():
        raise EstimatorError(
            f"class_weight={class_weight!r} was given, but weights are numbers of at least 0. Give classes that should "
            "not count the weight 0."
        )

    def weights(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if labels.ndim > 1 and labels.shape[-1] > 1:
            labels = labels.argmax(axis=-1)
        if labels.size != len(labels):
            raise EstimatorError(
                "class_weight was given, but labels are not one class per row; use sample_weight_column instead."
            )
        classes = labels.reshape(-1).astype(np.int64)
        return table[np.clip(classes, 0, len(table) - 1)]

    return weights
