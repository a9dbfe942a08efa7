"""The network: an embedding for each categorical column, beside the continuous ones, and dense layers on top."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "2"
)  # TensorFlow tells of its processor each time it is imported

import keras
from keras import layers, ops

from hopyard.keras import KerasEstimator


class ExpRmspe(keras.metrics.Metric):
    """Root mean square percentage error of sales, from their logarithms: sqrt(mean(((y - p) / y) ** 2)).

    It keeps the sum and the number of rows, not a mean of roots, so that it is exact over batches and partitions.
    """

    def __init__(self, name: str = "exp_rmspe", **others: Any) -> None:
        super().__init__(name=name, **others)
        self.squares = self.add_weight(name="squares", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = 1 - ops.exp(ops.reshape(y_pred, (-1,)) - ops.reshape(y_true, (-1,)))
        self.squares.assign_add(ops.sum(ops.square(errors)))
        self.rows.assign_add(ops.sum(ops.ones_like(errors)))

    def result(self) -> Any:
        return ops.sqrt(ops.divide_no_nan(self.squares, self.rows))


def make_network(
    sizes: Mapping[str, int],
    continuous: Sequence[str],
    max_sales: int,
    widths: Sequence[int],
    l2: float,
    dropout: float,
) -> keras.Model:
    """A model from columns, an input for each and called like it, to the logarithm of sales.

    Args:
        sizes: how many values each categorical column has.
        continuous: the other columns.
        max_sales: outputs stay below 1.2 times its logarithm.
        widths: of the dense layers.
        l2: of their weights.
        dropout: before the output.
    """
    codes = {name: keras.Input((1,), name=name, dtype="int32") for name in sizes}
    numbers = {name: keras.Input((1,), name=name) for name in continuous}
    embedded = [
        layers.Flatten()(layers.Embedding(size, min(10, (size + 1) // 2))(codes[name]))
        for name, size in sizes.items()
    ]
    scaled = layers.BatchNormalization()(layers.Concatenate()(list(numbers.values())))
    hidden = layers.Concatenate()([*embedded, scaled])
    for width in widths:
        hidden = layers.Dense(width, activation="relu", kernel_regularizer=keras.regularizers.L2(l2))(hidden)
    hidden = layers.Dropout(dropout)(hidden)
    share = layers.Dense(1, activation="sigmoid")(hidden)
    output = layers.Rescaling(1.2 * math.log(max_sales))(share)
    return keras.Model([*codes.values(), *numbers.values()], output)


def make_estimator(
    sizes: Mapping[str, int],
    continuous: Sequence[str],
    max_sales: int,
    rows: int,
    epochs: int,
    hidden: int,
    dropout: float,
) -> Callable[[dict[str, Any]], KerasEstimator]:
    """The function that a search calls with a point of its space.

    Args:
        rows, epochs: of training; the learning rate falls to 0 over them.
        hidden: width of the dense layers; the last one has half of it.
    """

    def estimator_gen_fn(params: dict[str, Any]) -> KerasEstimator:
        widths = [hidden] * params["num_layers"] + [hidden // 2]
        steps = epochs * math.ceil(rows / params["batch_size"])
        rate = keras.optimizers.schedules.CosineDecay(params["lr"], steps)
        return KerasEstimator(
            model=make_network(sizes, continuous, max_sales, widths, params["l2"], dropout),
            optimizer=keras.optimizers.Adam(rate),
            loss="mae",
            metrics=[ExpRmspe()],
            batch_size=params["batch_size"],
        )

    return estimator_gen_fn
