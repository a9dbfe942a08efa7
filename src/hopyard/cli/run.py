"""``hopyard run``: look at runs, and continue them."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hopyard.cli.terminal import console, say
from hopyard.errors import NotFoundError, RunInterruptedError, UsageError
from hopyard.hopper.state import Record, TrialState
from hopyard.storage import LocalStore, Store, open_store
from hopyard.tune import Run, list_runs, open_run
from hopyard.tune.launch import RESUMED_RUN
from hopyard.tune.progress import describe_number, describe_params

app = typer.Typer(help="Look at runs, and continue them.", no_args_is_help=True)

StorePath = Annotated[str, typer.Argument(help="The store: what LocalStore(...) was given.")]
RunId = Annotated[str, typer.Argument(help="The run's id, as `hopyard run list` shows it.")]


@app.command("list")
def list_command(store: StorePath) -> None:
    """List the runs of a store."""
    opened = _open(store)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for title in ("status", "begun", "trials"):
        table.add_column(title, no_wrap=True, justify="right" if title == "trials" else "left")
    table.add_column("best")
    for run_id in list_runs(opened):
        run = open_run(opened, run_id)
        begun = datetime.datetime.fromtimestamp(run.state.header["created"]).strftime("%Y-%m-%d %H:%M")
        table.add_row(run_id, run.status, begun, str(len(run.state.trials)), _best(run))
    if table.row_count:
        console().print(table)
    else:
        say(f"{opened.url} holds no runs. {_elsewhere(store)}")


@app.command()
def describe(
    store: StorePath,
    run_id: RunId,
    most: Annotated[int, typer.Option(help="Trials to show.", min=1)] = 20,
) -> None:
    """Show a run: leaderboard, schedule in numbers, failures, and whether the schedule kept its rules."""
    run = open_run(_open(store), run_id)
    settings, header = run.settings, run.state.header
    say(f"run {run_id}: {run.status}, {settings['kind']} search, seed {settings['seed']}")
    say(f"search space: {settings['search_space']}")
    trained_on = (header.get("data") or {}).get("train")
    if trained_on is not None:
        say(f"trained on {trained_on}")
    layout = header["layout"]
    say(f"{_counted(run)}, {header['num_epochs']} epochs over {layout['train']} partitions\n")
    console().print(leaderboard(run, most))
    say(f"\n{_schedule_in_numbers(run)}")
    for trial in run.failures():
        assert trial.error is not None
        say(f"trial {trial.number} failed: {trial.error.describe()}")
    broken = run.broken_rules()
    for rule in broken:
        say(f"broken: {rule}", style="red")
    if run.state.units and not broken:
        say("every trial visited every partition once an epoch, one unit at a time: yes")
    if run.status != "completed":
        say(f"go on with it, if it is not running now: hopyard run resume {store} {run_id}")


@app.command()
def resume(store: StorePath, run_id: RunId) -> None:
    """Continue a run: start again the command that began it, where it was begun."""
    run = open_run(_open(store), run_id)
    command = run.state.header["command"]
    if run.status == "completed":
        say(f"run {run_id} is finished; see `hopyard run describe {store} {run_id}`.")
        return
    if command["argv"] is None:
        raise UsageError(
            f"run {run_id} was begun from a notebook, a prompt or standard input: there is no command to start again. "
            "Call fit again there, with the same arguments: it goes on."
        )
    if not Path(command["cwd"]).is_dir():
        raise NotFoundError(
            f"run {run_id} was begun in {command['cwd']}, which does not exist here. Start its script yourself, "
            f"with the same store: {' '.join(command['argv'])}"
        )
    say(f"in {command['cwd']}: {' '.join(command['argv'])}")
    status = _start_again(command["argv"], command["cwd"], run_id)
    if status:
        raise typer.Exit(status if status > 0 else 128 - status)
    after = open_run(_open(store), run_id)
    if after.status == "unfinished":
        raise RunInterruptedError(
            f"the command ended, but run {run_id} is still unfinished after {after.state.units} units: its script, "
            "arguments or data have changed since, or seed=None made another run. Undo the change, or let the script "
            f"give run_id={run_id!r}, which says what differs."
        )


def _start_again(argv: list[str], cwd: str, run_id: str) -> int:
    """Its exit status; negative for the signal that ended it. Ctrl-C is the script's to handle."""
    process = subprocess.Popen(argv, cwd=cwd, env={**os.environ, RESUMED_RUN: run_id})
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _open(path: str) -> Store:
    """The store at ``path``, which must exist: looking at a store must not make one.

    Raises:
        NotFoundError: there is no directory.
    """
    store = open_store(path)
    if isinstance(store, LocalStore) and not Path(store.url).is_dir():
        raise NotFoundError(
            f"{path} does not exist here ({Path.cwd()}). Give the path that LocalStore(...) was given."
        )
    return store


def _elsewhere(path: str) -> str:
    """Stores right below ``path`` that hold runs, if any."""
    found = sorted(str(runs.parent) for runs in Path(path).glob("*/runs") if runs.is_dir())
    return f"These do: {', '.join(found)}." if found else "Give the path that LocalStore(...) was given."


def leaderboard(run: Run, most: int = 20) -> Table:
    """The run's trials as a table for the terminal, best first. States are shown unless all are completed."""
    trials = run.state.ranked()
    with_states = any(trial.status != "completed" for trial in trials)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("trial", run.state.metric.key, "epoch", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    if with_states:
        table.add_column("state", no_wrap=True)
    table.add_column("hyperparameters")
    for trial in trials[:most]:
        table.add_row(*_cells(trial, with_states))
    if len(trials) > most:
        table.caption = f"and {len(trials) - most} more"
    return table


def _cells(trial: TrialState, with_state: bool) -> Sequence[str]:
    value = describe_number(trial.best.value if trial.best else None)
    epoch = f"{trial.best.epoch}/{trial.epochs}" if trial.best else str(trial.epochs)
    state = [trial.status] if with_state else []
    return [str(trial.number), value, epoch, f"{trial.seconds:.1f}", *state, describe_params(trial.params)]


def _counted(run: Run) -> str:
    counts = Counter(trial.status for trial in run.state.trials.values())
    states = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{len(run.state.trials)} trials ({states})"


def _best(run: Run) -> str:
    if run.state.best is None:
        return ""
    best = run.state.trials[run.state.best].best
    assert best is not None
    return f"{run.state.metric.key} {describe_number(best.value)}"


def _schedule_in_numbers(run: Run) -> str:
    units = run.units()
    if not units:
        return "no unit is done yet"
    workers = len({unit["w"] for unit in units})
    span = max(unit["z"] for unit in units) - min(unit["a"] for unit in units)
    busy = sum(unit["z"] - unit["a"] for unit in units) / (workers * span)
    written = sum(unit["written"] for unit in units)
    return (
        f"{len(units):,} units on {workers} workers in {span:.1f} s, busy {busy:.0%} of the time; "
        f"{_hops(units):,} hops between workers, {written / 1e6:.1f} MB of states written"
    )


def _hops(units: list[Record]) -> int:
    """How often a trial's next unit was on another worker."""
    places: dict[int, int] = {}
    hops = 0
    for unit in units:
        for trial in unit["t"]:
            hops += places.get(trial, unit["w"]) != unit["w"]
            places[trial] = unit["w"]
    return hops
