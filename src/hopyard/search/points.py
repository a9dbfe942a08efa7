"""Points of a space: drawn at random, enumerated, or given by a user and checked.

A draw is a pure function of (seed, path of the dimension, trial): each dimension has its own stream, so no
two are correlated, adding one leaves the others as they are, and trial k's point does not depend on how many
are drawn.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from hopyard.errors import SpaceError
from hopyard.search.spaces import (
    Choice,
    Continuous,
    PathStep,
    Quantized,
    check_space,
    checked_space,
    name_of,
    power_of_ten,
)
from hopyard.wording import listed, nearest

Path: TypeAlias = tuple[PathStep, ...]
"""Where a dimension lies in its space."""

LARGEST_GRID = 100_000


def draw(space: Mapping[str, Any], seed: int, trial: int) -> dict[str, Any]:
    """The point of trial number ``trial``: a new dictionary in the shape of ``space``."""
    return point_at(space, lambda path: _bits(seed, path, trial))


def point_at(space: Mapping[str, Any], bits: Callable[[Path], int]) -> dict[str, Any]:
    """The point of a space at given coordinates: ``bits(path)`` is a dimension's, of the 2**53 from 0 on.

    They are asked for only where the point has the dimension: of a choice, for the chosen option's.
    """
    point: dict[str, Any] = _filled(space, (), bits)
    return point


def dimensions(space: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all dimensions, those of every option included, in the order in which they are written."""
    match space:
        case Choice(options):
            yield path
            for index, option in enumerate(options):
                yield from dimensions(option, (*path, f"<{index}>"))
        case Continuous() | Quantized():
            yield path
        case dict():
            for key, value in space.items():
                yield from dimensions(value, (*path, key))
        case list() | tuple():
            for index, value in enumerate(space):
                yield from dimensions(value, (*path, index))


