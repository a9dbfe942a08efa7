"""``hopyard run compare|export``: the results of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from hopyard import tune
from hopyard.cli.run_stores import RunId, StorePath, complete_run_of_store, open_existing
from hopyard.cli.terminal import JsonOption, console, say, show_json
from hopyard.documents.runs import compared_json
from hopyard.tune.comparing import compared_rows
from hopyard.tune.describing import describe_epochs, describe_number, describe_params

if TYPE_CHECKING:
    from hopyard.tune import Run


def add_to(app: typer.Typer) -> None:
    """Make these commands of ``app``."""
    app.command("compare")(compare_command)
    app.command()(export)


def compare_command(
    store: StorePath,
    run_ids: Annotated[
        list[str],
        typer.Argument(help="Ids of runs, at least one.", autocompletion=complete_run_of_store),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show runs side by side: what they came to, and the settings in which they differ."""
    opened = open_existing(store)
    show_compared([tune.open_run(opened, run_id) for run_id in run_ids], as_json)


def show_compared(runs: Sequence[Run], as_json: bool) -> None:
    """Show runs side by side."""
    found = compared_rows(runs)
    if as_json:
        show_json(compared_json(found))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    kinds = {row["kind"] for row in found}
    first = "experiment" if kinds == {"experiment"} else "run"
    for title in (first, "status", "trials", "epochs", "best", "seconds"):
        table.add_column(title, no_wrap=True, justify="left" if title in (first, "status") else "right")
    table.add_column("differs in")
    table.add_column("best hyperparameters")
    for row in found:
        best = None if row["params"] is None else row["best"]
        table.add_row(
            row["run"],
            row["status"],
            f"{row['trials']:,}",
            describe_epochs(row["epochs"]),
            describe_number(best),
            f"{row['seconds']:.1f}",
            describe_params(({"kind": row["kind"]} if len(kinds) > 1 else {}) | row["settings"]),
            describe_params(row["params"] or {}),
        )
    console().print(table)
    for row in found:
        if row["note"]:
            say(f"{row['run']}: {row['note']}; its best value cannot be compared", style="yellow")


def export(
    store: StorePath,
    run_id: RunId,
    target: Annotated[
        str,
        typer.Argument(help="A file .jsonl, .csv or .parquet; mlflow:URI; sqlite:///study.db for Optuna."),
    ],
    history: Annotated[bool, typer.Option("--history", help="A row per epoch, not per trial.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    name: Annotated[str | None, typer.Option(help="Of the study, or of the MLflow experiment.")] = None,
) -> None:
    """Write a run to a file, to MLflow, or to an Optuna study."""
    run = tune.open_run(open_existing(store), run_id)
    run.export(target, history=history, overwrite=overwrite, name=name)
    say(f"run {run_id} is exported to {target}")
