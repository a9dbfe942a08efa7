"""Build, train and validate one batch, and discard everything: mistakes are said in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hopyard.errors import DivergedError, Evidence, Preempted, StorageError, WorkerError
from hopyard.objects import flatten
from hopyard.training.build import build_in_session
from hopyard.training.estimator import OneBatch, Visit
from hopyard.training.evidence import gather
from hopyard.training.hiding import hidden_advice
from hopyard.training.not_finite import columns_not_finite
from hopyard.training.program import Program
from hopyard.training.session import Session


class FrozenTensor(NamedTuple):
    """A tensor of a trial's state that training does not change."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Check:
    """Result of checking a trial on one batch.

    Attributes:
        evidence: of the failure, or None.
        measured: names of the validation metrics, ``"loss"`` among them; empty after a failure.
        advice: on how to make all trials better or faster; empty: none.
        asks_epochs: place where training asks for the number of epochs, see ``Replica``.
        weight_column: the column of row weights, or None.
        alone: why models like this one train alone; empty: they may train together.
        may_pack: whether they may do so from their first visits on.
        base_weights: digest of the base, as this worker makes it; None: there is none.
        frozen: the tensors that training does not change, by digest.
    """

    evidence: Evidence | None
    measured: tuple[str, ...] = ()
    advice: str = ""
    asks_epochs: str = ""
    weight_column: str | None = None
    alone: str = ""
    may_pack: bool = True
    base_weights: str | None = None
    frozen: Mapping[str, FrozenTensor] = field(default_factory=dict)


_OWN_TRUNKS = (
    "Each trial has a trunk of its own, with other weights than the others' have, so that none uses what the trunk "
    "gave for another. Build it once, outside of the estimator function, or load its weights there."
)
_NOTHING_LEARNED = (
    "Nothing is learned of the first rows, whose weight in the loss is 0: mostly because each of their labels is one "
    "that the loss leaves out, such as -100. If other rows are like that, no epoch has a loss: look at the labels."
)


def check_trial(
    program: Program, params: dict[str, Any], trial: int, batch: Mapping[str, np.ndarray[Any, Any]]
) -> Check:
    """Build a trial, train and validate it on ``batch``, and report the failure or the metrics measured.

    Args:
        batch: columns of at least one row, as loaders give them; no more than a batch of rows is used.

    Raises:
        StorageError, WorkerError: nothing was learned about the trial.
    """
    phase = "build"
    try:
        with Session(program.threads) as session:
            replica = build_in_session(program, params, trial, session)
            rows = OneBatch({name: column[: replica.batch_size] for name, column in batch.items()})
            visit = Visit(rows, program.seed, epoch=0, partition=0, last=True)
            phase = "train"
            session.seed(program.seed, trial, 0, 0, phase)
            replica.check_labels(visit)
            replica.begin_visit(0, {})
            try:
                learned = replica.train(visit)
            except DivergedError as error:
                raise DivergedError(f"{error}{columns_not_finite(program, visit)}") from error
            hidden = hidden_advice(replica.hidden_state())
            phase = "validate"
            measured = tuple(replica.validate(visit).compute())
            frozen = {
                tensor.digest: FrozenTensor(path, tensor.dtype, tensor.shape, tensor.nbytes)
                for path, tensor in flatten(replica.state())[0].items()
                if tensor.is_frozen
            }
            phase = "build"
            trunk, asks_epochs = replica.trunk_weights, replica.asks_epochs()
            weight_column = replica.weight_column
            alone, base = "" if replica.signature else replica.trains_alone, replica.base_weights
            may_pack = not alone and replica.may_pack()
            del replica
            # What was trained must not come back. Another trial: what is random differs.
            other = build_in_session(program, params, trial + 1, session)
    except (StorageError, WorkerError, Preempted):
        raise
    except (Exception, SystemExit) as error:  # a user's sys.exit() is a failure like others
        return Check(gather(error, phase, None))
    weight = learned.get("loss", [0.0, 1.0])[1]
    advice = [hidden, "" if weight else _NOTHING_LEARNED, "" if other.trunk_weights == trunk else _OWN_TRUNKS]
    return Check(
        None,
        measured,
        "\n".join(filter(None, advice)),
        asks_epochs,
        weight_column,
        alone,
        may_pack,
        base,
        frozen,
    )
