"""Proposers that learn nothing: a list, a grid, random draws, a Sobol sequence."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hopyard.checks import integer
from hopyard.errors import SpaceError
from hopyard.missing import missing_extra
from hopyard.search.base import Proposer
from hopyard.search.points import (
    Path,
    checked_points,
    dimensions,
    distinct,
    draw,
    grid,
    key_of,
    num_points,
    point_at,
    points,
)
from hopyard.search.spaces import checked_space
from hopyard.wording import counted

PATIENCE_WITH_REPEATS = 200
"""Draws in a row that may repeat earlier points before the remaining points are taken in order instead."""

MOST_SOBOL_DIMENSIONS = 21_201
SOBOL_BLOCK = 64
"""Points made at once: the same ones, sooner."""


class ListPoints(Proposer):
    """The given points, in order."""

    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        self._points = [dict(point) for point in points]

    def __len__(self) -> int:
        return len(self._points)

    def propose(self, trial: int) -> dict[str, Any] | None:
        return self._points[trial] if trial < len(self._points) else None

    def check(self, num_models: int) -> None:
        if num_models > len(self._points):
            raise _too_few(num_models, len(self._points))


class GridPoints(ListPoints):
    """Every point of a discrete space once, those of ``initial_params`` first.

    Raises:
        SpaceError: the space is not discrete or too large, or a point of ``initial_params`` is not in it.
    """

    def __init__(self, space: Mapping[str, Any], initial_params: Sequence[Mapping[str, Any]] = ()) -> None:
        space = checked_space(space)
        super().__init__(distinct([*checked_points(space, initial_params), *grid(space)]))


class DifferentPoints(Proposer):
    """Different points of a space, those of ``initial_params`` first: base of proposers that make points up.

    Raises:
        SpaceError: a point of ``initial_params`` is not in the space.
    """

    def __init__(self, space: Mapping[str, Any], initial_params: Sequence[Mapping[str, Any]] = ()) -> None:
        self.space: dict[str, Any] = checked_space(space)
        self._initial = checked_points(self.space, initial_params)
        self._seen = {key_of(point) for point in self._initial}
        self._most = _num_points_or_none(self.space)

    def check(self, num_models: int) -> None:
        num_models = integer("num_models", num_models, 1)
        if len(self._initial) > num_models:
            raise SpaceError(
                f"initial_params has {len(self._initial)} points, but num_models={num_models} trials are to be "
                f"made, these included. Write num_models={len(self._initial)} or more."
            )
        if self._most is not None:
            different: set[str] = set()
            for point in points(self.space):
                different.add(key_of(point))
                if len(different) >= num_models:
                    return
            raise _too_few(num_models, len(different))


class DrawnPoints(DifferentPoints):
    """Draws that repeat none: point k does not depend on how many are proposed."""

    def __init__(self, space: Mapping[str, Any], initial_params: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(space, initial_params)
        self._draws = 0
        self._rest: Iterator[dict[str, Any]] | None = None

    @abstractmethod
    def drawn(self, number: int) -> dict[str, Any]:
        """Draw number 0, 1, 2, ..., asked for in this order; it may repeat a point."""

    def propose(self, trial: int) -> dict[str, Any] | None:
        if trial < len(self._initial):
            return self._initial[trial]
        point = self._next()
        if point is not None:
            self._seen.add(key_of(point))
        return point

    def _next(self) -> dict[str, Any] | None:
        """The next draw that is new; once draws keep repeating, the points that are left, in order, if any."""
        for _ in range(PATIENCE_WITH_REPEATS if self._rest is None else 0):
            point = self.drawn(self._draws)
            self._draws += 1
            if key_of(point) not in self._seen:
                return point
        if self._rest is None:
            self._rest = points(self.space) if self._most is not None else iter(())
        return next((point for point in self._rest if key_of(point) not in self._seen), None)


class RandomPoints(DrawnPoints):
    """Different random draws with ``seed``, those of ``initial_params`` first.

    (Bergstra and Bengio, JMLR 13, 2012.)
    """

    def __init__(
        self, space: Mapping[str, Any], seed: int = 0, initial_params: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(space, initial_params)
        self._seed = seed

    def drawn(self, number: int) -> dict[str, Any]:
        return draw(self.space, self._seed, number)


class QuasiRandomPoints(DrawnPoints):
    """Points that fill the space evenly: a Sobol sequence scrambled by ``seed``, ``initial_params`` first.

    Every dimension of every option has its own coordinate, so conditional spaces are filled evenly too.
    (Sobol 1967; Owen, J. Complexity 14, 1998; direction numbers of Joe and Kuo 2008, from SciPy.)

    Raises:
        SpaceError: also for a space of more than 21,201 dimensions.
        MissingExtraError: SciPy is not installed.
    """

    def __init__(
        self, space: Mapping[str, Any], seed: int = 0, initial_params: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(space, initial_params)
        self._coordinate = {path: index for index, path in enumerate(dimensions(self.space))}
        self._rows = _sobol(len(self._coordinate), seed)

    def drawn(self, number: int) -> dict[str, Any]:
        row = next(self._rows)

        def bits(path: Path) -> int:
            return int(row[self._coordinate[path]] * 2**53)

        return point_at(self.space, bits)


def _sobol(num_dimensions: int, seed: int) -> Iterator[list[float]]:
    """One point of [0, 1)**n after the other."""
    if num_dimensions > MOST_SOBOL_DIMENSIONS:
        raise SpaceError(
            f"the search space has {num_dimensions:,} dimensions, but a Sobol sequence has at most "
            f"{MOST_SOBOL_DIMENSIONS:,}. Use RandomSearch."
        )
    try:
        from scipy.stats import qmc
    except ImportError:
        raise missing_extra("scipy", "search", "quasi-random search") from None
    digest = hashlib.blake2b(json.dumps(["sobol", seed]).encode(), digest_size=8).digest()
    sequence = qmc.Sobol(max(num_dimensions, 1), scramble=True, rng=int.from_bytes(digest))
    blocks = iter(lambda: sequence.random(SOBOL_BLOCK).tolist(), None)
    return (row for block in blocks for row in block)


def _num_points_or_none(space: dict[str, Any]) -> int | None:
    """Number of points that the space has at most (options may share some); None if a dimension is continuous."""
    try:
        return num_points(space)
    except SpaceError:
        return None


def _too_few(num_models: int, different: int) -> SpaceError:
    return SpaceError(
        f"num_models={num_models}, but the search space has only {counted(different, 'different point')}. "
        f"Write num_models={different} or less, or give the dimensions more options."
    )
