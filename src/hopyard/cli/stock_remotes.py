"""``hopyard stock``: remotes and care."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from hopyard.cli.completing import (
    complete_branch,
    complete_column,
    complete_key,
    complete_model,
    complete_remote,
    complete_revision,
    complete_run,
    complete_tag,
)
from hopyard.cli.stock_history import ResolveOption
from hopyard.cli.terminal import JsonOption, complain, say, show_json
from hopyard.data.progress import RowProgress
from hopyard.documents.stockroom import (
    collected_json,
    fetched_json,
    pulled_json,
    purged_json,
    pushed_json,
    verified_json,
)
from hopyard.errors import HopyardError, UsageError
from hopyard.stockroom import StockRoom
from hopyard.stockroom.git import find
from hopyard.stockroom.history.commits import short
from hopyard.stockroom.maps.typed_keys import TypedKey
from hopyard.stockroom.remotes import Fetched, TransferProgress, names
from hopyard.stockroom.remotes.transfer import TransferReport
from hopyard.storage import LocalStore
from hopyard.wording import counted, one_line

RemoteArgument = Annotated[
    str | None,
    typer.Argument(
        help="A remote's name, URL or folder; none: origin, or the only one.", autocompletion=complete_remote
    ),
]
_SEVERAL = "Repeat it for several; '*': all."
ColumnsOption = Annotated[list[str] | None, typer.Option(help=_SEVERAL, autocompletion=complete_column)]
ModelsOption = Annotated[list[str] | None, typer.Option(help=_SEVERAL, autocompletion=complete_model)]
RunsOption = Annotated[list[str] | None, typer.Option(help=_SEVERAL, autocompletion=complete_run)]
AcceptPurges = Annotated[
    bool, typer.Option("--accept-purges", help="Purge here, for good, what others purged and pushed.")
]


remotes: typer.Typer = typer.Typer(
    name="remote",
    help="The remotes that are known here. A push or clone makes them known.",
    no_args_is_help=True,
)


@remotes.command("list")
def remote_list(as_json: JsonOption = False) -> None:
    """List remotes, and where they are."""
    with StockRoom() as room:
        found = room.remotes()
    if as_json:
        show_json([{"remote": name, "url": url} for name, url in found.items()])
    else:
        for name, url in found.items():
            say(f"{name}  {url}")


@remotes.command("forget")
def remote_forget(
    name: Annotated[str, typer.Argument(help="The remote's name.", autocompletion=complete_remote)],
) -> None:
    """Forget a remote, and where its branches were. Nothing there changes."""
    with StockRoom() as room:
        room.forget_remote(name)
        say(f"forgot {name}; what is there stays")


def clone(
    url: Annotated[str, typer.Argument(help="Where a stockroom was pushed to: a URL or a folder.")],
    path: Annotated[str, typer.Argument(help="The new folder.")],
    name: Annotated[str, typer.Option(help="What the remote is called from now on.")] = "origin",
    accept_purges: AcceptPurges = False,
) -> None:
    """Make a copy of history and metadata. Data come when they are read, or by fetch."""
    with StockRoom.clone(url, path, name, accept_purges=accept_purges) as room:
        on = f"branch {room.head.branch} at {short(room.head.commit)}"
        say(f"cloned to {room.place.root}: {on}, {counted(len(room.log(branches='all')), 'commit')}")
        for text in room.status().advice:
            say(text)
    say("data come when they are read; by name: hopyard stock fetch --data NAME")


def push(
    remote: RemoteArgument = None,
    branch: Annotated[
        list[str] | None,
        typer.Option(
            help="HERE or HERE:THERE; none: the one that this is on.", autocompletion=complete_branch
        ),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag to push.", autocompletion=complete_tag)] = None,
    name: Annotated[str | None, typer.Option(help="What a new remote is called from now on.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Send the branch, and all that it needs, to a remote."""
    branches = None
    if branch:
        branches = {here: there or here for here, _, there in (each.partition(":") for each in branch)}
    with StockRoom() as room, RowProgress(unit="bytes") as progress:
        pushed = room.push(remote, branches, tag or (), name, report=_report(progress, "sending"))
    if as_json:
        show_json(pushed_json(pushed))
        return
    for line in pushed.lines():
        say(line)


