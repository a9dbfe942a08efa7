"""Push: all that commits need to a remote, then the references, so that a commit that is seen there is whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hopyard.errors import BehindError, NotFoundError, UsageError
from hopyard.stockroom.history.commits import ancestors, is_ancestor, log
from hopyard.stockroom.history.locks import writing
from hopyard.stockroom.history.references import Tip
from hopyard.stockroom.packfiles.tombstones import FOLDER
from hopyard.stockroom.remotes.closure import Need, needs
from hopyard.stockroom.remotes.fetching import SHOWN
from hopyard.stockroom.remotes.purges import as_purged, carry
from hopyard.stockroom.remotes.repository import Repository, check_format, claim
from hopyard.stockroom.remotes.selecting import call_for
from hopyard.stockroom.remotes.transfer import LocatedObject, TransferReport, copy
from hopyard.wording import are, counted, describe_bytes, nearest, one_line

_KEPT = "worktrees/git"  # each commit in the log of a worktree is kept, not only the last
_LISTED = 5
_ROUNDS = 3  # of sending what the remote lost while it was sent


@dataclass(frozen=True)
class Pushed:
    """The result of a push.

    Attributes:
        branches: names at the remote to the commits before (None: there was none) and now; unchanged ones are not
            named.
        tags: new ones, with their commits.
        objects: how many were sent, and ``nbytes`` of them.
        kept: commits that were sent beside the branches, since git's history names them.
        purges: that the remote did not know, a line each; what they name is deleted there.
        notes: what of these could not be sent, in sentences.
    """

    branches: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    objects: int = 0
    nbytes: int = 0
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    purges: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Lines that tell a user what was sent."""
        told = [
            f"{name}: {'new' if before is None else before[:SHOWN]} -> {now[:SHOWN]}"
            for name, (before, now) in self.branches.items()
        ]
        told += [f"tag {name}: {commit[:SHOWN]}" for name, commit in self.tags.items()]
        told += [f"{commit[:SHOWN]}, which git's history names" for commit in self.kept]
        if self.purges:
            told.append(
                f"{counted(len(self.purges), 'purge')} {are(len(self.purges))} new there, and the samples are deleted "
                f"there too: {'; '.join(self.purges[:_LISTED])}{'; and others' if len(self.purges) > _LISTED else ''}"
            )
        sent = f"{counted(self.objects, 'object')}, {describe_bytes(self.nbytes)}"
        return [*told, *self.notes, sent if told else "nothing is new; the remote has all of it"]

    def __str__(self) -> str:
        return "\n".join(map(one_line, self.lines()))

    __repr__ = __str__


@dataclass(frozen=True)
class _Move:
    name: str  # of the reference at the remote
    tip: Tip  # there
    commit: str


def push(
    local: Repository,
    remote: Repository,
    branches: Mapping[str, str] | Iterable[str] = (),
    tags: Iterable[str] = (),
    by: str = "",
    others: Sequence[Repository] = (),
    report: TransferReport | None = None,
    named: Iterable[str] = (),
) -> Pushed:
    """Send branches and tags, and all that they need. Whatever fails, each commit that the remote shows is whole
    there; what has arrived stays and is not sent again.

    Args:
        branches: their names here; or these with their names there.
        by: who pushes, for the remote's log.
        others: where objects are taken from that are not here (in a partial clone).
        named: commits that git's history names. Those that no branch or tag brings there are sent too, as far as they
            are here, and kept there by the log of ``worktrees/git``.

    Raises:
        NotFoundError: a branch or tag is not here, or an object that the remote lacks is nowhere: nothing was sent.
        BehindError: the remote's branch has commits that this one does not follow, or another push was faster.
        UsageError: the remote has the tag at another commit, or the place holds other things.
        StorageError and its kinds: as the stores.
    """
    targets = dict(branches) if isinstance(branches, Mapping) else {name: name for name in branches}
    chosen = [(f"heads/{here}", f"heads/{there}") for here, there in targets.items()]
    chosen += [(f"tags/{name}", f"tags/{name}") for name in tags]
    commits = {there: _here(local, here) for here, there in chosen}
    _claim(local, remote)
    moves = [
        _Move(name, tip, commit)
        for name, commit in commits.items()
        if (tip := remote.references.tip(name)).commit != commit
    ]
    for move in moves:
        _check(local, remote, move)
    beside = _Beside(local, remote, set(commits.values()), set(named))
    if not moves and not beside.commits and next(local.store.list(FOLDER), None) is None:
        return Pushed(notes=beside.notes)
    purges = carry(local, remote)
    with writing(remote.store):
        sent: dict[str, int] = {}
        done = Pushed(notes=beside.notes, purges=purges)
        if moves:
            sent = _send(
                local,
                remote,
                {move.commit for move in moves},
                _whole_there(local, remote, moves),
                others,
                report,
            )
        for move in moves:
            _move(remote, move, by, done)
        sent |= beside.send(others, report, by)
        done = replace(done, objects=len(sent), nbytes=sum(sent.values()), kept=beside.kept)
    for name, (_, commit) in done.branches.items():
        if remote.name:
            local.references.set(f"remotes/{remote.name}/{name}", commit, by)
    return done


