"""Frames that go into a trained model, and the same kind of frame coming out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data import Column, Ragged, Schema, as_source
from hopyard.data.base import BaseDataset
from hopyard.data.columns.columns import ColumnData, as_expected, as_ragged, holds_lists
from hopyard.data.columns.policies import Nulls, Policies, null_feature, null_label, pad
from hopyard.data.preparing.prepared import check_filled, check_labels
from hopyard.data.preprocessing.fitting import FittedSteps, masks_of
from hopyard.errors import ColumnError, DataError
from hopyard.training.estimator import joined_outputs
from hopyard.wording import counted, nearest

Arrays = dict[str, npt.NDArray[Any] | Ragged]
Outputs = tuple[npt.NDArray[Any], ...]
PREDICTION_BATCH = 1024
_FRAMES = ("pandas", "polars", "pyarrow", "hopyard", "pyspark", "ray", "dask")
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_FLOATS = {"float16", "float32", "float64"}


def feature_batches(
    data: Any,
    columns: Sequence[str],
    batch_size: int,
    policies: Policies,
    labels: Collection[str] = (),
    preprocessing: FittedSteps | None = None,
    part: str = "",
    weight: str | None = None,
) -> Iterator[Arrays]:
    """``data`` as batches of at most ``batch_size`` rows with these columns.

    Bare arrays stand for the columns in order, without columns that ``policies`` add; frames must have the columns, and
    may have more. Nulls and ragged rows are treated as in training.

    Args:
        policies: of the data that the model was trained on.
        labels, weight: columns whose nulls are errors.
        preprocessing: makes these columns from the data's; it gives values to the nulls of columns that it fills.
        part: name, for errors, of the part of an unknown whole that the rows are; such rows have no numbers.

    Raises:
        ColumnError: a column is missing. DataError: nulls, or rows that training would have refused too.
    """
    wanted, filled, read = columns, list[str](), list[str]()
    if preprocessing is not None:
        steps = preprocessing.steps
        columns, filled, read = steps.sources(wanted), steps.filled(wanted), steps.read(wanted)
        # Data that came with masks of its own told the steps which rows were null; so do later rows.
        filled += [mask.removesuffix("_mask") for mask in masks_of(policies.schema, read)]
    if not is_frame(data):
        data = _named_arrays(data, columns, policies)
    check_labels([data], labels)
    check_labels([data], [] if weight is None else [weight], "weight")
    check_filled([data], read)
    source = as_source(data)
    # Rows that were prepared before have masks and lengths already.
    added = {name: base for name, base in policies.added.items() if name not in source.columns}
    needed = list(dict.fromkeys(added.get(name, name) for name in columns))
    check_features(needed, source.columns)
    masks = masks_there(policies, read, source.columns)
    chosen = source.select(list(dict.fromkeys([*needed, *masks])))
    chosen.expected = {name: _as_given(policies, name) for name in needed if name in policies.schema}
    never = {*labels, *([] if weight is None else [weight])}
    given_masks = {*masks, *(f"{name}_mask" for name in policies.masked)}
    numbered, rows = source.numbered and not part, 0
    batches = iter(chosen.batches())
    for batch in batches:
        if (name := _refused(batch, policies, never, filled)) is not None:
            nulls = _nulls(name, itertools.chain([batch], batches), rows, numbered)
            nulls = replace(nulls, among=part)
            if name in never:
                raise null_label(name, nulls, "label" if name in labels else "weight")
            raise null_feature(name, nulls, policies)
        batch = {
            name: as_expected(data, chosen.expected[name]) if name in chosen.expected else data
            for name, data in batch.items()
        }
        if not isinstance(data, BaseDataset):  # which holds times as nanoseconds, as in training
            _check_times(batch, policies)
            batch |= {mask: _given_mask(batch[mask], batch) for mask in batch if mask in given_masks}
        _check_texts(batch, policies)
        batch = {name: _numbers_as_trained(data, policies, read) for name, data in batch.items()}
        arrays = {name: _column(name, batch, policies, never) for name in columns}
        count = len(arrays[columns[0]])
        if preprocessing is not None:
            missing = {
                f"{name}_mask": data.missing for name, data in batch.items() if data.missing is not None
            }
            # Where training had a mask there is one, so that NaN counts as missing, which it then does.
            none = dict.fromkeys(masks_of(policies.schema, read), np.zeros(count, bool))
            prepared = {mask: batch[mask].as_batch() for mask in masks}
            arrays = preprocessing.apply_to_arrays({**none, **missing, **prepared, **arrays})
            arrays = {name: arrays[name] for name in wanted}
        rows += count
        for start in range(0, count, batch_size):
            yield {name: _own(values[start : start + batch_size]) for name, values in arrays.items()}
    if not rows:
        raise DataError("the data has no rows; a model needs at least one.")


def masks_there(policies: Policies, names: Iterable[str], there: Collection[str]) -> list[str]:
    """The masks of these columns that rows have already, as rows that were prepared before do."""
    return [mask for mask in masks_of(policies.schema, names) if mask in there]


def _own(values: npt.NDArray[Any] | Ragged) -> npt.NDArray[Any] | Ragged:
    """Lists as a transform may change them, or share their memory with a tensor: Arrow's own is read-only."""
    if isinstance(values, Ragged) and not values.values.flags.writeable:
        return Ragged(values.values.copy(), values.offsets)
    return values


