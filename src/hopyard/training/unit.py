"""Run one unit: the only function of this room that the hopper submits to workers.

A trial's failure is an answer (``UnitResult.errors``) and touches no other trial; a store's failure
(a full disk) and a lost state are raised, since repeating the unit can mend them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hopyard.errors import (
    BaseChangedError,
    CorruptError,
    DivergedError,
    Evidence,
    NotFoundError,
    Preempted,
    StorageError,
    WorkerError,
)
from hopyard.objects import StateRef, derive_seed, digest_json, load_state, save_state
from hopyard.objects.frozen import RunFolder
from hopyard.objects.states import is_lent
from hopyard.storage import Store
from hopyard.storage.hosts import bytes_at
from hopyard.storage.oserrors import full_disk
from hopyard.training.build import build_in_session
from hopyard.training.estimator import Replica, Visit, _TogetherError, _TriedError
from hopyard.training.evidence import gather
from hopyard.training.hiding import say_hidden_state
from hopyard.training.metric_store import pack_states, unpack_states
from hopyard.training.not_finite import columns_not_finite
from hopyard.training.program import Program, forget_program, load_program
from hopyard.training.request import UnitRequest, UnitResult
from hopyard.training.resident import Resident, Residents, copied, lost
from hopyard.training.session import Session

_log = logging.getLogger("hopyard")

residents: Residents = Residents()


def run_unit(request: UnitRequest, turn: Callable[[int], None] = lambda trial: None) -> UnitResult:
    """Train or validate the pack's trials on one partition.

    The result depends on the request and the store alone, not on what this process did before.

    Args:
        turn: is told the number of the trial whose code runs next.

    Raises:
        StorageError: the store failed; nothing is half-written and the unit can be repeated.
        StateLostError: a state that should be in this worker's memory is not.
    """
    started = time.perf_counter()
    program = load_program(request.store, request.program)
    partitions = program.train_partitions if request.phase == "train" else program.val_partitions
    ends_epoch = (request.position + 1) % len(program.train_partitions) == 0
    visit = Visit(partitions[request.partition], program.seed, request.epoch, request.partition, ends_epoch)
    with Session(program.threads) as session:
        units = [_TrialUnit(request, index, program, session, turn) for index in range(len(request.trials))]
        if request.together:
            _visit_together(units, visit)
        done = [_done_of(units, number, visit) for number in range(len(units))]
    return UnitResult(
        states=tuple(one.state for one in done),
        metrics=tuple(one.metrics for one in done),
        errors=tuple(one.error for one in done),
        rows=len(visit.rows),
        seconds=time.perf_counter() - started,
        bytes_written=sum(one.nbytes for one in done),
        bytes_moved=sum(unit.moved for unit in units),
        bytes_read=visit.read.total,
        asks_epochs=tuple(one.asks_epochs for one in done),
        ended=tuple(one.ended for one in done),
        kinds=tuple(one.kind for one in done) if request.together else (None,) * len(done),
        alone=tuple(one.alone for one in done) if request.together else ("",) * len(done),
        bytes_beside=None
        if request.held is None
        else round(visit.read.total * bytes_at(socket.gethostname(), request.held)),
    )


@dataclass(frozen=True)
class _Done:
    """One trial's part of the result."""

    state: StateRef | None
    metrics: dict[str, Any]
    error: Evidence | None = None
    nbytes: int = 0
    asks_epochs: str = ""
    ended: bool = False
    kind: str | None = None
    alone: str = ""


def _done_of(units: Sequence[_TrialUnit], number: int, visit: Visit) -> _Done:
    """What one of ``units`` does. If it changes the base, those behind it begin anew."""
    done = units[number].run(visit)
    if units[number].has_changed_base:
        for other in units[number + 1 :]:
            other.begin_anew()
    return done


