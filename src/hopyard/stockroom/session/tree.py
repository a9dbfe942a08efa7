"""The working tree: where it stands, and how branch, ``head.stock`` and stage move together.

A commit moves the branch first, then ``head.stock``, then clears the stage. Before that it writes down what it is about
to do, under ``stage/<worktree>.moving``, and the new ``head.stock``, beside the old one: what comes behind the branch
takes no space. Whoever opens the tree after a kill, or after a failure behind the branch, brings it to its end. An OS
lock keeps others of the same working tree from doing so while it is under way.
"""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError
from hopyard.stockroom.git import (
    Head,
    Place,
    branch_like,
    current_branch,
    discard,
    has_had,
    mark_of,
    read,
    write,
    write_beside,
)
from hopyard.stockroom.history.commits import is_ancestor, read_commit, short, write_commit
from hopyard.stockroom.history.locks import locked, writing
from hopyard.stockroom.history.pending import Pending, read_pending
from hopyard.stockroom.history.references import Tip, check_name
from hopyard.stockroom.history.stage import HeldStage, Stage, StagePosition, stages
from hopyard.stockroom.remotes import Repository, names, recall
from hopyard.storage import files
from hopyard.storage.oserrors import write_errors

State = tuple[bytes, tuple[int, ...] | None]

_CHOSEN = "head.stock names a commit, and no branch"


@dataclass(frozen=True)
class Standing:
    """The standing of a working tree: branch and commit.

    Attributes:
        branch: what commits move; None: they are detached, and move no branch.
        commit: what is read; None: nothing is committed yet.
        named: the branch that is meant, by ``head.stock`` or by git; None: none.
        tip: where that branch is.
        reason: why commits move no branch; None: they do.
        went_back: git has gone back from the branch's tip to the commit, by a revert or a reset: what is committed next
            follows both, and has the content of the commit.
    """

    branch: str | None
    commit: str | None
    named: str | None
    tip: str | None
    reason: str | None = None
    went_back: bool = False


