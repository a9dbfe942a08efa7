"""What a stockroom does with remotes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Self

from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError, nearest
from hopyard.stockroom import care, remotes
from hopyard.stockroom.git import HEAD_NAME, at, author, commits_in_history, named_commits, read
from hopyard.stockroom.guard import exclusive
from hopyard.stockroom.history.commits import ancestors
from hopyard.stockroom.history.conflicts import Resolve
from hopyard.stockroom.history_calls import HistoryCalls, conflict_error
from hopyard.stockroom.looking.status import unmerged_advice
from hopyard.stockroom.opening import Fetching
from hopyard.stockroom.packs.tombstones import Tombstones
from hopyard.stockroom.quoting import check_text, check_texts
from hopyard.stockroom.remotes import Brought, Fetched, Known, Need, Pulled, Pushed, Repository, Wanted
from hopyard.stockroom.remotes.cloning import MAIN
from hopyard.stockroom.remotes.returning import Returned, Returning
from hopyard.stockroom.remotes.selecting import Names
from hopyard.stockroom.remotes.transfer import Report
from hopyard.storage import LocalStore, Store, open_store
from hopyard.storage.names import path_given

_ORIGIN = "origin"


class RemoteCalls(HistoryCalls):
    """Push, fetch, pull, clone. A remote is a name, such as ``origin``, or a URL or folder."""

    @classmethod
    def clone(
        cls, url: str | os.PathLike[str], path: str | os.PathLike[str], name: str = _ORIGIN,
        enable_write: bool = False, fetch: Fetching = "auto", accept_purges: bool = False,
    ) -> Self:  # fmt: skip
        """A new stockroom in the folder ``path``, with the history and metadata of the one at ``url``. Data come when
        they are read, or by :meth:`fetch`. An interrupted clone goes on when it is called again.

        Args:
            accept_purges: as for :meth:`fetch`.

        Raises:
            NotFoundError: there is no stockroom at ``url``; UsageError: there is one in ``path`` already.
        """
        check_text(name, "the name of a remote")
        store = _store(url)
        remotes.check_format(store)
        folder = path_given(path)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            remotes.clone(store, folder, name, author(at(folder)), accept_purges)
        except UsageError:
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
            raise
        return cls(folder, enable_write, fetch)

    def remotes(self) -> dict[str, str]:
        """The remotes that are known, by name, and where they are."""
        store = self.local.store
        return {name: remotes.recall(store, name).url for name in remotes.names(store)}

    def forget_remote(self, name: str) -> None:
        """Forget a remote, and where its branches were. Nothing there changes.

        Raises:
            NotFoundError: there is none of this name.
        """
        self._check_open()
        check_text(name, "the name of a remote")
        remotes.forget(self.local, name, self._author)

    def push(
        self,
        remote: str | os.PathLike[str] | None = None,
        branches: Mapping[str, str] | Iterable[str] | None = None,
        tags: Iterable[str] = (),
        name: str | None = None,
        report: Report | None = None,
    ) -> Pushed:
        """Send branches and tags, and all that they need, to a remote.

        Args:
            remote: None: ``origin``, or the only one. An empty place becomes one.
            branches: None: the one that this is on, unless tags are given; a dict says what they are called there.
                What ``head.stock`` has named in git's history of them goes along, whether or not they follow it.
            name: what a new remote is called from now on; None: ``origin``, if there is none yet.
            report: told how far it is.

        Raises:
            BehindError: the remote's branch has commits that are not here: pull, then push again.
            NotFoundError: there is no such branch, tag or remote; or data that are nowhere. Nothing was sent.
        """
        self._check_open()
        self._look(is_whole=True)
        self._catch_up()  # git may have merged head.stock
        for commit, base in read(self.place.head).unmerged:
            warnings.warn(unmerged_advice(commit, base), UserWarning, stacklevel=3)
        given = check_texts(tags, "the tags to be pushed")
        if name is not None:
            check_text(name, "the name of a remote")
        if branches is None:
            branches = [] if given else [self._own_branch("push")]
        target = self._remote(remote, name)
        others = [self._open(self._recall(each)) for each in self.remotes() if each != target.name]
        here = check_texts(branches, "the branches to be pushed")
        if isinstance(branches, Mapping):
            check_texts(branches.values(), "the names of branches at the remote")
        else:
            branches = here
        named, notes = self._named_by_git(branches)
        pushed = remotes.push(
            self.local, self._open(target), branches, given, self._author, others, report, named
        )
        pushed.notes.extend(notes)
        tags = {name: commit for name, commit in self.local.references.names("tags").items() if name in given}
        self._remember(target, tags=target.tags | tags)
        return pushed

    def fetch(
        self,
        remote: str | os.PathLike[str] | None = None,
        *,
        data: Names = (),
        keys: range | Sequence[Any] | None = None,
        models: Names = (),
        runs: Names = (),
        revision: str = "HEAD",
        history: bool = False,
        max_bytes: int | None = None,
        branches: Iterable[str] | None = None,
        prune: bool = False,
        report: Report | None = None,
        accept_purges: bool = False,
    ) -> Fetched | Brought:
        """Bring data by name; without names, what is new in a remote's history, with all metadata.

        ``stock.fetch(data=["image"], keys=range(100), models=["resnet"])``

        Args:
            remote: None: of data, all that are known, whichever has them; else ``origin``, or the only one.
            data, models, runs: names; True: all.
            keys: of samples, of these columns; their neighbours come too.
            revision: of which the data are. history: and of all that come before it.
            max_bytes: leave what does not fit.
            branches: bring the history of these only. prune: forget branches that the remote has no more.
            report: told how far it is.
            accept_purges: purge here, for good, what others purged and pushed. Otherwise ``purges`` of what is returned
                says what that is, and it stays as it is here; what is not here is not read.

        Raises:
            UsageError: purges are to be accepted while data are brought: they come with history; or within a block.
            BusyError: purges are to be accepted, and somebody writes here all the time. All else has come.
            NotFoundError: there is nothing of that name, or no remote has it. Nothing came.
        """
        self._check_open()
        if branches is not None:
            branches = check_texts(branches, "the branches to be fetched")
        wanted = Wanted(data=data, keys=keys, models=models, runs=runs, history=history)
        if data or models or runs:
            if accept_purges:
                raise UsageError(
                    "fetch was given accept_purges with names of data, but purges are accepted with history. Call it "
                    "twice: fetch(accept_purges=True), then with the names."
                )
            chosen = (
                [self._recall(each) for each in self.remotes()] if remote is None else [self._remote(remote)]
            )
            commit = self.resolve(revision)
            needs = list(remotes.select(self._objects, [commit], wanted))
            brought = remotes.bring(
                self.local, [self._open(each) for each in chosen], needs, max_bytes, report
            )
            commits = ancestors(self._objects, [commit]) if history else [commit]
            return replace(brought, returned=self._returned(commits, needs) if brought.objects else [])
        target = self._remote(remote)
        guard = self.guard.write("stock.fetch(accept_purges=True)") if accept_purges else nullcontext()
        with guard, self._purging("fetch") if accept_purges else nullcontext():
            fetched = remotes.fetch(
                self.local, self._open(target), branches, prune, self._author, accept_purges, self._in_git,
                self._collect,
            )  # fmt: skip
        self._remember_fetched(target, fetched)
        return fetched

    @exclusive
    def pull(
        self,
        remote: str | os.PathLike[str] | None = None,
        branch: str | None = None,
        resolve: Resolve = None,
        accept_purges: bool = False,
    ) -> Pulled:
        """Fetch, and merge the remote's branch into the one that this is on.

        Args:
            branch: the remote's; None: of the same name.
            resolve: as for :meth:`merge`.
            accept_purges: as for :meth:`fetch`.

        Raises:
            ConflictError: nobody decided what both changed. What was fetched is here, nothing was merged.
            UsageError: something is staged, or this is on no branch.
        """
        if branch is not None:
            check_text(branch, "the remote's branch")
        self._settle("pull")
        own = self._own_branch("pull")
        target = self._remote(remote)
        if accept_purges:
            self._let_go("pull")
        was = self._standing
        with self._tree.moving(was, own) as moving:
            # Merging reads samples that both changed; they come from the remotes if they are not here.
            others = [self._open(self._recall(each)) for each in self.remotes() if each != target.name]
            opened = self._open(target)
            absent = remotes.OnDemand(self.local, [opened, *others])
            local = Repository.at(self.local.store, self.place.objects / "index.sqlite", absent)

            def fetched() -> None:
                self._remember(target)  # where the samples are is known before a branch needs them
                # From here on others of this tree wait, not while data come.
                self._check_nothing_staged("pull", moving.hold())

            pulled = remotes.pull(
                local, opened, own, self._author, branch, resolve, fetched, moving.announce, accept_purges,
                self._in_git, self._collect,
            )  # fmt: skip
            self._remember_fetched(target, pulled.fetched)
            if pulled.how != "conflicts":
                if pulled.how == "nothing" and pulled.commit not in (None, was.commit):
                    moving.announce(pulled.commit)
                moving.arrived()
        self._arrived()
        if pulled.conflicts:
            there = f"{target.name or target.url}/{branch or own}"
            raise conflict_error(pulled.conflicts, "merge", there)
        return pulled

    @contextmanager
    def _purging(self, what: str) -> Iterator[None]:
        """Hold no lock against the collector, and know afterwards what is purged.

        Raises:
            UsageError: within a block.
        """
        self._let_go(what)
        try:
            yield
        finally:
            self._objects.refresh()
        if self._draft is not None:
            self._restage()

    def _in_git(self) -> set[str]:
        """The commits that all of git's history names."""
        return commits_in_history(self.place)

    def _collect(self) -> None:
        """Delete what nothing leads to. For who holds the collector's lock."""
        self.local.objects.rebuild()  # an index that lost rows would hide what is to be removed
        care.collect(self.local, self.place, False, care.KEEP, datetime.now(UTC))

    def _returned(self, commits: Iterable[str], needs: Iterable[Need]) -> list[Returned]:
        """What was purged here, and is again in the columns of commits that were brought."""
        look = Returning(Tombstones(self.local.store).all(), self.local.objects)
        things = {need.thing for need in needs}
        versions = look.versions(commits)
        return look.described(
            look.found({name: versions[name] for name in versions if f"data/{name}" in things})
        )

    def _named_by_git(self, branches: Collection[str]) -> tuple[set[str], list[str]]:
        """The commits that git's history of these branches names; and why they are not known."""
        same = [git for each in branches for git in ((each, "master") if each == MAIN else (each,))]
        revisions = ["HEAD"] if self.standing.branch in branches else []
        revisions += [f"refs/heads/{git}" for git in same]
        try:
            return named_commits(self.place, revisions), []
        except StorageError as error:
            return set(), [
                f"Only what branches and tags follow was sent, since git's history cannot be read: {error}"
            ]

    def _own_branch(self, what: str) -> str:
        self._check_open()
        standing = self.standing
        if standing.branch is None:
            raise UsageError(
                f"{what} is for branches, but {standing.reason}. Make a branch (stock.branch('NAME')), or switch "
                "to one."
            )
        return standing.branch

    def _recall(self, name: str) -> Known:
        return remotes.recall(self.local.store, name)

    def _open(self, known: Known) -> Repository:
        return _opened(self.local.store, known)

    def _remember_fetched(self, known: Known, fetched: Fetched) -> None:
        tags = known.tags if fetched.all_tags is None else fetched.all_tags
        self._remember(known, claimed=fetched.purges.waiting, tags=tags)

    def _remember(self, known: Known, **changed: Any) -> None:
        now = replace(known, **changed)
        if known.name and (now != known or known.name not in remotes.names(self.local.store)):
            remotes.remember(self.local.store, now)

    def _remote(self, given: str | os.PathLike[str] | None, name: str | None = None) -> Known:
        return _meant(self.local.store, given, name)