def grid(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All points of a space of ``hp_choice``, ``hp_int`` and quantised dimensions, the last varying fastest.

    Of a conditional space only the chosen option's dimensions multiply.

    Raises:
        SpaceError: a continuous dimension, or more than 100,000 points.
    """
    space = checked_space(space)
    count = num_points(space)
    if count > LARGEST_GRID:
        raise SpaceError(
            f"the search space has {count:,} points, but a grid of more than {LARGEST_GRID:,} is not tried "
            "out. "
            "Give fewer options or larger steps, or use RandomSearch with num_models=..."
        )
    return distinct(points(space))


def points(space: Any) -> Iterator[Any]:
    """Every point of a discrete space, one after the other; the same point may come from two options."""
    match space:
        case Choice(options):
            for option in options:
                yield from points(option)
        case Quantized():
            yield from space.values()
        case dict():
            for values in _product(list(space.values())):
                yield dict(zip(space, values, strict=True))
        case list() | tuple():
            yield from (list(values) for values in _product(space))
        case _:
            yield space


def num_points(space: Any, path: Path = ()) -> int:
    """Number of points that ``points`` gives. Raises SpaceError, naming the place, if a dimension is continuous."""
    match space:
        case Continuous():
            raise _not_a_grid(space, path)
        case Quantized():
            return space.last - space.first + 1
        case Choice(options):
            return sum(num_points(option, (*path, f"<{index}>")) for index, option in enumerate(options))
        case dict():
            return math.prod(num_points(value, (*path, key)) for key, value in space.items())
        case list() | tuple():
            return math.prod(num_points(value, (*path, index)) for index, value in enumerate(space))
    return 1


def key_of(point: Any) -> str:
    """A text that two points share if and only if they are equal: 1, 1.0 and True differ."""
    return json.dumps(point, sort_keys=True)


def distinct(candidates: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The candidates in order, without repetitions."""
    return list({key_of(point): point for point in candidates}.values())


def check_point(space: Any, point: Any, path: Path = ()) -> None:
    """Raises SpaceError, naming the place, unless ``point`` is a point of ``space``."""
    here = name_of(path) or "the point"
    match space:
        case Choice(options):
            if not any(_is_point(option, point) for option in options):
                raise _outside(here, point, f"one of {listed(options)}")
        case Continuous() | Quantized():
            _check_number(space, point, here)
        case dict():
            _check_keys(space, point, here)
            for key, value in space.items():
                check_point(value, point[key], (*path, key))
        case list() | tuple():
            if not isinstance(point, list | tuple) or len(point) != len(space):
                raise _outside(here, point, f"a list of {len(space)}")
            for index, value in enumerate(space):
                check_point(value, point[index], (*path, index))
        case _:
            if key_of(space) != json.dumps(point, sort_keys=True, default=repr):
                raise _outside(here, point, f"the constant {space!r}")


def checked_points(
    space: Mapping[str, Any], initial_params: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The points that a user wants tried first, copied. Raises SpaceError for one outside the space."""
    if isinstance(initial_params, Mapping) or not isinstance(initial_params, Sequence):
        raise SpaceError(
            f"initial_params={initial_params!r}, but it must be a list of points. "
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
    return distinct(copies)


def _filled(space: Any, path: Path, bits: Callable[[Path], int]) -> Any:
    match space:
        case Choice(options):
            index = bits(path) * len(options) >> 53
            return _filled(options[index], (*path, f"<{index}>"), bits)
        case Continuous():
            return _between(space, bits(path))
        case Quantized():
            return space.value(_multiple(space, bits(path)))
        case dict():
            return {key: _filled(value, (*path, key), bits) for key, value in space.items()}
        case list() | tuple():
            return [_filled(value, (*path, index), bits) for index, value in enumerate(space)]
    return space


def _bits(seed: int, path: Path, trial: int) -> int:
    """53 random bits: as many as a float's fraction holds."""
    key = json.dumps([seed, path, trial]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 11


def _between(dimension: Continuous, bits: int) -> float:
    share, low, high = bits / 2**53, dimension.low, dimension.high
    if dimension.log:
        value = math.exp(math.log(low) * (1 - share) + math.log(high) * share)
    else:
        value = low * (1 - share) + high * share
    return min(max(value, low), high)


def _multiple(dimension: Quantized, bits: int) -> int:
    if not dimension.log:
        return dimension.first + (bits * (dimension.last - dimension.first + 1) >> 53)
    low, high = dimension.call[1:3]
    exponent = low + (high - low) * (bits / 2**53)
    return min(max(round(power_of_ten(exponent) / dimension.step), dimension.first), dimension.last)


def _product(spaces: list[Any] | tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The cartesian product, without holding more than the combination at hand."""
    if not spaces:
        yield ()
        return
    for value in points(spaces[0]):
        for rest in _product(spaces[1:]):
            yield (value, *rest)


def _not_a_grid(dimension: Continuous, path: Path) -> SpaceError:
    low, high = dimension.low, dimension.high
    middle = math.sqrt(low * high) if dimension.log else low / 2 + high / 2
    return SpaceError(
        f"{name_of(path)} is {dimension!r}, which has no end of values, but a grid tries every point. "
        f"Write hp_choice([{low:.4g}, {middle:.4g}, {high:.4g}]) or another list of values, or use "
        "RandomSearch."
    )


def _is_point(space: Any, point: Any) -> bool:
    try:
        check_point(space, point)
    except SpaceError:
        return False
    return True


def _check_number(dimension: Continuous | Quantized, value: Any, here: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(dimension, Continuous):
        if not (number and dimension.low <= value <= dimension.high):
            raise _outside(here, value, f"a number from {dimension.low!r} to {dimension.high!r}")
        return
    first, last = dimension.value(dimension.first), dimension.value(dimension.last)
    if not (number and first <= value <= last and dimension.value(round(value / dimension.step)) == value):
        raise _outside(here, value, f"a multiple of {dimension.step!r} from {first!r} to {last!r}")


def _check_keys(space: dict[str, Any], point: Any, here: str) -> None:
    if not isinstance(point, Mapping):
        raise _outside(here, point, f"a dictionary with {listed(space)}")
    for key in point:
        if key not in space:
            hint = nearest(str(key), space, ".")
            raise SpaceError(
                f"{here} has {key!r}, but the search space there has only {listed(space)}{hint} Rename or "
                "remove it."
            )
    missing = [key for key in space if key not in point]
    if missing:
        raise SpaceError(
            f"{here} lacks {listed(missing)}, but a point gives every parameter. Add what is missing."
        )


def _outside(here: str, value: Any, rule: str) -> SpaceError:
    return SpaceError(
        f"{here} is {value!r}, but the search space asks for {rule}. Change the value, or widen the space "
        "to hold it."
    )
