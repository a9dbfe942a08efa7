"""Status, log and differences of a session."""

from __future__ import annotations

from itertools import islice
from typing import Literal

from hopyard.errors import UsageError
from hopyard.stockroom.catalog.differences import Diff
from hopyard.stockroom.history import commits as history
from hopyard.stockroom.history.commits import Commits
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.session.session import StockSession
from hopyard.stockroom.session.status import Status, status_of
from hopyard.stockroom.session.tree import root_of
from hopyard.wording import shown


def status(session: StockSession) -> Status:
    """The status of the working tree; see ``StockRoom.status``."""
    session.check_open()
    session.look(is_whole=True)
    view = session.view
    if isinstance(view, Draft):
        standing, stage, changes = session.standing, session.stage, view.changes()
    else:
        standing = session.tree.stand()
        stage = session.tree.stage(standing.commit)
        draft = Draft(session.objects, root_of(session.local, standing.commit))
        draft.apply(map(WriteOperation.decode, stage.operations()))
        changes = draft.changes()
        draft.close()
    return status_of(session.place, session.local, standing, stage, changes)


def log(
    session: StockSession,
    *revisions: str,
    limit: int | None = None,
    branches: Literal["these", "all"] = "these",
) -> Commits:
    """Commits, the latest first; see ``StockRoom.log``."""
    if limit is not None and not (isinstance(limit, int) and limit >= 0):
        raise UsageError(
            f"limit={shown(limit)} must be a number of commits, at least 0. Leave it out for all."
        )
    if not (isinstance(branches, str) and branches in ("these", "all")):
        raise UsageError(f"branches={shown(branches)} must be 'these' or 'all'.")
    starts = [session.resolve(revision) for revision in revisions]
    if not revisions and (here := session.stand().commit) is not None:
        starts.append(here)
    if branches == "all":
        starts += [
            commit
            for kind in ("heads", "tags", "remotes")
            for commit in session.local.references.names(kind).values()
        ]
    return Commits(islice(history.log(session.objects, *dict.fromkeys(starts)), limit))


def diff(session: StockSession, a: str | None = None, b: str | None = None) -> Diff:
    """Differences between two revisions; see ``StockRoom.diff``."""
    session.check_open()
    session.look(is_whole=True)
    before = session.root if a is None else root_of(session.local, session.resolve(a))
    if b is not None:
        return Diff(session.objects, before, root_of(session.local, session.resolve(b)))
    view = session.view
    if session.blocks and isinstance(view, Draft):
        return Diff(view.writer, before, view.write())
    draft = Draft(session.objects, session.root)
    draft.apply(map(WriteOperation.decode, session.stage.operations()))
    after = draft.write()
    # It is looked at only: what it added stays in memory, and nobody is kept out.
    draft.release()
    return Diff(draft.writer, before, after)
