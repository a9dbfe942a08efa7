"""Conflicts: changes that two sides of a merge made differently, and the choice between them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hopyard import wording
from hopyard.errors import UsageError
from hopyard.stockroom.records import ColumnRecord, DatasetRecord, ModelRecord

BOTH_ADDED = "both added"
BOTH_CHANGED = "both changed"
REMOVED_HERE = "removed here, changed there"
REMOVED_THERE = "changed here, removed there"
COLUMN_REMOVED_HERE = "column removed here, samples changed there"
COLUMN_REMOVED_THERE = "samples changed here, column removed there"
OTHER_SETTINGS = "dtype or shape differ"
BOTH_REGISTERED = "both registered a version of this number"

_LONGEST = 60

Side: TypeAlias = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Conflict:
    """One thing, or one sample of a column, or one file of a dataset, that both sides changed differently.

    Attributes:
        path: shelf and name, as ``data/image``.
        key: of the sample, number of the file; None: it is the whole.
        kind: what happened on both sides, in words.
        base, ours, theirs: the sample; of an experiment its value; of other things their record. None: there
            is none there.
    """

    path: str
    key: Any
    kind: str
    base: Any
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        where = self.path if self.key is None else f"{self.path}[{self.key!r}]"
        values = [f"{name} {_short(getattr(self, name))}" for name in ("base", "ours", "theirs")]
        return f"{where}: {self.kind} ({', '.join(values)})"


Resolve: TypeAlias = Side | Callable[[Conflict], Any] | None
"""Who decides: a side, always; or a function that returns ``"ours"``, ``"theirs"``, or, for samples and values of
experiments, what to have instead. A text that one of the sides has is that text, also if it is such a word. What one
side removed goes if that side is returned. None: nobody, conflicts are listed."""


def chosen(resolve: Callable[[Conflict], Any], conflict: Conflict) -> tuple[Side | None, Any]:
    """The choice of a function for a sample or a value: a side; or None, and the value to have instead.

    Raises:
        UsageError: it returned None.
    """
    answer = resolve(conflict)
    if answer is None:
        raise UsageError(
            f"the conflict {conflict} was resolved with None, as by a function that lacks a return. Return 'ours' or "
            "'theirs', which removes what that side removed; or what to have instead. Nothing was merged."
        )
    if isinstance(answer, str) and answer in ("ours", "theirs"):
        # A text that a side has is meant as such: min(conflict.ours, conflict.theirs) may be "theirs".
        is_text = any(isinstance(side, str) and side == answer for side in (conflict.ours, conflict.theirs))
        if not is_text:
            return ("ours" if answer == "ours" else "theirs"), None
    return None, answer


def chosen_side(resolve: Resolve, conflict: Conflict) -> Side:
    """The side that is to be had of something for which there is no third way.

    Raises:
        UsageError: what the function returned is no side.
    """
    answer = resolve(conflict) if callable(resolve) else resolve
    if answer in ("ours", "theirs"):
        return "theirs" if answer == "theirs" else "ours"
    shown = "None" if answer is None else _short(answer)
    raise UsageError(
        f"the conflict {conflict} was resolved with {shown}, but it is resolved with 'ours' or 'theirs'. "
        "Nothing was merged."
    )


def check_resolve(resolve: Any) -> None:
    """Raise a UsageError unless it is a ``Resolve``."""
    is_side = isinstance(resolve, str) and resolve in ("ours", "theirs")
    if not (resolve is None or is_side or callable(resolve)):
        raise UsageError(
            f"conflicts are to be resolved by {wording.shown(resolve)}, but that is 'ours', 'theirs', or a function of "
            "a conflict."
        )


def counted_conflicts(conflicts: list[Conflict]) -> str:
    """The number of conflicts and their list, for messages; of versions of registered models how to keep both."""
    how_many = "1 change conflicts" if len(conflicts) == 1 else f"{len(conflicts)} changes conflict"
    said = f"{how_many}:\n{listed(conflicts)}"
    registered = [conflict.path for conflict in conflicts if conflict.kind == BOTH_REGISTERED]
    if not registered:
        return said
    name, _, number = registered[0].partition("/")[2].rpartition("/")
    return (
        f"{said}\nOf two versions of one number --resolve keeps one. To keep both, give one of them a number that "
        "neither side has, commit, and do this again: on the branch where it may change, hopyard model renumber "
        f"{shlex.quote(name)} {number}; in Python stock.registry.renumber({name!r}, {number})."
    )


def listed(conflicts: list[Conflict], most: int = 10) -> str:
    """Conflicts as lines; of many the first ones."""
    lines = [f"    {conflict}" for conflict in conflicts[:most]]
    if len(conflicts) > most:
        lines.append(f"    and {len(conflicts) - most} more")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, ColumnRecord):
        kind = f"{value.dtype} of shape {value.shape}" if value.kind == "tensor" else value.kind
        return f"{value.count} of {kind}"
    if isinstance(value, ModelRecord):
        registered = "" if value.about is None else f", registered as {value.about[:12]}"
        return f"{value.nbytes} bytes, {value.tree[:12]}{registered}"
    if isinstance(value, DatasetRecord):
        return f"{value.rows} rows, {value.manifest[:12]}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape):
        return f"{value.dtype} of shape {tuple(shape)}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
