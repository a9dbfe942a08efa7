import gc
import itertools
import os
import threading

import numpy as np
import pytest

from hopyard.data import open_dataset
from hopyard.errors import UsageError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("tensorflow")

import tensorflow as tf

NAMES = ("id", "image", "small", "half", "flag", "unsigned", "text", "blob", "list")


@pytest.fixture
def dataset(make_dataset):
    return make_dataset([[10, 10, 7]], NAMES)


def ids(batches):
    return [batch["id"].numpy().tolist() for batch in batches]


def expected_ids(dataset, **options):
    return [batch["id"].tolist() for batch in dataset.loader(**options)]


def test_elements_have_exact_types_and_shapes(dataset):
    spec = dataset.tf_dataset(4).element_spec
    assert spec == {
        "id": tf.TensorSpec((None,), tf.int64),
        "image": tf.TensorSpec((None, 3, 5), tf.float32),
        "small": tf.TensorSpec((None,), tf.int8),
        "half": tf.TensorSpec((None,), tf.float16),
        "flag": tf.TensorSpec((None,), tf.bool),
        "unsigned": tf.TensorSpec((None,), tf.uint32),
        "text": tf.TensorSpec((None,), tf.string),
        "blob": tf.TensorSpec((None,), tf.string),
        "list": tf.RaggedTensorSpec((None, None), tf.int32, 1, tf.int64),
    }


def test_elements_are_the_batches_of_the_stream_epoch_by_epoch(dataset):
    batches = dataset.tf_dataset(4, shuffle=True, seed=3)
    expected = dataset.loader(4, shuffle=True, seed=3)
    assert batches.cardinality().numpy() == len(batches) == 7
    for _ in range(2):
        for batch, its in zip(batches, expected, strict=True):
            for name in "id", "image", "small", "half", "flag", "unsigned":
                assert np.array_equal(batch[name].numpy(), its[name])
            assert [text.decode() for text in batch["text"].numpy()] == its["text"].tolist()
            assert batch["blob"].numpy().tolist() == its["blob"].tolist()
            assert batch["list"].to_list() == [row.tolist() for row in its["list"]]


def test_repeat_goes_on_with_the_next_epochs_and_prefetch_changes_nothing(dataset):
    batches = dataset.tf_dataset(4, shuffle=True).repeat(3).prefetch(2)
    assert batches.cardinality().numpy() == 21
    assert ids(batches) == [
        batch
        for epoch in range(3)
        for batch in expected_ids(dataset, batch_size=4, shuffle=True, epoch=epoch)
    ]


def test_tensors_keep_their_content_while_the_dataset_goes_on(make_dataset):
    dataset = make_dataset([[512, 512]], ("image",))
    held = list(dataset.tf_dataset(64, shuffle=True).repeat(3))
    expected = [
        batch["image"] for epoch in range(3) for batch in dataset.loader(64, shuffle=True, epoch=epoch)
    ]
    for tensor, its in zip(held, expected, strict=True):
        assert np.array_equal(tensor["image"].numpy(), its)


def test_training_goes_on_at_any_batch(dataset):
    batches = dataset.tf_dataset(4, shuffle=True, epoch=2, skip=3)
    assert ids(batches) == expected_ids(dataset, batch_size=4, shuffle=True, epoch=2)[3:]
    assert ids(batches) == expected_ids(dataset, batch_size=4, shuffle=True, epoch=3)
    assert batches.cardinality().numpy() == tf.data.UNKNOWN_CARDINALITY
    with pytest.raises(
        UsageError, match=r"skip=7, but an epoch has 7 batches. Give how many of them were used, 0 to 6"
    ):
        dataset.tf_dataset(4, skip=7)


def test_iterations_side_by_side_are_epochs_of_their_own(dataset):
    batches = dataset.tf_dataset(4, shuffle=True)
    pairs = list(tf.data.Dataset.zip((batches, batches)))
    epochs = {str(ids(side)) for side in zip(*pairs, strict=True)}
    assert epochs == {str(expected_ids(dataset, batch_size=4, shuffle=True, epoch=epoch)) for epoch in (0, 1)}


def test_columns_transform_and_drop_last_are_those_of_loaders(dataset):
    def augment(batch, rng):
        return {"x": batch["image"] + rng.random(), "id": batch["id"]}

    options = {
        "batch_size": 4,
        "shuffle": True,
        "columns": ["id", "image"],
        "transform": augment,
        "drop_last": True,
    }
    batches = dataset.tf_dataset(**options)
    assert batches.element_spec["x"] == tf.TensorSpec((None, 3, 5), tf.float32)
    for batch, its in zip(batches, dataset.loader(**options), strict=True):
        assert np.array_equal(batch["x"].numpy(), its["x"])
    assert len(batches) == 6
    stacked = dataset.tf_dataset(4, columns={"pair": ["id", "id"]})
    assert stacked.element_spec == {"pair": tf.TensorSpec((None, 2), tf.int64)}


def test_what_does_not_fit_is_refused(dataset):
    with pytest.raises(UsageError, match="transform= returned a tuple, but elements of tf_dataset"):
        dataset.tf_dataset(4, transform=lambda batch, rng: (1, 2))
    with pytest.raises(UsageError, match="output= was given, but belongs to loader"):
        dataset.tf_dataset(4, output="numpy")


def test_an_iteration_that_is_left_ends_what_is_in_the_background(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = set(threading.enumerate())

    def windows():
        begun = set(threading.enumerate()) - before
        return [thread for thread in begun if thread.name.startswith("hopyard-window")]

    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"x": [[float(i)] * 8 for i in range(4000)]}), path, row_group_size=500)
    batches = open_dataset(path, ragged="pad").tf_dataset(10, shuffle=True, window=64_000)
    iterator = iter(batches)
    list(itertools.islice(iterator, 3))
    assert windows()
    del iterator
    gc.collect()
    assert not windows()


def test_keras_fits_on_it(make_dataset):
    keras = pytest.importorskip("keras")
    dataset = make_dataset([[10, 10]], ("id", "image"))
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    pairs = dataset.tf_dataset(4, shuffle=True).map(lambda batch: (batch["image"], batch["id"]))
    history = model.fit(pairs, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
