"""Checks of arguments: a good value is returned as Python's own type, another is an error in one phrasing.

``name=value, but it must be RULE. NEXT STEP.``
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeVar

from hopyard.errors import HopyardError, UsageError
from hopyard.wording import nearest, shown

_Option = TypeVar("_Option", bound=str)


def refusal(
    name: str, value: object, rule: str, advice: str = "", error: type[HopyardError] = UsageError
) -> HopyardError:
    """The error that a value breaks a rule.

    Args:
        name: of the argument.
        rule: which values are right, as it follows "must be".
        advice: a sentence that says what to do, where the rule does not.
    """
    return error(f"{name}={shown(value)}, but it must be {rule}.{' ' if advice else ''}{advice}")


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    *,
    rule: str = "",
    advice: str = "",
    error: type[HopyardError] = UsageError,
) -> int:
    """An int, also one of NumPy's types; a bool is none.

    Args:
        least: the lowest that is right.
        rule: in words, if an integer with a lower bound does not say it all.

    Raises:
        error: it is no int, or below ``least``.
    """
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None or (least is not None and whole < least):
        bound = "an integer" if least is None else f"an integer of at least {least}"
        raise refusal(name, value, rule or bound, advice, error)
    return whole


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    rule: str = "",
    advice: str = "",
    error: type[HopyardError] = UsageError,
) -> float:
    """A finite int or float, as a float; a bool is none.

    Args:
        least, most: the lowest and highest that are right.
        above: all that are right are higher.
        rule: in words, if the bounds do not say it all.

    Raises:
        error: it is no number, not finite, or out of these bounds.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (least <= value <= most and above < value and math.isfinite(value)):
        bounds = [
            *([f"of at least {least:g}"] if least > -math.inf else []),
            *([f"above {above:g}"] if above > -math.inf else []),
            *([f"of at most {most:g}"] if most < math.inf else []),
        ]
        raise refusal(
            name, value, rule or f"a number {' and '.join(bounds) or 'that is finite'}", advice, error
        )
    return float(value)


def flag(name: str, value: Any, error: type[HopyardError] = UsageError) -> bool:
    """A bool, also NumPy's.

    Raises:
        error: it is none.
    """
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's has either name, and may not be there to ask
        raise refusal(name, value, "True or False", error=error)
    return bool(value)


def choice(
    name: str,
    value: _Option,
    options: Sequence[str],
    advice: str = "",
    error: type[HopyardError] = UsageError,
) -> _Option:
    """One of some texts.

    Raises:
        error: it is none of them; names the nearest.
    """
    if not isinstance(value, str) or value not in options:
        listed = ", ".join(map(repr, options))
        raise error(
            f"{name}={shown(value)}, but it must be one of {listed}{nearest(str(value), options, '.')}"
            f"{' ' if advice else ''}{advice}"
        )
    return value
