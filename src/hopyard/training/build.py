"""Builds a replica from a program and a point of the search space."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hopyard.errors import EstimatorError
from hopyard.objects import load_state
from hopyard.training.estimator import Context, Estimator, Replica
from hopyard.training.program import Program
from hopyard.training.session import Session

_log = logging.getLogger("hopyard")
_said: dict[tuple[int, ...], set[int]] = {}
"""Batch sizes above the rows of partitions that this process has spoken of, by these rows."""


def build_replica(
    program: Program, params: dict[str, Any], trial: int = 0, device: str | None = None
) -> Replica:
    """A trial's replica in its initial state, for use outside units; the caller's generators stay as they are.

    Raises:
        EstimatorError: the estimator function returned something else, or its parts do not fit.
    """
    with Session(program.threads) as session:
        return build_in_session(program, params, trial, session, device, run=None)


def build_in_session(
    program: Program,
    params: dict[str, Any],
    trial: int,
    session: Session,
    device: str | None = None,
    run: str | None = "",
    draws: int | None = None,
) -> Replica:
    """A new replica within a session. Initial weights derive from the run's seed and the trial's number.

    Args:
        run: URL of the run's folder; empty where training is tried out; None: the model is used.
        draws: another number that they derive from; None: the trial's.
    """
    estimator = _call(program, params, trial, session, run, trial if draws is None else draws)
    _say_whole_partitions(program, params, estimator)
    context = Context(
        program.feature_columns,
        program.label_columns,
        device or program.device,
        program.partition_rows,
        program.num_epochs,
        params,
        run is not None and program.has_users_objects,
        program.graph_streams,
    )
    with _advice(session):
        replica = estimator.replica(context)
    if program.init_from is not None:
        store, ref = program.init_from
        replica.load({"model": load_state(store, ref, verify=True)})
    return replica


def _say_whole_partitions(program: Program, params: dict[str, Any], estimator: Estimator) -> None:
    """Say once for each batch size that no partition has so many rows: batches do not span partitions."""
    if program.train is None:  # a check on one batch, or a model that predicts
        return
    size, rows = estimator.batch_size, max(program.partition_rows)
    if (
        len(program.partition_rows) < 2
        or not rows  # nobody knows how many
        or size <= rows
        or size in _said.setdefault(program.partition_rows, set())
    ):
        return
    _said[program.partition_rows].add(size)
    _log.warning(
        f"batch_size={size}, but the {len(program.partition_rows)} partitions have {rows} rows at most, and batches do "
        f"not span partitions: with {params} each batch is a whole partition, as with any larger size. Give a smaller "
        f"num_partitions, down to 1, or a batch_size of at most {rows}."
    )


def build_estimator(program: Program, params: dict[str, Any], trial: int = 0) -> Estimator:
    """A trial's estimator, outside of units, as its function gives it."""
    with Session(program.threads) as session:
        return _call(program, params, trial, session, None, trial)


@contextmanager
def _advice(session: Session) -> Iterator[None]:
    """Add what frameworks know of errors of users' functions that are called in the block."""
    try:
        yield
    except (TypeError, ValueError) as error:
        session.admit()  # it may have imported what knows better
        if hint := session.hint(error):
            raise EstimatorError(f"{error} {hint}") from error
        raise


def _call(
    program: Program, params: dict[str, Any], trial: int, session: Session, run: str | None, draws: int
) -> Estimator:
    """Call the user's function under the trial's seed, which follows from ``draws``.

    A function that itself imports the framework for the first time drew its weights unseeded: it
    is called once more, now that the framework can be seeded.
    """
    session.reset()
    session.seed(program.seed, draws, "init")
    make = program.estimator_gen_fn
    if hasattr(make, "of_trial"):  # an experiment's, which is told for which trial of which run it is called
        make = make.of_trial(trial, run)
    with _advice(session):
        estimator = make(copy.deepcopy(params))  # nested ones may be changed in place, too
        if session.admit():
            session.seed(program.seed, draws, "init")
            estimator = make(copy.deepcopy(params))
    if not isinstance(estimator, Estimator):
        is_lightning = any(base.__name__ == "LightningModule" for base in type(estimator).__mro__)
        example = (
            "LightningEstimator(module)"
            if is_lightning
            else "TorchEstimator(model=..., optimizer=..., loss=...)"
        )
        raise EstimatorError(
            f"The estimator function returned {type(estimator).__name__}, but must return a TorchEstimator, a "
            f"LightningEstimator or a KerasEstimator; end it with `return {example}`."
        )
    return estimator
