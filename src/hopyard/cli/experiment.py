"""``hopyard experiment``: look at experiments and their results; commands that change them: ``experiment_commands``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hopyard.cli import experiment_commands, run_results
from hopyard.cli.experiment_store import (
    ExperimentId,
    ExperimentIds,
    KeptTrial,
    LoggedTrialOption,
    StoreOption,
    open_store_of,
    option_of,
)
from hopyard.cli.run import count_trials, describe_begin, describe_status, looked_at, show_trials
from hopyard.cli.terminal import (
    JsonLinesOption,
    JsonOption,
    complain,
    console,
    say,
    show_json,
    show_json_line,
)
from hopyard.documents.runs import driver_json, run_json, time_json
from hopyard.errors import NotFoundError, UsageError
from hopyard.experiment import config as configs
from hopyard.experiment.checkpoints import Checkpoint, download_checkpoint, list_checkpoints
from hopyard.experiment.conversion import convert
from hopyard.experiment.experiments import (
    UNREADABLE,
    ExperimentSummary,
    list_experiments,
    open_experiment,
)
from hopyard.experiment.logs import LogLine, parse_since, read_logs
from hopyard.experiment.yaml_text import config_text
from hopyard.hopper.history import Totals
from hopyard.hopper.state import ENDED
from hopyard.tune import Run
from hopyard.tune.describing import describe_epochs, describe_holder, describe_number, describe_params
from hopyard.wording import counted, describe_bytes

app: typer.Typer = typer.Typer(
    help="Run experiments that a YAML file describes, look at them, steer them, and continue them.",
    no_args_is_help=True,
)
_checkpoints: typer.Typer = typer.Typer(help="The weights of each trial's best epoch.", no_args_is_help=True)


@app.command("list")
def list_command(store: StoreOption = "experiments", as_json: JsonOption = False) -> None:
    """List the experiments of a store."""
    found = list_experiments(open_store_of(store))
    if as_json:
        show_json([_summary_json(each) for each in found])
        return
    if not found:
        say(
            f"{store} holds no experiments. To run one: hopyard experiment create CONFIG DIR{option_of(store)}"
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("experiment", "name", "status", "begun", "trials"):
        table.add_column(title, no_wrap=True, justify="right" if title == "trials" else "left")
    table.add_column("best")
    for each in found:
        table.add_row(*_line(each))
    console().print(table)
    for each in found:
        if each.error is not None:
            what = "" if each.status == UNREADABLE else f"{each.experiment}: "
            say(f"{what}{each.error}", style="red")


def _line(each: ExperimentSummary) -> tuple[str, ...]:
    if each.status == UNREADABLE:
        return each.experiment, "", UNREADABLE, "", "", ""
    best = "" if each.best is None else f"{each.metric} {describe_number(each.best)}"
    begun = "" if each.created is None else describe_begin(each.created)
    status = describe_status(each.status, each.holder)
    return each.experiment, each.name or "", status, begun, str(each.trials), best


def _summary_json(each: ExperimentSummary) -> dict[str, Any]:
    return {
        "experiment": each.experiment,
        "name": each.name,
        "description": each.description,
        "labels": each.labels,
        "status": each.status,
        "begun": None if each.created is None else time_json(each.created),
        "num_trials": each.trials,
        "metric": each.metric,
        "best": each.best,
        "driver": driver_json(each.holder),
        "error": each.error,
    }


@app.command()
def describe(
    experiment: ExperimentId,
    store: StoreOption = "experiments",
    most: Annotated[
        int | None, typer.Option(help="Trials to show; none: 20, or all with --json.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show an experiment: its configuration, leaderboard, schedule in numbers, and failures."""
    opened = open_store_of(store)
    open_experiment(opened, experiment)
    run, totals, broken = looked_at(opened.runs.at(experiment), experiment)
    if as_json:
        show_json(_described(run, totals, broken, most))
        return
    about, held = run.state.header["experiment"], run.holder
    config = configs.complete(about["config"])
    by = f" by {describe_holder(held)}" if held is not None and run.state.finished is None else ""
    name = "" if config.name is None else f" ({config.name})"
    say(f"{experiment}{name}: {run.status}{by}")
    if config.description:
        say(config.description)
    say(
        f"{config.entrypoint}, searcher {config.searcher.name}, seed {config.seed}; trials train for {about['length']}"
    )
    if about["warm_start"] is not None:
        say(f"trials began from trial {about['warm_start']['trial']} of {about['warm_start']['experiment']}")
    say(f"{count_trials(run)}\n")
    show_trials(run, totals, broken, most)
    if output := _output_of(run):
        say(output)
    option = option_of(store)
    if run.state.gave_up is not None:
        say(
            "mend the code, and create it again; if the code is not to blame, go on with it: hopyard experiment resume "
            f"{experiment}{option}"
        )
    elif run.status in ENDED:
        say(f"get its best weights: hopyard experiment checkpoints download {experiment} best DIR{option}")
    elif run.holder is not None and run.status != "paused":
        say(f"follow it: hopyard experiment logs {experiment} --follow{option}")
    else:
        say(f"go on with it: hopyard experiment resume {experiment}{option}")


