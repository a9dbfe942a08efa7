"""``hopyard stock``: branches, tags, and moving between them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hopyard.cli.completing import complete_branch, complete_revision, complete_tag
from hopyard.cli.terminal import say
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
) -> None:
    """List branches, or make or delete one."""
    with StockRoom() as room:
        if name is None:
            own = room.head.branch
            for each, commit in room.branches().items():
                say(f"{'*' if each == own else ' '} {each}  {short(commit)}")
            if own is None or room.head.commit is None:
                say(f"* {own or '(no branch)'}  {short(room.head.commit)}")
        elif delete:
            room.delete_branch(name, force)
            say(f"deleted the branch {name}")
        else:
            say(f"{name} is at {short(room.branch(name, revision))}")
            if room.head.branch != name:
                say(f"to go there: hopyard stock switch {name}")


def tag(
    name: Annotated[
        str | None, typer.Argument(help="A new tag; none: all are listed.", autocompletion=complete_tag)
    ] = None,
    revision: RevisionArgument = "HEAD",
    delete: Delete = False,
) -> None:
    """List tags, or make or delete one."""
    with StockRoom() as room:
        if name is None:
            for each, commit in room.tags().items():
                say(f"{each}  {short(commit)}")
        elif delete:
            room.delete_tag(name)
            say(f"deleted the tag {name}")
        else:
            say(f"{name} is {short(room.tag(name, revision))}")


def switch(
    name: Annotated[
        str, typer.Argument(help="A branch; or a tag or commit.", autocompletion=complete_revision)
    ],
    create: Annotated[bool, typer.Option("--create", "-c", help="Make the branch first.")] = False,
) -> None:
    """Go to a branch, tag or commit. No data moves."""
    with StockRoom() as room:
        if create:
            room.branch(name)
        head = room.switch(name)
        on = f"on branch {head.branch}" if head.branch else "on no branch; commits are detached"
        say(f"{on}, at {short(head.commit)}")


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
) -> None:
    """Merge another branch into this one."""
    with StockRoom() as room:
        merged = room.merge(revision, resolve.value if resolve else None, message, base)
        say(f"{merged.how}: {room.head.branch or 'HEAD'} is at {short(merged.commit)}")


def revert(
    revision: RevisionArgument,
    parent: Annotated[
        int | None, typer.Option(help="Of a merge: the number of the parent to go back to.")
    ] = None,
    resolve: ResolveOption = None,
) -> None:
    """Commit the opposite of a commit."""
    with StockRoom() as room:
        say(f"committed {short(room.revert(revision, parent, resolve.value if resolve else None))}")


def reset(
    revision: Annotated[
        str | None,
        typer.Argument(help="Also let the branch be at this revision.", autocompletion=complete_revision),
    ] = None,
) -> None:
    """Discard what is staged."""
    with StockRoom() as room:
        room.reset(revision)
        say(f"nothing is staged; {room.head.branch or 'HEAD'} is at {short(room.head.commit)}")


def add(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (branch, switch, merge, tag, revert, reset):
        app.command()(command)
