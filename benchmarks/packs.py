"""Claim: 64 small networks over one table take a third of what they take one by one, with the same bits.

64 networks 40-64-64-1 (PyTorch, Adam), batch 256, 2 epochs over a Parquet file of float32 columns, on two workers of
one thread, from the file to trained models that were validated on a fifth of the rows. The peers train on the
same four fifths, and do not validate:

* two processes with a loop for each network over tensors in memory, a ``DataLoader`` that takes whole batches by index
  (``batch_size=None``), and ``Adam(fused=True)``;
* the same, with batches taken by index without any ``DataLoader``: the least that a loop can do;
* the same search with ``packing="serial"``, whose results must be the same to the last bit.

``--rows`` and ``--networks`` make it smaller or larger.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

COLUMNS, BATCH, EPOCHS, SHARE = 40, 256, 2, 0.2


def write(folder: Path, rows: int) -> Path:
    random = np.random.default_rng(0)
    features = random.standard_normal((rows, COLUMNS), dtype=np.float32)
    target = (features @ random.standard_normal(COLUMNS) + random.standard_normal(rows)).astype(np.float32)
    table = pa.table({f"c{number:02}": features[:, number] for number in range(COLUMNS)} | {"target": target})
    path = folder / "table.parquet"
    pq.write_table(table, path, row_group_size=65_536)
    return path


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(COLUMNS, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 1),
    )


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=network(),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.MSELoss(),
        batch_size=BATCH,
        inputs={"input": [f"c{number:02}" for number in range(COLUMNS)]},
    )


def search_seconds(path: Path, rates: list[float], packing: str) -> tuple[float, Any]:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        began = time.perf_counter()
        model = GridSearch(
            LocalBackend(num_workers=2, device="cpu"),
            LocalStore(folder),
            estimator,
            {"lr": hp_choice(rates)},
            EPOCHS,
            feature_columns=[f"c{number:02}" for number in range(COLUMNS)],
            label_columns=["target"],
            validation=SHARE,
            num_partitions=2,
            packing=packing,
            progress=False,
        ).fit(str(path))
        seconds = time.perf_counter() - began
        trials = model.run.state.trials.values()
        return seconds, [(trial.history, trial.best.state.digest if trial.best else None) for trial in trials]


def loop(path: Path, rates: list[float], through_loader: bool) -> None:
    torch.set_num_threads(1)
    table = pq.read_table(path)
    columns = [table[f"c{number:02}"].to_numpy() for number in range(COLUMNS)]
    features, target = (
        torch.from_numpy(np.stack(columns, 1)),
        torch.from_numpy(table["target"].to_numpy())[:, None],
    )
    kept = int(len(features) * (1 - SHARE))
    features, target = features[:kept], target[:kept]
    dataset = torch.utils.data.TensorDataset(features, target)
    for rate in rates:
        torch.manual_seed(0)
        model, loss_fn = network(), torch.nn.MSELoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        for _ in range(EPOCHS):
            batches: Any
            if through_loader:
                order = torch.utils.data.BatchSampler(
                    torch.utils.data.RandomSampler(dataset), BATCH, drop_last=False
                )
                batches = torch.utils.data.DataLoader(dataset, sampler=order, batch_size=None)
            else:
                batches = ((features[rows], target[rows]) for rows in torch.randperm(kept).split(BATCH))
            for x, y in batches:
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def loop_seconds(path: Path, rates: list[float], through_loader: bool) -> float:
    context = multiprocessing.get_context("spawn")
    began = time.perf_counter()
    processes = [
        context.Process(target=loop, args=(path, rates[half::2], through_loader)) for half in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--networks", type=int, default=64)
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    rates = [10 ** (-4 + 2 * number / given.networks) for number in range(given.networks)]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = write(Path(folder), given.rows)
        results: dict[str, Any] = {}
        seconds: dict[str, list[float]] = {}

        def searched(packing: str) -> float:
            took, results[packing] = search_seconds(path, rates, packing)
            return took

        measured: dict[str, Callable[[], float]] = {
            "ours": lambda: searched("auto"),
            "loops over tensors, tuned DataLoader, 2 processes": lambda: loop_seconds(path, rates, True),
            "loops over tensors, batches by index, 2 processes": lambda: loop_seconds(path, rates, False),
            'packing="serial"': lambda: searched("serial"),
        }
        for _ in range(given.times):
            for name, measure in measured.items():
                seconds.setdefault(name, []).append(measure())
    if results["auto"] != results["serial"]:
        raise SystemExit("packs and single trials differ: this is a bug in Hopyard, please report it.")
    value = statistics.median(seconds.pop("ours"))
    name = f"{given.networks} networks 40-64-64-1 x {EPOCHS} epochs x {given.rows:,} rows, validated"
    for peer, times in seconds.items():
        their = statistics.median(times)
        line = {"name": name, "value": round(value, 2), "unit": "s", "peer": f"{peer}: {their:.1f} s"}
        print(json.dumps(line | {"ratio": round(value / their, 3)}), flush=True)


if __name__ == "__main__":
    main()
