"""Which trials may train together, and what they gain: seen on models that are built and discarded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopyard.errors import Preempted, StorageError, WorkerError
from hopyard.objects import derive_seed, digest_json
from hopyard.training.build import build_in_session
from hopyard.training.estimator import OneBatch, Replica, Visit
from hopyard.training.program import Program
from hopyard.training.session import Session

_BUILD_SECONDS = 1.0
_PROBE_SECONDS = 2.0


@dataclass(frozen=True)
class Probe:
    """What the models of a search's first trials tell of packs.

    Attributes:
        kinds: of the trials that were built, in their order: equal marks for those that may train together; empty: the
            trial trains alone.
        alone: of the same trials, why they train alone; empty: they do not.
        gains: by kind, how many times as long a batch takes one by one as together; those that were measured.
        failures: kinds and messages of the exceptions that ended measuring.
        begin_alone: kinds of which trials begin one at a time.
        bf16_gain: how many times as long a batch of the first trial takes as with ``precision="bf16"``; None: unknown.
    """

    kinds: tuple[str, ...]
    alone: tuple[str, ...]
    gains: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    begin_alone: frozenset[str] = frozenset()
    bf16_gain: float | None = None


def probe_packs(
    program: Program,
    trials: Sequence[tuple[int, Mapping[str, Any]]],
    batch: Mapping[str, np.ndarray[Any, Any]],
    most: int,
) -> Probe:
    """Build trials for a second at most, the first in any case, and measure those that may train together for two, and
    the first one in another precision for one.

    Args:
        trials: numbers and points.
        batch: columns of at least one row; no more than a batch of rows is used.
        most: trials that train together, at most.

    Raises:
        StorageError, WorkerError: nothing was learned about the trials.
    """
    groups: dict[str, list[tuple[int, Replica]]] = {}
    marks: list[tuple[str, str]] = []
    first: tuple[int, Replica] | None = None
    with Session(program.threads) as session:
        begun = time.monotonic()
        for trial, params in trials:
            if marks and time.monotonic() - begun > _BUILD_SECONDS:
                break
            try:
                replica = build_in_session(program, dict(params), trial, session)
            except (StorageError, WorkerError, Preempted):
                raise
            except (Exception, SystemExit) as error:  # a run says it of that trial alone
                marks.append(("", f"it cannot be built ({type(error).__name__})"))
                continue
            kind = digest_json(replica.signature, "signature") if replica.signature else ""
            marks.append((kind, "" if kind else replica.trains_alone))
            first = first or (trial, replica)
            group = groups.setdefault(kind, [])
            if kind and len(group) < most:
                group.append((trial, replica))
        later = frozenset(kind for kind, group in groups.items() if kind and not group[0][1].may_pack())
        gains: dict[str, float] = {}
        refused: dict[str, str] = {}
        failures: dict[str, None] = {}
        begun = time.monotonic()
        for kind, group in sorted(groups.items(), key=lambda each: -len(each[1])):
            if len(group) < 2 or time.monotonic() - begun > _PROBE_SECONDS:
                continue
            try:
                gain = _gain(program, session, group, batch)
            except (StorageError, WorkerError, Preempted):
                raise
            except (Exception, SystemExit) as error:  # a run says it of the trial that it concerns
                failures[f"{type(error).__name__}: {error}".partition("\n")[0][:200]] = None
                continue
            refused[kind] = group[0][1].trains_alone
            if gain is not None and not refused[kind]:
                gains[kind] = gain
        bf16_gain = None
        if first is not None:
            trial, replica = first
            try:
                bf16_gain = replica.gain_of_bf16(_visit(program, session, trial, replica, batch))
            except (StorageError, WorkerError, Preempted):
                raise
            except (Exception, SystemExit):  # no number is told of a model that does not take that precision
                pass
    kinds = tuple("" if refused.get(kind) else kind for kind, _ in marks)
    alone = tuple(refused.get(kind) or why for kind, why in marks)
    return Probe(kinds, alone, gains, tuple(failures), later, bf16_gain)


def _gain(
    program: Program,
    session: Session,
    group: Sequence[tuple[int, Replica]],
    batch: Mapping[str, np.ndarray[Any, Any]],
) -> float | None:
    trials, replicas = [trial for trial, _ in group], [replica for _, replica in group]
    visit = _visit(program, session, trials[0], replicas[0], batch)
    seeds = [derive_seed(program.seed, trial, 0, 0, "train") for trial in trials]
    return type(replicas[0]).gain_together(replicas, visit, seeds)


def _visit(
    program: Program,
    session: Session,
    trial: int,
    replica: Replica,
    batch: Mapping[str, np.ndarray[Any, Any]],
) -> Visit:
    """A training visit of one batch, with generators seeded as the trial would find them."""
    rows = OneBatch({name: column[: replica.batch_size] for name, column in batch.items()})
    session.seed(program.seed, trial, 0, 0, "train")
    return Visit(rows, program.seed, epoch=0, partition=0, last=False)
