"""``hopyard experiment create|resume|fork|pause|stop|kill|delete``: experiments that begin, go on and end."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hopyard.cli.experiment_store import (
    BackendOption,
    ExperimentId,
    FollowOption,
    OverridesOption,
    StoppedTrialOption,
    StoreOption,
    TakeOverOption,
    WarmStartOption,
    WorkersOption,
    open_store_of,
    option_of,
)
from hopyard.cli.terminal import JsonOption, complain, say, show_json
from hopyard.experiment.config import ExperimentConfig, files_of, read_config
from hopyard.experiment.definition import pack
from hopyard.experiment.differences import OtherExperiment, differing_namesake, forked_from
from hopyard.experiment.driver import Driving, Started, check_result
from hopyard.experiment.experiments import (
    check_paused,
    forked,
    open_experiment,
    resumed,
)
from hopyard.experiment.experiments import delete as delete_experiment
from hopyard.hopper.state import ENDED
from hopyard.tune import Run
from hopyard.tune.describing import describe_number
from hopyard.wording import some_lines

_DIFFERENCES_SHOWN = 10

create_app: typer.Typer = typer.Typer(
    help="Run an experiment: another name of `hopyard experiment create`.", no_args_is_help=True
)


@create_app.callback()
def _create() -> None:
    """Run an experiment: another name of `hopyard experiment create`."""


def add_to(app: typer.Typer) -> None:
    """Make these commands of ``app``."""
    for command in (create, pause, resume, stop, kill, fork, delete):
        app.command()(command)
    app.command("continue", help="Another name of `hopyard experiment resume`.")(resume)


@create_app.command("experiment")
def create(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration, a YAML file.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory with the code of the trials.")
    ],
    store: StoreOption = "experiments",
    backend: BackendOption = None,
    workers: WorkersOption = None,
    template: Annotated[
        Path | None, typer.Option(help="A YAML file that gives what the configuration does not say.")
    ] = None,
    overrides: OverridesOption = None,
    test: Annotated[
        bool, typer.Option("--test", help="Run one batch of everything, and begin no experiment.")
    ] = False,
    follow: FollowOption = True,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, beside one with the same configuration and code.")
    ] = False,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment; the same configuration and code again go on where it stopped."""
    made = read_config(config, template, overrides or ())
    _warn(made)
    opened = open_store_of(store, make=True)
    packed = pack(directory, opened, files_of(config, template))
    driving = Driving(made, packed.digest, opened, backend, workers, fresh=fresh, take_over=take_over)
    if not test:
        namesake = differing_namesake(opened, made, packed.digest)
        if namesake is not None and not as_json:  # the document has it
            is_other = f"this is another experiment than {namesake.experiment}, the newest of its name:"
            say(_with_differences(is_other, namesake))
        _drive(driving, store, follow, as_json, namesake)
        return
    with _progress_on_stderr(as_json):
        driving.here(progress=True, test=True)
        say("one batch of everything works; no experiment was begun.")
    if as_json:
        show_json(_outcome(None, "tested"))


def pause(experiment: ExperimentId, store: StoreOption = "experiments") -> None:
    """Let the units under way end and begin no more, until the experiment is resumed."""
    say(open_experiment(open_store_of(store), experiment).pause())


def stop(
    experiment: ExperimentId,
    store: StoreOption = "experiments",
    trial: StoppedTrialOption = None,
) -> None:
    """End an experiment after the units under way, or one trial of it. It can be resumed."""
    say(open_experiment(open_store_of(store), experiment).stop(trial))


def kill(experiment: ExperimentId, store: StoreOption = "experiments") -> None:
    """End an experiment now: units under way are given up, and done again if it is resumed."""
    say(open_experiment(open_store_of(store), experiment).kill())


def resume(
    experiment: ExperimentId,
    store: StoreOption = "experiments",
    backend: BackendOption = None,
    workers: WorkersOption = None,
    take_over: TakeOverOption = False,
    follow: FollowOption = True,
    as_json: JsonOption = False,
) -> None:
    """Go on with an experiment: one that is paused, or one that nobody drives, from what the store has of it."""
    opened = open_store_of(store)
    run = open_experiment(opened, experiment)
    if run.is_done or (run.holder is not None and not take_over):
        check_paused(opened, run)
        said = run.resume() if run.holder is not None else f"{experiment} is finished."
        if as_json:
            show_json(_outcome(run, run.status))
        else:
            say(said)
        return
    driving = resumed(opened, run, backend, workers, take_over=take_over)
    _drive(driving, store, follow, as_json)


