"""Preview of a searcher of an experiment's YAML: how many trials there are, and how long each trains.

Made for looking ahead, and for comparing with Determined's ``preview-search``: rungs are rounded down to whole units as
there (a run rounds them up to whole visits, where trials are validated).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hopyard.checks import integer
from hopyard.errors import UsageError
from hopyard.search.asha import AdaptiveAsha, Asha
from hopyard.search.base import Create, Searcher, Train
from hopyard.search.brackets import Share, brackets, checked_divisor, concurrency_given, rungs
from hopyard.search.pbt import Pbt, share
from hopyard.search.points import num_points
from hopyard.search.proposers import ListPoints
from hopyard.search.replicates import Replicated
from hopyard.search.spaces import checked_space
from hopyard.wording import listed, nearest

UnitMetric: TypeAlias = Callable[[int, int], float]
"""The value of a trial (from 0, in order of creation) after so many units."""

LENGTHS = ("batches", "records", "epochs")


def preview(config: Mapping[str, Any], metric: UnitMetric | None = None, seed: int = 0) -> list[int]:
    """Number of units that each trial of a searcher trains.

    Args:
        config: the searcher as in an experiment's YAML: ``name`` is one of ``single``, ``random``, ``grid``,
            ``async_halving``, ``adaptive_asha``, ``pbt``. Lengths are numbers or ``{"batches": 937}``. ``grid`` also
            takes the experiment's ``hyperparameters``, whose points it counts.
        metric: the value of ``metric(trial, units)``; smaller is better unless the config says
            ``smaller_is_better: False``. Trials report one after another in the order they were started: among the
            trials that may train, the one that was started first reports next.
        seed: of what a searcher draws.

    Returns:
        Units by trial, in order of creation; of a child of PBT only its own. Without a metric, the units for one that
        separates trials perfectly in each rung (a closed form, the units ascending).

    Raises:
        UsageError: an unknown name or field, or an impossible number.
    """
    plan = _plan(config)
    if metric is None:
        return sorted(plan.units.elements())
    if plan.searcher is None:
        return list(plan.units.elements())
    sign = 1.0 if config.get("smaller_is_better", True) else -1.0
    return _played(plan.searcher(seed), lambda trial, units: sign * metric(trial, units))


def preview_table(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Rows (trials, units each) of ``preview(config)``, the shortest first. Raises UsageError as that does."""
    return [(trials, units) for units, trials in sorted(_plan(config).units.items())]


def length_unit(config: Mapping[str, Any]) -> str | None:
    """The unit that a searcher's config gives its lengths in, such as ``"batches"``; None: numbers without a unit."""
    for name in ("max_length", "max_time", "length_per_round"):
        if isinstance(config.get(name), Mapping):
            return str(next(iter(config[name])))
    unit = config.get("time_metric")
    return None if unit is None else str(unit)


@dataclass(frozen=True)
class _Plan:
    """The closed form, units -> trials, and the searcher if there is a metric (None: nothing depends on it)."""

    units: Counter[int]
    searcher: Callable[[int], Searcher] | None = None


def _played(searcher: Searcher, metric: UnitMetric) -> list[int]:
    made: list[int] = []  # in all, by trial
    own: list[int] = []
    targets: list[tuple[int, int]] = []  # a heap of (trial, units), for trials that may train
    operations = searcher.start()
    while True:
        for operation in operations:
            if isinstance(operation, Create):
                made.append(0 if operation.source is None else made[operation.source])
                own.append(0)
            elif isinstance(operation, Train):
                heapq.heappush(targets, (operation.trial, operation.visits))
        if not targets:
            return own
        trial, units = heapq.heappop(targets)
        own[trial] += units - made[trial]
        made[trial] = units
        value = float(metric(trial, units))
        operations = searcher.validated(trial, units, math.inf if math.isnan(value) else value)


# The searchers


def _single(config: Mapping[str, Any]) -> _Plan:
    return _Plan(Counter({_length(config): 1}))


def _random(config: Mapping[str, Any]) -> _Plan:
    _concurrency(config)
    return _Plan(Counter({_length(config): integer("max_trials", config["max_trials"], 1)}))


def _grid(config: Mapping[str, Any]) -> _Plan:
    _concurrency(config)
    return _Plan(Counter({_length(config): _grid_size(config["hyperparameters"])}))


