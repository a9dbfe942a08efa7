"""Finds errors that all trials have, in seconds: one batch of everything, before anything is prepared."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from hopyard.backend import Backend
from hopyard.errors import EstimatorError, Evidence, TrialError, WorkerMismatchError
from hopyard.hopper.packs import MOST_TOGETHER, PackingPlan, plan_packs
from hopyard.search import Create
from hopyard.training import Check, Probe, Program, check_trial, pickled, probe_packs
from hopyard.tune.recipe import code_along
from hopyard.wording import counted

_log = logging.getLogger("hopyard")


def check_travels(program: Program, suspects: Sequence[str]) -> None:
    """Raise EstimatorError if the estimator function cannot reach workers and the run's folder.

    Args:
        suspects: what the function reaches that has no content of its own, and how.
    """
    try:
        pickled(program)
    except EstimatorError as error:
        if not suspects:
            raise
        raise EstimatorError(f"{error} It reaches: {'; '.join(suspects)}.") from error


def check_first_trials(
    backend: Backend, program: Program, trials: Sequence[Create], head: dict[str, Any]
) -> Check | None:
    """Build, train and validate the first of ``trials`` on one batch, on every worker; the next if it fails.

    Args:
        head: columns of at least one row.

    Returns: what a trial told; None if all fail, each in its own way.

    Raises:
        TrialError: all fail alike; carries the evidence.
        WorkerMismatchError: a worker lacks a package that the driver has, or makes another base than the others.
    """
    failures: list[Evidence] = []
    for trial in trials:
        # On every worker: one may lack what another has, and none imports its framework in a unit.
        with code_along(backend, program):
            futures = [
                backend.submit(worker, check_trial, program, dict(trial.params), trial.trial, head)
                for worker in range(backend.num_workers)
            ]
        checks = [_answer(future, backend, worker) for worker, future in enumerate(futures)]
        evidence = next((check.evidence for check in checks if check.evidence is not None), None)
        if evidence is None:
            told: Check = checks[0]
            _refuse_other_bases([check.base_weights for check in checks], backend)
            if told.advice:
                _log.warning(told.advice)
            return told
        failures.append(evidence)
    if len(set(map(_likeness, failures))) > 1:
        return None
    who = f"the first {len(failures)} trials fail alike" if len(failures) > 1 else "the only trial fails"
    raise TrialError(
        f"{who} on one batch, so nothing was prepared and no run was begun. Mend "
        f"{'what they share' if len(failures) > 1 else 'it'}.\n{failures[0].describe()}",
        failures[0],
    )


def expected_packs(
    backend: Backend,
    program: Program,
    trials: Sequence[Create],
    head: dict[str, Any],
    partitions: int,
    order_groups: int | None,
) -> PackingPlan:
    """Which of ``trials``, with which a search begins, are expected to train together; measured on a worker.

    Args:
        head: columns of at least one row.
    """
    with code_along(backend, program):
        points = [(trial.trial, dict(trial.params)) for trial in trials]
        probe: Probe = backend.submit(0, probe_packs, program, points, head, MOST_TOGETHER).result()
    left = len(trials) - len(probe.kinds)
    kinds = [*probe.kinds, *[probe.kinds[0]] * left]
    plan = plan_packs(
        len(trials),
        backend.num_workers,
        partitions,
        order_groups=order_groups,
        kinds=kinds,
        reasons=[*probe.alone, *[probe.alone[0]] * left],
        gains=probe.gains,
        unknown="",
    )
    unknown = (
        [f"{counted(left, 'trial')} not built within a second, and taken for alike the first"] if left else []
    )
    unknown += [f"measuring what they gain failed ({failure})" for failure in probe.failures]
    if any(pack.gain is None for pack in plan.packs) and not probe.failures:
        unknown.append("gains that could not be measured within two seconds are unknown")
    packed = sorted(trial for pack in plan.packs for trial in pack.trials)
    begin_alone = [trial for trial in packed if kinds[trial] in probe.begin_alone]
    return replace(plan, unknown="; ".join(unknown), begin_alone=begin_alone, bf16_gain=probe.bf16_gain)


def _answer(future: Future[Any], backend: Backend, worker: int) -> Any:
    """Result of the check on that worker."""
    try:
        check = future.result()
    except ModuleNotFoundError as error:
        _refuse_missing_package(str(error), backend, worker)
        raise
    if check.evidence is not None and check.evidence.kind == "ModuleNotFoundError":
        _refuse_missing_package(check.evidence.message, backend, worker)
    return check


def _refuse_missing_package(message: str, backend: Backend, worker: int) -> None:
    """Say that the worker lacks it, if it is the worker's and not the user's code that is to be mended."""
    missing = re.search(r"No module named '([^'.]+)'", message)
    if backend.isolated and missing is not None and importlib.util.find_spec(missing[1]) is not None:
        raise WorkerMismatchError(
            f"The package {missing[1]!r} is missing on {backend.place(worker)}, and the driver has it. Install the "
            "driver's packages, and have its modules, where the workers run."
        )


def _refuse_other_bases(bases: Sequence[str | None], backend: Backend) -> None:
    other = next((worker for worker, base in enumerate(bases) if base != bases[0]), None)
    if other is not None:
        raise WorkerMismatchError(
            f"The function that is given as base= makes other weights on {backend.place(other)} than on "
            f"{backend.place(0)}, but trials that hop need one base. Load the same weights everywhere, and call "
            "torch.manual_seed in it before layers with random weights are made, such as a new head."
        )


def _likeness(evidence: Evidence) -> tuple[str, str]:
    """Kind and text without numbers: trials of other sizes fail with other sizes in the text."""
    return evidence.kind, re.sub(r"\d+", "#", evidence.message)
