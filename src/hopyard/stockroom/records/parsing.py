"""JSON that others may have made: a digest says that it is what somebody wrote, not that Hopyard did.

All others raise ``ValueError`` or ``TypeError``, which a parser turns into an error that names the object.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from hopyard.errors import CorruptError
from hopyard.objects.tensors import ITEM_SIZES

_DIGEST = re.compile("[0-9a-f]{64}")
_MOST = 2**63 - 1


def json_of(data: bytes | str) -> Any:
    """The value that JSON says; ``ValueError`` also for nesting that nothing here can walk through."""
    try:
        return _DECODER.decode(data.decode() if isinstance(data, bytes) else data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def named_json(name: str, data: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """The value of the object of this digest, whose bytes are JSON.

    Raises:
        CorruptError: they are not.
    """
    try:
        return json_of(data.tobytes())
    except ValueError as error:
        raise CorruptError(
            f"the object {name} is no JSON that Hopyard writes ({error}). Run `hopyard stock verify`, which says what "
            "needs it; then bring that from a remote."
        ) from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # json.loads makes one for each call


def digest(value: Any) -> str:
    """An object's digest."""
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise ValueError(f"{_short(value)} is no digest")
    return value


def digest_or_none(value: Any) -> str | None:
    """An object's digest, or None."""
    return None if value is None else digest(value)


def whole(value: Any, least: int = 0, most: int = _MOST) -> int:
    """An int between two, both included."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_short(value)} is no int from {least} to {most}")
    return value


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is no string")
    return value


def one_of(value: Any, *known: Any) -> Any:
    """One of some values."""
    if not isinstance(value, str | bool | None) or value not in known:
        raise ValueError(f"{_short(value)} is none of {', '.join(map(repr, known))}")
    return value


def dtype(value: Any) -> str:
    """A dtype, as safetensors names it, or C128."""
    return str(one_of(value, *ITEM_SIZES))


def shape(value: Any) -> tuple[int, ...]:
    """Lengths of dimensions of an array that memory can address."""
    lengths = tuple(_listed(value))
    size = 1
    for length in lengths:
        size *= whole(length) or 1
        if size >= 1 << 58:
            break
    if len(lengths) > 64 or size >= 1 << 58:
        raise ValueError(f"no array has the shape {_short(value)}")
    return lengths


def varying_shape(value: Any) -> tuple[int | None, ...]:
    """Lengths of dimensions, None for those that vary."""
    known = shape([length for length in _listed(value) if length is not None])
    lengths = iter(known)
    return tuple(None if length is None else next(lengths) for length in value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{_short(value)} is no list")
    return value


def _short(value: Any) -> str:
    if isinstance(value, int) and not -_MOST <= value <= _MOST:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."
