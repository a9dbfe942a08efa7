"""Clones: trials that a user asks for while a run goes on, each like one that there is but for some hyperparameters.

* **A clone is the user's, not the search's.** The search never hears of it: what it proposes, promotes and stops is to
  the last bit what it would have been. So a clone counts in no budget (``num_models`` is as it was), at no rung and in
  no population, and nothing stops it early but a user.
* **It trains to the full length of the run**, and on with it where the run is extended, and is ranked with all others.
* **It differs from its donor by nothing but what was changed**: what is random in it (initial weights, dropout, the
  order of visits) is drawn as it was in the donor. A clone without a change comes to the same bits.
* **With weights** it begins with the donor's last durable state and the visits that this has made, as the copies of a
  population do; else from the beginning.
* **With replicates** the whole point is cloned, each of its trials from its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from hopyard.errors import UsageError
from hopyard.hopper.state import RunState, TrialState, trial_folder
from hopyard.objects.states import is_lent
from hopyard.search.spaces import Choice, Continuous, Quantized, space_of
from hopyard.storage import Store
from hopyard.wording import brief, nearest, shortened, some_names

_KINDS = {
    bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a mapping",
}  # fmt: skip


def donors_of(state: RunState, trial: int) -> list[TrialState]:
    """The trials that are cloned with ``trial``: all of its point."""
    return state.replicates_of(trial // state.replicates)


def with_changes(params: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A point with other values: ``"optimizer.lr"`` names the one called ``lr`` within ``optimizer``.

    Raises:
        UsageError: the point has no such name; lists those it has.
    """
    changed = copy.deepcopy(dict(params))
    for name, value in changes.items():
        path = _path_of(changed, name)
        if path is None:
            known = list(_names(changed))
            raise UsageError(
                f"there is no hyperparameter {shortened(name)!r}{nearest(name, known, '.')} There are "
                f"{some_names(known)}. Name one of these"
            )
        place: Any = changed
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = copy.deepcopy(value)
    return changed


