"""Weights of rows by their class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hopyard.errors import EstimatorError
from hopyard.training.class_weights import class_weights, class_without_weight, no_class
from hopyard.training.estimator import ClassWeight


def class_table(class_weight: ClassWeight) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """A function from labels (n,), (n, 1) or one-hot (n, classes) to (n,) float32: classes that are not in a dict
    weigh 1.

    Raises:
        EstimatorError: they are no weights of classes; later, labels have none.
    """
    of_class, others_weigh_one = class_weights(class_weight)
    # The last entry is that of all further classes.
    table = np.ones(max(of_class, default=-1) + 2, np.float32)
    for number, weight in of_class.items():
        table[number] = weight

    def weights(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if labels.ndim > 1 and labels.shape[-1] > 1:
            labels = labels.argmax(axis=-1)
        if labels.size != len(labels):
            raise EstimatorError(
                "class_weight was given, but labels are not one class per row; use sample_weight_column instead."
            )
        given = labels.reshape(-1)
        classes = given.astype(np.int64)
        if len(bad := given[(given < 0) | (given != classes)]):
            raise no_class(float(bad[0]))
        if not others_weigh_one and len(bad := classes[classes >= len(of_class)]):
            raise class_without_weight(int(bad[0]), len(of_class))
        return table[np.minimum(classes, len(table) - 1)]

    return weights
