"""Claim: training a Keras model through Hopyard takes no longer than plain ``model.fit`` on ``tf.data``.

A 64-64-10 network, batch 256, Adam, on the TensorFlow backend of Keras, over the same 200,000 rows of 64 float32,
shuffled. The peer reads the same Parquet files into memory once, before its time begins, and runs ``fit`` over
``tf.data`` with a shuffle of all rows and a prefetch, compiled as Keras does by default, and again without XLA, as
Hopyard runs it. Ours reads prepared data and includes what a unit does, but for saving the state. Epochs alternate;
medians; tracing and compiling are done before, by a first epoch.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; below 1 is better).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from statistics import median
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from hopyard.data.preparing.prepare import prepare
from hopyard.keras import KerasEstimator
from hopyard.storage import LocalStore
from hopyard.training.program import Program, save_program
from hopyard.training.request import UnitRequest
from hopyard.training.unit import run_unit

ROWS = 200_000
BATCH = 256
ROUNDS = 7


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def estimator(params: dict[str, Any]) -> KerasEstimator:
    return KerasEstimator(
        network(),
        keras.optimizers.Adam(1e-3),
        "sparse_categorical_crossentropy",
        metrics=["acc"],
        batch_size=BATCH,
    )


class Plain:
    """``fit`` over ``tf.data``."""

    def __init__(self, features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], jit: bool | str) -> None:
        rows = tf.data.Dataset.from_tensor_slices((features, labels))
        self.data = rows.shuffle(len(labels)).batch(BATCH).prefetch(tf.data.AUTOTUNE)
        self.model = network()
        self.model.compile(
            keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["acc"], jit_compile=jit
        )

    def seconds(self) -> float:
        started = time.perf_counter()
        self.model.fit(self.data, epochs=1, verbose=0)
        return time.perf_counter() - started


class Ours:
    """Units of one trial on one partition."""

    def __init__(self, program: Program, store: LocalStore) -> None:
        self.store, self.program = store, save_program(store, program)
        self.position = 0

    def seconds(self) -> float:
        request = UnitRequest(
            self.store,
            self.program,
            (0,),
            ({},),
            "train",
            self.position,
            0,
            self.position,
            (None,),
            save=False,
        )
        started = time.perf_counter()
        result = run_unit(request)
        took = time.perf_counter() - started
        if result.errors[0] is not None:
            raise RuntimeError(result.errors[0].describe())
        self.position += 1
        return took


def main() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, 64)).astype(np.float32)
    labels = features[:, :10].argmax(axis=1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = prepare({"features": features, "label": labels}, LocalStore(f"{folder}/data"))
        program = Program(estimator, ("features",), ("label",), made.train, None, 1, 99, 0, "cpu")
        read = made.train[:]
        runs = {
            "Hopyard": Ours(program, LocalStore(f"{folder}/run")),
            "fit, as Keras compiles by default": Plain(read["features"], read["label"], "auto"),
            "fit, without XLA": Plain(read["features"], read["label"], False),
        }
        took: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(ROUNDS + 1):
            for name, run in runs.items():
                seconds = run.seconds()
                if number:
                    took[name].append(seconds)
    ours = median(took.pop("Hopyard"))
    for name, times in took.items():
        line = {
            "name": f"an epoch of a Keras network, {ROWS} rows, against {name}",
            "value": round(ours, 3),
            "unit": "s",
            "peer": round(median(times), 3),
            "ratio": round(ours / median(times), 3),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
