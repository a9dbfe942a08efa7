"""Random search: independent draws, none of them twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hopyard.errors import SpaceError
from hopyard.search.fixed import FixedLength, checked_points, positive
from hopyard.search.points import draw, key_of, points
from hopyard.search.spaces import checked_space

PATIENCE_WITH_REPEATS = 200
"""Draws in a row that may repeat earlier points before the remaining points are taken in order instead."""


class RandomSearcher(FixedLength):
    """``num_models`` different points: those of ``initial_params`` first, then draws with ``seed``.

    A larger ``num_models`` gives the same trials and more. (Bergstra and Bengio, JMLR 13, 2012.)

    Raises:
        SpaceError: the space has fewer than ``num_models`` points, or lacks one of ``initial_params``.
    """

    def __init__(
        self,
        space: Mapping[str, Any],
        num_models: int,
        num_epochs: int,
        seed: int = 0,
        initial_params: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        space = checked_space(space)
        positive("num_models", num_models)
        chosen = {key_of(point): point for point in checked_points(space, initial_params)}
        if len(chosen) > num_models:
            raise SpaceError(
                f"initial_params has {len(chosen)} points, but num_models={num_models} trials are to be "
                "made, "
                f"these included. Write num_models={len(chosen)} or more."
            )
        trials = _draws(space, seed)
        while len(chosen) < num_models:
            point = _next_new(space, trials, chosen)
            if point is None:
                raise SpaceError(
                    f"num_models={num_models}, but the search space has only {len(chosen)} different points. "
                    f"Write num_models={len(chosen)} or less, or give the dimensions more options."
                )
            chosen[key_of(point)] = point
        super().__init__(list(chosen.values()), num_epochs)


def _draws(space: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    trial = 0
    while True:
        yield draw(space, seed, trial)
        trial += 1


def _next_new(
    space: dict[str, Any], draws: Iterator[dict[str, Any]], chosen: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The next draw not chosen yet; where draws keep repeating, the first point that is left, if any."""
    for _ in range(PATIENCE_WITH_REPEATS):
        point = next(draws)
        if key_of(point) not in chosen:
            return point
    return next((point for point in points(space) if key_of(point) not in chosen), None)
