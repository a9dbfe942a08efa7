"""Rows that are lists and dicts of anything, such as chats, as texts of JSON, which are columns of a dataset.

The text is the same whatever the rows came in: keys are sorted, and those without a value left out, since rows of Arrow
have the keys of all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np

from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.convert import from_rows
from hopyard.errors import UnsupportedTypeError

T = TypeVar("T")


def json_texts(
    convert: Callable[[str, T], ColumnData], names: Collection[str]
) -> Callable[[str, T], ColumnData]:
    """``convert``, but of these columns every row as the text of its JSON. Rows that are texts stay as they are, and
    null rows null."""

    def converted(name: str, values: T) -> ColumnData:
        return _from_objects(name, values) if name in names else convert(name, values)

    return converted if names else convert


def _from_objects(name: str, values: Any) -> ColumnData:
    for listed in ("to_pylist", "to_list", "tolist"):  # of Arrow; of pandas and polars; of NumPy
        if hasattr(values, listed):
            values = getattr(values, listed)()
            break
    try:
        texts = [_text(row) for row in values]
    except (TypeError, ValueError) as error:
        raise UnsupportedTypeError(f"{name} (objects: {error})") from error
    return from_rows(name, texts)


def _text(row: Any) -> str | None:
    if row is None or isinstance(row, str) or (isinstance(row, float) and row != row):
        return row if isinstance(row, str) else None
    return json.dumps(_plain(row), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _plain(value.tolist()) if isinstance(value, np.ndarray | np.generic) else value
