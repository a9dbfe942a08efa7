"""List of a store's runs and their results, made without reading more of the runs than that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from hopyard.errors import CorruptError, NotFoundError
from hopyard.hopper.history import read_state
from hopyard.hopper.journal import first_and_last, has_records, holder, read_records
from hopyard.hopper.passes import Passes
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.objects.frozen import RunFolder
from hopyard.storage import Store
from hopyard.storage.format import check_format
from hopyard.wording import nearest

RUN_FORMAT = "run"


@dataclass(frozen=True)
class RunSummary:
    """One run in a line.

    Attributes:
        status: as ``Run.status``.
        created: when it was begun, in seconds since 1970.
        trials: how many there are so far.
        metric: its evaluation metric, a key of histories.
        best: the best value so far, None without any.
        holder: who drives it now (``host``, ``pid``, ``since``), or None.
        header: the first record of its journal; of a run that has not ended, with the budget that it has now.
        seconds: that it was driven; unit_seconds: that workers spent in units, of all trials.
        error: the failure for which its last driver gave up, or None: see ``RunState.gave_up``.
    """

    run_id: str
    status: str
    created: float
    trials: int
    metric: str
    best: float | None
    holder: dict[str, Any] | None
    header: JournalRecord
    seconds: float
    unit_seconds: float
    error: str | None = None


def check_header(records: Sequence[JournalRecord], where: str) -> None:
    """Refuse a journal that this version cannot read, by its first record.

    Raises:
        FormatError: a newer version of Hopyard wrote it; says which to install.
        CorruptError: it does not begin as journals do, or power failed before it had begun.
    """
    header = next(iter(records), {})
    if not header:
        raise CorruptError(
            f"{where} has no record: power failed while its first one was written. Run its script again, which begins "
            "it anew, or delete the run."
        )
    found = header.get("format") if isinstance(header, dict) else None
    if not isinstance(found, dict) or header.get("r") != "run":
        raise CorruptError(
            f"{where} begins with {str(header)[:60]!r}, which is no record of a run. Restore its journal from a copy, "
            "or delete the run."
        )
    check_format(found, RUN_FORMAT, where=where)
    _check_fields(header, _HEADER, "first", where)


def _check_fields(record: JournalRecord, rules: Mapping[str, _Rule], which: str, where: str) -> None:
    """Refuse a record with a field of another kind than Hopyard writes: lists show these fields as they are."""
    for path, rule in rules.items():
        value: Any = record
        for name in path.split("."):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        if not rule.fits(value):
            given = "has no" if value is _MISSING else f"has {str(value)[:60]!r} as"
            raise CorruptError(
                f"{where} is not as Hopyard writes runs: the {which} record of its journal {given} {path}, which is "
                f"{rule.said}. Restore its journal from a copy, or delete the run."
            )


class _Rule(NamedTuple):
    """Which values a field may have, and that in words."""

    fits: Callable[[Any], bool]
    said: str


_MISSING = object()
_LATEST = 2.5e11  # the year 9892: what dates can show
_ANY = _Rule(lambda value: value is not _MISSING, "there in every run")
_TEXT = _Rule(lambda value: isinstance(value, str), "a text")
_WHOLE = _Rule(lambda value: isinstance(value, int) and value >= 0, "a whole number")
_MORE = _Rule(lambda value: isinstance(value, int) and value > 0, "a whole number above 0")
_NUMBER = _Rule(lambda value: isinstance(value, int | float), "a number")
_PASSES = {field.name for field in fields(Passes)}
_HEADER = {
    "created": _Rule(
        lambda value: isinstance(value, int | float) and 0 <= value <= _LATEST, "a time in seconds since 1970"
    ),
    "settings.kind": _TEXT,
    "settings.seed": _ANY,
    "settings.data": _ANY,
    "settings.search_space": _ANY,
    "settings.num_models": _Rule(
        lambda value: value in (None, _MISSING) or _WHOLE.fits(value), "a whole number"
    ),
    "metric.key": _TEXT,
    "metric.mode": _Rule(lambda value: value in ("min", "max"), "'min' or 'max'"),
    "layout.train": _MORE,
    "layout.validate": _WHOLE,
    "num_epochs": _WHOLE,
    "num_points": _Rule(lambda value: value in (None, _MISSING) or _WHOLE.fits(value), "a whole number"),
    "data": _Rule(lambda value: value in (None, _MISSING) or isinstance(value, dict), "an object"),
    "passes": _Rule(
        lambda value: (
            value is _MISSING
            or (isinstance(value, dict) and value.keys() == _PASSES and all(map(_MORE.fits, value.values())))
        ),
        f"an object with {', '.join(sorted(_PASSES))}, each a whole number above 0",
    ),
}
"""Fields of the first record of a journal that are shown of every run."""
_FINISH = {
    "status": _TEXT,
    "trials": _WHOLE,
    "best": _Rule(lambda value: value is None or _NUMBER.fits(value), "a number or null"),
    "seconds": _NUMBER,
    "unit_seconds": _NUMBER,
}
"""Fields of the record of a run's end, from which lists have all that they show."""


def list_runs(store: Store) -> list[str]:
    """The ids of all runs in ``store``, sorted."""
    runs = store.runs
    return [name for name in runs.folders() if has_records(runs.at(name))]


def find_run(
    store: Store, run_id: str, what: str = "run", list_known: Callable[[Store], list[str]] = list_runs
) -> Store:
    """The folder of a run.

    Args:
        what, list_known: what it is called in messages, and those that there are.

    Raises:
        NotFoundError: there is no such run; the message lists those there are.
    """
    folder = RunFolder(store.runs, run_id)
    if not has_records(folder):
        known = list_known(store)
        raise NotFoundError(
            f"{store.url} holds no {what} {run_id!r}{nearest(run_id, known, '.')} "
            f"The {what}s there are: {', '.join(known) if known else 'none'}."
        )
    return folder


def summary(store: Store, run_id: str) -> RunSummary:
    """A run in a line. Of one that has ended only the first and the last record are looked at."""
    folder = find_run(store, run_id)
    held = holder(folder)
    header, last = first_and_last(folder)
    where = f"run {run_id} in {folder.url}"
    check_header([header], where)
    metric = header["metric"]["key"]
    if last.get("r") == "finish":
        _check_fields(last, _FINISH, "last", where)
        return RunSummary(
            run_id, last["status"], header["created"], last["trials"], metric, last["best"], held, header,
            last["seconds"], last["unit_seconds"],
        )  # fmt: skip
    return summary_of(run_id, read_state(read_records(folder), where), held)


def summary_of(run_id: str, state: RunState, held: dict[str, Any] | None) -> RunSummary:
    """A run in a line, from its state."""
    best = None if state.best is None else state.trials[state.best].best
    return RunSummary(
        run_id, status_of(state, held), state.header["created"], len(state.trials), state.metric.key,
        best.value if best else None, held, state.header, state.clock, state.unit_seconds,
        None if state.gave_up is None else f"{state.gave_up.kind}: {state.gave_up.message}",
    )  # fmt: skip


def status_of(state: RunState, held: Mapping[str, Any] | None) -> str:
    """A run's status in a word: see ``Run.status``."""
    if state.finished is not None:
        return state.finished
    if held is None:
        return "interrupted" if state.gave_up is None else "gave up"
    if state.paused:
        return "paused"
    return "waits for its store" if held.get("is_full") else "running"
