"""Searches whose runs the tests look at, and data of pictures and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.experiment import complete, create
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, hp_choice, hp_loguniform


def rows(count: int = 160) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    features = random.standard_normal((count, 4)).astype(np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Sequential(torch.nn.Linear(4, params["width"]), torch.nn.Linear(params["width"], 2))
    return TorchEstimator(
        model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), metrics=["accuracy"], batch_size=16,
        optimizer_params={"lr": params["lr"]},
    )  # fmt: skip


def walked(store: LocalStore, run_id: str, **changes: Any) -> None:
    """Nine trials with rungs at 1 and 3 epochs."""
    space = {"width": hp_choice([4, 8, 16]), "lr": hp_loguniform(-4, 0)}
    arguments: dict[str, Any] = {
        "num_models": 9, "num_epochs": 3, "num_partitions": 3, "divisor": 3, "evaluation_metric": "accuracy",
        "run_id": run_id, "progress": False,
    }  # fmt: skip
    ASHA(InlineBackend(), store, estimator, space, **(arguments | changes)).fit(rows())


def pictures() -> dict[str, Any]:
    """32 small pictures, whose texts are longer than a line."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (32, 8, 8, 3)).astype(np.uint8)
    texts = np.array([f"picture {place} of a place where it rains " * 6 for place in range(32)], dtype=object)
    return {"image": images, "text": texts, "label": np.arange(32) % 3}


OWN = "window.owned = (window.owned ?? 0) + 1"
"""What no text may bring about."""
SCRIPT = f"</script><script>{OWN}</script>"
IMAGE = f"\"'><img src=x onerror='{OWN}'><svg onload='{OWN}'>"
LINK = f"javascript:{OWN}"
TURNED = f"\u202eturned\u202c \u2066isolated {{{{constructor.constructor('{OWN}')()}}}}"
LONG = "unbroken" * 400
METRIC = f"m {SCRIPT}"
CODE = f"""
import sys

def main(context):
    kind = context.get_hparam("kind")
    print(kind, flush=True)
    print({IMAGE!r}, file=sys.stderr, flush=True)
    if kind == {TURNED!r}:
        raise ValueError({SCRIPT!r} + {LONG!r})
    context.report(**{{{METRIC!r}: 1.0, {IMAGE!r}: 0.5}})
"""


def hostile_run(store: LocalStore, folder: Path) -> None:
    """An experiment whose name, hyperparameters, metrics, lines and errors are what attackers would write."""
    folder.mkdir()
    (folder / "model_def.py").write_text(CODE)
    config = {
        "entrypoint": "model_def:main", "name": IMAGE, "description": TURNED, "labels": [SCRIPT], "max_restarts": 0,
        "hyperparameters": {
            "kind": {"type": "categorical", "vals": [SCRIPT, LINK, TURNED, LONG]},
            IMAGE: {"type": "categorical", "vals": [1, 2]},
        },
        "searcher": {"name": "grid", "metric": METRIC, "smaller_is_better": False},
    }  # fmt: skip
    create(complete(config), folder, store, LocalBackend(num_workers=1), progress=False)


def hostile_rows() -> dict[str, Any]:
    """Data whose columns and texts are such, too."""
    texts = np.array([SCRIPT, IMAGE, TURNED, LONG] * 4, dtype=object)
    return {"label": np.arange(16) % 2, IMAGE: texts, f"x {SCRIPT}": np.arange(16.0)}
