"""Runs in Weights & Biases, by the real package, without a server."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.storage import LocalStore


@pytest.mark.filterwarnings("default")
def test_wandb_gets_a_run_for_each_trial(
    search: Any, make_rows: Any, needs: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    needs(importlib.util.find_spec("wandb"), "the package wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for hooked in ("exit", "excepthook"):  # wandb replaces them and leaves it at that
        monkeypatch.setattr(sys, hooked, getattr(sys, hooked))
    import wandb

    from hopyard.tune import WandbCallback

    logged: list[Any] = []

    class Noting(WandbCallback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            super().on_epoch_end(trial, epoch, metrics)
            run = self._runs[trial.number]
            logged.append((run.group, run.name, dict(run.config), run.step, dict(run.summary)))

    callback = Noting(project="wine", mode="offline", dir=str(tmp_path))
    model = search(LocalStore(tmp_path / "store"), callbacks=[callback]).fit(make_rows())
    assert len(logged) == 3 * 2
    for trial in model.run.state.trials.values():
        entries = [entry for entry in logged if entry[1] == f"trial {trial.number}"]
        assert [entry[0] for entry in entries] == [model.run_id] * 2
        assert entries[-1][2] == trial.params
        assert entries[-1][4]["val_accuracy"] == trial.history["val_accuracy"][-1]
    kept = sorted(
        path.name.partition(f"{model.run_id}")[2] for path in (tmp_path / "wandb").glob("offline-run-*")
    )
    assert kept == ["-0", "-1", "-2"]
    assert wandb.run is None