def _visit_together(units: Sequence[_TrialUnit], visit: Visit) -> None:
    """Do the visit for trials that may make it together; the others are left as they were, but built.

    If one of them changes the base, all begin anew, each alone, which shows whose fault it is.
    """
    groups: dict[tuple[type[Replica], str], list[_TrialUnit]] = {}
    for unit in units:
        replica = unit.ready()
        if replica is not None and replica.signature and not replica.trains_alone:
            groups.setdefault((type(replica), replica.signature), []).append(unit)
    for (kind, _), members in groups.items():
        replicas = [replica for unit in members if (replica := unit.ready()) is not None]
        if len(members) < 2 and not replicas[0].packs_alone:
            continue
        answers: Sequence[Any] | None
        try:
            seeds = [unit.seed for unit in members]
            if members[0].trains:
                answers = kind.train_together(replicas, visit, seeds)
            else:
                answers = kind.validate_together(replicas, visit, seeds)
        except BaseChangedError:
            for unit in units:
                unit.begin_anew()
            return
        except _TogetherError as error:
            if not isinstance(error, _TriedError):
                _log.warning(
                    "Trials %s make this visit one at a time from where they began, since %s.",
                    ", ".join(str(unit.trial) for unit in members),
                    error,
                    exc_info=error,
                )
            for unit in members:
                unit.begin_visit_anew()
            continue
        except Exception as error:  # of the data, for instance: each says so by itself
            answers = [error] * len(members)
        for unit, answer in zip(members, answers or [None] * len(members), strict=True):
            unit.answer = answer


