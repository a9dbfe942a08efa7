"""The state of a run, which replaying the journal gives and the run loop works on.

One reducer serves both. ``RunState.apply`` takes a journal record (a JSON object, ``r`` names its
kind) and changes the state; the run loop applies each record at the moment it appends it, so that
a resumed run is where the journal ends by construction.

Records::

    {"r": "run", "run_id", "format", "created", "settings", "layout", "num_epochs", "num_points", ...}
    {"r": "session", "driver", "host", "pid", "offset", "workers", "output", ...}   one per driver process
    {"r": "extend", "num_epochs", "settings"}                            the budget was raised
    {"r": "control", "c", "do", "trial", "z", "refused"}                 a user's command (hopper.control), and why not
    {"r": "trial", "n", "params", "g", "source", "draws", "clone"}       a trial begins
    {"r": "unit", "t", "e", "ph", "p", "w", "v", "n", "to", "last", "a", "z", "s", "m", "rows", "written",
     "moved", "read"}
    {"r": "lost", "w", "t", "z", "why"}                                  a worker was lost in a unit
    {"r": "back", "t", "why", "forget"}                                  trials go on from what is durable
    {"r": "again", "t", "z", "why", "error"}                             so does one that failed, which may be restarted
    {"r": "end", "t", "status", "error", "by"}                           a trial ended
    {"r": "finish", "status", "trials", "best", "seconds", "unit_seconds"}   the run ended

A trial that is a copy names the ``source`` whose state it begins with; one that a user has cloned from another (see
``hopper.clones``) also that one as ``clone``. What is random in a trial follows from ``draws``, where that is not its
own number: a search numbers its trials as if nobody had cloned any.
A trial that failed goes on, too, if it is taken ``back``, and one that was completed by an ``extend``. Trials to
``forget`` were begun because others had failed, and had done nothing.
In a unit record: trials, epoch, phase, partition, worker, units and train units that the trials had done before,
train units that they were allowed, whether the last of its phase before or in a validation, start and end in seconds
since the run began, states (references, or null when resident or unchanged), metrics; bytes of states written, of
states that the worker lacked and read, and of data that it read; ``beside``, the bytes of data that its host should
have on its disks, where that is known; ``asks``, where training has asked for the number of epochs, if it has;
``alone``, by trials, why these train with no other from then on; ``ended``, true where the trial's own code has come
to its end. An ``end`` that a user asked for has ``"by":
"user"``, that of a trial whose code has ended ``"by": "itself"``, and an ``extend`` the number ``c`` of the command.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from hopyard.errors import CorruptError, Evidence, FormatError
from hopyard.hopper.passes import Passes
from hopyard.hopper.scheduler import Layout, Position
from hopyard.objects import StateRef
from hopyard.search.replicates import mean_of
from hopyard.wording import counted

JournalRecord: TypeAlias = dict[str, Any]

ENDED = ("completed", "failed")
"""Statuses of runs in which there is nothing left to do."""


class TrialProgress(NamedTuple):
    """Progress of a trial within its epochs, and the state that belongs to it.

    Attributes:
        visits: units done in all epochs, of both phases.
        trained: train units among them; those of the trial that this one is a copy of count, too.
        step: validate units done in the validation under way.
        validated: ``trained`` at the last complete validation.
        state: the model's state after them; None before the first unit, or when resident.
        home: number of the trial in whose folder the state is; None: this one's.
        train: training metrics of this epoch's visits: (partition, {name: [sum, weight]}).
        carried: validation metrics of this validation's visits: ``{"partition": p, "states": ...}``, where
            the states are ``{"ref": <StateRef as JSON>}`` if they are in the trial's folder.
    """

    visits: int = 0
    trained: int = 0
    step: int = 0
    validated: int = 0
    state: StateRef | None = None
    home: int | None = None
    train: tuple[tuple[int, dict[str, list[float]]], ...] = ()
    carried: tuple[dict[str, Any], ...] = ()

    def position(self) -> Position:
        """Position of the trial, as the scheduler needs it."""
        seen = frozenset(partition for partition, _ in self.train)
        return Position(self.visits, self.trained, self.step, self.validated, seen)

    def metric_states(self) -> list[StateRef]:
        """References to the metric states that are too large for the journal."""
        states = (metrics["states"] for metrics in self.carried)
        return [StateRef.from_json(state["ref"]) for state in states if "ref" in state]


@dataclass(frozen=True)
class Best:
    """The best validation so far: after how many epochs (a fraction, within one), the evaluation metric's
    value, the model's weights, and all that was measured."""

    epoch: float
    value: float
    state: StateRef
    metrics: dict[str, float]