def delete(remote: Repository, branches: Iterable[str] = (), tags: Iterable[str] = (), by: str = "") -> None:
    """Remove branches and tags at a remote. Their commits stay there until it collects its garbage.

    Raises:
        NotFoundError: there is none of this name; BehindError: somebody moved it meanwhile. Those before are removed.
    """
    for name in [*(f"heads/{name}" for name in branches), *(f"tags/{name}" for name in tags)]:
        tip = remote.references.tip(name)
        if tip.commit is None:
            known = remote.references.names(name.partition("/")[0])
            raise NotFoundError(
                f"{remote.store.url} has no {_called(name)}{nearest(name.partition('/')[2], known, '.')} Nothing was "
                "removed under that name."
            )
        if remote.references.move(name, tip, None, by) is None:
            raise BehindError(
                f"the {_called(name)} at {remote.store.url} was moved by somebody just now, and was not removed. "
                "Look at what it has, and remove it again if it still is to go."
            )


def _claim(local: Repository, remote: Repository) -> None:
    """See that a stockroom is there, and make one in an empty place, but not where one was: it may be out of reach."""
    try:
        check_format(remote.store)
    except NotFoundError:
        if any(name.startswith(f"{remote.name}/") for name in local.references.names("remotes")):
            raise NotFoundError(
                f"there is no stockroom at {remote.store.url} any more, but there was: {remote.name!r} has branches "
                "here. Nothing was sent. See that it can be reached, as that its disk is mounted. To make it anew: "
                f"hopyard stock remote forget {remote.name}, then push to that address again."
            ) from None
        claim(remote.store)


def _here(local: Repository, name: str) -> str:
    commit = local.references.tip(name).commit
    if commit is None:
        kind, _, rest = name.partition("/")
        known = local.references.names(kind)
        raise NotFoundError(
            f"there is no {_called(name)} here{nearest(rest, known, '.')} Nothing was sent. A branch needs a commit "
            "before it can be pushed."
        )
    return commit


def _check(local: Repository, remote: Repository, move: _Move) -> None:
    """Refuse what would take commits away from the remote's branch, or move its tag."""
    there = move.tip.commit
    if there is None:
        return
    if move.name.startswith("tags/"):
        raise UsageError(
            f"{remote.store.url} has the {_called(move.name)} at {there[:12]}, and here it is at {move.commit[:12]}. "
            "Tags do not move: push it under another name, or remove it there first. Nothing was sent."
        )
    refused = behind(remote, move.name.removeprefix("heads/"), "has commits that are not in yours")
    try:
        local.objects.locate(there)  # not `missing`: an index that lost rows is made anew first
    except NotFoundError:
        raise refused from None
    if not is_ancestor(local.objects, there, move.commit):
        raise refused


def behind(remote: Repository, branch: str, what: str) -> BehindError:
    """The error for a branch that is elsewhere at the remote."""
    return BehindError(
        f"the branch {branch!r} at {remote.store.url} {what}. Pull first, which merges them (hopyard stock pull), "
        f"then push again; or push as another branch: push(branches={{{branch!r}: 'NEW-NAME'}}). The remote's branch "
        "is as it was."
    )


def _called(name: str) -> str:
    kind, _, rest = name.partition("/")
    return f"{'tag' if kind == 'tags' else 'branch'} {rest!r}"


def _send(
    local: Repository,
    remote: Repository,
    commits: set[str],
    whole: set[str],
    others: Sequence[Repository],
    report: TransferReport | None,
) -> dict[str, int]:
    """Send what the remote lacks of what commits need; sizes of what was sent by digest. At the end it has all.

    Args:
        whole: commits that the remote has with all that they need.
    """
    wanted = as_purged(local, remote, needs(local.objects, commits, whole))
    sent: dict[str, int] = {}
    for _ in range(_ROUNDS):
        # Asked again after the last has arrived: what was there at first may have been deleted meanwhile.
        present = remote.find(wanted)
        lacking = [need for need in wanted if need.digest not in present]
        if not lacking:
            break
        if any(need.digest in sent for need in lacking):  # gone, or the index has lost rows
            remote.objects.rebuild()
            present = remote.find(wanted)
            lacking = [need for need in lacking if need.digest not in present]
        found = _found(local, others, lacking, remote)
        copy(found, remote, report)
        sent |= {digest: one.size for digest, one in found.items()}
    else:
        raise BehindError(
            f"{remote.store.url} loses objects while they are sent: {len(lacking)} that arrived are not there. "
            "Something deletes them; push again when it has ended. The remote's references are as they were."
        )
    return sent


