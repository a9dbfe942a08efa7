"""What a stockroom does with its history."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from hopyard.errors import ConflictError, NotFoundError, UsageError
from hopyard.stockroom.draft import Draft
from hopyard.stockroom.git import Head, mark_unmerged, read
from hopyard.stockroom.guard import exclusive
from hopyard.stockroom.history.commits import Commits, is_ancestor, log, read_commit
from hopyard.stockroom.history.conflicts import Conflict, Resolve, counted_conflicts
from hopyard.stockroom.history.merge import (
    MergeResult,
    is_merged,
    merge_commits,
    merge_message,
    merge_roots,
    merge_since,
)
from hopyard.stockroom.history.revisions import resolve
from hopyard.stockroom.looking.differences import Diff
from hopyard.stockroom.looking.status import Status, status_of
from hopyard.stockroom.name_calls import NameCalls
from hopyard.stockroom.operations import Operation
from hopyard.stockroom.quoting import check_text
from hopyard.stockroom.working import root_of, short
from hopyard.wording import one_line, shown


@dataclass(frozen=True)
class Merged:
    """What a merge did.

    Attributes:
        how: ``"up to date"``: there was nothing new; ``"fast-forward"``: the branch now is where theirs is;
            ``"merged"``: by a commit of its own.
        commit: where this is now.
    """

    how: Literal["up to date", "fast-forward", "merged"]
    commit: str


class HistoryCalls(NameCalls):
    """Log, status, diff; switch, merge, revert, reset."""

    # Looking

    def status(self) -> Status:
        """Where this is, and what is staged; ``print(stock.status())`` tells it in words."""
        self._check_open()
        self._look(is_whole=True)
        view = self.view
        if isinstance(view, Draft):
            standing, stage, changes = self._standing, self._stage, view.changes()
        else:
            standing = self._tree.stand()
            stage = self._tree.stage(standing.commit)
            draft = Draft(self._objects, root_of(self.local, standing.commit))
            draft.apply(map(Operation.decode, stage.operations()))
            changes = draft.changes()
            draft.close()
        return status_of(self.place, self.local, standing, stage, changes)

    def log(
        self, *revisions: str, limit: int | None = None, branches: Literal["these", "all"] = "these"
    ) -> Commits:
        """Commits, each before those that it follows, the latest first.

        Args:
            revisions: where to begin; none: where this is.
            limit: so many at most.
            branches: ``"all"``: begin at all branches, tags and branches of remotes too.
        """
        if limit is not None and not (isinstance(limit, int) and limit >= 0):
            raise UsageError(
                f"limit={shown(limit)} must be a number of commits, at least 0. Leave it out for all."
            )
        if not (isinstance(branches, str) and branches in ("these", "all")):
            raise UsageError(f"branches={shown(branches)} must be 'these' or 'all'.")
        starts = [self.resolve(revision) for revision in revisions]
        if not revisions and (here := self.standing.commit) is not None:
            starts.append(here)
        if branches == "all":
            starts += [
                commit
                for kind in ("heads", "tags", "remotes")
                for commit in self.local.references.names(kind).values()
            ]
        return Commits(islice(log(self._objects, *dict.fromkeys(starts)), limit))

    def diff(self, a: str | None = None, b: str | None = None) -> Diff:
        """What differs from ``a`` to ``b``: samples, tensors and how far they moved, values, files of datasets.

        Args:
            a: a revision; None: the commit that this is at.
            b: a revision; None: what is staged upon that commit.
        """
        self._check_open()
        self._look(is_whole=True)
        before = self._root if a is None else root_of(self.local, self.resolve(a))
        if b is not None:
            return Diff(self._objects, before, root_of(self.local, self.resolve(b)))
        view = self.view
        if self._blocks and isinstance(view, Draft):
            return Diff(view.writer, before, view.write())
        draft = Draft(self._objects, self._root)
        draft.apply(map(Operation.decode, self._stage.operations()))
        after = draft.write()
        # It is looked at only: what it added stays in memory, and nobody is kept out.
        draft.release()
        return Diff(draft.writer, before, after)

    # Moving

    @exclusive
    def switch(self, name: str) -> Head:
        """Go to a branch; or to a tag or commit, upon which commits are then detached until a branch is made.

        No data moves. A branch that only a remote has (``origin/dev``) is made here.

        Raises:
            NotFoundError: there is none of this name.
            UsageError: something is staged, and it is another commit.
        """
        self._check_open()
        check_text(name, "the branch, tag or commit to switch to")
        self._check_no_block("switch")
        self._renew()
        references = self.local.references
        branch: str | None = name if name in references.names("heads") else None
        if branch is None and name == self._standing.branch:
            return self.head  # it is made by the first commit
        try:
            commit = self.resolve(name if branch is None else f"heads/{name}")
        except NotFoundError:
            remote = [full for full in references.names("remotes") if full.partition("/")[2] == name]
            if len(remote) != 1:
                raise
            self.branch(name, f"remotes/{remote[0]}")
            branch, commit = name, self.resolve(f"heads/{name}")
        while True:
            if commit != self._standing.commit:
                self._settle("switch")
            was, left = self._standing.commit, self._standing
            with self._tree.still(was) as log:
                if self._tree.is_at(was):
                    if commit != was:  # else what is staged stays so
                        self._check_nothing_staged("switch", log)
                    self._tree.go_to(branch, commit, log)
                    break
            self._refresh()
        self._arrived()
        if left.branch is None and was not in (None, commit):
            self._tell_of_left(str(was))
        return self.head

    def _tell_of_left(self, commit: str) -> None:
        """Warn of a detached commit that was left, if no branch or tag has it."""
        references = self.local.references
        tips = {tip for kind in ("heads", "tags", "remotes") for tip in references.names(kind).values()}
        if not any(is_ancestor(self._objects, commit, tip) for tip in tips):
            warnings.warn(
                f"no branch or tag has the commit that was left, {short(commit)} "
                f"({one_line(read_commit(self._objects, commit).message.partition(chr(10))[0])}). To keep it, make a "
                f"branch: hopyard stock branch NAME {short(commit)}",
                UserWarning,
                stacklevel=4,
            )

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
        if message is not None:
            check_text(message, "the message of a commit")
        self._settle("merge")
        theirs = self.resolve(revision)
        merged = self._merge(revision, theirs, resolve, message, base)
        with self._tree.still(merged.commit):
            mark_unmerged(self.place.head, (), {theirs, *self._settled(merged.commit)})
        return merged

    def _settled(self, here: str) -> set[str]:
        """The sides that ``head.stock`` names as unmerged, and which a commit follows."""
        return {
            commit
            for commit, base in read(self.place.head).unmerged
            if is_merged(self._objects, base, here, commit)
        }

    def _merge(
        self, revision: str, theirs: str, resolve: Resolve, message: str | None, base: str | None
    ) -> Merged:
        before = None if base is None else self.resolve(base)
        ours = self._standing.commit
        if ours is None and before is None:
            self._move_to(theirs, "merge")
            return Merged("fast-forward", theirs)
        draft = Draft(self._objects, self._root)
        try:
            if before is None and ours is not None:
                result, parents = merge_commits(draft.writer, ours, theirs, resolve), [ours, theirs]
            else:
                result, parents = merge_since(draft.writer, before, ours, theirs, resolve)
            if result.how == "up to date":
                if ours is None:
                    raise UsageError(
                        f"nothing is committed here, and nothing has changed from {base} to {revision}. Commit first."
                    )
                return Merged(result.how, ours)
            if result.how == "fast-forward":
                self._move_to(theirs, "merge")
                return Merged(result.how, theirs)
            if message is None:
                name = revision if revision != theirs else short(theirs)
                message = merge_message(self._objects, name, before, theirs, theirs in parents)
            call = ("merge", revision) if base is None else ("merge", revision, base)
            self._commit_merged(draft, result, message, call, *(each for each in parents if each != ours))
        finally:
            draft.close()
        self._arrived()
        assert self._standing.commit is not None
        return Merged("merged", self._standing.commit)

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
        if parent is not None and not isinstance(parent, int):
            raise UsageError(f"parent={shown(parent)} must be the number of a parent of a merge: 1, 2 or so.")
        self._settle("revert")
        commit = read_commit(self._objects, self.resolve(revision))
        if len(commit.parents) > 1 and parent is None:
            raise UsageError(
                f"{short(commit.digest)} is a merge. Say which of its parents to go back to: parent=1 (--parent 1) "
                "undoes what it brought here."
            )
        number = parent or 1
        if not 0 < number <= max(1, len(commit.parents)):
            raise UsageError(
                f"{short(commit.digest)} has {len(commit.parents)} parents, but parent={parent}."
            )
        before = root_of(self.local, commit.parents[number - 1]) if commit.parents else None
        draft = Draft(self._objects, self._root)
        try:
            result = merge_roots(draft.writer, commit.root, self._root, before, resolve)
            message = f"Revert {commit.message.partition(chr(10))[0]!r}\n\nThis undoes {commit.digest}."
            if not result.conflicts and result.root == self._root:
                raise UsageError(
                    f"nothing of {short(commit.digest)} is left to be undone. Nothing was committed."
                )
            self._commit_merged(draft, result, message, ("revert", revision))
        finally:
            draft.close()
        self._arrived()
        assert self._standing.commit is not None
        return self._standing.commit

    @exclusive
    def reset(self, revision: str | None = None) -> None:
        """Discard what is staged; with a revision, also let the branch go back, or on, to it.

        The commits that it leaves are kept as long as a branch, a tag or git's history has them, and by their digests
        until garbage is collected.
        """
        self._check_open()
        self._check_no_block("reset")
        while True:
            self._refresh()
            here, references = self._standing.commit, self.local.references
            commit = None if revision is None else resolve(self._objects, references, revision, here)
            with self._tree.still(here) as log:
                if is_there := self._tree.is_at(here):
                    log.clear()
            if is_there and self._draft is not None:
                self._restage()
            if is_there and (commit is None or self._standing.commit == here):
                break
        if commit is not None:
            self._catch_up()
            self._move_to(commit, "reset")

    def _commit_merged(
        self, draft: Draft, result: MergeResult, message: str, call: Sequence[str], *theirs: str
    ) -> None:
        if result.conflicts:
            raise conflict_error(result.conflicts, *call)
        draft.back(result.root)
        self._commit(message, draft, *theirs)

    def _move_to(self, commit: str, what: str) -> None:
        """Let the branch, and this, be at another commit that is here already."""
        was = self._standing
        name = self._tree.reference(was.branch)
        with self._tree.moving(was, was.branch) as moving:
            log = moving.hold()
            if what == "reset":
                log.clear()
            else:
                self._check_nothing_staged(what, log)
            while True:
                tip = self.local.references.tip(name)
                if moving.left != was.commit or (was.branch is not None and tip.commit != was.commit):
                    where = "this working tree" if was.branch is None else f"the branch {was.branch!r}"
                    now = moving.left if was.branch is None else tip.commit
                    raise UsageError(
                        f"{where} has moved to {short(now)} just now. Nothing was done; do it again."
                    )
                moving.announce(commit)
                if self.local.references.move(name, tip, commit, self._author) is not None:
                    moving.arrived()
                    break
        self._arrived()

    def _arrived(self) -> None:
        """``head.stock`` has moved, and nothing is staged but what was written upon the same commit."""
        self._refresh()
        if self._draft is not None:
            self._move_on()

    def _settle(self, what: str) -> None:
        """See that nothing is staged, and be where ``head.stock`` says.

        Raises:
            UsageError: something is staged, or this is within a block.
        """
        self._check_open()
        self._check_no_block(what)
        if self._draft is not None:
            self._look()  # what others staged counts, too
        with self._stage.held() as log:
            self._check_nothing_staged(what, log)
        self._renew()
        self._catch_up()
        standing = self._standing
        if standing.went_back and standing.tip != standing.commit:
            # The branch has gone on to a commit with the same content: what is done now is done upon that.
            with self._tree.still(standing.commit) as log:
                if self._tree.is_at(standing.commit):
                    self._check_nothing_staged(what, log)
                    self._tree.go_to(standing.branch, standing.tip, log)
            self._arrived()

    def _let_go(self, what: str) -> None:
        """Hold no lock against the collector: all that is staged is durable.

        Raises:
            UsageError: within a block.
        """
        self._check_open()
        self._check_no_block(what)
        if self._draft is not None:
            self._restage()

    def _check_no_block(self, what: str) -> None:
        if self._blocks:
            raise UsageError(
                f"{what} was called within `with stock.enable_write():`, which commits at its end. Leave it first."
            )


def conflict_error(conflicts: list[Conflict], call: str, argument: str, base: str = "") -> ConflictError:
    """Both sides changed things differently, and nobody decided. ``call`` is to be repeated, with a decision."""
    option, keyword = (f" --base {base}", f", base={base!r}") if base else ("", "")
    return ConflictError(
        f"{counted_conflicts(conflicts)}\nNothing was merged. Say whose to have: "
        f"hopyard stock {call} {argument}{option} --resolve ours (or theirs); in Python "
        f"stock.{call}({argument!r}{keyword}, resolve=...) takes 'ours', 'theirs', or a function of a conflict.",
        conflicts,
    )
