"""Launch of an experiment: its model definition packed, its data found out on a worker, and a search driven over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from hopyard.backend import Backend, LocalBackend
from hopyard.backend.preflight import preflight
from hopyard.data.base import Partitioned
from hopyard.data.preparing.request import Watch
from hopyard.errors import Evidence, NotFoundError, StorageError, TrialError, UsageError, WorkerLostError
from hopyard.experiment.config import ExperimentConfig
from hopyard.experiment.definition import definition_archive, definition_object, places_of
from hopyard.experiment.hyperparameters import search_space
from hopyard.experiment.lengths import Facts, OwnData, Visits, visits_of
from hopyard.experiment.logs import Recorder
from hopyard.experiment.looking import first_report, look
from hopyard.experiment.mounts import Mount, start_with
from hopyard.experiment.searchers import Grid, Pbt, length_of, make_searcher
from hopyard.experiment.trials import TrialFunction
from hopyard.hopper.hopper import Observer
from hopyard.hopper.notice import Notice
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.hopper.work import Options
from hopyard.objects import StateRef, digest_json
from hopyard.search import Budget, Create, Searcher
from hopyard.storage import Store
from hopyard.tune.arguments import default_partitions
from hopyard.tune.inputs import Arrays, SearchData, Splits
from hopyard.tune.launch import kept_running
from hopyard.tune.observers import import_ahead
from hopyard.tune.phrases import of_experiments, worded
from hopyard.tune.progress import ProgressDisplay
from hopyard.tune.run import Run
from hopyard.tune.search import Search
from hopyard.wording import counted

UNTIL_IT_RETURNS = 1_000_000
"""Reports that a function may make where the configuration has no ``max_length``."""


@dataclass(frozen=True)
class WarmStart:
    """Weights of another experiment's trial, from which all trials of this one begin; kept in the store by content.

    Attributes:
        experiment, trial, epoch: where they are from.
        state: reference to them, in the store's folder ``init_from``.
    """

    experiment: str
    trial: int
    epoch: float
    state: StateRef

    FOLDER = "init_from"

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> WarmStart:
        return cls(**{**fields, "state": StateRef.from_json(fields["state"])})

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "state": self.state.to_json()}

    def of(self, store: Store) -> _Weights:
        """The weights, in the store of the experiment, as searches take them."""
        return _Weights(store.at(self.FOLDER), self.state)


@dataclass(frozen=True)
class _Weights:
    store: Store
    state: StateRef

    def weights(self) -> tuple[Store, StateRef]:
        return self.store, self.state


@dataclass(frozen=True)
class Length:
    """The length of trials in visits.

    Attributes:
        partitions: visits of an epoch.
        searched: visits after which the searcher is asked for the last time, of pbt those of a round.
        total: visits of a trial that trains to the end.
        text: the length as it was rounded, for people.
        own: how a loader of the trial's own is cut into visits.
    """

    partitions: int
    searched: int
    total: int
    text: str
    own: Visits | None = None

    @property
    def epochs(self) -> int:
        return -(-self.total // self.partitions)


def launch(
    config: ExperimentConfig,
    definition: str,
    store: Store,
    backend: Backend | None,
    *,
    test: bool = False,
    fresh: bool = False,
    progress: bool = True,
    run_id: str | None = None,
    take_over: bool = False,
    warm_start: WarmStart | None = None,
    observers: Sequence[Observer] = (),
    output: str | None = None,
) -> Run | None:
    """Run an experiment, or go on with it where it stopped. Why one has ended without a result, ``Run.best`` tells.

    Args:
        definition: digest of its model definition, which is in the store.
        backend: runs the trials. None: processes on this machine, as many as ``resources.workers`` says.
        test: run one batch of everything, and begin no experiment; returns None.
        fresh: begin another experiment beside one with the same configuration and code.
        progress: show progress, and what trials print.
        run_id: go on with this one, or begin one of this id. None: the one with this configuration and definition.
        take_over: also if another driver seems to hold it.
        warm_start: weights that all trials begin from.
        observers: see every record of the run.
        output: file that gets what this process says, where nobody sees it.

    Raises:
        UsageError: the length or a bind mount breaks a rule. Nothing was begun.
        TrialError: the trials cannot be built or trained, or the first of them fail alike.
        RunHeldError: another process drives this experiment.
        Preempted: as ``Search.fit``.
    """
    kept = KeptDefinition.of(store, definition)
    import_ahead(store)
    resources = config.resources
    backend = backend or LocalBackend(resources.workers, gpus_per_worker=resources.slots_per_trial)
    backend = surrounded(backend, config, places_of("/tmp/", store, definition) if backend.isolated else ())
    variables = config.environment.environment_variables
    function = TrialFunction(
        store=store,
        definition=definition,
        entrypoint=config.entrypoint,
        data=config.data,
        has_hyperparameters=bool(config.hyperparameters),
        variables={name: value for name, value in variables.items() if "${secret:" in value},
        metric=config.searcher.metric,
        slots=resources.slots_per_trial,
    )
    announce = ProgressDisplay(enabled=False, wording=of_experiments).say
    recorder = Recorder(store.runs, echo=progress)
    with (
        worded(of_experiments),
        Notice(config.grace, announce) as notice,
        recorded(backend, recorder),
        kept_running(backend),
    ):
        notice.check()
        preflight(backend, store)
        first = next(
            each for each in make_searcher(config.searcher, config.hyperparameters, 1, config.seed).start()
        )
        assert isinstance(first, Create)
        facts = facts_of(backend, replace(function, store=kept.archive), config.seed, dict(first.params))
        notice.check()
        length = length_in_visits(config, facts)
        search = ExperimentSearch(
            backend,
            store,
            replace(function, visits=length.own),
            config,
            length,
            facts,
            observers=[kept, recorder, *observers],
            warm_start=warm_start,
            fresh=fresh,
            progress=progress,
            run_id=run_id,
            take_over=take_over,
            output=output,
        )
        kept.put_back()
        if progress and not test:
            announce(f"trials train for {length.text}.")
        try:
            if test:
                search.test()
                return None
            run = search.run(notice)
        except NotFoundError as error:
            raise kept.error if kept.is_gone else error from None
        kept.put_back()
        return run


@dataclass(frozen=True)
class KeptDefinition:
    """A model definition, which is put back where it is gone: another experiment with the same one was deleted before
    this one could be seen to need it.

    Attributes:
        archive: as ``definition_archive`` gives it.
    """

    store: Store
    digest: str
    archive: bytes

    @classmethod
    def of(cls, store: Store, digest: str) -> KeptDefinition:
        """What the store has of it.

        Raises:
            NotFoundError: it lacks it.
        """
        try:
            return cls(store, digest, definition_archive(store, digest))
        except NotFoundError:
            raise cls(store, digest, b"").error from None

    @property
    def is_gone(self) -> bool:
        """Whether the store lacks it now."""
        return not self.store.exists(definition_object(self.digest))

    @property
    def error(self) -> NotFoundError:
        """That it is gone."""
        return NotFoundError(
            f"the model definition {self.digest[:12]} is no longer in the store {self.store.url}: it was deleted, "
            "maybe with another experiment that had the same one. Create the experiment again from its directory, "
            "which stores it anew."
        )

    def put_back(self) -> None:
        """Store it again if it is gone."""
        if self.is_gone:
            self.store.put_new(definition_object(self.digest), self.archive)

    def __call__(self, state: RunState, record: JournalRecord) -> None:
        if record["r"] in ("session", "again"):
            with contextlib.suppress(StorageError):  # the next unit tells of it
                self.put_back()


def surrounded(backend: Backend, config: ExperimentConfig, tmp: Sequence[str]) -> Backend:
    """A backend whose workers have the environment variables and the bind mounts of a configuration. The values of
    secrets are not among them: each worker looks these up itself.

    Args:
        tmp: places in the code that name files in ``/tmp``; if there are any, each worker has one of its own.
    """
    variables = config.environment.environment_variables
    plain = {name: value for name, value in variables.items() if "${secret:" not in value}
    mounts = [Mount(each.host_path, each.container_path, each.read_only) for each in config.bind_mounts]
    if not plain and not mounts and not tmp:
        return backend
    return backend.surrounded(plain, partial(start_with, mounts, tmp) if mounts or tmp else None)


@contextmanager
def recorded(backend: Backend, recorder: Recorder) -> Iterator[None]:
    """Have the lines of workers recorded within the context."""
    with recorder:
        backend.on_output(recorder.hear)
        try:
            yield
        finally:
            backend.on_output(None)


# Facts, found out on a worker


def facts_of(backend: Backend, function: TrialFunction, seed: int, params: dict[str, Any]) -> Facts:
    """Facts about the data of the first trial.

    Raises:
        TrialError: it cannot be built; has the traceback.
        WorkerLostError: its code ended the worker.
    """
    with _of_entrypoint(function.entrypoint, "imported and built"):
        found = backend.submit(0, look, function, seed, params).result()
    if isinstance(found, Evidence):
        raise TrialError(f"the trial cannot be built, so no experiment was begun.\n{found.describe()}", found)
    assert isinstance(found, Facts)
    return found


@contextmanager
def _of_entrypoint(entrypoint: str, done: str) -> Iterator[None]:
    """Have the error of a worker that is lost meanwhile name the entrypoint, with which the worker did something."""
    try:
        yield
    except WorkerLostError as error:
        raise WorkerLostError(
            f"a worker ended while it {done} the entrypoint {entrypoint}, so no experiment was begun. Code that calls "
            "os._exit, crashes or needs too much memory ends a process so. Try it in the directory of the code: "
            f"python -c 'import {entrypoint.partition(':')[0]}'\n{error}"
        ) from error


# Lengths


def length_in_visits(config: ExperimentConfig, facts: Facts) -> Length:
    """The length that a configuration asks for, in whole visits.

    Raises:
        UsageError: the trial's data has no such length.
    """
    asked, rounds = length_of(config.searcher), 1
    if isinstance(config.searcher, Pbt):
        rounds = config.searcher.num_rounds
    field = "length_per_round" if isinstance(config.searcher, Pbt) else "max_length"
    if facts.kind == "function":
        return _length_of_function(field, asked, rounds)
    if asked is None:
        raise UsageError(
            f"searcher.{field} is missing, and {config.entrypoint} is a trial class, which trains for as long as the "
            f"configuration says. Write {field}: {{epochs: 8}}."
        )
    ((unit, number),) = asked.items()
    if facts.train is None:
        own = visits_of(asked, rounds, config.scheduling_unit, facts.pass_batches, facts.batch_size)
        text = f"{counted(number * rounds, unit[:-1])} in {counted(own.total, 'unit')}"
        return Length(own.per_epoch, own.total // rounds, own.total, text, own)
    rows = len(facts.train)
    wanted = -(-_visits_wanted(config) // number) if unit == "epochs" else _visits_wanted(config)
    partitions = default_partitions(rows, facts.train.num_row_groups, wanted)
    visits = number * partitions
    if unit != "epochs":
        records = number * (facts.batch_size if unit == "batches" else 1)
        visits = -(-records * partitions // rows)
    text = (
        f"{counted(visits * rounds, 'visit')} of {counted(partitions, 'partition')}, which are "
        f"{visits * rounds / partitions:.4g} epochs and {visits * rounds * rows // partitions:,} records"
    )
    return Length(partitions, visits, visits * rounds, text)


def _length_of_function(field: str, asked: Mapping[str, int] | None, rounds: int) -> Length:
    if asked is None:
        return Length(1, UNTIL_IT_RETURNS, UNTIL_IT_RETURNS, "as long as the function runs")
    ((unit, number),) = asked.items()
    if unit != "epochs":
        raise UsageError(
            f"searcher.{field} is {{{unit}: {number}}}, but the entrypoint is a function, whose length is counted in "
            "its reports: an epoch is what it does from one context.report() to the next. Write "
            f"{field}: {{epochs: N}}, or leave max_length out to let it run until it returns."
        )
    return Length(1, number, number * rounds, f"{counted(number * rounds, 'report')} of the function")


def _visits_wanted(config: ExperimentConfig) -> int:
    """Visits of the longest trials, as many as the searcher needs to compare trials at all its rungs."""
    searcher = config.searcher
    rungs = {
        "async_halving": getattr(searcher, "num_rungs", 1),
        "adaptive_asha": getattr(searcher, "max_rungs", 1),
    }
    return int(getattr(searcher, "divisor", 1.0) ** (rungs.get(searcher.name, 1) - 1))


# Search


class ExperimentSearch(Search):
    """A search over the trials of an experiment, whose searcher, length and data follow from its configuration."""

    kind = "experiment"

    def __init__(
        self,
        backend: Backend,
        store: Store,
        function: TrialFunction,
        config: ExperimentConfig,
        length: Length,
        facts: Facts,
        *,
        observers: Sequence[Observer],
        warm_start: WarmStart | None,
        fresh: bool,
        progress: bool,
        run_id: str | None,
        take_over: bool,
        output: str | None,
    ) -> None:
        self._output = output
        self._config, self._length, self._facts = config, length, facts
        self._added, self._warm_start = observers, warm_start
        self._data = TrialData(function, facts, length)
        columns = facts.columns or ("batch",)
        checkpoints = config.checkpoints
        space = search_space(config.hyperparameters, grid=isinstance(config.searcher, Grid))
        super().__init__(
            backend,
            store,
            function,
            space or {"seed": config.seed},
            length.epochs,
            evaluation_metric=config.searcher.metric,
            mode=config.mode,
            replicates=config.searcher.replicates,
            feature_columns=list(columns),
            label_columns=[],
            num_partitions=length.partitions,
            seed=config.seed,
            keep=checkpoints.keep,
            keep_n=checkpoints.keep_n,
            checkpoint_every=checkpoints.every,
            grace=config.grace,
            init_from=None if warm_start is None else warm_start.of(store),
            fresh=fresh,
            progress=progress,
            run_id=run_id,
            take_over=take_over,
        )

    def _make_searcher(self, budget: Budget) -> Searcher:
        config = self._config
        return make_searcher(config.searcher, config.hyperparameters, self._length.searched, config.seed)

    def _own_arguments(self) -> dict[str, Any]:
        return {}

    def _searcher_settings(self) -> dict[str, Any]:
        return {"experiment": self._config.settings}

    def _options(self) -> Options:
        goes_where_it_was = float("inf") if self._facts.train is None else 0.0
        return replace(
            super()._options(),
            max_restarts=self._config.max_restarts,
            hop_seconds=goes_where_it_was,
            output=self._output,
        )

    def _observers(self) -> Sequence[Observer]:
        return self._added

    def _of_header(self) -> dict[str, Any]:
        function = cast(TrialFunction, self.arguments.estimator_gen_fn)
        written = {
            "config": self._config.written(),
            "definition": function.definition,
            "length": self._length.text,
            "warm_start": None if self._warm_start is None else self._warm_start.to_json(),
        }
        own = self._length.own
        of_function = {
            "epoch": "report",
            "endless": self._length.total == UNTIL_IT_RETURNS,
        }
        return {
            "experiment": written,
            "num_visits": self._length.total,
            **({} if own is None or own.passes is None else {"passes": vars(own.passes)}),
            **(of_function if self._facts.kind == "function" else {}),
        }

    def run(self, notice: Notice) -> Run:
        """Drive the experiment to its end."""
        return self._launch(self._data, notice).run()

    def test(self) -> None:
        """Run one batch of everything; a function up to its first report.

        Raises:
            TrialError: it fails.
        """
        launch = self._launch(self._data)
        launch.check()
        if self._facts.kind != "function":
            return
        arguments, config = self.arguments, self._config
        first = next(iter(self._make_searcher(self._budget()).start()))
        assert isinstance(first, Create)
        params = dict(first.params)
        with _of_entrypoint(config.entrypoint, "ran"):
            found = arguments.backend.submit(
                0, first_report, arguments.estimator_gen_fn, config.seed, params
            ).result()
        if found is not None:
            raise TrialError(f"the function fails before its first report.\n{found.describe()}", found)


class TrialData(SearchData):
    """Data that trials open by themselves: datasets of Hopyard's, or loaders of their own."""

    def __init__(self, function: TrialFunction, facts: Facts, length: Length) -> None:
        known = digest_json([function.definition, dict(function.data)], "experiment data")
        own = cast(
            Partitioned, OwnData(known, length.partitions, (facts.pass_batches or 0) * facts.batch_size)
        )
        train = own if facts.train is None else facts.train
        val = cast(Partitioned, OwnData(known, 1, 0)) if facts.val is None else facts.val
        self._splits = Splits.of(train, val)
        self._known = facts.train is not None
        self.given: tuple[Any, Any] = (train, val)

    @property
    def has_validation(self) -> bool:
        return True

    def fingerprint(self) -> str:
        return self._splits.fingerprint

    def training_rows(self) -> int | None:
        return len(self._splits.train) if self._known else None

    def head(self, rows: int) -> Arrays:
        return {}

    def prepare(self, watch: Watch | None, announce: Callable[[str], None]) -> Splits:
        return self._splits