def _async_halving(config: Mapping[str, Any]) -> _Plan:
    divisor = checked_divisor(config.get("divisor", 4))
    trials = integer("max_trials", config["max_trials"], 1)
    lengths = rungs(config["num_rungs"], divisor, _length(config))
    concurrent = _concurrency(config)
    return _Plan(
        _halved(trials, lengths, divisor),
        lambda seed: Asha(_dummies(trials), trials, lengths, divisor, concurrent, _stop_once(config)),
    )


def _adaptive_asha(config: Mapping[str, Any]) -> _Plan:
    divisor, length = checked_divisor(config.get("divisor", 4)), _length(config)
    trials, concurrent = integer("max_trials", config["max_trials"], 1), _concurrency(config)
    given = {name: config[name] for name in ("mode", "max_rungs", "bracket_rungs") if name in config}
    shares: list[tuple[Share, list[int]]] = [
        (each, rungs(each.num_rungs, divisor, length))
        for each in brackets(trials, length, divisor, max_concurrent=concurrent, **given)
    ]
    units: Counter[int] = Counter()
    for each, lengths in shares:
        units += _halved(each.num_models, lengths, divisor)
    return _Plan(
        units,
        lambda seed: AdaptiveAsha(_dummies(trials), shares, divisor, concurrent, _stop_once(config)),
    )


def _pbt(config: Mapping[str, Any]) -> _Plan:
    replace, explore = config["replace_function"], config.get("explore_function", {})
    _check_fields("replace_function of pbt", replace, {"truncate_fraction"}, set())
    _check_fields("explore_function of pbt", explore, set(), {"resample_probability", "perturb_factor"})
    size = integer("population_size", config["population_size"], 1)
    num_rounds = integer("num_rounds", config["num_rounds"], 1)
    length = _units("length_per_round", config["length_per_round"])
    replaced = int(share("truncate_fraction", replace["truncate_fraction"], 0.5) * size)
    # With any metric: after a round but the last, its worst train no longer. As if these were always the youngest.
    units = Counter({num_rounds * length: size - replaced}) + Counter({length: replaced * num_rounds})
    return _Plan(
        units,
        lambda seed: Pbt(
            _dummies(size), {"point": 0}, size, num_rounds, length, seed=seed, **replace, **explore
        ),
    )


