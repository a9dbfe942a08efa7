"""Claim: heads on a trunk that is run once train in a fraction of the time of heads that each run it in every epoch.

Eight heads (64-64-10, Adam, batch 64), 5 epochs over 4,000 images of 3 x 32 x 32 uint8 with a quarter for validation,
over a frozen trunk of three convolutions; two workers of one thread, from arrays in memory to eight validated models,
the start of processes included. Sides:

* ``trunk=``: its outputs are computed once for a partition, in an empty node cache;
* the same search with the frozen trunk inside every model;
* plain PyTorch loops in two processes, trunk inside, under ``no_grad``, as most people write it;
* plain loops whose author computes the outputs by hand, once in each process: the limit.

The sides take turns; medians. One JSON object a line: name, value, unit, peer, ratio (value / the peer's value).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

ROWS, BATCH, EPOCHS, HEADS, ROUNDS = 4_000, 64, 5, 8, 3
RATES = [10 ** (-4 + 2 * i / (HEADS - 1)) for i in range(HEADS)]


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.requires_grad_(False).eval()

    def forward(self, images: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.layers(images.float() / 255)


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def rows() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return {
        "features": random.integers(0, 256, (ROWS, 3, 32, 32), np.uint8),
        "label": random.integers(0, 10, ROWS),
    }


def estimator(model: nn.Module, rate: float, trunk: nn.Module | None) -> TorchEstimator:
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": rate},
        loss=nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=BATCH,
        trunk=trunk,
    )


def shared(params: dict[str, Any]) -> TorchEstimator:
    return estimator(head(), params["lr"], Trunk())


def inside(params: dict[str, Any]) -> TorchEstimator:
    return estimator(nn.Sequential(Trunk(), head()), params["lr"], None)


def hopyard(data: dict[str, np.ndarray[Any, Any]], function: Callable[..., Any]) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        os.environ["HOPYARD_CACHE"] = str(Path(folder).absolute() / "cache")
        with LocalBackend(num_workers=2, device="cpu") as backend:
            model = GridSearch(
                backend,
                LocalStore(folder),
                function,
                {"lr": hp_choice(RATES)},
                EPOCHS,
                validation=0.25,
                evaluation_metric="accuracy",
                progress=False,
            ).fit(data)
        assert len(model.get_all_models()) == HEADS


def loop(rates: list[float], data: dict[str, np.ndarray[Any, Any]], by_hand: bool) -> None:
    torch.set_num_threads(1)
    trunk, images, labels = Trunk(), torch.from_numpy(data["features"]), torch.from_numpy(data["label"])
    if by_hand:
        images = torch.cat([trunk(part) for part in images.split(BATCH)])
    features = (lambda batch: batch) if by_hand else trunk
    training = ROWS * 3 // 4
    for rate in rates:
        torch.manual_seed(0)
        model = head()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        for _ in range(EPOCHS):
            for places in torch.randperm(training).split(BATCH):
                loss = nn.functional.cross_entropy(model(features(images[places])), labels[places])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right = 0
            with torch.no_grad():
                for places in torch.arange(training, ROWS).split(BATCH):
                    right += int((model(features(images[places])).argmax(1) == labels[places]).sum())


def loops(data: dict[str, np.ndarray[Any, Any]], by_hand: bool) -> None:
    context = multiprocessing.get_context("spawn")
    halves = [context.Process(target=loop, args=(RATES[half::2], data, by_hand)) for half in range(2)]
    for process in halves:
        process.start()
    for process in halves:
        process.join()
    assert all(process.exitcode == 0 for process in halves)


def main() -> None:
    data = rows()
    sides: dict[str, Callable[[], None]] = {
        "trunk=": lambda: hopyard(data, shared),
        "trunk inside every model": lambda: hopyard(data, inside),
        "plain loops, trunk inside": lambda: loops(data, by_hand=False),
        "plain loops, outputs computed once by hand": lambda: loops(data, by_hand=True),
    }
    took: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, run in sides.items():
            began = time.perf_counter()
            run()
            took[side].append(time.perf_counter() - began)
    ours, *peers = ((side, statistics.median(times)) for side, times in took.items())
    for peer, seconds in peers:
        line = {
            "name": f"{HEADS} heads on a frozen trunk x {EPOCHS} epochs x {ROWS} images",
            "value": round(ours[1], 2),
            "unit": "s",
            "peer": f"{peer}: {seconds:.2f} s",
            "ratio": round(ours[1] / seconds, 3),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