class Rung(NamedTuple):
    """A validation within an epoch: after how many train units, when, in seconds since the run began, and each
    metric's value."""

    trained: int
    seconds: float
    metrics: dict[str, float]


@dataclass
class TrialState:
    """One trial of a run and what became of it.

    Attributes:
        progress: how far it is.
        durable: how far it is if all that workers hold in memory is lost.
        began: ``trained`` when it began: 0, or that of the trial it is a copy of.
        epochs: epochs done.
        history: one value an epoch for each metric; the last epoch of a trial that has ended may be a part of one.
        rung: a validation within the epoch under way: ``trained``, and each metric's value.
        rungs: validations within epochs that are not in the history.
        ended_at: when each value of the history was measured, in seconds since the run began.
        seconds: spent in units; of one that was done together with other trials, its share.
        lost_at: the visit in which workers were lost last, and how many of them in that visit.
    """

    number: int
    params: dict[str, Any]
    group: int
    source: int | None = None
    status: str = "running"
    progress: TrialProgress = field(default_factory=TrialProgress)
    durable: TrialProgress = field(default_factory=TrialProgress)
    began: int = 0
    epochs: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    rung: tuple[int, dict[str, float]] | None = None
    rungs: list[Rung] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)
    best: Best | None = None
    error: Evidence | None = None
    seconds: float = 0.0
    lost_at: tuple[int, int] = (-1, 0)
    restarts: int = 0
    """How often it failed and went on from its last durable state."""
    target: int | None = None
    """Train units that it was allowed when its last unit was done; None: unknown."""
    asks_epochs: str = ""
    """Where its training asked for the number of epochs; empty: nowhere."""
    stop_asked: bool = False
    """Whether a user asked to end it."""
    code_ended_at: int | None = None
    """Visits after which its own code had come to its end."""
    drawn_as: int | None = None
    """Number that all that is random in it follows from; None: its own."""
    clone_of: int | None = None
    """The trial that a user has cloned it from; None: the search has begun it."""

    @property
    def draws_as(self) -> int:
        """Number that its initial weights, and all else that is random in it, follow from."""
        return self.number if self.drawn_as is None else self.drawn_as

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def code_has_ended(self) -> bool:
        return self.code_ended_at == self.progress.visits

    @property
    def waits(self) -> bool:
        """Whether the trial trained as far as it was allowed: it goes on, or ends, when the searcher says so."""
        return self.running and self.progress.trained == self.progress.validated == self.target

    @property
    def is_validated(self) -> bool:
        """Whether it was validated once, be it that the evaluation metric was no number."""
        return self.progress.validated > self.began

    @property
    def losses(self) -> int:
        """Workers lost so far in the unit that comes next."""
        visit, count = self.lost_at
        return count if visit == self.progress.visits else 0

    @property
    def borrows(self) -> bool:
        """Whether the trial still lives on the state of the trial that it is a copy of."""
        return self.running and self.durable.home is not None

    def measured(self, key: str) -> float:
        """The value of a metric at the last validation; NaN before the first, or if it was not measured."""
        if self.rung is not None and self.rung[0] == self.progress.trained:
            return self.rung[1].get(key, math.nan)
        return self.history.get(key, [math.nan])[-1]

    def live_states(self) -> list[StateRef]:
        """The states in its folder that something still needs."""
        own = [each.state for each in (self.progress, self.durable) if each.home is None]
        states = [*own, self.best.state if self.best else None]
        return [state for state in states if state is not None]


