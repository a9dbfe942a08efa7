"""``hopyard stock reproduce``: train a committed search again."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Any

import typer

from hopyard.cli.completing import complete_revision, complete_run
from hopyard.cli.terminal import JsonOption, say, show_json
from hopyard.stockroom import StockRoom
from hopyard.tune.reproduce import Reproduction
from hopyard.tune.reproduce import reproduce as train_again


def reproduce(
    commit: Annotated[
        str,
        typer.Argument(
            help="A commit, branch or tag that has a search with stock=.", autocompletion=complete_revision
        ),
    ] = "HEAD",
    run: Annotated[
        str | None,
        typer.Option(
            help="The run's id; needed if the commit has brought more than one.", autocompletion=complete_run
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that was committed, with all your rights.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes to train on.", min=1)] = 1,
    as_json: JsonOption = False,
) -> None:
    """Train a search again from the data, code and settings of a commit, and compare the outcome bit by bit.

    The working tree is not looked at, and nothing is written to the stockroom. Ends with status 1 if anything differs.
    """
    # Progress, and what the committed code prints, is not of the document.
    with StockRoom() as stock, redirect_stdout(sys.stderr) if as_json else nullcontext():
        done = train_again(stock, commit, run, trust=trust, num_workers=workers)
    if as_json:
        show_json(_reproduction_json(done))
    else:
        say(str(done), style="green" if done.equal else "red")
    if not done.equal:
        raise typer.Exit(1)


def _reproduction_json(done: Reproduction) -> dict[str, Any]:
    return {
        "equal": done.equal,
        "commit": done.commit,
        "run": done.run_id,
        "num_tensors": done.num_tensors,
        "num_series": done.num_series,
        "tensors": done.tensors,
        "histories": done.histories,
        "environment": done.environment,
    }