def check_clone(
    store: Store, state: RunState, command: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Check that a clone can be made.

    Args:
        store: the run's folder.
        command: see ``hopyard.hopper.control``.

    Returns: the changes, their values as the search space has them (``1`` is 1.0 where it takes floats), and in words
        which of them lie outside of the space, as they may.

    Raises:
        UsageError: says why not, and what to do.
    """
    trial = command["trial"]
    if trial not in state.trials:
        raise UsageError(
            f"the run has no trial {trial}; it has {len(state.trials)} so far, the first is 0. "
            "`hopyard run describe` shows them"
        )
    donor = state.trials[trial]
    given = command.get("params") or {}
    changed = with_changes(donor.params, {})
    recorded = state.header["settings"].get("search_space")
    space = None if recorded is None else space_of(recorded)
    changes, outside = {}, []
    for name, value in given.items():
        path = _path_of(changed, name)
        changed = with_changes(changed, {name: value})
        parts = list(_parts(space, path or ()))
        changes[name], is_inside = _taken(name, value, parts)
        if parts and not is_inside:
            outside.append(f"{name}={brief(value)} lies outside of {' or '.join(map(_said, parts))}")
    if command.get("weights"):
        for each in donors_of(state, trial):
            _check_weights(store, state, each)
    return changes, outside


def _check_weights(store: Store, state: RunState, donor: TrialState) -> None:
    progress, who = donor.durable, f"trial {donor.number}"
    if progress.state is None:
        raise UsageError(
            f"{who} has no saved weights: no training unit of it was saved so far. Clone it without weights, or ask "
            "again later"
        )
    if progress.trained >= state.num_visits or (not donor.running and donor.code_ended_at is not None):
        raise UsageError(
            f"{who} has trained to its end, so a clone with its weights would have nothing left to train. Clone it "
            "without weights, or give the run more num_epochs first (`hopyard run extend`)"
        )
    home = donor.number if progress.home is None else progress.home
    names = [name for name in progress.state.files if not is_lent(name)]
    if not all(store.exists(f"{trial_folder(home)}/{name}") for name in names):
        raise UsageError(
            f"the weights of {who}, which is {donor.status}, were not kept. Clone it without weights; keep='all' keeps "
            "those of every trial"
        )


# Names


def _path_of(params: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """The path of a name in a point. A key that itself has dots in it comes first."""
    if name in params:
        return (name,)
    for at, letter in enumerate(name):
        inner = params.get(name[:at]) if letter == "." else None
        if isinstance(inner, dict):
            rest = _path_of(inner, name[at + 1 :])
            if rest is not None:
                return (name[:at], *rest)
    return None


def _names(params: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in params.items():
        yield above + name
        if isinstance(value, dict):
            yield from _names(value, f"{above}{name}.")


# Values


def _parts(space: Any, path: Sequence[str]) -> Iterator[Any]:
    """The parts of a space that a path may lead to: several where options of a choice have the same names."""
    if isinstance(space, Choice) and path:
        for option in space.options:
            yield from _parts(option, path)
    elif not path:
        yield space
    elif isinstance(space, dict) and path[0] in space:
        yield from _parts(space[path[0]], path[1:])


def _taken(name: str, value: Any, parts: Sequence[Any]) -> tuple[Any, bool]:
    """The value as the space has it, and whether it lies within.

    Raises:
        UsageError: it is of a kind that no part of the space takes.
    """
    found = [taken for part in parts if (taken := _fit(part, value)) is not None]
    if parts and not found and None not in parts:  # a constant None says nothing of what else it may be
        takes = " or ".join(dict.fromkeys(map(_kinds, parts)))
        raise UsageError(f"{name} is {brief(value)}, but it takes {takes}: the space has {_said(parts[0])}")
    return next((taken for taken in found if taken[1]), found[0] if found else (value, not parts))


def _fit(part: Any, value: Any) -> tuple[Any, bool] | None:
    """The value as a part of the space has it, and whether it lies within; None: it is of another kind."""
    match part:
        case Choice(options):
            fits = [fit for option in options if (fit := _fit(option, value)) is not None]
            return next((fit for fit in fits if fit[1]), fits[0] if fits else None)
        case Continuous():
            return (float(value), part.low <= value <= part.high) if _is_number(value) else None
        case Quantized():
            return _fit_quantized(part, value) if _is_number(value) else None
        case dict():
            if not isinstance(value, dict) or value.keys() != part.keys():
                return None
            inner = {name: _fit(each, value[name]) for name, each in part.items()}
            if None in inner.values():
                return None
            taken = {name: fit for name, fit in inner.items() if fit is not None}
            return {name: fit[0] for name, fit in taken.items()}, all(fit[1] for fit in taken.values())
        case list():
            if not isinstance(value, list):
                return None
            items = [_fit(each, one) for each, one in zip(part, value, strict=False)]
            if len(part) != len(value) or None in items:
                return value, False
            fits = [fit for fit in items if fit is not None]
            return [fit[0] for fit in fits], all(fit[1] for fit in fits)
    return (value, value == part) if _kind(value) == _kind(part) else None


def _fit_quantized(part: Quantized, value: Any) -> tuple[Any, bool] | None:
    exact = Fraction(str(value))
    if all(isinstance(number, int) for number in part.call[1:]):
        if exact.denominator != 1:
            return None
        value = int(exact)
    multiple = exact / Fraction(str(part.step))
    return value, multiple.denominator == 1 and part.first <= multiple <= part.last


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS[type(value) if type(value) in _KINDS else str]


def _kinds(part: Any) -> str:
    """The kinds of values that a part of the space takes, in words."""
    match part:
        case Choice(options):
            return " or ".join(dict.fromkeys(map(_kinds, options)))
        case Quantized() if all(isinstance(number, int) for number in part.call[1:]):
            return "a whole number"
        case Continuous() | Quantized():
            return "a number"
        case dict():
            return f"a mapping of {some_names(list(part))}" if part else "an empty mapping"
    return _kind(part)


def _said(part: Any) -> str:
    """A part of the space for messages."""
    if isinstance(part, Choice | Continuous | Quantized):
        return shortened(repr(part), 80)
    return f"the constant {brief(part)}"