def _named_arrays(data: Any, columns: Sequence[str], policies: Policies) -> Any:
    """A dict of the arrays by the columns that they stand for; of a Series, a frame."""
    names = policies.sources(columns)
    if len(names) == 1 and _is_series(data):
        return data.to_frame(names[0])
    if isinstance(data, tuple) and len(data) == len(columns):
        names = list(columns)
    given = data if isinstance(data, tuple | list) and len(names) > 1 else (data,)
    if len(given) != len(names):
        raise DataError(
            f"{len(given)} arrays were given for the columns {names}; give one array per column, in "
            "this order, or a dict of arrays."
        )
    if len(names) == 1 and isinstance(data, tuple) and len(data) == 1:
        given = data
    return {
        name: array if _is_list(policies, name) and isinstance(array, list) else _array(array)
        for name, array in zip(names, given, strict=True)
    }


def _is_list(policies: Policies, name: str) -> bool:
    """Whether rows of the column may have different lengths."""
    return name in policies.padded or policies.schema[name].kind == "ragged"


def _given_mask(mask: ColumnData, batch: Mapping[str, ColumnData]) -> ColumnData:
    """A mask that rows came with: a row is null where it says so, or where the column itself is null."""
    name = mask.name.removesuffix("_mask")
    if mask.column.dtype != "bool" or mask.column.shape or mask.missing is not None:
        raise DataError(
            f"Column {mask.name!r} is {mask.column.dtype}, but must be bools without nulls: it says which rows of "
            f"{name!r} are null. Give such ones, or leave it out, and it is made of the nulls."
        )
    nulls = batch[name].missing if name in batch else None
    assert isinstance(mask.values, np.ndarray)
    return mask if nulls is None else replace(mask, values=mask.values | nulls)


def _check_times(batch: Mapping[str, ColumnData], policies: Policies) -> None:
    """Raise DataError if numbers stand where training had times: nobody knows their unit."""
    for name in sorted(policies.times & batch.keys()):
        found = batch[name]
        if not found.times and (found.missing is None or not found.missing.all()) and found.kind == "tensor":
            raise DataError(
                f"Column {name!r} holds numbers ({found.column.dtype}), but held dates, times or durations in "
                "training, which a model gets as nanoseconds (of dates, since 1970). Give them as such; of numbers say "
                f"the unit, for example pandas.to_datetime(frame[{name!r}], unit='us') if they are microseconds."
            )
    for name, found in batch.items():
        if not found.times or name not in policies.schema:
            continue
        known = policies.schema[name]
        if known.kind == "tensor" and known.dtype != "int64":
            raise DataError(
                f"Column {name!r} holds dates, times or durations, but held numbers ({known.dtype}) in training. Give "
                f"numbers of the same unit, for example frame[{name!r}].dt.total_seconds() in pandas."
            )


def _numbers_as_trained(data: ColumnData, policies: Policies, read: Collection[str]) -> ColumnData:
    """A column of integers or floats in the dtype that it had in training, as far as its values are of that dtype;
    steps take any.

    Raises:
        DataError: it held integers, and a value is no whole number, of which a framework may cut off the rest.
    """
    name, given = data.name, data.column.dtype
    wanted = policies.schema[name].dtype if name in policies.schema and name not in read else given
    if (
        given == wanted
        or {given, wanted} <= _FLOATS
        or not {given, wanted} <= _INTEGERS | _FLOATS
        or data.length is not None
    ):
        return data
    values = data.values.values if isinstance(data.values, Ragged) else data.values
    if data.missing is not None and values is data.values:
        values = np.where(data.missing.reshape(-1, *[1] * (values.ndim - 1)), 0, values)
    if wanted in _INTEGERS:
        # As powers of two, which float64 holds: the largest int64 itself it does not.
        low, beyond = np.float64(np.iinfo(wanted).min), np.float64(np.iinfo(wanted).max + 1)
        whole = (np.floor(values) == values) & (values >= low) & (values < beyond)
        if not whole.all():
            if given in _INTEGERS:
                return data
            raise DataError(
                f"Column {name!r} holds {values[~whole].flat[0]:g} ({given}), but held {wanted} in training. Give "
                "whole numbers in that range."
            )
    numbers = values.astype(wanted)
    return replace(
        data, values=Ragged(numbers, data.values.offsets) if isinstance(data.values, Ragged) else numbers
    )


