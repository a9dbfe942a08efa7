"""Committing a draft: everything that it needs is durable, then the commit, then the branch moves; nothing is locked
against others who commit.

If another was faster, the draft's changes are carried onto their commit, as if they had been made after it, and that
is tried again; so commits made at once come one after the other. If they conflict, nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hopyard.errors import ConflictError
from hopyard.stockroom.history.commits import Commit, read_commit, write_commit
from hopyard.stockroom.history.conflicts import listed
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import merge_roots
from hopyard.stockroom.history.references import References, Tip

Now = Callable[[], str | None]
"""Gives the commit that the working tree is at now; raises if the draft's base, with what was staged upon it when the
draft was begun, is no longer what stands there. From the first call on nobody else moves the working tree."""

CommitFacts = Callable[[], tuple[str, dict[str, Any] | None]]
"""Gives the author, and what a commit records of git. Called when the draft is written: git is slow, and may look
meanwhile."""


def commit_draft(
    draft: Draft,
    references: References,
    reference: str,
    parents: Sequence[str],
    message: str | Callable[[], str],
    facts: CommitFacts,
    announce: Callable[[str, Tip], None] = lambda *_: None,
    now: Now | None = None,
) -> Commit | None:
    """Commit what a draft has, and let it stand on the commit; None: it has nothing new.

    Args:
        reference: what is to move: ``heads/<branch>``; or, of a working tree that is at no branch, ``worktrees/<id>``,
            which only this working tree moves.
        parents: the commits that it follows: the one that the draft was begun from first, then merged ones.
        message: of the commit; or what gives it, called when the draft is written: then what changed is soon found.
        announce: told the digest of a commit that is stored, and from where the reference is about to be moved to it.
        now: None: the working tree is where the draft was begun.

    Raises:
        ConflictError: another has committed something else of what the draft changed. The draft is as it was.
        StorageFullError, NotWritableError, StorageError: the draft is as it was.
    """
    root = draft.write()
    if now is None:
        now = partial(_first, parents)
    if root == draft.base and len(parents) < 2:
        now()
        # What was saved as it is there already, but is damaged there, waits to be stored again.
        draft.publish()
        return None
    text = message if isinstance(message, str) else message()
    author, git = facts()
    detached = not reference.startswith("heads/")
    while True:
        tip = references.tip(reference)
        follows, merged = list(parents), root
        # The reference of a working tree may be of the last time that commits were detached there.
        there = now() if detached else tip.commit
        if there is not None and there not in parents:
            now()
            merged = _onto(draft, reference, there, root)
            follows[:1] = [there]
        commit = write_commit(draft.writer, merged, list(dict.fromkeys(follows)), text, author, git)
        draft.publish()
        announce(commit.digest, tip)
        if references.move(reference, tip, commit.digest, author) is not None:
            draft.rebase(merged)
            draft.release()
            return commit


def _first(parents: Sequence[str]) -> str | None:
    return parents[0] if parents else None


def _onto(draft: Draft, reference: str, commit: str, root: str | None) -> str | None:
    """The root map of ``commit`` with the draft's changes."""
    result = merge_roots(draft.writer, draft.base, read_commit(draft.writer, commit).root, root)
    if result.conflicts:
        kind, _, name = reference.partition("/")
        where = repr(name) if kind == "heads" else "this working tree"
        raise ConflictError(
            f"{where} has moved to {commit[:12]} since this was begun, and {len(result.conflicts)} of the changes "
            f"conflict with it (ours is there, theirs is yours):\n{listed(result.conflicts)}\nNothing was committed.",
            result.conflicts,
        )
    return result.root
