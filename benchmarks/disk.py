"""Claim: what a search leaves on disk follows from the trials that survive, not from those that were tried.

1,000 networks, of which ASHA trains few to the end. The limit is twice the survivors' states (weights and the
optimizer's moments) and the journal, whose size stands beside it. Survivors: those completed (``keep="completed"``),
or the best one (``keep="best"``). (While it runs, trials that wait for a promotion keep theirs, too.)
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, hp_loguniform, open_run

TRIALS, EPOCHS = 1000, 16
_random = np.random.default_rng(0)
FEATURES = _random.standard_normal((64, 64), dtype=np.float32)
LABELS = FEATURES[:, :10].argmax(1)


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        model=torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)),
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        batch_size=64,
    )


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of states and of the journal, and the number of all files."""
    found = {"states": 0, "journal": 0, "files": 0}
    for path in folder.rglob("*"):
        if path.is_file():
            in_trial = path.relative_to(folder).parts[0].isdigit()
            found["states" if in_trial else "journal"] += path.stat().st_size
            found["files"] += 1
    return found


def measure(backend: LocalBackend, keep: str) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = LocalStore(folder)
        more: dict[str, Any] = {"validation": None, "num_partitions": 1, "progress": False, "run_id": "run"}
        ASHA(backend, store, estimator, {"lr": hp_loguniform(-4, -1)}, TRIALS, EPOCHS, keep=keep, **more).fit(
            {"features": FEATURES, "label": LABELS}
        )
        state = open_run(store, "run").state
        root = Path(folder) / "runs" / "run"
        left = sizes(root)
        completed = [trial for trial in state.trials.values() if trial.status == "completed"]
        survivors = completed if keep == "completed" else [state.trials[state.best or 0]]
        full = max(trial.durable.state.nbytes for trial in completed if trial.durable.state)
        limit = 2 * len(survivors) * full + left["journal"]
        used = left["states"] + left["journal"]
        line = {"name": f"1,000 trials with ASHA, keep={keep!r}", "value": round(used / 1e6, 3), "unit": "MB"}
        line |= {
            "peer": f"2 x {len(survivors)} states of {full / 1e3:.0f} KB + journal: {limit / 1e6:.3f} MB"
        }
        line |= {"ratio": round(used / limit, 3), "journal_mb": round(left["journal"] / 1e6, 3)}
        line |= {"files": left["files"], "units": state.units}
        print(json.dumps(line), flush=True)


def main() -> None:
    with LocalBackend(num_workers=2, device="cpu") as backend:
        for keep in ("completed", "best"):
            measure(backend, keep)


if __name__ == "__main__":
    main()
