"""How much memory of its own a process needs to read, and to train on, a dataset larger than that.

    python benchmarks/memory.py [--gigabytes 2]

A prepared dataset is written; a fresh process iterates over one shuffled epoch of it, and two local
workers train two networks for an epoch. Printed is the highest RssAnon of the process, and of a worker, as
JSON lines (Linux only; the page cache, which holds mapped files, is not a process's own). The peer is the
limit of 500 MB. The data is deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopyard.backend import LocalBackend
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.data.opening.opening import open_dataset
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.schema import Column, Schema
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

WIDTH = 768
GROUP_ROWS = 8192
GROUPS_PER_FILE = 8
LIMIT_MB = 500


def write(directory: Path, size: int) -> None:
    """A prepared dataset of about ``size`` bytes."""
    schema = Schema(
        [Column("features", "tensor", "float32", (WIDTH,)), Column("target", "tensor", "float32")]
    )
    features = np.random.default_rng(0).random((GROUP_ROWS, WIDTH), np.float32)
    groups = -(-size // (GROUP_ROWS * (4 * WIDTH + 8)))
    entries = []
    for first in range(0, groups, GROUPS_PER_FILE):
        writer = FileWriter(directory / "temporary", schema)
        for group in range(first, min(first + GROUPS_PER_FILE, groups)):
            labels = np.arange(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
            features[:, 0] = labels  # no two row groups, and so no two files, are equal
            writer.write({"features": features, "target": labels.astype(np.float32)})
        entries.append(writer.close())
        (directory / "temporary").rename(directory / entries[-1].name)
    manifest = Manifest("train", f"benchmark of {size} bytes", schema, tuple(entries))
    (directory / MANIFEST_NAME).write_bytes(manifest.to_bytes())


def anonymous_mb() -> float:
    """Memory of this process that is no file's, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024 / 1e6


def iterate(directory: str) -> None:
    """One shuffled epoch; prints its rows and the highest RssAnon seen."""
    dataset: Dataset = open_dataset(directory)
    highest, rows = anonymous_mb(), 0
    for number, batch in enumerate(dataset.loader(1024, shuffle=True)):
        rows += len(batch["target"])
        if number % 16 == 0:
            highest = max(highest, anonymous_mb())
    print(json.dumps({"rows": rows, "mb": max(highest, anonymous_mb())}))


def train(directory: str) -> float:
    """One epoch of two networks on two workers; the highest RssAnon of a worker, in MB."""
    found = Path(directory) / "anonymous"
    found.mkdir()

    def watched(batch: Any, rng: Any) -> Any:
        if rng.integers(16) == 0:
            path = found / str(os.getpid())
            highest = float(path.read_text()) if path.exists() else 0.0
            path.write_text(str(max(highest, anonymous_mb())))
        return batch

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        network = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer, loss = torch.optim.Adam, torch.nn.MSELoss()
        rate = {"lr": params["lr"]}
        return TorchEstimator(
            network, optimizer, loss, batch_size=1024, optimizer_params=rate, transform=watched
        )

    backend, store = LocalBackend(num_workers=2, device="cpu"), LocalStore(Path(directory) / "store")
    search = GridSearch(
        backend,
        store,
        estimator,
        {"lr": hp_choice([1e-4, 1e-5])},
        num_epochs=1,
        validation=None,
        label_columns=["target"],
        progress=False,
    )
    search.fit_on_parquet(directory)
    return max(float(path.read_text()) for path in found.iterdir())


def report(name: str, megabytes: float) -> None:
    line = {"name": name, "value": round(megabytes, 1), "unit": "MB", "peer": f"{LIMIT_MB} MB"}
    print(json.dumps({**line, "ratio": round(megabytes / LIMIT_MB, 3)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--iterate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.iterate:
        iterate(arguments.iterate)
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        write(Path(directory), int(arguments.gigabytes * 1e9))
        child = [sys.executable, __file__, "--iterate", directory]
        found = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
        data = f"an epoch over {arguments.gigabytes:g} GB ({found['rows']} rows)"
        report(f"RssAnon of reading {data}", found["mb"])
        report(f"RssAnon of a worker that trains {data}", train(directory))


if __name__ == "__main__":
    main()
