"""Claim: ASHA finds as good a network in at most 35% of the time that training all of them takes.

48 networks for handwritten digits (scikit-learn's, each training image also moved by a pixel in 8 directions), 16
epochs, partitions by the default rule, two workers: depth, width, learning rate, weight decay and dropout are drawn at
random. The peer is random search of the same points, each trained to its end. The winner is as good if it is the same
one, or its accuracy on the 450 images held out is within one standard error of the peer's. ``asha.py 5``: five seeds,
not one.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, RandomSearch, hp_choice, hp_loguniform, hp_uniform, open_run

TRIALS, EPOCHS, HELD_OUT, LIMIT = 48, 16, 450, 0.35
SPACE = {
    "lr": hp_loguniform(-4, -1),
    "depth": hp_choice([1, 2, 3]),
    "width": hp_choice([16, 32, 64, 128]),
    "weight_decay": hp_loguniform(-6, -2),
    "dropout": hp_uniform(0, 0.5),
}


def digits() -> tuple[dict[str, Any], dict[str, Any]]:
    """Training rows, nine of an image, and those held out."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).astype(np.float32).reshape(-1, 8, 8), labels[order]
    train = images[HELD_OUT:]
    moved = [np.roll(train, (y, x), (1, 2)) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    rows = {"features": np.concatenate(moved).reshape(-1, 64), "label": np.tile(labels[HELD_OUT:], 9)}
    return rows, {"features": images[:HELD_OUT].reshape(-1, 64), "label": labels[:HELD_OUT]}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    layers: list[torch.nn.Module] = []
    inputs = 64
    for _ in range(params["depth"]):
        layers += [
            torch.nn.Linear(inputs, params["width"]),
            torch.nn.ReLU(),
            torch.nn.Dropout(params["dropout"]),
        ]
        inputs = params["width"]
    return TorchEstimator(
        model=torch.nn.Sequential(*layers, torch.nn.Linear(inputs, 10)),
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": params["lr"], "weight_decay": params["weight_decay"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=64,
    )


@dataclass(frozen=True)
class Searched:
    seconds: float
    visits: int
    winner: int
    accuracy: float

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / HELD_OUT)


def searched(kind: Any, backend: LocalBackend, seed: int, epochs: int = EPOCHS, **more: Any) -> Searched:
    train, held_out = digits()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = LocalStore(folder)
        search = kind(
            backend,
            store,
            estimator,
            SPACE,
            TRIALS,
            epochs,
            evaluation_metric="accuracy",
            validation=held_out,
            keep="best",
            seed=seed,
            run_id="run",
            progress=False,
            **more,
        )
        began = time.perf_counter()
        search.fit(train)
        seconds = time.perf_counter() - began
        state = open_run(store, "run").state
    assert state.best is not None
    best = state.trials[state.best].best
    assert best is not None
    return Searched(seconds, sum(t.progress.trained for t in state.trials.values()), state.best, best.value)


def main() -> None:
    rounds = []
    with LocalBackend(num_workers=2, device="cpu") as backend:
        searched(RandomSearch, backend, 0, epochs=1)  # workers import what they need
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
            asha = searched(ASHA, backend, seed, max_rungs=3)
            full = searched(RandomSearch, backend, seed)
            rounds.append((asha, full))
            as_good = asha.winner == full.winner or asha.accuracy >= full.accuracy - full.standard_error
            line = {
                "name": f"ASHA, 48 networks for digits, seed {seed}",
                "value": round(asha.seconds, 1),
                "unit": "s",
            }
            line |= {
                "peer": f"random search: {full.seconds:.1f} s",
                "ratio": round(asha.seconds / full.seconds, 3),
            }
            line |= {"visits": [asha.visits, full.visits], "winner": [asha.winner, full.winner]}
            line |= {"accuracy": [round(asha.accuracy, 4), round(full.accuracy, 4)]}
            print(
                json.dumps(line | {"standard_error": round(full.standard_error, 4), "as_good": as_good}),
                flush=True,
            )
    ratio = statistics.median(asha.seconds / full.seconds for asha, full in rounds)
    line = {
        "name": "ASHA, share of the time of random search",
        "value": round(ratio, 3),
        "unit": "of its seconds",
    }
    print(json.dumps(line | {"peer": f"{LIMIT}", "ratio": round(ratio / LIMIT, 3)}))


if __name__ == "__main__":
    main()
