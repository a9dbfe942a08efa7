"""Answers of the dashboard's server: JSON, bytes, events, and errors in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hopyard.documents.values import to_json
from hopyard.errors import (
    ExpiredError,
    HopyardError,
    InvalidNameError,
    NotFoundError,
    StorageError,
    UsageError,
)


def answer(document: Any) -> Response:
    """A JSON document."""
    return Response(encoded(document), media_type="application/json")


def encoded(document: Any) -> bytes:
    """A document as JSON in UTF-8; halves of surrogate pairs, which names of files may have, are escaped."""
    if isinstance(
        document, Mapping
    ):  # value by value, and row by row: a copy of all of them takes much memory
        items = (b"%b:%b" % (_encoded(str(name)), encoded(value)) for name, value in document.items())
        return b"{%b}" % b",".join(items)
    if isinstance(document, list):
        return b"[%b]" % b",".join(map(_encoded, document))
    return _encoded(document)


def _encoded(document: Any) -> bytes:
    text = json.dumps(to_json(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(to_json(document), allow_nan=False, separators=(",", ":")).encode()


def event(name: str, document: Any, number: int | None = None) -> bytes:
    """One server-sent event; JSON has no line breaks that could end it."""
    first = "" if number is None else f"id: {number}\n"
    return f"{first}event: {name}\ndata: ".encode() + encoded(document) + b"\n\n"


async def refused(request: Request, error: Exception) -> Response:
    """An error of Hopyard's, in its own words."""
    return JSONResponse({"error": str(error)}, status_of(error))


def status_of(error: Exception) -> int:
    """The status of HTTP that says what kind of error it is."""
    match error:
        case NotFoundError():
            return 404
        case ExpiredError() | InvalidNameError() | UsageError():
            return 400
        case StorageError() | HopyardError():
            return 503
    return 500
