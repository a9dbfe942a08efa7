"""Claim: a durable trial costs a hundredth of one of Ray Tune, and a fifth of one of Optuna with SQLite.

A trial is one epoch over one partition, drawn at random, from the searcher's point to its result on disk. Two layers:

* the run loop with work that does nothing (searcher, scheduler, backend, journal) against Ray Tune and Optuna with
  objectives that return at once;
* all of ``RandomSearch.fit`` (preparation of the data, training and saving of a tiny network, its result) against the
  same training and ``torch.save`` in objectives of Ray Tune and Optuna.

The peers get what makes them fast: a random sampler; for Ray Tune actors that are used again, and a cluster that runs
already. They run fewer trials (24 and 100), and their rates are taken for those of 1,000. ``trials.py 5``: five rounds
in turns instead of three.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _noop import run
from hopyard.backend import Backend, InlineBackend, LocalBackend
from hopyard.hopper.scheduler import Layout
from hopyard.search import FullLength, RandomPoints, hp_loguniform
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch

TRIALS, OPTUNA_TRIALS, RAY_TRIALS, ROUNDS = 1000, 100, 24, 3
SPACE = {"lr": hp_loguniform(-4, -1)}
_random = np.random.default_rng(0)
FEATURES = _random.standard_normal((64, 4), dtype=np.float32)
LABELS = (FEATURES.sum(axis=1) > 0).astype(np.int64)

Objective = Callable[[float, Path], float]


def no_op(rate: float, folder: Path) -> float:
    return rate


def network() -> torch.nn.Module:
    return torch.nn.Linear(4, 2)


def tiny(rate: float, folder: Path) -> float:
    """What a trial of ``fit`` does: an epoch of one batch, and the state to disk."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    loss = torch.nn.CrossEntropyLoss()(model(torch.from_numpy(FEATURES)), torch.from_numpy(LABELS))
    loss.backward()
    optimizer.step()
    path = folder / f"{rate}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return float(loss.detach())


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=network(),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        batch_size=64,
    )


def hopper(backend: Backend, folder: Path) -> None:
    run(backend, folder, FullLength(RandomPoints(SPACE), TRIALS, 1), Layout(1, 0), 1)


def fit(backend: Backend, folder: Path) -> None:
    search = RandomSearch(
        backend,
        LocalStore(folder),
        estimator,
        SPACE,
        TRIALS,
        1,
        validation=None,
        num_partitions=1,
        progress=False,
    )
    search.fit({"features": FEATURES, "label": LABELS})


def optuna_trials(objective: Objective, folder: Path) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/study.db", sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(lambda trial: objective(trial.suggest_float("lr", 1e-4, 1e-1), folder), OPTUNA_TRIALS)


def ray_trials(objective: Objective, folder: Path) -> None:
    from ray import tune

    def trainable(config: dict[str, Any]) -> None:
        tune.report({"loss": objective(config["lr"], folder)})

    tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(num_samples=RAY_TRIALS, reuse_actors=True),
        run_config=tune.RunConfig(verbose=0, storage_path=str(folder)),
    ).fit()


def rate(action: Callable[[Path], None], trials: int) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        action(Path(folder).resolve())
        return trials / (time.perf_counter() - began)


def medians(contenders: dict[str, tuple[Callable[[Path], None], int]], rounds: int) -> dict[str, float]:
    """Trials/s of each, in turns."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (action, trials) in contenders.items():
            found[name].append(rate(action, trials))
    return {name: statistics.median(rates) for name, rates in found.items()}


def report(name: str, value: float, peers: dict[str, float]) -> None:
    for peer, theirs in peers.items():
        line = {"name": name, "value": round(value, 1), "unit": "trials/s"}
        line |= {"peer": f"{peer}: {theirs:.1f}/s", "ratio": round(value / theirs, 2)}
        print(json.dumps(line), flush=True)


def main() -> None:
    os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    rate(partial(ray_trials, no_op), RAY_TRIALS)  # its processes start
    with LocalBackend(num_workers=2, device="cpu") as local:
        for title, ours, objective in (("no-op", hopper, no_op), ("fit, tiny network", fit, tiny)):
            contenders: dict[str, tuple[Callable[[Path], None], int]] = {
                "inline": (partial(ours, InlineBackend()), TRIALS),
                "2 local workers": (partial(ours, local), TRIALS),
                "Optuna, SQLite": (partial(optuna_trials, objective), OPTUNA_TRIALS),
                "Ray Tune, 2 workers": (partial(ray_trials, objective), RAY_TRIALS),
            }
            found = medians(contenders, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
            peers = {name: found.pop(name) for name in ("Optuna, SQLite", "Ray Tune, 2 workers")}
            for where, value in found.items():
                report(f"{title}, {where}", value, peers)
    ray.shutdown()


if __name__ == "__main__":
    main()
