"""A run of many trials, recorded as a search records it: the work that dashboards are compared on."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopyard.backend import InlineBackend
from hopyard.hopper.journal import Journal, read_records
from hopyard.hopper.state import JournalRecord
from hopyard.search import hp_choice, hp_loguniform, hp_quniform, hp_uniform
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch

CONCURRENT, WORKERS, SEED = 64, 8, 0
SPACE = {
    "lr": hp_loguniform(-5, -1),
    "weight_decay": hp_loguniform(-6, -2),
    "dropout": hp_uniform(0, 0.6),
    "momentum": hp_uniform(0.5, 0.99),
    "width": hp_quniform(16, 512, 16),
    "depth": hp_quniform(1, 8, 1),
    "optimizer": hp_choice(["sgd", "adam", "adamw"]),
    "activation": hp_choice(["relu", "gelu", "tanh"]),
}


def params_of(number: int) -> dict[str, Any]:
    """The hyperparameters of a trial."""
    draw = random.Random(SEED * 1_000_003 + number)
    return {
        "lr": 10 ** draw.uniform(-5, -1),
        "weight_decay": 10 ** draw.uniform(-6, -2),
        "dropout": draw.uniform(0, 0.6),
        "momentum": draw.uniform(0.5, 0.99),
        "width": 16.0 * draw.randint(1, 32),
        "depth": float(draw.randint(1, 8)),
        "optimizer": draw.choice(["sgd", "adam", "adamw"]),
        "activation": draw.choice(["relu", "gelu", "tanh"]),
    }


def losses_of(number: int, epochs: int) -> list[float]:
    """The validation losses of a trial: better for learning rates near 0.003, and noisy."""
    params, draw = params_of(number), random.Random(number)
    floor = 0.1 + 0.2 * abs(math.log10(params["lr"]) + 2.5) + 0.3 * params["dropout"] ** 2
    return [floor + math.exp(-0.05 * epoch) + draw.gauss(0, 0.02) for epoch in range(epochs)]


def write_run(folder: Path, trials: int, epochs: int, ends: bool = True) -> str:
    """Write a run of so many trials into the store ``folder``, and return its name.

    Its header is that of a search of one trial, which is done for it; the records of all trials have the form of that
    one's.
    """
    with tempfile.TemporaryDirectory() as other:
        search = RandomSearch(
            InlineBackend(),
            LocalStore(other),
            _estimator,
            SPACE,
            1,
            1,
            validation=0.25,
            num_partitions=1,
            seed=SEED,
            progress=False,
        )
        run_id = search.fit(_rows()).run_id
        first, session, *rest = read_records(LocalStore(other).runs.at(run_id))
    train, last = (record for record in rest if record["r"] == "unit")
    first["settings"] |= {"num_models": trials, "num_epochs": epochs}
    first["num_epochs"] = epochs
    journal = Journal(LocalStore(folder).runs.at(run_id))
    try:
        journal.append(first)
        journal.append(session | {"workers": WORKERS})
        for number, record in enumerate(_records(trials, epochs, train, last)):
            journal.append(record)
            if number % 500 == 0:
                journal.flush()
        if ends:
            figures = {"trials": trials, "best": 0.0, "seconds": 0.0, "unit_seconds": 0.0}
            journal.append({"r": "finish", "status": "completed", **figures})
        journal.flush()
    finally:
        journal.close()
    return run_id


def _records(trials: int, epochs: int, train: JournalRecord, last: JournalRecord) -> Iterator[JournalRecord]:
    clocks = [0.0] * WORKERS
    draw = random.Random(SEED)
    for begin in range(0, trials, CONCURRENT):
        wave = range(begin, min(begin + CONCURRENT, trials))
        for number in wave:
            yield {"r": "trial", "n": number, "params": params_of(number), "g": 0, "source": None}
        losses = {number: losses_of(number, epochs) for number in wave}
        for epoch in range(epochs):
            for number in wave:
                worker = number % WORKERS
                state = {name: f"{draw.getrandbits(256):064x}" for name in ("whole", "model", "optimizer")}
                for phase, template in (("train", train), ("validate", last)):
                    at = clocks[worker]
                    clocks[worker] += draw.uniform(0.5, 1.5) if phase == "train" else 0.2
                    own = {
                        "t": [number],
                        "e": epoch,
                        "p": 0,
                        "w": worker,
                        "v": 2 * epoch + (phase != "train"),
                    }
                    own |= {"n": epoch + (phase != "train"), "to": epochs, "last": True}
                    own |= {"a": round(at, 6), "z": round(clocks[worker], 6)}
                    loss = losses[number][epoch]
                    if phase == "train":
                        own["s"] = [_renamed(template["s"][0], state)]
                        own["m"] = [{"loss": [loss * 40, 48.0], "accuracy": [48 - loss, 48.0]}]
                    else:
                        own["m"] = [{"values": {"loss": loss, "accuracy": 1 / (1 + loss)}}]
                    yield template | own
        for number in wave:
            yield {"r": "end", "t": number, "status": "completed", "z": max(clocks)}


def further_records(trials: int) -> Iterator[JournalRecord]:
    """Records of trials that begin after so many."""
    for number in itertools.count(trials):
        yield {"r": "trial", "n": number, "params": params_of(number), "g": 0, "source": None}


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A reference of the same form to other bytes."""
    renamed = state | {"digest": names["whole"]}
    if "files" in state:
        renamed["files"] = [f"{names['model']}.safetensors"[: len(name)] for name in state["files"]]
    if "parts" in state:
        renamed["parts"] = {
            part: _renamed(each, names | {"whole": names.get(part, names["whole"])})
            for part, each in state["parts"].items()
        }
    return renamed


def _estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=torch.nn.Linear(4, 2),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=16,
    )


def _rows() -> dict[str, Any]:
    draw = np.random.default_rng(SEED)
    features = draw.standard_normal((64, 4), dtype=np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}
