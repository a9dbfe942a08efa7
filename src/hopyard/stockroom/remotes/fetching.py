"""Fetch: the history of a remote and all metadata of it. Data come by name, or when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hopyard.errors import BusyError, CorruptError, HopyardError, NotFoundError, StorageError
from hopyard.stockroom.history.commits import ancestors
from hopyard.stockroom.history.locks import WAIT, Tell, alone, writing
from hopyard.stockroom.maps import encode
from hopyard.stockroom.packfiles.tombstones import Tombstone, Tombstones
from hopyard.stockroom.remotes.arriving import Arriving
from hopyard.stockroom.remotes.closure import needs
from hopyard.stockroom.remotes.purges import Claims, Purges
from hopyard.stockroom.remotes.repository import Repository, check_format
from hopyard.stockroom.remotes.returning import Returned, Returning
from hopyard.wording import nearest, one_line

SHOWN = 12  # hex digits of a commit


@dataclass(frozen=True)
class Fetched:
    """The result of a fetch.

    Attributes:
        heads: all chosen branches at the remote, and their commits.
        branches: of these the ones that moved: the commits as they were known here (None: not at all) and are now.
        tags: those that are new here, with their commits.
        differing: tags that are at another commit here, with the remote's. They stay as they are here.
        gone: branches that were known here, and that the remote has no more.
        nbytes: of metadata that came.
        purges: what the remote says was purged.
        all_tags: of the remote; None: only branches were chosen.
    """

    heads: dict[str, str] = field(default_factory=dict)
    branches: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    differing: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    nbytes: int = 0
    purges: Purges = field(default_factory=Purges)
    all_tags: dict[str, str] | None = None

    def lines(self) -> list[str]:
        """Lines that tell a user what is new."""
        told = self.purges.lines()
        told += [
            f"{name}: {'new' if before is None else before[:SHOWN]} -> {now[:SHOWN]}"
            for name, (before, now) in self.branches.items()
        ]
        told += [f"tag {name}: {commit[:SHOWN]}" for name, commit in self.tags.items()]
        told += [
            f"tag {name} is {commit[:SHOWN]} there and another commit here; it stays"
            for name, commit in self.differing.items()
        ]
        told += [f"{name} is gone from the remote" for name in self.gone]
        return told if self.branches or self.tags else [*told, "nothing is new"]

    def __str__(self) -> str:
        return "\n".join(map(one_line, self.lines()))

    __repr__ = __str__


def fetch(
    local: Repository,
    remote: Repository,
    branches: Iterable[str] | None = None,
    prune: bool = False,
    by: str = "",
    accept_purges: bool = False,
    named: Callable[[], Iterable[str]] = tuple,
    collect: Callable[[], object] = lambda: None,
    wait: float = WAIT,
    tell: Tell | None = None,
) -> Fetched:
    """Bring branches (None: all, and all tags) with their history and metadata, then say so in
    ``refs/remotes/<name>/``.

    No branch of this repository moves. Where the branches of a remote without a name are is not remembered. What came
    before a failure stays, and is found when it is begun again.

    Args:
        prune: forget here what the remote has no more.
        accept_purges: purge here what the remote says was purged, where that can be so, as soon as nobody writes here.
            Copies of the samples that were made here go, too.
        named: gives the commits that git's history names, where such copies may be.
        collect: deletes, for who holds the collector's lock, what nothing leads to: that may be such copies, too.
        wait: seconds to wait for who writes. tell: told so, in words.

    Raises:
        BusyError: purges are to be accepted, and somebody writes all the time. All else has come.
        NotFoundError: there is no stockroom, or no such branch; or the remote lacks something.
        FormatError, CorruptError, StorageError: as the stores. References are as they were.
    """
    check_format(remote.store)
    heads = remote.references.names("heads")
    known = _of_remote(local, remote.name)
    tags: dict[str, str] = {}
    gone: list[str] = []
    if branches is None:
        tags = remote.references.names("tags")
        gone = [name for name in known if name not in heads]
    else:
        heads = _chosen(heads, branches, remote)
    own = local.references.names("tags")
    new_tags = {name: commit for name, commit in tags.items() if name not in own}
    differing = {name: commit for name, commit in tags.items() if own.get(name, commit) != commit}
    moved = {name: (known.get(name), commit) for name, commit in heads.items() if known.get(name) != commit}
    with writing(local.store):
        commits = {commit for _, commit in moved.values()} | set(new_tags.values())
        nbytes = bring_metadata(local, remote, commits, is_all=branches is None)
        here = _whole_here(local)
        shown = commits | set(heads.values()) | here
        claims = Claims(local, remote, shown)
        purges = claims.examined()
        for name, (_, commit) in moved.items() if remote.name else ():
            local.references.set(f"remotes/{remote.name}/{name}", commit, by)
        for name, commit in new_tags.items():
            local.references.move(f"tags/{name}", local.references.tip(f"tags/{name}"), commit, by)
        for name in gone if prune else ():
            local.references.set(f"remotes/{remote.name}/{name}", None, by)
    if accept_purges and purges.claimed:
        try:
            with alone(local.store, wait, tell):
                purges = claims.accepted(named())
                if purges.accepted:
                    try:
                        collect()
                    except (CorruptError, StorageError) as error:
                        purges = replace(purges, kept=str(error))
        except BusyError as error:
            raise BusyError(
                f"{error} What the remote has is here, but nothing was purged: fetch again with accept_purges=True "
                "(--accept-purges) then."
            ) from None
    returned, unseen = _returned(local, remote, commits, here, shown, purges.accepted)
    purges = replace(purges, returned=returned, unseen=unseen)
    all_tags = tags if branches is None else None
    return Fetched(heads, moved, new_tags, differing, gone, nbytes, purges, all_tags)


def fetch_commit(local: Repository, remote: Repository, commit: str, branch: str | None = None) -> bool:
    """Bring one commit with its history and metadata; also what the remote's branch has, and say so in
    ``refs/remotes/<name>/``. No other reference moves.

    Args:
        branch: on which the commit is, as far as is known; where it cannot be brought, it is as it was last seen.

    Returns:
        Whether the remote has the commit.

    Raises:
        NotFoundError: it lacks something that the commit needs; CorruptError, StorageError: as the stores.
    """
    if remote.objects.missing([commit]):
        return False
    with writing(local.store):
        bring_metadata(local, remote, {commit}, is_all=False)
        if branch is not None and remote.name:
            # The commit is here, and is read whatever the branch has; ``fetch`` says what is wrong with that.
            with suppress(HopyardError):
                _see_branch(local, remote, branch)
    return True


def _see_branch(local: Repository, remote: Repository, branch: str) -> None:
    name = f"remotes/{remote.name}/{branch}"
    tip = remote.references.tip(f"heads/{branch}").commit
    if tip is not None and tip != local.references.tip(name).commit:
        bring_metadata(local, remote, {tip}, is_all=False)
        local.references.set(name, tip, "")


def bring_metadata(local: Repository, remote: Repository, commits: set[str], is_all: bool) -> int:
    """Bring all that these commits need but data. Returns bytes.

    Args:
        is_all: they are all that the remote has, so that its packfiles are wanted whole.
    """
    here = _whole_here(local)
    if commits <= here:
        return 0
    with local.objects.writing() as writer:
        arriving = Arriving(local, remote, writer)
        if is_all:
            arriving.copy_new_packfiles()
        arriving.require(need.digest for need in needs(arriving, commits, here) if need.is_metadata)
    return arriving.nbytes


def _whole_here(local: Repository) -> set[str]:
    """The commits that references here name. They are whole; others may have come with half of what they need."""
    here = {
        commit for kind in ("heads", "tags", "remotes") for commit in local.references.names(kind).values()
    }
    return here - local.objects.missing(here)  # packfiles were lost


def _returned(
    local: Repository,
    remote: Repository,
    commits: set[str],
    here: set[str],
    shown: set[str],
    accepted: Iterable[Tombstone],
) -> tuple[list[Returned], int]:
    """Samples that were purged here and are in the commits that came again, unless they were in commits that were here;
    of purges that were accepted just now, samples in any commit. And the number of fragments that were not looked
    at."""
    tombstones = Tombstones(local.store).all()
    if not tombstones:
        return [], 0
    look = Returning(tombstones, local.objects, remote.objects)
    found = look.found(look.versions(ancestors(local.objects, commits, here)))
    if found:
        known = look.found(look.versions(here))
        found = {column: codes - known.get(column, set()) for column, codes in found.items()}
    new: dict[str, set[bytes]] = {}
    for one in accepted:
        new.setdefault(one.column, set()).update(map(encode, one.keys))
    if new:
        every = look.found(look.versions(ancestors(local.objects, shown)))
        for column, codes in every.items():
            found[column] = found.get(column, set()) | (codes & new.get(column, set()))
    return look.described(found), len(look.left)


def _of_remote(local: Repository, remote: str) -> dict[str, str]:
    found = local.references.names("remotes")
    return {
        name.removeprefix(f"{remote}/"): commit
        for name, commit in found.items()
        if name.startswith(f"{remote}/")
    }


def _chosen(heads: dict[str, str], branches: Iterable[str], remote: Repository) -> dict[str, str]:
    for name in (names := list(branches)):
        if name not in heads:
            raise NotFoundError(
                f"{remote.store.url} has no branch {name!r}{nearest(name, heads, '.')} Nothing was fetched. Push it "
                "there first, or name one that is there."
            )
    return {name: heads[name] for name in names}