def _check_texts(batch: Mapping[str, ColumnData], policies: Policies) -> None:
    """Raise DataError if texts stand where training had numbers or times."""
    for name, found in batch.items():
        if found.kind != "string" or name not in policies.schema or policies.schema[name].kind != "tensor":
            continue
        if found.missing is not None and found.missing.all():
            continue
        held, how = f"numbers ({policies.schema[name].dtype})", f"frame[{name!r}].astype(...) in pandas"
        if name in policies.times:
            held, how = "dates, times or durations", f"pandas.to_datetime(frame[{name!r}])"
        raise DataError(
            f"Column {name!r} holds texts, but held {held} in training. Give it as it was there, for example by {how}."
        )


def _as_given(policies: Policies, name: str) -> Column:
    """A column of the training data as it was before these policies."""
    column = policies.schema[name]
    return replace(column, kind="ragged", shape=column.shape[1:]) if name in policies.padded else column


def _refused(
    batch: Mapping[str, ColumnData], policies: Policies, labels: Collection[str], filled: Collection[str]
) -> str | None:
    """A column with rows that are null, but were not in training. ``filled``: columns whose nulls get a value."""
    found = [name for name, data in batch.items() if data.missing is not None and name not in filled]
    of_labels = [name for name in found if name in labels]
    if of_labels or policies.nulls == "fill":
        return next(iter(of_labels), None)
    return next((name for name in found if policies.nulls == "error" or name not in policies.masked), None)


def _nulls(name: str, batches: Iterable[Mapping[str, ColumnData]], before: int, numbered: bool) -> Nulls:
    """Nulls of a column in all of the batches; the first batch has some. ``before``: rows before the batches."""
    nulls = Nulls.of((batch[name].missing for batch in batches), numbered)
    return replace(nulls, first=[before + row for row in nulls.first])


def _column(
    name: str, batch: Mapping[str, ColumnData], policies: Policies, labels: Collection[str]
) -> npt.NDArray[Any] | Ragged:
    """A column as it was in training. What a loss takes for ``labels``, it says itself.

    Raises:
        DataError: rows are no lists, or of lengths that training would have refused.
    """
    if name not in batch:
        data = batch[policies.added[name]]
        if name.removesuffix("_mask") == data.name:
            return np.zeros(len(data), bool) if data.missing is None else data.missing
        _check_lists(data)
        lists = as_ragged(data).values
        assert isinstance(lists, Ragged)
        return lists.lengths
    data, column = batch[name], policies.schema[name]
    is_list = isinstance(data.values, Ragged) and data.kind == "ragged"
    is_vector = name not in labels and _are_vectors(data, column)
    if _is_list(policies, name) or is_vector:
        _check_lists(data)
        _check_nesting(data, column.shape if column.kind == "ragged" else column.shape[1:])
    if column.kind == "ragged" and data.kind == "tensor":
        return as_ragged(data).as_batch()
    # Lists that all have one length come as a tensor, which may be narrower than in training.
    narrow = name in policies.padded and isinstance(data.values, np.ndarray) and data.values.ndim > 1
    another = is_vector and data.column.shape != column.shape
    if column.kind != "tensor" or not column.shape or not (is_list or narrow or another):
        return data.as_batch()
    lists = as_ragged(data).values
    assert isinstance(lists, Ragged)
    longest, length = int(lists.lengths.max(initial=0)), column.shape[0]
    if name not in policies.padded:
        shortest = int(lists.lengths.min(initial=longest))
        given = f"{shortest} to {longest} values" if shortest < longest else counted(longest, "value")
        raise DataError(
            f"column {name!r} has rows of {given}, but all that the model was trained on have {length}. Give rows of "
            "that length, or train with ragged='pad' or ragged='keep' on rows of several."
        )
    if longest > length:
        raise DataError(
            f"column {name!r} has a row of {longest} values, but those that the model was trained on have at "
            f"most {length}, to which they were padded. Shorten the row, or train on rows as long."
        )
    return pad(lists, length)


def _are_vectors(data: ColumnData, column: Column) -> bool:
    """Whether the rows must be vectors as long as those of ``column``, which was trained on.

    Larger images and longer sequences of vectors are left to the model, since many take any size, and so are single
    values for vectors of one.
    """
    if column.kind != "tensor" or len(column.shape) != 1 or (column.shape == (1,) and not data.column.shape):
        return False
    return data.kind in ("tensor", "ragged") and data.length is None