def _output_of(run: Run) -> str:
    """Where what the last driver said is, if nobody saw it; else nothing."""
    session = run.state.session
    if "output" not in session:
        return ""
    return f"what its driver said is in {session['output']} on {session['host']}"


def _described(run: Run, totals: Totals, broken: list[str], most: int | None) -> dict[str, Any]:
    about = run.state.header["experiment"]
    config, warm = configs.complete(about["config"]), about["warm_start"]
    others = ("run", "kind", "search_space")
    found = {name: each for name, each in run_json(run, totals, broken, most).items() if name not in others}
    return {
        "experiment": run.run_id,
        "name": config.name,
        "description": config.description,
        "labels": config.labels,
        "config": about["config"],
        "definition": about["definition"],
        "length": about["length"],
        "warm_start": warm and {name: warm[name] for name in ("experiment", "trial", "epoch")},
        "output": run.state.session.get("output"),
        **found,
    }


@app.command()
def logs(
    experiment: ExperimentId,
    store: StoreOption = "experiments",
    trial: LoggedTrialOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on, as lines come, until nobody drives it.")
    ] = False,
    tail: Annotated[int | None, typer.Option(help="Only so many of the last lines.", min=0)] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only lines since then: 10m (of s, m, h, d) ago, or 2026-01-31T10:00:00Z."),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show what trials printed, with the time. Ctrl-C ends the following, not the experiment."""
    opened = open_store_of(store)
    run = open_experiment(opened, experiment)
    if trial is not None and trial not in run.state.trials and not follow:
        raise NotFoundError(
            f"{experiment} has no trial {trial}; it has {len(run.state.trials)} so far, the first is 0. `hopyard "
            f"experiment describe {experiment}` shows them."
        )
    lines = read_logs(opened, experiment, trial=trial, since=_since(since), tail=tail, follow=follow)
    shown = False
    try:
        for line in lines:
            shown = True
            if as_json:
                show_json_line(line)
            else:
                say(_shown(line))
    except KeyboardInterrupt:
        complain(f"{experiment} goes on; this has only looked at it.")
        return
    if not shown and not as_json:
        complain("nothing was printed that these options ask for.")
    if output := _output_of(run):
        complain(output)


def _since(text: str | None) -> datetime | None:
    try:
        return None if text is None else parse_since(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r} is no time. Write 90s, 10m, 2h or 3d, or a time such as 2026-01-31T10:00:00Z."
        ) from None


def _shown(line: LogLine) -> str:
    where = f"worker {line.worker}" if line.trial is None else f"trial {line.trial} · worker {line.worker}"
    return f"{line.time.astimezone():%Y-%m-%d %H:%M:%S} [{where}] {line.text}"