class WorkingTree:
    """One working tree of a repository.

    Args:
        place: where it is.
        local: its repository.
        bring: brings a commit that is not here, such as that of a ``head.stock`` that ``git pull`` has changed, and
            returns whether it could.
    """

    def __init__(self, place: Place, local: Repository, bring: Callable[[str, str | None], bool]) -> None:
        self.place = place
        self.bring = bring
        self._local = local
        self._pending = f"stage/{place.worktree}.moving"
        self._any_stage = Stage(local.store, place.worktree, None)

    def begin(self) -> None:
        """Discard what was staged in a worktree that git removed, and whose name another one has now: its index went
        with it, too. This is done once, where a worktree is first opened.

        Raises:
            NotWritableError: it cannot be noted that this was done.
        """
        mark = mark_of(self.place)
        if mark is None or mark.exists():
            return
        with self._any_stage.held() as log:
            files.look_anew(mark.parent)
            if not mark.exists():
                for stage in stages(self._local.store, self.place.worktree):
                    log.upon(stage.base).clear()
                self._local.store.delete(self._pending)
                self._local.store.sync_deleted([self._pending])
                with write_errors(mark):
                    files.make_directory(mark.parent)
                    with files.created(mark):
                        pass
                    files.sync(mark.parent)

    def stand(self) -> Standing:
        """The standing now; a move that a killed process began is finished first.

        Raises:
            NotFoundError: the commit of ``head.stock`` is neither here nor at a remote that is known.
        """
        standing = self._seen()
        # Others of this tree may have moved the branch since head.stock was read. What moved it has announced that
        # before, so looking again finds it under way, or done.
        while standing.branch is None and (now := self._seen()) != standing:
            standing = now
        return standing

    def _seen(self) -> Standing:
        self._finish_what_was_begun()
        head = read(self.place.head)
        try:
            return self._standing(head)
        except NotFoundError:  # also of a commit that came, but not all that it needs, as before a kill
            if head.commit is None or not self.bring(head.commit, self.branch_of(head)[0]):
                raise self._absent(short(head.commit)) from None
        except CorruptError as error:
            raise CorruptError(
                f"{self.place.head} is at the commit {short(head.commit)}, which cannot be reached: {error} This opens "
                "all the same, and says all that is wrong: hopyard stock verify; this repairs it from a remote or "
                "another clone: hopyard stock verify --repair-from URL_OR_FOLDER"
            ) from error
        return self._standing(head)

    def _standing(self, head: Head) -> Standing:
        # Read, not looked for: what a damaged index does not know is found by reading.
        root = root_of(self._local, head.commit)
        name, why = self.branch_of(head)
        if name is None:
            return Standing(None, head.commit, None, None, why)
        tip = self._local.references.tip(f"heads/{name}").commit
        if tip is None or self._follows(tip, head.commit):
            return Standing(name, head.commit, name, tip)
        if root_of(self._local, tip) == root or self._was_at(tip):
            return Standing(name, head.commit, name, tip, went_back=True)
        return Standing(None, head.commit, name, tip, self._elsewhere(head.commit, name, tip))

    def _elsewhere(self, commit: str | None, branch: str, tip: str) -> str:
        """Why commits move no branch where it has gone elsewhere, with what to do."""
        here, switch = short(commit), f"hopyard stock switch {branch}"
        if commit is not None and not self._follows(commit, tip):
            return (
                f"head.stock is at {here}, but its branch {branch!r} is at {short(tip)}: neither follows the other, "
                f"and git's history of this branch never had the latter. To go there: {switch}; to bring there what is "
                f"here as well: {switch} && hopyard stock merge {here}"
            )
        back = f"; to take what came since off the branch: {switch} && hopyard stock reset {here}"
        return (
            f"head.stock was put back to {here}, by git or by hand, but its branch {branch!r} has gone on to "
            f"{short(tip)}, which git's history of this branch never had. To go to the end of the branch: {switch}"
            f"{'' if commit is None else back}"
        )

    def branch_of(self, head: Head) -> tuple[str | None, str]:
        """The branch that is meant; without one, why there is none.

        As long as git is at the branch at which ``head.stock`` was written, that says it. Where git has moved on, it is
        the branch of the same name as git's.
        """
        git = current_branch(self.place)
        if self.place.git is None or git == head.git:
            return head.branch, _CHOSEN
        if git is None:
            return None, "git has checked out a commit, and no branch"
        try:
            check_name(f"heads/{branch_like(git)}")
        except UsageError:
            return None, f"git's branch {git!r} has a name that no branch here can have"
        return branch_like(git), ""

    def _follows(self, before: str, commit: str | None) -> bool:
        return commit is not None and (before == commit or is_ancestor(self._local.objects, before, commit))

    def _was_at(self, tip: str) -> bool:
        """Whether git has gone back from there; if its history cannot be read, that is not known."""
        if self.place.git is None:
            return False
        try:
            return has_had(self.place, current_branch(self.place), tip)
        except StorageError:
            return False

    def _absent(self, commit: str) -> NotFoundError:
        remotes = [recall(self._local.store, name) for name in names(self._local.store)]
        known = " or ".join(f"{remote.name} ({remote.url})" for remote in remotes)
        return NotFoundError(
            f"{self.place.head} is at the commit {commit}, which is {'neither' if known else 'not'} in "
            f"{self.place.objects}{f' nor came from {known}' if known else ''}, or not whole. Push it from where it "
            f"was made, then {'open this again. Or bring' if known else 'bring'} it from where it was pushed: hopyard "
            f"stock clone URL {self.place.root}{' --name NAME' if known else ''}; or from another clone: hopyard stock "
            "verify --repair-from FOLDER"
        )

    def reference(self, branch: str | None) -> str:
        """The name of the reference that a commit moves."""
        return f"worktrees/{self.place.worktree}" if branch is None else f"heads/{branch}"

    def catch_up(self, standing: Standing, by: Callable[[], str]) -> Standing:
        """Let the branch have what ``head.stock`` has, as after a ``git pull``; where it stands then.

        Where git has gone back, the branch moves to a commit that follows its tip and has the older content.
        """
        if standing.branch is None or standing.tip == standing.commit:
            return standing
        name = f"heads/{standing.branch}"
        tip = self._local.references.tip(name)
        if tip.commit != standing.tip:
            return standing
        commit = self._back(standing, by) if standing.went_back else standing.commit
        if commit not in (None, tip.commit) and self._local.references.move(name, tip, commit, by()) is None:
            return standing
        return replace(standing, tip=commit)

    def _back(self, standing: Standing, by: Callable[[], str]) -> str:
        """A commit that follows the branch, and ``head.stock``, and has the content of the latter."""
        assert standing.tip is not None
        root = root_of(self._local, standing.commit)
        is_before = standing.commit is None or self._follows(standing.commit, standing.tip)
        if is_before and root_of(self._local, standing.tip) == root:
            return standing.tip
        parents = [standing.tip, *([] if is_before else [str(standing.commit)])]
        message = f"Back to {short(standing.commit)}, as git has done"
        with writing(self._local.store):
            writer = self._local.objects.writing()
            commit = write_commit(writer, root, parents, message, by())
            writer.publish()
        return commit.digest

    def stage(self, commit: str | None) -> Stage:
        """The staged writes upon a commit."""
        return self._any_stage.upon(commit)

    def state(self) -> State:
        """A value that differs from the one of before if anything was staged or cleared, or the working tree has moved,
        also by git, since then. A ``head.stock`` that is gone for the moment, as while git writes it, is None."""
        try:
            found = self.place.head.stat()
        except OSError:
            return self._any_stage.state(), None
        return self._any_stage.state(), (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def is_as(self, standing: Standing) -> bool:
        """Whether branch and commit are those of a standing now; what a killed process began is not done first."""
        head = read(self.place.head)
        return head.commit == standing.commit and self.branch_of(head)[0] == standing.named

    def goes_along(self, was: Standing, now: Standing) -> bool:
        """Whether what was begun where the working tree stood is to be committed where it stands by now: at the same
        commit, whatever the branch is, or on the same branch. Otherwise git, or another, has gone elsewhere."""
        if now.commit == was.commit or was.branch is not None:
            return now.commit == was.commit or now.named == was.branch
        return now.named == was.named and self._is_between(was.commit, now.commit)

    def is_at(self, commit: str | None) -> bool:
        """Whether ``head.stock`` names this commit now; what a killed process began is not done first."""
        return read(self.place.head).commit == commit

    def set_head(self, branch: str | None, commit: str | None, prepared: str | None = None) -> None:
        """Write ``head.stock``, from a file that was prepared for that, if it still is right."""
        write(self.place.head, Head(branch, commit, current_branch(self.place)), prepared=prepared)

    @property
    def is_moving(self) -> bool:
        """Whether a move was announced and has not come to its end: by who holds the lock, or was killed."""
        return self._local.store.exists(self._pending)

    @contextmanager
    def still(self, commit: str | None) -> Iterator[HeldStage]:
        """The staged writes upon a commit, locked: meanwhile nobody else moves this working tree, or stages in it.

        What a killed process began is done first.
        """
        with locked(self._local.store, f"{self._pending}.lock", fcntl.LOCK_EX):
            self.finish()
            with self.stage(commit).held() as log:
                yield log

    @contextmanager
    def moving(self, standing: Standing, branch: str | None) -> Iterator[Moving]:
        """Move a reference within, then ``head.stock``, and clear the stage that it leaves.

        Args:
            branch: what moves; None: the reference of the working tree.
        """
        moving = Moving(self, standing, branch)
        with moving.locks:
            try:
                yield moving
            finally:
                moving.finish()

    def go_to(self, branch: str | None, commit: str | None, log: HeldStage) -> None:
        """Let ``head.stock`` be at a commit, where nothing is staged upon the one before. For who has ``still``."""
        self.set_head(branch, commit)
        log.upon(commit).arrive()

    def announce(
        self, was: Standing, branch: str | None, commit: str, left: str | None, carried: StagePosition | None,
        tip: Tip | None,
    ) -> str | None:  # fmt: skip
        """Note what is about to be done, and prepare ``head.stock``; the name of the file that is prepared."""
        prepared = write_beside(self.place.head, Head(branch, commit, current_branch(self.place)))
        try:
            number = (tip or self._local.references.tip(self.reference(branch))).number
            pending = Pending(branch, commit, number, was.named, was.commit, left, carried, prepared)
            self._local.store.put(self._pending, pending.encode())
        except BaseException:
            discard(self.place.head, prepared)
            raise
        return prepared

    def arrive(
        self, was: Standing, branch: str | None, commit: str, left: str | None, carried: StagePosition | None,
        prepared: str | None, log: HeldStage,
    ) -> None:  # fmt: skip
        """The reference has moved: so does ``head.stock``, unless git has checked out something else meanwhile."""
        there = self._move_head(was, branch, commit, prepared)
        log.upon(there).arrive(carried if there == commit else None)
        for base in {was.commit, left} - {commit}:
            log.upon(base).drop()
        self.forget(prepared)

    def stay(self, commit: str, carried: StagePosition | None, prepared: str | None, log: HeldStage) -> None:
        """The reference has not moved to a commit."""
        if carried is not None:
            log.upon(commit).drop()
        self.forget(prepared)

    def _move_head(self, was: Standing, branch: str | None, commit: str, prepared: str | None) -> str | None:
        """Move ``head.stock``, if it is where that is expected; the commit that it is at."""
        head = read(self.place.head)
        named = self.branch_of(head)[0]
        if named == was.named and self._is_between(was.commit, head.commit):
            self.set_head(branch, commit, prepared)
            return commit
        if (head.branch, head.commit) != (branch, commit):
            here = repr(named) if named else "no branch"
            there = f"the branch {branch!r}" if branch else "no branch"
            git = f"git checkout {branch}, then " if branch and self.place.git is not None else ""
            keep = "" if branch else f" Keep it by a branch: hopyard stock branch NAME {short(commit)}."
            warnings.warn(
                f"{short(commit)} was committed to {there}, where it was begun, but {self.place.head} was changed "
                f"meanwhile, to {here} at {short(head.commit)}, and stays so.{keep} To have its data here, too: "
                f"hopyard stock merge {branch or short(commit)}. To go there: {git}hopyard stock switch "
                f"{branch or short(commit)}.",
                UserWarning,
                stacklevel=2,
            )
        return head.commit

    def forget(self, prepared: str | None) -> None:
        discard(self.place.head, prepared)
        self._local.store.delete(self._pending)
        # If it came back after a power cut, what has been staged there since then would be taken for committed.
        self._local.store.sync_deleted([self._pending])

    def left_by(self, was: Standing) -> str | None:
        """The commit upon which a working tree that stood so is now: others may have committed; where git has checked
        out something else, it is the same one."""
        head = read(self.place.head)
        if self.branch_of(head)[0] == was.named and self._is_between(was.commit, head.commit):
            return head.commit
        return was.commit

    def _is_between(self, was: str | None, commit: str | None) -> bool:
        """Whether a commit is the one that was there, or what another process has committed upon it."""
        if was in (commit, None):
            return True
        return commit is not None and was is not None and is_ancestor(self._local.objects, was, commit)

    def _finish_what_was_begun(self) -> None:
        if self.is_moving:
            with self.still(None):
                pass

    def finish(self, log: HeldStage | None = None) -> None:
        """Bring to its end what was announced, if that is not done yet. For who holds the lock.

        Args:
            log: of the working tree, of who holds that, too.
        """
        if not self.is_moving:
            return
        pending = read_pending(self._local.store, self._pending)
        with nullcontext(log) if log is not None else self.stage(pending.left).held() as log:
            was = Standing(None, pending.commit_before, pending.branch_before, None)
            for move in self._local.references.log(self.reference(pending.branch)):
                if move.number <= pending.number:
                    break
                if move.commit == pending.commit:
                    self.arrive(
                        was, pending.branch, pending.commit, pending.left, pending.carried, pending.head, log
                    )
                    return
            self.stay(pending.commit, pending.carried, pending.head, log)


class Moving:
    """A move that is under way."""

    def __init__(self, tree: WorkingTree, was: Standing, branch: str | None) -> None:
        self.locks: ExitStack = ExitStack()
        self.left = was.commit  # where the working tree is when it moves
        self._tree, self._was, self._branch = tree, was, branch
        self._log: HeldStage | None = None
        self._announced: tuple[str, str | None, StagePosition | None, str | None] | None = None
        self._has_arrived = False

    def hold(self) -> HeldStage:
        """From here on nobody else moves this working tree, or stages anything in it.

        Returns:
            What is staged where the working tree is now: others may have committed since it stood where it was.
        """
        if self._log is None:
            log = self.locks.enter_context(self._tree.still(self._was.commit))
            self.left = self._tree.left_by(self._was)
            self._log = log.upon(self.left)
        return self._log

    def announce(self, commit: str, staged: Sequence[bytes] = (), tip: Tip | None = None) -> None:
        """The reference is about to be moved to a commit.

        Args:
            staged: operations that are staged upon it from then on. All else that is staged is gone.
            tip: from where, and nowhere else; None: from wherever it is then.
        """
        log = self.hold()
        self._withdraw(log)
        carried = log.upon(commit).prepare(staged) if staged else None
        try:
            prepared = self._tree.announce(self._was, self._branch, commit, self.left, carried, tip)
        except BaseException:
            self._tree.stay(commit, carried, None, log)
            raise
        self._announced = commit, self.left, carried, prepared

    def arrived(self) -> None:
        """The reference has been moved to what was announced."""
        self._has_arrived = True

    def finish(self) -> None:
        if self._log is None or self._announced is None:
            return
        commit, left, carried, prepared = self._announced
        try:
            if self._has_arrived:
                self._tree.arrive(self._was, self._branch, commit, left, carried, prepared, self._log)
            else:
                # Mostly nothing has moved; but what failed may have come behind that.
                self._tree.finish(self._log)
        except StorageError as error:
            if not self._has_arrived:
                return  # whoever opens the tree next looks again
            warnings.warn(
                f"{short(commit)} was committed to {self._branch or 'no branch'}, but not all that follows from "
                f"it could be written: {error} Do not commit that again: whoever opens this stockroom next ends it.",
                UserWarning,
                stacklevel=2,
            )

    def _withdraw(self, log: HeldStage) -> None:
        if self._announced is not None:
            commit, _, carried, prepared = self._announced
            self._announced = None
            self._tree.stay(commit, carried, prepared, log)


def root_of(local: Repository, commit: str | None) -> str | None:
    """The root map of a commit."""
    return None if commit is None else read_commit(local.objects, commit).root
