"""Clones of trials of experiments: functions, trials with loaders of their own, and trials of several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.experiment.conftest import FUNCTION

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.errors import UsageError
from hopyard.experiment import resume
from hopyard.tune import Run

SINGLE = {"name": "single", "metric": "accuracy"}
BREAKS = FUNCTION.replace(
    "        context.save",
    "        if epoch == context.get_hparam('breaks'):\n            raise ValueError('broken')\n        context.save",
)


def went_on(run: Run, backend: Any = None) -> Run:
    return resume(
        run.program[0].url.partition("/runs/")[0], run.run_id, backend or InlineBackend(), progress=False
    )


def test_a_function_that_broke_goes_on_in_a_clone_from_its_last_saved_state(
    definition: Any, experiment: Any
) -> None:
    run = experiment(
        definition(BREAKS), entrypoint="model_def:main", searcher=SINGLE, hyperparameters={"lr": 0.5, "breaks": 2},
        checkpoints={"keep": "all"}, max_restarts=0,
    )  # fmt: skip
    assert [trial.status for trial in run.state.trials.values()] == ["failed"]
    assert "breaks=9 lies outside of the constant 2, which is allowed." in run.clone(
        0, {"breaks": 9}, weights=True
    )
    run.clone(0, {"breaks": 9, "lr": 1.5})
    after = went_on(run)
    weighted, anew = after.state.trials[1], after.state.trials[2]
    assert (weighted.status, weighted.source, anew.status, anew.source) == ("completed", 0, "completed", None)
    assert weighted.history["val_accuracy"] == [2.5, 3.5]
    assert anew.history["val_accuracy"] == [1.5, 2.5, 3.5, 4.5]
    assert after.status == "completed"
    with pytest.raises(
        UsageError, match="trial 2 has trained to its end, so a clone with its weights would have"
    ):
        after.clone(2, weights=True)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_clone_of_a_trial_class_is_its_donor_to_the_bits(
    definition: Callable[..., Path], experiment: Callable[..., Run], slots: int
) -> None:
    backend = InlineBackend() if slots == 1 else LocalBackend(num_workers=1, device="cpu")
    fields = {
        "resources": {"slots_per_trial": slots},
        "hyperparameters": {"lr": {"type": "categorical", "vals": [0.01]}},
    }
    run = experiment(
        definition(),
        backend,
        searcher={"name": "grid", "metric": "accuracy", "max_length": {"epochs": 2}},
        **fields,
    )
    run.clone(0)
    run.clone(0, {"lr": 0.3})
    donor, same, other = went_on(run, backend).state.trials.values()
    assert same.history == donor.history
    assert same.best is not None
    assert donor.best is not None
    assert same.best.state.digest == donor.best.state.digest
    assert other.history["val_loss"] != donor.history["val_loss"]
    assert other.epochs == donor.epochs
