"""A trained model: one trial of a run at its best epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopyard.data import Schema
from hopyard.errors import CorruptError, DataError, NotFoundError, StorageError, UsageError
from hopyard.objects import StateRef, load_state, save_state
from hopyard.storage import LocalStore, Store
from hopyard.storage.format import check_format, format_header
from hopyard.training import Program, build_replica, load_program, save_program
from hopyard.tune.frames import Arrays, column_names, example_rows, feature_batches, with_columns

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from hopyard.tune.run import Run

_INFO = "model.json"
_KIND = "model"
PREDICTION_BATCH = 1024


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model without loading it. All fields are JSON values.

    Attributes:
        run_id, trial: where it comes from.
        params: its point of the search space.
        epoch: after how many of its epochs the weights are, the best ones; a fraction within one.
        value: the evaluation metric at that epoch.
        metric: the history key of that metric.
        history: one value an epoch for each metric; the last may be of a part of one.
        feature_columns, label_columns: as the search was given them.
    """

    run_id: str
    trial: int
    params: dict[str, Any]
    epoch: float
    value: float
    metric: str
    history: dict[str, list[float]]
    feature_columns: tuple[str, ...]
    label_columns: tuple[str, ...]


@dataclass(frozen=True)
class Weights:
    """Where a model's bytes are: its program, and its weights below ``folder``."""

    store: Store
    program: str
    folder: str
    state: StateRef

    def load_program(self) -> Program:
        return load_program(self.store, self.program)

    def load(self) -> Any:
        return load_state(self.store.at(self.folder), self.state, verify=True)


