"""Search spaces, checked as the user writes them.

A space is a dictionary with text keys. Its values are dimensions (what the ``hp_`` functions return), further
dictionaries or lists that may hold dimensions, or constants (JSON values), which every point carries
unchanged. Tuples are lists, as which a journal gives them back. An option of ``hp_choice`` may itself be a
space: its dimensions exist only where it is chosen. A class or a function stands in points as its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias

from hopyard.errors import SpaceError
from hopyard.wording import shortened, shown

Number: TypeAlias = int | float
PathStep: TypeAlias = str | int
"""One step of a dimension's path: a key, an index, or ``"<i>"`` for option i of a choice."""

LARGEST_EXPONENT = 300


class CodeName(str):
    """A class or function in a space: its module and qualified name, as points and runs have it.

    Attributes:
        code: the class or function.
    """

    code: Any

    def __new__(cls, code: Any) -> CodeName:
        """The name of a class or function.

        Raises:
            SpaceError: it is a lambda, whose name is that of all others.
        """
        name = ".".join(filter(None, (code.__module__, code.__qualname__)))
        if "<lambda>" in name:
            raise SpaceError(
                f"the space holds the lambda {name}, but a run records functions by their names, and all lambdas have "
                "the same. Write a function with def, and give that."
            )
        made = super().__new__(cls, name)
        made.code = code
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return CodeName, (self.code,)


@dataclass(frozen=True, repr=False)
class Choice:
    """One of ``options``, each as likely as the others; an option may be a space."""

    options: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"hp_choice({list(self.options)!r})"


@dataclass(frozen=True, repr=False)
class Continuous:
    """A float in [low, high]: itself uniform, or its logarithm (``log``). ``call`` is the user's call."""

    call: tuple[str, Number, Number]
    low: float
    high: float
    log: bool

    def __repr__(self) -> str:
        return _written(self.call)


@dataclass(frozen=True, repr=False)
class Quantized:
    """A multiple of ``step``, from ``first * step`` to ``last * step``.

    All are equally likely, or with ``log`` the logarithm is uniform before rounding. ``call`` is what a user
    wrote; values are ints when all its numbers are.
    """

    call: tuple[str, Number, Number] | tuple[str, Number, Number, Number]
    step: Number
    first: int
    last: int
    log: bool

    def __repr__(self) -> str:
        return _written(self.call)

    def value(self, multiple: int) -> Number:
        """``multiple * step`` as a person writes it: 3 * 0.1 is 0.3."""
        exact = multiple * Fraction(str(self.step))
        return int(exact) if all(isinstance(number, int) for number in self.call[1:]) else float(exact)

    def values(self) -> Iterator[Number]:
        return (self.value(multiple) for multiple in range(self.first, self.last + 1))


def hp_choice(options: Sequence[Any]) -> Choice:
    """One of ``options``: JSON values, classes, functions, or spaces that exist only where they are chosen.

    Raises:
        SpaceError: no options, two alike, or not a sequence.
    """
    options = _plain(options)
    if not isinstance(options, list | tuple | range):
        raise SpaceError(
            f"hp_choice was given {shortened(shown(options))}, but takes a list of options. "
            f"Write hp_choice([{shortened(shown(options))}, ...]) with every value to choose from."
        )
    checked = tuple(
        check_space(option, f"option {index} of hp_choice") for index, option in enumerate(options)
    )
    if not checked:
        raise SpaceError("hp_choice was given no options, but needs at least one. Write hp_choice([32, 64]).")
    seen: dict[str, int] = {}
    for index, option in enumerate(checked):
        first = seen.setdefault(json.dumps(space_json(option)), index)
        if first != index:
            raise SpaceError(
                f"hp_choice was given {shortened(shown(option))} twice, as options {first} and {index}, but every "
                "option must "
                "be different. Leave one of them out."
            )
    return Choice(checked)


def hp_uniform(a: float, b: float) -> Continuous:
    """A float in [a, b], uniformly. Raises SpaceError unless a < b are finite numbers."""
    a, b = _bounds("hp_uniform", a, b)
    return Continuous(("hp_uniform", a, b), float(a), float(b), log=False)


def hp_quniform(a: float, b: float, q: float) -> Quantized:
    """A multiple of ``q`` in [a, b], each as likely as the others: ``hp_quniform(16, 256, 16)``.

    Ints when a, b and q are ints. Raises SpaceError unless a < b and 0 < q <= b - a.
    """
    a, b = _bounds("hp_quniform", a, b)
    return _quantized(("hp_quniform", a, b, _number("hp_quniform", "q", q)), a, b, log=False)


