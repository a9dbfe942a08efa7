"""What people use to train many small networks over one table: the peers of ``packs.py``, which runs this file.

Each reads the Parquet file once in a process, and trains the networks 40-64-64-1 of some learning rates on the first
rows, by Adam, in batches of 256 in another order each epoch, on two processes of one thread. None validates.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _pack_table import BATCH, COLUMNS, EPOCHS, arrays, in_two_processes


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(COLUMNS, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 1),
    )


def by_loader(features: torch.Tensor, target: torch.Tensor) -> Iterator[Any]:
    """Batches of a tuned loader: whole ones by index, which is several times as fast as row by row."""
    dataset = torch.utils.data.TensorDataset(features, target)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), BATCH, drop_last=False)
    return iter(torch.utils.data.DataLoader(dataset, sampler=order, batch_size=None))


def by_index(features: torch.Tensor, target: torch.Tensor) -> Iterator[Any]:
    """Batches without any loader: the least that a loop can do."""
    return ((features[rows], target[rows]) for rows in torch.randperm(len(features)).split(BATCH))


def train(
    features: np.ndarray[Any, Any],
    target: np.ndarray[Any, Any],
    rate: float,
    batches: Callable[[torch.Tensor, torch.Tensor], Iterator[Any]] = by_loader,
) -> float:
    """Train one network, on one thread; returns its last loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, labels = torch.from_numpy(features), torch.from_numpy(target)
    model, loss_fn = network(), torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    for _ in range(EPOCHS):
        for x, y in batches(inputs, labels):
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float(loss.detach())


# Loops ----------------------------------------------------------------------------------------


def loop(path: Path, rates: Sequence[float]) -> float:
    return in_two_processes(_loop, path, rates, by_loader)


def loop_by_index(path: Path, rates: Sequence[float]) -> float:
    return in_two_processes(_loop, path, rates, by_index)


def _loop(path: Path, rates: Sequence[float], half: int, batches: Any) -> None:
    for rate in rates:
        train(*arrays(path), rate, batches)


# joblib ---------------------------------------------------------------------------------------


def joblib(path: Path, rates: Sequence[float]) -> float:
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    began = time.perf_counter()
    Parallel(n_jobs=2, backend="loky")(delayed(_of_file)(path, rate) for rate in rates)
    seconds = time.perf_counter() - began
    get_reusable_executor().shutdown(wait=True)
    return seconds


def _of_file(path: Path, rate: float) -> float:
    return train(*arrays(path), rate)


# Optuna ---------------------------------------------------------------------------------------


def optuna(path: Path, rates: Sequence[float]) -> float:
    """Two processes that share a study in a journal, as Optuna's manual says; the rates are waiting in it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        began = time.perf_counter()
        journal = str(Path(folder) / "journal.log")
        study = optuna.create_study(study_name="rates", storage=_optuna_storage(journal))
        for rate in rates:
            study.enqueue_trial({"lr": rate})
        in_two_processes(_optuna_worker, path, rates, journal)
        if sorted(trial.params["lr"] for trial in study.get_trials()) != sorted(rates):
            raise RuntimeError("Optuna trained other networks than those that were asked for")
        return time.perf_counter() - began


def _optuna_storage(journal: str) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(journal))


def _optuna_worker(path: Path, rates: Sequence[float], half: int, journal: str) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name="rates", storage=_optuna_storage(journal))
    study.optimize(
        lambda trial: _of_file(path, trial.suggest_float("lr", 1e-6, 1.0, log=True)), n_trials=len(rates)
    )


# Ray Tune -------------------------------------------------------------------------------------


def ray_tune(path: Path, rates: Sequence[float]) -> float:
    """Two workers; the table is read once, into Ray's store."""
    os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    import ray
    from ray import tune

    began = time.perf_counter()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
    )
    held = ray.put(arrays.__wrapped__(path))

    def trainable(config: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's arrays are read-only
            tune.report({"loss": train(*ray.get(held), config["lr"])})

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        found = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"lr": tune.grid_search(list(rates))},
            run_config=tune.RunConfig(verbose=0, storage_path=str(Path(folder).absolute())),
        ).fit()
    ray.shutdown()
    if found.errors or len(found) != len(rates):
        raise RuntimeError(f"Ray Tune trained {len(found)} networks, and {len(found.errors)} failed")
    return time.perf_counter() - began


PEERS: dict[str, Callable[[Path, Sequence[float]], float]] = {
    "loop": loop,
    "loop_by_index": loop_by_index,
    "joblib": joblib,
    "optuna": optuna,
    "ray_tune": ray_tune,
}
"""Seconds for a network of each learning rate, from the file to trained models, with the starting of processes."""


if __name__ == "__main__":
    print(PEERS[sys.argv[1]](Path(sys.argv[2]), json.loads(sys.argv[3])))
