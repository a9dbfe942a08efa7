"""Hyperparameters of an experiment's YAML, and the search space that they stand for.

A hyperparameter is a mapping with a ``type``, a constant, or a list or mapping of hyperparameters, in any depth:

===============  =========================================================================================
``const``        ``val``: any value; a value without a type is a constant, too
``int``          a whole number from ``minval`` to ``maxval``, both included
``double``       a number from ``minval`` to ``maxval``
``log``          a number whose logarithm is uniform, from ``base ** minval`` to ``base ** maxval``
``categorical``  one of ``vals``, each as likely as the others
===============  =========================================================================================

``count`` is how many values of a number a grid search tries, at equal distances (of a ``log``, in the exponent); one
value is the middle. A space keeps the shape of the mapping, so that trials get nested mappings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)
from typing_extensions import TypeAliasType

from hopyard.errors import SpaceError
from hopyard.experiment.problems import Problem
from hopyard.search import hp_choice, hp_int, hp_log, hp_uniform
from hopyard.search.points import LARGEST_GRID, Path
from hopyard.search.spaces import Choice, Continuous, Quantized, name_of, power_of_ten


class Fields(BaseModel):
    """Base of all parts of a configuration: no other fields, no conversion of types."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False
    )


Count: TypeAlias = Annotated[
    int | None, Field(ge=1, description="How many values a grid search tries.", examples=[5])
]


class Const(Fields):
    """A constant."""

    type: Literal["const"]
    val: JsonValue = Field(description="Any value.", examples=[64])

    def dimension(self) -> Any:
        return self.val

    def grid(self) -> Any:
        return self.val


