"""Encoded images in TensorFlow's datasets and Keras'."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hopyard.data import NodeCache, image, open_dataset

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

import keras


@pytest.fixture
def photos(tmp_path):
    """The dataset, and what Pillow makes of its images."""
    pictures = np.random.default_rng(0).integers(0, 256, (40, 16, 24, 3), np.uint8)
    files = [io.BytesIO() for _ in pictures]
    for file, picture in zip(files, pictures, strict=True):
        Image.fromarray(picture).save(file, "JPEG")
    table = {"photo": [file.getvalue() for file in files], "id": np.arange(40), "y": np.zeros(40, np.float32)}
    pq.write_table(pa.table(table), tmp_path / "photos.parquet", row_group_size=9)
    dataset = open_dataset(
        tmp_path / "photos.parquet", decode={"photo": image()}, cache=NodeCache(tmp_path / "cache")
    )
    return dataset, np.stack([np.asarray(Image.open(file)) for file in files])


def test_tensorflow_gets_each_image_once_an_epoch(photos):
    dataset, expected = photos
    batches = dataset.tf_dataset(7, shuffle=True, columns=["id", "photo"])
    assert batches.element_spec["photo"].shape.as_list() == [None, 16, 24, 3]
    for _ in range(2):
        seen = []
        for batch in batches.as_numpy_iterator():
            np.testing.assert_array_equal(batch["photo"], expected[batch["id"]])
            seen += batch["id"].tolist()
        assert sorted(seen) == list(range(40))


def test_keras_may_ask_for_batches_in_any_order(photos):
    dataset, expected = photos
    batches = dataset.keras_dataset("photo", "id", batch_size=7, shuffle=True)
    for _ in range(2):
        for number in [3, 0, 1, 2, 5, 4, 4]:
            x, y = batches[number]
            np.testing.assert_array_equal(x, expected[y])
        batches.on_epoch_end()


def test_keras_fits_on_images(photos):
    dataset, _ = photos
    inputs = keras.Input((16, 24, 3))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(inputs)))
    model.compile("sgd", "mse")
    history = model.fit(
        dataset.keras_dataset("photo", "y", batch_size=8, shuffle=True), epochs=2, shuffle=False, verbose=0
    )
    assert len(history.history["loss"]) == 2
