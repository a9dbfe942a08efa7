"""The tree of all commands."""

from __future__ import annotations

import typer

from hopyard import __version__
from hopyard.cli.commands import Commands
from hopyard.cli.terminal import JsonOption, say, show_json


class _Hopyard(Commands):
    later = {  # noqa: RUF012 - it is never changed
        "demo": (
            "hopyard.cli.demo:demo",
            "Train sixteen networks on scikit-learn's digits over hopping partitions, and show the best one.",
        ),
        "plan": (
            "hopyard.cli.plan:plan",
            "Estimate time, bytes moved and worker hours of a search; show what a searcher would do, in which packs.",
        ),
        "version": None,
        "experiment": (
            "hopyard.cli.experiment:app",
            "Run experiments that a YAML file describes, look at them, steer them, and continue them.",
        ),
        "create": (
            "hopyard.cli.experiment_commands:create_app",
            "Run an experiment: another name of `hopyard experiment create`.",
        ),
        "run": ("hopyard.cli.run:app", "Look at runs, steer them, and continue them."),
        "data": ("hopyard.cli.data:app", "Look at datasets, prepare them, measure them."),
        "store": ("hopyard.cli.store:app", "Try stores, and measure them."),
        "model": (
            "hopyard.cli.model:app",
            "Registered models of a stockroom, of which every version is kept.",
        ),
        "web": ("hopyard.cli.web:web", "Show runs, data and versions in a browser, live."),
        "stock": ("hopyard.cli.stock:app", "Versions of data, models and experiments, beside git."),
    }


app: typer.Typer = typer.Typer(
    name="hopyard",
    help="Train many deep-learning models over one dataset, pick the best, keep every version.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=_Hopyard,
)


@app.callback()
def hopyard() -> None:
    """Train many deep-learning models over one dataset, pick the best, keep every version."""


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    if as_json:
        show_json({"version": __version__})
    else:
        say(__version__)