@_checkpoints.command("list")
def list_checkpoints_command(
    experiment: ExperimentId, store: StoreOption = "experiments", as_json: JsonOption = False
) -> None:
    """List the best epochs of all trials, and whether their weights are kept."""
    found = list_checkpoints(open_store_of(store), experiment)
    if as_json:
        show_json([_checkpoint_json(each) for each in found])
        return
    if not found:
        say("no trial has a result so far.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("trial", "epoch", found[0].metric, "size"):
        table.add_column(title, no_wrap=True, justify="right")
    for title in ("kept", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("hyperparameters")
    for each in found:
        table.add_row(
            str(each.trial),
            describe_epochs(each.epoch),
            describe_number(each.value),
            describe_bytes(each.bytes),
            "yes" if each.kept else "no",
            each.status,
            describe_params(each.params),
        )
    console().print(table)


def _checkpoint_json(each: Checkpoint) -> dict[str, Any]:
    return {
        "trial": each.trial,
        "status": each.status,
        "epoch": each.epoch,
        "metric": each.metric,
        "value": each.value,
        "metrics": each.metrics,
        "params": each.params,
        "weights_bytes": each.bytes,
        "kept": each.kept,
    }


@_checkpoints.command()
def download(
    experiment: ExperimentId,
    trial: KeptTrial,
    target: Annotated[Path, typer.Argument(help="A new directory.")],
    store: StoreOption = "experiments",
    as_json: JsonOption = False,
) -> None:
    """Write the best weights of a trial to a directory, with the code and all that is known of them."""
    path = download_checkpoint(open_store_of(store), experiment, target, trial)
    if as_json:
        show_json({"path": path.absolute()})
    else:
        say(f"{path} has weights.safetensors, checkpoint.json, config.yaml, and the code in code/")


@app.command("export")
def export(
    experiment: ExperimentId,
    target: Annotated[
        str,
        typer.Argument(help="A file .jsonl, .csv or .parquet; mlflow:URI; sqlite:///study.db for Optuna."),
    ],
    store: StoreOption = "experiments",
    history: Annotated[bool, typer.Option("--history", help="A row per epoch, not per trial.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    name: Annotated[str | None, typer.Option(help="Of the study, or of the MLflow experiment.")] = None,
) -> None:
    """Write an experiment to a file, to MLflow, or to an Optuna study."""
    run = open_experiment(open_store_of(store), experiment)
    run.export(target, history=history, overwrite=overwrite, name=name)
    say(f"{experiment} is exported to {target}")


@app.command()
def compare(
    experiments: ExperimentIds, store: StoreOption = "experiments", as_json: JsonOption = False
) -> None:
    """Show experiments side by side: what they came to, and the fields in which they differ."""
    opened = open_store_of(store)
    run_results.show_compared([open_experiment(opened, each) for each in experiments], as_json)


@app.command()
def schema() -> None:
    """Print the JSON Schema of configurations, for editors."""
    show_json(configs.schema())


@app.command("convert")
def convert_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A configuration of Determined.")],
    output: Annotated[Path | None, typer.Option(help="The file to write; none: standard output.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a configuration of Determined into one of ours, and say what has no counterpart."""
    made, notes = convert(config_text(config), str(config))
    if output is not None:
        if output.exists():
            raise UsageError(f"{output} exists already. Give another name, or delete it.")
        output.write_text(made, encoding="utf-8")
    if as_json:
        show_json({"yaml": made, "notes": [{"field": path, "advice": advice} for path, advice in notes]})
        return
    if output is None:
        typer.echo(made, nl=False)
    for path, advice in notes:
        complain(f"{path} {advice}")
    if output is not None:
        say(f"{output} is written; {counted(len(notes), 'field')} to look at.")


app.add_typer(_checkpoints, name="checkpoints")
experiment_commands.add_to(app)
