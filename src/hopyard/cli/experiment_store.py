"""Common part of the commands on experiments: their store and ids, and who drives them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import typer

from hopyard.cli.run_stores import names_beginning, open_existing
from hopyard.experiment.checkpoints import list_checkpoints
from hopyard.experiment.driver import BACKENDS
from hopyard.experiment.experiments import experiment_ids, open_experiment
from hopyard.storage import Store, open_store

STORE_VARIABLE = "HOPYARD_STORE"
DEFAULT_STORE = "experiments"


def _complete_experiment(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of experiments of the store that begin so."""
    return names_beginning(incomplete, lambda: experiment_ids(_store_of(ctx)))


def _complete_trial(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of trials of the experiment that was named, that begin so."""
    return names_beginning(
        incomplete, lambda: map(str, open_experiment(_store_of(ctx), _named(ctx)).state.trials)
    )


def _complete_weights(ctx: typer.Context, incomplete: str) -> list[str]:
    """Trials of the experiment that was named whose weights are kept, as ``best`` and by number, that begin so."""

    def trials() -> Iterator[str]:
        kept = [each.trial for each in list_checkpoints(_store_of(ctx), _named(ctx)) if each.kept]
        yield from ("best", *map(str, sorted(kept))) if kept else ()

    return names_beginning(incomplete, trials)


def _store_of(ctx: typer.Context) -> Store:
    # An option that stands behind the id is not parsed by then.
    return open_existing(ctx.params.get("store") or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


def _named(ctx: typer.Context) -> str:
    """The id of the experiment that was named."""
    # An option without its value yet ends parsing before the arguments are named.
    return ctx.params.get("experiment") or next(iter(ctx.args), "")


def _complete_backend(incomplete: str) -> list[str]:
    return [name for name in BACKENDS if name.startswith(incomplete)]


StoreOption = Annotated[
    str, typer.Option("--store", envvar=STORE_VARIABLE, help="The store of the experiments: a path or a URL.")
]
ExperimentId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The experiment's id, as `hopyard experiment list` shows it.",
        autocompletion=_complete_experiment,
    ),
]
ExperimentIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...", help="Ids of experiments, at least one.", autocompletion=_complete_experiment
    ),
]
StoppedTrialOption = Annotated[
    int | None, typer.Option("--trial", help="Stop only this trial.", min=0, autocompletion=_complete_trial)
]
LoggedTrialOption = Annotated[
    int | None,
    typer.Option("--trial", help="Only what this trial printed.", min=0, autocompletion=_complete_trial),
]
KeptTrial = Annotated[
    str, typer.Argument(help="Number of the trial, or best.", autocompletion=_complete_weights)
]
WarmStartOption = Annotated[
    str | None,
    typer.Option(
        "--warm-start",
        metavar="TRIAL",
        help="All trials begin from the best weights of this trial of the first experiment: a number, or best.",
        autocompletion=_complete_weights,
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="Where trials run: local, ray or spark. None: local; of one that goes on, where it ran last.",
        autocompletion=_complete_backend,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Units that run at once; none: as the configuration says."),
]
TakeOverOption = Annotated[
    bool,
    typer.Option("--take-over", help="Also if another process drives it, which hangs or cannot be reached."),
]
FollowOption = Annotated[
    bool,
    typer.Option(
        "--follow/--detach",
        "-f/-d",
        help="Stay, and show it as it goes on; or return at once, and have a process in the background drive it.",
    ),
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="KEY=VALUE", help="Changes a field, as searcher.max_trials=4; may be repeated."
    ),
]


def open_store_of(path: str, *, make: bool = False) -> Store:
    """The store, which must exist, unless an experiment is to be begun in it.

    Raises:
        NotFoundError: it does not.
    """
    if make:
        return open_store(path)
    return open_existing(path, f"Give --store PATH, or set {STORE_VARIABLE}.")


def option_of(store: str) -> str:
    """The option that names the store in a command that is shown; empty where it need not be given."""
    if store == (os.environ.get(STORE_VARIABLE) or DEFAULT_STORE):
        return ""
    return f" --store {store}"
