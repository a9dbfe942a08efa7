"""Importance of hyperparameters: how much of the difference between good trials and all trials each one explains."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
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

_LARGEST = sys.float_info.max


def importances(params: Sequence[Mapping[str, Any]], values: Sequence[float]) -> dict[str, float]:
    """The importance of each hyperparameter that all trials have and that differs between them, by PED-ANOVA
    (Watanabe et al., IJCAI 2023) as Optuna computes it. They add up to 1.

    Args:
        params: of each trial, by name.
        values: of each trial; the smaller, the better. Trials whose value is no finite number do not count.

    Raises:
        UsageError: there are fewer than ``FEWEST`` trials, or none of their hyperparameters differs.
        MissingExtraError: Optuna is not installed.
    """
    kept = [(point, value) for point, value in zip(params, values, strict=True) if math.isfinite(value)]
    if len(kept) < FEWEST:
        raise UsageError(
            f"{len(kept)} trials have a result; the importance of hyperparameters is told from {FEWEST} on. Wait for "
            "more."
        )
    names = [name for name in kept[0][0] if all(name in point for point, _ in kept)]
    columns = {name: [point[name] for point, _ in kept] for name in names}
    columns = {name: column for name, column in columns.items() if len({_text(each) for each in column}) > 1}
    if not columns:
        raise UsageError("no hyperparameter differs between the trials that have a result. Search over one.")
    if find_spec("optuna") is None:
        raise missing_extra("optuna", "search", "The importance of hyperparameters")
    return _evaluated(columns, [value for _, value in kept])


def _evaluated(columns: Mapping[str, Sequence[Any]], values: Sequence[float]) -> dict[str, float]:
    import optuna

    from hopyard.search.optuna import quiet

    distributions = {name: _distribution(column) for name, column in columns.items()}
    with quiet():
        study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        for row, value in enumerate(values):
            point = {name: _coordinate(distributions[name], column[row]) for name, column in columns.items()}
            study.add_trial(optuna.create_trial(params=point, distributions=distributions, value=value))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


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
    """Whether it is a number that lies somewhere between others: finite, and no larger than floats are."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _coordinate(distribution: Any, value: Any) -> Any:
    """A hyperparameter's value as Optuna takes it."""
    kind: Callable[[Any], Any] = type(distribution.low) if hasattr(distribution, "low") else _text
    return kind(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
