"""Checked arguments of loaders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import pyarrow as pa

from hopyard.checks import choice
from hopyard.data.reading.strings import LARGE
from hopyard.data.reading.views import Batch, Wanted, columns_of
from hopyard.data.schema import Schema
from hopyard.errors import ColumnError, UsageError
from hopyard.missing import missing_extra

Output: TypeAlias = Literal["numpy", "torch", "jax"]
Strings: TypeAlias = Literal["objects", "arrow"]
Remainder: TypeAlias = Literal["drop", "repeat", "error"]
Tail: TypeAlias = Literal["short", "join", "drop"]
ColumnSelection: TypeAlias = Sequence[str] | Mapping[str, str | Sequence[str]]
Transform: TypeAlias = Callable[[Any, np.random.Generator], Any]


def checked_views(views: bool, output: Output, shuffle: bool) -> bool:
    if views and output != "numpy":
        raise UsageError(
            f"views=True and output={output!r} were given. Views of the files are read-only, which {output} does "
            "not know: an operation in place would write to a file's mapping and kill the process. Use views=True "
            "with output='numpy', or leave it out."
        )
    if views and shuffle:
        raise UsageError(
            "views=True and shuffle=True were given, but shuffled rows do not lie side by side in the files. "
            "Leave one of them out."
        )
    return bool(views)


def wanted_of(schema: Schema, columns: ColumnSelection | None) -> Wanted:
    """Checked columns of a batch, by their names there.

    Raises:
        ColumnError: a column is unknown, or columns are asked for side by side that cannot be.
    """
    if columns is None:
        return {name: name for name in schema.names}
    if not isinstance(columns, Mapping):
        return {name: name for name in schema.select(columns).names}
    wanted = {name: its if isinstance(its, str) else tuple(its) for name, its in columns.items()}
    schema.select(columns_of(wanted))
    for name, its in wanted.items():
        if isinstance(its, str):
            continue
        side_by_side = [schema[column] for column in its]
        kinds = {(column.kind, column.dtype, column.shape) for column in side_by_side}
        if len(kinds) != 1 or side_by_side[0].width is None or side_by_side[0].shape:
            raise ColumnError(
                f"columns={{{name!r}: [...]}} asks for {', '.join(map(str, side_by_side)) or 'no columns'} side by "
                "side, but only scalar columns of one dtype can be. Ask for the others under names of their own."
            )
    return wanted


def arrow_types(strings: Strings, schema: Schema, wanted: Wanted) -> dict[str, pa.DataType]:
    """The Arrow type of each entry of a batch that shall be an Arrow array.

    Raises:
        UsageError: ``strings`` is no form of strings.
        ColumnError: a column has several in a row, as windows have.
    """
    if choice("strings", strings, get_args(Strings)) == "objects":
        return {}
    types = {}
    for name, its in wanted.items():
        column = schema[its if isinstance(its, str) else its[0]]
        if column.kind not in LARGE:
            continue
        if column.shape:
            raise ColumnError(
                f"strings='arrow' was given, but column {column} has several in a row, and an Arrow array has one "
                "dimension. Leave it out with columns=, or take one row of each window: windows(..., columns="
                f"{{{name!r}: ({name!r}, 0)}})."
            )
        types[name] = LARGE[column.kind]
    return types


def callable_transform(transform: Any) -> Transform | None:
    """The transform, if it can be called with a batch and a generator, as far as its signature tells."""
    if transform is None:
        return None
    try:
        inspect.signature(transform).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"transform={transform!r} cannot be called as transform(batch, rng): {error}. It gets a dict of columns "
            "and a numpy.random.Generator, and gives what the loader yields: write def transform(batch, rng)."
        ) from error
    except ValueError:  # it has no signature that can be read
        pass
    return cast(Transform, transform)


def converter(output: Output) -> Callable[[Batch], Batch]:
    if choice("output", output, get_args(Output)) == "numpy":
        return _as_it_is
    try:
        if output == "torch":
            from hopyard.data.outputs.torch_output import as_tensors as convert
        else:
            from hopyard.data.outputs.jax_output import as_jax as convert
    except ModuleNotFoundError as error:
        raise missing_extra(output, output, f"output={output!r}") from error
    return convert


def _as_it_is(batch: Batch) -> Batch:
    return batch
