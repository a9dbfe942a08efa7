"""``hopyard run``: look at runs, and continue them."""

from __future__ import annotations

import datetime
import subprocess
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hopyard.hopper.state import Record
from hopyard.storage import open_store
from hopyard.tune import Run, list_runs, open_run
from hopyard.tune.progress import describe_params

app = typer.Typer(help="Look at runs, and continue them.", no_args_is_help=True)

StorePath = Annotated[str, typer.Argument(help="The store: what LocalStore(...) was given.")]
RunId = Annotated[str, typer.Argument(help="The run's id, as `hopyard run list` shows it.")]


@app.command("list")
def list_command(store: StorePath) -> None:
    """List the runs of a store."""
    opened = open_store(store)
    table = Table("run", "status", "trials", "units", "best", "begun", box=None, header_style="bold")
    for run_id in list_runs(opened):
        run = open_run(opened, run_id)
        begun = datetime.datetime.fromtimestamp(run.state.header["created"]).strftime("%Y-%m-%d %H:%M")
        table.add_row(
            run_id, run.status, str(len(run.state.trials)), f"{run.state.units:,}", _best(run), begun
        )
    console = Console()
    if table.row_count:
        console.print(table)
    else:
        console.print(
            f"{opened.url} holds no runs. Give the path that LocalStore(...) was given.", markup=False
        )


@app.command()
def describe(
    store: StorePath,
    run_id: RunId,
    most: Annotated[int, typer.Option(help="Trials to show.")] = 20,
) -> None:
    """Show a run: leaderboard, schedule in numbers, failures, and whether the schedule kept its rules."""
    run, console = open_run(open_store(store), run_id), Console()
    settings = run.settings
    console.print(
        f"run {run.run_id}: {run.status}, {settings['kind']} search, seed {settings['seed']}", highlight=False
    )
    console.print(f"search space: {settings['search_space']}", markup=False, highlight=False)
    console.print(leaderboard(run, most))
    console.print(_schedule_in_numbers(run), markup=False, highlight=False)
    for trial in run.failures():
        assert trial.error is not None
        console.print(f"trial {trial.number} failed: {trial.error.describe()}", markup=False, highlight=False)
    broken = run.broken_rules()
    for rule in broken:
        console.print(f"broken: {rule}", markup=False, style="red")
    if not broken:
        console.print(
            "every trial visited every partition once an epoch, one unit at a time: yes", highlight=False
        )


@app.command()
def resume(store: StorePath, run_id: RunId) -> None:
    """Continue a run: start again the command that began it, where it was begun."""
    run = open_run(open_store(store), run_id)
    command = run.state.header["command"]
    if run.status == "completed":
        typer.echo(f"run {run_id} is finished; see `hopyard run describe {store} {run_id}`.")
        return
    if command["argv"] is None:
        typer.echo(
            f"run {run_id} was begun from a notebook, a prompt or standard input: there is no command to start again. "
            "Call fit again there, with the same arguments: it goes on.",
            err=True,
        )
        raise typer.Exit(1)
    sys.exit(subprocess.run(command["argv"], cwd=command["cwd"], check=False).returncode)


def leaderboard(run: Run, most: int = 20) -> Table:
    """The run's trials as a table for the terminal, best first."""
    table = Table("trial", "state", "epochs", "seconds", run.state.metric.key, box=None, header_style="bold")
    table.add_column("hyperparameters")
    for trial in run.state.ranked()[:most]:
        value = "" if trial.best is None else f"{trial.best.value:.5g} (epoch {trial.best.epoch})"
        cells = (str(trial.number), trial.status, str(trial.epochs), f"{trial.seconds:.1f}", value)
        table.add_row(*cells, describe_params(trial.params))
    if len(run.state.trials) > most:
        table.caption = f"and {len(run.state.trials) - most} more"
    return table


def _best(run: Run) -> str:
    if run.state.best is None:
        return ""
    best = run.state.trials[run.state.best].best
    assert best is not None
    return f"{run.state.metric.key} {best.value:.5g}"


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
