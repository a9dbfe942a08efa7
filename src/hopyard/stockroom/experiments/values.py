"""Plain values: what an experiment's settings and results are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hopyard.errors import DataError
from hopyard.objects import flatten, unflatten
from hopyard.stockroom.packfiles import PackfileWriter
from hopyard.stockroom.records import ValueRecord
from hopyard.stockroom.records.frozen import FrozenList
from hopyard.stockroom.views.view import ObjectReader

INLINE = 4096  # bytes of JSON; larger values are objects of their own, so that pages stay small


def plain(value: Any, what: str) -> Any:
    """``value`` with NumPy's scalars as Python's; ``what`` names it in errors.

    Raises:
        DataError: something in it is no plain value; says what, where, and what to do.
    """
    try:
        result = _plain(value, what, "")
        flatten(result)  # looks at the keys
        return result
    except RecursionError:
        raise DataError(
            f"{what} holds a container that holds itself, or is nested too deep. Take the loop out."
        ) from None


def _plain(value: Any, what: str, place: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list or kind is tuple or kind is FrozenList:
        plain_kind = tuple if kind is tuple else list
        return plain_kind(_plain(item, what, f"{place}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Mapping):
        return {_key(key): _plain(item, what, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":  # times, whose item may be an int
        item = value.item()
        if type(item) in (bool, int, float, str):
            return item
    raise DataError(f"{what}{place} is a {kind.__module__}.{kind.__qualname__}, {_advice(value)}")


def _key(key: Any) -> Any:
    is_plain = isinstance(key, np.integer | np.str_) and not isinstance(key, np.timedelta64)
    return key.item() if is_plain else key


def _advice(value: Any) -> str:
    rule = "but values are int, float, bool, str, None, and lists, tuples and dicts of them."
    if hasattr(value, "__array__") and getattr(value, "ndim", None) == 0:
        return f"{rule} Use its .item()."
    if hasattr(value, "__array__"):
        return f"{rule} Arrays and tensors go to stock.model or stock.data, or convert it with .tolist()."
    if isinstance(value, bytes | bytearray):
        return f"{rule} Bytes go to stock.data, or to a file that a run logs as an artifact."
    return f"{rule} Convert it, for example with str(...)."


def encode(value: Any) -> Any:
    """A plain value as JSON, as ``objects.tree`` writes what JSON lacks."""
    return flatten(value)[1]


def decode(skeleton: Any) -> Any:
    """The plain value that ``encode`` was given."""
    return unflatten({}, skeleton)


def write(writer: PackfileWriter, value: Any) -> ValueRecord:
    """The record of a plain value; a large one is added as an object."""
    skeleton = encode(value)
    is_small = len(json.dumps(skeleton)) <= INLINE
    return ValueRecord(skeleton if is_small else {"json": writer.add_json(skeleton)})


def read(objects: ObjectReader, record: ValueRecord) -> Any:
    """The plain value of a record."""
    digest = _object(record)
    return decode(record.value if digest is None else objects.json(digest))


def reached_of_value(record: ValueRecord) -> list[str]:
    """The digests of all objects that reading it needs."""
    digest = _object(record)
    return [] if digest is None else [digest]


def _object(record: ValueRecord) -> str | None:
    value = record.value
    return value["json"] if isinstance(value, dict) and value.keys() == {"json"} else None
