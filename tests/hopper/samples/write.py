"""Writes journals as the present version does: ``python tests/hopper/samples/write.py FOLDER``, once for each version
that is released. Afterwards they stay as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopyard.backend import InlineBackend
from hopyard.hopper.segments import Segments, _mark
from hopyard.storage import LocalStore, Store
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, hp_loguniform

_UNITS_BEFORE_THE_KILL = 7


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(4, 2),
        torch.optim.SGD,
        torch.nn.CrossEntropyLoss(),
        ["accuracy"],
        batch_size=8,
        optimizer_params={"lr": params["lr"]},
    )


def rows() -> dict[str, Any]:
    random = np.random.default_rng(0)
    features = random.standard_normal((64, 4)).astype(np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}


def run(store: Store, name: str, num_models: int, num_epochs: int, **options: Any) -> None:
    RandomSearch(
        InlineBackend(),
        store,
        estimator,
        {"lr": hp_loguniform(-3, 0)},
        num_models,
        num_epochs,
        num_partitions=2,
        seed=1,
        run_id=name,
        evaluation_metric="accuracy",
        progress=False,
        packing="off",
        **options,
    ).fit(rows())


def segments(store: Store, name: str) -> list[bytes]:
    """The records of each segment of the run's journal, also of those that were merged."""
    return [
        b"".join(map(_anywhere, body.splitlines())) for body in Segments(store.runs.at(name)).read() if body
    ]


def _anywhere(line: bytes) -> bytes:
    """A record without the machine on which it was made."""
    record = json.loads(line)
    if record["r"] == "run":
        record["command"] = {"argv": None, "cwd": "."}
    elif record["r"] == "session":
        record |= {"host": "here", "pid": 1}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        store = LocalStore(place)
        run(store, "finished", 3, 2)
        run(store, "patient", 3, 5, patience=1)
        run(store, "budget", 3, 50, time_budget=0.2)
        run(store, "extended", 3, 2)
        run(store, "extended", 4, 3)
        written = {name: segments(store, name) for name in ("finished", "patient", "budget", "extended")}
    units = 0
    written["interrupted"] = []
    for body in written["finished"]:
        written["interrupted"].append(body)
        units += sum(json.loads(line)["r"] == "unit" for line in body.splitlines())
        if units >= _UNITS_BEFORE_THE_KILL:
            break
    for name, bodies in written.items():
        (folder / f"{name}.journal").write_bytes(b"".join(body + _mark(body) for body in bodies))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
