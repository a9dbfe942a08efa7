"""Pydantic's errors of a configuration as problems in the words of the rest of Hopyard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hopyard.experiment.determined import advice_for
from hopyard.experiment.hyperparameters import TYPES, Fields
from hopyard.experiment.problems import Problem, kind_of
from hopyard.experiment.searchers import SEARCHERS
from hopyard.experiment.yaml_text import inline_yaml, shown_yaml
from hopyard.search.points import Path
from hopyard.search.spaces import name_of
from hopyard.wording import listed, nearest

_RULES = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "a mapping",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_short": "a list of at least one value",
}
"""Rules by the types of Pydantic's errors, whose contexts fill the braces."""


_WHOLE = ("bind_mounts", "hyperparameters")
"""Fields whose parts are merged whole, so that no template adds to them."""


def problems_of(
    error: ValidationError, parts: Mapping[str, type[Fields]], *, partial: bool = False
) -> list[Problem]:
    """A problem for each of Pydantic's errors.

    Args:
        parts: the class of each part that has fields of its own, by the last step of the part's path in Pydantic's
            errors: a field, a tag in angle brackets, or "" for the whole.
        partial: whether fields may be missing that a template could give.
    """
    return [
        _problem(each, parts)
        for each in error.errors(include_url=False)
        if not (partial and each["type"] == "missing" and each["loc"][0] not in _WHOLE)
    ]


def _problem(error: ErrorDetails, parts: Mapping[str, type[Fields]]) -> Problem:
    kind, steps, value = error["type"], error["loc"], error["input"]
    path = tuple(step for step in steps if not _is_mark(step))
    where = name_of(path)
    if kind == "value_error":
        return where, str(error["ctx"]["error"])
    if path == ("searcher", "name") and kind != "missing":
        return where, _no_option(value, tuple(SEARCHERS))
    if kind == "unknown_type":
        return (
            f"{where}.type",
            f"{_no_option(value['type'], TYPES)} Write {{type: const, val: ...}} for a constant mapping.",
        )
    if kind == "extra_forbidden":
        names = [step for step in steps[:-1] if isinstance(step, str)]
        return where, _unknown_field(path, parts[names[-1] if names else ""])
    if kind == "literal_error" and steps[-1] == "[key]":
        return where, "is no unit of length, which are batches, records and epochs. Write {epochs: 8}."
    if kind == "string_pattern_mismatch":
        rule = "is no name of a variable, which has letters, digits and _, and no digit at first. Rename it."
        return where, rule
    advice = _advice(steps, value, parts)
    if kind == "missing":
        return where, f"is missing. {advice}"
    if kind in ("too_short", "too_long") and isinstance(value, dict):
        return where, f"has {' and '.join(value) or 'no unit'}, but a length has one unit. {advice}"
    context = error.get("ctx", {})
    bounds = {name: f"{bound:.12g}" if isinstance(bound, float) else bound for name, bound in context.items()}
    rule = _RULES.get(kind, error["msg"].removeprefix("Input should be ")).format(**bounds)
    # Values of these may be secrets.
    shown = kind_of(value) if path[:1] in (("data",), ("environment",)) else shown_yaml(value)
    return where, f"is {shown}, but it must be {rule}. {advice}"


def _is_mark(step: str | int) -> bool:
    """Whether a step of Pydantic's is none of the configuration: a tag such as ``<int>``, or ``[key]``."""
    return isinstance(step, str) and (step == "[key]" or step[:1] + step[-1:] == "<>")


def _no_option(value: Any, options: tuple[str, ...]) -> str:
    return (
        f"is {shown_yaml(value)}, but it must be one of {listed(options)}{nearest(str(value), options, '.')}"
    )


def _unknown_field(path: Path, part: type[Fields]) -> str:
    advice = advice_for(path)
    if advice is not None:
        return f"is a field of Determined that has no meaning here. {advice}"
    searchers = [name for name, each in SEARCHERS.items() if path[-1] in each.model_fields]
    if path[:-1] == ("searcher",) and searchers:
        return (
            f"is no field of this searcher, but of {', '.join(searchers)}. Remove it, or name one of these."
        )
    known = tuple(part.model_fields)
    if path[:-1] == ("searcher",):
        anywhere = nearest(
            str(path[-1]), [field for each in SEARCHERS.values() for field in each.model_fields]
        )
        if anywhere != nearest(str(path[-1]), known):
            return f"is no field of this searcher, nor of another{anywhere} Rename or remove it."
    hint = nearest(str(path[-1]), known, f"; there are {', '.join(known)}.")
    return f"is no field{hint} Rename or remove it."


def _advice(steps: tuple[str | int, ...], value: Any, parts: Mapping[str, type[Fields]]) -> str:
    """A line to write: the example of the nearest field that has one; users' own names have none."""
    if steps[:2] == ("environment", "environment_variables") and len(steps) > 2:
        if isinstance(value, list):  # of those for one kind of device
            return "That is Determined's form, of which `hopyard experiment convert` makes ours."
        return "Put it in quotes."
    names = [step for step in reversed(steps) if isinstance(step, str)]
    found = [
        (name, parts[step].model_fields[name])
        for step in (*names, "")
        if step in parts
        for name in names
        if name in parts[step].model_fields
    ]
    name, example = next((name, field.examples[0]) for name, field in found if field.examples)
    return f"Write {name}: {inline_yaml(example)}."
