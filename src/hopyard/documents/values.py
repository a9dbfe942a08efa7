"""JSON of values: what a document holds, as JSON has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any


def to_json(value: object) -> Any:
    """``value`` as JSON has it.

    Dataclasses are objects of their public fields, enumerations their values, paths texts, sets sorted arrays; times
    are ISO 8601 in UTC with whole seconds (``2026-01-31T10:00:00Z``; one without a zone is of this machine's), spans
    of time are seconds; scalars and arrays of numpy are numbers and arrays. JSON lacks NaN and infinities: they are
    null.

    Raises:
        TypeError: a value is of another type.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, Set):
        return [to_json(each) for each in sorted(value)]
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        named = [each.name for each in fields(value) if not each.name.startswith("_")]
        return {name: to_json(getattr(value, name)) for name in named}
    return _scalar_to_json(value)


def _scalar_to_json(value: object) -> Any:
    match value:
        case Enum():
            return to_json(value.value)
        case PurePath():
            return str(value)
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    raise TypeError(
        f"{type(value).__name__} has no form in JSON that to_json knows. Give it a value of those that it names."
    )
