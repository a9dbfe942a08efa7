"""Merging for git's driver: the data that three versions of ``head.stock`` name.

It looks at no ``head.stock`` of the working tree: that may be in conflict, in another folder, or not there yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hopyard.errors import ConflictError, NotFoundError, UsageError
from hopyard.stockroom.git import GitFacts, Head, Place, at, author, driver, facts, id_of
from hopyard.stockroom.history.commits import merge_bases, short
from hopyard.stockroom.history.conflicts import counted_conflicts
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.history.merge import (
    MergeResult,
    change_message,
    is_merged,
    merge_commits,
    merge_since,
)
from hopyard.stockroom.history.publish import commit_draft
from hopyard.stockroom.session.opening import open_place
from hopyard.stockroom.session.session import is_clean
from hopyard.stockroom.session.tree import root_of


def run_driver(base: Path, ours: Path, theirs: Path, path: Path) -> int:
    """Be git's merge driver, for the ``head.stock`` at ``path``; see :func:`hopyard.stockroom.git.driver.run`."""
    place = at(path.parent, id_of(ours) or id_of(theirs))

    def merge(bases: Sequence[str], mine: Head, other: Head) -> Head:
        ids = [room_id for room_id in (id_of(ours), id_of(theirs)) if room_id is not None]
        if len(set(ids)) > 1:
            raise UsageError(
                f"the two sides are different stockrooms, {ids[0]} and {ids[1]}, that were made apart in the same "
                "folder. Take one side (git checkout --ours or --theirs), or move one of them to another folder."
            )
        return merge_heads(place, bases, mine, other)

    return driver.run(base, ours, theirs, merge, place.root)


def merge_heads(place: Place, bases: Sequence[str], mine: Head, theirs: Head) -> Head:
    """Bring to one version of ``head.stock`` what has changed between two others.

    No branch and no file moves, since git may still drop the merge: a branch follows ``head.stock`` once git has
    written that. Until then the log of the working tree keeps the commit.

    Args:
        bases: the commits of git's common version: none, one, or several that git would have to merge first.

    Raises:
        ConflictError: both changed something differently, or nobody knows the base of several bases.
        UsageError: something is staged upon mine. NotFoundError: a commit is not here.
    """
    base = bases[0] if bases else None
    if len(bases) < 2 and mine.commit == base:
        return replace(mine, commit=theirs.commit)  # as git does it where the files are equal
    if len(bases) < 2 and theirs.commit == base:
        return mine
    local, objects, tree = open_place(place)
    named = {each for each in (*bases, mine.commit, theirs.commit) if each is not None}
    for each in sorted(local.objects.missing(named)):
        if not tree.bring(each, theirs.branch if each == theirs.commit else mine.branch):
            raise NotFoundError(
                f"the commit {short(each)} is neither here nor at a remote that is known. Push it from where it was "
                "made, then merge again; or fetch it from where it was pushed: hopyard stock fetch URL"
            )
    with tree.stage(mine.commit).held() as log:
        if not is_clean(objects, local, log):
            raise UsageError(
                f"something is staged upon {short(mine.commit)}. Commit it (hopyard stock commit), or discard it "
                "(hopyard stock reset)."
            )
    if driver.is_merging() and len(bases) < 2 and mine.commit is not None and theirs.commit is not None:
        # Somebody has merged them before git did, and said whose to have of what conflicted.
        if is_merged(objects, base, mine.commit, theirs.commit):
            return mine
        if is_merged(objects, base, theirs.commit, mine.commit):
            return replace(mine, commit=theirs.commit)
    draft = Draft(objects, root_of(local, mine.commit))
    try:
        if len(bases) > 1:
            result, parents = _merge_upon(draft, bases, mine, theirs)
        else:
            result, parents = merge_since(draft.writer, base, mine.commit, theirs.commit)
        if result.conflicts:
            raise ConflictError(f"{counted_conflicts(result.conflicts)}", result.conflicts)
        if result.how == "up to date":
            return mine
        if result.how == "fast-forward":
            return replace(mine, commit=theirs.commit)
        draft.back(result.root)
        if driver.is_merging():
            message = f"Merge {theirs.branch or short(theirs.commit)}"
        else:
            message = change_message(draft.writer, base, theirs.commit)
            # A rebase takes all of the other side in the end; a pick or a revert does not say that it was merged.
            parents = parents if driver.is_rebasing(place) else parents[: mine.commit is not None]

        def told() -> tuple[str, dict[str, Any] | None]:
            folders = (place.root, *place.root.parents)
            there = replace(place, root=next(folder for folder in folders if folder.is_dir()))
            found = facts(there)
            return author(there), None if found == GitFacts() else asdict(found)

        commit = commit_draft(draft, local.references, tree.reference(None), parents, message, told)
        return mine if commit is None else replace(mine, commit=commit.digest)
    finally:
        draft.close()


def _merge_upon(
    draft: Draft, bases: Sequence[str], mine: Head, theirs: Head
) -> tuple[MergeResult, list[str]]:
    """The merge of two commits that have several bases, if the history here has the same ones as git's."""
    sides = [commit for commit in (mine.commit, theirs.commit) if commit is not None]
    if len(sides) < 2 or set(merge_bases(draft.writer, *sides)) != set(bases):
        raise ConflictError(
            f"git's history has several common versions ({', '.join(map(short, bases))}), and here they are not the "
            "last that both sides follow, so it is not known who has changed what.",
            [],
        )
    return merge_commits(draft.writer, sides[0], sides[1]), sides