def _halved(trials: int, lengths: list[int], divisor: Any) -> Counter[int]:
    """Trials by units: of the n at a rung ``max(floor(n / divisor), 1)`` go on."""
    units: Counter[int] = Counter()
    for length in lengths[:-1]:
        going_on = max(int(trials // divisor), 1)
        units[length] += trials - going_on
        trials = going_on
    units[lengths[-1]] += trials
    return +units


def _dummies(number: int) -> ListPoints:
    return ListPoints([{"point": index} for index in range(number)])


# What the YAML says

_COMMON = {"metric", "smaller_is_better", "replicates", "source_trial_id", "source_checkpoint_uuid"}
_LENGTH = {"max_length", "max_time", "time_metric"}
_HALVING = {"divisor", "max_concurrent_trials", "stop_once"} | _LENGTH

_SEARCHERS: dict[str, tuple[Callable[[Mapping[str, Any]], _Plan], set[str], set[str]]] = {
    # the plan, the fields that must be given, and the fields that may
    "single": (_single, set(), _LENGTH),
    "random": (_random, {"max_trials"}, {"max_concurrent_trials"} | _LENGTH),
    "grid": (_grid, {"hyperparameters"}, {"max_concurrent_trials"} | _LENGTH),
    "async_halving": (_async_halving, {"num_rungs", "max_trials"}, _HALVING),
    "adaptive_asha": (_adaptive_asha, {"max_trials"}, {"mode", "max_rungs", "bracket_rungs"} | _HALVING),
    "pbt": (
        _pbt,
        {"population_size", "num_rounds", "length_per_round", "replace_function"},
        {"explore_function"},
    ),
}


def _plan(config: Mapping[str, Any]) -> _Plan:
    if not isinstance(config, Mapping):
        raise UsageError(
            f"searcher={config!r}, but it must be a dictionary as in an experiment's YAML. "
            'Write {"name": "adaptive_asha", "max_trials": 16, "max_length": 937}.'
        )
    name = config.get("name")
    if not isinstance(name, str) or name not in _SEARCHERS:
        raise UsageError(
            f"name={name!r}, but it must be one of {listed(_SEARCHERS)}{nearest(str(name), _SEARCHERS, '.')}"
        )
    plan, needed, allowed = _SEARCHERS[name]
    _check_fields(f"the searcher {name!r}", config, needed, allowed | _COMMON | {"name"})
    for flag in ("smaller_is_better", "stop_once"):
        if not isinstance(config.get(flag, False), bool):
            raise UsageError(f"{flag} is {config[flag]!r}, but must be true or false. Write {flag}: false.")
    made, replicates = plan(config), _replicates(config)
    if replicates == 1:
        return made
    units, searcher = (
        Counter({units: replicates * trials for units, trials in made.units.items()}),
        made.searcher,
    )
    return _Plan(units, None if searcher is None else lambda seed: Replicated(searcher(seed), replicates))


def _check_fields(what: str, fields: Any, needed: set[str], allowed: set[str]) -> None:
    known = sorted(needed | allowed)
    if not isinstance(fields, Mapping):
        raise UsageError(f"{what} is {fields!r}, but must be a dictionary with {listed(known)}.")
    for field in fields:
        if field not in known:
            raise UsageError(
                f"{what} has no field {field!r}, but only {listed(known)}{nearest(str(field), known, '.')}"
            )
    if missing := sorted(needed - set(fields)):
        raise UsageError(f"{what} lacks {listed(missing)}. Add what is missing; it may have {listed(known)}.")


def _length(config: Mapping[str, Any]) -> int:
    given = [name for name in ("max_length", "max_time") if config.get(name) is not None]
    if len(given) != 1:
        raise UsageError(
            f"the searcher {config['name']!r} has {' and '.join(given) or 'neither max_length nor max_time'}, but must "
            "say once how long a trial trains at most. Write max_length: 937, in the unit of your choice."
        )
    return _units(given[0], config[given[0]])


def _units(name: str, length: Any) -> int:
    """A whole number, or ``{"batches": number}``."""
    if isinstance(length, Mapping):
        _check_fields(name, length, set(), set(LENGTHS))
        if len(length) != 1:
            raise UsageError(f"{name} is {dict(length)!r}, but has one unit. Write {name}: {{batches: 937}}.")
        ((unit, length),) = length.items()
        name = f"{name}.{unit}"
    return integer(name, length, 1)


def _concurrency(config: Mapping[str, Any]) -> int:
    """Points whose trials may train at once; 0: as many as there are."""
    at_once, replicates = concurrency_given(config.get("max_concurrent_trials", 16)), _replicates(config)
    if 0 < at_once < replicates:
        raise UsageError(
            f"max_concurrent_trials is {at_once} and replicates is {replicates}, but all replicates of a point train "
            f"at once. Write max_concurrent_trials: {replicates}, or a multiple of it."
        )
    return at_once // replicates


def _replicates(config: Mapping[str, Any]) -> int:
    return integer("replicates", config.get("replicates", 1), 1)


def _stop_once(config: Mapping[str, Any]) -> bool:
    return bool(config.get("stop_once", False))


def _grid_size(hyperparameters: Any) -> int:
    """Number of points of a grid: of a search space, or of hyperparameters as in an experiment's YAML."""
    if isinstance(hyperparameters, Mapping):
        return math.prod(_axis(name, value) for name, value in hyperparameters.items())
    return num_points(checked_space(hyperparameters))


def _axis(name: str, value: Any) -> int:
    """Number of values that a hyperparameter takes in a grid."""
    if not isinstance(value, Mapping):
        return num_points(value, (name,))
    kind = value.get("type")
    if kind is None:
        return math.prod(_axis(f"{name}.{key}", inner) for key, inner in value.items())
    if kind == "const":
        return 1
    if kind == "categorical":
        vals = value.get("vals")
        if not isinstance(vals, list | tuple) or not vals:
            raise UsageError(f"vals={vals!r}, but it must be a list of values. Write vals: [32, 64].")
        return len(vals)
    if kind not in ("int", "double", "log"):
        kinds = ("const", "categorical", "int", "double", "log")
        raise UsageError(
            f"type={kind!r} of the hyperparameter {name}, but it must be one of {listed(kinds)}"
            f"{nearest(str(kind), kinds, '.')}"
        )
    if "count" not in value:
        raise UsageError(
            f"the hyperparameter {name} has no count, but a grid must know how many of its values to try. "
            "Write count: 5."
        )
    count = integer(f"count of {name}", value["count"], 1)
    if kind != "int":
        return count
    low, high = value.get("minval"), value.get("maxval")
    if not isinstance(low, int) or not isinstance(high, int) or low >= high:
        raise UsageError(
            f"the hyperparameter {name} has minval {low!r} and maxval {high!r}, but the first must be smaller than the "
            "second, both whole numbers. Write minval: 1 and maxval: 10."
        )
    return min(count, high - low + 1)
