"""Moves of the working tree: switch, merge, revert, reset."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hopyard.errors import ConflictError, NotFoundError, UsageError
from hopyard.stockroom.git import mark_unmerged, read
from hopyard.stockroom.history.commits import is_ancestor, read_commit, short
from hopyard.stockroom.history.conflicts import Conflict, Resolve, counted_conflicts
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import (
    MergeResult,
    is_merged,
    merge_commits,
    merge_message,
    merge_roots,
    merge_since,
)
from hopyard.stockroom.history.revisions import resolve
from hopyard.stockroom.records.quoting import check_text
from hopyard.stockroom.session.naming import make_branch
from hopyard.stockroom.session.session import StockSession
from hopyard.stockroom.session.tree import root_of
from hopyard.wording import one_line, shown


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Attributes:
        how: ``"up to date"``: there was nothing new; ``"fast-forward"``: the branch now is where theirs is;
            ``"merged"``: by a commit of its own.
        commit: where this is now.
    """

    how: Literal["up to date", "fast-forward", "merged"]
    commit: str


def switch(session: StockSession, name: str) -> None:
    """Go to a branch, a tag or a commit; see ``StockRoom.switch``."""
    session.check_open()
    check_text(name, "the branch, tag or commit to switch to")
    session.check_no_block("switch")
    session.renew()
    references = session.local.references
    branch: str | None = name if name in references.names("heads") else None
    if branch is None and name == session.standing.branch:
        return  # it is made by the first commit
    try:
        commit = session.resolve(name if branch is None else f"heads/{name}")
    except NotFoundError:
        remote = [full for full in references.names("remotes") if full.partition("/")[2] == name]
        if len(remote) != 1:
            raise
        make_branch(session, name, f"remotes/{remote[0]}")
        branch, commit = name, session.resolve(f"heads/{name}")
    while True:
        if commit != session.standing.commit:
            session.settle("switch")
        was, left = session.standing.commit, session.standing
        with session.tree.still(was) as log:
            if session.tree.is_at(was):
                if commit != was:  # else what is staged stays so
                    session.check_nothing_staged("switch", log)
                session.tree.go_to(branch, commit, log)
                break
        session.refresh()
    session.arrive()
    if left.branch is None and was not in (None, commit):
        _tell_of_left(session, str(was))


def _tell_of_left(session: StockSession, commit: str) -> None:
    """Warn of a detached commit that was left, if no branch or tag has it."""
    references = session.local.references
    tips = {tip for kind in ("heads", "tags", "remotes") for tip in references.names(kind).values()}
    if not any(is_ancestor(session.objects, commit, tip) for tip in tips):
        warnings.warn(
            f"no branch or tag has the commit that was left, {short(commit)} "
            f"({one_line(read_commit(session.objects, commit).message.partition(chr(10))[0])}). To keep it, make a "
            f"branch: hopyard stock branch NAME {short(commit)}",
            UserWarning,
            stacklevel=5,
        )


def merge(
    session: StockSession,
    revision: str,
    resolve: Resolve = None,
    message: str | None = None,
    base: str | None = None,
) -> Merged:
    """Merge a revision into where this is; see ``StockRoom.merge``."""
    if message is not None:
        check_text(message, "the message of a commit")
    session.settle("merge")
    theirs = session.resolve(revision)
    merged = _merge(session, revision, theirs, resolve, message, base)
    with session.tree.still(merged.commit):
        mark_unmerged(session.place.head, (), {theirs, *_settled(session, merged.commit)})
    return merged


def _settled(session: StockSession, here: str) -> set[str]:
    """The sides that ``head.stock`` names as unmerged, and which a commit follows."""
    return {
        commit
        for commit, base in read(session.place.head).unmerged
        if is_merged(session.objects, base, here, commit)
    }


def _merge(
    session: StockSession, revision: str, theirs: str, resolve: Resolve, message: str | None, base: str | None
) -> Merged:
    before = None if base is None else session.resolve(base)
    ours = session.standing.commit
    if ours is None and before is None:
        _move_to(session, theirs, "merge")
        return Merged("fast-forward", theirs)
    draft = Draft(session.objects, session.root)
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
            _move_to(session, theirs, "merge")
            return Merged(result.how, theirs)
        if message is None:
            name = revision if revision != theirs else short(theirs)
            message = merge_message(session.objects, name, before, theirs, theirs in parents)
        call = ("merge", revision) if base is None else ("merge", revision, base)
        _commit_merged(session, draft, result, message, call, *(each for each in parents if each != ours))
    finally:
        draft.close()
    session.arrive()
    assert session.standing.commit is not None
    return Merged("merged", session.standing.commit)


