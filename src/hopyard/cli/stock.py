"""``hopyard stock``: versions of data, models and experiments beside git."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hopyard.cli import stock_history, stock_remotes, stock_things
from hopyard.cli.commands import Commands
from hopyard.cli.completing import complete_revision
from hopyard.cli.terminal import JsonOption, say, show_json
from hopyard.documents.stockroom import commits_json, differences_json, status_json
from hopyard.stockroom import StockRoom
from hopyard.stockroom.git import Place, at, driver
from hopyard.stockroom.history.commits import short
from hopyard.stockroom.history.graph import graph as draw_graph
from hopyard.stockroom.session.git_driver import run_driver
from hopyard.terminal import Terminal
from hopyard.wording import counted, one_line


class _Stock(Commands):
    later = {  # noqa: RUF012 - it is never changed
        "reproduce": (
            "hopyard.cli.stock_reproduce:reproduce",
            "Train a search again from the data, code and settings of a commit, and compare the outcome bit by bit.",
        ),
        "remote": None,
    }


app: typer.Typer = typer.Typer(
    name="stock",
    help="Versions of data, models and experiments, beside git.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    cls=_Stock,
)


@app.callback()
def stock() -> None:
    """Versions of data, models and experiments, beside git."""


@app.command()
def init(
    path: Annotated[str, typer.Argument(help="The folder; it is made if need be.")] = ".",
    git_driver: Annotated[
        bool, typer.Option("--git-driver", help="Also let git merge call Hopyard for head.stock.")
    ] = False,
) -> None:
    """Make a stockroom in a folder."""
    if git_driver and at(Path(path)).head.exists():
        _install_driver(at(Path(path)))
        return
    with StockRoom.init(path) as room:
        say(f"a stockroom is in {room.place.root}; its objects are in {room.place.objects}")
        if git_driver:
            _install_driver(room.place)
        if room.place.git is not None:
            say(
                "add head.stock to git, so that it knows which data belong to each of its commits: git add head.stock"
            )
        for text in room.status().advice:
            say(text)
    say("next: hopyard stock import NAME, or in Python: with StockRoom().enable_write() as stock: ...")


def _install_driver(place: Place) -> None:
    driver.install(place)
    say("git merge now calls Hopyard for head.stock, in this clone. For others: git add .gitattributes")


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Show the branch, and what is staged."""
    with StockRoom() as room:
        found = room.status()
    if as_json:
        show_json(status_json(found))
    else:
        say(str(found))


@app.command()
def commit(
    message: Annotated[
        list[str], typer.Option("--message", "-m", help="What was done; several are its paragraphs.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Commit what is staged."""
    with StockRoom(enable_write=True) as room:
        count = len(room.status().staged)
        digest = room.commit("\n\n".join(message))
        if as_json:
            show_json({"commit": digest, "branch": room.head.branch, "things": count})
        else:
            say(
                f"committed {counted(count, 'thing')} as {short(digest)} on {room.head.branch or 'no branch'}"
            )


@app.command()
def log(
    revisions: Annotated[
        list[str] | None,
        typer.Argument(help="Where to begin; none: where this is.", autocompletion=complete_revision),
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw branches and merges.")] = False,
    all_branches: Annotated[bool, typer.Option("--all", help="Of all branches, tags and remotes.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="So many commits at most.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List commits, the latest first."""
    with StockRoom() as room:
        commits = room.log(*(revisions or []), limit=limit, branches="all" if all_branches else "these")
        labels = room.labels()
        if as_json:
            show_json(commits_json(commits, labels))
            return
        drawn = draw_graph(commits) if graph else [("", commit) for commit in commits]
        terminal = Terminal()
        width = terminal.width if terminal.is_terminal else None
        for lanes, each in drawn:
            line = lanes
            if each is not None:
                time = datetime.fromisoformat(each.time).astimezone().strftime("%Y-%m-%d %H:%M")
                named = "".join(f" ({label})" for label in labels.get(each.digest, []))
                author = one_line(each.author.partition(" <")[0])
                message = one_line(each.message.partition("\n")[0])
                line = f"{lanes} {short(each.digest)} {time} {author}{named}  {message}".lstrip()
            say(line if width is None or len(line) <= width else line[: width - 3] + "...")
        if not commits:
            say("nothing is committed yet")


@app.command()
def diff(
    a: Annotated[
        str | None,
        typer.Argument(
            help="From this revision; none: the commit that this is at.", autocompletion=complete_revision
        ),
    ] = None,
    b: Annotated[
        str | None,
        typer.Argument(help="To this one; none: what is staged.", autocompletion=complete_revision),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what differs: samples, tensors and how far they moved, values, files."""
    with StockRoom() as room:
        found = room.diff(a, b)
        if as_json:
            show_json(differences_json(found))
        else:
            say(str(found))


@app.command(hidden=True)
def merge_driver(base: str, ours: str, theirs: str, path: str) -> None:
    """What git calls to merge head.stock: three versions of it, and which one it is."""
    raise typer.Exit(run_driver(Path(base), Path(ours), Path(theirs), Path(path)))


stock_history.add(app)
stock_things.add(app)
stock_remotes.add(app)
