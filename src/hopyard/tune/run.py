"""A run of a search, finished, interrupted or going on, and its models: trials at their best epochs."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hopyard.data.columns.policies import Policies
from hopyard.data.preprocessing.fitting import FittedSteps, schema_of
from hopyard.errors import (
    DataError,
    HopyardError,
    NotFoundError,
    RunInterruptedError,
    StorageError,
    TrialError,
    UsageError,
)
from hopyard.hopper.history import (
    Totals,
    Traffic,
    broken_rules,
    committed_units,
    read_state,
    totals_of,
    traffic_of,
)
from hopyard.hopper.journal import holder, read_records
from hopyard.hopper.state import ENDED, JournalRecord, RunState, TrialState, trial_folder
from hopyard.objects import StateRef
from hopyard.objects.frozen import urls_elsewhere
from hopyard.storage import LocalStore, Store, open_store
from hopyard.training.not_finite import undefined_metrics
from hopyard.tune.asking import ask, more_is_asked, waiting_commands
from hopyard.tune.listing import check_header, find_run, status_of
from hopyard.tune.phrases import worded, wording_of
from hopyard.tune.predicting.frames import (
    PREDICTION_BATCH,
    Arrays,
    arrow_column,
    check_features,
    column_names,
    example_rows,
    feature_batches,
    masks_there,
    outputs_of,
    with_columns,
)
from hopyard.tune.predicting.predictor import Packed, load_replica
from hopyard.tune.predicting.saved import (
    INFO,
    ModelInfo,
    Weights,
    is_written,
    policies_of,
    read_model,
    write_model,
)
from hopyard.tune.predicting.transforms import transform_of
from hopyard.wording import counted

if TYPE_CHECKING:
    import keras
    import pandas as pd
    import torch

    from hopyard.stockroom import StockRoom
    from hopyard.stockroom.catalog.registry import ModelVersion

_log = logging.getLogger("hopyard")
_NO_LOSS = " A loss that leaves labels out needs rows with at least one label other than -100."


_CALLED_BY_CEREBRO = {
    "get_best_model": "the model that fit(...) returns.",
    "get_best_model_history": "model.get_history().",
    "getHistory": "model.get_history().",
    "getModel": "model.keras() or model.torch().",
    "getRunId": "model.run_id, with the number of its trial in model.trial.",
    "getFeatureColumns": "model.info.feature_columns.",
    "getLabelColumns": "model.info.label_columns.",
    "getOutputCols": "model.output_columns.",
}


class Run:
    """One run of a search, as its journal tells it at the moment of opening, or of the last command.

    Commands (``pause``, ``resume``, ``stop``, ``kill``, ``extend``, ``clone``) are for a run that another process may
    drive. They wait for its answer, and return in words what came of them; see ``hopyard.tune.asking.asked`` for what
    they raise.

    Attributes:
        run_id: its name in the store.
        settings: what the search was called with, as far as it decides the result.
        holder: who drove it (``host``, ``pid``, ``since``), or None.
    """

    def __init__(
        self, store: Store, run_id: str, records: list[JournalRecord], held: dict[str, Any] | None = None
    ) -> None:
        self._store = store
        self.run_id = run_id
        self._take(records, held)

    def _take(self, records: list[JournalRecord], held: dict[str, Any] | None) -> None:
        where = f"run {self.run_id} in {self._store.url}"
        check_header(records, where)
        self._known = len(records)
        self.holder: dict[str, Any] | None = held
        self.state: RunState = read_state(records, where)
        self.settings: dict[str, Any] = self.state.header["settings"]

    def __repr__(self) -> str:
        best = self.state.trials[self.state.best].best if self.state.best is not None else None
        value = f", best {self.state.metric.key} {best.value:.6g}" if best else ""
        return f"<Run {self.run_id}: {self.status}, {counted(len(self.state.trials), 'trial')}{value}>"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the best trials, learning curves and the schedule."""
        from hopyard.tune.pages import run_html

        return run_html(self)

    @property
    def status(self) -> str:
        """``"running"``; ``"paused"`` by a user; ``"waits for its store"``, which is full or does not answer;
        ``"interrupted"``: its driver is gone; ``"gave up"``: its driver has ended it, since all trials failed alike
        before any unit was done; ``"completed"``; ``"failed"``: every trial has, be it after an extension; or what
        ended it before that: ``"stopped"`` by a user, ``"time budget"``, ``"preempted"`` by SIGTERM or SIGUSR1.
        All but the completed and failed ones can go on."""
        return status_of(self.state, self.holder)

    @property
    def is_done(self) -> bool:
        """Whether it has ended, and nobody has asked for more since: a larger budget, or a clone."""
        return self.status in ENDED and not more_is_asked(self._store, self.state.controls)

    def pause(self) -> str:
        """Let units under way end, and begin no more until ``resume``."""
        return self._ask({"do": "pause"})

    def resume(self) -> str:
        """Let a paused driver go on. (A run without a driver goes on when its script is started again.)"""
        return self._ask({"do": "resume"})

    def stop(self, trial: int | None = None) -> str:
        """End the run after the units under way, or only one trial. A run that was stopped can go on later."""
        return self._ask({"do": "stop"} if trial is None else {"do": "stop", "trial": trial})

    def kill(self) -> str:
        """End the run now: units under way are given up. It can go on later, from the states of the units before."""
        return self._ask({"do": "kill"})

    def extend(self, num_models: int | None = None, num_epochs: int | None = None) -> str:
        """Give the run a larger budget: so many trials, and epochs of a trial, in all."""
        return self._ask({"do": "extend", "num_models": num_models, "num_epochs": num_epochs})

    def clone(self, trial: int, params: Mapping[str, Any] | None = None, *, weights: bool = False) -> str:
        """Begin a trial like another one, with other values of some hyperparameters.

        It trains to the full length of the run, is ranked with the others, and is not stopped early; the search does
        not hear of it, and it counts in no ``num_models``. What is random in it is drawn as it was in the other one,
        so that it differs by nothing but what was changed. With ``replicates`` all trials of the point are cloned.

        Args:
            trial: number of the trial that is cloned.
            params: the values that change, such as ``{"optimizer.lr": 0.01}``; also ones outside of the space.
            weights: begin with the trial's last saved weights, and the epochs that it has made; else anew.
        """
        return self._ask({"do": "clone", "trial": trial, "params": dict(params or {}), "weights": weights})

    def _ask(self, command: dict[str, Any]) -> str:
        wording = wording_of(self.state.header)
        with worded(wording):
            said = ask(self._store, self.run_id, command)
        held = holder(self._store)
        self._take(list(read_records(self._store)), held)
        return wording(said)

    @property
    def program(self) -> tuple[Store, str]:
        """Place of the run's program: a store, and the name in it."""
        return self._store, self.state.header["program"]

    @property
    def best(self) -> Model:
        """The model with the best epoch.

        Raises:
            TrialError: no trial has a result.
            RunInterruptedError: none has one so far.
        """
        if self.state.best is not None:
            return self.model(self.state.best)
        with worded(wording_of(self.state.header)):
            raise self._why_there_is_no_best()

    def _why_there_is_no_best(self) -> HopyardError:
        errors = [trial.error for trial in self.failures() if trial.error is not None]
        if self.status not in ENDED:
            more = ", without time_budget or with a larger one," if self.status == "time budget" else ""
            return RunInterruptedError(
                f"run {self.run_id} has no model so far: none of its {len(self.state.trials)} trials has ended an "
                f"epoch. Run the same script again{more} to go on; if it says fresh=True, which begins another run, "
                f"`hopyard run resume STORE {self.run_id}`."
            )
        first = (
            errors[0].describe()
            if errors
            else (
                f"{self.state.metric.key} was no number in any epoch. Rank by another metric (evaluation_metric=), or "
                "train and validate on rows for which it is defined."
                + (_NO_LOSS if self.state.metric.key == "val_loss" else "")
            )
        )
        return TrialError(
            f"run {self.run_id} has no model: {len(errors)} of {counted(len(self.state.trials), 'trial')} failed. "
            + (f"See run.trials() for all of them; the first says:\n{first}" if errors else first),
            errors[0] if errors else None,
        )

    @property
    def models(self) -> list[Model]:
        """Models of all trials that have a result, best first. Models without kept weights say so when asked."""
        return [self._model(trial) for trial in self.state.ranked() if trial.best is not None]

    def model(self, trial: int) -> Model:
        """The model of one trial."""
        if trial not in self.state.trials or self.state.trials[trial].best is None:
            known = [model.trial for model in self.models]
            raise NotFoundError(
                f"run {self.run_id} has no model of trial {trial}; the trials with a result are {known}."
            )
        return self._model(self.state.trials[trial])

    def ensemble(self, k: int) -> Model:
        """A model whose outputs are the mean of those of several of the run's models, selected greedily by the
        evaluation metric on the validation data: ``k`` times the model with which the ensemble becomes best is picked,
        also again; the best of the ensembles on the way is returned. (Caruana et al., ICML 2004.)

        Its ``info.value`` is what ``evaluate`` gives for that data, and ``params["members"]`` says which trials it
        has, and how often each was picked. It is nowhere written before ``save``.

        Args:
            k: picks; may be more than there are models.

        Raises:
            NotFoundError: the weights of fewer than two models are kept: see ``keep=`` of searches.
            UsageError: the run has no validation data.
            EstimatorError: its models cannot be averaged.
        """
        from hopyard.tune.ensemble import ensemble_of

        models = [model.contents() for model in self.models]
        return Model(*ensemble_of(self.run_id, models, self.state.metric, k), self)

    def trials(self) -> pd.DataFrame:
        """One row per trial, best first: see ``hopyard.tune.tables.trials_table``."""
        from hopyard.tune.tables import trials_table

        return trials_table(self.state)

    def schedule(self) -> pd.DataFrame:
        """One row per trial and committed unit: see ``hopyard.tune.tables.schedule_table``."""
        from hopyard.tune.tables import schedule_table

        return schedule_table(self.units())

    def units(self) -> list[JournalRecord]:
        """The committed units, as the journal records them."""
        return committed_units(self._records())

    def traffic(self) -> Traffic:
        """Number of hops of trials between workers, and bytes of states and of data that workers read and wrote."""
        return traffic_of(self.units())

    def totals(self) -> Totals:
        """Number of units and of workers, the seconds that they took, how busy workers were, and the traffic."""
        return totals_of(self.units(), self.state.pauses)

    @property
    def frozen_at(self) -> list[str]:
        """URLs of the places from which the run reads frozen tensors, beside the store."""
        return urls_elsewhere(self._store)

    def waiting(self) -> list[str]:
        """Commands that wait until the run goes on, in words: extensions, clones, stops of trials; none while somebody
        drives it, who answers them."""
        return [] if self.holder is not None else waiting_commands(self._store, self.state.controls)

    def broken_rules(self) -> list[str]:
        """The rules of model hopping that this run's units break: none, if all is well."""
        return broken_rules(self._records())

    def failures(self) -> Iterator[TrialState]:
        return (trial for trial in self.state.trials.values() if trial.error is not None)

    def export(
        self, target: Any, *, history: bool = False, overwrite: bool = False, name: str | None = None
    ) -> None:
        """Write the run's results for other programs: see ``hopyard.tune.export.export_run``."""
        from hopyard.tune.export import export_run

        export_run(self, target, history=history, overwrite=overwrite, name=name)

    def histories(self) -> dict[int, dict[str, list[float]]]:
        """The history of every trial by its number."""
        return {number: dict(trial.history) for number, trial in self.state.trials.items()}

    def _records(self) -> Iterator[JournalRecord]:
        """The records that the run had when it was opened: read again, because they are many."""
        return itertools.islice(read_records(self._store), self._known)

    def _model(self, trial: TrialState) -> Model:
        assert trial.best is not None
        info = ModelInfo(
            run_id=self.run_id,
            trial=trial.number,
            params=trial.params,
            epoch=trial.best.epoch,
            value=trial.best.value,
            metric=self.state.metric.key,
            history=trial.history,
            feature_columns=tuple(self.settings["feature_columns"]),
            label_columns=tuple(self.settings["label_columns"]),
        )
        weights = Weights(
            self._store, self.state.header["program"], trial_folder(trial.number), trial.best.state
        )
        return Model(info, weights, self)


