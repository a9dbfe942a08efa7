"""The working tree: where it stands, and how branch, ``head.stock`` and stage move together.

A commit moves the branch first, then ``head.stock``, then clears the stage. Before that it writes down what it is about
to do, under ``stage/<worktree>.moving``, and the new ``head.stock``, beside the old one: what comes behind the branch
takes no space. Whoever opens the tree after a kill, or after a failure behind the branch, brings it to its end. An OS
lock keeps others of the same working tree from doing so while it is under way.
"""

from __future__ import annotations

import fcntl
import json
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from hopyard.errors import CorruptError, NotFoundError, StorageError, UsageError
from hopyard.stockroom.git import (
    Head,
    Place,
    branch_like,
    current_branch,
    discard,
    has_had,
    read,
    write,
    write_beside,
)
from hopyard.stockroom.history.commits import is_ancestor, read_commit, write_commit
from hopyard.stockroom.history.locks import locked, writing
from hopyard.stockroom.history.references import check_name
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.remotes import Repository, names, recall
from hopyard.storage import Store
from hopyard.storage.format import check_format, format_header
from hopyard.storage.small import get_small

_KIND = "moving"
_CHOSEN = "head.stock names a commit, and no branch"
_DIGEST_BYTES = 32
_MOST = 1 << 26  # bytes that say what a commit is about to do: it may have many staged writes


@dataclass(frozen=True)
class Standing:
    """Where a working tree stands.

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

    @property
    def is_chosen(self) -> bool:
        """Whether there is no branch because the user went to a commit."""
        return self.reason == _CHOSEN


class WorkingTree:
    """One working tree of a repository.

    Args:
        place: where it is.
        local: its repository.
        bring: brings a commit that is not here, such as that of a ``head.stock`` that ``git pull`` has changed, and
            returns whether it could.
    """

    def __init__(self, place: Place, local: Repository, bring: Callable[[str], bool]) -> None:
        self.place, self._local, self.bring = place, local, bring
        self._pending = f"stage/{place.worktree}.moving"

    def stand(self) -> Standing:
        """Where it stands; what a killed process began is done first.

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
            if head.commit is None or not self.bring(head.commit):
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
        why = (
            f"head.stock is at {short(head.commit)}, but its branch {name!r} is at {short(tip)}, which does not come "
            "before it, nor was it ever here"
        )
        return Standing(None, head.commit, name, tip, why)

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
        """What a commit moves."""
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
        """What is written upon a commit."""
        return Stage(self._local.store, self.place.worktree, commit)

    def is_at(self, commit: str | None) -> bool:
        """Whether ``head.stock`` names this commit now; what a killed process began is not done first."""
        return read(self.place.head).commit == commit

    def set_head(self, branch: str | None, commit: str | None, prepared: str | None = None) -> None:
        """Write ``head.stock``, from a file that was prepared for that, if it still is right."""
        write(self.place.head, Head(branch, commit, current_branch(self.place)), prepared=prepared)

    @contextmanager
    def moving(
        self, standing: Standing, branch: str | None, operations: Collection[int] = (), is_all: bool = False
    ) -> Iterator[Moving]:
        """Move a reference within, then ``head.stock``, and clear what is committed of the stage.

        Args:
            branch: what moves; None: the reference of the working tree.
            operations: numbers of staged writes that the commit has.
            is_all: it has nothing else: what others staged meanwhile comes behind it, and so is staged upon it then,
                unless what was committed meanwhile had to be merged.
        """
        moving = Moving(self, standing, branch, operations, is_all)
        with moving.locks:
            try:
                yield moving
            finally:
                moving.finish()

    def lock(self, stack: ExitStack) -> None:
        """Keep out whoever else moves this working tree, or finishes that."""
        stack.enter_context(locked(self._local.store, f"{self._pending}.lock", fcntl.LOCK_EX))

    def announce(
        self, was: Standing, branch: str | None, commit: str, operations: Collection[int], is_all: bool
    ) -> str | None:
        """Note what is about to be done, and prepare ``head.stock``; the name of the file that is prepared."""
        prepared = write_beside(self.place.head, Head(branch, commit, current_branch(self.place)))
        try:
            value = {
                "branch": branch, "commit": commit, "format": format_header(_KIND), "from": was.commit,
                "head": prepared, "is_all": is_all,
                "number": self._local.references.tip(self.reference(branch)).number,
                "operations": sorted(operations), "was": was.named,
            }  # fmt: skip
            self._local.store.put(self._pending, json.dumps(value, sort_keys=True).encode())
            with self.stage(was.commit).held():  # makes the lock's file, if there is none yet
                pass
        except BaseException:
            discard(self.place.head, prepared)
            raise
        return prepared

    def arrive(
        self,
        was: Standing,
        branch: str | None,
        commit: str,
        operations: Collection[int],
        is_all: bool,
        prepared: str | None,
    ) -> None:
        """The reference has moved: so does ``head.stock``, unless git has checked out something else meanwhile."""
        if operations and is_all:
            is_all = read_commit(self._local.objects, commit).parents == ((was.commit,) if was.commit else ())
        with self.stage(was.commit).held() as log:
            self._move_head(was, branch, commit, prepared)
            if operations:
                log.committed(operations, self.stage(commit) if is_all else None)
        self.forget(prepared)

    def _move_head(self, was: Standing, branch: str | None, commit: str, prepared: str | None) -> None:
        head = read(self.place.head)
        if self.branch_of(head)[0] == was.named and self._is_between(was.commit, head.commit):
            self.set_head(branch, commit, prepared)
        elif (head.branch, head.commit) != (branch, commit):
            warnings.warn(
                f"{short(commit)} was committed to {branch or 'no branch'}, but {self.place.head} was changed "
                f"meanwhile, to {head.branch or 'no branch'} at {short(head.commit)}, and stays so. To go there: "
                f"hopyard stock switch {branch or short(commit)}.",
                UserWarning,
                stacklevel=2,
            )

    def forget(self, prepared: str | None) -> None:
        discard(self.place.head, prepared)
        self._local.store.delete(self._pending)

    def _is_between(self, was: str | None, commit: str | None) -> bool:
        """Whether a commit is the one that was there, or what another process has committed upon it."""
        if was in (commit, None):
            return True
        return commit is not None and was is not None and is_ancestor(self._local.objects, was, commit)

    def _finish_what_was_begun(self) -> None:
        if not self._local.store.exists(self._pending):
            return
        with ExitStack() as stack:
            self.lock(stack)
            self.finish()

    def finish(self) -> None:
        """Bring to its end what was announced, if that is not done yet. For who holds the lock."""
        if not self._local.store.exists(self._pending):
            return
        pending = read_pending(self._local.store, self._pending)
        was = Standing(None, pending.commit_before, pending.branch_before, None)
        for move in self._local.references.log(self.reference(pending.branch)):
            if move.number <= pending.number:
                break
            if move.commit == pending.commit:
                self.arrive(
                    was, pending.branch, pending.commit, pending.operations, pending.is_all, pending.head
                )
                return
        self.forget(pending.head)


