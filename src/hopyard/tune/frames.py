"""Frames that go into a trained model, and the same kind of frame coming out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data import Column, Ragged, Schema, as_source
from hopyard.errors import ColumnError, DataError, nearest

Arrays = dict[str, npt.NDArray[Any] | Ragged]


def feature_batches(data: Any, columns: Sequence[str], batch_size: int) -> Iterator[Arrays]:
    """``data`` as batches of at most ``batch_size`` rows with these columns.

    Bare arrays stand for the columns in order; frames must have them, and may have more.
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
    missing = [name for name in columns if name not in source.columns]
    if missing:
        raise ColumnError(
            f"the data lacks the columns {missing}{nearest(missing[0], source.columns, '.')} "
            f"It has {list(source.columns)}; the model needs {list(columns)}."
        )
    rows = 0
    for batch in source.select(columns).batches():
        arrays = {name: batch[name].as_batch() for name in columns}
        count = len(arrays[columns[0]])
        rows += count
        for start in range(0, count, batch_size):
            yield {name: values[start : start + batch_size] for name, values in arrays.items()}
    if not rows:
        raise DataError("the data has no rows; a model needs at least one.")


def with_columns(data: Any, outputs: Mapping[str, npt.NDArray[Any]]) -> Any:
    """``data`` with further columns, as the same kind of frame. Outputs of shape (n, 1) become scalars."""
    columns = {name: _squeezed(values) for name, values in outputs.items()}
    kind = type(data).__module__.partition(".")[0]
    if kind == "pandas":
        return data.assign(**{name: _cells(values) for name, values in columns.items()})
    if kind == "polars":
        series = type(data.get_column(data.columns[0]))
        return data.with_columns([series(name, values) for name, values in columns.items()])
    if kind == "pyarrow":
        for name, values in columns.items():
            data = data.append_column(name, _arrow(values))
        return data
    if isinstance(data, Mapping):
        return {**data, **columns}
    raise DataError(
        f"transform was given {type(data).__name__}; it takes a dict of arrays, a pandas or polars DataFrame or a "
        "pyarrow Table, because it returns the same kind. For arrays use predict(x)."
    )


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
    return list(getattr(data, "column_names", getattr(data, "columns", ())))


def _is_frame(data: Any) -> bool:
    kind = type(data).__module__.partition(".")[0]
    return (
        kind in ("pandas", "polars", "pyarrow", "hopyard")
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


def _arrow(values: npt.NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    inner = values.reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(inner.ravel()), inner.shape[1])
