"""Ensembles of models of Keras are refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopyard.backend import InlineBackend
from hopyard.errors import EstimatorError
from hopyard.storage import MemoryStore
from hopyard.tune import GridSearch, hp_choice


def test_an_ensemble_of_models_of_keras_is_refused_with_what_to_do_instead() -> None:
    keras = pytest.importorskip("keras")
    from hopyard.keras import KerasEstimator

    def made(params: dict[str, Any]) -> Any:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        return KerasEstimator(model, keras.optimizers.SGD(params["lr"]), "mse", batch_size=16)

    features = np.random.default_rng(0).standard_normal((48, 4)).astype("f4")
    run = GridSearch(
        InlineBackend(), MemoryStore(), made, {"lr": hp_choice([0.01, 0.1])}, 1, evaluation_metric="loss",
        progress=False,
    ).fit({"features": features, "label": features.sum(axis=1, keepdims=True)}).run  # fmt: skip
    with pytest.raises(
        EstimatorError, match="members that a TorchEstimator trained, but these are models of keras"
    ):
        run.ensemble(2)
    # The next step that the error names.
    mean = np.mean([model.predict(features) for model in run.models], axis=0)
    assert mean.shape == (48, 1)
