"""Importance of hyperparameters: how much of the differences in the metric goes with each one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hopyard.errors import UsageError
from hopyard.missing import missing_extra

FEWEST = 8
"""Trials below which nothing is said."""

_LOG = 100
"""Ratio of the largest to the smallest value from which on positive numbers are compared by their logarithms."""

_EXACT = 2**53
"""Above this, ints are compared as floats, which Optuna makes of them."""

_LARGEST = 3.4e38
"""The largest number that the forest takes: it holds hyperparameters as float32."""


METHOD = "fANOVA"
"""Functional analysis of variance (Hutter et al., ICML 2014): a random forest learns the metric from the
hyperparameters, and the share of its variance that each hyperparameter alone makes is told."""

MOST = 256
"""Trials that the forest learns from: Optuna's takes time by their square (27 s of a core for 1,000)."""

_TREES = 32


@dataclass(frozen=True)
class Importances:
    """The importance of hyperparameters.

    Attributes:
        shares: of each hyperparameter, most important first; they add up to 1.
        trials: number of trials that they are made from; results: of those that have a result.
        left_out: hyperparameters that are not among them, and why, in words.
    """

    shares: dict[str, float]
    trials: int
    results: int
    left_out: dict[str, str]


def importances(params: Sequence[Mapping[str, Any]], values: Sequence[float]) -> Importances:
    """How much of the differences in a metric goes with each hyperparameter that all trials have and that differs
    between them, by fANOVA (Hutter et al., ICML 2014) as Optuna computes it: the share of the metric's variance that
    the hyperparameter alone makes, over its whole range, also among bad trials. Of more than ``MOST`` trials so many
    are taken, evenly in their order.

    Args:
        params: of each trial, by name.
        values: of each trial. Trials whose value is no finite number do not count.

    Raises:
        UsageError: there are fewer than ``FEWEST`` trials, all their values are equal, or none of their
            hyperparameters differs.
        MissingExtraError: Optuna, or scikit-learn, is not installed.
    """
    found = [(point, value) for point, value in zip(params, values, strict=True) if math.isfinite(value)]
    if len(found) < FEWEST:
        raise UsageError(
            f"{len(found)} trials have a result; the importance of hyperparameters is told from {FEWEST} on. Wait for "
            "more."
        )
    left_out, columns = dict[str, str](), dict[str, list[Any]]()
    kept = [found[place * len(found) // MOST] for place in range(MOST)] if len(found) > MOST else found
    for name in dict.fromkeys(name for point, _ in found for name in point):
        having = sum(name in point for point, _ in found)
        column = [point.get(name) for point, _ in kept]
        if having < len(found):
            left_out[name] = f"only {having} of {len(found)} trials have it"
        elif len({_text(each) for each in column}) == 1:
            left_out[name] = "it is the same in all trials"
        else:
            columns[name] = column
    if not columns:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise UsageError(
            "no hyperparameter differs between the trials that have a result and is in all of them"
            f"{f' ({why})' if why else ''}. Search over one."
        )
    numbers = [value for _, value in kept]
    if min(numbers) == max(numbers):
        raise UsageError(
            f"all {len(kept)} trials have the value {numbers[0]:g}, so there are no differences to explain. Wait for "
            "others, or choose another metric."
        )
    for name in ("optuna", "sklearn"):
        if find_spec(name) is None:
            package = {"sklearn": "scikit-learn"}.get(name, name)
            raise missing_extra(package, "search", "The importance of hyperparameters")
    return Importances(_evaluated(columns, _scaled(numbers)), len(kept), len(found), left_out)


def _scaled(values: Sequence[float]) -> list[float]:
    """Values from 0 to 1: the variance of very large or small ones is no number."""
    largest = max(map(abs, values))
    smaller = [value / largest for value in values]
    low, high = min(smaller), max(smaller)
    return [(value - low) / (high - low) if high > low else 0.0 for value in smaller]


def _evaluated(columns: Mapping[str, Sequence[Any]], values: Sequence[float]) -> dict[str, float]:
    import optuna

    from hopyard.search.optuna import quiet

    distributions = {name: _distribution(column) for name, column in columns.items()}
    with quiet():
        study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        for row, value in enumerate(values):
            point = {name: _coordinate(distributions[name], column[row]) for name, column in columns.items()}
            study.add_trial(optuna.create_trial(params=point, distributions=distributions, value=value))
        evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in sorted(found.items(), key=lambda item: -item[1])}


def _distribution(column: Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not all(map(_is_number, column)):
        return CategoricalDistribution(sorted({_text(each) for each in column}))
    low, high = min(column), max(column)
    log = low > 0 and high / low >= _LOG
    if all(isinstance(each, int) and abs(each) <= _EXACT for each in column):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _is_number(value: Any) -> bool:
    """Whether it is a number that lies somewhere between others: finite, and no larger than the
    forest takes."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _coordinate(distribution: Any, value: Any) -> Any:
    """A hyperparameter's value as Optuna takes it."""
    kind: Callable[[Any], Any] = type(distribution.low) if hasattr(distribution, "low") else _text
    return kind(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
