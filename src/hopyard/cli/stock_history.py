"""``hopyard stock``: branches, tags, and moving between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hopyard.cli.completing import complete_branch, complete_revision, complete_tag
from hopyard.cli.terminal import JsonOption, say, show_json
from hopyard.documents.stockroom import references_json
from hopyard.stockroom import StockRoom
from hopyard.stockroom.history.commits import short

Delete = Annotated[bool, typer.Option("--delete", "-d", help="Delete it.")]
RevisionArgument = Annotated[
    str,
    typer.Argument(help="A branch, tag, commit, REMOTE/BRANCH, or HEAD~2.", autocompletion=complete_revision),
]


class Side(StrEnum):
    """Whose to have where both changed the same."""

    ours = "ours"
    theirs = "theirs"


ResolveOption = Annotated[
    Side | None, typer.Option(help="Whose to have where both changed the same; none: that is an error.")
]


def branch(
    name: Annotated[
        str | None, typer.Argument(help="A new branch; none: all are listed.", autocompletion=complete_branch)
    ] = None,
    revision: RevisionArgument = "HEAD",
    delete: Delete = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it with commits that are nowhere else.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List branches, or make or delete one."""
    with StockRoom() as room:
        if name is None:
            _show_branches(room, as_json)
        elif delete:
            room.delete_branch(name, force)
            _show({"branch": name, "commit": None}, f"deleted the branch {name}", as_json)
        else:
            commit = room.branch(name, revision)
            go = "" if room.head.branch == name else f"\nto go there: hopyard stock switch {name}"
            _show({"branch": name, "commit": commit}, f"{name} is at {short(commit)}{go}", as_json)


def _show_branches(room: StockRoom, as_json: bool) -> None:
    found, own = room.branches(), room.head.branch
    if as_json:
        show_json(references_json(found, "branch", own))
        return
    for each, commit in found.items():
        say(f"{'*' if each == own else ' '} {each}  {short(commit)}")
    if own is None or room.head.commit is None:
        say(f"* {own or '(no branch)'}  {short(room.head.commit)}")


def tag(
    name: Annotated[
        str | None, typer.Argument(help="A new tag; none: all are listed.", autocompletion=complete_tag)
    ] = None,
    revision: RevisionArgument = "HEAD",
    delete: Delete = False,
    as_json: JsonOption = False,
) -> None:
    """List tags, or make or delete one."""
    with StockRoom() as room:
        if name is None:
            found = room.tags()
            lines = [f"{each}  {short(commit)}" for each, commit in found.items()]
            if lines or as_json:
                _show(references_json(found, "tag"), "\n".join(lines), as_json)
        elif delete:
            room.delete_tag(name)
            _show({"tag": name, "commit": None}, f"deleted the tag {name}", as_json)
        else:
            commit = room.tag(name, revision)
            _show({"tag": name, "commit": commit}, f"{name} is {short(commit)}", as_json)


def _show(value: object, text: str, as_json: bool) -> None:
    """Show ``value`` as JSON, or the text."""
    if as_json:
        show_json(value)
    else:
        say(text)


def switch(
    name: Annotated[
        str, typer.Argument(help="A branch; or a tag or commit.", autocompletion=complete_revision)
    ],
    create: Annotated[bool, typer.Option("--create", "-c", help="Make the branch first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Go to a branch, tag or commit. No data moves."""
    with StockRoom() as room:
        if create:
            room.branch(name)
        head = room.switch(name)
        on = f"on branch {head.branch}" if head.branch else "on no branch; commits are detached"
        _show({"branch": head.branch, "commit": head.commit}, f"{on}, at {short(head.commit)}", as_json)


def merge(
    revision: RevisionArgument,
    resolve: ResolveOption = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the commit.")] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Bring only what has changed from this revision to the other.",
            autocompletion=complete_revision,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge another branch into this one."""
    with StockRoom() as room:
        merged = room.merge(revision, resolve.value if resolve else None, message, base)
        told = f"{merged.how}: {room.head.branch or 'HEAD'} is at {short(merged.commit)}"
        _show({"how": merged.how, "branch": room.head.branch, "commit": merged.commit}, told, as_json)


def revert(
    revision: RevisionArgument,
    parent: Annotated[
        int | None, typer.Option(help="Of a merge: the number of the parent to go back to.")
    ] = None,
    resolve: ResolveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit the opposite of a commit."""
    with StockRoom() as room:
        digest = room.revert(revision, parent, resolve.value if resolve else None)
        _show({"branch": room.head.branch, "commit": digest}, f"committed {short(digest)}", as_json)


def reset(
    revision: Annotated[
        str | None,
        typer.Argument(help="Also let the branch be at this revision.", autocompletion=complete_revision),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Discard what is staged."""
    with StockRoom() as room:
        room.reset(revision)
        told = f"nothing is staged; {room.head.branch or 'HEAD'} is at {short(room.head.commit)}"
        _show({"branch": room.head.branch, "commit": room.head.commit}, told, as_json)


def add(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (branch, switch, merge, tag, revert, reset):
        app.command()(command)