class Int(Fields):
    """A whole number from ``minval`` to ``maxval``, both included."""

    type: Literal["int"]
    minval: int = Field(description="The least value.", examples=[16])
    maxval: int = Field(description="The greatest value.", examples=[128])
    count: Count = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_bounds(self.minval, self.maxval)
        return self

    def dimension(self) -> Quantized:
        return hp_int(self.minval, self.maxval)

    def grid(self) -> Choice:
        steps = self.maxval - self.minval
        count = min(_counted(self.count), steps + 1)
        if count == 1:
            return hp_choice([(self.minval + self.maxval + 1) // 2])
        # Rounded half up, in whole numbers.
        return hp_choice(
            [self.minval + (2 * index * steps + count - 1) // (2 * (count - 1)) for index in range(count)]
        )


class Double(Fields):
    """A number from ``minval`` to ``maxval``."""

    type: Literal["double"]
    minval: float = Field(description="The least value.", examples=[0.0])
    maxval: float = Field(description="The greatest value.", examples=[0.5])
    count: Count = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_bounds(self.minval, self.maxval)
        return self

    def dimension(self) -> Continuous:
        return hp_uniform(self.minval, self.maxval)

    def grid(self) -> Choice:
        return hp_choice(_distinct(_spread(self.minval, self.maxval, _counted(self.count))))


class Log(Fields):
    """A number from ``base ** minval`` to ``base ** maxval``, whose logarithm is uniform."""

    type: Literal["log"]
    minval: float = Field(description="The exponent of the least value.", examples=[-4])
    maxval: float = Field(description="The exponent of the greatest value.", examples=[-1])
    base: float = Field(10.0, gt=1, description="The base of both exponents.", examples=[10])
    count: Count = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_bounds(self.minval, self.maxval)
        try:
            self.dimension()
        except (SpaceError, OverflowError):
            raise ValueError(
                f"goes from {_digits(self.base)} ** {_digits(self.minval)} to {_digits(self.base)} ** "
                f"{_digits(self.maxval)}, but minval and maxval are exponents, and both powers must be different "
                "numbers above 0 that a float can hold. Write minval: -4 and maxval: -1 for 0.0001 to 0.1."
            ) from None
        return self

    def dimension(self) -> Continuous:
        return hp_log(self._power(self.minval), self._power(self.maxval))

    def grid(self) -> Choice:
        exponents = _spread(self.minval, self.maxval, _counted(self.count))
        return hp_choice(_distinct([self._power(exponent) for exponent in exponents]))

    def _power(self, exponent: float) -> float:
        return power_of_ten(exponent) if self.base == 10 else float(self.base**exponent)


class Categorical(Fields):
    """One of ``vals``, each as likely as the others."""

    type: Literal["categorical"]
    vals: list[JsonValue] = Field(min_length=1, description="The values to choose from.", examples=[[32, 64]])

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.dimension()
        except SpaceError as error:
            raise ValueError(f"has vals that cannot be chosen from: {error}") from None
        return self

    def dimension(self) -> Choice:
        return hp_choice(self.vals)

    def grid(self) -> Choice:
        return self.dimension()


TYPED: dict[str, type[Fields]] = {
    "const": Const,
    "int": Int,
    "double": Double,
    "log": Log,
    "categorical": Categorical,
}
"""The hyperparameters with a type."""
TYPES = tuple(TYPED)


def _tag(value: Any) -> str | None:
    """The tag of a hyperparameter's kind; None: an unknown type."""
    if isinstance(value, Const | Int | Double | Log | Categorical):
        return f"<{value.type}>"
    if isinstance(value, dict):
        if "type" not in value:
            return "<mapping>"
        return f"<{value['type']}>" if value["type"] in TYPES else None
    return "<list>" if isinstance(value, list) else "<value>"


Hyperparameter = TypeAliasType(  # type: ignore[misc]
    "Hyperparameter",
    Annotated[
        Annotated[Const, Tag("<const>")]
        | Annotated[Int, Tag("<int>")]
        | Annotated[Double, Tag("<double>")]
        | Annotated[Log, Tag("<log>")]
        | Annotated[Categorical, Tag("<categorical>")]
        | Annotated[
            dict[str, "Hyperparameter"],  # type: ignore[misc]
            Field(json_schema_extra={"not": {"required": ["type"]}}),
            Tag("<mapping>"),
        ]
        | Annotated[list["Hyperparameter"], Tag("<list>")]  # type: ignore[misc]
        | Annotated[
            JsonValue,
            WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
            Tag("<value>"),
        ],
        Discriminator(_tag, custom_error_type="unknown_type", custom_error_message="unknown type"),
    ],
)
"""A hyperparameter as it stands in a configuration; tags in angle brackets are left out of the paths of problems."""


def search_space(hyperparameters: Any, *, grid: bool = False) -> Any:
    """The search space, in the shape of the hyperparameters; with ``grid`` one of choices only, by their counts."""
    match hyperparameters:
        case Const() | Int() | Double() | Log() | Categorical():
            return hyperparameters.grid() if grid else hyperparameters.dimension()
        case dict():
            return {name: search_space(value, grid=grid) for name, value in hyperparameters.items()}
        case list():
            return [search_space(value, grid=grid) for value in hyperparameters]
    return hyperparameters


def problems_of_grid(hyperparameters: Any) -> list[Problem]:
    """A problem for each number, in hyperparameters as they are written, whose count is missing, which a grid needs, or
    larger than any grid."""
    problems: list[Problem] = []
    for path, fields in _typed_among(hyperparameters):
        if fields["type"] not in ("int", "double", "log"):
            continue
        count = fields.get("count")
        if count is None:
            rule = "has no count, but the searcher is grid, which must know how many values to try. Write count: 5."
            problems.append((name_of(path), rule))
        elif isinstance(count, int) and count > LARGEST_GRID and not _is_narrow(fields):
            rule = (
                f"has count {count:,}, but a grid has at most {LARGEST_GRID:,} points. Write a smaller count."
            )
            problems.append((name_of(path), rule))
    return problems


def problems_of_single(hyperparameters: Any) -> list[Problem]:
    """A problem for each hyperparameter, as it is written, that is no constant, which the one trial of single needs."""
    return [
        (
            name_of(path),
            (
                f"is of type {fields['type']}, but the searcher is single, whose one trial has constants. Write a value"
                " in place of the mapping, or {name: random, max_trials: 1, ...} as the searcher."
            ),
        )
        for path, fields in _typed_among(hyperparameters)
        if fields["type"] != "const"
    ]


def warnings_of_logs(hyperparameters: Any) -> list[Problem]:
    """A warning for each log whose exponents, all between 0 and 1, look like values."""
    warnings: list[Problem] = []
    for path, fields in _typed_among(hyperparameters):
        if fields["type"] == "log" and 0 < fields["minval"] < fields["maxval"] < 1:
            low, high, base = fields["minval"], fields["maxval"], fields.get("base", 10)
            rule = (
                f"goes from {base:g} ** {low:g} = {base**low:.4g} to {base:g} ** {high:g} = {base**high:.4g}, since "
                f"minval and maxval are exponents. If {low:g} and {high:g} are values, write minval: "
                f"{math.log(low, base):.4g} and maxval: {math.log(high, base):.4g}."
            )
            warnings.append((name_of(path), rule))
    return warnings


def _typed_among(hyperparameters: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The hyperparameters with a known type, as they are written, and their paths."""
    if isinstance(hyperparameters, dict):  # of which one may be called "type"
        for name, value in hyperparameters.items():
            yield from _typed(value, ("hyperparameters", name))


def _typed(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if isinstance(value, dict) and "type" in value:
        if value["type"] in TYPES:
            yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _typed(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _typed(each, (*path, index))


def _is_narrow(fields: dict[str, Any]) -> bool:
    """Whether an ``int`` has no more values than a grid may have, whatever its count is."""
    low, high = fields.get("minval"), fields.get("maxval")
    return (
        fields["type"] == "int"
        and isinstance(low, int)
        and isinstance(high, int)
        and high - low < LARGEST_GRID
    )


def _check_bounds(minval: float, maxval: float) -> None:
    if minval < maxval:
        return
    given, other = _digits(minval), _digits(maxval)
    advice = f"Write minval: {other} and maxval: {given}."
    if minval == maxval:
        advice = f"Write {given} in place of the mapping for a constant."
    raise ValueError(f"has minval {given} and maxval {other}, but minval must be less than maxval. {advice}")


def _digits(number: float) -> str:
    """A number as a user writes it: -4, also where Pydantic has made -4.0 of it."""
    return str(number).removesuffix(".0")


def _counted(count: int | None) -> int:
    """The count, which ``problems_of_grid`` has asked for."""
    assert count is not None
    return count


def _spread(low: float, high: float, count: int) -> list[float]:
    """``count`` numbers from ``low`` to ``high`` at equal distances, each rounded once; one is the middle."""
    shares = [Fraction(index, count - 1) for index in range(count)] if count > 1 else [Fraction(1, 2)]
    return [float(Fraction(low) + (Fraction(high) - Fraction(low)) * share) for share in shares]


def _distinct(values: list[float]) -> list[float]:
    """The values without repetitions, which many values in a narrow range may have."""
    return list(dict.fromkeys(values))