def opened_remote(local: Store, given: str | os.PathLike[str]) -> Repository:
    """The remote that is meant: a name that is known in a repository, a URL or a folder."""
    return _opened(local, _meant(local, given))


def _opened(local: Store, known: Known) -> Repository:
    if not known.name:
        return Repository.at(open_store(known.url), is_remote=True)
    return remotes.open_remote(local, known)


def _meant(local: Store, given: str | os.PathLike[str] | None, name: str | None = None) -> Known:
    """The remote that is meant; one that is not known has the name ``""`` unless it is to be remembered."""
    known = remotes.names(local)
    if given is None:
        if not known:
            raise NotFoundError(
                "no remote is known here. Give its address: stock.push('s3://bucket/prefix'), or hopyard stock "
                "push URL."
            )
        if _ORIGIN not in known and len(known) > 1:
            raise UsageError(f"which remote is meant? There are {', '.join(known)}. Name one.")
        return remotes.recall(local, _ORIGIN if _ORIGIN in known else known[0])
    text = given if isinstance(given, str) else str(path_given(given))
    if text in known:
        return remotes.recall(local, text)
    if isinstance(given, str) and not any(sign in text for sign in "/\\:.") and not path_given(text).is_dir():
        raise NotFoundError(
            f"no remote {text!r} is known here{nearest(text, known, '.')} Known are: {', '.join(known) or 'none'}. "
            f"A folder is written as ./{text}."
        )
    url = _store(text).url
    for each in known:
        with suppress(CorruptError):  # of which verify tells
            if remotes.recall(local, each).url == url:
                return remotes.recall(local, each)
    if name is not None and name in known:
        raise UsageError(
            f"the name {name!r} is that of another remote, {remotes.recall(local, name).url}. Use another name."
        )
    return Known(name or ("" if _ORIGIN in known else _ORIGIN), url)


def _store(address: str | os.PathLike[str]) -> Store:
    """What lies at the address of a remote; at the folder that somebody works in, the objects that belong to it."""
    if not isinstance(address, str):
        address = path_given(address)
    store = open_store(os.fspath(address))
    head = store.path(HEAD_NAME)
    is_worked_in = head is not None and head.is_file()
    return (
        LocalStore(at(head.parent).objects) if head is not None and is_worked_in else store
    ).without_links()
