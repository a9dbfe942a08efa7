"""``hopyard run``: look at runs; commands that change them are in ``run_commands``, results in ``run_results``."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hopyard import tune
from hopyard.cli import run_commands, run_results
from hopyard.cli.run_stores import RunId, StorePath, open_existing
from hopyard.cli.terminal import JsonOption, console, say, show_json
from hopyard.documents.runs import UNREADABLE, run_json, summary_json
from hopyard.errors import CorruptError, StorageError
from hopyard.hopper.history import Totals, committed_units, rules_broken_by, totals_of
from hopyard.hopper.journal import holder, read_records
from hopyard.hopper.state import ENDED, TrialState
from hopyard.storage import Store
from hopyard.tune.asking import more_is_asked
from hopyard.tune.describing import (
    describe_epochs,
    describe_holder,
    describe_length,
    describe_mean,
    describe_number,
    describe_params,
    describe_state,
    is_function,
)
from hopyard.tune.listing import RunSummary, find_run, list_runs, summary
from hopyard.tune.outlook import expected_end, outlook_of
from hopyard.tune.rows import best_epoch_behind, epochs_of, replicate_row
from hopyard.wording import counted

if TYPE_CHECKING:
    from hopyard.tune import Run

_MOST = 20
_DRIVEN = ("running", "paused", "waits for its store")

app: typer.Typer = typer.Typer(help="Look at runs, steer them, and continue them.", no_args_is_help=True)


@app.command("list")
def list_command(store: StorePath, as_json: JsonOption = False) -> None:
    """List the runs of a store."""
    opened = open_existing(store)
    found: dict[str, RunSummary | StorageError] = {}
    for run_id in list_runs(opened):
        try:
            found[run_id] = summary(opened, run_id)
        except StorageError as error:  # one that cannot be read hides no other
            found[run_id] = error
    if as_json:
        show_json([summary_json(run_id, each) for run_id, each in found.items()])
    else:
        _show_list(found, f"{opened.url} holds no runs. {_elsewhere(store)}")


def _show_list(found: dict[str, RunSummary | StorageError], none: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for title in ("status", "begun", "trials"):
        table.add_column(title, no_wrap=True, justify="right" if title == "trials" else "left")
    table.add_column("best")
    for run_id, each in found.items():
        table.add_row(*((run_id, UNREADABLE, "", "", "") if isinstance(each, StorageError) else _line(each)))
    if table.row_count:
        console().print(table)
    else:
        say(none)
    for each in found.values():
        if isinstance(each, StorageError):
            say(str(each), style="red")
    for run_id, each in found.items():
        if isinstance(each, RunSummary) and each.error is not None:
            say(f"{run_id}: {each.error}", style="red")


@app.command()
def describe(
    store: StorePath,
    run_id: RunId,
    most: Annotated[
        int | None, typer.Option(help="Trials to show; none: 20, or all with --json.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: leaderboard, schedule in numbers, failures, and whether the schedule kept its rules."""
    folder = find_run(open_existing(store), run_id)
    run, totals, broken = looked_at(folder, run_id)
    if as_json:
        show_json(run_json(run, totals, broken, most))
        return
    _show_header(run)
    show_trials(run, totals, broken, most)
    for command in run.waiting():
        say(f"waits until it goes on: {command}")
    say(_next_step(run, store, more_is_asked(folder, run.state.controls)))


def looked_at(folder: Store, run_id: str) -> tuple[Run, Totals, list[str]]:
    """A run, its totals, and the rules that its schedule breaks."""
    held = holder(folder)  # before reading: what a driver writes is there before it lets go
    records = list(read_records(folder))  # once: they may be many
    run = tune.Run(folder, run_id, records, held)
    units = committed_units(records)
    try:
        return run, totals_of(units, run.state.pauses), rules_broken_by(units, run.state.layout)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptError(
            f"run {run_id} in {folder.url} has a unit that is not as Hopyard writes units ({error!r}). Restore its "
            "journal from a copy, or begin the run anew with fresh=True."
        ) from error


