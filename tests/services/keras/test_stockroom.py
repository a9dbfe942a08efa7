"""Columns and models of a stockroom in TensorFlow and Keras."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.stockroom.data.conftest import objects as objects
from tests.stockroom.data.test_joined import IMAGES
from tests.stockroom.data.test_joined import samples as samples
from tests.stockroom.models.test_shelf import same
from tests.stockroom.models.test_shelf import shelf as shelf
from tests.stockroom.models.test_shelf import staged as staged

from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.models import ModelShelf


def test_the_outputs_of_every_framework_are_there(samples: JoinedSamples) -> None:
    loader = samples.loader(10, columns=["image", "label"], output="torch")
    assert next(iter(loader))["image"].dtype == torch.uint8
    pytest.importorskip("jax")
    assert next(iter(samples.loader(10, columns=["label"], output="jax")))["label"].tolist() == list(
        range(10)
    )
    pytest.importorskip("tensorflow")
    batch = next(iter(samples.tf_dataset(10, columns=["image", "name"])))
    assert batch["image"].numpy().tolist() == IMAGES[:10].tolist()
    pytest.importorskip("keras")
    (x, y), *_ = [samples.keras_dataset("image", "label", batch_size=10)[0]]
    assert (x.shape, y.shape) == ((10, 4, 3), (10,))


def test_a_keras_model_is_its_weights_by_path(shelf: ModelShelf) -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="out")])
    shelf["m"] = model
    loaded = shelf["m"]
    assert [path.rpartition("/")[2] for path in loaded] == ["kernel", "bias"]
    assert all(map(np.array_equal, loaded.values(), model.get_weights()))
    model.set_weights(list(loaded.values()))
    shelf["list"] = model.get_weights()
    assert same(shelf["list"], model.get_weights())
