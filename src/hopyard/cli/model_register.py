"""``hopyard model register``, which needs searches besides stockrooms."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hopyard.cli.completing import complete_model, complete_run
from hopyard.cli.model import Description, Labels, Name, check_nothing_staged, show_changed
from hopyard.cli.run_stores import complete_run_of_store, open_existing
from hopyard.cli.terminal import JsonOption
from hopyard.errors import UsageError
from hopyard.stockroom import StockRoom
from hopyard.tune import open_run
from hopyard.tune.registering import in_a_block


def _complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs that begin so: of the store that was named, else of the experiment shelf."""
    return complete_run_of_store(ctx, incomplete) if ctx.params.get("store") else complete_run(incomplete)


def register(
    name: Name,
    model: Annotated[
        str | None,
        typer.Argument(
            help="On the model shelf; none: what the run has made.", autocompletion=complete_model
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Id of the run that made it.", autocompletion=_complete_run)
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="The store of the run of a search; none: the run is on the experiment shelf."),
    ] = None,
    trial: Annotated[int | None, typer.Option(help="Of the run in the store; none: the best one.")] = None,
    description: Description = None,
    label: Labels = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Beside those of the run: name=number; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Register the next version of a model, and commit it: one of the model shelf, or of a search in a store."""
    more: dict[str, Any] = {"description": description or "", "labels": label or ()}
    metrics = dict(map(_metric, metric or ()))
    if store is None and trial is not None:
        raise UsageError(
            f"--trial {trial} was given without --store, in which the run of the search is. Give both."
        )
    if store is not None and (run is None or model is not None or metrics):
        raise UsageError(
            "With --store the model of a search is registered, which --run names, with its own metrics. Give --store "
            "STORE --run RUN, and neither a model of the shelf nor --metric."
        )
    with StockRoom() as room:
        check_nothing_staged(room)
        if store is not None:
            opened = open_run(open_existing(store), str(run))
            found = opened.best if trial is None else opened.model(trial)
            version = found.register(room, name, **more)
        else:
            version = in_a_block(
                room, lambda: room.registry.register(name, model, run=run, metrics=metrics, **more)
            )
        show_changed(room, room.registry.version(name, version.number), as_json)


def _metric(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"--metric {text!r} must be name=number: --metric accuracy=0.97.") from None
