"""Request that the hopper sends to a worker for one unit, and the result that comes back.

Both travel between processes and, but for the store, as JSON into the journal: floats keep
their exact value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.errors import Evidence
from hopyard.objects import StateRef
from hopyard.storage import Store


@dataclass(frozen=True)
class UnitRequest:
    """One visit of a pack to a partition. The tuples have one entry per trial of the pack.

    Attributes:
        store: the run's folder. States of a trial are kept in ``store.at(f"{trial:05d}")``.
        program: name of the program, from ``save_program``.
        trials: numbers of the trials.
        params: their points of the search space.
        phase: ``"train"`` or ``"validate"``.
        epoch: from 0.
        partition: number of the partition.
        position: train units that these trials have done so far.
        states: where each trial's state is. None: at position 0 the initial state, else the state that
            this worker kept in memory at ``position``.
        homes: numbers of the trials in whose folders these states are; empty: their own.
        save: the new state must be durable; else it may stay in the worker's memory.
        last: the last unit of its phase before, or in, a validation. Train: the state is saved with the model
            in a file of its own. Validate: metric states are merged, and values computed.
        carried: validate: the ``metrics`` of the partitions validated before in this validation.
        history: train: each trial's values of its last epoch, by the names of its history; empty in its first.
        log_tail: ``"module:function"`` that gives the last lines printed in this process, imported only
            when a trial fails; empty: none.
        together: trials may be trained together, where that gives the same bits in less time.
        draws: numbers that all that is random in the trials follows from; empty: their own.
        held: the share of the partition's bytes, 0 to 1, by the host that has it on its disks; None: unknown.
    """

    store: Store
    program: str
    trials: tuple[int, ...]
    params: tuple[dict[str, Any], ...]
    phase: str
    epoch: int
    partition: int
    position: int
    states: tuple[StateRef | None, ...]
    homes: tuple[int, ...] = ()
    save: bool = True
    last: bool = False
    carried: tuple[tuple[dict[str, Any], ...], ...] = ()
    history: tuple[dict[str, float], ...] = ()
    log_tail: str = ""
    held: Mapping[str, float] | None = None
    together: bool = False
    draws: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Name of the unit in displays: ``trial 3, epoch 2, partition 5 (train)``, epochs counted from 1 as in tables
        of progress."""
        trials = ("trial " if len(self.trials) == 1 else "trials ") + ", ".join(map(str, self.trials))
        return f"{trials}, epoch {self.epoch + 1}, partition {self.partition} ({self.phase})"


@dataclass(frozen=True)
class UnitResult:
    """Result of a unit. The tuples have one entry per trial of the pack.

    Attributes:
        states: where the new state is; None if it stayed in the worker's memory, or the trial failed.
        metrics: train: ``{"loss": [sum, weight], <name from step>: [sum, rows]}``; validate:
            ``{"partition": p, "states": {...}}``, and with ``last`` ``{"values": {"loss": ..., ...}}``.
            Values may be nan or infinite floats. Empty if the trial failed.
        errors: why a trial failed, or None. ``Evidence.worker`` is None: the driver knows it.
        rows: rows of the partition.
        seconds: time taken, without the wait for the worker.
        bytes_written: bytes of new state and metric objects.
        bytes_moved: bytes of states that were read from the store, because this worker did not have them in memory;
            what it had, a frozen trunk for instance, is not among them.
        bytes_read: bytes of the batches that were read.
        ended: whether the trial's own code has come to its end, so that there is nothing left to train.
        bytes_beside: bytes among them that the worker's host should have on its disks; None: unknown.
        asks_epochs: where the training of these trials asked for the number of epochs; empty: nowhere.
        kinds: a mark of the trials that it may train with; None: it trains alone, or has failed. Empty where that was
            not asked for.
        alone: why it trains alone; empty: it does not, or that was not asked for.
    """

    states: tuple[StateRef | None, ...]
    metrics: tuple[dict[str, Any], ...]
    errors: tuple[Evidence | None, ...]
    rows: int
    seconds: float
    bytes_written: int
    bytes_moved: int
    bytes_read: int
    asks_epochs: tuple[str, ...] = ()
    bytes_beside: int | None = None
    ended: tuple[bool, ...] = ()
    kinds: tuple[str | None, ...] = ()
    alone: tuple[str, ...] = ()
