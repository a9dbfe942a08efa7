"""Names of commits: branches and tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.history.commits import is_ancestor, short
from hopyard.stockroom.records.quoting import check_text
from hopyard.stockroom.session.session import StockSession
from hopyard.stockroom.session.tree import Standing
from hopyard.wording import nearest


def labels(session: StockSession) -> dict[str, list[str]]:
    """Names by commit; see ``StockRoom.labels``."""
    found: dict[str, list[str]] = {}
    here = session.stand().commit
    if here is not None:
        found[here] = ["HEAD"]
    for kind, prefix in (("heads", ""), ("tags", "tag "), ("remotes", "")):
        for name, commit in session.local.references.names(kind).items():
            found.setdefault(commit, []).append(prefix + name)
    return found


def make_branch(session: StockSession, name: str, revision: str) -> str:
    """Make a branch; see ``StockRoom.branch``."""
    commit = _name(session, "heads", name, revision)
    if session.standing.branch is None and commit == session.standing.commit:
        with session.tree.still(commit):
            # This may show where the working tree was before: one that has moved on stays where it is.
            now = session.tree.stand()
            if now.branch is None and now.commit == commit:
                session.tree.set_head(name, commit)
                session.standing = Standing(name, commit, name, commit)
    elif name == session.standing.branch:
        session.standing = replace(session.standing, tip=commit)
    return commit


def make_tag(session: StockSession, name: str, revision: str) -> str:
    """Make a tag; see ``StockRoom.tag``."""
    return _name(session, "tags", name, revision)


def delete_branch(session: StockSession, name: str, force: bool) -> None:
    """Delete a branch; see ``StockRoom.delete_branch``."""
    session.check_open()
    check_text(name, "the name of a branch")
    with session.tree.still(session.stand().commit):
        _delete_branch(session, name, force)
    if name == session.standing.named and session.tree.is_at(session.standing.commit):
        session.standing = session.tree.stand()  # git's branch had an old namesake here


def _delete_branch(session: StockSession, name: str, force: bool) -> None:
    if name == session.tree.stand().branch:
        raise UsageError(f"this is on the branch {name!r}, so it cannot be deleted. Switch to another first.")
    commit = _named(session, "heads", name)
    references = session.local.references
    others = {tip for other, tip in references.names("heads").items() if other != name}
    others.update(*(references.names(kind).values() for kind in ("tags", "remotes")))
    if not force and not any(is_ancestor(session.objects, commit, other) for other in others):
        raise UsageError(
            f"the branch {name!r} has commits that no other branch or tag has (the last is {short(commit)}). Merge "
            "or tag it first, or delete it for good with force=True (hopyard stock branch --delete --force)."
        )
    references.set(f"heads/{name}", None, session.author)


def delete_tag(session: StockSession, name: str) -> None:
    """Delete a tag; see ``StockRoom.delete_tag``."""
    _named(session, "tags", name)
    session.local.references.set(f"tags/{name}", None, session.author)


def _name(session: StockSession, kind: Literal["heads", "tags"], name: str, revision: str) -> str:
    session.check_open()
    called = "branch" if kind == "heads" else "tag"
    check_text(name, f"the name of a {called}")
    if isinstance(revision, str) and revision == "HEAD" and session.stand().commit is None:
        raise UsageError(
            f"nothing is committed yet, so the {called} {name!r} would name nothing. Commit first."
        )
    commit = session.resolve(revision)
    tip = session.local.references.tip(f"{kind}/{name}")
    if tip.commit is not None:
        raise UsageError(
            f"there is a {called} {name!r} already, at {short(tip.commit)}. Use another name, or delete it first."
        )
    if session.local.references.move(f"{kind}/{name}", tip, commit, session.author) is None:
        raise UsageError(f"another process has made the {called} {name!r} just now. Use another name.")
    return commit


def _named(session: StockSession, kind: Literal["heads", "tags"], name: str) -> str:
    session.check_open()
    called = "branch" if kind == "heads" else "tag"
    check_text(name, f"the name of a {called}")
    commit = session.local.references.tip(f"{kind}/{name}").commit
    if commit is None:
        known = session.local.references.names(kind)
        raise NotFoundError(
            f"there is no {called} {name!r}{nearest(name, known, '.')} There are: {', '.join(known) or 'none'}."
        )
    return commit
