"""List of a store's runs and their results, made without reading more of the runs than that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.errors import CorruptError, NotFoundError
from hopyard.hopper.history import read_state
from hopyard.hopper.journal import first_and_last, has_records, holder, read_records
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
    check_header([header], f"run {run_id} in {folder.url}")
    metric = header["metric"]["key"]
    if last["r"] == "finish":
        return RunSummary(
            run_id, last["status"], header["created"], last["trials"], metric, last["best"], held, header,
            last["seconds"], last["unit_seconds"],
        )  # fmt: skip
    return summary_of(run_id, read_state(read_records(folder)), held)


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
