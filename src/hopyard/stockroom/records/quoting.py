"""Texts that can be stored; and any text as one segment of a store's name: what stores refuse is written ``=XX``, as
URLs have ``%XX``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from hopyard.errors import UsageError
from hopyard.wording import shown

_PLAIN = "+@,"  # besides letters, digits and _ . -


def quoted(text: str) -> str:
    """``text`` as a segment; different texts give different ones. Its length is for the caller to check.

    Raises:
        UsageError: it holds half of a surrogate pair that stands for no byte.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the name {text!r} has half of a surrogate pair at character {error.start}, which is no text that can be "
            "stored. Use another name."
        ) from None
    name = quote(data, safe=_PLAIN).replace("~", "%7E").replace("%", "=")
    return "=2E" + name[1:] if name.startswith(".") else name


def check_text(text: Any, what: str) -> str:
    """``text``, if it is a text that can be written as UTF-8; ``what`` begins the error, as "the message".

    Raises:
        UsageError: it is none.
    """
    if not isinstance(text, str):
        raise UsageError(f"{what} was given as {shown(text)} of type {type(text).__name__}. Give a text.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} {text!r:.80} has half of a surrogate pair at character {error.start}, which is no text that can "
            "be stored. Leave it out."
        ) from None
    return text


def check_texts(texts: Any, what: str) -> list[str]:
    """``texts``, if they are several that can be written as UTF-8; ``what`` begins the error, as "the tags".

    Raises:
        UsageError: they are one text, or none.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(
            f"{what} were given as {shown(texts)} of type {type(texts).__name__}. Give a list of texts."
        )
    return [check_text(text, f"one of {what}") for text in texts]


def unquoted(segment: str) -> str:
    """The text that ``quoted`` gave ``segment`` for."""
    return unquote_to_bytes(segment.replace("=", "%")).decode("utf-8", "surrogateescape")
