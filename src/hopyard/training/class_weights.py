"""Weights of classes in the loss of training, as estimators of every framework check them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hopyard.errors import EstimatorError


def class_weights(given: Any) -> tuple[dict[int, float], bool]:
    """The weight of each class, and whether there may be other classes, which weigh 1: they were given as a dict.

    Raises:
        EstimatorError: they are no weights of classes.
    """
    said = f"class_weight={given!r} was given, but"
    if isinstance(given, str) or not (hasattr(given, "__len__") and hasattr(given, "__iter__")):
        raise EstimatorError(
            f"{said} it must be a dict of classes and weights, or a sequence with a weight for each class. Weights "
            "that balance classes are {class: rows / (classes * rows of the class)}, counted in the training data."
        )
    if isinstance(given, Mapping) and not all(map(_is_class, given)):
        raise EstimatorError(
            f"{said} its keys must be classes: ints from 0, as in the label column; e.g. "
            "class_weight={0: 1.0, 1: 5.0}."
        )
    try:
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        weights = {int(key): float(weight) for key, weight in pairs}
    except (TypeError, ValueError):
        weights = {}
    if len(weights) < len(given) or not all(weight >= 0 for weight in weights.values()):
        raise EstimatorError(
            f"{said} weights are numbers of at least 0. Give classes that should not count the weight 0."
        )
    return weights, isinstance(given, Mapping)


def _is_class(key: Any) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool) and bool(key >= 0)


def no_class(value: float) -> EstimatorError:
    """The error of a label that ``class_weight`` cannot weigh."""
    return EstimatorError(
        f"class_weight was given, but the labels hold {value:g}, and classes are whole numbers from 0. Use "
        "sample_weight_column to weigh rows of other labels."
    )


def class_without_weight(number: int, weights: int) -> EstimatorError:
    """The error of a class beyond those of a sequence of weights."""
    return EstimatorError(
        f"class_weight was given as a sequence of {weights}, but the labels hold class {number}. Give it a weight for "
        "each class, or a dict, whose other classes weigh 1."
    )
