"""Failures of packs, of which the members are computed one by one instead, in words."""

from __future__ import annotations

import logging

_log = logging.getLogger("hopyard")
_said: set[str] = set()
"""What this process has spoken of."""


def described(error: BaseException) -> str:
    """Kind of an exception, and the first line of its message."""
    said = str(error).partition("\n")[0][:120]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def say_fallback(failed: str, error: BaseException) -> None:
    """Warn that members are computed one by one as something has ``failed``, each time of the same kind once in a
    process.
    """
    text = f"{failed} ({described(error)}). They are computed one by one instead, with the same results."
    if text not in _said:
        _said.add(text)
        _log.warning(text, exc_info=error)
