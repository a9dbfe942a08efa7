"""Push, fetch, pull and clone: a session and its remotes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from hopyard.errors import StorageError, UsageError
from hopyard.stockroom import maintenance, remotes
from hopyard.stockroom.git import at, author, commits_in_history, make_folder, named_commits, read
from hopyard.stockroom.history.commits import ancestors
from hopyard.stockroom.history.conflicts import Resolve
from hopyard.stockroom.packfiles.tombstones import Tombstones
from hopyard.stockroom.records.quoting import check_text, check_texts
from hopyard.stockroom.remotes import (
    Brought,
    Fetched,
    FetchSelection,
    KnownRemote,
    Need,
    Pulled,
    Pushed,
    Repository,
)
from hopyard.stockroom.remotes.addresses import meant, opened, store_at
from hopyard.stockroom.remotes.cloning import MAIN
from hopyard.stockroom.remotes.returning import Returned, Returning
from hopyard.stockroom.remotes.transfer import TransferReport
from hopyard.stockroom.session.moving import conflict_error
from hopyard.stockroom.session.session import StockSession
from hopyard.stockroom.session.status import unmerged_advice
from hopyard.storage import files


def push(
    session: StockSession,
    remote: str | os.PathLike[str] | None,
    branches: Mapping[str, str] | Iterable[str] | None,
    tags: Iterable[str],
    name: str | None,
    report: TransferReport | None,
) -> Pushed:
    """Send branches and tags to a remote; see ``StockRoom.push``."""
    session.check_open()
    session.look(is_whole=True)
    session.catch_up()  # git may have merged head.stock
    for commit, base in read(session.place.head).unmerged:
        warnings.warn(unmerged_advice(commit, base), UserWarning, stacklevel=3)
    given = check_texts(tags, "the tags to be pushed")
    if name is not None:
        check_text(name, "the name of a remote")
    if branches is None:
        branches = [] if given else [_own_branch(session, "push")]
    store = session.local.store
    target = meant(store, remote, name)
    others = [opened(store, each) for each in _known(session) if each.name != target.name]
    here = check_texts(branches, "the branches to be pushed")
    if isinstance(branches, Mapping):
        check_texts(branches.values(), "the names of branches at the remote")
    else:
        branches = here
    named, notes = _named_by_git(session, branches)
    pushed = remotes.push(
        session.local, opened(store, target), branches, given, session.author, others, report, named
    )
    pushed.notes.extend(notes)
    tags = {name: commit for name, commit in session.local.references.names("tags").items() if name in given}
    _remember(session, target, tags=target.tags | tags)
    return pushed


def clone(url: str | os.PathLike[str], folder: Path, name: str, accept_purges: bool) -> None:
    """Make a stockroom in a folder from the one at an address; see ``StockRoom.clone``."""
    check_text(name, "the name of a remote")
    store = store_at(url)
    remotes.check_format(store)
    is_new = not folder.exists()
    make_folder(folder)
    try:
        remotes.clone(store, folder, name, author(at(folder)), accept_purges)
    except UsageError:
        if is_new and not any(folder.iterdir()):
            files.remove_directory(folder)
        raise


def bring(
    session: StockSession,
    remote: str | os.PathLike[str] | None,
    wanted: FetchSelection,
    revision: str,
    max_bytes: int | None,
    report: TransferReport | None,
) -> Brought:
    """Bring data by name from a remote, or from all that are known; see ``StockRoom.fetch``."""
    session.check_open()
    store = session.local.store
    chosen = list(_known(session)) if remote is None else [meant(store, remote)]
    commit = session.resolve(revision)
    needs = list(remotes.select(session.objects, [commit], wanted))
    brought = remotes.bring(session.local, [opened(store, each) for each in chosen], needs, max_bytes, report)
    commits = ancestors(session.objects, [commit]) if wanted.history else [commit]
    return replace(brought, returned=_returned(session, commits, needs) if brought.objects else [])


def fetch(
    session: StockSession,
    remote: str | os.PathLike[str] | None,
    branches: Iterable[str] | None,
    prune: bool,
    accept_purges: bool,
) -> Fetched:
    """Bring what is new in a remote's history, with all metadata; see ``StockRoom.fetch``."""
    session.check_open()
    if branches is not None:
        branches = check_texts(branches, "the branches to be fetched")
    target = meant(session.local.store, remote)
    guard = session.guard.write("stock.fetch(accept_purges=True)") if accept_purges else nullcontext()
    with guard, session.maintained("fetch") if accept_purges else nullcontext():
        fetched = remotes.fetch(
            session.local, opened(session.local.store, target), branches, prune, session.author, accept_purges,
            partial(commits_in_history, session.place), partial(_collect, session),
        )  # fmt: skip
    _remember_fetched(session, target, fetched)
    return fetched


