"""Claim: 64 small networks over one table take a third of what they take one by one, with the same bits.

64 networks 40-64-64-1 (PyTorch, Adam), batch 256, 2 epochs over a Parquet file of float32 columns, on two workers of
one thread, from the file to trained models that were validated on a fifth of the rows. The peers train on the
same four fifths, and do not validate; each has two processes of one thread, reads the file once in each, and takes
``Adam(fused=True)``:

* a loop over the networks, joblib, Optuna and Ray Tune, each over tensors in memory, by a ``DataLoader`` that takes
  whole batches by index (``batch_size=None``);
* a loop that takes batches by index without any ``DataLoader``: the least that a loop can do;
* JAX, half of the networks in each process, stacked by hand with ``vmap``; compiling counts;
* the same search with ``packing="serial"``, whose results must be the same to the last bit.

The last lines compare with the best of several. ``--full`` takes a million rows, ``--rows`` and ``--networks`` make it
smaller or larger.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from _pack_peers import network
from _pack_table import BATCH, EPOCHS, NAMES, SHARE, write
from _scripts import run_again
from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice

HERE = Path(__file__).parent
LOOP, BY_INDEX, JAX = "a loop, tuned DataLoader", "a loop, batches by index", "JAX vmap by hand"
SERIAL = 'packing="serial"'
PEERS: dict[str, tuple[str, list[str], str | None]] = {
    LOOP: ("_pack_peers.py", ["loop"], None),
    "joblib, tuned DataLoader": ("_pack_peers.py", ["joblib"], "joblib"),
    "Optuna, tuned DataLoader": ("_pack_peers.py", ["optuna"], "optuna"),
    "Ray Tune, tuned DataLoader": ("_pack_peers.py", ["ray_tune"], "ray"),
    BY_INDEX: ("_pack_peers.py", ["loop_by_index"], None),
    JAX: ("_pack_jax.py", [], "jax"),
}
"""Script, arguments and package of each."""


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=network(),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.MSELoss(),
        batch_size=BATCH,
        inputs={"input": NAMES},
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
            feature_columns=NAMES,
            label_columns=["target"],
            validation=SHARE,
            num_partitions=2,
            packing=packing,
            progress=False,
        ).fit(str(path))
        seconds = time.perf_counter() - began
        trials = model.run.state.trials.values()
        return seconds, [(trial.history, trial.best.state.digest if trial.best else None) for trial in trials]


def peer_seconds(peer: str, path: Path, rates: list[float]) -> float:
    script, arguments, _ = PEERS[peer]
    printed = run_again(str(HERE / script), *arguments, str(path.absolute()), json.dumps(rates))
    return float(printed.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--networks", type=int, default=64)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="1,000,000 rows: about 20 minutes")
    given = parser.parse_args()
    rows = 1_000_000 if given.full else given.rows
    rates = [10 ** (-4 + 2 * number / given.networks) for number in range(given.networks)]
    name = f"{given.networks} networks 40-64-64-1 x {EPOCHS} epochs x {rows:,} rows, validated"
    peers = [
        peer
        for peer, (_, _, package) in PEERS.items()
        if package is None or importlib.util.find_spec(package)
    ]
    for peer in set(PEERS) - set(peers):
        report(name, None, f"{peer}, skipped: {PEERS[peer][2]} is not installed", None)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = write(Path(folder), rows)
        for _ in range(given.times):
            seconds, results = search_seconds(path, rates, "auto")
            ours.append(seconds)
            for peer in peers:
                theirs.setdefault(peer, []).append(peer_seconds(peer, path, rates))
            seconds, alone = search_seconds(path, rates, "serial")
            theirs.setdefault(SERIAL, []).append(seconds)
            if results != alone:
                raise SystemExit(
                    "packs and single trials differ: this is a bug in Hopyard, please report it."
                )
    value = statistics.median(ours)
    medians = {peer: statistics.median(seconds) for peer, seconds in theirs.items()}
    for peer, median in medians.items():
        report(name, value, f"{peer}: {median:.1f} s", median)
    loading = [peer for peer in peers if peer not in (BY_INDEX, JAX)]
    for told, some in (
        ("those that read by a DataLoader", loading),
        ("all of PyTorch", [*loading, BY_INDEX]),
    ):
        best = min(some, key=medians.__getitem__)
        report(name, value, f"the best of {told} ({best}): {medians[best]:.1f} s", medians[best])


def report(name: str, value: float | None, peer: str, seconds: float | None) -> None:
    line = {"name": name, "value": None if value is None else round(value, 2), "unit": "s", "peer": peer}
    ratio = None if value is None or seconds is None else round(value / seconds, 3)
    print(json.dumps(line | {"ratio": ratio}), flush=True)


if __name__ == "__main__":
    main()