@dataclass(frozen=True)
class Pending:
    """What a commit is about to do to a working tree.

    Attributes:
        branch: what moves; None: the reference of the working tree.
        commit: to which.
        number: of the reference's last entry before.
        branch_before, commit_before: what ``head.stock`` says before.
        operations: numbers of the staged writes that the commit has.
        is_all: it has nothing else.
        head: the name of the file that is to be ``head.stock``; None: that says it already.
    """

    branch: str | None
    commit: str
    number: int
    branch_before: str | None
    commit_before: str | None
    operations: list[int]
    is_all: bool
    head: str | None


def read_pending(store: Store, name: str) -> Pending:
    """What was written down before a commit began to move a working tree.

    Raises:
        CorruptError: it cannot be read.
    """
    try:
        found = json.loads(get_small(store, name, _MOST))
        check_format(found["format"], _KIND, where=f"{store.url}/{name}")
        pending = Pending(
            found["branch"],
            found["commit"],
            found["number"],
            found["was"],
            found["from"],
            found["operations"],
            found["is_all"],
            found["head"],
        )
        if pending.head is not None and not isinstance(pending.head, str):
            raise ValueError(f"{pending.head!r} is no file's name")
        for commit in (pending.commit, pending.commit_before):
            if commit is not pending.commit_before and commit is None:
                raise ValueError("it names no commit")
            if commit is not None and len(bytes.fromhex(commit)) != _DIGEST_BYTES:
                raise ValueError(f"{commit!r} is no commit")
        if pending.number < 0 or not all(isinstance(each, int) for each in pending.operations):
            raise ValueError("its numbers are none")
        return pending
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{store.url}/{name} cannot be read ({type(error).__name__}: {error}). It says what a commit was about to "
            "do: the branch may have moved on, and head.stock not. This puts it aside: hopyard stock verify --repair"
        ) from error


class Moving:
    """A move that is under way."""

    def __init__(
        self, tree: WorkingTree, was: Standing, branch: str | None, operations: Collection[int], is_all: bool
    ) -> None:
        self.locks = ExitStack()
        self._tree, self._was, self._branch, self._staged = tree, was, branch, (operations, is_all)
        self._is_locked = False
        self._commit: str | None = None
        self._prepared: str | None = None

    def hold(self) -> None:
        """From here on no other commit moves this working tree."""
        if not self._is_locked:
            self._tree.lock(self.locks)
            self._is_locked = True
            self._tree.finish()  # what another has left

    def announce(self, commit: str) -> None:
        """The reference is about to be moved to a commit."""
        self.hold()
        discard(self._tree.place.head, self._prepared)
        self._prepared = self._tree.announce(self._was, self._branch, commit, *self._staged)

    def arrived(self, commit: str | None) -> None:
        """It has been moved, and this is where it is."""
        self._commit = commit

    def finish(self) -> None:
        try:
            if self._commit is not None:
                self._tree.arrive(self._was, self._branch, self._commit, *self._staged, self._prepared)
            elif self._is_locked:
                self._tree.finish()  # mostly nothing has moved; but what failed may have come behind that
        except StorageError as error:
            if self._commit is None:
                return  # whoever opens the tree next looks again
            warnings.warn(
                f"{short(self._commit)} was committed to {self._branch or 'no branch'}, but not all that follows from "
                f"it could be written: {error} Do not commit that again: whoever opens this stockroom next ends it.",
                UserWarning,
                stacklevel=2,
            )


def short(commit: str | None) -> str:
    """A commit for messages."""
    return "no commit" if commit is None else commit[:12]


def root_of(local: Repository, commit: str | None) -> str | None:
    """The root map of a commit."""
    return None if commit is None else read_commit(local.objects, commit).root
