"""Batches for TensorFlow: namedtuples of exact types, finite epochs, and Keras that counts steps itself."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hopyard.errors import UsageError
from hopyard.spark import SparkDatasetConverter, make_spark_converter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("CI") != "true":  # there it must not be missing
    pytest.importorskip("tensorflow")

import tensorflow as tf

from hopyard.data.converter import tensorflow_batches


@pytest.fixture
def converter(tmp_path: Path) -> SparkDatasetConverter:
    frame = pd.DataFrame({
        "id": np.arange(20), "x": np.linspace(0, 1, 20, dtype="float32"), "small": np.arange(20, dtype="int8"),
        "flag": np.arange(20) % 2 == 0, "text": [str(row) for row in range(20)],
        "blob": [bytes([row]) for row in range(20)], "a.b": [[0.5, row] for row in range(20)],
    })  # fmt: skip
    frame.to_parquet(tmp_path / "rows.parquet")
    return make_spark_converter(str(tmp_path))


def test_batches_are_namedtuples_of_exact_types(converter: SparkDatasetConverter) -> None:
    with converter.make_tf_dataset(batch_size=8) as dataset:
        batches = list(dataset)
        assert dataset.element_spec._asdict() == {
            "id": tf.TensorSpec((None,), tf.int64), "x": tf.TensorSpec((None,), tf.float32),
            "small": tf.TensorSpec((None,), tf.int8), "flag": tf.TensorSpec((None,), tf.bool),
            "text": tf.TensorSpec((None,), tf.string), "blob": tf.TensorSpec((None,), tf.string),
            "a_b": tf.TensorSpec((None, 2), tf.float64),
        }  # fmt: skip
        assert [batch.id.shape[0] for batch in batches] == [8, 8, 4]
        assert sorted(np.concatenate([batch.id for batch in batches]).tolist()) == list(range(20))
        assert [batch.id.numpy().tolist() for batch in dataset] != [
            batch.id.numpy().tolist() for batch in batches
        ]
    with converter.make_tf_dataset() as dataset:
        assert [len(batch.id) for batch in dataset] == [20]  # 32 at once by default


def test_batches_of_what_spark_wrote_have_its_types_and_shapes(spark: Any, cache: Path) -> None:
    grid = "transform(sequence(0, 3), i -> transform(sequence(0, 9), j -> cast(100 * id + 10 * i + j as {})))"
    frame = spark.range(0, 30, 1, 2).selectExpr(
        "id", "cast(id as short) short", "cast(-id as int) whole", f"{grid.format('float')} grid",
        f"{grid.format('short')} shorts", f"{grid.format('int')} wholes",
    )  # fmt: skip
    with make_spark_converter(frame).make_tf_dataset(batch_size=8) as dataset:
        assert dataset.element_spec._asdict() == {
            "id": tf.TensorSpec((None,), tf.int64), "short": tf.TensorSpec((None,), tf.int16),
            "whole": tf.TensorSpec((None,), tf.int32), "grid": tf.TensorSpec((None, 4, 10), tf.float32),
            "shorts": tf.TensorSpec((None, 4, 10), tf.int16), "wholes": tf.TensorSpec((None, 4, 10), tf.int32),
        }  # fmt: skip
        batches = list(dataset)
    assert [batch.grid.shape for batch in batches] == [(8, 4, 10)] * 3 + [(6, 4, 10)]
    for batch in batches:
        places = 100 * batch.id.numpy()[:, None, None] + np.arange(40).reshape(4, 10)
        assert np.array_equal(batch.short, batch.id)
        assert np.array_equal(batch.whole, -batch.id)
        assert all(np.array_equal(each, places) for each in (batch.grid, batch.shorts, batch.wholes))


def test_fields_are_those_that_a_transform_returns(converter: SparkDatasetConverter) -> None:
    def turned(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"x": 2 * batch["x"], "id": batch["id"]}

    def renamed(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"twice": 2 * batch["x"], "id": batch["id"], "one": np.ones(len(batch["id"]))}

    for transform, names in ((turned, {"id", "x"}), (renamed, {"id", "one", "twice"})):
        with converter.make_tf_dataset(columns=["id", "x"], transform=transform) as dataset:
            batch = next(iter(dataset))
        assert set(batch._fields) == names
        doubled = batch.x if transform is turned else batch.twice
        assert np.allclose(doubled, 2 * batch.id.numpy() / 19)


def test_num_epochs_are_those_of_one_iteration(converter: SparkDatasetConverter) -> None:
    with converter.make_tf_dataset(batch_size=16, num_epochs=2, prefetch=0) as dataset:
        assert dataset.cardinality().numpy() == 4
        rows = np.concatenate([batch.id for batch in dataset])
    assert sorted(rows[:20]) == sorted(rows[20:]) == list(range(20))
    assert rows[:20].tolist() != rows[20:].tolist()


def test_names_that_no_namedtuple_has_are_errors(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1], "1st": [2], "_id": [3], "a b": [4], "a.b": [5], "class": [6]}).to_parquet(
        tmp_path / "rows.parquet"
    )
    converter = make_spark_converter(str(tmp_path))
    text = r"columns '1st', '_id', 'a b', 'a\.b', 'class' cannot all be names of fields.*columns=\["
    with pytest.raises(UsageError, match=text), converter.make_tf_dataset():
        pass
    with converter.make_tf_dataset(columns=["x", "a b"]) as dataset:
        assert next(iter(dataset)).a_b.numpy().tolist() == [4]


def model() -> Any:
    made = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


class Steps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the steps of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.counts.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.counts[-1] += 1


def test_epochs_of_keras_are_those_of_the_data(
    converter: SparkDatasetConverter, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps()
    with converter.make_tf_dataset(batch_size=8) as train, converter.make_tf_dataset(batch_size=5) as val:
        pairs, held = (each.map(lambda batch: (batch.x[:, None], batch.x)) for each in (train, val))
        history = model().fit(
            pairs, validation_data=held, epochs=3, verbose=0, shuffle=False, callbacks=[steps]
        )
    assert steps.counts == [3, 3, 3]
    assert len(history.history["val_loss"]) == 3
    assert not caplog.text


def test_keras_that_counts_steps_crosses_epochs_and_is_told_once(
    converter: SparkDatasetConverter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_batches, "_said", False)
    steps = Steps()
    with (
        caplog.at_level(logging.WARNING, "hopyard"),
        converter.make_tf_dataset(batch_size=8) as train,
        converter.make_tf_dataset(batch_size=5) as val,
    ):
        pairs, held = (each.map(lambda batch: (batch.x[:, None], batch.x)) for each in (train, val))
        model().fit(
            pairs,
            steps_per_epoch=4,
            epochs=5,
            validation_data=held,
            verbose=0,
            shuffle=False,
            callbacks=[steps],
        )
        assert steps.counts == [4] * 5
        assert len(list(train)) == 3  # a loop over it is finite as before
    assert caplog.text.count("Keras was given steps_per_epoch and the converter no num_epochs") == 1
