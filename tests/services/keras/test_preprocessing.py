"""Layers of Keras as steps of preprocessing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.data.preprocessing.test_steps import columns, fit_on_batches

from hopyard.data import Apply
from hopyard.data.preprocessing.fitting import Steps


def test_layers_of_keras_are_adapted_and_travel() -> None:
    keras = pytest.importorskip("keras")
    data = columns()
    normalization = keras.layers.Normalization()
    numbers = np.stack([data["fare"], data["huge"] - 1e9], 1).astype(np.float32)
    data["small"] = numbers[:, 1]
    lookup = keras.layers.StringLookup()
    given = [Apply(normalization, "fare", "small", output="n"), Apply(lookup, "deck")]
    definition = Steps.of(given).definition()
    fitted = pickle.loads(pickle.dumps(fit_on_batches(given, data, [50])))
    made = fitted.apply(data)
    normalization.adapt(numbers)
    lookup.adapt(data["deck"])
    np.testing.assert_allclose(made["n"], np.asarray(normalization(numbers)), atol=1e-5)
    assert np.array_equal(made["deck"], np.asarray(lookup(data["deck"])))
    assert definition == fitted.steps.definition()
