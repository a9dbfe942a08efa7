"""Claim: over data as small as a quick start's, a search costs at most 1.3 times the plain loop over the same models.

Scikit-learn's breast cancer, 569 rows of 30 features, a quarter held out, networks of 30-32-16-1 that differ in their
learning rates, batch 32, validated after each of 10 epochs: 40 of PyTorch and 30 of Keras (TensorFlow). There, what a
search does beside training shows most: starting a worker, building and compiling models, durable states, the journal.
Hopyard has one local worker and its defaults, so that all can be killed and resumed at any moment; the peer is the
loop that one would write, with the same rows, models, batches and epochs: tensors in memory indexed by a permutation
(PyTorch), ``fit(validation_data=...)`` (Keras), one thread, nothing saved.

Each side is a process of its own, in turns; minima. Two lines each: from the start of the script, imports and the
worker's start included; and the second search, or loop, of the same process. ``small_data.py torch`` and
``small_data.py keras`` run one of the two.

One JSON object a line: name, value, unit, peer, ratio (value / the peer's value; below 1 is better).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

EPOCHS, BATCH, ROUNDS = 10, 32, 3
MODELS = {"torch": 40, "keras": 30}


def rates(framework: str) -> list[float]:
    count = MODELS[framework]
    return [10 ** (-4 + 2 * i / (count - 1)) for i in range(count)]


def rows() -> dict[str, np.ndarray[Any, Any]]:
    from sklearn.datasets import load_breast_cancer

    features, label = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    return {"features": features.astype(np.float32), "label": label.astype(np.float32)}


def halves() -> list[np.ndarray[Any, Any]]:
    """Features and labels to train on, and to validate on."""
    data, count = rows(), 427
    order = np.random.default_rng(0).permutation(len(data["label"]))
    return [data[name][part] for part in (order[:count], order[count:]) for name in ("features", "label")]


def torch_network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0)
    )


def keras_network() -> Any:
    import keras

    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(16, activation="relu")]
    return keras.Sequential([keras.Input((30,)), *layers, keras.layers.Dense(1, activation="sigmoid")])


def torch_estimator(params: dict[str, Any]) -> Any:
    import torch

    from hopyard.torch import TorchEstimator

    return TorchEstimator(
        torch_network(),
        torch.optim.Adam,
        torch.nn.BCEWithLogitsLoss(),
        metrics=["accuracy"],
        batch_size=BATCH,
        optimizer_params={"lr": params["lr"]},
    )


def keras_estimator(params: dict[str, Any]) -> Any:
    import keras

    from hopyard.keras import KerasEstimator

    optimizer = keras.optimizers.Adam(params["lr"])
    return KerasEstimator(
        keras_network(), optimizer, "binary_crossentropy", metrics=["acc"], batch_size=BATCH
    )


def with_hopyard(framework: str) -> Callable[[], None]:
    from hopyard.backend import LocalBackend
    from hopyard.storage import LocalStore
    from hopyard.tune import GridSearch, hp_choice

    backend = LocalBackend(num_workers=1, device="cpu")
    backend.start()
    data = rows()

    def search() -> None:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            model = GridSearch(
                backend,
                LocalStore(folder),
                torch_estimator if framework == "torch" else keras_estimator,
                {"lr": hp_choice(rates(framework))},
                EPOCHS,
                validation=0.25,
                progress=False,
            ).fit(data)
            assert len(model.get_all_models()) == MODELS[framework]
            assert len(model.get_history()["val_loss"]) == EPOCHS

    return search


def torch_loop() -> None:
    import torch

    torch.set_num_threads(1)
    x, y, val_x, val_y = map(torch.from_numpy, halves())
    loss_of = torch.nn.BCEWithLogitsLoss()
    for rate in rates("torch"):
        torch.manual_seed(0)
        model = torch_network()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for _ in range(EPOCHS):
            model.train()
            order, losses = torch.randperm(len(y)), []
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                loss = loss_of(model(x[chosen]), y[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            model.eval()
            with torch.no_grad():
                batches = range(0, len(val_y), BATCH)
                outputs = torch.cat([model(val_x[start : start + BATCH]) for start in batches])
            accuracy = ((outputs > 0) == (val_y > 0)).float().mean().item()
            assert np.isfinite(
                [torch.stack(losses).mean().item(), loss_of(outputs, val_y).item(), accuracy]
            ).all()


def keras_loop() -> None:
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x, y, val_x, val_y = halves()
    for rate in rates("keras"):
        keras.utils.set_random_seed(0)
        model = keras_network()
        model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["acc"])
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(val_x, val_y))


def side(name: str, framework: str) -> None:
    """Do it twice; the seconds of the second time are printed."""
    loops = {"torch": torch_loop, "keras": keras_loop}
    action = with_hopyard(framework) if name == "hopyard" else loops[framework]
    action()
    print(json.dumps({"first": time.time()}), flush=True)
    began = time.perf_counter()
    action()
    print(json.dumps({"again": time.perf_counter() - began}), flush=True)


def seconds(name: str, framework: str) -> dict[str, float]:
    """From the start of the script to its first result, and what the second takes."""
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    began = time.time()
    done = subprocess.run(
        [sys.executable, __file__, name, framework],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return {
        "from the start of the script": found["first"] - began,
        "imports and workers ready": found["again"],
    }


def main() -> None:
    if len(sys.argv) > 2:
        side(sys.argv[1], sys.argv[2])
        return
    for framework in sys.argv[1:] or MODELS:
        rounds = [
            {name: seconds(name, framework) for name in ("hopyard", "plain loop")} for _ in range(ROUNDS)
        ]
        for what in rounds[0]["hopyard"]:
            ours, theirs = (min(each[name][what] for each in rounds) for name in rounds[0])
            line = {
                "name": f"{MODELS[framework]} networks of {framework} x {EPOCHS} epochs x 569 rows, {what}",
                "value": round(ours, 2),
                "unit": "s",
                "peer": f"plain loop: {theirs:.2f} s",
                "ratio": round(ours / theirs, 3),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