def hp_int(a: int, b: int) -> Quantized:
    """A whole number from a to b, both included. Raises SpaceError unless a < b are ints."""
    low, high = _bounds("hp_int", a, b)
    if not (isinstance(low, int) and isinstance(high, int)):
        raise SpaceError(
            f"hp_int was given {low!r} and {high!r}, but its bounds are whole numbers. "
            f"Write hp_int({math.floor(low)}, {math.ceil(high)}), or hp_uniform({low!r}, {high!r})."
        )
    return Quantized(("hp_int", low, high), 1, low, high, log=False)


def hp_log(low: float, high: float) -> Continuous:
    """A float in [low, high], its logarithm uniformly: ``hp_log(1e-4, 0.1)``.

    Raises SpaceError unless 0 < low < high.
    """
    low, high = _bounds("hp_log", low, high)
    if low <= 0:
        raise SpaceError(
            f"hp_log was given {low!r} as its lower bound, but takes values above 0, as in hp_log(1e-4, "
            "0.1). "
            "For bounds in powers of ten write hp_loguniform(-4, -1)."
        )
    return Continuous(("hp_log", low, high), float(low), float(high), log=True)


def hp_loguniform(a: float, b: float) -> Continuous:
    """A float in [10**a, 10**b], its logarithm uniformly: ``hp_loguniform(-4, -1)`` is 0.0001 to 0.1.

    Raises SpaceError unless a < b; 0 < a < b < 1 is taken for bounds in values, which ``hp_log`` takes.
    """
    a, b = _exponents("hp_loguniform", a, b)
    return Continuous(("hp_loguniform", a, b), power_of_ten(a), power_of_ten(b), log=True)


def hp_qloguniform(a: float, b: float, q: float) -> Quantized:
    """A multiple of ``q`` in [10**a, 10**b], its logarithm uniformly before it is rounded.

    Ints when a, b and q are ints: ``hp_qloguniform(0, 3, 1)`` is 1 to 1000. Raises SpaceError as
    ``hp_loguniform`` does, and unless 0 < q <= 10**b - 10**a.
    """
    a, b = _exponents("hp_qloguniform", a, b)
    call = ("hp_qloguniform", a, b, _number("hp_qloguniform", "q", q))
    return _quantized(call, power_of_ten(a), power_of_ten(b), log=True)


def power_of_ten(exponent: Number) -> float:
    """10**exponent, for whole exponents the float nearest to it."""
    return float(f"1e{int(exponent)}") if exponent == int(exponent) else float(10.0**exponent)


def check_space(space: Any, where: str = "the search space") -> Any:
    """``space`` with NumPy scalars and arrays as Python values; ``where`` names it in errors.

    Raises:
        SpaceError: a key that is not a text, or a value that is neither a dimension nor a JSON value.
    """
    space = _plain(space)
    if isinstance(space, Choice | Continuous | Quantized | bool | int | str | None):
        return space
    if isinstance(space, float):
        if not math.isfinite(space):
            raise SpaceError(
                f"{where} holds {space!r}, but every value must be finite. Leave it out, or write None for "
                "'not set'."
            )
        return space
    if isinstance(space, dict):
        for key in space:
            if not isinstance(key, str):
                raise SpaceError(
                    f"{where} has the key {key!r} ({type(key).__name__}), but keys are texts. Write "
                    f"{str(key)!r}."
                )
        return {key: check_space(value, f"{where}[{key!r}]") for key, value in space.items()}
    if isinstance(space, list | tuple):
        return [check_space(value, f"{where}[{index}]") for index, value in enumerate(space)]
    if isinstance(space, type | FunctionType | BuiltinFunctionType):
        return CodeName(space)
    raise SpaceError(
        f"{where} holds {shortened(shown(space))} of type {type(space).__name__}, but a space is made of hp_ "
        "dimensions, dicts, lists, texts, numbers, booleans, None, classes and functions. Write a name and look the "
        "object up in the estimator function."
    )


def named_code(space: Any) -> tuple[Any, dict[str, Any]]:
    """A checked space with plain names in place of its classes and functions, and these by their names.

    Raises:
        SpaceError: two have one name, or a text is the name of one.
    """
    found: dict[str, Any] = {}
    texts: set[str] = set()

    def named(part: Any) -> Any:
        match part:
            case CodeName():
                if found.setdefault(str(part), part.code) is not part.code:
                    raise SpaceError(
                        f"the search space holds two classes or functions of the name {str(part)!r}, which runs "
                        "record. Give each a name of its own."
                    )
                return str(part)
            case str():
                texts.add(part)
            case Choice(options):
                return Choice(tuple(map(named, options)))
            case dict():
                return {key: named(value) for key, value in part.items()}
            case list():
                return list(map(named, part))
        return part

    plain = named(space)
    if both := sorted(texts & found.keys()):
        raise SpaceError(
            f"the search space holds {both[0]!r} both as a text and as what has this name, and runs record both alike. "
            "Leave one of them out."
        )
    return plain, found