def revert(session: StockSession, revision: str, parent: int | None = None, resolve: Resolve = None) -> str:
    """Commit the opposite of one commit; see ``StockRoom.revert``."""
    if parent is not None and not isinstance(parent, int):
        raise UsageError(f"parent={shown(parent)} must be the number of a parent of a merge: 1, 2 or so.")
    session.settle("revert")
    commit = read_commit(session.objects, session.resolve(revision))
    if len(commit.parents) > 1 and parent is None:
        raise UsageError(
            f"{short(commit.digest)} is a merge. Say which of its parents to go back to: parent=1 (--parent 1) "
            "undoes what it brought here."
        )
    number = parent or 1
    if not 0 < number <= max(1, len(commit.parents)):
        raise UsageError(f"{short(commit.digest)} has {len(commit.parents)} parents, but parent={parent}.")
    before = root_of(session.local, commit.parents[number - 1]) if commit.parents else None
    draft = Draft(session.objects, session.root)
    try:
        result = merge_roots(draft.writer, commit.root, session.root, before, resolve)
        message = f"Revert {commit.message.partition(chr(10))[0]!r}\n\nThis undoes {commit.digest}."
        if not result.conflicts and result.root == session.root:
            raise UsageError(
                f"nothing of {short(commit.digest)} is left to be undone. Nothing was committed."
            )
        _commit_merged(session, draft, result, message, ("revert", revision))
    finally:
        draft.close()
    session.arrive()
    assert session.standing.commit is not None
    return session.standing.commit


def reset(session: StockSession, revision: str | None = None) -> None:
    """Discard what is staged, and with a revision move the branch; see ``StockRoom.reset``."""
    session.check_open()
    session.check_no_block("reset")
    while True:
        session.refresh()
        here, references = session.standing.commit, session.local.references
        commit = None if revision is None else resolve(session.objects, references, revision, here)
        with session.tree.still(here) as log:
            if is_there := session.tree.is_at(here):
                log.clear()
        if is_there and session.draft is not None:
            session.restage()
        if is_there and (commit is None or session.standing.commit == here):
            break
    if commit is not None:
        session.catch_up()
        _move_to(session, commit, "reset")


def _commit_merged(
    session: StockSession, draft: Draft, result: MergeResult, message: str, call: Sequence[str], *theirs: str
) -> None:
    if result.conflicts:
        raise conflict_error(result.conflicts, *call)
    draft.back(result.root)
    session.publish(message, draft, *theirs)


def _move_to(session: StockSession, commit: str, what: str) -> None:
    """Let the branch, and this, be at another commit that is here already."""
    was = session.standing
    name = session.tree.reference(was.branch)
    with session.tree.moving(was, was.branch) as moving:
        log = moving.hold()
        if what == "reset":
            log.clear()
        else:
            session.check_nothing_staged(what, log)
        while True:
            tip = session.local.references.tip(name)
            if moving.left != was.commit or (was.branch is not None and tip.commit != was.commit):
                where = "this working tree" if was.branch is None else f"the branch {was.branch!r}"
                now = moving.left if was.branch is None else tip.commit
                raise UsageError(
                    f"{where} has moved to {short(now)} just now. Nothing was done; do it again."
                )
            moving.announce(commit)
            if session.local.references.move(name, tip, commit, session.author) is not None:
                moving.arrived()
                break
    session.arrive()


def conflict_error(conflicts: list[Conflict], call: str, argument: str, base: str = "") -> ConflictError:
    """Both sides changed things differently, and nobody decided. ``call`` is to be repeated, with a decision."""
    option, keyword = (f" --base {base}", f", base={base!r}") if base else ("", "")
    return ConflictError(
        f"{counted_conflicts(conflicts)}\nNothing was merged. Say whose to have: "
        f"hopyard stock {call} {argument}{option} --resolve ours (or theirs); in Python "
        f"stock.{call}({argument!r}{keyword}, resolve=...) takes 'ours', 'theirs', or a function of a conflict.",
        conflicts,
    )