def show_trials(run: Run, totals: Totals, broken: Sequence[str], most: int | None) -> None:
    """Show the leaderboard, the schedule in numbers, and all that went wrong."""
    console().print(leaderboard(run, most or _MOST))
    say(f"\n{_schedule_in_numbers(totals)}")
    for trial in run.failures():
        assert trial.error is not None
        say(f"trial {trial.number} failed: {trial.error.describe()}")
    if run.state.gave_up is not None:
        say(f"all trials failed alike before any unit was done: {run.state.gave_up.describe()}")
    for rule in broken:
        say(f"broken: {rule}", style="red")
    if run.state.units and not broken and not is_function(run.state):
        say("every trial visited every partition once an epoch, one unit at a time: yes")


def _show_header(run: Run) -> None:
    settings, header, held = run.settings, run.state.header, run.holder
    by = f" by {describe_holder(held)}" if held is not None and run.state.finished is None else ""
    say(f"run {run.run_id}: {run.status}{by}, {settings['kind']} search, seed {settings['seed']}")
    say(f"search space: {settings['search_space']}")
    trained_on = (header.get("data") or {}).get("train")
    if trained_on is not None:
        say(f"trained on {trained_on}")
    for url in run.frozen_at:
        say(f"reads frozen tensors from {url}, which must stay as long as the run is kept")
    length = describe_length(run.state) or "as long as the function runs"
    say(
        f"{count_trials(run)}, {length} over {counted(header['layout']['train'], 'partition')}{_outlook(run)}\n"
    )


def _outlook(run: Run) -> str:
    """``; 40% done, about 75 s left``, of a run that goes on; empty where nobody knows."""
    outlook = outlook_of(run.state)
    if run.status in ENDED or outlook.progress is None:
        return ""
    end = expected_end(run.state, run.holder is not None)
    left = "" if end is None else f", about {end - run.state.clock:.0f} s left"
    return f"; {outlook.progress:.0%} done{left}"


def _next_step(run: Run, store: str, more_waits: bool) -> str:
    if run.status in _DRIVEN and run.status != "paused":
        return f"watch it: hopyard run watch {store} {run.run_id}"
    if more_waits:
        return f"a larger budget or a clone waits for it: hopyard run resume {store} {run.run_id}"
    if run.status == "failed":
        return f"every trial failed; what they said: hopyard.open_run({store!r}, {run.run_id!r}).trials()"
    if run.status == "completed":
        return f"use it: hopyard.open_run({store!r}, {run.run_id!r}).best"
    return f"go on with it: hopyard run resume {store} {run.run_id}"


def _line(run: RunSummary) -> Sequence[str]:
    best = "" if run.best is None else f"{run.metric} {describe_number(run.best)}"
    return (
        run.run_id,
        describe_status(run.status, run.holder),
        describe_begin(run.created),
        str(run.trials),
        best,
    )


def describe_status(status: str, holder: Mapping[str, Any] | None) -> str:
    """A run's status, with who drives it, if anybody does."""
    if status in _DRIVEN and holder is not None:
        return f"{status} ({holder.get('host', '?')}, pid {holder.get('pid', '?')})"
    return status


def describe_begin(created: float) -> str:
    """A time in seconds since 1970, by the clock on the wall."""
    return datetime.datetime.fromtimestamp(created).strftime("%Y-%m-%d %H:%M")


def _elsewhere(path: str) -> str:
    """Stores right below ``path`` that hold runs, if any."""
    found = sorted(str(runs.parent) for runs in Path(path).glob("*/runs") if runs.is_dir())
    return f"These do: {', '.join(found)}." if found else "Give the path that LocalStore(...) was given."