def _check_lists(data: ColumnData) -> None:
    """Raise DataError unless the rows are lists."""
    if not holds_lists(data.column):
        raise DataError(
            f"column {data.name!r} has one value in each of its {len(data)} rows ({data.column}), but the model was "
            "trained on rows that are lists. Give a list for each row; a single row x as [x]."
        )


def _check_nesting(data: ColumnData, shape: tuple[int, ...]) -> None:
    """Raise DataError unless each value of the lists has the shape that it had in training."""
    lists = as_ragged(data).values
    assert isinstance(lists, Ragged)
    given = lists.values.shape[1:]
    if given != shape and len(lists.values):
        raise DataError(
            f"column {data.name!r} has lists of {_values(given)}, but those that the model was trained on are lists of "
            f"{_values(shape)}. Give rows as in training; a single row x as [x]."
        )


def _values(shape: tuple[int, ...]) -> str:
    return f"arrays of shape {shape}" if shape else "single values"


def check_features(columns: Sequence[str], there: Sequence[str]) -> None:
    """Raise ColumnError if the data, whose columns ``there`` names, lacks one that the model needs."""
    missing = [name for name in columns if name not in there]
    if missing:
        raise ColumnError(
            f"the data lacks the columns {missing}{nearest(missing[0], there, '.')} "
            f"It has {list(there)}; the model needs {list(columns)}."
        )


def outputs_of(
    predict: Callable[[Arrays], npt.NDArray[Any] | Outputs],
    columns: Sequence[str],
    data: Any,
    policies: Policies,
    preprocessing: FittedSteps | None = None,
    part: str = "",
) -> Outputs:
    """Outputs of ``predict`` for all rows of ``data``: one array of shape (n, ...) per output.

    Args:
        policies, preprocessing: of the data that the model was trained on.
        part: see ``feature_batches``.

    Raises:
        ColumnError: ``data`` lacks one of ``columns``. DataError: it has no rows, or they are not what it takes.
    """
    parts = []
    batches = feature_batches(
        data, columns, PREDICTION_BATCH, policies, preprocessing=preprocessing, part=part
    )
    for batch in batches:
        outputs = predict(batch)
        parts.append(outputs if isinstance(outputs, tuple) else (outputs,))
        _check_rows(parts[-1], len(batch[columns[0]]))
    return tuple(map(joined_outputs, zip(*parts, strict=True)))


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
    kind = "Series" if _is_series(data) else kind_of(data)
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
        rows = len(next(iter(columns.values())))
        for name, values in data.items():
            if hasattr(values, "__len__") and len(values) != rows:
                raise DataError(
                    f"Column {name!r} has {len(values)} rows, but the columns of the model's inputs have {rows}. Give "
                    "as many of each, or leave it out."
                )
        return {**data, **columns}
    if is_records(data):
        lists = [column.tolist() for column in columns.values()]
        return [
            {**row, **dict(zip(columns, of_row, strict=True))}
            for row, *of_row in zip(data, *lists, strict=True)
        ]
    raise DataError(
        f"transform was given {type(data).__name__}; it takes a dict of arrays, a list of dicts, a pandas or polars "
        "DataFrame or a pyarrow Table, or a frame of Spark, Ray Data or Dask, because it returns the same kind. For "
        "arrays and Series use predict(x)."
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
    """The columns of a frame or a dict of arrays; none for other data."""
    if isinstance(data, Mapping):
        return list(data)
    if is_records(data):
        return list(data[0])
    kind = kind_of(data)
    if kind == "pyarrow":
        return list(data.column_names)
    return list(data.columns() if kind == "ray" else getattr(data, "columns", ()))


def kind_of(data: Any) -> str:
    """The package that an object's class comes from."""
    return type(data).__module__.partition(".")[0]


def is_frame(data: Any) -> bool:
    """Whether the data names its columns, in contrast to bare arrays."""
    return not isinstance(data, Ragged | pa.Array | pa.ChunkedArray) and (
        (kind_of(data) in _FRAMES and not _is_series(data))
        or isinstance(data, Mapping | str)
        or hasattr(data, "__fspath__")
        or is_records(data)
        or isinstance(data, Iterator)
    )


def _is_series(data: Any) -> bool:
    return kind_of(data) in ("pandas", "polars") and type(data).__name__ == "Series"


def is_records(data: Any) -> bool:
    """Whether the data is a list of rows that are dicts."""
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(row, Mapping) for row in data)


def _array(value: Any) -> Any:
    """``value`` as an array, if it can be one; rows of different lengths, or with masks, as they are."""
    if isinstance(value, Ragged | pa.Array | pa.ChunkedArray | np.ma.MaskedArray):
        return value
    if isinstance(value, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in value):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except ValueError:
        return value


def _squeezed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _cells(values: npt.NDArray[Any]) -> Any:
    return values if values.ndim == 1 else list(values)
