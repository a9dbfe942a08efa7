"""Numbers of things in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 sample``, ``2,000 samples``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    """The verb that follows so many things."""
    return "is" if count == 1 else "are"