def leaderboard(run: Run, most: int = _MOST) -> Table:
    """The run's trials as a table for the terminal, best first. States are shown unless all are completed, and which
    trials are clones and copies if any is; with replicates each trial's point, and the mean by which points are ranked.
    """
    trials = run.state.ranked()
    columns = {
        "point": run.state.replicates > 1,
        "mean": run.state.replicates > 1,
        "state": any(trial.status != "completed" for trial in trials),
        "clone of": any(trial.clone_of is not None for trial in trials),
        "copy of": any(trial.source is not None for trial in trials),
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    epoch = "report" if is_function(run.state) else "epoch"
    for title in ("trial", run.state.metric.key, epoch, "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in [title for title, shown in columns.items() if shown]:
        table.add_column(title, no_wrap=True)
    table.add_column("hyperparameters")
    for trial in trials[:most]:
        replicate = replicate_row(run.state, trial)
        more = {
            "point": str(replicate.get("point")),
            "mean": describe_mean(replicate.get("mean"), replicate.get("spread")),
            "state": describe_state(run.state, trial),
            "clone of": "" if trial.clone_of is None else str(trial.clone_of),
            "copy of": "" if trial.source is None else str(trial.source),
        }
        table.add_row(
            *_cells(run, trial),
            *(more[title] for title, shown in columns.items() if shown),
            describe_params(trial.params),
        )
    if len(trials) > most:
        table.caption = f"and {len(trials) - most:,} more"
    return table


def _cells(run: Run, trial: TrialState) -> Sequence[str]:
    value = describe_number(trial.best.value if trial.best else None)
    # Counted as while the run goes on: with what a copy's source has trained before.
    epochs = describe_epochs(run.state.epochs_after(trial.began) + epochs_of(run.state, trial))
    best = best_epoch_behind(run.state, trial)
    epoch = epochs if best is None else f"{describe_epochs(best)}/{epochs}"
    return str(trial.number), value, epoch, f"{trial.seconds:.1f}"


def count_trials(run: Run) -> str:
    """``4 trials (3 completed, 1 failed)``."""
    counts = Counter(describe_state(run.state, trial) for trial in run.state.trials.values())
    states = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    return f"{counted(len(run.state.trials), 'trial')} ({states})"


_MOST_ALONE = 5


def _schedule_in_numbers(totals: Totals) -> str:
    if totals.busy is None:
        return "no unit is done yet"
    traffic = totals.traffic
    beside = ""
    if traffic.beside is not None and traffic.away is not None:
        beside = (
            f", {traffic.beside / 1e6:.1f} MB where the reader's host has the blocks and {traffic.away / 1e6:.1f} MB "
            "where not (as the store said)"
        )
    # Functions, and loaders of trials' own, read what they like.
    stayed = f"\ndata that stayed: {traffic.read / 1e6:.1f} MB of batches read by workers from their partitions{beside}"
    return (
        f"{counted(totals.units, 'unit')} on {counted(totals.workers, 'worker')} in {totals.seconds:.1f} s, busy "
        f"{totals.busy:.0%} of the time; {traffic.hops:,} hops between workers\n"
        f"states that moved: {traffic.moved / 1e6:.1f} MB read by workers that lacked them, "
        f"{traffic.written / 1e6:.1f} MB written"
        + (stayed if traffic.read else "")
        + _packs_in_numbers(totals)
    )


def _packs_in_numbers(totals: Totals) -> str:
    """Lines on trials that trained together, and on why others did not; empty where neither is known."""
    lines = []
    several = {count: times for count, times in totals.packs.items() if count > 1}
    if several:
        least, most = min(several), max(several)
        who = f"{least}" if least == most else f"{least} to {most}"
        visits = sum(count * times for count, times in several.items())
        lines.append(
            f"trained together: {visits:,} of {counted(totals.units, 'unit')}, by {who} trials at a time"
        )
    for why, trials in totals.alone.items():
        named = ", ".join(map(str, trials[:_MOST_ALONE])) + (", ..." if len(trials) > _MOST_ALONE else "")
        lines.append(f"trained alone: {'trial' if len(trials) == 1 else 'trials'} {named}, since {why}")
    return "".join(f"\n{line}" for line in lines)


run_commands.add_to(app)
run_results.add_to(app)