def _whole_there(local: Repository, remote: Repository, moves: list[_Move]) -> set[str]:
    """Commits that the remote shows, so has all that they need, and whose history is here."""
    followed = {move.tip.commit for move in moves if move.tip.commit is not None}
    if followed and len(moves) == 1:  # it moves only if the remote still shows this one
        return followed
    # Whatever a reference here names has its history here; others may have come with half of it.
    here = {
        commit for kind in ("heads", "tags", "remotes") for commit in local.references.names(kind).values()
    }
    shown = {commit for kind in ("heads", "tags") for commit in remote.references.names(kind).values()}
    return (followed | here) & shown


class _Beside:
    """Commits that git's history names and no branch brings to a remote, such as a merge that ``git revert`` has
    undone before any branch here moved to it.

    Attributes:
        commits: that are still to be sent, each before those that it follows.
        kept: those that were sent.
        notes: sentences on those that cannot be.
    """

    def __init__(self, local: Repository, remote: Repository, brought: set[str], named: set[str]) -> None:
        self._local, self._remote, self._brought = local, remote, brought
        self.commits: list[str] = []
        self.kept: list[str] = []
        self.notes: list[str] = []
        absent = local.objects.missing(named)
        try:
            beside = ancestors(local.objects, named - absent, brought)
            kept = {str(move.commit) for move in remote.references.log(_KEPT)} if beside | absent else set()
            beside -= ancestors(local.objects, kept - local.objects.missing(kept))
            ends = log(local.objects, *(beside & named))
            self.commits = [commit.digest for commit in ends if commit.digest in beside & named]
        except NotFoundError as error:  # a history that has come here in part
            self.notes.append(f"Only what branches and tags follow was sent. {error}")
            return
        self._note(remote.objects.missing(absent - kept), "nor here")

    def send(self, others: Sequence[Repository], report: TransferReport | None, by: str) -> dict[str, int]:
        """Send them, and let the remote keep them; sizes of what was sent by digest."""
        sent: dict[str, int] = {}
        followed: set[str] = set()
        for commit in self.commits:
            if commit in followed:
                continue
            try:
                sent |= _send(self._local, self._remote, {commit}, self._brought, others, report)
            except NotFoundError:
                self._note({commit}, "nor whole here")
                continue
            self._remote.references.set(_KEPT, commit, by)
            self.kept.append(commit)
            followed |= ancestors(self._local.objects, [commit], self._brought)
        return sent

    def _note(self, lost: set[str], where: str) -> None:
        if lost:
            listed = ", ".join(sorted(commit[:12] for commit in lost)[:_LISTED])
            more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
            self.notes.append(
                f"git's history names {counted(len(lost), 'commit')} neither at {self._remote.store.url} {where}: "
                f"{listed}{more}. Who checks out these versions of git cannot open them until they are pushed from "
                "where they were made."
            )


def _found(
    local: Repository, others: Sequence[Repository], lacking: list[Need], remote: Repository
) -> dict[str, LocatedObject]:
    """The source of each object.

    Raises:
        NotFoundError: some are nowhere.
    """
    found: dict[str, LocatedObject] = {}
    rest = lacking
    for source in (local, *others):
        found |= {digest: LocatedObject(source, place) for digest, place in source.find(rest).items()}
        rest = [need for need in rest if need.digest not in found]
        if not rest:
            break
    if rest:  # unless the index has lost rows
        local.objects.rebuild()
        found |= {digest: LocatedObject(local, place) for digest, place in local.find(rest).items()}
        rest = [need for need in rest if need.digest not in found]
    if not rest:
        return {need.digest: found[need.digest] for need in lacking}
    things = Counter(need.thing or "history" for need in rest)
    listed = ", ".join(
        f"{thing} ({counted(count, 'object')})" for thing, count in sorted(things.items())[:10]
    )
    asked = " or ".join([remote.store.url, *(other.store.url for other in others)])
    raise NotFoundError(
        f"{counted(len(rest), 'object')} to be pushed {are(len(rest))} neither here nor at {asked}: {listed}. "
        f"Nothing was sent. Bring them from a remote that has them, then push again: "
        f"{call_for(sorted(things), history=True)}"
    )


def _move(remote: Repository, move: _Move, by: str, done: Pushed) -> None:
    kind, _, name = move.name.partition("/")
    if remote.references.move(move.name, move.tip, move.commit, by) is None:
        moved = (
            f" Moved before that: {', '.join([*done.branches, *done.tags])}."
            if done.branches or done.tags
            else ""
        )
        error = behind(remote, name, "was moved by another push just now")
        raise BehindError(f"{error}{moved}")
    if kind == "heads":
        done.branches[name] = (move.tip.commit, move.commit)
    else:
        done.tags[name] = move.commit
