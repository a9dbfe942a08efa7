"""Parameters of requests, checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request

from hopyard.errors import UsageError

_LARGEST_BODY = 64 * 1024


class _Number(Convertor[int]):
    """A number of a store or a trial in an address: Starlette's own takes any number of digits, and Python does not."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


def number(request: Request, name: str, default: float | None) -> float | None:
    """A finite number of the query."""
    given = request.query_params.get(name)
    if given is None:
        return default
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UsageError(f"{name} is {given!r}, which is no finite number. Give one, such as {name}=1.5.")
    return found


def whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query, within bounds."""
    given = request.query_params.get(name)
    if given is None:
        return default
    try:
        found = int(given)
    except ValueError:
        found = low - 1
    if not low <= found <= high:
        raise UsageError(f"{name} is {given!r}; give a whole number from {low} to {high}.")
    return found


async def body(request: Request) -> Mapping[str, Any]:
    """The JSON object that was sent."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _LARGEST_BODY:
            raise UsageError(
                f"more than {_LARGEST_BODY} bytes were sent; a command is a small JSON object. Send that."
            )
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError('what was sent is no JSON object. Send one, such as {"do": "pause"}.')
    return found
