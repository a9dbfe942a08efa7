"""Draws the pictures of docs/search.md: an ASHA search over a made-up table.

`python tools/pictures.py` writes docs/images/asha-curves.svg and docs/images/asha-schedule.svg anew. The learning
curves are the same each time, the times of the schedule are those of the machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import make_classification

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, Run, hp_choice, hp_loguniform
from hopyard.tune.pictures import draw_curves, draw_schedule

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Sequential(
        torch.nn.Linear(32, params["width"]), torch.nn.ReLU(), torch.nn.Linear(params["width"], 5)
    )
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": params["lr"], "momentum": 0.9},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=params["batch_size"],
    )


def search(backend: LocalBackend, store: str, run_id: str, num_models: int) -> Run:
    """Rungs at 1, 3 and 9 epochs for 27 models."""
    features, label = make_classification(
        40_000, 32, n_informative=12, n_classes=5, class_sep=0.7, flip_y=0.02, random_state=0
    )
    found = ASHA(
        backend=backend,
        store=LocalStore(store),
        estimator_gen_fn=estimator,
        search_space={
            "width": hp_choice([32, 64, 128]),
            "lr": hp_loguniform(-4, 0),
            "batch_size": hp_choice([64, 128]),
        },
        num_models=num_models,
        num_epochs=9,
        num_partitions=4,
        divisor=3,
        max_rungs=3,
        evaluation_metric="accuracy",
        run_id=run_id,
        progress=False,
    ).fit({"features": features.astype("float32"), "label": label})
    return found.run


def main() -> None:
    backend = LocalBackend(num_workers=2, device="cpu")
    backend.start()
    with tempfile.TemporaryDirectory() as store:
        search(backend, store, "first", 1)  # the first units of a process load libraries
        run = search(backend, store, "asha", 27)
        print(draw_curves(run, IMAGES / "asha-curves.svg"))
        print(draw_schedule(run, IMAGES / "asha-schedule.svg"))
    backend.stop()


if __name__ == "__main__":
    main()
