"""``hopyard model``: the registry of a stockroom."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from hopyard.cli.commands import Commands
from hopyard.cli.completing import complete_number, complete_registered, complete_revision, complete_version
from hopyard.cli.terminal import JsonOption, console, say, show_json
from hopyard.errors import UsageError
from hopyard.stockroom import StockRoom
from hopyard.stockroom.catalog.registry import TITLES, ModelVersion, Registry, version_row
from hopyard.stockroom.catalog.shelves import Shelves
from hopyard.stockroom.history.commits import short


class _Model(Commands):
    later = {  # noqa: RUF012 - it is never changed
        "register": (
            "hopyard.cli.model_register:register",
            "Register the next version of a model, and commit it: one of the model shelf, or of a search in a store.",
        ),
        "list": None,
        "describe": None,
        "download": None,
        "change": None,
        "renumber": None,
    }


app: typer.Typer = typer.Typer(
    help="Registered models of a stockroom, of which every version is kept.", no_args_is_help=True, cls=_Model
)

Name = Annotated[str, typer.Argument(help="Of the registered model.", autocompletion=complete_registered)]
Version = Annotated[
    str | None,
    typer.Option(
        "--version",
        "-v",
        help="A number, or a label, of which the latest counts; none: the latest version.",
        autocompletion=complete_version,
    ),
]
At = Annotated[
    str | None,
    typer.Option("--at", help="A revision; none: the present one.", autocompletion=complete_revision),
]
Description = Annotated[str | None, typer.Option("--description", "-d", help="Any text.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="A word for people, as production; may be repeated.")
]


@app.command("list")
def list_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Its versions, the newest first; none: all models, of each the latest version.",
            autocompletion=complete_registered,
        ),
    ] = None,
    at: At = None,
    as_json: JsonOption = False,
) -> None:
    """List registered models, or the versions of one."""
    with StockRoom() as room:
        registry = _at(room, at).registry
        found = _versions(registry, name)
        if as_json:
            show_json([version_json(each) for each in found])
            return
        if not found:
            say("no model is registered. To register one: hopyard model register NAME MODEL")
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in TITLES:
            table.add_column(
                title, justify="right" if title == "version" else "left", no_wrap=title in TITLES[:2]
            )
        for each in found:
            table.add_row(*version_row(each))
        console().print(table)


@app.command()
def describe(name: Name, version: Version = None, at: At = None, as_json: JsonOption = False) -> None:
    """Show a version: metrics, parameters, labels, and where it came from."""
    with StockRoom() as room:
        found = _version(room, at, name, version)
        if as_json:
            show_json(version_json(found))
            return
        say(f"{found.name}, version {found.number}")
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in found.lines():
            table.add_row(*row)
        console().print(table)


@app.command()
def download(
    name: Name,
    target: Annotated[
        str,
        typer.Argument(help="X.safetensors: the weights; else a new folder, which hopyard.load_model reads."),
    ],
    version: Version = None,
    at: At = None,
    as_json: JsonOption = False,
) -> None:
    """Write a version to a file or folder; weights that are not here are fetched."""
    with StockRoom() as room:
        found = _version(room, at, name, version)
        path = found.download(target)
        if as_json:
            show_json({**version_json(found), "path": path.absolute()})
            return
        say(f"version {found.number} of {name} is in {path}")
        if path.is_dir():
            say(
                f"it holds code, which runs when it is loaded. If you trust it: hopyard.load_model({str(path)!r})"
            )


@app.command()
def change(
    name: Name,
    version: Version = None,
    description: Description = None,
    label: Labels = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Take its labels off.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a version another description, or other labels, and commit that."""
    if description is None and not label and not no_labels:
        raise UsageError("nothing was to be changed. Give --description, --label or --no-labels.")
    if label and no_labels:
        raise UsageError(
            "--label was given with --no-labels. Give one of them; the labels given replace all."
        )
    labels = [] if no_labels else label or None
    with StockRoom() as room:
        check_nothing_staged(room)
        with room.enable_write():
            found = room.registry.change(name, _which(version), description=description, labels=labels)
        show_changed(room, found, as_json)


@app.command()
def renumber(
    name: Name,
    version: Annotated[int, typer.Argument(help="Its number now.", autocompletion=complete_number)],
    number: Annotated[int | None, typer.Argument(help="Above all others; none: the next one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a version another number, and commit that: for a merge of branches that both registered a version of its
    number."""
    with StockRoom() as room:
        check_nothing_staged(room)
        with room.enable_write():
            found = room.registry.renumber(name, version, number)
        show_changed(room, found, as_json)


def version_json(version: ModelVersion) -> dict[str, Any]:
    """A version as ``--json`` prints it; docs/cli.md documents the keys."""
    source = version.source
    return {
        "model": version.name,
        "version": version.number,
        "description": version.description,
        "labels": version.labels,
        "metrics": version.metrics,
        "params": version.params,
        "commit": source.commit,
        "from_model": source.model,
        "run": source.run,
        "trial": source.trial,
        "epoch": source.epoch,
        "data": source.data,
        "registered": version.registered,
        "author": version.author,
        "weights_digest": version.digest,
        "weights_bytes": version.nbytes,
        "loadable": version.is_loadable,
    }


def _versions(registry: Registry, name: str | None) -> list[ModelVersion]:
    if name is None:
        return [model.latest for model in registry.values()]
    return list(registry[name].values())[::-1]


def _version(room: StockRoom, at: str | None, name: str, version: str | None) -> ModelVersion:
    return _at(room, at).registry.version(name, _which(version))


def _at(room: StockRoom, at: str | None) -> Shelves:
    return room if at is None else room.at(at)


def _which(version: str | None) -> int | str | None:
    return int(version) if version is not None and version.isdecimal() else version


def check_nothing_staged(room: StockRoom) -> None:
    """Raise a UsageError if something is staged."""
    if room.status().staged:
        raise UsageError(
            "something is staged, which would be committed along. Commit it first (hopyard stock commit), or discard "
            "it (hopyard stock reset); hopyard stock status shows it."
        )


def show_changed(room: StockRoom, version: ModelVersion, as_json: bool) -> None:
    """Say, or print as JSON, which version was committed, and where."""
    if as_json:
        show_json(version_json(version))
        return
    branch = room.head.branch or "no branch"
    say(f"{version.name}, version {version.number}, is committed as {short(room.head.commit)} on {branch}")
