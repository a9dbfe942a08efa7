"""The document of importance names its method, and names of nested hyperparameters are those of all pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.web.conftest import estimator, rows

from hopyard.backend import InlineBackend
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice
from hopyard.web.importance import importance_json
from hopyard.web.runs import points_of
from hopyard.web.watched import WatchedRun


def nested(params: dict[str, Any]) -> TorchEstimator:
    return estimator({"width": params["width"], "lr": params["opt"]["lr"]})


def test_the_document_names_method_trials_and_what_is_left_out(tmp_path: Path) -> None:
    optimizers = [
        *({"lr": rate} for rate in (0.1, 0.01, 0.001)),
        *({"lr": rate, "momentum": 0.9} for rate in (0.1, 0.01)),
    ]
    space = {"width": hp_choice([4, 8]), "opt": hp_choice(optimizers)}
    GridSearch(
        InlineBackend(), LocalStore(tmp_path), nested, space, num_epochs=1, num_partitions=1, run_id="nested",
        feature_columns=["features"], label_columns=["label"], progress=False, evaluation_metric="loss",
    ).fit(rows())  # fmt: skip
    run = WatchedRun(LocalStore(tmp_path), "nested", 0.0)
    run.refresh()
    told = importance_json(points_of(run))
    assert (told["error"], told["method"]) == (None, "fANOVA")
    assert (told["num_trials"], told["num_results"]) == (10, 10)
    assert {each["name"] for each in told["importances"]} == {"width", "opt.lr"}
    assert told["left_out"] == [{"name": "opt.momentum", "why": "only 4 of 10 trials have it"}]