def pull(
    remote: RemoteArgument = None,
    branch: Annotated[
        str | None,
        typer.Option(help="The remote's; none: of the same name.", autocompletion=complete_branch),
    ] = None,
    resolve: ResolveOption = None,
    accept_purges: AcceptPurges = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch, and merge the remote's branch into this one."""
    with StockRoom() as room:
        pulled = room.pull(remote, branch, resolve.value if resolve else None, accept_purges)
        if as_json:
            show_json(pulled_json(pulled, room.head.branch))
            return
        _say_purges(pulled.fetched)
        how = {"nothing": "nothing is new", "forward": "fast-forward", "merged": "merged"}[pulled.how]
        say(f"{how}: {room.head.branch} is at {short(pulled.commit)}")


def fetch(
    remote: RemoteArgument = None,
    data: ColumnsOption = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            help="FIRST:STOP, or one key, or several with commas; of a nested column SAMPLE or SAMPLE,PART. Repeat it "
            "for more. 3 is an int, 003 a string, and so is '3' in quotes (in a shell \"'3'\")."
        ),
    ] = None,
    model: ModelsOption = None,
    run: RunsOption = None,
    at: Annotated[
        str,
        typer.Option("--at", help="The revision of which the data are.", autocompletion=complete_revision),
    ] = "HEAD",
    history: Annotated[bool, typer.Option("--history", help="Of all revisions before it, too.")] = False,
    max_bytes: Annotated[int | None, typer.Option(help="Leave what does not fit.", min=0)] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Forget branches that the remote has no more.")
    ] = False,
    accept_purges: AcceptPurges = False,
    as_json: JsonOption = False,
) -> None:
    """Bring what is new in a remote's history; or with names, data."""
    with StockRoom() as room, RowProgress(unit="bytes") as progress:
        done = room.fetch(
            remote, data=_names(data), keys=_keys(keys), models=_names(model), runs=_names(run), revision=at,
            history=history, max_bytes=max_bytes, prune=prune, report=_report(progress, "fetching"),
            accept_purges=accept_purges,
        )  # fmt: skip
    if as_json:
        show_json(fetched_json(done))
        return
    for line in done.lines():
        say(line)
    if isinstance(done, Fetched) and done.gone and not prune:
        say("--prune forgets here what is gone from the remote")


def verify(
    repair_from: Annotated[
        str | None,
        typer.Option(
            "--repair-from",
            help="A remote or another clone that has what is damaged or missing.",
            autocompletion=complete_remote,
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put back what is known here: references, head.stock.")
    ] = False,
    remote: Annotated[
        str | None, typer.Option(help="A remote where to look; none: here.", autocompletion=complete_remote)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every byte that is here, whatever is damaged. Status 1 if something is wrong."""
    with RowProgress(unit="bytes") as progress:
        verified = StockRoom.verify_in(
            None, repair_from, lambda done, total: progress("checking", done, total), repair, remote
        )
    if as_json:
        show_json(verified_json(verified))
    else:
        say(str(verified))
    if not verified.ok:
        if repair_from is None and not as_json:
            say(f"to repair it: hopyard stock verify --repair-from {_known() or 'URL_OR_FOLDER'}")
        raise typer.Exit(1)


def _known() -> str | None:
    """A remote that is known here, if that can be read."""
    try:
        return next(iter(names(LocalStore(find().objects))), None)
    except HopyardError:
        return None


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    remote: Annotated[
        str | None, typer.Option(help="A remote where to do it; none: here.", autocompletion=complete_remote)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what nothing needs any more, and pack the rest anew."""
    with StockRoom() as room:
        collected = room.gc(dry_run, complain if as_json else say, remote)
    if as_json:
        show_json(collected_json(collected))
    else:
        say(str(collected))


def purge(
    column: Annotated[str, typer.Argument(help="The column.", autocompletion=complete_column)],
    key: Annotated[
        list[str],
        typer.Option(
            "--key",
            autocompletion=complete_key,
            help="Of a sample; repeat it for several. 3 is an int, 003 a string, and so is '3' in quotes (in a shell "
            "\"'3'\"). Of a nested column SAMPLE, all its parts, or SAMPLE,PART.",
        ),
    ],
    why: Annotated[str, typer.Option("--why", help="For the record, which stays.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Purge them also from other columns with equal samples under equal keys, which are stored as one. "
            "Without it that is an error, which names the columns.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove samples from all of history, for good."""
    name = column.removeprefix("data/")
    if as_json and not yes:
        raise UsageError(
            "purge --json was given without --yes, but it would ask, and programs do not answer. Give --yes as well: "
            "what is purged is gone for good."
        )
    if not yes:
        also = ", and of every other column that shares them," if shared else ""
        typer.confirm(
            f"Remove {counted(len(key), 'sample')} of {one_line(name)}{also} from all versions for good?",
            abort=True,
        )
    with StockRoom() as room:
        purged = room.purge(name, [TypedKey(each) for each in key], why, shared)
    if as_json:
        show_json(purged_json(purged))
    else:
        say(str(purged))


def _say_purges(fetched: Fetched) -> None:
    for line in fetched.purges.lines():
        say(line)


def _names(given: list[str] | None) -> Sequence[str] | Literal[True]:
    return True if given == ["*"] else given or []


def _keys(texts: list[str] | None) -> range | list[TypedKey] | None:
    if texts is None:
        return None
    first, sign, stop = texts[0].partition(":")
    if len(texts) == 1 and sign and texts[0][0] not in "'\"":
        try:
            return range(int(first), int(stop))
        except ValueError:
            raise UsageError(
                f"--keys {texts[0]!r} must be FIRST:STOP, two whole numbers, or keys with commas. A key with a colon "
                "is written in quotes, which the shell must leave: --keys \"'a:b'\"."
            ) from None
    return [TypedKey(text) for text in texts]


def _report(progress: RowProgress, phase: str) -> TransferReport:
    def told(now: TransferProgress) -> None:
        progress(phase, now.nbytes, now.total)

    return told


def add(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (clone, push, pull, fetch, verify, gc, purge):
        app.command()(command)
    app.add_typer(remotes)
