"""Transformers of scikit-learn and preprocessing layers of Keras as steps."""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from hopyard.data.preprocessing.base import FittedState, Fitting, Missing, Step, is_text, refuse_lists
from hopyard.data.reading.views import Batch
from hopyard.errors import DataError, UsageError
from hopyard.objects.digests import digest
from hopyard.objects.identity import identity

_SEED = 0


class Apply(Step):
    """A transformer or pipeline of scikit-learn, or a preprocessing layer of Keras, fitted (``fit``, ``adapt``) on the
    training rows of some columns.

    It gets scalar columns as a pandas DataFrame of their names (a layer: as an array (n, columns)), others as an array
    (n, numbers of a row); nulls as NaN or None. Results are float32 or int64, or texts, without NaN. Transformers with
    ``partial_fit`` learn batch by batch; all others hold these columns' training rows in memory once. The object that
    you give is copied and not changed.

    Args:
        transformer: not fitted; if it is, it is fitted anew.
        columns: that it gets.
        output: the name of one column for the whole result, of shape (n, k). None: the result takes the place of the
            columns; if there are several, it must have a number for each.

    >>> Apply(QuantileTransformer(), "fare"), Apply(OneHotEncoder(), "city", "deck", output="where")
    """

    fills: ClassVar[bool] = True

    def __init__(self, transformer: Any, *columns: str, output: str | None = None) -> None:
        if isinstance(transformer, str | type):
            raise UsageError(
                f"Apply was given {transformer!r} as its transformer. Give the object first, then the columns: "
                "Apply(StandardScaler(), 'age', 'fare')."
            )
        if not is_layer(transformer) and not (
            hasattr(transformer, "fit") and hasattr(transformer, "transform")
        ):
            raise UsageError(
                f"Apply was given {type(transformer).__name__}, which has no fit(...) and transform(...) and is no "
                "layer of Keras. Give a transformer or a pipeline of scikit-learn, or a layer such as Normalization()."
            )
        super().__init__(columns)
        if output is not None and (not isinstance(output, str) or not output):
            raise UsageError(
                f"Apply was given output={output!r}, but it must be the name of a column, or None."
            )
        self.transformer = transformer
        self.output = output

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.columns if self.output is None else (self.output,)

    def options(self) -> dict[str, Any]:
        return {} if self.output is None else {"output": self.output}

    def definition(self) -> Any:
        made = self.transformer
        kind = f"{type(made).__module__}.{type(made).__qualname__}"
        if is_layer(made):
            # Keras numbers the names of layers in the order in which a process makes them.
            config = {name: value for name, value in made.get_config().items() if name != "name"}
            content = json.dumps(config, sort_keys=True, default=repr)
        else:
            content = identity(made, kind).digest or digest(pickle.dumps(made), "hopyard.transformer")
        return ["Apply", kind, content, list(self.columns), self.options()]

    def fitting(self) -> Fitting:
        return _Fitted(self)

    def __getstate__(self) -> dict[str, Any]:
        made = self.transformer
        if is_layer(made):
            made = _Layer(type(made), made.get_config(), None, {}, None)
        return {**self.__dict__, "transformer": made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = state["transformer"]
        self.__dict__.update(state, transformer=made.restored() if isinstance(made, _Layer) else made)

    def __repr__(self) -> str:
        output = "" if self.output is None else f", output={self.output!r}"
        return f"Apply({type(self.transformer).__name__}(), {', '.join(map(repr, self.columns))}{output})"


class _Fitted(Fitting):
    def __init__(self, step: Apply) -> None:
        self._step = step
        self._made = _copied(step.transformer)
        self._batches: list[Any] = []
        self._partial = not is_layer(self._made) and hasattr(self._made, "partial_fit")

    def add(self, batch: Batch, missing: Missing) -> None:
        rows = _rows(self._step, batch, missing)
        if self._partial:
            self._calling(self._made.partial_fit, rows)
        else:
            self._batches.append(rows)

    def result(self) -> FittedState:
        if not self._partial and not (is_layer(self._made) and not _adapts(self._made)):
            rows = (
                pd.concat(self._batches, ignore_index=True)
                if isinstance(self._batches[0], pd.DataFrame)
                else np.concatenate(self._batches)
            )
            self._calling(self._made.adapt if is_layer(self._made) else self._made.fit, rows)
        self._batches.clear()
        return Applied(self._step, self._made)

    def _calling(self, method: Any, rows: Any) -> None:
        before = np.random.get_state()
        np.random.seed(_SEED)  # a transformer without random_state= draws from NumPy's own generator
        try:
            method(rows)
        except Exception as error:
            raise _failed(self._step, "fitted", error) from error
        finally:
            np.random.set_state(before)


@dataclass(frozen=True)
class Applied(FittedState):
    """Attributes: step: as given; transformer: its fitted copy."""

    step: Apply
    transformer: Any

    def apply(self, batch: Batch, missing: Missing) -> dict[str, Any]:
        rows = _rows(self.step, batch, missing)
        try:
            made = self.transformer(rows) if is_layer(self.transformer) else self.transformer.transform(rows)
            values = _as_array(made)
        except Exception as error:
            raise _failed(self.step, "applied", error) from error
        values = _as_column(self.step, values, len(rows))
        names, scalars = self.step.outputs, all(np.ndim(batch[name]) == 1 for name in self.step.columns)
        if len(names) == 1:
            narrow = self.step.output is None and scalars and values.shape[1:] == (1,)
            return {names[0]: values[:, 0] if narrow else values}
        if values.ndim != 2 or values.shape[1] != len(names) or not scalars:
            raise DataError(
                f"{self.step} gives rows of shape {list(values.shape[1:])}, not a number for each of its "
                f"{len(names)} columns. Name one column for all of it: output='...'."
            )
        return {name: np.ascontiguousarray(values[:, place]) for place, name in enumerate(names)}

    def __getstate__(self) -> dict[str, Any]:
        """A layer as the values that it learned: Keras' own files of one hold no empty vocabulary."""
        made = self.transformer
        return {"step": self.step, "transformer": _Layer.of(made) if is_layer(made) else made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = state["transformer"]
        object.__setattr__(self, "step", state["step"])
        object.__setattr__(self, "transformer", made.restored() if isinstance(made, _Layer) else made)


@dataclass(frozen=True)
class _Layer:
    """A layer of Keras, fitted, as it is pickled."""

    kind: type
    config: dict[str, Any]
    built_for: Any
    variables: dict[str, npt.NDArray[Any]]
    vocabulary: list[Any] | None

    @classmethod
    def of(cls, layer: Any) -> _Layer:
        variables: dict[str, Any] = {}
        layer.save_own_variables(variables)
        given = layer.get_config().get("vocabulary") is not None
        # The part that is not learned comes from the configuration.
        vocabulary = None
        if hasattr(layer, "get_vocabulary") and not given:
            vocabulary = list(layer.get_vocabulary(include_special_tokens=False))
        arrays = {name: np.asarray(value) for name, value in variables.items()}
        return cls(type(layer), layer.get_config(), layer.get_build_config(), arrays, vocabulary)

    def restored(self) -> Any:
        layer = self.kind.from_config(self.config)  # type: ignore[attr-defined]
        if self.vocabulary is not None:
            layer.set_vocabulary(self.vocabulary)
        if self.built_for and not layer.built:
            layer.build_from_config(self.built_for)
        if self.variables:
            layer.load_own_variables(self.variables)
        return layer


def is_layer(made: Any) -> bool:
    """Whether the transformer is a layer of Keras, which is then imported."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(made, getattr(keras, "Layer", ()))


def _copied(made: Any) -> Any:
    """An unfitted copy."""
    if is_layer(made):
        return type(made).from_config(made.get_config())
    if "sklearn" in sys.modules:
        from sklearn.base import clone

        return clone(made, safe=False)
    return pickle.loads(pickle.dumps(made))


def _adapts(layer: Any) -> bool:
    """Whether the layer has something to learn: not if it was made with its vocabulary or its mean."""
    config = layer.get_config()
    given = any(config.get(name) is not None for name in ("vocabulary", "mean", "bin_boundaries"))
    return hasattr(layer, "adapt") and not given


def _rows(step: Apply, batch: Batch, missing: Missing) -> Any:
    """The columns as the transformer gets them: a DataFrame, or an array (n, numbers of a row)."""
    parts = [_with_missing(step, name, batch[name], missing.get(name)) for name in step.columns]
    scalars = all(part.ndim == 1 for part in parts)
    if scalars and not is_layer(step.transformer):
        return pd.DataFrame(
            {name: pd.Series(part, dtype=part.dtype) for name, part in zip(step.columns, parts, strict=True)}
        )
    texts = any(is_text(part) for part in parts)
    return np.concatenate(
        [part.reshape(len(part), -1).astype(object if texts else part.dtype) for part in parts], axis=1
    )


def _with_missing(
    step: Apply, name: str, values: Any, lost: npt.NDArray[np.bool_] | None
) -> npt.NDArray[Any]:
    refuse_lists(str(step), name, values)
    array = np.asarray(values)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if lost is None or not lost.any():
        return array
    array = array.astype(object if is_text(array) else np.float64)
    array[lost] = None if is_text(array) else np.nan
    return array


def _as_array(made: Any) -> npt.NDArray[Any]:
    if hasattr(made, "toarray"):  # sparse
        made = made.toarray()
    elif hasattr(made, "to_numpy"):
        made = made.to_numpy()
    elif not isinstance(made, np.ndarray) and "keras" in sys.modules:
        made = sys.modules["keras"].ops.convert_to_numpy(made)
    array: npt.NDArray[Any] = np.asarray(made)
    if array.dtype.kind == "O" and all(isinstance(value, bytes) for value in array.flat):
        array = np.array([value.decode() for value in array.flat], object).reshape(array.shape)
    return array


def _as_column(step: Apply, values: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """A column of results as float32, int64 or texts.

    Raises:
        DataError: it holds something else, NaN, or another number of rows.
    """
    if len(values) != rows:
        raise DataError(f"{step} gave {len(values)} rows for {rows}. It must give a row for each.")
    if values.dtype.kind == "O":
        if all(isinstance(value, str) for value in values.flat):
            return values
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{step} gave neither numbers nor texts: {error}. Add a step that encodes them."
            ) from error
    if values.dtype.kind == "U":
        return values.astype(object)
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    if np.isnan(values).any():
        raise DataError(
            f"{step} gave NaN in {int(np.isnan(values).any(axis=tuple(range(1, values.ndim))).sum())} rows, on which "
            "nothing can be learned. Impute missing values first: Impute(...) before it, or a SimpleImputer in it."
        )
    return values.astype(np.float32)


def _failed(step: Apply, what: str, error: Exception) -> DataError:
    hint = ""
    target = None if is_layer(step.transformer) else getattr(step.transformer, "fit", None)
    if target is not None and what == "fitted":
        needs = inspect.signature(target).parameters.get("y")
        if needs is not None and needs.default is inspect.Parameter.empty:
            hint = " It learns from labels, which no step of preprocessing sees."
    return DataError(
        f"{step} could not be {what} ({type(error).__name__}: {error}).{hint} Try it on a few rows of the columns that "
        "it is given, as a DataFrame for scikit-learn or an array for Keras."
    )
