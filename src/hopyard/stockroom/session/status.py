"""Status: the standing of a working tree, and changes that are not committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hopyard.errors import HopyardError
from hopyard.markup import cut, table, tag
from hopyard.stockroom.git import Place, branch_like, current_branch, read
from hopyard.stockroom.git.driver import merge_command, offer
from hopyard.stockroom.history.commits import ancestors, short
from hopyard.stockroom.history.stage import Stage
from hopyard.stockroom.remotes import Repository, names, recall
from hopyard.stockroom.session.tree import Standing
from hopyard.wording import are, counted, one_line, some_lines

_MOST = 30  # lines of each kind that a console shows unasked
_LONGEST_LINE = 2400  # characters of a line in a notebook


@dataclass(frozen=True, repr=False)
class Status:
    """The status of a stockroom. ``print(status)`` tells it in words; a console or notebook shows the first of what
    is staged.

    Attributes:
        branch: what commits move; None: none.
        commit: where this is; None: nothing is committed yet.
        behind: where the branch is, if that is before ``commit``: git merged or pulled ``head.stock``, and nothing has
            moved the branch since. None: at ``commit``.
        detached: why commits move no branch; None: they do.
        staged: what is written and not committed: ``(shelf/name, "added", "removed" or "changed")``.
        elsewhere: what is staged upon other commits, where this is not: commits and numbers of writes.
        remotes: of the branch's namesakes at remotes: how many commits it has more, and how many less.
        advice: what could be set right, in words.
        ahead: where the branch is, if git has gone back from there, to ``commit``.
        why: what says which branch this is on, in words; None: ``head.stock``, since there is no git.
    """

    branch: str | None
    commit: str | None
    detached: str | None
    staged: list[tuple[str, str]]
    elsewhere: dict[str | None, int] = field(default_factory=dict)
    remotes: dict[str, tuple[int, int]] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
    behind: str | None = None
    ahead: str | None = None
    why: str | None = None

    def lines(self) -> Iterator[str]:
        """Lines that tell a user, with all that is staged."""
        yield from self._standing_lines()
        yield from (f"    {how:<8} {path}" for path, how in self.staged)
        yield from self._elsewhere_lines()
        yield from self.advice

    def __str__(self) -> str:
        return "\n".join(map(one_line, self.lines()))

    def __repr__(self) -> str:
        staged = [f"    {how:<8} {path}" for path, how in self.staged[:_MOST]]
        if len(self.staged) > _MOST:
            staged.append(f"    and {len(self.staged) - _MOST:,} more: print(...) lists them")
        around = (list(self._standing_lines()), list(self._elsewhere_lines()), self.advice)
        standing, elsewhere, advice = (some_lines(part, _MOST) for part in around)
        return "\n".join(map(one_line, [*standing, *staged, *elsewhere, *advice]))

    def _repr_html_(self) -> str:
        """The lines, and a table of the staged changes, for notebooks."""
        lines = [*self._standing_lines(), *self._elsewhere_lines(), *self.advice]
        said = [tag("p", cut(line, _LONGEST_LINE)) for line in some_lines(lines, _MOST)]
        if not self.staged:
            return tag("div", said)
        rows = ((how, path) for path, how in self.staged)
        return tag("div", said, table(f"{counted(len(self.staged), 'thing')} staged", ("", ""), rows, _MOST))

    def _standing_lines(self) -> Iterator[str]:
        where = f"on branch {self.branch}" if self.branch is not None else "on no branch"
        yield f"{where}, " + (f"at {short(self.commit)}" if self.commit else "nothing is committed yet")
        if self.why is not None:
            yield self.why
        if self.ahead is not None:
            yield (
                f"the branch itself is at {short(self.ahead)}: git has gone back from there. The next commit, push "
                "or merge follows it, and has the content that is read here: nothing of the branch is lost"
            )
        if self.behind is not None:
            yield (
                f"the branch itself is still at {short(self.behind)}: git brought head.stock here. The next commit, "
                "push or merge moves it on"
            )
        if self.detached is not None:
            yield f"commits are detached: {self.detached}. Make a branch: hopyard stock branch NAME"
        for name, (more, less) in self.remotes.items():
            if more or less:
                yield f"{counted(more, 'commit')} more than {name}, {less} less"
        yield (
            "staged (hopyard stock commit, or discard it with hopyard stock reset):"
            if self.staged
            else "nothing is staged"
        )

    def _elsewhere_lines(self) -> Iterator[str]:
        for commit, count in self.elsewhere.items():
            how = f"; to see them: hopyard stock switch {short(commit)}" if commit else ""
            yield f"{counted(count, 'write')} {are(count)} staged upon {short(commit)}, where this is not{how}"


def status_of(
    place: Place, local: Repository, standing: Standing, stage: Stage, changes: Sequence[tuple[str, str]]
) -> Status:
    """The status of a working tree that stands so, with these changes."""
    elsewhere = {orphan.base: len(orphan.operations()) for orphan in stage.orphans()}
    remotes = {}
    for name, tip in local.references.names("remotes").items():
        if standing.branch is not None and name.partition("/")[2] == standing.branch and standing.commit:
            here = len(ancestors(local.objects, [standing.commit], [tip]))
            remotes[name] = here, len(ancestors(local.objects, [tip], [standing.commit]))
    advice = [] if place.exposed is None else [place.exposed]
    if offer(place) is not None:
        advice.append(
            "git does not know yet how to merge head.stock; let it call Hopyard: hopyard stock init --git-driver"
        )
    advice += _claimed(local)
    advice += [unmerged_advice(commit, base) for commit, base in read(place.head).unmerged]
    elsewhere_tip = standing.tip if standing.branch is not None and standing.tip != standing.commit else None
    return Status(
        standing.branch, standing.commit, standing.reason, list(changes), elsewhere, remotes, advice,
        behind=None if standing.went_back else elsewhere_tip,
        ahead=elsewhere_tip if standing.went_back else None,
        why=_why(place, standing),
    )  # fmt: skip


def unmerged_advice(commit: str, base: str | None) -> str:
    """Words for data that a merge of git did not bring, since they conflicted."""
    return (
        f"git merged {short(commit)}, but its data conflicted and are not here. Merge them: "
        f"{merge_command(commit, base)} --resolve ours (or theirs), then git add head.stock. To do without them, take "
        "the line that begins with unmerged out of head.stock"
    )


def _claimed(local: Repository) -> list[str]:
    """Lines about the purges that remotes told of, and nobody accepted."""
    told = []
    for name in names(local.store):
        with suppress(HopyardError):  # verify tells of a remote that cannot be read
            if recall(local.store, name).claimed:
                told.append(
                    f"{name} says that samples were purged, which was not accepted here: hopyard stock fetch {name} "
                    f"says which; hopyard stock fetch {name} --accept-purges purges them here too, for good"
                )
    return told


def _why(place: Place, standing: Standing) -> str | None:
    git = current_branch(place)
    if standing.branch is None or git is None:
        return None
    if standing.branch == branch_like(git):
        return f"that is the branch of git's {git!r}"
    return f"that was chosen here, while git is on {git!r}; to follow git: hopyard stock switch {branch_like(git)}"
