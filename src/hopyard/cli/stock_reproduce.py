"""``hopyard stock reproduce``: train a committed search again."""

from __future__ import annotations

from typing import Annotated

import typer

from hopyard.cli.completing import complete_revision, complete_run
from hopyard.cli.terminal import say
from hopyard.stockroom import StockRoom
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
) -> None:
    """Train a search again from the data, code and settings of a commit, and compare the outcome bit by bit.

    The working tree is not looked at, and nothing is written to the stockroom. Ends with status 1 if anything differs.
    """
    with StockRoom() as stock:
        done = train_again(stock, commit, run, trust=trust, num_workers=workers)
    say(str(done), style="green" if done.equal else "red")
    if not done.equal:
        raise typer.Exit(1)