def fork(
    experiment: ExperimentId,
    store: StoreOption = "experiments",
    overrides: OverridesOption = None,
    warm_start: WarmStartOption = None,
    backend: BackendOption = None,
    workers: WorkersOption = None,
    follow: FollowOption = True,
    as_json: JsonOption = False,
) -> None:
    """Run another experiment with the same code and a changed configuration."""
    opened = open_store_of(store)
    driving = forked(opened, experiment, overrides or (), backend, workers, warm_start=warm_start)
    _warn(driving.config)
    other = forked_from(opened, experiment, driving.config)
    if other.fields and not as_json:
        say(_with_differences(f"this fork of {experiment} changes:", other))
    _drive(driving, store, follow, as_json, other)


def delete(
    experiment: ExperimentId,
    store: StoreOption = "experiments",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete an experiment: its journal, states, logs and TensorBoard files; its code if no other one has the same."""
    opened = open_store_of(store)
    if not yes:
        typer.confirm(f"Delete {experiment} with all its results?", abort=True, err=True)
    delete_experiment(opened, experiment)
    say(f"{experiment} is deleted.")


def _warn(config: ExperimentConfig) -> None:
    for path, rule in config.warnings():
        complain(f"warning: {path} {rule}")


@contextlib.contextmanager
def _progress_on_stderr(as_json: bool) -> Any:
    """What is shown within goes to standard error where standard output is for JSON."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


def _drive(
    driving: Driving, store: str, follow: bool, as_json: bool, other: OtherExperiment | None = None
) -> None:
    """Drive an experiment here, which ends the command with status 1 unless it was completed; or detached."""
    if not follow:
        started = driving.detached()
        if as_json:
            run = open_experiment(driving.store, started.experiment)
            show_json(_outcome(run, run.status, started, other))
            return
        name, option = started.experiment, option_of(store)
        say(f"{name}: trials train for {started.length}.")
        say(f"process {started.pid} drives it; what it says is in {started.output}")
        say(f"follow it: hopyard experiment logs {name} --follow{option}")
        return
    with _progress_on_stderr(as_json):
        done = driving.here(progress=True)
    assert done is not None
    if as_json:
        show_json(_outcome(done, done.status, other=other))
    check_result(done)
    if not as_json:
        say(_conclusion(done, option_of(store)))
    if done.status != "completed":
        raise typer.Exit(1)


def _conclusion(run: Run, option: str) -> str:
    best = None if run.state.best is None else run.state.trials[run.state.best]
    value = "" if best is None or best.best is None else describe_number(best.best.value)
    found = "" if best is None else f", best {run.state.metric.key} {value} in trial {best.number}"
    again = f"see it: hopyard experiment describe {run.run_id}{option}"
    if run.status not in ENDED:
        again = f"go on with it: hopyard experiment resume {run.run_id}{option}"
    return f"{run.run_id}: {run.status}{found}\n{again}"


def _with_differences(title: str, other: OtherExperiment) -> str:
    return "\n  ".join([title, *some_lines(other.lines, _DIFFERENCES_SHOWN)])


def _outcome(
    run: Run | None, status: str, started: Started | None = None, other: OtherExperiment | None = None
) -> dict[str, Any]:
    """What the commands that drive print as JSON; docs/cli.md documents the keys."""
    state = None if run is None else run.state
    best = None if state is None or state.best is None else state.trials[state.best]
    return {
        "experiment": None if run is None else run.run_id,
        "status": status,
        "length": None if state is None else state.header["experiment"]["length"],
        "num_trials": None if state is None else len(state.trials),
        "best_trial": None if best is None else best.number,
        "metric": None if state is None else state.metric.key,
        "best": None if best is None or best.best is None else best.best.value,
        "pid": None if started is None else started.pid,
        "output": None if started is None else started.output,
        "differs_from": None
        if other is None
        else {
            "experiment": other.experiment,
            "fields": list(other.fields),
            "files": list(other.files),
        },
    }
