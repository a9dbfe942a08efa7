"""A stockroom that is open: what is read, what is written, and committing it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any, cast

from hopyard.errors import (
    ConflictError,
    NotWritableError,
    UsageError,
)
from hopyard.stockroom import git
from hopyard.stockroom.history.commits import Commit, short
from hopyard.stockroom.history.conflicts import Conflict, listed
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.locks import reading, writing
from hopyard.stockroom.history.merge import merge_roots
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.publish import commit_draft
from hopyard.stockroom.history.references import Tip
from hopyard.stockroom.history.revisions import resolve
from hopyard.stockroom.history.stage import HeldStage, Stage, StageEntry, StagePosition
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import Shelf
from hopyard.stockroom.records.quoting import check_text
from hopyard.stockroom.remotes import (
    Repository,
)
from hopyard.stockroom.session.opening import Fetching, open_place
from hopyard.stockroom.session.status import unmerged_advice
from hopyard.stockroom.session.tree import Standing, State, WorkingTree, root_of
from hopyard.stockroom.views.guard import Guard
from hopyard.stockroom.views.view import Others, Snapshot, View
from hopyard.storage.names import path_given
from hopyard.wording import shown

_NAMED = 4  # things that a commit's message names, if none is given


class StockSession:
    """The state of one ``StockRoom`` that is open: where it stands, what is written, and which blocks are open."""

    local: Repository
    objects: Objects
    tree: WorkingTree
    standing: Standing
    stage: Stage

    def __init__(
        self, path: str | os.PathLike[str] | None = None, enable_write: bool = False, fetch: Fetching = "auto"
    ) -> None:
        if not (isinstance(fetch, str) and fetch in ("auto", "never")):
            raise UsageError(
                f"fetch={shown(fetch)} must be 'auto', which brings from a remote what is read and is not here, or "
                "'never'."
            )
        self._locks = contextlib.ExitStack()
        self.blocks: list[OpenBlock] = []
        self._others: Others | None = None  # what others see while a block is open
        self._message: str | None = None
        self.draft: Draft | None = None
        self._last: StagePosition | None = None  # of what is staged, as far as the draft has it
        self._seen: State | None = None  # of the working tree, before it was last looked at
        self._is_whole = False  # the draft has just what is staged up to `_last`, besides its own
        self._log: HeldStage  # while something is written outside of blocks
        self.is_closed: bool = False
        self.writes = enable_write
        self.place: git.Place = git.find(None if path is None else path_given(path))
        self.guard: Guard = Guard(str(self.place.root))
        self.local, self.objects, self.tree = open_place(self.place, fetch)
        with contextlib.suppress(NotWritableError):
            git.settle(self.place)
            self.tree.begin()
        self.refresh()
        if enable_write:
            for commit, base in git.read(self.place.head).unmerged:
                warnings.warn(unmerged_advice(commit, base), UserWarning, stacklevel=3)
            self.draft = self._begin()

    # Looking

    @property
    def view(self) -> View:
        """The things that the shelves show to this thread."""
        if self.guard.settle is not None:
            self.guard.tidy()
        if self.writes:
            self.look()
        draft, others = self.draft, self._others
        if draft is None:
            return self._snapshot
        return others if others is not None and self.guard.is_others else draft

    def resolve(self, revision: str) -> str:
        """The digest of the commit that a branch, a tag, ``origin/main``, ``HEAD~2``, or a digest's beginning means.

        Raises:
            NotFoundError: nothing is called so, or more than one thing is.
        """
        self.check_open()
        return resolve(self.objects, self.local.references, revision, self.stand().commit)

    def stand(self) -> Standing:
        """The standing of the working tree, as it is shown here: open for reading, or in a block, it stays as it
        was."""
        self.look(is_whole=True)
        return self.standing

    # Writing

    def commit(self, message: str) -> str:
        """Commit what is staged, or was written in this block until now.

        Returns:
            The digest of the commit.

        Raises:
            UsageError: nothing has changed, or this is open for reading only.
            ConflictError: others have committed something else of what is staged; it stays staged.
        """
        self.check_open()
        check_text(message, "the message of a commit")
        if self.draft is None:
            raise UsageError(
                "this was opened for reading, so there is nothing to commit. Write within `with "
                "stock.enable_write():`, or open StockRoom(path, enable_write=True)."
            )
        try:
            commit = self._commit_all(message)
        except ConflictError as error:
            raise ConflictError(
                f"{error} It stays staged: make a branch for it (stock.branch('mine'); stock.switch('mine')), commit "
                "there, and merge that.",
                error.conflicts,
            ) from None
        if commit is None:
            if not self.blocks:
                self.restage()
            raise UsageError(
                f"nothing has changed since {short(self.standing.commit)}, so there is nothing to commit."
            )
        return commit.digest

    # Opening and closing

    def close(self) -> None:
        """Let go of locks. What is staged stays so; what was read stays readable. Closing twice is fine.

        Raises:
            UsageError: within a block.
        """
        if self.guard.is_forked:  # what is held is the parent's
            self.is_closed = True
            return
        with self.guard.write("stock.close()"):
            self._close()

    def _close(self) -> None:
        if self.blocks:
            raise UsageError(
                "this is within `with stock.enable_write():`, which commits at its end. Leave it first."
            )
        if self.draft is not None:
            self.draft.close()
        self._locks.close()
        self.is_closed = True

    def commit_for_others(self) -> str:
        """The commit that another process reads, if this is sent there.

        Raises:
            UsageError: this is open for writing, or nothing is committed.
        """
        if self.draft is not None:
            raise UsageError(
                "a stockroom that is open for writing cannot be pickled: only one process writes what it writes. Open "
                "it in the other process, or send what is to be read: stock.at('HEAD')."
            )
        if self.standing.commit is None:
            raise UsageError("nothing is committed yet, so there is nothing to be read in another process.")
        return self.standing.commit

    def __str__(self) -> str:
        standing = self.standing
        where = f"at {short(standing.commit)}, {standing.branch or 'detached'}"
        how = "closed" if self.is_closed else "reading" if self.draft is None else "writing"
        return f"{self.place.root}: {where}, {how}"

    def check_open(self) -> None:
        """See that the stockroom was not closed.

        Raises:
            UsageError: it was.
        """
        if self.is_closed:
            raise UsageError(
                f"this stockroom was closed. Open it again: StockRoom({str(self.place.root)!r})."
            )

    def refresh(self) -> None:
        """Be where ``head.stock`` says. The draft is not, until what is staged there was applied to it."""
        self._is_whole = False
        state = self.tree.state()
        self._show(self.tree.stand())
        self._seen = state

    def _show(self, standing: Standing) -> None:
        root = root_of(self.local, standing.commit)
        self.standing = self._found = standing
        self.root = root
        self._snapshot = Snapshot(self.objects, root, short(standing.commit))
        self.stage = self.tree.stage(standing.commit)
        self._locks.close()
        if standing.commit is not None:
            self._locks.enter_context(reading(self.local.store, standing.commit))

    def _begin(self) -> Draft:
        """A draft with what is staged."""
        self.catch_up()
        draft = Draft(self.objects, self.root, self._tell, self._in_order, self.guard)
        self.guard.stay_in_process(True)
        self._apply_staged(draft)
        return draft

    def _apply_staged(self, draft: Draft) -> None:
        """Let a draft that has nothing staged have all that is."""
        self._last = None
        self._add(draft, self.stage.entries())

    def _add(self, draft: Draft, entries: Sequence[StageEntry]) -> None:
        """Let a draft have these, which follow what it has."""
        self._is_whole = False
        for entry in entries:
            draft.apply(map(WriteOperation.decode, entry.operations))
            self._last = entry.position
        self._is_whole = True

    def renew(self) -> None:
        """Be where ``head.stock`` says, with what is staged there, also for reading only."""
        if self.draft is not None and self.draft.changed:
            self.look(is_whole=True)  # all that is staged is applied again only if it has to be
        else:
            self.move_on()

    def move_on(self) -> None:
        """Be where ``head.stock`` says, and have what is staged there."""
        with self.guard:
            # A Ctrl-C may come in the middle: the draft is not whole then, and all of this is done again.
            self.refresh()
            if self.draft is not None:
                self.catch_up()
                self.draft.rebase(self.root)
                self._apply_staged(self.draft)

    def restage(self) -> None:
        """Have what is staged and nothing else, so that the collector need not be kept out."""
        assert self.draft is not None
        with self.guard:
            self._is_whole = False
            self.draft.discard()
            self.move_on()
            self.draft.release()

    def look(self, is_whole: bool = False) -> None:
        """Have what others staged or committed since this last looked, and be where they, or git, have moved to. Within
        a block, and while something is being written, all stays as it was then.

        Args:
            is_whole: see also whether git has gone to another branch that has the same ``head.stock``.
        """
        draft = self.draft
        if draft is None or self.blocks or self.is_closed or self.guard.is_forked or draft.is_writing:
            return
        state = self.tree.state()
        is_as_seen = self._is_whole and state == self._seen
        if is_as_seen and not (is_whole and not self.tree.is_as(self.standing)):
            return
        with self.guard:
            if not (self.blocks or draft.is_writing):
                new = self._new_entries()
                if new is None:
                    self.move_on()
                else:
                    self._add(draft, new)
                    self._seen = state

    def _new_entries(self) -> list[StageEntry] | None:
        """Entries that others staged behind those that the draft has; None: the latter are gone, or the
        working tree is at another commit or branch by now, or the draft has a part of it."""
        if not self._is_whole or self.tree.is_moving or not self.tree.is_as(self.standing):
            return None
        return self.stage.since(self._last)

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        """Write behind all that others staged until now, which the draft has then."""
        assert self.draft is not None
        if self._last is None:
            self.move_on()
        while True:
            with self.stage.held() as log:
                # Who moves the working tree holds the same lock until what is staged has moved along.
                state, new = self.tree.state(), self._new_entries()
                if new is not None:
                    with self.guard:
                        self._add(self.draft, new)
                    self._seen = state
                    self._log = log
                    yield
                    return
            self.move_on()

    def catch_up(self) -> None:
        """Let the branch have what ``head.stock`` has, as after a ``git pull``."""
        self.standing = self.tree.catch_up(self.standing, lambda: self.author)

    def _tell(self, operation: WriteOperation) -> None:
        self._last = self._log.append(operation.encode())
        if self._seen is not None:  # git may have written head.stock since
            self._seen = self.stage.state(), self._seen[1]

    # Moving

    def arrive(self) -> None:
        """Be where ``head.stock`` has moved to, and nothing is staged but what was written upon the same commit."""
        self.refresh()
        if self.draft is not None:
            self.move_on()

    def settle(self, what: str) -> None:
        """See that nothing is staged, and be where ``head.stock`` says.

        Raises:
            UsageError: something is staged, or this is within a block.
        """
        self.check_open()
        self.check_no_block(what)
        if self.draft is not None:
            self.look()  # what others staged counts, too
        with self.stage.held() as log:
            self.check_nothing_staged(what, log)
        self.renew()
        self.catch_up()
        standing = self.standing
        if standing.went_back and standing.tip != standing.commit:
            # The branch has gone on to a commit with the same content: what is done now is done upon that.
            with self.tree.still(standing.commit) as log:
                if self.tree.is_at(standing.commit):
                    self.check_nothing_staged(what, log)
                    self.tree.go_to(standing.branch, standing.tip, log)
            self.arrive()

    def let_go(self, what: str) -> None:
        """Hold no lock against the collector: all that is staged is durable.

        Raises:
            UsageError: within a block.
        """
        self.check_open()
        self.check_no_block(what)
        if self.draft is not None:
            self.restage()

    def check_no_block(self, what: str) -> None:
        """See that this is not within a block.

        Raises:
            UsageError: it is.
        """
        if self.blocks:
            raise UsageError(
                f"{what} was called within `with stock.enable_write():`, which commits at its end. Leave it first."
            )

    @contextlib.contextmanager
    def maintained(self, what: str) -> Iterator[None]:
        """Hold no lock against the collector, and know afterwards what is purged.

        Raises:
            UsageError: within a block.
        """
        self.let_go(what)
        try:
            yield
        finally:
            self.objects.refresh()
        if self.draft is not None:
            self.restage()

    # Blocks

    def enter_block(self, message: str | None) -> OpenBlock:
        """Open a block; see ``StockRoom.enable_write``."""
        # What is staged when it is looked at is not purged until the draft keeps the collector out for it.
        with self.guard.write("stock.enable_write()"), writing(self.local.store):
            self.check_open()
            if not self.blocks:
                self._message = None
                self.renew()
            self._message = self._message or message
            draft = self.draft or self._begin()
            held = draft.held()
            held.__enter__()
            block = OpenBlock(held)
            if not self.blocks:
                objects, root = (draft.writer, draft.begun) if self.writes else (self.objects, self.root)
                self._others = Others(objects, root, self._snapshot.revision, self.guard)
                self.guard.own("has a block open (`with stock.enable_write():`)")
            self.draft = draft
            self.blocks.append(block)
            return block

    def leave_block(self, block: OpenBlock, error: BaseException | None) -> None:
        """Commit what was written in a block, or if an exception leaves it, undo that."""
        guard = self.guard
        if guard.is_forked:
            if error is None:
                guard.check("leaving a block of `with stock.enable_write():`")
            return  # what is here is a copy
        if guard.is_others or (error is not None and guard.is_inside):
            # As of a generator that is collected, whichever thread does that: nothing may be waited for.
            block.is_lost = True
            guard.settle = self._undo_lost
            if error is None:
                raise UsageError(
                    "a block of `with stock.enable_write():` was left by another thread or asyncio task than the one "
                    "that opened it, so it is undone: nothing of it has happened. Open and leave it in the same one."
                )
            return
        with guard.write("leaving a block of `with stock.enable_write():`"):
            if block not in self.blocks:
                if error is None:
                    raise UsageError(
                        "the block of `with stock.enable_write():` around this one was undone by an exception, and "
                        "this one with it: nothing of it has happened. Run it again."
                    )
            elif error is not None:
                self._lose(block)
                return
            else:
                block.is_over = True
            self._end_blocks()

    def _lose(self, block: OpenBlock) -> None:
        """Undo a block, at once if no Ctrl-C comes, else before this is used again."""
        block.is_lost = True
        guard = self.guard
        guard.settle = self._undo_lost
        self._undo_lost()
        guard.settle = None

    def _undo_lost(self) -> None:
        lost = next((block for block in self.blocks if block.is_lost), None)
        if lost is not None:
            self._undo(lost)
        elif not self.blocks:
            # The end was interrupted.
            self._end_draft()
            if self.draft is None:
                self.refresh()
        self._end_blocks()

    def _undo(self, block: OpenBlock) -> None:
        """Undo what was written in a block, and in those within it."""
        while block in self.blocks:
            error = RuntimeError("undone")
            self._is_whole = False
            with contextlib.suppress(RuntimeError):
                self.blocks[-1].held.__exit__(RuntimeError, error, None)
            self.blocks.pop()
            if not self.blocks:
                self._end_draft()

    def _end_blocks(self) -> None:
        """Go out of blocks that are over. One that another was opened in, and that outlives it, waits for it."""
        try:
            if self.blocks and all(block.is_over for block in self.blocks):
                self._commit_block()
        except BaseException as error:
            self._lose(self.blocks[0])
            if self.draft is None and not isinstance(error, ConflictError):
                # What was interrupted, or failed, behind the moment in which the commit was there has happened.
                self.refresh()
            raise
        while self.blocks and self.blocks[-1].is_over:
            self.blocks.pop().held.__exit__(None, None, None)
            if not self.blocks:
                self._end_draft()

    def _commit_block(self) -> None:
        try:
            self._commit_all(self._message)
        except ConflictError as error:
            raise ConflictError(
                f"{error} Nothing of the block has happened. Run it again: it then begins with what is there now.",
                error.conflicts,
            ) from None

    def _end_draft(self) -> None:
        if self.draft is None:
            return
        if not self.writes:
            self.draft.close()
            self.draft = None
            self.guard.stay_in_process(False)
        self._others = None
        self.guard.disown()
        if self.draft is not None and self.draft.is_holding:
            self.restage()

    # Committing

    def _commit_all(self, message: str | None) -> Commit | None:
        """Commit this draft upon what stands there by then; None: nothing is new."""
        with writing(
            self.local.store
        ):  # what is staged when it is looked at is not purged until it is committed
            if not self.blocks and self._new_entries() is None:
                self.move_on()
            while True:
                with contextlib.suppress(_StagedMovedError):
                    try:
                        return self.publish(message)
                    except BaseException:
                        self._is_whole = False
                        raise
                if self.blocks:
                    self._carry_block()
                else:
                    self.move_on()

    def _carry_block(self) -> None:
        """Let the block count from what stands there now, with the changes that were made in it: what others have
        committed or discarded of what it counted from stays so.

        If git or another has gone elsewhere, the block stays where it was begun.

        Raises:
            ConflictError: others have changed something else of it. Nothing has happened.
        """
        draft = self.draft
        assert draft is not None
        found = self.tree.catch_up(self.tree.stand(), lambda: self.author)
        now, is_staged = self.standing, self.stage.since(self._last) is not None
        if self.tree.goes_along(now, found):
            now = found
        elif not is_staged and now.branch is not None:  # others may have committed it before
            tip = self.local.references.tip(f"heads/{now.branch}").commit
            now = now if tip is None else replace(now, commit=tip, tip=tip)
        if now.commit != self.standing.commit or not is_staged:
            # Without anything staged below the block, what others stage meanwhile stays staged.
            entries = [] if self._last is None else self.tree.stage(now.commit).entries()
            root = root_of(self.local, now.commit)
            carrier = Draft(self.objects, root)
            try:
                carrier.apply(WriteOperation.decode(each) for entry in entries for each in entry.operations)
                there, begun = carrier.flush(), draft.begun

                def carried(mine: str | None) -> str | None:
                    result = merge_roots(draft.writer, begun, there, mine)
                    if result.conflicts:
                        raise self._overtaken(now, result.conflicts)
                    return result.root

                draft.carry(root, carried)
            finally:
                carrier.close()
            self._last = entries[-1].position if entries else None
        self._show(now)
        self._found = found

    def _overtaken(self, now: Standing, conflicts: list[Conflict]) -> ConflictError:
        where = "this working tree" if now.branch is None else repr(now.branch)
        what = (
            "others have discarded or staged anew what was staged in this working tree when this was begun"
            if now.commit == self.standing.commit
            else f"{where} has moved to {short(now.commit)} since this was begun"
        )
        return ConflictError(
            f"{what}, and {len(conflicts)} of the changes conflict with it (ours is there, theirs is yours):\n"
            f"{listed(conflicts)}\nNothing was committed.",
            conflicts,
        )

    def publish(self, message: str | None, draft: Draft | None = None, *merged: str) -> Commit | None:
        """Commit a draft (None: this one), let the branch and ``head.stock`` follow; None: nothing is new."""
        draft = draft or self.draft
        assert draft is not None
        was = self.standing
        parents = [*([] if was.commit is None else [was.commit]), *merged]
        with git.finding(self.place) as found, self.tree.moving(was, was.branch) as moving:
            reference = self.tree.reference(was.branch)

            def announce(digest: str, tip: Tip) -> None:
                log = moving.hold()
                moving.announce(digest, () if merged else self._carried(draft, log, digest), tip)

            def now() -> str | None:
                log = moving.hold()
                if draft is self.draft:
                    self._staged_by_others(log)
                return moving.left

            if merged:
                self.check_nothing_staged("merge", moving.hold())
            commit = commit_draft(
                draft, self.local.references, reference, parents,
                partial(_summary, draft) if message is None else message,
                lambda: self.facts(found()), announce, now,
            )  # fmt: skip
            if commit is not None:
                moving.arrived()
            elif draft is self.draft:
                self._cancel_out(draft, moving.hold())
        if commit is None:
            return None
        if was.branch is None:
            warnings.warn(
                f"{short(commit.digest)} was committed to no branch: {was.reason}. Make a branch for it: "
                "stock.branch('NAME'), or hopyard stock branch NAME.",
                UserWarning,
                stacklevel=6,
            )
        self._show(
            Standing(was.branch, commit.digest, was.branch, commit.digest if was.branch else None, was.reason)
        )
        # What is staged upon it, others have staged, and is looked for.
        self._last, self._seen = None, None
        return commit

    def _cancel_out(self, draft: Draft, log: HeldStage) -> None:
        """Take back what was staged before a draft that changes nothing by now. What others staged since stays so."""
        if self._last is not None:
            told = self._carried(draft, log, self.standing.commit)
            if told:
                log.replace(told)
            else:
                log.clear()
        if all(block.is_over for block in self.blocks):
            self.refresh()
        draft.rebase(self.root)
        self._last, self._seen = None, None

    def _staged_by_others(self, log: HeldStage) -> list[StageEntry]:
        """Entries that others staged behind those that the draft has.

        Raises:
            _StagedMovedError: what this has was committed by others, or discarded, or the working tree is at another
                commit or branch than this has found it.
        """
        if log.stage.base == self.stage.base and self.tree.is_as(self._found):
            others = log.stage.since(self._last)
            if others is not None:
                return others
        raise _StagedMovedError

    def check_nothing_staged(self, what: str, log: HeldStage) -> None:
        """See that nothing is staged. Writes that change nothing are gone afterwards.

        Raises:
            UsageError: something is.
        """
        if not is_clean(self.objects, self.local, log):
            raise UsageError(
                f"{what} would leave behind what is staged upon {short(log.stage.base)}. Commit it "
                "(stock.commit('message'), hopyard stock commit), or discard it (stock.reset(), hopyard stock reset)."
            )

    def _carried(self, draft: Draft, log: HeldStage, commit: str | None) -> list[bytes]:
        """Operations to be staged upon a commit of this draft: the changes that others staged, and the commit has not.

        It is carried there as the changes of a commit are that another was faster than.

        Raises:
            ConflictError: the commit has something else of it.
            _StagedMovedError: as :meth:`_staged_by_others`.
        """
        if draft is self.draft:
            others = self._staged_by_others(log)
            begun = draft.begun if self.blocks else draft.write()
        else:  # a revert's own, which has nothing of what is staged
            others, begun = log.stage.entries(), root_of(self.local, log.stage.base)
        if not others:
            return []
        carrier = Draft(self.objects, begun)
        try:
            carrier.apply(WriteOperation.decode(each) for entry in others for each in entry.operations)
            theirs = carrier.write()
            ours = root_of(self.local, commit)
            result = merge_roots(carrier.writer, begun, ours, theirs)
            if result.conflicts:
                raise ConflictError(
                    f"{len(result.conflicts)} of the changes conflict with what others have staged in this working "
                    f"tree meanwhile (ours is yours, theirs is staged):\n{listed(result.conflicts)}\nNothing was "
                    "committed.",
                    result.conflicts,
                )
            carrier.rebase(ours)
            carrier.back(result.root)
            things = [each.split("/", 1) for each, _ in carrier.changes()]
            told = []
            for shelf, name in things:
                record = carrier.record(cast(Shelf, shelf), name)
                told.append((cast(Shelf, shelf), name, None if record is None else record.to_json()))
            carrier.publish()
            return [WriteOperation(things=tuple(told)).encode()] if told else []
        finally:
            carrier.close()

    @cached_property
    def author(self) -> str:
        """The author of commits that are made here."""
        return git.author(self.place)

    def facts(self, found: git.GitFacts) -> tuple[str, dict[str, Any] | None]:
        """The author and, as JSON, the facts of git that a commit notes."""
        return self.author, None if found == git.GitFacts() else asdict(found)


def is_clean(objects: Objects, local: Repository, log: HeldStage) -> bool:
    """Whether nothing is staged, or only writes that change nothing, which are then gone afterwards."""
    operations = log.stage.operations()
    if operations:
        draft = Draft(objects, root_of(local, log.stage.base))
        draft.apply(map(WriteOperation.decode, operations))
        changed = draft.changed
        draft.close()
        if changed:
            return False
        log.clear()
    return True


class _StagedMovedError(Exception):
    """Others of the working tree have committed or discarded what is to be committed since it was looked at, or have
    moved the working tree."""


class OpenBlock:
    """A block that is open: ``held`` has what leads back to its beginning."""

    def __init__(self, held: contextlib.AbstractContextManager[None]) -> None:
        self.held = held
        self.is_over = self.is_lost = False


def _summary(draft: Draft) -> str:
    """A message for a commit that was given none."""
    changes = draft.changes()
    named = [path if how == "changed" else f"{path} {how}" for path, how in changes[:_NAMED]]
    if len(changes) > _NAMED:
        named.append(f"{len(changes) - _NAMED} more")
    return ", ".join(named)
