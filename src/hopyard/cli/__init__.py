"""The command line: thin; every number it shows comes from a function that users can call."""

from __future__ import annotations

import sys

import typer

from hopyard import __version__
from hopyard.cli import data, demo, plan, run, run_commands, run_results, stock, stock_reproduce
from hopyard.cli.terminal import Commands, complain, say
from hopyard.errors import HopyardError

app = typer.Typer(
    name="hopyard",
    help="Train many deep-learning models over one dataset, pick the best, keep every version.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=Commands,
)
app.command("demo")(demo.demo)
app.command("plan")(plan.plan)
run_commands.add_to(run.app)
run_results.add_to(run.app)
app.add_typer(run.app, name="run")
app.add_typer(data.app, name="data")
app.add_typer(stock.app, name="stock")
stock.app.command("reproduce")(stock_reproduce.reproduce)


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)


def main() -> None:
    """The ``hopyard`` command. An error that a user can mend ends it with its message and status 1."""
    _run(app)


def stock_main() -> None:
    """The ``stock`` command, which is ``hopyard stock``."""
    _run(stock.app)


def _run(command: typer.Typer) -> None:
    try:
        command()
    except HopyardError as error:
        complain(f"{type(error).__name__}: {error}")
        sys.exit(1)
