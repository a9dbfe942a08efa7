"""Small searches on small data, as users would write them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import RandomSearch, Run, hp_choice, hp_log, hp_quniform

# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


_SPACE = {
    "width": hp_choice([4, 8]),
    "lr": hp_log(1e-3, 1e-1),
    "drop": hp_choice([{"rate": hp_quniform(0.1, 0.5, 0.1)}, {"rate": 0, "why": None}, "no"]),
    "fails": hp_choice([True, False]),
}


def rows(n: int = 96, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """``n`` points in four dimensions; the label says on which side of a plane they are."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((n, 4)).astype(np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int64)}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, params["width"]),
        torch.nn.BatchNorm1d(params["width"]),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(params["width"], 2),
    )
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=torch.nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=16,
    )


def random_search(
    store: Any, backend: Any = None, kind: type[RandomSearch] = RandomSearch, **changes: Any
) -> RandomSearch:
    arguments: dict[str, Any] = {
        "backend": backend or InlineBackend(),
        "store": store,
        "estimator_gen_fn": estimator,
        "search_space": {"width": hp_choice([4, 8]), "lr": hp_log(1e-3, 1e-1)},
        "num_models": 3,
        "num_epochs": 2,
        "num_partitions": 2,
        "evaluation_metric": "accuracy",
        "progress": False,
    }
    return kind(**(arguments | changes))


def contents(run: Any) -> dict[int, Any]:
    """All that must be equal between two runs of the same search, to the last bit."""
    return {
        number: (t.params, t.status, t.history, t.best and (t.best.epoch, t.best.value, t.best.state.digest))
        for number, t in run.state.trials.items()
    }


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., dict[str, np.ndarray[Any, Any]]]:
    return rows


@pytest.fixture(scope="session")
def search() -> Callable[..., RandomSearch]:
    return random_search


@pytest.fixture(scope="session")
def contents_of() -> Callable[[Any], dict[int, Any]]:
    return contents


@pytest.fixture(scope="session")
def local() -> Any:
    with LocalBackend(num_workers=2, device="cpu") as backend:
        yield backend


@pytest.fixture(scope="session")
def local_of_three() -> Any:
    with LocalBackend(num_workers=3, device="cpu") as backend:
        yield backend


@pytest.fixture(scope="session")
def run(search: Any, make_rows: Any) -> Run:
    """Trials of every state but running. Tests leave it so."""
    works = search(MemoryStore()).arguments.estimator_gen_fn

    def estimator(params: dict[str, Any]) -> Any:
        if params["fails"]:
            raise ValueError("as asked")
        return works(params)

    first = {"width": 4, "lr": 0.01, "drop": "no", "fails": False}
    found: Run = (
        search(
            MemoryStore(),
            estimator_gen_fn=estimator,
            search_space=_SPACE,
            num_models=6,
            num_epochs=3,
            patience=1,
            initial_params=[first, {**first, "fails": True}],
            run_id="study",
        )
        .fit(make_rows())
        .run
    )
    assert {trial.status for trial in found.state.trials.values()} == {"completed", "stopped", "failed"}
    return found