class _TrialUnit:
    """One trial's part of a unit.

    Attributes:
        answer: of its replica, if the visit was made together with others: what ``train`` or ``validate`` gives, or
            the exception that ended it; None: the visit is still to be made.
        has_changed_base: whether it has failed since it changed the base that trials share.
    """

    def __init__(
        self,
        request: UnitRequest,
        index: int,
        program: Program,
        session: Session,
        turn: Callable[[int], None],
    ) -> None:
        self._request = request
        self._turn = turn
        self._index = index
        self._program = program
        self._session = session
        self._trial = request.trials[index]
        self._draws = request.draws[index] if request.draws else self._trial
        self._params = request.params[index]
        self._ref = request.states[index]
        self._store: Store = request.store.at(f"{self._trial:05d}")
        home = request.homes[index] if request.homes else self._trial
        self._home = self._store if home == self._trial else request.store.at(f"{home:05d}")
        self._key = (request.store.url, request.program, self._trial)
        self._source_key = (request.store.url, request.program, home)
        self._phase = "build"
        self._resident: Resident | None = None
        self._done: _Done | None = None
        self.answer: Any = None
        self.has_changed_base = False
        self.moved = 0

    @property
    def trial(self) -> int:
        return self._trial

    @property
    def trains(self) -> bool:
        return self._request.phase == "train"

    @property
    def seed(self) -> int:
        """Seed of the framework's generator, as ``run`` sets it."""
        request = self._request
        return derive_seed(self._program.seed, self._draws, request.epoch, request.partition, request.phase)

    def ready(self) -> Replica | None:
        """The trial's replica in the state that the request names; None: the trial has failed."""
        if self._resident is None and self._done is None:
            self._done = self._caught(self._get_ready)
        return None if self._resident is None else self._resident.replica

    def begin_anew(self) -> None:
        """Forget all that was built over a base that is not what it was, and how it was built."""
        self._forget()
        self._program = load_program(self._request.store, self._request.program)
        self._resident, self.answer = None, None

    def begin_visit_anew(self) -> None:
        """Forget a replica that is of no use any more."""
        self._resident, self.answer = None, None

    def _forget(self) -> None:
        residents.clear()
        forget_program(self._request.store, self._request.program)

    def _get_ready(self) -> None:
        self._resident = self._acquire()

    def run(self, visit: Visit) -> _Done:
        """Do the trial's part; a failure that is the trial's own becomes evidence."""
        done = self._done or self._caught(lambda: self._visited(visit))
        assert done is not None
        return done

    def _visited(self, visit: Visit) -> _Done:
        request = self._request
        if self._resident is None:
            self._resident = self._acquire()
        resident = self._resident
        self._phase = request.phase
        self._session.seed(self._program.seed, self._draws, request.epoch, request.partition, request.phase)
        done = self._train(resident, visit) if self.trains else self._validate(resident, visit)
        replica = resident.replica
        if not request.together or replica is None:
            return done
        alone, kind = replica.trains_alone, None
        if not alone and replica.may_pack(visit if self.trains and self.answer is None else None):
            kind = digest_json(replica.signature, "signature")
        return replace(done, kind=kind, alone=alone)

    def _caught(self, do: Callable[[], _Done | None]) -> _Done | None:
        """The answer of ``do``; a failure that is the trial's own becomes evidence."""
        self._turn(self._trial)
        try:
            return do()
        except (StorageError, WorkerError) as error:
            # A state that is gone or damaged is this trial's loss; damaged data concerns all of them.
            if self._phase != "build" or not isinstance(error, NotFoundError | CorruptError):
                raise
            return self._failed(error)
        except Preempted:
            raise
        except BaseChangedError as error:
            self._forget()
            self.has_changed_base = True
            return self._failed(error)
        except (Exception, SystemExit) as error:  # a user's sys.exit() is a failure like others
            if (full := full_disk(error, f"what trial {self._trial} writes there")) is not None:
                raise full from error
            return self._failed(error)

    def _failed(self, error: BaseException) -> _Done:
        return _Done(None, {}, gather(error, self._phase, self._request.partition, self._request.log_tail))

    def _acquire(self) -> Resident:
        """The trial in the state that the request names, taken out of the residents."""
        position = self._request.position
        kept = residents.take(self._key)
        if kept is not None and kept.params != self._params:
            kept = None
        if self._ref is None and position > 0 and (kept is None or kept.position != position):
            raise lost(self._trial, position)
        if kept is not None and kept.replica is not None and self._holds(kept):
            return kept
        if self._ref is not None and self._home is not self._store:
            return self._adopted(self._ref)
        ref, tree, saved = self._ref, None, True  # without ref, the initial state, which the seed gives
        replica = kept.replica if kept is not None and ref is not None else None
        if replica is None:
            replica = self._build()
        if ref is not None:
            tree = self._load(self._store, ref, replica.held())
        elif position > 0:
            assert kept is not None
            ref, tree, saved = kept.ref, kept.tree, kept.saved
        if tree is not None:
            replica.load(tree)
        return Resident(self._params, position, ref, saved, replica)

    def _build(self) -> Replica:
        run = self._request.store.url
        return build_in_session(
            self._program, self._params, self._trial, self._session, run=run, draws=self._draws
        )

    def _adopted(self, ref: StateRef) -> Resident:
        """A new trial that goes on from another one's state. The next state saved is complete: that trial may go."""
        replica = self._build()
        source = residents.look(self._source_key)
        near = replica if source is None or source.replica is None else source.replica
        replica.adopt(self._load(self._home, ref, near.state()))
        return Resident(self._params, self._request.position, None, True, replica)

    def _load(self, store: Store, ref: StateRef, held: dict[str, Any]) -> Any:
        """A state that comes from another worker, or from before this one was started. What is held of it, such as a
        frozen trunk, is not read."""
        return load_state(store, ref, verify=True, held=held, on_read=self._count)

    def _count(self, nbytes: int) -> None:
        self.moved += nbytes

    def _holds(self, kept: Resident) -> bool:
        """Whether a resident is in the state that the request names."""
        if self._ref is not None:
            return kept.saved and kept.ref is not None and kept.ref.digest == self._ref.digest
        return kept.position == self._request.position

    def _train(self, resident: Resident, visit: Visit) -> _Done:
        request = self._request
        assert resident.replica is not None
        first = request.position % len(self._program.train_partitions) == 0
        history = request.history[self._index] if request.history else {}
        if self.answer is None:
            resident.replica.begin_visit(request.epoch, history if first else None)
        try:
            if isinstance(self.answer, Exception):
                raise self.answer
            sums = resident.replica.train(visit) if self.answer is None else self.answer
        except DivergedError as error:
            raise DivergedError(f"{error}{columns_not_finite(self._program, visit)}") from error
        ref, written, nbytes = None, 0, resident.replica.nbytes()
        if request.save or not residents.has_room(self._key, nbytes, _base(resident.replica)):
            parts = ("model",) if request.last else ()
            frozen = request.store.frozen() if isinstance(request.store, RunFolder) else None
            tree = resident.replica.state()
            ref = save_state(self._store, tree, previous=resident.ref, parts=parts, frozen=frozen)
            written = self._bytes_of_new_files(ref, resident.ref) + (0 if frozen is None else frozen.written)
        position = request.position + 1
        self._keep(resident.replica, position, ref or resident.ref, ref is not None, nbytes)
        replica = resident.replica
        return _Done(
            ref, dict(sums), nbytes=written, asks_epochs=replica.asks_epochs(), ended=replica.has_ended
        )

    def _keep(self, replica: Replica, position: int, ref: StateRef | None, saved: bool, nbytes: int) -> None:
        """Leave the state for the next unit: in its replica, or if that would differ from a new one, as tree."""
        names = replica.hidden_state()
        say_hidden_state(names)
        if not names:
            resident = Resident(
                self._params, position, ref, saved, replica, nbytes=nbytes, base=_base(replica)
            )
        elif saved:
            return
        else:
            resident = Resident(self._params, position, ref, saved, None, copied(replica.state()), nbytes)
        residents.put(self._key, resident)

    def _bytes_of_new_files(self, ref: StateRef, previous: StateRef | None) -> int:
        known = set(_files(previous)) if previous is not None else set()
        new = {name for name in set(_files(ref)) - known if not is_lent(name)}
        return sum(self._store.size(name) or 0 for name in new)

    def _validate(self, resident: Resident, visit: Visit) -> _Done:
        request, replica = self._request, resident.replica
        assert replica is not None
        if isinstance(self.answer, Exception):
            raise self.answer
        metrics = replica.validate(visit) if self.answer is None else self.answer
        if not _is_finite(metrics.states()) and (found := columns_not_finite(self._program, visit)):
            raise DivergedError(
                f"What was measured on partition {request.partition} of the validation data is not finite.{found}"
            )
        own, written = {request.partition: metrics.states()}, 0
        answer: dict[str, Any]
        if request.last:
            own |= {part["partition"]: self._unpack(part) for part in request.carried[self._index]}
            answer = {"values": metrics.merged(own[number] for number in sorted(own))}
        else:
            packed, written = pack_states(self._store, metrics.states())
            answer = {"partition": request.partition, "states": packed}
        nbytes = resident.nbytes or replica.nbytes()
        self._keep(replica, request.position, resident.ref, resident.saved, nbytes)
        return _Done(self._ref, answer, nbytes=written)

    def _unpack(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return unpack_states(self._store, part["states"])


def _is_finite(state: Any) -> bool:
    """Whether all numbers in the states of metrics are finite."""
    if isinstance(state, Mapping):
        return all(map(_is_finite, state.values()))
    values = np.asarray(state)
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _base(replica: Replica) -> tuple[str, int] | None:
    """Digest and bytes of the base that a replica shares with others."""
    digest = replica.base_weights
    return None if digest is None else (digest, replica.base_nbytes)


def _files(ref: StateRef) -> list[str]:
    """The files of a state and of its parts."""
    return [*ref.files, *(name for _, part in ref.parts for name in _files(part))]
