"""Claim: sixteen small networks over one dataset take half the time of what people write today.

Sixteen 64-64-10 networks, batch 256, 5 epochs over 200,000 rows of 64 float32, two workers, from
arrays in memory to sixteen trained models; preparation and the start of processes are included on
both sides. Nothing is validated, because the plain loops do not validate. The peers:

* plain PyTorch loops in two processes, with a DataLoader as most people write it;
* the same with a tuned DataLoader (BatchSampler, ``batch_size=None``: whole batches by index);
* Ray Tune with two workers and the tuned DataLoader.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

ROWS, BATCH, EPOCHS, TRIALS = 200_000, 256, 5, 16
RATES = [10 ** (-4 + 3 * i / (TRIALS - 1)) for i in range(TRIALS)]


def rows() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    features = random.standard_normal((ROWS, 64), dtype=np.float32)
    plane = random.standard_normal((64, 10))
    return {"features": features, "label": (features @ plane).argmax(1)}


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=network(),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        batch_size=BATCH,
    )


def hopyard_seconds(data: dict[str, np.ndarray[Any, Any]]) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        GridSearch(
            LocalBackend(num_workers=2, device="cpu"),
            LocalStore(folder),
            estimator,
            {"lr": hp_choice(RATES)},
            EPOCHS,
            validation=None,
            progress=False,
        ).fit(data)
        return time.perf_counter() - began


def loader(dataset: torch.utils.data.TensorDataset, tuned: bool) -> Any:
    if not tuned:
        return torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)
    order = torch.utils.data.RandomSampler(dataset)
    batches = torch.utils.data.BatchSampler(order, BATCH, drop_last=False)
    return torch.utils.data.DataLoader(dataset, sampler=batches, batch_size=None)


def train(rate: float, features: torch.Tensor, labels: torch.Tensor, tuned: bool) -> float:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(EPOCHS):
        for x, y in loader(torch.utils.data.TensorDataset(features, labels), tuned):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float(loss)


def loop(
    rates: list[float], features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], tuned: bool
) -> None:
    torch.set_num_threads(1)
    for rate in rates:
        train(rate, torch.from_numpy(features), torch.from_numpy(labels), tuned)


def loop_seconds(data: dict[str, np.ndarray[Any, Any]], tuned: bool) -> float:
    context = multiprocessing.get_context("spawn")
    began = time.perf_counter()
    processes = [
        context.Process(target=loop, args=(RATES[half::2], data["features"], data["label"], tuned))
        for half in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    return time.perf_counter() - began


def ray_seconds(data: dict[str, np.ndarray[Any, Any]]) -> float:
    os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray
    from ray import tune

    began = time.perf_counter()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    held = ray.put((data["features"], data["label"]))

    def trainable(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        features, labels = ray.get(held)
        # Ray's arrays are read-only; torch wants to be told that this is fine.
        value = train(
            config["lr"], torch.from_numpy(features.copy()), torch.from_numpy(labels.copy()), tuned=True
        )
        tune.report({"loss": value})

    with tempfile.TemporaryDirectory() as folder:
        tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"lr": tune.grid_search(RATES)},
            run_config=tune.RunConfig(verbose=0, storage_path=folder),
        ).fit()
    ray.shutdown()
    return time.perf_counter() - began


def median(seconds: Callable[[], float], times: int) -> float:
    return statistics.median(seconds() for _ in range(times))


def main() -> None:
    data = rows()
    quick = "--quick" in sys.argv
    ours, tuned = [], []
    for _ in range(1 if quick else 3):
        ours.append(hopyard_seconds(data))
        tuned.append(loop_seconds(data, tuned=True))
    peers = {"plain loop, tuned DataLoader, 2 processes": statistics.median(tuned)}
    if not quick:
        peers["plain loop, default DataLoader, 2 processes"] = loop_seconds(data, tuned=False)
        peers["Ray Tune, tuned DataLoader, 2 workers"] = ray_seconds(data)
    value = statistics.median(ours)
    for peer, seconds in peers.items():
        result = {"name": "16 networks x 5 epochs x 200k rows", "value": round(value, 2), "unit": "s"}
        print(
            json.dumps(result | {"peer": f"{peer}: {seconds:.1f} s", "ratio": round(value / seconds, 3)}),
            flush=True,
        )


if __name__ == "__main__":
    main()
