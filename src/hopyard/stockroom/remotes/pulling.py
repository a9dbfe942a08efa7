"""Pull: fetch, then bring a branch here up to the remote's, by merging if both have new commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from hopyard.errors import NotFoundError
from hopyard.stockroom.history.commits import is_ancestor, write_commit
from hopyard.stockroom.history.conflicts import Conflict, Resolve
from hopyard.stockroom.history.locks import writing
from hopyard.stockroom.history.merge import merge_commits
from hopyard.stockroom.history.references import Tip
from hopyard.stockroom.remotes.fetching import SHOWN, Fetched, fetch
from hopyard.stockroom.remotes.repository import Repository
from hopyard.wording import counted, nearest, one_line


@dataclass(frozen=True)
class Pulled:
    """The result of a pull.

    Attributes:
        how: ``nothing`` (all of theirs was here), ``forward`` (the branch is now at their commit), ``merged``, or
            ``conflicts``: the branch is as it was.
        commit: where the branch is.
        conflicts: what both sides changed, if nothing decided it.
        fetched: what came.
    """

    how: Literal["nothing", "forward", "merged", "conflicts"]
    commit: str | None
    conflicts: list[Conflict]
    fetched: Fetched

    def __str__(self) -> str:
        at = "nothing" if self.commit is None else self.commit[:SHOWN]
        how = {"nothing": "nothing is new", "forward": "fast-forward", "merged": "merged"}.get(
            self.how, f"{counted(len(self.conflicts), 'conflict')}, nothing was merged"
        )
        return "\n".join([*map(one_line, self.fetched.purges.lines()), f"{how}: the branch is at {at}"])

    __repr__ = __str__


def pull(
    local: Repository,
    remote: Repository,
    branch: str,
    author: str,
    theirs: str | None = None,
    resolve: Resolve = None,
    fetched_all: Callable[[], None] = lambda: None,
    announce: Callable[[str], None] = lambda _: None,
    accept_purges: bool = False,
    named: Callable[[], Iterable[str]] = tuple,
    collect: Callable[[], object] = lambda: None,
) -> Pulled:
    """Fetch, and let ``branch`` follow the remote's branch. If another writer moves it meanwhile, that is merged too.

    Args:
        branch: here; made if there is none.
        author: of the merge, and who moves the branch, for the log.
        theirs: the remote's branch, if it has another name.
        resolve: who decides conflicts, as ``merge_roots`` takes it.
        fetched_all: is called when all has come. announce: is told the commit before the branch moves to it.
        accept_purges, named, collect: as ``fetch``.

    Raises:
        NotFoundError: the remote has no such branch. And as ``fetch``; the branch is as it was.
    """
    fetched = fetch(local, remote, by=author, accept_purges=accept_purges, named=named, collect=collect)
    name = theirs or branch
    if name not in fetched.heads:
        raise NotFoundError(
            f"{remote.store.url} has no branch {name!r}{nearest(name, fetched.heads, '.')} The branch {branch!r} is "
            "as it was. Push it there first, or name the remote's branch to be merged."
        )
    commit = fetched.heads[name]
    fetched_all()
    while True:
        tip = local.references.tip(f"heads/{branch}")
        pulled = _followed(local, tip, commit, fetched)
        if pulled is None:
            pulled = _merged(
                local,
                tip,
                commit,
                author,
                f"Merge {remote.name or remote.store.url}/{name} into {branch}",
                resolve,
                fetched,
            )
        if pulled.how in ("nothing", "conflicts"):
            return pulled
        assert pulled.commit is not None
        announce(pulled.commit)
        if local.references.move(f"heads/{branch}", tip, pulled.commit, author) is not None:
            return pulled


def _followed(local: Repository, tip: Tip, theirs: str, fetched: Fetched) -> Pulled | None:
    """The result that takes no merge; None: a merge is needed."""
    if tip.commit is None or is_ancestor(local.objects, tip.commit, theirs):
        return Pulled("nothing" if tip.commit == theirs else "forward", theirs, [], fetched)
    if is_ancestor(local.objects, theirs, tip.commit):
        return Pulled("nothing", tip.commit, [], fetched)
    return None


def _merged(
    local: Repository, tip: Tip, theirs: str, author: str, message: str, resolve: Resolve, fetched: Fetched
) -> Pulled:
    assert tip.commit is not None
    with writing(local.store):
        writer = local.objects.writing()
        result = merge_commits(writer, tip.commit, theirs, resolve)
        if result.conflicts:
            return Pulled("conflicts", tip.commit, result.conflicts, fetched)
        commit = write_commit(writer, result.root, [tip.commit, theirs], message, author)
        writer.publish()
    return Pulled("merged", commit.digest, [], fetched)