@dataclass
class Pause:
    """A time in which a user had paused the driver: from the end of the units that were under way until it was resumed,
    in seconds since the run began; ``end`` is None while it goes on."""

    begin: float
    end: float | None = None


def paused_between(pauses: Sequence[Pause], begin: float, end: float) -> float:
    """Seconds of pauses between two moments."""
    return math.fsum(
        max(min(end, math.inf if pause.end is None else pause.end) - max(begin, pause.begin), 0.0)
        for pause in pauses
    )


@dataclass(frozen=True)
class EvaluationMetric:
    """Metric that decides between epochs and trials: a history key of validation, and its direction."""

    key: str
    mode: str

    def smaller_is_better(self, value: float) -> float:
        return -value if self.mode == "max" else value

    def is_better(self, value: float, than: float | None) -> bool:
        if math.isnan(value):
            return False
        return (
            than is None or math.isnan(than) or self.smaller_is_better(value) < self.smaller_is_better(than)
        )


@dataclass(frozen=True)
class PointStanding:
    """How a point of the search space stands among the others, by its replicates; in a run without ``replicates=``
    every trial is a point.

    Attributes:
        point: its number.
        counted: its trials that count and have a result, best first. Failed ones do not count, unless all have failed,
            nor do those that a user stopped before they had any.
        complete: whether all that count have a result.
        mean: of their best values of the evaluation metric; NaN without any.
        spread: the standard deviation of these (divided by their number less one); NaN of fewer than two.
        rank: sorts points best first; complete ones come before others, those without a result last.
    """

    point: int
    counted: tuple[int, ...]
    complete: bool
    mean: float
    spread: float
    rank: tuple[int, float, int]


