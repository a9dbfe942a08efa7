"""``hopyard data``: look at datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from hopyard.cli.terminal import console
from hopyard.data import inspect as inspect_dataset

app = typer.Typer(help="Look at datasets.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Look at datasets."""


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A store, a prepared dataset, or Parquet files.")],
) -> None:
    """Show the columns, rows, row groups and statistics of a dataset."""
    console().print(inspect_dataset(path))
