"""``hopyard plan``: searchers from files, in the units that they are written in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hopyard.cli import app
from hopyard.errors import UsageError

CLUSTER = ("--workers", "4", "--rows", "1000", "--rows-per-second", "10", "--data-gb", "1")


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def written(path: Path, found: Any) -> str:
    path.write_text(json.dumps(found))
    return str(path)


@pytest.mark.parametrize(
    ("length", "unit"), [({"epochs": 64}, "epochs"), ({"batches": 64}, "batches"), (64, "units")]
)
def test_lengths_are_shown_in_the_unit_of_the_file(length: Any, unit: str, tmp_path: Path) -> None:
    searcher = {"name": "adaptive_asha", "max_trials": 16, "max_length": length, "mode": "aggressive"}
    lines = plan("--searcher", written(tmp_path / "searcher.json", searcher)).splitlines()
    assert lines[0].split() == ["trials", unit, "each"]
    assert [line.split() for line in lines[1:4]] == [["12", "4"], ["3", "16"], ["1", "64"]]
    assert lines[4] == f"16 trials, 160 {unit} in all"


def test_a_grid_counts_the_hyperparameters_of_its_experiment(tmp_path: Path) -> None:
    experiment = {
        "name": "mnist",
        "hyperparameters": {
            "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 3},
            "layers": {"type": "categorical", "vals": [1, 2]},
            "width": 5,
        },
        "searcher": {"name": "grid", "metric": "loss", "max_length": {"epochs": 2}},
    }
    assert "6 trials, 12 epochs in all" in plan("--searcher", written(tmp_path / "grid.json", experiment))
    experiment["searcher"] = {"name": "single", "max_length": {"epochs": 2}}
    assert "1 trial, 2 epochs in all" in plan("--searcher", written(tmp_path / "single.json", experiment))


def test_lengths_in_batches_are_not_taken_for_epochs(tmp_path: Path) -> None:
    path = written(tmp_path / "searcher.json", {"name": "single", "max_length": {"batches": 937}})
    with pytest.raises(UsageError, match="lengths are in batches, but a plan takes epochs"):
        plan("--searcher", path, *CLUSTER)


def test_no_workers_are_told_by_the_option() -> None:
    result = CliRunner().invoke(app, ["plan", "--workers", "0"])
    assert result.exit_code == 2
    assert "--workers" in result.output


@pytest.mark.parametrize(
    ("arguments", "lacking"),
    [
        ((), "--workers, --rows, --data-gb, --rows-per-second or --seconds-per-unit, --models, --epochs"),
        (CLUSTER, "--models, --epochs"),
        ((*CLUSTER, "--models", "3"), "--epochs"),
    ],
)
def test_what_is_lacking_is_named(arguments: tuple[str, ...], lacking: str) -> None:
    with pytest.raises(
        UsageError, match=rf"hopyard plan lacks {lacking} to estimate a search; --searcher FILE"
    ):
        plan(*arguments)


MODELS = (*CLUSTER, "--models", "24", "--epochs", "1", "--partitions", "4")


def test_packs_of_models_that_are_alike_are_shown() -> None:
    assert "If models are alike: 24 trials would train together in 4 packs of 6;" in " ".join(
        plan(*MODELS).split()
    )
    packing = json.loads(plan(*MODELS, "--json"))["packing"]
    assert packing["packs"][0] == {"trials": [0, 4, 8, 12, 16, 20], "gain": None}
    assert packing["alone"] == []
    assert packing["unknown"].startswith(
        "the gain is unknown, as no model is at hand: search.check(data) builds"
    )


def test_where_trials_would_train_alone_the_reason_is_shown() -> None:
    shown = plan(*CLUSTER, "--models", "3", "--epochs", "1")
    assert "\nTrials train one at a time: no other trial of their architecture is to visit the same" in shown


def test_packs_are_of_trials_that_are_under_way_at_once(tmp_path: Path) -> None:
    searcher = {"name": "random", "max_trials": 50, "max_length": 2, "max_concurrent_trials": 8}
    path = written(tmp_path / "searcher.json", searcher)
    packs = json.loads(plan("--searcher", path, *CLUSTER, "--partitions", "1", "--json"))["packing"]["packs"]
    assert [pack["trials"] for pack in packs] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert json.loads(plan("--searcher", path, "--json"))["packing"] is None
    searcher["max_trials"], searcher["max_concurrent_trials"] = 20_000, 0
    path = written(tmp_path / "searcher.json", searcher)
    packing = json.loads(plan("--searcher", path, *CLUSTER, "--json"))["packing"]
    assert packing["unknown"].startswith("only the first 10,000 trials are shown; the gain is unknown")
    assert sum(len(pack["trials"]) for pack in packing["packs"]) == 10_000
