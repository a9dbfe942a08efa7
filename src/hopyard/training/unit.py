"""Run one unit: the only function of this room that the hopper submits to workers."""

from __future__ import annotations

from hopyard.training.request import UnitRequest, UnitResult


def run_unit(request: UnitRequest) -> UnitResult:
    """Train or validate the pack's trials on one partition."""
    raise NotImplementedError
