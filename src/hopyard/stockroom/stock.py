"""StockRoom: versions of data, models and experiments beside git."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from hopyard.errors import UsageError
from hopyard.stockroom import maintenance
from hopyard.stockroom.catalog.differences import Diff
from hopyard.stockroom.catalog.origins import Registering
from hopyard.stockroom.catalog.registry import Registry
from hopyard.stockroom.catalog.shelves import Revision, Shelves
from hopyard.stockroom.experiments import StockRun
from hopyard.stockroom.git import Head, Place, facts, find
from hopyard.stockroom.history.commits import Commits
from hopyard.stockroom.history.conflicts import Resolve
from hopyard.stockroom.history.locks import Tell
from hopyard.stockroom.maps import Key
from hopyard.stockroom.maps.typed_keys import TypedKey
from hopyard.stockroom.records.quoting import check_text
from hopyard.stockroom.remotes import (
    Brought,
    Fetched,
    FetchSelection,
    Pulled,
    Pushed,
    Repository,
    forget,
    names,
    recall,
)
from hopyard.stockroom.remotes.addresses import opened_remote
from hopyard.stockroom.remotes.selecting import Names
from hopyard.stockroom.remotes.transfer import TransferReport
from hopyard.stockroom.session import exchange, moving, naming, queries
from hopyard.stockroom.session.moving import Merged
from hopyard.stockroom.session.opening import Fetching, make_place
from hopyard.stockroom.session.session import OpenBlock, StockSession
from hopyard.stockroom.session.status import Status
from hopyard.stockroom.views.guard import Guard, exclusive
from hopyard.stockroom.views.view import View
from hopyard.storage.names import path_given

if TYPE_CHECKING:
    from hopyard.stockroom.importers.run import ImportProgress
    from hopyard.stockroom.importers.storing import Imported
    from hopyard.stockroom.maintenance import Collected, PurgeReport, Verified


class StockRoom(Shelves):
    """Versions of data, models and experiments, beside git.

    >>> stock = StockRoom.init("repo")
    >>> with stock.enable_write():
    ...     stock.data["image"] = images
    ...     stock.model["resnet"] = net.state_dict()
    ...     stock.experiment["lr"] = 0.01

    Opened for reading, it shows one commit, also if others are made meanwhile, until something of its own moves it: a
    block, ``switch``, ``merge``, ``pull``. Opened with ``enable_write=True``, it shows what is staged as well: what is
    written outside of a block is staged at once, durably, and read at once, until :meth:`commit`.

    What the shelves have handed out stays what it was, whatever happens to the stockroom. Threads may share a
    stockroom; a block belongs to the thread, asyncio task and process that opened it, see :meth:`enable_write`. Each
    process that writes opens its own. Pickled, one that is open for reading becomes its revision.

    Args:
        path: a folder in it; None: the current one. The nearest ``head.stock`` upwards says where it is.
        enable_write: for writing outside of blocks, too.
        fetch: ``"never"``: reading what is not here is an error, which says which call would bring it.

    Raises:
        NotFoundError: there is no stockroom, or its objects are not here. FormatError: a newer version wrote it.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, enable_write: bool = False, fetch: Fetching = "auto"
    ) -> None:
        self._session = StockSession(path, enable_write, fetch)

    @classmethod
    def init(cls, path: str | os.PathLike[str] = ".", enable_write: bool = False) -> Self:
        """Make a stockroom in a folder, which is made if need be. Its first branch is ``main``; where git is at another
        branch than ``main`` or ``master``, that of the same name.

        In a git repository its objects are kept in git's own directory; ``head.stock`` is to be added to git.

        Raises:
            UsageError: there is one already.
        """
        folder = path_given(path)
        make_place(folder)
        return cls(folder, enable_write)

    @classmethod
    def clone(
        cls, url: str | os.PathLike[str], path: str | os.PathLike[str], name: str = "origin",
        enable_write: bool = False, fetch: Fetching = "auto", accept_purges: bool = False,
    ) -> Self:  # fmt: skip
        """A new stockroom in the folder ``path``, with the history and metadata of the one at ``url``. Data come when
        they are read, or by :meth:`fetch`. An interrupted clone goes on when it is called again.

        Args:
            accept_purges: as for :meth:`fetch`.

        Raises:
            NotFoundError: there is no stockroom at ``url``; UsageError: there is one in ``path`` already.
        """
        folder = path_given(path)
        exchange.clone(url, folder, name, accept_purges)
        return cls(folder, enable_write, fetch)

    def close(self) -> None:
        """Let go of locks. What is staged stays so; what was read stays readable. Closing twice is fine.

        Raises:
            UsageError: within a block.
        """
        self._session.close()

    def __enter__(self) -> Self:
        self._session.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Revision, (self._session.objects, self._session.commit_for_others(), None)

    def __repr__(self) -> str:
        return f"<StockRoom {self._session}>"

    # Reading

    @property
    def place(self) -> Place:
        """The folders in which it lies."""
        return self._session.place

    @property
    def local(self) -> Repository:
        """The repository beneath it: store, objects and references."""
        return self._session.local

    @property
    def guard(self) -> Guard:
        """The guard that says which thread may write."""
        return self._session.guard

    @property
    def view(self) -> View:
        """The things of all shelves, as they are read here."""
        return self._session.view

    @property
    def registry(self) -> Registry:
        """Registered models by name, each with its versions; ``stock.registry.register(...)`` adds one."""
        return Registry(self.view, lambda: Registering(self._session.author, self.head.commit))

    @property
    def head(self) -> Head:
        """The present ``branch`` (None: commits are detached) and ``commit`` (None: there is none yet)."""
        standing = self._session.stand()
        return Head(standing.branch, standing.commit)

    def resolve(self, revision: str) -> str:
        """The digest of the commit that a branch, a tag, ``origin/main``, ``HEAD~2``, or a digest's beginning means.

        Raises:
            NotFoundError: nothing is called so, or more than one thing is.
        """
        return self._session.resolve(revision)

    def at(self, revision: str) -> Revision:
        """A revision, for reading only: ``stock.at("v1").data["image"]``. It may be pickled."""
        digest = self.resolve(revision)
        return Revision(self._session.objects, digest, None if digest.startswith(revision) else revision)

    def status(self) -> Status:
        """The present branch and commit, and staged changes; ``print(stock.status())`` tells them in words."""
        return queries.status(self._session)

    def log(
        self, *revisions: str, limit: int | None = None, branches: Literal["these", "all"] = "these"
    ) -> Commits:
        """Commits, each before those that it follows, the latest first.

        Args:
            revisions: where to begin; none: where this is.
            limit: so many at most.
            branches: ``"all"``: begin at all branches, tags and branches of remotes too.
        """
        return queries.log(self._session, *revisions, limit=limit, branches=branches)

    def diff(self, a: str | None = None, b: str | None = None) -> Diff:
        """Differences from ``a`` to ``b``: samples, tensors and how far they moved, values, files of datasets.

        Args:
            a: a revision; None: the commit that this is at.
            b: a revision; None: what is staged upon that commit.
        """
        return queries.diff(self._session, a, b)

    def export(self, path: str, target: str | os.PathLike[str]) -> Path:
        """Write something out of a shelf as a file; see :func:`hopyard.stockroom.catalog.exporting.export`."""
        from hopyard.stockroom.catalog.exporting import export

        self._session.check_open()
        return export(self, path, target)

    # Writing

    def enable_write(self, message: str | None = None) -> WriteBlock:
        """``with stock.enable_write(): ...`` commits at the end of the block what was written in it, and what was
        staged before. If an exception leaves the block, nothing has happened.

        Blocks may be nested: the outermost one commits; an exception undoes what was written in those that it leaves.

        A block belongs to the thread, the asyncio task and the process that opened it. Until it ends others see what
        was there before, and get a ``UsageError`` if they write, or open one: each opens a stockroom of its own.

        Args:
            message: of the commit; None: one that names what has changed.

        Raises:
            ConflictError: at the end: others have committed something else of what was written. Nothing has happened.
        """
        return WriteBlock(
            self, self._session, None if message is None else check_text(message, "the message of a commit")
        )

    @exclusive
    def commit(self, message: str) -> str:
        """Commit what is staged, or was written in this block until now.

        Returns:
            The digest of the commit.

        Raises:
            UsageError: nothing has changed, or this is open for reading only.
            ConflictError: others have committed something else of what is staged; it stays staged.
        """
        return self._session.commit(message)

    def run(self, params: Mapping[str, Any] | None = None, tags: Mapping[str, Any] | None = None) -> StockRun:
        """A run: ``with stock.run(params={"lr": 0.01}) as run: run.log(step=1, loss=0.5)``; see ``StockRun``.

        It is written as all else is: committed at the end of a block, outside of one staged. What git has checked out
        is noted.
        """
        self._session.check_open()
        return self.experiment.start(params, tags, self._session.facts(facts(self.place))[1])

    def import_from(
        self,
        importer: str,
        source: str | os.PathLike[str] | None = None,
        options: Mapping[str, str | bool | int] | None = None,
        processes: int = 0,
        message: str | None = None,
        watch: Callable[[ImportProgress], None] | None = None,
        watch_download: Callable[[str, int, int | None], None] | None = None,
    ) -> Imported:
        """Import columns, and commit them. If it is interrupted, the same call goes on where it was.

        Args:
            importer: its name, as ``torchvision.cifar10`` or ``images``.
            source: a file or folder; None: downloaded, where the importer can.
            options: of the importer, as texts or values.
            processes: that read; 0: this one.
            message: of the commit; None: it names importer and source.
            watch, watch_download: told how far it is.

        Raises:
            UsageError: no such importer; something else is staged.
            DataError, CorruptError, ...: as the importer says. What was imported before stays staged.
        """
        from hopyard.stockroom.importers.storing import import_from

        return import_from(
            self._session, importer, source, options, processes, message, watch, watch_download
        )

    # Branches and tags

    def branches(self) -> dict[str, str]:
        """All branches and their commits."""
        return self.local.references.names("heads")

    def tags(self) -> dict[str, str]:
        """All tags and their commits."""
        return self.local.references.names("tags")

    def labels(self) -> dict[str, list[str]]:
        """By commit what names it: ``HEAD``, branches, tags, branches of remotes."""
        return naming.labels(self._session)

    @exclusive
    def branch(self, name: str, revision: str = "HEAD") -> str:
        """Make a branch; its commit. Where commits were detached, this is on the new branch from now on.

        Raises:
            UsageError: there is one of this name, or it cannot be one; NotFoundError: there is no such revision.
        """
        return naming.make_branch(self._session, name, revision)

    def tag(self, name: str, revision: str = "HEAD") -> str:
        """Name a commit for ever; its digest.

        Raises:
            UsageError: there is one of this name, or it cannot be one; NotFoundError: there is no such revision.
        """
        return naming.make_tag(self._session, name, revision)

    def delete_branch(self, name: str, force: bool = False) -> None:
        """Delete a branch.

        Args:
            force: also if commits of it are in no other branch or tag, and would be collected as garbage some day.

        Raises:
            NotFoundError: there is none; UsageError: this is on it, or it has commits that are nowhere else.
        """
        naming.delete_branch(self._session, name, force)

    def delete_tag(self, name: str) -> None:
        """Delete a tag.

        Raises:
            NotFoundError: there is none.
        """
        naming.delete_tag(self._session, name)

    # Moving

    @exclusive
    def switch(self, name: str) -> Head:
        """Go to a branch; or to a tag or commit, upon which commits are then detached until a branch is made.

        No data moves. A branch that only a remote has (``origin/dev``) is made here.

        Raises:
            NotFoundError: there is none of this name.
            UsageError: something is staged, and it is another commit.
        """
        moving.switch(self._session, name)
        return self.head

    @exclusive
    def merge(
        self, revision: str, resolve: Resolve = None, message: str | None = None, base: str | None = None
    ) -> Merged:
        """Bring here what another branch has, and this has not; with ``base``, what has changed from there.

        Args:
            resolve: who decides what both changed differently: ``"ours"``, ``"theirs"``, or a function of a conflict
                that gives ``"ours"``, ``"theirs"``, or for samples and values what to have instead.
            message: of the commit, if one is needed.
            base: a revision: bring only what has changed from it to the other, as git's cherry-pick does. With the
                other's later commit as base, that is undone.

        Raises:
            ConflictError: nobody decided; its ``conflicts`` lists them. Nothing has happened.
            UsageError: something is staged.
        """
        return moving.merge(self._session, revision, resolve, message, base)

    @exclusive
    def revert(self, revision: str, parent: int | None = None, resolve: Resolve = None) -> str:
        """Commit the opposite of what one commit did; the digest of the new commit.

        Args:
            parent: of a merge: against which of its parents, 1 or more.
            resolve: as for :meth:`merge`, where it was changed again since; theirs is what was before.

        Raises:
            ConflictError: as :meth:`merge`. UsageError: something is staged; it is a merge, and no parent was named;
                or nothing of it is left to be undone.
        """
        return moving.revert(self._session, revision, parent, resolve)

    @exclusive
    def reset(self, revision: str | None = None) -> None:
        """Discard what is staged; with a revision, also let the branch go back, or on, to it.

        The commits that it leaves are kept as long as a branch, a tag or git's history has them, and by their digests
        until garbage is collected.
        """
        moving.reset(self._session, revision)

    # Remotes

    def remotes(self) -> dict[str, str]:
        """The remotes that are known, by name, and where they are."""
        store = self.local.store
        return {name: recall(store, name).url for name in names(store)}

    def forget_remote(self, name: str) -> None:
        """Forget a remote, and where its branches were. Nothing there changes.

        Raises:
            NotFoundError: there is none of this name.
        """
        self._session.check_open()
        forget(self.local, check_text(name, "the name of a remote"), self._session.author)

    def push(
        self,
        remote: str | os.PathLike[str] | None = None,
        branches: Mapping[str, str] | Iterable[str] | None = None,
        tags: Iterable[str] = (),
        name: str | None = None,
        report: TransferReport | None = None,
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
        return exchange.push(self._session, remote, branches, tags, name, report)

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
        report: TransferReport | None = None,
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
        wanted = FetchSelection(data=data, keys=keys, models=models, runs=runs, history=history)
        if not (data or models or runs):
            return exchange.fetch(self._session, remote, branches, prune, accept_purges)
        if accept_purges:
            raise UsageError(
                "fetch was given accept_purges with names of data, but purges are accepted with history. Call it "
                "twice: fetch(accept_purges=True), then with the names."
            )
        return exchange.bring(self._session, remote, wanted, revision, max_bytes, report)

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
        return exchange.pull(self._session, remote, branch, resolve, accept_purges)

    # Maintenance

    @staticmethod
    def verify_in(
        path: str | os.PathLike[str] | None = None,
        repair_from: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        repair: bool = False,
        remote: str | os.PathLike[str] | None = None,
    ) -> Verified:
        """Check every byte that is here against its digest, and that all is here that should be; also where damage
        lets no stockroom be opened.

        Args:
            path: a folder in a stockroom; None: the current one.
            repair_from: a remote or another clone from which to bring what is damaged or missing; None: nothing is
                changed, unless ``repair``.
            progress: told the bytes that are checked, and those of all.
            repair: without a remote, too: put back references from their copies, and what ``head.stock`` most likely
                said.
            remote: look there instead; a name, URL or folder.

        Returns:
            All problems; ``.ok`` if there is none, or none is left.
        """
        place = find(None if path is None else path_given(path))
        return maintenance.verify_place(place, repair_from, progress, repair, remote)

    def verify(
        self,
        repair_from: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        repair: bool = False,
        remote: str | os.PathLike[str] | None = None,
    ) -> Verified:
        """Check this stockroom as :meth:`verify_in` does, with the same arguments."""
        self._session.check_open()
        verified = maintenance.verify_place(self.place, repair_from, progress, repair, remote)
        self._session.objects.refresh()
        return verified

    def gc(
        self, dry_run: bool = False, tell: Tell | None = None, remote: str | os.PathLike[str] | None = None
    ) -> Collected:
        """Delete what no branch, tag, remote's branch, staged write, open reader or git commit needs, and pack the rest
        anew.

        Args:
            dry_run: only say what would be done. tell: told, in words, if others are waited for.
            remote: do it there instead, where branches and tags alone lead to what is needed; a name, URL or folder.
                In a bucket only what was unneeded each time for 14 days is deleted.

        Raises:
            StorageError: somebody writes all the time, or git's history cannot be read. Nothing was deleted.
            UsageError: within a block.
        """
        if remote is not None:
            self._session.check_open()
            return maintenance.gc(opened_remote(self.local.store, remote), None, dry_run, tell=tell)
        with self.guard.write("stock.gc()"), self._session.maintained("gc"):
            return maintenance.gc(self.local, self.place, dry_run, tell=tell)

    @exclusive
    def purge(
        self,
        column: str,
        key: Key | TypedKey | Sequence[Key | TypedKey],
        why: str = "no reason was given",
        shared: bool = False,
    ) -> PurgeReport:
        """Remove the values of samples from all of history, here, for good: for data that may not be kept. Commits
        stay, but the samples no longer count in them, and reading one by its key raises ``PurgedError``. Remotes follow
        when they are pushed to.

        Args:
            key: one, or a list.
            why: for the record, which stays.
            shared: purge them also from other columns which have equal samples under equal keys: these are stored as
                one. False: that is an error, which names the columns.

        Returns:
            What is gone, and where equal samples still are.

        Raises:
            NotFoundError: no version has such a sample. UsageError: within a block; or other columns share them.
                Nothing was changed.
        """
        session = self._session
        repository = Repository(self.local.store, session.objects, self.local.references)
        with session.maintained("purge"):  # what was staged of it is gone, too
            return maintenance.purge(repository, column, key, why, session.author, self.place, shared=shared)


class WriteBlock:
    """The context manager that ``enable_write`` gives; it can be used again, and within itself."""

    def __init__(self, stock: StockRoom, session: StockSession, message: str | None) -> None:
        self._stock, self._session, self._message = stock, session, message
        self._entered: list[OpenBlock] = []

    def __enter__(self) -> StockRoom:
        self._entered.append(self._session.enter_block(self._message))
        return self._stock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.leave_block(self._entered.pop(), error)
