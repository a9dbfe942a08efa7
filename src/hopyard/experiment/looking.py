"""Looks at a trial on a worker before its experiment begins: what its data is, and whether its function reports.

Workers import this and no more of the driver.
"""

from __future__ import annotations

from typing import Any

from hopyard.errors import Evidence, Preempted, StorageError, WorkerError
from hopyard.experiment.lengths import Facts, Stretch
from hopyard.experiment.surrounded import TrialEstimator
from hopyard.experiment.trials import TrialFunction
from hopyard.training.estimator import Visit
from hopyard.training.evidence import gather
from hopyard.training.session import Session


def look(function: TrialFunction, seed: int, params: dict[str, Any]) -> Facts | Evidence:
    """Facts about the data of a trial, or why its code fails; on a worker."""
    try:
        with Session(1) as session:
            session.seed(seed, 0, "init")
            estimator = function(params)
            assert isinstance(estimator, TrialEstimator)
            return estimator.facts()
    except (StorageError, WorkerError, Preempted):
        raise
    except (Exception, SystemExit) as error:
        return gather(error, "build", None)


def first_report(function: TrialFunction, seed: int, params: dict[str, Any]) -> Evidence | None:
    """Let a function run up to its first report, on a worker; why it fails, if it does."""
    try:
        with Session(1) as session:
            session.seed(seed, 0, "init")
            replica = function(params).replica(None)  # type: ignore[arg-type]  # a function's looks at nothing
            replica.train(Visit(Stretch(0), seed, 0, 0))
            replica.state()
    except (StorageError, WorkerError, Preempted):
        raise
    except (Exception, SystemExit) as error:
        return gather(error, "train", None)
    return None
