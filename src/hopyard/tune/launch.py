"""Makes a run's outcome from a search and its data: identify, check, prepare, hop."""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hopyard.backend import Backend
from hopyard.backend.preflight import WorkerFacts, preflight
from hopyard.data.dataset import Dataset
from hopyard.data.order import WINDOW_BYTES
from hopyard.data.preparing.prepared import check_labels
from hopyard.data.preprocessing.fitting import FittedSteps, Steps, fit_steps_in, fit_steps_on_rows
from hopyard.errors import SettingsError, UsageError, WorkerMismatchError
from hopyard.hopper.decisions import Decisions, replay
from hopyard.hopper.hopper import ALIKE, Hopper, Observer
from hopyard.hopper.journal import Journal, has_records, read_records
from hopyard.hopper.notice import Notice
from hopyard.hopper.orders import homes_of
from hopyard.hopper.packs import MOST_TOGETHER, PackingPlan
from hopyard.hopper.retention import check_states_are_kept
from hopyard.hopper.scheduler import Layout
from hopyard.hopper.state import ENDED, EvaluationMetric, JournalRecord, RunState, TrialState
from hopyard.hopper.work import Options
from hopyard.objects import digest_json
from hopyard.objects.elsewhere import Found, files_elsewhere, find_elsewhere
from hopyard.objects.frozen import RunFolder, urls_elsewhere
from hopyard.objects.identity import identity
from hopyard.search import Budget, Create, Searcher
from hopyard.storage import Store
from hopyard.storage.format import format_header
from hopyard.training import Program, check_schedule, save_program
from hopyard.training.not_finite import undefined_metrics
from hopyard.tune.arguments import (
    GRAPH_STREAMS,
    MOST_PARTITIONS,
    Arguments,
    default_partitions,
    find_metric,
    metric_of,
)
from hopyard.tune.asking import RESUMED_RUN, TAKEN_OVER_RUN, more_is_asked
from hopyard.tune.checking import check_first_trials, check_travels, expected_packs
from hopyard.tune.differences import what_differs
from hopyard.tune.elsewhere import said
from hopyard.tune.environment import command, environment, environment_changes
from hopyard.tune.inputs import Arrays, SearchData, Splits, origin
from hopyard.tune.listing import RUN_FORMAT, check_header
from hopyard.tune.observers import check_logs, import_ahead, observers_of
from hopyard.tune.phrases import wording_of
from hopyard.tune.progress import ProgressDisplay
from hopyard.tune.recipe import PickledSearch, code_along
from hopyard.tune.run import Model, Run
from hopyard.tune.whereabouts import held_by_nodes, whereabouts
from hopyard.tune.work import TrainingWork
from hopyard.wording import are, counted

if TYPE_CHECKING:
    from hopyard.tune.stock import FitOutcome

_log = logging.getLogger("hopyard")

_SORTED = 0.1  # by statistics of row groups; without any order it is 0
_WELL_MIXED = 16  # row groups from all over the files, which are trained on together
_EXTENDABLE = ("num_models", "num_epochs")
_SHAPE_THE_DATA = ("validation", "seed", "nulls", "ragged", "preprocess")
CHECKED_ROWS = 256
_NAMED = 10


