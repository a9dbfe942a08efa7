import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hopyard.data import prepare
from hopyard.errors import UnsupportedTypeError, UsageError
from hopyard.storage import MemoryStore

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")

import keras


@pytest.fixture
def dataset(make_dataset):
    return make_dataset([[10, 10, 7]], ("id", "image", "half", "small"))


def ids(batches):
    return [batches[number][1].tolist() for number in range(len(batches))]


def test_batches_are_those_of_the_stream_epoch_by_epoch(dataset):
    batches = dataset.keras_dataset("image", "id", batch_size=4, shuffle=True, seed=1, epoch=2)
    assert len(batches) == batches.num_batches == 7
    expected = dataset.loader(4, shuffle=True, seed=1, epoch=2)
    for _ in range(2):
        for number, its in enumerate(expected):
            x, y = batches[number]
            assert np.array_equal(x, its["image"])
            assert np.array_equal(y, its["id"])
        batches.on_epoch_end()


def test_fit_gets_the_epochs_in_turn_also_if_it_builds_the_model_first(dataset):
    batches = dataset.keras_dataset("id", "id", batch_size=4, shuffle=True, seed=1)
    expected = [
        [its["id"].tolist() for its in loader] for loader in [dataset.loader(4, shuffle=True, seed=1)] * 3
    ]
    seen = []

    class Recorder(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(keras.ops.cast(x, "float32")[:, None])

        def train_step(self, data):
            seen.append(np.asarray(data[0]).tolist())
            return super().train_step(data)

    model = Recorder()
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(batches, epochs=2, shuffle=False, verbose=0)
    model.fit(batches, epochs=1, shuffle=False, verbose=0)
    assert [seen[first : first + 7] for first in (0, 7, 14)] == expected


def test_threads_may_ask_for_any_batch(dataset):
    batches = dataset.keras_dataset("image", "id", batch_size=4, shuffle=True)
    whole = ids(batches)
    order = np.random.default_rng(0).integers(0, 7, 200).tolist()
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda number: batches[number][1].tolist(), order))
    assert got == [whole[number] for number in order]


def test_columns_become_inputs_labels_and_weights(dataset):
    x, y, weights = dataset.keras_dataset(["image", "small"], "id", "half", batch_size=4)[0]
    assert list(x) == ["image", "small"]
    assert y.tolist() == [0, 1, 2, 3]
    assert weights.dtype == np.float16
    (x,) = dataset.keras_dataset({"pair": ["id", "id"], "other": "small"}, batch_size=4)[0]
    assert x["pair"].tolist() == [[row, row] for row in range(4)]
    with pytest.raises(
        UsageError, match=r"'a' names two different things: 'id' and 'small'. Give each of inputs="
    ):
        dataset.keras_dataset({"a": "id"}, {"a": "small"})


@pytest.mark.parametrize("workers", [1, 3])
def test_lists_of_several_lengths_are_padded_or_refused_with_the_policy_to_give(workers):
    lists = {"x": [[1.0, 2.0, 3.0], [4.0], [], [5.0, 6.0]] * 4, "y": np.arange(16.0)}
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def pad(batch, rng):
        return {**batch, "x": np.stack([np.pad(row, (0, 3 - len(row))) for row in batch["x"]])}

    kept = prepare(lists, MemoryStore(), None, ragged="keep").train
    text = "'x' holds lists of several lengths, but Keras takes arrays: .* with ragged='pad' .* or pad the lists in tr"
    with pytest.raises(UnsupportedTypeError, match=text):
        model.fit(kept.keras_dataset("x", "y", batch_size=4, workers=workers), shuffle=False, verbose=0)
    padded = prepare(lists, MemoryStore(), None, ragged="pad").train
    for dataset, options in ((padded, {}), (kept, {"transform": pad})):
        batches = dataset.keras_dataset("x", "y", batch_size=4, workers=workers, **options)
        assert batches[0][0].shape == (4, 3)
        model.fit(batches, shuffle=False, verbose=0)


@pytest.mark.parametrize("workers", [1, 3])
def test_keras_trains_evaluates_and_predicts_on_it(dataset, workers):
    keras.utils.set_random_seed(0)
    inputs = {"image": keras.Input((3, 5), name="image"), "small": keras.Input((1,), name="small")}
    joined = keras.layers.concatenate([keras.layers.Flatten()(inputs["image"]), inputs["small"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile("sgd", "mse")
    batches = dataset.keras_dataset(
        ["image", "small"], "id", "half", batch_size=4, shuffle=True, workers=workers,
    )  # fmt: skip
    before = ids(batches)
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert ids(batches) != before
    plain = dataset.keras_dataset(["image", "small"], "id", "half", batch_size=4, workers=workers)
    rows = dataset[:]
    expected = model.predict({"image": rows["image"], "small": rows["small"][:, None]}, verbose=0)
    assert np.allclose(model.predict(plain, verbose=0), expected, rtol=1e-4)
    assert model.evaluate(plain, verbose=0) >= 0


ON_TORCH = """
import numpy as np, keras
from hopyard.data import prepare
from hopyard.storage import LocalStore

assert keras.backend.backend() == "torch"
random = np.random.default_rng(0)
x = random.normal(size=(256, 4)).astype("float32")
train = prepare({"x": x, "y": x.sum(1)}, LocalStore("store"), validation=None).train
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
losses = model.fit(
    train.keras_dataset("x", "y", batch_size=32, shuffle=True), epochs=3, shuffle=False, verbose=0
).history["loss"]
assert losses[-1] < 0.1 * losses[0], losses
"""


def test_keras_on_torch_trains_on_it(tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, "-c", ON_TORCH], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