def checked_space(space: Any) -> dict[str, Any]:
    """``space`` as a search takes it: a dictionary that is not empty, checked by ``check_space``."""
    if not isinstance(space, dict):
        raise SpaceError(
            f"the search space is {shortened(shown(space))}, but must be a dictionary from names to dimensions. "
            'Write search_space={"lr": hp_loguniform(-4, -1)}.'
        )
    if not space:
        raise SpaceError(
            "the search space is empty, but needs at least one parameter. "
            'Write search_space={"lr": hp_loguniform(-4, -1)}.'
        )
    checked: dict[str, Any] = check_space(space)
    return checked


def space_json(space: Any) -> Any:
    """The space as a JSON value, for a run's settings: a dimension is ``{"hp_uniform": [0, 1]}``."""
    match space:
        case Choice(options):
            return {"hp_choice": [space_json(option) for option in options]}
        case Continuous() | Quantized():
            return {space.call[0]: list(space.call[1:])}
        case dict():
            return {key: space_json(value) for key, value in space.items()}
        case list() | tuple():
            return [space_json(value) for value in space]
    return space


_CALLS = {
    call.__name__: call
    for call in (hp_choice, hp_int, hp_log, hp_loguniform, hp_qloguniform, hp_quniform, hp_uniform)
}


def space_of(recorded: Any) -> Any:
    """The space that ``space_json`` recorded."""
    match recorded:
        case dict() if len(recorded) == 1 and next(iter(recorded)) in _CALLS:
            function, arguments = next(iter(recorded.items()))
            if function == "hp_choice":
                return hp_choice([space_of(option) for option in arguments])
            return _CALLS[function](*arguments)
        case dict():
            return {key: space_of(value) for key, value in recorded.items()}
        case list():
            return [space_of(value) for value in recorded]
    return recorded


def name_of(path: Sequence[PathStep]) -> str:
    """Name, in messages, of the dimension at ``path``: ``optimizer[option 0].momentum``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.startswith("<"):
            text += f"[option {step[1:-1]}]"
        else:
            text += f".{step}" if text else step
    return text


def _written(call: tuple[Any, ...]) -> str:
    return f"{call[0]}({', '.join(map(repr, call[1:]))})"


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays, known by what they can do, as Python numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else value


def _number(function: str, name: str, value: Any) -> Number:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpaceError(
            f"{function} was given {name}={shortened(shown(value))} ({type(value).__name__}), but takes numbers. "
            f"For a choice between values write hp_choice([...])."
        )
    if not math.isfinite(value):
        raise SpaceError(
            f"{function} was given {name}={value!r}, but its numbers must be finite. Give a bound."
        )
    return value


def _bounds(function: str, a: Any, b: Any) -> tuple[Number, Number]:
    a, b = _number(function, "a", a), _number(function, "b", b)
    if a == b:
        raise SpaceError(
            f"{function} was given {a!r} for both bounds, but the lower must be smaller than the upper. "
            f"For a constant write {a!r} in place of the dimension."
        )
    if a > b:
        raise SpaceError(
            f"{function} was given {a!r} and {b!r}, but the lower bound comes first. Write "
            f"{function}({b!r}, {a!r}...)."
        )
    return a, b


def _exponents(function: str, a: Any, b: Any) -> tuple[Number, Number]:
    a, b = _bounds(function, a, b)
    if a > 0 and b < 1:
        low, high = round(math.log10(a), 3), round(math.log10(b), 3)
        raise SpaceError(
            f"{function} was given {a!r} and {b!r}, which look like values, but its bounds are powers of "
            "ten: this "
            f"would be {10.0**a:.4g} to {10.0**b:.4g}. For values from {a!r} to {b!r} write hp_log({a!r}, "
            f"{b!r}), "
            f"or hp_loguniform({low:g}, {high:g})."
        )
    if a < -LARGEST_EXPONENT or b > LARGEST_EXPONENT:
        raise SpaceError(
            f"{function} was given {a!r} and {b!r}, but its bounds are powers of ten and lie "
            f"between -{LARGEST_EXPONENT} and {LARGEST_EXPONENT}. For bounds in values write hp_log(low, "
            "high)."
        )
    return a, b


def _quantized(
    call: tuple[str, Number, Number, Number], low: Number, high: Number, *, log: bool
) -> Quantized:
    function, *_, step = call
    if step <= 0:
        raise SpaceError(f"{function} was given the step q={step!r}, but a step is larger than 0. Write q=1.")
    exact_low, exact_high, exact_step = (Fraction(str(number)) for number in (low, high, step))
    if exact_step > exact_high - exact_low:
        raise SpaceError(
            f"{function} was given the step q={step!r}, which is larger than its range {low!r} to {high!r}, "
            "but the "
            f"range must hold at least one step. Give a step of at most {float(exact_high - exact_low):g}."
        )
    first, last = math.ceil(exact_low / exact_step), math.floor(exact_high / exact_step)
    return Quantized(call, step, first, last, log)
