"""What a stockroom does with the names of commits: branches and tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hopyard.errors import NotFoundError, UsageError, nearest
from hopyard.stockroom.guard import exclusive
from hopyard.stockroom.history.commits import is_ancestor
from hopyard.stockroom.quoting import check_text
from hopyard.stockroom.working import Standing, short
from hopyard.stockroom.writing import Room


class NameCalls(Room):
    """Branches and tags: listed, made, deleted."""

    def branches(self) -> dict[str, str]:
        """All branches and their commits."""
        return self.local.references.names("heads")

    def tags(self) -> dict[str, str]:
        """All tags and their commits."""
        return self.local.references.names("tags")

    def labels(self) -> dict[str, list[str]]:
        """By commit what names it: ``HEAD``, branches, tags, branches of remotes."""
        found: dict[str, list[str]] = {}
        here = self.standing.commit
        if here is not None:
            found[here] = ["HEAD"]
        for kind, prefix in (("heads", ""), ("tags", "tag "), ("remotes", "")):
            for name, commit in self.local.references.names(kind).items():
                found.setdefault(commit, []).append(prefix + name)
        return found

    @exclusive
    def branch(self, name: str, revision: str = "HEAD") -> str:
        """Make a branch; its commit. Where commits were detached, this is on the new branch from now on.

        Raises:
            UsageError: there is one of this name, or it cannot be one; NotFoundError: there is no such revision.
        """
        commit = self._name("heads", name, revision)
        if self._standing.branch is None and commit == self._standing.commit:
            with self._tree.still(commit):
                # This may show where the working tree was before: one that has moved on stays where it is.
                now = self._tree.stand()
                if now.branch is None and now.commit == commit:
                    self._tree.set_head(name, commit)
                    self._standing = Standing(name, commit, name, commit)
        elif name == self._standing.branch:
            self._standing = replace(self._standing, tip=commit)
        return commit

    def tag(self, name: str, revision: str = "HEAD") -> str:
        """Name a commit for ever; its digest.

        Raises:
            UsageError: there is one of this name, or it cannot be one; NotFoundError: there is no such revision.
        """
        return self._name("tags", name, revision)

    def delete_branch(self, name: str, force: bool = False) -> None:
        """Delete a branch.

        Args:
            force: also if commits of it are in no other branch or tag, and would be collected as garbage some day.

        Raises:
            NotFoundError: there is none; UsageError: this is on it, or it has commits that are nowhere else.
        """
        self._check_open()
        check_text(name, "the name of a branch")
        with self._tree.still(self.standing.commit):
            self._delete_branch(name, force)
        if name == self._standing.named and self._tree.is_at(self._standing.commit):
            self._standing = self._tree.stand()  # git's branch had an old namesake here

    def _delete_branch(self, name: str, force: bool) -> None:
        if name == self._tree.stand().branch:
            raise UsageError(
                f"this is on the branch {name!r}, so it cannot be deleted. Switch to another first."
            )
        commit = self._named("heads", name)
        references = self.local.references
        others = {tip for other, tip in references.names("heads").items() if other != name}
        others.update(*(references.names(kind).values() for kind in ("tags", "remotes")))
        if not force and not any(is_ancestor(self._objects, commit, other) for other in others):
            raise UsageError(
                f"the branch {name!r} has commits that no other branch or tag has (the last is {short(commit)}). Merge "
                "or tag it first, or delete it for good with force=True (hopyard stock branch --delete --force)."
            )
        references.set(f"heads/{name}", None, self._author)

    def delete_tag(self, name: str) -> None:
        """Delete a tag.

        Raises:
            NotFoundError: there is none.
        """
        self._named("tags", name)
        self.local.references.set(f"tags/{name}", None, self._author)

    def _name(self, kind: Literal["heads", "tags"], name: str, revision: str) -> str:
        self._check_open()
        called = "branch" if kind == "heads" else "tag"
        check_text(name, f"the name of a {called}")
        if isinstance(revision, str) and revision == "HEAD" and self.standing.commit is None:
            raise UsageError(
                f"nothing is committed yet, so the {called} {name!r} would name nothing. Commit first."
            )
        commit = self.resolve(revision)
        tip = self.local.references.tip(f"{kind}/{name}")
        if tip.commit is not None:
            raise UsageError(
                f"there is a {called} {name!r} already, at {short(tip.commit)}. Use another name, or delete it first."
            )
        if self.local.references.move(f"{kind}/{name}", tip, commit, self._author) is None:
            raise UsageError(f"another process has made the {called} {name!r} just now. Use another name.")
        return commit

    def _named(self, kind: Literal["heads", "tags"], name: str) -> str:
        self._check_open()
        called = "branch" if kind == "heads" else "tag"
        check_text(name, f"the name of a {called}")
        commit = self.local.references.tip(f"{kind}/{name}").commit
        if commit is None:
            known = self.local.references.names(kind)
            raise NotFoundError(
                f"there is no {called} {name!r}{nearest(name, known, '.')} There are: {', '.join(known) or 'none'}."
            )
        return commit
