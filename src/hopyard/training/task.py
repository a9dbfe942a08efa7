"""The task that workers are given for a unit. All that it imports, every worker imports before its first one."""

from __future__ import annotations

from hopyard.backend.output import set_tag
from hopyard.backend.preflight import WorkerFacts, check_alike
from hopyard.training.request import UnitRequest, UnitResult
from hopyard.training.unit import run_unit


def run_tagged(request: UnitRequest, like: WorkerFacts) -> UnitResult:
    """``run_unit``, with what it prints marked by its trial, by a process that is like the others.

    Raises:
        WorkerMismatchError: it is not: its results would be others.
    """
    check_alike(like)
    return run_unit(request, lambda trial: set_tag(f"trial {trial}"))
