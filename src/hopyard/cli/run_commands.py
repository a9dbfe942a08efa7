"""``hopyard run watch|pause|resume|stop|extend|clone``: runs that go on, and runs that should."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopyard import tune
from hopyard.cli.run_lines import RunLines
from hopyard.cli.run_stores import RunId, StorePath, complete_trial, open_existing
from hopyard.cli.terminal import JsonLinesOption, JsonOption, complain, console, say, show_json
from hopyard.errors import NotFoundError, RunHeldError, RunInterruptedError, UsageError
from hopyard.hopper.notice import SIGNALS
from hopyard.hopper.state import ENDED
from hopyard.storage import Store
from hopyard.tune.asking import RESUMED_RUN, TAKEN_OVER_RUN, ask, asked
from hopyard.tune.describing import describe_holder
from hopyard.tune.listing import find_run
from hopyard.tune.progress import ProgressDisplay
from hopyard.tune.watching import status, watch

if TYPE_CHECKING:
    from hopyard.tune import Run


def add_to(app: typer.Typer) -> None:
    """Make these commands of ``app``."""
    app.command("watch")(watch_command)
    for command in (pause, resume, stop, extend, clone):
        app.command()(command)


def watch_command(store: StorePath, run_id: RunId, as_json: JsonLinesOption = False) -> None:
    """Show a run as it goes on, until it ends. Ctrl-C ends the watching, not the run."""
    folder = find_run(open_existing(store), run_id)
    try:
        if as_json:
            lines = RunLines()
            state = watch(folder, run_id, lines)
            lines.ended(state, status(state))
            return
        with ProgressDisplay(console=console()) as progress:
            state = watch(folder, run_id, progress)
    except KeyboardInterrupt:
        (complain if as_json else say)(f"run {run_id} goes on; this has only looked at it.")
        return
    found = status(state)
    more = "" if found in ENDED else f"; go on with it: hopyard run resume {store} {run_id}"
    say(f"run {run_id}: {found}{more}")


def pause(store: StorePath, run_id: RunId) -> None:
    """Let the units under way end and begin no more, until the run is resumed."""
    _ask(open_existing(store), run_id, {"do": "pause"})


def stop(
    store: StorePath,
    run_id: RunId,
    trial: Annotated[
        int | None, typer.Option(help="Stop only this trial.", min=0, autocompletion=complete_trial)
    ] = None,
) -> None:
    """End a run after the units under way, or one trial of it. A run that was stopped can be resumed."""
    _ask(open_existing(store), run_id, {"do": "stop"} if trial is None else {"do": "stop", "trial": trial})


def extend(
    store: StorePath,
    run_id: RunId,
    num_models: Annotated[int | None, typer.Option(help="Trials in all.", min=1)] = None,
    num_epochs: Annotated[int | None, typer.Option(help="Epochs of a trial in all.", min=1)] = None,
) -> None:
    """Give a run a larger budget."""
    if num_models is None and num_epochs is None:
        raise UsageError("extend was given no budget. Give --num-models or --num-epochs: how many in all.")
    _ask(open_existing(store), run_id, {"do": "extend", "num_models": num_models, "num_epochs": num_epochs})


def clone(
    store: StorePath,
    run_id: RunId,
    trial: Annotated[int, typer.Argument(help="Number of the trial.", min=0, autocompletion=complete_trial)],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another value of a hyperparameter, as lr=0.01 or optimizer.lr=0.01; may be repeated.",
        ),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Begin with the trial's last saved weights and the epochs it has made."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Begin a trial like another one, with other hyperparameters, while the run goes on."""
    folder = find_run(open_existing(store), run_id)
    command = {"do": "clone", "trial": trial, "params": _changes(changes or ()), "weights": weights}
    answer = asked(folder, run_id, command)
    if as_json:
        trials = None if answer.record is None else answer.record["begun"]
        show_json({"run": run_id, "clone_of": trial, "trials": trials, "said": answer.said})
    else:
        say(answer.said)


def _changes(given: Sequence[str]) -> dict[str, Any]:
    """Values by the names of hyperparameters, from ``name=value`` with values in YAML."""
    from hopyard.experiment.yaml_text import read_yaml  # takes long to import

    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(
                f"--set {text!r} is no change, which is a name and a value. Write --set lr=0.01."
            )
        if name in found:
            raise UsageError(f"--set gives {name} twice. Leave one of them out.")
        found[name] = read_yaml(value, f"--set {name}")
    return found


def resume(
    store: StorePath,
    run_id: RunId,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Also if another process drives it, which hangs or cannot be reached."
        ),
    ] = False,
) -> None:
    """Continue a run: one that is paused goes on; else the command that began it is started again, where it was."""
    opened = open_existing(store)
    run = tune.open_run(opened, run_id)
    if "experiment" in run.state.header:  # whose configuration and code are in the store
        from hopyard.cli.experiment_commands import resume as resume_experiment  # takes long to import

        resume_experiment(run_id, store, take_over=take_over)
        return
    if run.holder is not None and not take_over:
        if run.status != "paused":
            raise RunHeldError(
                f"run {run_id} is driven by another process ({describe_holder(run.holder)}) and is not paused. Look at "
                f"it with `hopyard run watch {store} {run_id}`. If that process hangs or cannot be reached: "
                f"hopyard run resume --take-over {store} {run_id}"
            )
        _ask(opened, run_id, {"do": "resume"})
        return
    if run.is_done:
        say(f"run {run_id} is finished; see `hopyard run describe {store} {run_id}`.")
        return
    _start_again(run, take_over)
    after = tune.open_run(opened, run_id)
    if after.status == "interrupted" or after.state.sessions == run.state.sessions:
        raise RunInterruptedError(
            f"the command ended, but run {run_id} is still {after.status} after {after.state.so_far}: "
            "its script, arguments or data have changed since, or seed=None made another run. Undo the change, or let "
            f"the script give run_id={run_id!r}, which says what differs."
        )


def _ask(store: Store, run_id: str, command: dict[str, Any]) -> None:
    say(ask(find_run(store, run_id), run_id, command))


def _start_again(run: Run, take_over: bool) -> None:
    """Start the command that began the run, in its folder; ends this one with its status if it fails."""
    command = run.state.header["command"]
    if command["argv"] is None:
        raise UsageError(
            f"run {run.run_id} was begun from a notebook, a prompt or standard input: there is no command to start "
            "again. Call fit again there, with the same arguments: it goes on."
        )
    if not Path(command["cwd"]).is_dir():
        raise NotFoundError(
            f"run {run.run_id} was begun in {command['cwd']}, which does not exist here. Start its script yourself, "
            f"with the same store: {' '.join(command['argv'])}"
        )
    say(f"in {command['cwd']}: {' '.join(command['argv'])}")
    found = {RESUMED_RUN: run.run_id} | ({TAKEN_OVER_RUN: run.run_id} if take_over else {})
    process = subprocess.Popen(command["argv"], cwd=command["cwd"], env={**os.environ, **found})
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}  # Ctrl-C reaches the script, too
    for number in SIGNALS:  # which whoever started this process may send to it alone
        before[number] = signal.signal(number, lambda given, _: process.send_signal(given))
    try:
        ended = process.wait()  # negative for the signal that ended it
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended:
        raise typer.Exit(ended if ended > 0 else 128 - ended)