class RunState:
    """The state of one run. ``header`` is empty, and ``layout`` and ``metric`` are not there, until the ``run`` record
    was applied."""

    layout: Layout
    metric: EvaluationMetric
    replicates: int = 1
    """Trials of each point of the search space."""

    def __init__(self) -> None:
        self.header: JournalRecord = {}
        self.trials: dict[int, TrialState] = {}
        self.units: int = 0
        """Units done, of each trial by itself."""
        self.sessions: int = 0
        self.session: JournalRecord = {}
        """The record of the last driver's session; empty before the first."""
        self.gave_up: Evidence | None = None
        """The failure for which the last driver gave up: the first trials failed alike, and were taken back."""
        self.budgets: list[dict[str, Any]] = []
        """``num_models`` and ``num_epochs`` that the run has had, the latest last."""
        self.controls: int = 0
        """Number of the last command of a user that was answered."""
        self.paused: bool = False
        """Whether a user has paused the driver."""
        self.pauses: list[Pause] = []
        """When users had paused the driver, in order; the last one may go on."""
        self.clock: float = 0.0
        self.finished: str | None = None
        self.best: int | None = None
        """Number of the trial with the best epoch so far; the lowest among equals. With replicates, of the best one of
        the best point."""
        self._best_rank: tuple[int, float, int] = (0, 0.0, 0)
        """Rank of its point."""
        self._best_ended: tuple[tuple[int, float, int], int] | None = None
        """Rank of the best point whose trials have all ended, and number of its best one."""

    @property
    def so_far(self) -> str:
        """Units done, for messages: ``1 unit``, ``12 units``."""
        return counted(self.units, "unit")

    @property
    def outcome(self) -> str:
        """Status of the run, one of ``ENDED``, once no trial trains any more."""
        trials = self.trials.values()
        return "failed" if trials and all(trial.status == "failed" for trial in trials) else "completed"

    @property
    def num_epochs(self) -> int:
        return int(self.header["num_epochs"])

    @property
    def num_visits(self) -> int:
        """Visits of a trial that is trained to the end."""
        return int(self.header.get("num_visits") or self.num_epochs * self.layout.train)

    @functools.cached_property
    def _passes(self) -> Passes | None:
        """How passes over loaders of the trials' own are divided into visits; None where visits are parts of an epoch
        of equal size."""
        found = self.header.get("passes")
        return None if found is None else Passes(**found)

    def epochs_after(self, visits: int, since: int = 0) -> float:
        """Epochs that a trial has done between so many training visits and so many others: a whole number, or a
        fraction within one."""
        passes = self._passes
        if passes is None:
            found = (visits - since) / self.layout.train
        else:
            found = (passes.before(visits) - passes.before(since)) / passes.batches
        return int(found) if found.is_integer() else found

    def apply(self, record: JournalRecord) -> None:
        """Change the state by one record of the journal."""
        handler = getattr(self, f"_apply_{record['r']}", None)
        if handler is None:
            raise FormatError(
                f"the journal holds a record of kind {record['r']!r}, which this version does not know. "
                "Install the version of Hopyard that wrote it, or a later one."
            )
        handler(record)

    def roll_back(self) -> list[int]:
        """Go back to durable progress, as after the death of all workers. Returns the trials changed."""
        changed = [t.number for t in self.trials.values() if t.running and t.progress != t.durable]
        for number in changed:
            self.trials[number].progress = self.trials[number].durable
        return changed

    def replicates_of(self, point: int) -> list[TrialState]:
        """The trials of a point, in order of number."""
        first = point * self.replicates
        numbers = range(first, first + self.replicates)
        return [self.trials[number] for number in numbers if number in self.trials]

    def standing(self, point: int) -> PointStanding:
        """How a point stands."""
        trials = self.replicates_of(point)
        counting = [
            trial for trial in trials if trial.running or (trial.status != "failed" and trial.is_validated)
        ]
        counting = counting or [trial for trial in trials if trial.best is not None]
        counted = sorted((trial for trial in counting if trial.best is not None), key=self.rank)
        if not counted:
            return PointStanding(point, (), False, math.nan, math.nan, (2, 0.0, point))
        values = [self.metric.smaller_is_better(trial.best.value) for trial in counted if trial.best]
        mean, complete = mean_of(values), len(counted) == len(counting)
        squares = sum((value - mean) * (value - mean) for value in values)
        spread = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else math.nan
        numbers = tuple(trial.number for trial in counted)
        rank = (0 if complete else 1, mean, point)
        return PointStanding(point, numbers, complete, self.metric.smaller_is_better(mean), spread, rank)

    @property
    def candidates(self) -> set[int]:
        """Trials that may be the run's best: the one that is, and the best of the points whose trials have all ended,
        should replicates of the best point fail."""
        ended = None if self._best_ended is None or self.replicates == 1 else self._best_ended[1]
        return {number for number in (self.best, ended) if number is not None}

    def rank(self, trial: TrialState) -> tuple[bool, float, int]:
        """A key that sorts trials by themselves, best first; those without a result last, in order of number."""
        if trial.best is None:
            return (True, 0.0, trial.number)
        return (False, self.metric.smaller_is_better(trial.best.value), trial.number)

    def summary(self) -> dict[str, Any]:
        """Summary of the run for a ``finish`` record, so that a list of runs need not read more."""
        best = None if self.best is None else self.trials[self.best].best
        return {
            "trials": len(self.trials),
            "best": best.value if best else None,
            "seconds": self.clock,
            "unit_seconds": self.unit_seconds,
        }

    def paused_seconds(self, begin: float = 0.0, end: float = math.inf) -> float:
        """Seconds between two moments in which a user had paused the run and no unit was under way."""
        return paused_between(self.pauses, begin, min(end, self.clock))

    @property
    def unit_seconds(self) -> float:
        """Seconds that workers have spent in units, of all trials."""
        return math.fsum(trial.seconds for trial in self.trials.values())

    def ranked(self) -> list[TrialState]:
        """All trials, best first; with replicates by point, of each first those that count in its mean."""
        if self.replicates == 1:
            return sorted(self.trials.values(), key=self.rank)
        points = {number // self.replicates for number in self.trials}
        found = []
        for standing in sorted(map(self.standing, points), key=lambda standing: standing.rank):
            trials = self.replicates_of(standing.point)
            others = [trial for trial in trials if trial.number not in standing.counted]
            found += [*(self.trials[number] for number in standing.counted), *sorted(others, key=self.rank)]
        return found

    def _note_standing(self, number: int) -> None:
        """Find the best trials anew, after something has happened to one."""
        was, best = self.best, self.trials[number].best
        if self.replicates == 1:  # it is a point of its own, and its best value never gets worse
            rank = None if best is None else (0, self.metric.smaller_is_better(best.value), number)
            if rank is not None and (was is None or was == number or rank < self._best_rank):
                self.best, self._best_rank = number, rank
            return
        standing = self.standing(number // self.replicates)
        if not standing.counted:
            return
        if not any(trial.running for trial in self.replicates_of(standing.point)):
            ended, before = (standing.rank, standing.counted[0]), self._best_ended
            is_same = before is not None and before[0][-1] == standing.point
            self._best_ended = ended if before is None or is_same else min(before, ended)
        was_best = was is not None and was // self.replicates == standing.point
        if (
            was_best and standing.rank > self._best_rank
        ):  # without a replicate that failed, or with a worse first value
            points = {trial // self.replicates for trial in self.trials}
            standing = min(map(self.standing, points), key=lambda standing: standing.rank)
        if was is None or was_best or standing.rank < self._best_rank:
            self.best, self._best_rank = standing.counted[0], standing.rank

    # Records --------------------------------------------------------------------------------

    def _apply_run(self, record: JournalRecord) -> None:
        self.header = {k: v for k, v in record.items() if k != "r"}
        self.layout, self.metric = Layout(**record["layout"]), EvaluationMetric(**record["metric"])
        self.replicates = int(record["settings"].get("replicates", 1))
        self._note_budget()

    def _apply_session(self, record: JournalRecord) -> None:
        self.sessions += 1
        self.session, self.gave_up = record, None
        self.finished, self.paused = None, False
        self._tick(record["offset"])
        self._end_pause()
        self.roll_back()

    def _apply_extend(self, record: JournalRecord) -> None:
        begun: dict[str, Any] = self.header["settings"]
        settings: dict[str, Any] = record.get("settings", begun)
        if begun.keys() - settings.keys() or settings.get("kind") != begun.get("kind"):
            raise ValueError("the settings of an extension are those of the run, with another budget")
        self.header.update({k: v for k, v in record.items() if k not in ("r", "c")})
        self._note_budget()
        self.controls = max(self.controls, record.get("c", 0))
        self.finished = None
        for trial in self.trials.values():
            if trial.status == "completed" and trial.progress.trained < self.num_visits:
                trial.status, trial.target, trial.code_ended_at = "running", None, None

    def _note_budget(self) -> None:
        num_models = self.header["settings"].get("num_models")
        self.budgets.append({"num_models": num_models, "num_epochs": self.num_epochs})

    def _apply_trial(self, record: JournalRecord) -> None:
        number, params = int(record["n"]), record["params"]
        if not isinstance(params, dict):
            raise TypeError(f"params are an object, not {params!r}")
        trial = TrialState(number, params, int(record["g"]), record.get("source"))
        trial.drawn_as, trial.clone_of = record.get("draws"), record.get("clone")
        if trial.source is not None:
            donor = self.trials[trial.source].durable
            home = trial.source if donor.home is None else donor.home
            # A validation that was under way is not the copy's: it goes on after it.
            train = donor.train if donor.trained % self.layout.train else ()
            trial.progress = trial.durable = TrialProgress(
                donor.visits, donor.trained, 0, donor.trained, donor.state, home, train
            )
            trial.began = donor.trained
        self.trials[number] = trial

    def _apply_control(self, record: JournalRecord) -> None:
        self.controls = int(record["c"])
        if "refused" in record:
            return
        self._tick(record.get("z", 0.0))
        if record["do"] == "stop" and record.get("trial") in self.trials:
            self.trials[record["trial"]].stop_asked = True
        if record["do"] in ("pause", "resume"):
            self.paused = record["do"] == "pause"
            self._end_pause()
            if self.paused:
                self.pauses.append(Pause(self.clock))

    def _apply_lost(self, record: JournalRecord) -> None:
        self._tick(record["z"])
        for number in record["t"]:
            trial = self.trials[number]
            trial.lost_at = trial.progress.visits, trial.losses + 1

    def _apply_again(self, record: JournalRecord) -> None:
        self._tick(record["z"])
        for number in record["t"]:
            trial = self.trials[number]
            trial.restarts += 1
            trial.progress, trial.lost_at = trial.durable, (-1, 0)

    def _apply_back(self, record: JournalRecord) -> None:
        for number in record["t"]:
            trial = self.trials[number]
            trial.progress = trial.durable
            if trial.status == "failed":
                self.gave_up = self.gave_up or trial.error
                trial.status, trial.error = "running", None
        for number in record.get("forget", ()):
            del self.trials[number]

    def _apply_end(self, record: JournalRecord) -> None:
        trial = self.trials[record["t"]]
        trial.status = _word(record["status"])
        if trial.status != "failed" and trial.rung is not None:
            self._remember(trial, trial.rungs.pop().metrics)
        if record.get("error"):
            trial.error = Evidence.from_json(record["error"])
        self._note_standing(trial.number)
        self._tick(record.get("z", 0.0))

    def _tick(self, now: float) -> None:
        if now > self.clock:
            self.clock = now

    def _apply_finish(self, record: JournalRecord) -> None:
        self.finished, self.paused = _word(record["status"]), False
        self._end_pause()

    def _end_pause(self) -> None:
        if self.pauses and self.pauses[-1].end is None:
            self.pauses[-1].end = max(self.clock, self.pauses[-1].begin)

    def _apply_unit(self, record: JournalRecord) -> None:
        self.units += len(record["t"])
        for pause in reversed(self.pauses):  # units that were under way when it was asked for
            if pause.end is not None and pause.end <= record["a"]:
                break
            pause.begin = max(pause.begin, min(record["z"], math.inf if pause.end is None else pause.end))
        self._tick(record["z"])
        visit, trains = record["v"], record["ph"] == "train"
        seconds, together = float(record["z"]) - float(record["a"]), len(record["t"])
        for slot, number in enumerate(record["t"]):
            trial = self.trials[number]
            if visit != trial.progress.visits:
                raise CorruptError(
                    f"the journal says that trial {number} did visit {visit}, but visit "
                    f"{trial.progress.visits} comes next. The journal was changed by something other than Hopyard; "
                    "start the run anew with fresh=True."
                )
            trial.seconds += seconds / together
            trial.target = record["to"]
            if "asks" in record:
                trial.asks_epochs = trial.asks_epochs or record["asks"]
            if record.get("ended"):
                trial.code_ended_at = visit + 1
            if trains:
                self._train_visit(trial, record, slot)
            else:
                self._validate_visit(trial, record, slot)

    def _train_visit(self, trial: TrialState, record: JournalRecord, slot: int) -> None:
        before, reference = trial.progress, record["s"][slot]
        # Here and below of all its values in their order: ``_replace``, and to name them, take more than twice as long.
        trial.progress = TrialProgress(
            before.visits + 1,
            before.trained + 1,
            before.step,
            before.validated,
            self._state_of(reference) if reference else None,
            None,
            (*before.train, (int(record["p"]), record["m"][slot])),
            before.carried,
        )
        trial.rung = None
        if reference:
            trial.durable = trial.progress
        if not self.layout.validate and record["last"]:
            self._validated(trial, {})

    def _state_of(self, reference: dict[str, Any]) -> StateRef:
        """The state that a record names."""
        return StateRef.from_json(reference)

    def _validate_visit(self, trial: TrialState, record: JournalRecord, slot: int) -> None:
        before, metrics = trial.progress, record["m"][slot]
        trial.progress = trial.durable = TrialProgress(
            before.visits + 1,
            before.trained,
            before.step + 1,
            before.validated,
            before.state,
            before.home,
            before.train,
            (*before.carried, metrics) if "values" not in metrics else (),
        )
        if trial.progress.step == self.layout.validate:
            self._validated(trial, metrics["values"])

    def ends_epoch(self, trial: TrialState) -> bool:
        """Whether the trial's last train unit was the last of an epoch."""
        return trial.progress.trained % self.layout.train == 0

    def _validated(self, trial: TrialState, values: dict[str, float]) -> None:
        """Merge the measurements of the visits: training sums in order of partitions, exactly."""
        before = trial.progress
        trained, state, ends_epoch = before.trained, before.state, self.ends_epoch(trial)
        measured = {f"train_{name}": value for name, value in merge_means(before.train).items()}
        for name, value in values.items():
            measured[f"val_{name}"] = value
        if ends_epoch:
            trial.epochs += 1
            self._remember(trial, measured)
        else:
            trial.rung = trained, measured
            trial.rungs.append(Rung(trained, self.clock, measured))
        trial.progress = trial.durable = TrialProgress(
            before.visits, trained, 0, trained, state, before.home, () if ends_epoch else before.train,
            before.carried,
        )  # fmt: skip
        value = measured.get(self.metric.key, math.nan)
        assert state is not None, "a validation follows a durable state"
        if self.metric.is_better(value, trial.best.value if trial.best else None):
            epochs = self.epochs_after(trained, trial.began)
            trial.best = Best(epochs, value, state.part("model"), measured)
        self._note_standing(trial.number)

    def _remember(self, trial: TrialState, measured: dict[str, float]) -> None:
        trial.rung = None
        trial.ended_at.append(self.clock)
        for name, value in measured.items():
            if name in trial.history:
                trial.history[name].append(value)
            else:
                trial.history.setdefault(name, []).append(value)


def _word(status: Any) -> str:
    if not isinstance(status, str):
        raise TypeError(f"a status is a word, not {status!r}")
    return status


def trial_folder(number: int) -> str:
    """Folder of a trial's states, below the run's folder."""
    return f"{number:05d}"


def units_states(record: JournalRecord) -> Iterator[tuple[int, StateRef | None, StateRef | None]]:
    """Each trial of a unit's record, the model's state and the metrics' that it names; nothing for other records."""
    if record["r"] == "unit":
        for trial, state, metrics in zip(record["t"], record["s"], record["m"], strict=True):
            packed = metrics.get("states", {}).get("ref")
            yield (
                trial,
                StateRef.from_json(state) if state else None,
                StateRef.from_json(packed) if packed else None,
            )


def merge_means(
    visits: Sequence[tuple[int, dict[str, list[float]]]],
) -> dict[str, float]:
    """Weighted means over visits, added up in order of partitions, for any order of visits."""
    totals: dict[str, float] = {}
    weights: dict[str, float] = {}
    for _, metrics in sorted(visits, key=lambda visit: visit[0]):
        for name, (total, weight) in metrics.items():
            totals[name] = totals.get(name, 0.0) + total
            weights[name] = weights.get(name, 0.0) + weight
    return {name: total / weight if (weight := weights[name]) else math.nan for name, total in totals.items()}
