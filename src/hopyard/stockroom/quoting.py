"""Any text as one segment of a store's name: what stores refuse is written ``=XX``, as URLs have ``%XX``."""

from __future__ import annotations

from urllib.parse import quote, unquote_to_bytes

_PLAIN = "+@,"  # besides letters, digits and _ . -


def quoted(text: str) -> str:
    """``text`` as a segment; different texts give different ones. Its length is for the caller to check."""
    name = quote(text.encode("utf-8", "surrogateescape"), safe=_PLAIN).replace("~", "%7E").replace("%", "=")
    return "=2E" + name[1:] if name.startswith(".") else name


def unquoted(segment: str) -> str:
    """The text that ``quoted`` gave ``segment`` for."""
    return unquote_to_bytes(segment.replace("=", "%")).decode("utf-8", "surrogateescape")