class Launch:
    """One call of ``fit`` or ``check``."""

    def __init__(
        self,
        kind: str,
        arguments: Arguments,
        make_searcher: Callable[..., Searcher],
        searcher_settings: dict[str, Any],
        partitions_wanted: int,
        stops_nobody: Callable[[int], bool],
        inputs: SearchData,
        pickle_search: Callable[[], PickledSearch],
        notice: Notice,
        options: Options,
        of_header: Mapping[str, Any],
        observers: Sequence[Observer],
    ) -> None:
        self._kind, self._arguments, self._inputs = kind, arguments, inputs
        self._make_searcher, self._searcher_settings = make_searcher, searcher_settings
        self._partitions_wanted, self._stops_nobody = partitions_wanted, stops_nobody
        self._pickle_search, self._notice = pickle_search, notice
        self._options, self._of_header, self._observers = options, of_header, observers
        self._wording = wording_of(of_header)
        self._progress = ProgressDisplay(enabled=arguments.progress, wording=self._wording)
        self._metric = metric_of(arguments.evaluation_metric, arguments.mode, inputs.has_validation)
        self._estimator = identity(arguments.estimator_gen_fn, "estimator_gen_fn")
        self._outcome: FitOutcome | None = None
        self._fitted: FittedSteps | None = None
        self._asks_epochs = ""
        self._weight_column: str | None = None
        self._packs_first = True
        self._alone: str | None = None
        """Why trials train one at a time; empty: alike ones train together; None: not known."""
        self._elsewhere: Found | None = None
        self._checked: Arrays = {}
        """The rows that the check was made on."""

    def check(self) -> PackingPlan:
        """Try a trial on one batch; returns which trials are expected to train together."""
        with kept_running(self._arguments.backend):
            self._check_on_one_batch()
            plan = self._expected_packs()
        if self._alone is not None:
            self._progress.say(f"a batch was trained and validated; {plan}.")
        return plan

    def fit(self) -> Model:
        """Find the run, or make it; returns its best model."""
        return self.run().best

    def run(self) -> Run:
        """Find the run, or make it."""
        arguments = self._arguments
        if arguments.stock is not None:
            # It takes long to import, and few searches have a stockroom.
            from hopyard.tune.stock import FitOutcome

            self._outcome = FitOutcome(
                arguments, self._searcher_settings, self._inputs, self._pickle_search()
            )
            self._outcome.check()
        fingerprint = self._inputs.fingerprint()
        if fingerprint is not None:
            finished = self._finished(fingerprint)
            if finished is not None:
                return self._kept(finished)
        with self._progress, ExitStack() as running:
            # Ray Data's tasks need CPUs that the backend's actors hold for as long as they live.
            in_turns = arguments.backend.name == "ray" and self._inputs.engine == "Ray Data"
            head = self._inputs.head(CHECKED_ROWS) if in_turns else None
            running.enter_context(kept_running(arguments.backend))
            self._notice.check()
            facts = preflight(arguments.backend, arguments.store)
            check_logs(arguments)
            import_ahead(arguments.store, arguments.logdir)
            metric = self._check_on_one_batch(head)
            self._notice.check()
            if in_turns:
                running.close()
            with self._progress.preparing() as watch:
                splits = self._inputs.prepare(watch, self._progress.say)
            if self._weight_column is not None:
                given = (*self._inputs.given, splits.train, splits.val)
                check_labels(given, [self._weight_column], "weight")
            if in_turns:
                running.enter_context(kept_running(arguments.backend))
                facts = preflight(arguments.backend, arguments.store)
            self._notice.check()
            return self._kept(self._hop(splits, metric, facts))

    def _kept(self, run: Run) -> Run:
        """The run; its outcome is committed, if that was asked for. Trials that failed are named, also without
        ``progress``. Of one without a result ``Run.best`` tells all."""
        if run.state.best is None:
            return run
        failed = [(trial.number, trial.error) for trial in run.failures() if trial.error is not None]
        if failed:
            number, error = failed[0]
            _log.warning(
                f"{len(failed)} of {counted(len(run.state.trials), 'trial')} of run {run.run_id} failed; trial "
                f"{number} with {error.kind}: {error.message}\n"
                + self._wording("model.trials() has all of them.")
                + _left_out(run.state, [number for number, _ in failed])
            )
        histories = run.histories().values()
        names = sorted(
            {name for each in histories for name, values in each.items() if any(map(math.isnan, values))}
        )
        if names:
            _log.warning(undefined_metrics(names, f"of run {run.run_id}"))
        if self._outcome is not None:
            if run.status == "completed":
                self._outcome.commit(run, self._progress.say)
            elif run.status == "failed":
                self._progress.say(f"every trial of run {run.run_id} failed: its outcome is not committed.")
            else:
                self._progress.say(f"run {run.run_id} is not completed yet: then its outcome is committed.")
        return run

    # Identity -------------------------------------------------------------------------------

    def _settings(self, fingerprint: str) -> dict[str, Any]:
        """Settings that decide the result: equal settings, equal run."""
        return {
            "kind": self._kind,
            "data": fingerprint,
            **self._arguments.settings,
            "keras_backend": _keras_backend(),
            "estimator_gen_fn": {"digest": self._estimator.digest, "parts": self._estimator.parts},
            **self._searcher_settings,
        }

    def _run_id(self, settings: dict[str, Any]) -> str:
        arguments = self._arguments
        if arguments.run_id is not None:
            name = arguments.run_id
        elif self._estimator.digest is None:
            name = f"{self._kind}-{secrets.token_hex(5)}"
            self._progress.say(
                "this run cannot be found again by its settings, because these cannot be digested: "
                f"{'; '.join(self._estimator.undigestible)}. Give run_id= to make it resumable."
            )
        else:
            name = f"{self._kind}-{digest_json(settings, 'run')[:10]}"
        if not arguments.fresh:
            return name
        resumed = os.environ.get(RESUMED_RUN, "")
        return resumed if re.fullmatch(re.escape(name) + r"(-\d+)?", resumed) else self._free_id(name)

    def _free_id(self, name: str) -> str:
        """``name``, or the first of ``name-2``, ``name-3``, ... that no run has."""
        runs, number, free = self._arguments.store.runs, 1, name
        while has_records(runs.at(free)):
            number += 1
            free = f"{name}-{number}"
        return free

    def _finished(self, fingerprint: str) -> Run | None:
        """The run with these settings if it is finished."""
        if self._arguments.fresh or (self._arguments.run_id is None and self._estimator.digest is None):
            return None
        settings = self._settings(fingerprint)
        run_id = self._run_id(settings)
        folder = RunFolder(self._arguments.store.runs, run_id)
        records = list(read_records(folder))
        if not records:
            return None
        run = Run(folder, run_id, records)
        changes = _changes(run_id, run.settings, _at_least(settings, run.state.budgets))
        if changes or not run.is_done:
            return None
        place = self._arguments.frozen_at
        if place is not None and urls_elsewhere(folder) not in ([], [place.url]):
            folder.frozen().mend(find_elsewhere(place))
        self._progress.say(f"run {run_id} is finished: its result is returned. fresh=True trains again.")
        return run

    # Check ----------------------------------------------------------------------------------

    def _check_on_one_batch(self, head: Arrays | None = None) -> EvaluationMetric:
        """Check that a trial can be trained at all, on the rows of ``head`` or else on the first ones.

        Returns: the evaluation metric under the name that the estimator gives it.
        """
        arguments = self._arguments
        program = replace(self._program(None, 1), known_rows=self._known_rows())
        self._progress.checking(arguments.backend)
        check_travels(program, self._estimator.undigestible)
        head = self._inputs.head(CHECKED_ROWS) if head is None else head
        preprocess = arguments.preprocess
        if preprocess is not None:
            fitted = preprocess
            if isinstance(fitted, Steps):
                fitted = fit_steps_on_rows(fitted, head)
            head = fitted.apply_to_arrays(head)
        self._checked = head
        if arguments.frozen_at is not None:
            files_elsewhere(arguments.frozen_at)  # or says that there is none, before anything is tried
        told = check_first_trials(arguments.backend, program, self._first_trials(), head)
        if arguments.frozen_at is not None:
            self._elsewhere = find_elsewhere(arguments.frozen_at)
            if told is not None:
                self._progress.reading_elsewhere(said(self._elsewhere, told.frozen))
                self._elsewhere = self._elsewhere.only(told.frozen)
        if told is None:
            return self._metric
        self._asks_epochs, self._weight_column = told.asks_epochs, told.weight_column
        self._packs_first = told.may_pack
        is_off = arguments.packing in ("serial", "off")
        self._alone = f"packing is {arguments.packing!r}" if is_off else told.alone
        if arguments.packing in GRAPH_STREAMS and told.alone:
            raise UsageError(
                f"packing={arguments.packing!r} captures steps of trials in CUDA graphs, but these trials take none: "
                f"{told.alone}. Steps of PyTorch models in fp32 or bf16 on NVIDIA GPUs, with losses and optimizers of "
                "torch.nn and torch.optim, can be captured. Change that, or give packing='auto'."
            )
        if arguments.packing == "fused" and told.alone:
            raise UsageError(
                f"packing='fused' trains models together, but these train alone: {told.alone}. PyTorch models in "
                "fp32 on CPUs with losses and optimizers of torch.nn and torch.optim can be packed, and Keras models "
                "on JAX. Change that, or give packing='auto'."
            )
        is_experiment = self._wording is not str  # whose trials name their metrics themselves
        return find_metric(self._metric, told.measured, self._inputs.has_validation, not is_experiment)

    def _first_trials(self) -> list[Create]:
        return self._created()[:: self._arguments.replicates][:ALIKE]

    def _created(self) -> list[Create]:
        """Trials that the searcher begins with."""
        operations = self._make_searcher(self._budget(self._expected_partitions)).start()
        return [operation for operation in operations if isinstance(operation, Create)]

    @property
    def _expected_partitions(self) -> int:
        return len(self._known_rows()) or self._arguments.num_partitions or MOST_PARTITIONS

    def _expected_packs(self) -> PackingPlan:
        arguments, created = self._arguments, self._created()
        numbers = [create.trial for create in created]
        if self._alone is None:
            return PackingPlan(unknown="the first trials failed, each in its own way")
        if self._alone:
            return PackingPlan(alone={self._alone: numbers})
        program = replace(self._program(None, 1), known_rows=self._known_rows())
        return expected_packs(
            arguments.backend,
            program,
            created,
            self._checked,
            self._expected_partitions,
            arguments.order_groups,
        )

    def _budget(self, partitions: int) -> Budget:
        return Budget(self._searcher_settings.get("num_models"), self._arguments.num_epochs, partitions)

    def _known_rows(self) -> tuple[int, ...]:
        """Rows of every training partition, to a few; none if only preparation counts them."""
        rows = self._inputs.training_rows()
        if rows is None:
            return ()
        count = self._arguments.num_partitions or default_partitions(rows, rows, self._partitions_wanted)
        return tuple(len(part) for part in np.array_split(range(rows), count))

    def _program(self, splits: Splits | None, partitions: int) -> Program:
        arguments = self._arguments
        return Program(
            estimator_gen_fn=arguments.estimator_gen_fn,
            feature_columns=arguments.feature_columns,
            label_columns=arguments.label_columns,
            train=splits.train if splits else None,
            val=splits.val if splits else None,
            num_partitions=partitions,
            num_epochs=arguments.num_epochs,
            seed=arguments.seed,
            device=getattr(arguments.backend, "device", "auto"),
            threads=arguments.backend.threads_per_worker,
            init_from=None if arguments.init_from is None else arguments.init_from.weights(),
            preprocessing=self._preprocessing(splits) if splits else None,
            graph_streams=GRAPH_STREAMS.get(arguments.packing, 0),
        )

    def _preprocessing(self, splits: Splits) -> FittedSteps | None:
        """The steps, fitted on the training rows; once for a search, its data and the store."""
        if self._fitted is None and self._arguments.preprocess is not None:
            given = self._arguments.preprocess
            if isinstance(given, Steps):
                given = fit_steps_in(self._arguments.store.runs, given, splits.train)
            self._fitted = given
        return self._fitted

    # Run ------------------------------------------------------------------------------------

    def _layout(self, splits: Splits) -> Layout:
        """Layout of an epoch in a new run."""
        rows, groups = len(splits.train), splits.train.num_row_groups
        partitions = self._arguments.num_partitions or default_partitions(
            rows, groups, self._partitions_wanted
        )
        return Layout(partitions, 0 if splits.val is None else min(partitions, splits.val.num_row_groups))

    def _hop(self, splits: Splits, metric: EvaluationMetric, facts: Sequence[WorkerFacts]) -> Run:
        """Make the run, or continue it, and drive it to its end. Partitions stay on the workers' nodes."""
        arguments = self._arguments
        settings = self._settings(splits.fingerprint)
        run_id = self._run_id(settings)
        folder = RunFolder(arguments.store.runs, run_id)
        surroundings = environment(arguments.backend.threads_per_worker, facts[0].instructions)
        take_over = arguments.take_over or os.environ.get(TAKEN_OVER_RUN) == run_id
        here = arguments.backend.on_this_machine
        journal = Journal(folder, take_over=take_over, unsynced=here, announce=self._progress.say)
        try:
            if self._elsewhere is not None:
                folder.frozen().refer(self._elsewhere)
            known: Iterable[JournalRecord] = journal.replay()
            header = next(iter(known), None)
            if header is None:
                layout = self._layout(splits)
                self._make_searcher(
                    self._budget(layout.train)
                )  # impossible budgets are said before the run begins
                self._say_what_stops_nobody(layout)
                self._say_what_is_sorted(splits, layout)
                self._say_which_labels_are_filled(splits)
                program = self._saved_program(folder, splits, layout.train, arguments.num_epochs)
                header = self._header(run_id, settings, splits, layout, metric, surroundings, program)
                journal.append(header)
                known = [header]
            state, decisions, pending = self._replayed(header, known, settings, surroundings, splits)
            if state.finished not in ENDED or pending or more_is_asked(folder, state.controls):
                # The estimator function as it is now: what decides the result is the same as when the run began.
                epochs = max(arguments.num_epochs, state.num_epochs)
                program = self._saved_program(folder, splits, state.layout.train, epochs)
                places = {
                    "train": whereabouts(splits.train, state.layout.train),
                    "validate": whereabouts(splits.val, state.layout.validate),
                }
                own = folder.unsynced() if here else folder
                work = TrainingWork(own, program, facts[0], places, self._alone == "")
                held = held_by_nodes(facts, list(places.values()))
                homes = homes_of([fact.node for fact in facts], state.layout.train, held)
                self._drive(folder, journal, state, decisions, pending, work, homes, splits)
        finally:
            journal.close()
        return Run(folder, run_id, list(read_records(folder)))

    def _say_what_stops_nobody(self, layout: Layout) -> None:
        """Say that partitions are too few, and visits with them, to stop trials as early as the search might."""
        epochs, wanted = self._arguments.num_epochs, self._partitions_wanted
        if layout.train < wanted:
            visits = epochs * layout.train
            stops = "nobody" if self._stops_nobody(visits) else "fewer of them"
            _log.warning(
                f"{self._kind} compares trials after parts of {counted(epochs, 'epoch')}, for which it needs "
                f"{wanted} partitions, but there {are(layout.train)} {layout.train}: with {counted(visits, 'visit')} a "
                f"trial it stops {stops} early. Give num_partitions={wanted}, data with as many row groups, or more "
                "epochs."
            )

    def _say_what_is_sorted(self, splits: Splits, layout: Layout) -> None:
        """Say that rows are sorted by a label, where partitions and windows of whole row groups cannot mix them."""
        train = splits.train
        if not isinstance(train, Dataset) or train.prepared:
            return
        groups = train.num_row_groups
        reach = train.reader().window_rows(WINDOW_BYTES)
        mixed = groups // layout.train
        if reach is not None:
            mixed = min(mixed, max(reach * groups // len(train), 1))
        if mixed >= min(_WELL_MIXED, groups):
            return
        for name in self._arguments.label_columns:
            share = train.reader().sortedness(name)
            if share is not None and share > _SORTED:
                _log.warning(
                    f"rows are sorted by the label {name!r}: the values of {share:.0%} of the pairs of row groups do "
                    f"not overlap. Models see them mixed over {counted(mixed, 'row group')} of {groups} only "
                    f"({counted(layout.train, 'partition')}, windows of {WINDOW_BYTES >> 30} GiB), and learn one value "
                    "after the other. Let hopyard.data.prepare shuffle them: its result goes to "
                    f"fit_on_prepared_data(); or write at least {_WELL_MIXED * layout.train} smaller row groups."
                )

    def _say_which_labels_are_filled(self, splits: Splits) -> None:
        """Say that a loss may take what ``ragged="pad"`` filled lists of labels with for labels."""
        policies = getattr(splits.train, "policies", None)
        for name in self._arguments.label_columns:
            if policies is not None and name in policies.padded:
                _log.warning(
                    f"the lists of the label {name!r} were filled with 0 up to {policies.padded[name]} values "
                    "(ragged='pad'), which count as labels unless the loss leaves them out. Number classes from 1 and "
                    "give torch.nn.CrossEntropyLoss(ignore_index=0), which metrics named by strings follow, or "
                    f"keras.losses.SparseCategoricalCrossentropy(ignore_class=0); or use {name}_length in step=."
                )

    def _saved_program(self, folder: Store, splits: Splits, partitions: int, num_epochs: int) -> str:
        program = replace(self._program(splits, partitions), num_epochs=num_epochs)
        with code_along(self._arguments.backend, program):
            return save_program(folder, program)

    def _replayed(
        self,
        header: JournalRecord,
        known: Iterable[JournalRecord],
        settings: dict[str, Any],
        surroundings: dict[str, Any],
        splits: Splits,
    ) -> tuple[RunState, Decisions, list[JournalRecord]]:
        """The run as its journal leaves it, extended if more is asked for now."""
        check_header([header], "this run")
        state, begun = RunState(), header["settings"]
        budget = Budget(begun.get("num_models"), header["num_epochs"], header["layout"]["train"])
        self._check_only_the_budget_differs(header, settings)
        searcher = self._make_searcher(budget, header.get("reproducible", True))
        decisions = Decisions(state, searcher, header["order_groups"])
        pending = replay(known, state, decisions)
        settings = _at_least(settings, state.budgets)
        changes = _changes(header["run_id"], state.header["settings"], settings)
        self._check_surroundings(state, surroundings)
        if changes:
            self._check_extension(state, decisions, settings, splits)
            folder = RunFolder(self._arguments.store.runs, header["run_id"])
            check_states_are_kept(folder, state, settings["num_epochs"])
            larger = {name: settings.get(name) for name in _EXTENDABLE}
            pending.append({"r": "extend", **larger, "settings": settings})
            self._progress.say(f"run {header['run_id']} is extended: {'; '.join(changes)}")
        elif state.units and state.finished not in ENDED:
            self._progress.say(f"run {state.header['run_id']} goes on after {state.so_far}.")
        return state, decisions, pending

    def _check_only_the_budget_differs(self, header: JournalRecord, settings: dict[str, Any]) -> None:
        """Raise SettingsError if other settings have changed: said before the searcher is asked again."""
        budget = {name: header["settings"][name] for name in _EXTENDABLE if name in header["settings"]}
        _changes(header["run_id"], header["settings"], {**settings, **budget})

    def _check_extension(
        self, state: RunState, decisions: Decisions, settings: dict[str, Any], splits: Splits
    ) -> None:
        """Raises SettingsError where the search, or the schedule of a trial, cannot have a larger budget."""
        try:
            trains_on = decisions.check_extension(settings.get("num_models"), settings["num_epochs"])
        except SettingsError as error:
            raise SettingsError(f"{error} The run's arguments as they were continue it.") from None
        trials = [state.trials[number] for number in trains_on]
        running = [trial for trial in state.trials.values() if trial.running and trial not in trials]
        begun = [trial for trial in (*trials, *running) if trial.progress.trained]
        self._check_schedules(state, splits, begun, settings["num_epochs"])

    def _check_schedules(
        self, state: RunState, splits: Splits, trials: Sequence[TrialState], num_epochs: int
    ) -> None:
        """Raises SettingsError where a trial's schedule is another one for more epochs."""
        if num_epochs == state.num_epochs:
            return
        program = replace(self._program(splits, state.layout.train), num_epochs=state.num_epochs)
        for trial in trials:
            asked = trial.asks_epochs or self._asks_epochs
            check_schedule(program, trial.params, trial.number, num_epochs, asked)

    def _drive(
        self,
        folder: Store,
        journal: Journal,
        state: RunState,
        decisions: Decisions,
        pending: Sequence[JournalRecord],
        work: TrainingWork,
        homes: Mapping[int, frozenset[int]] | None,
        splits: Splits,
    ) -> None:
        arguments = self._arguments
        hopper = Hopper(
            store=folder,
            state=state,
            journal=journal,
            decisions=decisions,
            backend=arguments.backend,
            work=work,
            options=replace(
                self._options,
                most_together=MOST_TOGETHER if self._alone == "" else 1,
                packs_first=self._packs_first,
            ),
            observers=[*observers_of(arguments, self._progress, state), *self._observers],
            homes=homes,
            announce=self._progress.say,
            check_epochs=lambda trials, epochs: self._check_schedules(state, splits, trials, epochs),
            notice=self._notice,
        )
        run_id = state.header["run_id"]
        try:
            status = hopper.run(pending)
        except KeyboardInterrupt:
            self._progress.say(
                f"interrupted after {state.so_far}; run the same script again to go on (run {run_id})."
            )
            raise
        finally:
            self._notice.note(f"after {state.so_far}; run the same script again to go on (run {run_id}).")
        if status in ENDED:
            self._notice.note(
                f"with run {run_id} {status}; run the same script again, which returns its result at once."
            )
        self._notice.check()

    def _header(
        self,
        run_id: str,
        settings: dict[str, Any],
        splits: Splits,
        layout: Layout,
        metric: EvaluationMetric,
        surroundings: dict[str, Any],
        program: str,
    ) -> JournalRecord:
        arguments = self._arguments
        num_points = self._make_searcher(self._budget(layout.train)).num_points
        return {
            "r": "run",
            "run_id": run_id,
            "format": format_header(RUN_FORMAT),
            "created": time.time(),
            "settings": settings,
            "layout": {"train": layout.train, "validate": layout.validate},
            "metric": {"key": metric.key, "mode": metric.mode},
            "num_epochs": arguments.num_epochs,
            "order_groups": arguments.order_groups or layout.train,
            "seed": arguments.seed,
            "reproducible": arguments.reproducible,
            "environment": surroundings,
            "data": {"train": origin(splits.train), "val": origin(splits.val)},
            "command": command(),
            "program": program,
            **({} if num_points is None else {"num_points": num_points}),
            **self._of_header,
        }

    def _check_surroundings(self, state: RunState, now: dict[str, Any]) -> None:
        if not state.units or not self._arguments.reproducible:
            return
        changes = environment_changes(state.header["environment"], now)
        if changes:
            raise WorkerMismatchError(
                f"run {state.header['run_id']} was begun elsewhere or with other versions: {'; '.join(changes)}. "
                "Its results would no longer be the same to the last bit. Continue it where it was begun, or give "
                "reproducible=False, or fresh=True to start anew."
            )


@contextmanager
def kept_running(backend: Backend) -> Iterator[None]:
    """Run the workers within the context; workers that ran before keep running."""
    was_running = backend.running
    backend.start()
    try:
        yield
    finally:
        if not was_running:
            backend.stop()


def _left_out(state: RunState, failed: Sequence[int]) -> str:
    """A sentence that names the replicates that failed, without which points count; empty where every trial is one."""
    if state.replicates == 1:
        return ""
    named = [
        f"{number % state.replicates} of point {number // state.replicates}" for number in failed[:_NAMED]
    ]
    more = [f"{len(failed) - _NAMED:,} more"] if len(failed) > _NAMED else []
    return f" The means leave out replicates: {', '.join([*named, *more])}."


def _keras_backend() -> str | None:
    """Keras's backend, on which results depend; None: TensorFlow, or this is no search over Keras models."""
    is_used = "hopyard.training.keras.estimator" in sys.modules
    backend = os.environ.get("KERAS_BACKEND")
    return backend if is_used and backend != "tensorflow" else None


def _changes(run_id: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Growth that the new settings ask of an existing run, a line for each: larger budgets only.

    Raises:
        SettingsError: other settings have changed.
    """
    grown = {
        name: new[name]
        for name in _EXTENDABLE
        if None not in (old.get(name), new.get(name)) and new[name] > old[name]
    }
    if any(old.get(name) != new.get(name) for name in _SHAPE_THE_DATA):
        old = {**old, "data": new["data"]}  # it differs because of them: they are what to name
    differences = what_differs({**old, **grown}, new)
    if differences:
        raise SettingsError(
            f"run {run_id} exists with other settings: {'; '.join(differences)}. Only num_models and num_epochs can "
            "grow. Give another run_id, or the settings of the run."
        )
    return what_differs({name: old[name] for name in grown}, grown)


def _at_least(settings: dict[str, Any], known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The settings, with a budget that the run has had before raised to its present one: it was extended meanwhile."""
    now = {**settings}
    for name in _EXTENDABLE:
        if name in now and now[name] in [before.get(name) for before in known]:
            now[name] = known[-1][name]
    return now