class Model:
    """The best model of a run, or one of its others.

    Its predictions come from the weights of its best epoch. The framework's objects are built when
    first asked for, and kept.
    """

    def __init__(self, info: ModelInfo, weights: Weights, run: Run | None = None) -> None:
        self.info = info
        self._weights, self._run = weights, run
        self._output_columns = [f"{name}__output" for name in info.label_columns]
        self._replica: Any = None

    def __repr__(self) -> str:
        info = self.info
        return (
            f"<Model of trial {info.trial}, run {info.run_id}: {info.metric} {info.value:.6g}, {info.params}>"
        )

    # What it is -----------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Any]:
        """Its point of the search space."""
        return self.info.params

    @property
    def trial(self) -> int:
        """Number of its trial."""
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
        """All models of the run, best first."""
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
        """The trained module, in evaluation mode, on the CPU."""
        module: torch.nn.Module = self._loaded().module
        return module

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
        (one per feature column), or anything that ``transform`` takes.

        Returns: array of shape (n, ...), or a tuple of them for a model of several outputs.
        """
        replica = self._loaded()
        parts = []
        for batch in feature_batches(x, self.info.feature_columns, PREDICTION_BATCH):
            parts.append(replica.predict(batch))
            _check_rows(parts[-1], len(batch[self.info.feature_columns[0]]))
        if isinstance(parts[0], tuple):
            return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        return np.concatenate(parts)

    def transform(self, data: Any) -> Any:
        """``data`` with the predictions as further columns, as the same kind of frame: dict of arrays,
        pandas, polars or pyarrow."""
        outputs = self.predict(data)
        columns = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(columns) != len(self._output_columns):
            raise UsageError(
                f"the model gives {len(columns)} outputs for the output columns {self._output_columns}; "
                "name one per output with set_output_columns([...])."
            )
        taken = [name for name in self._output_columns if name in column_names(data)]
        if taken:
            raise UsageError(
                f"the data has a column {taken[0]!r} already, where the model's output would go. Name another one with "
                "set_output_columns([...]), or drop it."
            )
        return with_columns(data, dict(zip(self._output_columns, columns, strict=True)))

    def evaluate(self, data: Any) -> dict[str, float]:
        """Loss and metrics on ``data``, which has the feature and label columns."""
        columns = (*self.info.feature_columns, *self.info.label_columns)
        values: dict[str, float] = self._loaded().evaluate(feature_batches(data, columns, PREDICTION_BATCH))
        return values

    # Where it goes --------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the model to a directory of its own, readable by ``hopyard.load_model`` without its run."""
        store = LocalStore(path)
        if store.exists(_INFO):
            raise UsageError(f"{path} already holds a model; delete the directory or give another one.")
        program = self._weights.load_program()
        program = replace(program, train=None, val=None, init_from=None, schema=_schema(program))
        name = save_program(store, program)
        state = save_state(store.at("weights"), self._load_weights())
        content = {
            "format": format_header(_KIND),
            "info": asdict(self.info),
            "program": name,
            "state": state.to_json(),
        }
        store.put(_INFO, json.dumps(content, indent=1).encode())
        return Path(path)

    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the model in the format that the path's suffix names: ``.onnx``.

        Inputs are called like the feature columns, or like the keywords of ``inputs=``, and are what the
        model gets after ``val_transform``; any number of rows; outputs are the model's own, without ``predict=``.

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
        return path

    def _two_rows(self, data: Any) -> Arrays:
        rows = next(feature_batches(data, self.info.feature_columns, 2))
        if len(rows[self.info.feature_columns[0]]) < 2:
            raise DataError(
                "example has 1 row, but two are needed to tell the number of rows from other sizes."
            )
        return rows

    def _example(self) -> Arrays:
        program, columns = self._weights.load_program(), self.info.feature_columns
        if program.train is not None and len(program.train) > 1:
            with suppress(StorageError):  # the data may be gone
                rows = program.train[0:2]
                return {name: rows[name] for name in columns}
        return example_rows(_schema(program).select(columns))

    def weights(self) -> tuple[Store, StateRef]:
        """Where the weights are: what ``init_from=`` starts other trials from."""
        return self._weights.store.at(self._weights.folder), self._weights.state

    def _load_weights(self) -> Any:
        try:
            return self._weights.load()
        except NotFoundError as error:
            raise NotFoundError(
                f"the weights of trial {self.trial} were not kept: a run keeps those of completed trials and of the "
                "best one. Search with keep='all' to keep every trial's."
            ) from error

    def _loaded(self) -> Any:
        if self._replica is None:
            replica = build_replica(self._weights.load_program(), self.info.params, self.trial, device="cpu")
            replica.load({"model": self._load_weights()})
            self._replica = replica
        return self._replica


def _schema(program: Program) -> Schema:
    found = program.schema if program.train is None else program.train.schema
    assert found is not None, "only programs of saved models have no training data"
    return found


def _check_rows(outputs: Any, rows: int) -> None:
    """Raise DataError if a model took the rows for something else."""
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        if len(output) != rows:
            raise DataError(
                f"the model gave an array of shape {output.shape} for {rows} rows, but one output a row is needed. "
                "Give arrays of shape (rows, ...); a single row x as x[None]."
            )


def load_model(path: str | Path) -> Model:
    """A model that ``Model.save`` wrote. It holds your own estimator function, pickled: load only models
    that you trust.

    Raises:
        NotFoundError: there is no model at ``path``.
        FormatError: a newer version of Hopyard wrote it.
    """
    store = LocalStore(path)
    if not store.exists(_INFO):
        raise NotFoundError(
            f"{path} holds no model (no {_INFO}); give the directory that model.save(...) wrote."
        )
    try:
        content = json.loads(store.get(_INFO))
        header, info = content["format"], content["info"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(
            f"{path}/{_INFO} is not what model.save(...) wrote ({error!r}). Restore it from a copy, or save the model "
            "again."
        ) from error
    check_format(header, _KIND, where=f"the model in {path}")
    columns = {name: tuple(info[name]) for name in ("feature_columns", "label_columns")}
    weights = Weights(store, content["program"], "weights", StateRef.from_json(content["state"]))
    return Model(ModelInfo(**(info | columns)), weights)
