"""Aim: a search over few rows takes at most 1.3 times as long as a loop over the same networks.

With Keras it takes a third of that time; with PyTorch twice as long (README.md), so that the aim is not reached.

The quick start of Cerebro's documentation, without Spark: 30 Keras networks (692-100-1, learning rate and batch size
drawn at random), 10 epochs over 79 rows, validated on 26 others after each, on one local worker; and the same with
PyTorch networks (30-64-2) over 569 rows of 30 columns. From the start of the script, with arrays in memory, to thirty
trained models, their values, and the best one's weights. The peers are the loops that people write: ``model.fit`` as it
is, and a PyTorch loop over batches that it takes from tensors by index; they save the best model. Each side is a
process of its own; they take turns; medians.

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

MODELS, EPOCHS, PAIRS = 30, 10, 3
POINTS = [{"lr": 10.0 ** -(2 + number % 3), "batch_size": 16 * (1 + number // 3)} for number in range(MODELS)]
Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def rows(count: int, width: int) -> Rows:
    random = np.random.default_rng(0)
    labels = np.arange(count) % 2
    features = random.standard_normal((count, width)) + labels[:, None] * (np.arange(width) < width // 2)
    return features.astype(np.float32), labels


def search(estimator: Any, space: Any, folder: str, train: Rows, validation: Rows) -> float:
    from hopyard.backend import LocalBackend
    from hopyard.storage import LocalStore
    from hopyard.tune import GridSearch

    model = GridSearch(
        LocalBackend(num_workers=1, device="cpu"),
        LocalStore(folder),
        estimator,
        space,
        EPOCHS,
        validation={"features": validation[0], "label": validation[1]},
        progress=False,
    ).fit({"features": train[0], "label": train[1]})
    assert len(model.get_all_models()) == MODELS
    return min(model.get_history()["val_loss"])


def grid() -> dict[str, Any]:
    from hopyard.tune import hp_choice

    return {name: hp_choice(sorted({point[name] for point in POINTS})) for name in POINTS[0]}


# Keras --------------------------------------------------------------------------------------


def keras_network() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input((692,)), layers.Dense(100), layers.Dense(1, activation="sigmoid")])


def keras_rows() -> tuple[Rows, Rows]:
    features, labels = rows(105, 692)
    return (features[:79], labels[:79]), (features[79:], labels[79:])


def keras_search(folder: str) -> float:
    from hopyard.keras import KerasEstimator

    def estimator(params: dict[str, Any]) -> KerasEstimator:
        import keras

        optimizer = keras.optimizers.Adam(params["lr"])
        return KerasEstimator(
            keras_network(),
            optimizer,
            "binary_crossentropy",
            metrics=["acc"],
            batch_size=params["batch_size"],
        )

    return search(estimator, grid(), folder, *keras_rows())


def keras_loop(folder: str) -> float:
    import keras

    train, validation = keras_rows()
    best = np.inf
    for point in POINTS:
        model = keras_network()
        model.compile(keras.optimizers.Adam(point["lr"]), "binary_crossentropy", metrics=["acc"])
        history = model.fit(
            *train, point["batch_size"], EPOCHS, validation_data=validation, verbose=0
        ).history
        if min(history["val_loss"]) < best:
            best = min(history["val_loss"])
            model.save_weights(f"{folder}/best.weights.h5")
    return best


# PyTorch ------------------------------------------------------------------------------------


def torch_network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(30, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


def torch_rows() -> tuple[Rows, Rows]:
    features, labels = rows(711, 30)
    return (features[:569], labels[:569]), (features[569:], labels[569:])


def torch_search(folder: str) -> float:
    import torch

    from hopyard.torch import TorchEstimator

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            model=torch_network(),
            optimizer=torch.optim.Adam,
            optimizer_params={"lr": params["lr"]},
            loss=torch.nn.CrossEntropyLoss(),
            metrics=["accuracy"],
            batch_size=params["batch_size"],
        )

    return search(estimator, grid(), folder, *torch_rows())


def torch_loop(folder: str) -> float:
    import torch

    torch.set_num_threads(1)
    (features, labels), validation = ([torch.from_numpy(a) for a in side] for side in torch_rows())
    criterion = torch.nn.CrossEntropyLoss()
    best = np.inf
    for point in POINTS:
        model = torch_network()
        optimizer = torch.optim.Adam(model.parameters(), lr=point["lr"])
        for _ in range(EPOCHS):
            model.train()
            for batch in torch.randperm(len(features)).split(point["batch_size"]):
                optimizer.zero_grad()
                criterion(model(features[batch]), labels[batch]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                outputs = model(validation[0])
            loss = float(criterion(outputs, validation[1]))
            accuracy = float((outputs.argmax(1) == validation[1]).float().mean())
            if loss < best:
                best, best_accuracy = loss, accuracy
                torch.save(model.state_dict(), f"{folder}/best.pt")
    assert best_accuracy > 0
    return best


SIDES = {
    "Keras": (keras_search, keras_loop, 79),
    "PyTorch": (torch_search, torch_loop, 569),
}


def seconds(framework: str, side: int) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        run_again(__file__, framework, str(side), folder)
        return time.perf_counter() - began


def main() -> None:
    if len(sys.argv) == 4:
        framework, side, folder = sys.argv[1:]
        print(SIDES[framework][int(side)](folder))
        return
    for framework in sys.argv[1:] or SIDES:
        ours, loop = zip(*((seconds(framework, 0), seconds(framework, 1)) for _ in range(PAIRS)), strict=True)
        value, peer = statistics.median(ours), statistics.median(loop)
        line = {
            "name": f"{MODELS} {framework} networks x {EPOCHS} epochs x {SIDES[framework][2]} rows, one worker",
            "value": round(value, 2),
            "unit": "s",
        }
        print(
            json.dumps(line | {"peer": f"a loop: {peer:.1f} s", "ratio": round(value / peer, 3)}), flush=True
        )


if __name__ == "__main__":
    main()
