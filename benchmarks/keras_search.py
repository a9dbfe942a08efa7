"""Claim: a search over Keras networks takes half the time of KerasTuner's on the same cores.

Eight 64-64-10 networks that differ in their learning rates, batch 256, 3 epochs over 100,000 rows of 64 float32 with a
quarter for validation, on the TensorFlow backend; from the start of the script, with arrays in memory, to eight trained
models and their values. Hopyard on two workers; KerasTuner as it is used, one trial after another in one process, which
has both cores, compiled as Keras does by default. Each side is a process of its own; they take turns; medians.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; below 1 is better).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np

from _scripts import run_again

ROWS, BATCH, EPOCHS, PAIRS = 100_000, 256, 3, 3
RATES = [10 ** (-4 + 3 * i / 7) for i in range(8)]


def rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    features = random.standard_normal((ROWS, 64), dtype=np.float32)
    return features, (features @ random.standard_normal((64, 10))).argmax(1)


def network() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def hopyard(folder: str) -> None:
    from hopyard.backend import LocalBackend
    from hopyard.keras import KerasEstimator
    from hopyard.storage import LocalStore
    from hopyard.tune import GridSearch, hp_choice

    def estimator(params: dict[str, Any]) -> KerasEstimator:
        import keras

        optimizer = keras.optimizers.Adam(params["lr"])
        loss = "sparse_categorical_crossentropy"
        return KerasEstimator(network(), optimizer, loss, metrics=["acc"], batch_size=BATCH)

    features, labels = rows()
    search = GridSearch(
        LocalBackend(num_workers=2, device="cpu"),
        LocalStore(folder),
        estimator,
        {"lr": hp_choice(RATES)},
        EPOCHS,
        validation=0.25,
        progress=False,
    )
    model = search.fit({"features": features, "label": labels})
    print(len(model.get_all_models()), max(model.get_history()["val_acc"]))


def keras_tuner(folder: str) -> None:
    import keras
    import keras_tuner

    def build(hp: Any) -> Any:
        model = network()
        optimizer = keras.optimizers.Adam(hp.Choice("lr", RATES))
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["acc"])
        return model

    features, labels = rows()
    tuner = keras_tuner.GridSearch(build, objective="val_loss", max_trials=8, directory=folder)
    tuner.search(features, labels, epochs=EPOCHS, batch_size=BATCH, validation_split=0.25, verbose=0)
    best = tuner.oracle.get_best_trials(8)
    print(len(best), best[0].metrics.get_best_value("val_acc"))


SIDES = {"hopyard": hopyard, "keras_tuner": keras_tuner}


def seconds(side: str) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        run_again(__file__, side, folder)
        return time.perf_counter() - began


def main() -> None:
    if len(sys.argv) > 1:
        SIDES[sys.argv[1]](sys.argv[2])
        return
    took = {side: [] for side in SIDES}  # type: dict[str, list[float]]
    for _ in range(PAIRS):
        for side, times in took.items():
            times.append(seconds(side))
    ours, theirs = (statistics.median(times) for times in took.values())
    line = {
        "name": f"8 Keras networks x {EPOCHS} epochs x {ROWS} rows",
        "value": round(ours, 2),
        "unit": "s",
        "peer": f"KerasTuner: {theirs:.1f} s",
        "ratio": round(ours / theirs, 3),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
