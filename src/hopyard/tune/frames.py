"""Frames that go into a trained model, and the same kind of frame coming out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data import Column, Ragged, Schema, as_source
from hopyard.data.preparing.policies import pad
from hopyard.errors import ColumnError, DataError, nearest

Arrays = dict[str, npt.NDArray[Any] | Ragged]
Outputs = tuple[npt.NDArray[Any], ...]
PREDICTION_BATCH = 1024


def feature_batches(data: Any, columns: Sequence[str], batch_size: int, schema: Schema) -> Iterator[Arrays]:
    """``data`` as batches of at most ``batch_size`` rows with these columns.

    Bare arrays stand for the columns in order; frames must have them, and may have more.

    Args:
        schema: of what the model was trained on. Rows of lists that were padded there are padded here.
    """
    if not _is_frame(data):
        given = data if isinstance(data, tuple | list) and len(columns) > 1 else (data,)
        if len(given) != len(columns):
            raise DataError(
                f"{len(given)} arrays were given for the columns {list(columns)}; give one array per column, in "
                "this order, or a dict of arrays."
            )
        data = {name: _array(array) for name, array in zip(columns, given, strict=True)}
    source = as_source(data)
    check_features(columns, source.columns)
    rows = 0
    for batch in source.select(columns).batches():
        arrays = {name: _like(schema[name], batch[name].as_batch()) for name in columns}
        count = len(arrays[columns[0]])
        rows += count
        for start in range(0, count, batch_size):
            yield {name: values[start : start + batch_size] for name, values in arrays.items()}
    if not rows:
        raise DataError("the data has no rows; a model needs at least one.")


def _like(column: Column, values: npt.NDArray[Any] | Ragged) -> npt.NDArray[Any] | Ragged:
    """Lists padded to the length that they had in training.

    Raises:
        DataError: one is longer.
    """
    if not isinstance(values, Ragged) or column.kind != "tensor" or not column.shape:
        return values
    longest, length = int(values.lengths.max(initial=0)), column.shape[0]
    if longest > length:
        raise DataError(
            f"column {column.name!r} has a row of {longest} values, but those that the model was trained on have at "
            f"most {length}, to which they were padded. Shorten the row, or train on rows as long."
        )
    return pad(values, length)


def check_features(columns: Sequence[str], there: Sequence[str]) -> None:
    """Raise ColumnError if the data, whose columns ``there`` names, lacks one that the model needs."""
    missing = [name for name in columns if name not in there]
    if missing:
        raise ColumnError(
            f"the data lacks the columns {missing}{nearest(missing[0], there, '.')} "
            f"It has {list(there)}; the model needs {list(columns)}."
        )


def outputs_of(
    predict: Callable[[Arrays], npt.NDArray[Any] | Outputs], columns: Sequence[str], data: Any, schema: Schema
) -> Outputs:
    """What ``predict`` gives for all rows of ``data``: one array of shape (n, ...) per output.

    Args:
        schema: of what the model was trained on.

    Raises:
        ColumnError: ``data`` lacks one of ``columns``. DataError: it has no rows, or they are not what it takes.
    """
    parts = []
    for batch in feature_batches(data, columns, PREDICTION_BATCH, schema):
        outputs = predict(batch)
        parts.append(outputs if isinstance(outputs, tuple) else (outputs,))
        _check_rows(parts[-1], len(batch[columns[0]]))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _check_rows(outputs: Outputs, rows: int) -> None:
    """Raise DataError if a model took the rows for something else."""
    for output in outputs:
        if len(output) != rows:
            raise DataError(
                f"the model gave an array of shape {output.shape} for {rows} rows, but one output a row is needed. "
                "Give arrays of shape (rows, ...); a single row x as x[None]."
            )


def with_columns(data: Any, outputs: Mapping[str, npt.NDArray[Any]]) -> Any:
    """``data`` with further columns, as the same kind of frame. Outputs of shape (n, 1) become scalars."""
    columns = {name: _squeezed(values) for name, values in outputs.items()}
    kind = kind_of(data)
    if kind == "pandas":
        return data.assign(**{name: _cells(values) for name, values in columns.items()})
    if kind == "polars":
        series = type(data.get_column(data.columns[0]))
        return data.with_columns([series(name, values) for name, values in columns.items()])
    if kind == "pyarrow":
        for name, values in columns.items():
            data = data.append_column(name, arrow_column(values))
        return data
    if isinstance(data, Mapping):
        return {**data, **columns}
    raise DataError(
        f"transform was given {type(data).__name__}; it takes a dict of arrays, a pandas or polars DataFrame or a "
        "pyarrow Table, or a frame of Spark, Ray Data or Dask, because it returns the same kind. For arrays use "
        "predict(x)."
    )


def arrow_column(values: npt.NDArray[Any]) -> pa.Array:
    """An output as a column: numbers, or lists of one length, nested as its dimensions are. Shape (n, 1) counts as
    (n,)."""
    values = _squeezed(values)
    column = pa.array(values.ravel())
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def example_rows(schema: Schema) -> Arrays:
    """Two rows of zeros and empty texts."""
    return {column.name: _example(column) for column in schema}


def _example(column: Column) -> npt.NDArray[Any] | Ragged:
    if column.kind == "tensor":
        return np.zeros((2, *column.shape), column.dtype)
    if column.kind == "ragged":
        return Ragged(np.zeros((2, *column.shape), column.dtype), np.arange(3))
    return np.array([{"string": "", "bytes": b""}[column.kind]] * 2, dtype=object)


def column_names(data: Any) -> list[str]:
    """The columns of a frame or a dict of arrays; none for what is neither."""
    if isinstance(data, Mapping):
        return list(data)
    kind = kind_of(data)
    if kind == "pyarrow":
        return list(data.column_names)
    return list(data.columns() if kind == "ray" else getattr(data, "columns", ()))


def kind_of(data: Any) -> str:
    """The package that an object's class comes from."""
    return type(data).__module__.partition(".")[0]


def _is_frame(data: Any) -> bool:
    return (
        kind_of(data) in ("pandas", "polars", "pyarrow", "hopyard", "pyspark", "ray", "dask")
        or isinstance(data, Mapping | str)
        or hasattr(data, "__fspath__")
    )


def _array(value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _squeezed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _cells(values: npt.NDArray[Any]) -> Any:
    return values if values.ndim == 1 else list(values)