def pull(
    session: StockSession,
    remote: str | os.PathLike[str] | None,
    branch: str | None,
    resolve: Resolve,
    accept_purges: bool = False,
) -> Pulled:
    """Fetch, and merge the remote's branch; see ``StockRoom.pull``."""
    if branch is not None:
        check_text(branch, "the remote's branch")
    session.settle("pull")
    own = _own_branch(session, "pull")
    store = session.local.store
    target = meant(store, remote)
    if accept_purges:
        session.let_go("pull")
    was = session.standing
    with session.tree.moving(was, own) as moving:
        # Merging reads samples that both changed; they come from the remotes if they are not here.
        others = [opened(store, each) for each in _known(session) if each.name != target.name]
        source = opened(store, target)
        absent = remotes.OnDemand(session.local, [source, *others])
        local = Repository.at(session.local.store, session.place.objects / "index.sqlite", absent)

        def fetched() -> None:
            _remember(session, target)  # where the samples are is known before a branch needs them
            # From here on others of this tree wait, not while data come.
            session.check_nothing_staged("pull", moving.hold())

        pulled = remotes.pull(
            local, source, own, session.author, branch, resolve, fetched, moving.announce, accept_purges,
            partial(commits_in_history, session.place), partial(_collect, session),
        )  # fmt: skip
        _remember_fetched(session, target, pulled.fetched)
        if pulled.how != "conflicts":
            if pulled.how == "nothing" and pulled.commit not in (None, was.commit):
                moving.announce(pulled.commit)
            moving.arrived()
    session.arrive()
    if pulled.conflicts:
        there = f"{target.name or target.url}/{branch or own}"
        raise conflict_error(pulled.conflicts, "merge", there)
    return pulled


def _collect(session: StockSession) -> None:
    """Delete what nothing leads to. For who holds the collector's lock."""
    session.local.objects.rebuild()  # an index that lost rows would hide what is to be removed
    maintenance.collect(session.local, session.place, False, maintenance.KEEP, datetime.now(UTC))


def _returned(session: StockSession, commits: Iterable[str], needs: Iterable[Need]) -> list[Returned]:
    """Samples that were purged here and are again in the columns of commits that were brought."""
    look = Returning(Tombstones(session.local.store).all(), session.local.objects)
    things = {need.thing for need in needs}
    versions = look.versions(commits)
    return look.described(look.found({name: versions[name] for name in versions if f"data/{name}" in things}))


def _named_by_git(session: StockSession, branches: Collection[str]) -> tuple[set[str], list[str]]:
    """The commits that git's history of these branches names; and why they are not known."""
    same = [git for each in branches for git in ((each, "master") if each == MAIN else (each,))]
    revisions = ["HEAD"] if session.stand().branch in branches else []
    revisions += [f"refs/heads/{git}" for git in same]
    try:
        return named_commits(session.place, revisions), []
    except StorageError as error:
        return set(), [
            f"Only what branches and tags follow was sent, since git's history cannot be read: {error}"
        ]


def _own_branch(session: StockSession, what: str) -> str:
    session.check_open()
    standing = session.stand()
    if standing.branch is None:
        raise UsageError(
            f"{what} is for branches, but {standing.reason}. Make a branch (stock.branch('NAME')), or switch "
            "to one."
        )
    return standing.branch


def _remember_fetched(session: StockSession, known: KnownRemote, fetched: Fetched) -> None:
    tags = known.tags if fetched.all_tags is None else fetched.all_tags
    _remember(session, known, claimed=fetched.purges.waiting, tags=tags)


def _known(session: StockSession) -> Iterator[KnownRemote]:
    """The remotes that are known here."""
    store = session.local.store
    return (remotes.recall(store, name) for name in remotes.names(store))


def _remember(session: StockSession, known: KnownRemote, **changed: Any) -> None:
    now = replace(known, **changed)
    if known.name and (now != known or known.name not in remotes.names(session.local.store)):
        remotes.remember(session.local.store, now)
