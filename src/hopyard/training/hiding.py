"""Advice on a model that changes something in training that the model's state cannot hold."""

from __future__ import annotations

import logging
from collections.abc import Sequence

_log = logging.getLogger("hopyard")
_said: set[str] = set()
"""What this process has spoken of."""
_MOST = 5


def hidden_advice(names: Sequence[str]) -> str:
    """Advice on hidden state of these names; empty if there is none, or all were named before in this process."""
    new = [name for name in names if name not in _said]
    if not new:
        return ""
    _said.update(new)
    listed = ", ".join(new[:_MOST]) + (f" and {len(new) - _MOST} more" if len(new) > _MOST else "")
    return (
        f"Training changes {listed}, which no state of a trial holds: a trial hops from worker to worker, and there it "
        "is as the estimator function made it. What travels are weights, buffers, the optimizer, and attributes that "
        "are numbers, strings, None, or lists, tuples and dicts of these. If results depend on it, register a buffer "
        "(self.register_buffer) or keep a number; if it only serves as a cache, all is well."
    )


def say_hidden_state(names: Sequence[str]) -> None:
    """Warn of hidden state of these names, each once in a process."""
    if advice := hidden_advice(names):
        _log.warning(advice)
