"""Searches whose trials are known beforehand and all train to the end: what grid and random search share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.errors import SpaceError, UsageError
from hopyard.search.base import Create, Operation, Searcher, Train
from hopyard.search.points import check_point
from hopyard.search.spaces import check_space


class FixedLength(Searcher):
    """One trial for each of ``points``, all begun at once, each for ``num_epochs`` epochs."""

    def __init__(self, points: Sequence[Mapping[str, Any]], num_epochs: int) -> None:
        self.points = points
        self.num_epochs = positive("num_epochs", num_epochs)

    def start(self) -> list[Operation]:
        return [
            operation
            for trial, params in enumerate(self.points)
            for operation in (Create(trial, params), Train(trial, self.num_epochs))
        ]

    def validated(self, trial: int, epoch: int, value: float) -> list[Operation]:
        return []

    def exited(self, trial: int, reason: str) -> list[Operation]:
        return []


def positive(name: str, value: int) -> int:
    """``value`` if it is a whole number of at least 1; ``name`` is how the error calls it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"{name} is {value!r}, but must be a whole number of at least 1. Write {name}=1 or more."
        )
    return value


def checked_points(
    space: Mapping[str, Any], initial_params: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The points that a user wants tried first, copied. Raises SpaceError for one outside the space."""
    if isinstance(initial_params, Mapping) or not isinstance(initial_params, Sequence):
        raise SpaceError(
            f"initial_params is {initial_params!r}, but must be a list of points. "
            "Write initial_params=[{...}] with a dictionary for each."
        )
    copies: list[dict[str, Any]] = []
    for index, given in enumerate(initial_params):
        point = check_space(given, f"initial_params[{index}]")
        try:
            check_point(space, point)
        except SpaceError as error:
            raise SpaceError(f"initial_params[{index}]: {error}") from None
        copies.append(point)
    return copies
