"""Numbers of things, and durations, in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 sample``, ``2,000 samples``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    """The verb that follows so many things."""
    return "is" if count == 1 else "are"


def describe_seconds(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
