"""Training on a worker: estimators' common part, units, metrics. Frameworks are in folders of their own."""

from hopyard.training.build import build_replica
from hopyard.training.check import Check, FrozenTensor, check_trial
from hopyard.training.kept import has_trunk, with_estimator
from hopyard.training.probe import Probe, probe_packs
from hopyard.training.program import Program, load_program, pickled, save_program
from hopyard.training.request import UnitRequest, UnitResult
from hopyard.training.schedules import check_schedule
from hopyard.training.unit import run_unit

__all__ = [
    "Check",
    "FrozenTensor",
    "Probe",
    "Program",
    "UnitRequest",
    "UnitResult",
    "build_replica",
    "check_schedule",
    "check_trial",
    "has_trunk",
    "load_program",
    "pickled",
    "probe_packs",
    "run_unit",
    "save_program",
    "with_estimator",
]