def open_run(store: Store | str | os.PathLike[str], run_id: str) -> Run:
    """The run ``run_id`` of ``store``, its path or URL; finished or not.

    Raises:
        NotFoundError: there is none; the message lists the runs there are.
        FormatError: a newer version of Hopyard wrote it.
    """
    folder = find_run(open_store(store), run_id)
    held = holder(folder)  # before reading: what a driver writes is there before it lets go
    return Run(folder, run_id, list(read_records(folder)), held)


class Model:
    """The best model of a run, or one of its others.

    Its predictions come from the weights of its best epoch. The framework's objects are built when
    first asked for, and kept.
    """

    def __init__(self, info: ModelInfo, weights: Weights, run: Run | None = None) -> None:
        self.info = info
        self._weights, self._run = weights, run
        self._output_columns = [f"{name}__output" for name in info.label_columns] or ["output"]
        self._replica: Any = None

    def __repr__(self) -> str:
        info = self.info
        return (
            f"<Model of trial {info.trial}, run {info.run_id}: {info.metric} {info.value:.6g}, {info.params}>"
        )

    def _repr_html_(self) -> str:
        """HTML for a notebook: the model, and its run if that is at hand."""
        from hopyard.tune.pages import model_html

        return model_html(self.info, self._run)

    if not TYPE_CHECKING:  # for type checkers, an attribute that is not defined is a mistake

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError; for names of Cerebro's models, with the names here."""
            instead = _CALLED_BY_CEREBRO.get(name)
            said = f"; Cerebro has it, here it is {instead}" if instead else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{said}", name=name, obj=self
            )

    # What it is -----------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Any]:
        """The model's point of the search space."""
        return self.info.params

    @property
    def trial(self) -> int:
        """Number of the model's trial."""
        return self.info.trial

    @property
    def run_id(self) -> str:
        return self.info.run_id

    @property
    def run(self) -> Run:
        """The run it comes from.

        Raises:
            NotFoundError: it was loaded from a file of its own.
        """
        if self._run is None:
            raise NotFoundError(
                f"this model was loaded from a file and its run {self.run_id} is not at hand. "
                "Open it with hopyard.open_run(store, run_id)."
            )
        return self._run

    def get_history(self) -> dict[str, list[float]]:
        """One value an epoch for ``train_loss``, ``val_loss`` and each metric; if the trial ended within an epoch, a
        last one for the part that it trained."""
        return {name: list(values) for name, values in self.info.history.items()}

    def get_all_models(self) -> list[Model]:
        """All models of the run, best first. Of trials that were stopped early the weights are kept with ``keep="all"``
        only: without them a model has its history, and says so when it is asked for more."""
        return self.run.models

    def get_all_model_history(self) -> dict[int, dict[str, list[float]]]:
        """The history of every trial by its number."""
        return self.run.histories()

    def trials(self) -> pd.DataFrame:
        """One row per trial of the run, best first."""
        return self.run.trials()

    def schedule(self) -> pd.DataFrame:
        """One row per trial and committed unit of the run."""
        return self.run.schedule()

    # What it does ---------------------------------------------------------------------------

    def torch(self) -> torch.nn.Module:
        """The trained module, in evaluation mode, on the CPU.

        Raises:
            UsageError: it is a model of another framework.
        """
        module: torch.nn.Module = self._replica_of("torch").give_out()
        return module

    def keras(self) -> keras.Model:
        """The trained Keras model, compiled as it was for training.

        Raises:
            UsageError: it is a model of another framework.
        """
        replica = self._replica_of("keras")
        model: keras.Model = replica.module
        if not model.built:  # nothing has told it the shapes of its inputs
            replica.predict(self._example())
            model = replica.module
        return model

    def _replica_of(self, framework: str) -> Any:
        replica = self._loaded()
        if replica.framework != framework:
            raise UsageError(
                f"The model was trained by a {replica.framework.capitalize()}Estimator, so that it is no {framework} "
                f"model; call .{replica.framework}()."
            )
        return replica

    def set_output_columns(self, names: Sequence[str]) -> Model:
        """Names of the columns that ``transform`` adds, one per output. Returns the model."""
        if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
            raise UsageError(
                f"output columns are {names!r}; give a list of names, one per output of the model."
            )
        self._output_columns = list(names)
        return self

    def predict(self, x: Any) -> Any:
        """The model's outputs for ``x``: an array of shape (n, ...) (one feature column), a tuple of arrays
        (one per feature column, without that of row weights), or anything that ``transform`` takes.

        Returns: array of shape (n, ...), or a tuple of them for a model of several outputs.
        """
        outputs = outputs_of(self._loaded().predict, self._features, x, self._policies, self.preprocessing)
        return outputs if len(outputs) > 1 else outputs[0]

    def transform(self, data: Any) -> Any:
        """``data`` with the predictions as further columns, as the same kind of frame: dict of arrays, pandas,
        polars, pyarrow, or a DataFrame of Spark or Dask or a dataset of Ray, whose workers then predict, on GPUs
        where they have some, once its rows are asked for.

        Outputs of shape (n,) or (n, 1) become columns of numbers, others columns of lists of one length.

        Raises:
            ColumnError: ``data`` lacks a feature, or has a column of an output's name.
        """
        features, names = self._features, self._output_columns
        elsewhere = transform_of(data)
        if elsewhere is None:
            outputs = outputs_of(self._loaded().predict, features, data, self._policies, self.preprocessing)
        else:
            check_features(self._sources, column_names(data))
            # The outputs for two rows tell the types of the columns.
            given = self._loaded().predict(self._example())
            outputs = given if isinstance(given, tuple) else (given,)
        if len(outputs) != len(names):
            raise UsageError(
                f"the model gives {len(outputs)} outputs for the output columns {names}; "
                "name one per output with set_output_columns([...])."
            )
        taken = [name for name in names if name in column_names(data)]
        if taken:
            raise UsageError(
                f"the data has a column {taken[0]!r} already, where the model's output would go. Name another one with "
                "set_output_columns([...]), or drop it."
            )
        if elsewhere is None:
            return with_columns(data, dict(zip(names, outputs, strict=True)))
        fields = [
            pa.field(name, arrow_column(values).type) for name, values in zip(names, outputs, strict=True)
        ]
        read = [] if self.preprocessing is None else self.preprocessing.steps.read(features)
        masks = masks_there(self._policies, read, column_names(data))
        return elsewhere(data, self.packed(), list(dict.fromkeys([*self._sources, *masks])), fields)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Loss and metrics on ``data``, which has the feature and label columns."""
        info = self.info
        columns = list(dict.fromkeys((*info.feature_columns, *info.label_columns)))
        replica = self._loaded()
        batches = feature_batches(
            data,
            columns,
            PREDICTION_BATCH,
            self._policies,
            info.label_columns,
            self.preprocessing,
            weight=replica.weight_column,
        )
        values: dict[str, float] = replica.evaluate(batches)
        if undefined := [name for name, value in values.items() if math.isnan(value)]:
            _log.warning(undefined_metrics(undefined, "of these rows"))
        return values

    # Where it goes --------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the model to a directory of its own, readable by ``hopyard.load_model`` without its run.

        If this very model is there already, that is all: a script that saves can be run again.

        Raises:
            UsageError: another model is there.
        """
        store = LocalStore(path)
        if not store.exists(INFO):
            write_model(store, self.info, self._weights)
        elif not is_written(store, self.info, self._weights, str(path)):
            raise UsageError(f"{path} already holds another model; delete the directory or give another one.")
        return Path(path)

    def register(
        self,
        stock: StockRoom | str | os.PathLike[str],
        name: str,
        *,
        description: str = "",
        labels: Iterable[str] = (),
    ) -> ModelVersion:
        """Register the model as the next version of ``name`` in a stockroom, with its parameters, the metrics of its
        best epoch, run and trial; committed at once, within a block at its end.

        Weights that the stockroom has, such as those that a search with ``stock=`` has committed, are not written
        again. Its version downloads as what :meth:`save` writes.

        Args:
            stock: the stockroom, or a folder in it.
            name: of the registered model; its first version has the number 1.
            description: any text.
            labels: words for people: ``["production"]``.

        Raises:
            NotFoundError: the weights were not kept, or there is no stockroom.
            UsageError: the name cannot be one.
        """
        from hopyard.tune.registering import register

        data = None if self._run is None else str(self._run.settings["data"])
        return register(self, stock, name, description, labels, data)

    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the model in the format that the path's suffix names: ``.onnx``.

        Inputs are called like the feature columns, or like the keywords of ``inputs=``, and are what the
        model gets after ``val_transform``; any number of rows; outputs are what ``predict=`` makes of the model's own.
        What of this cannot be traced, ``val_transform`` and ``preprocess`` are left out, and named in a warning.

        Args:
            example: at least two rows, as ``predict`` takes them, to trace the model with. None: two rows of the
                training data, or of zeros and empty texts for a model that was loaded from a file.

        Raises:
            MissingExtraError: ONNX is not installed.
            EstimatorError: the model does what ONNX cannot express.
        """
        path = Path(path)
        if path.suffix != ".onnx":
            raise UsageError(f"{path} ends in {path.suffix!r}; models are exported as '.onnx'.")
        self._loaded().export_onnx(path, self._example() if example is None else self._two_rows(example))
        if self.preprocessing is not None:
            _log.warning(
                f"{path} does not do all that model.predict does; it leaves out preprocess= "
                f"({', '.join(map(repr, self.preprocessing.steps.steps))}): its inputs are what these steps give: "
                f"{_onnx_inputs(path)}. model.preprocessing.apply(rows) makes the columns of a frame or a "
                "dict of arrays; those that inputs= puts under one name are stacked: "
                "numpy.stack([made[name] for name in names], axis=1)."
            )
        return path

    def adapter(self, path: str | Path) -> Path:
        """Write the adapters of a model of PEFT's to a new folder: ``adapter_config.json`` and
        ``adapter_model.safetensors``, which ``peft.PeftModel.from_pretrained(base, path)`` loads.

        Raises:
            UsageError: the model has no such adapters, or the path is taken.
        """
        from hopyard.training.transformers.adapters import export_adapter

        return export_adapter(self.torch(), Path(path))

    def _two_rows(self, data: Any) -> Arrays:
        rows = next(
            feature_batches(data, self._features, 2, self._policies, preprocessing=self.preprocessing)
        )
        if len(rows[self._features[0]]) < 2:
            raise DataError(
                "example has 1 row, but two are needed to tell the number of rows from other sizes."
            )
        return rows

    def _example(self) -> Arrays:
        program, columns = self._weights.load_program(), self._features
        if program.train is not None and len(program.train) > 1:
            with suppress(StorageError):  # the data may be gone
                rows = program.seen(program.train)[0:2]
                return {name: rows[name] for name in columns}
        schema, preprocessing = self._policies.schema, self.preprocessing
        return example_rows(
            schema.select(columns) if preprocessing is None else schema_of(schema, preprocessing, columns)
        )

    @property
    def _features(self) -> list[str]:
        """The columns that predictions are made from."""
        columns: list[str] = self._loaded().prediction_columns
        return columns

    @property
    def _sources(self) -> list[str]:
        """The columns of data that predictions are made from."""
        preprocessing, columns = self.preprocessing, self._features
        return self._policies.sources(columns if preprocessing is None else preprocessing.sources(columns))

    @cached_property
    def preprocessing(self) -> FittedSteps | None:
        """The steps of ``preprocess=`` with all that they learned from the training rows; None without any."""
        return self._weights.load_program().preprocessing

    @cached_property
    def _policies(self) -> Policies:
        """Policies of the data that the model was trained on."""
        return policies_of(self._weights.load_program())

    @property
    def output_columns(self) -> list[str]:
        """Names of the columns that ``transform`` adds."""
        return list(self._output_columns)

    def packed(self) -> Packed:
        """The model as bytes, without its run."""
        return Packed(self.info, self._weights)

    def contents(self) -> tuple[ModelInfo, Weights]:
        """What is known of the model without loading it, and where its bytes are."""
        return self.info, self._weights

    def weights(self) -> tuple[Store, StateRef]:
        """Store and reference of the weights: with ``init_from=``, other trials start from these."""
        return self._weights.store.at(self._weights.folder), self._weights.state

    def _loaded(self) -> Any:
        if self._replica is None:
            self._replica = load_replica(self.info, self._weights, "cpu")
        return self._replica


def _onnx_inputs(path: Path) -> str:
    """The inputs of an ONNX file in words: ``numbers: float32 (rows, 3), city: int64 (rows)``."""
    import onnx

    found = []
    for given in onnx.load(str(path), load_external_data=False).graph.input:
        kind = given.type.tensor_type
        sizes = ", ".join(str(size.dim_value or "rows") for size in kind.shape.dim)
        found.append(f"{given.name}: {onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name} ({sizes})")
    return ", ".join(found)


def load_model(path: str | Path) -> Model:
    """A model that ``Model.save`` wrote. It holds your own estimator function, pickled: load only models
    that you trust.

    Raises:
        NotFoundError: there is no model at ``path``.
        FormatError: a newer version of Hopyard wrote it.
    """
    store = LocalStore(path)
    if not store.exists(INFO):
        raise NotFoundError(
            f"{path} holds no model (no {INFO}); give the directory that model.save(...) wrote."
        )
    return Model(*read_model(store, str(path)))
