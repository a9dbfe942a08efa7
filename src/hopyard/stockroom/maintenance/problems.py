"""The report of verify."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hopyard.stockroom.maps import Key
from hopyard.stockroom.remotes.returning import Returned
from hopyard.wording import are, counted, describe_bytes, some_lines, visible

_SHOWN = 10  # keys
_LINES = 30  # problems that a console shows unasked

ProblemKind = Literal["damaged", "missing", "unreadable", "index", "purged"]


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
        kind: ``damaged``: bytes are not what was written; ``missing``: something needs what is not here;
            ``unreadable``: a reference, stage, remote or tombstone; ``index``: it says something else than the
            packfiles (it heals by itself); ``purged``: bytes that were purged are still here, until gc is run.
        name: of the store's object, or of an object its digest.
        reason: what is wrong, in words.
        needed_by: what cannot be read therefore: ``data/image[3..17] of the commit 0123...``; "" if nothing.
        repaired: whether it was repaired.
    """

    kind: ProblemKind
    name: str
    reason: str
    needed_by: str = ""
    repaired: bool = False

    def __str__(self) -> str:
        needed = f"; needed by {self.needed_by}" if self.needed_by else ""
        return f"{self.name}: {self.reason}{needed}{' (repaired)' if self.repaired else ''}"


@dataclass(frozen=True)
class Unproven:
    """Samples that are read on a remote's word: they lay together with purged ones, and the fragment was not here
    when that purge was accepted.

    Attributes:
        column: their column. keys: all of theirs.
        remote: whose word it is.
        time, by, why: of the purge.
    """

    column: str
    keys: list[Key]
    remote: str
    time: str
    by: str
    why: str

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.keys[:_SHOWN])) + (" and others" if len(self.keys) > _SHOWN else "")
        one = len(self.keys) == 1
        return (
            f"{counted(len(self.keys), 'sample')} of {self.column!r} ({shown}) {'rests' if one else 'rest'} on the "
            f"word of {self.remote}: {'it' if one else 'they'} lay together with what {self.by or 'somebody'} purged "
            f"on {self.time} ({self.why}), and nobody here had that fragment when the purge was accepted, so nothing "
            f"here can prove that {'it is' if one else 'they are'} as committed. Whoever still has the fragment can: "
            "hopyard stock fetch FOLDER_OR_URL compares with it, and repairs what is not so."
        )


@dataclass(frozen=True, repr=False)
class Verified:
    """The findings of verify. ``print(verified)`` tells of all problems, a console of the first ones.

    Attributes:
        problems: all, in order of names.
        objects: that were read and are what their digests say, and ``nbytes`` of them.
        commits: that references and stages lead to.
        elsewhere: objects that are needed, and are only at a remote, as in every clone that has not fetched all.
        unproven: by column and purge, samples that rest on a remote's word. That is no problem which was found: it is
            what cannot be looked for.
        returned: by column and purge, samples that were purged here, and that commits or staged writes have under their
            keys again, as far as their fragments are here. That is no problem either: they may have been added again.
    """

    problems: list[Problem] = field(default_factory=list)
    objects: int = 0
    nbytes: int = 0
    commits: int = 0
    elsewhere: int = 0
    unproven: list[Unproven] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem, or none is left."""
        return all(problem.repaired for problem in self.problems)

    def __str__(self) -> str:
        told = [*self.problems, *self.unproven, *self.returned, self._summary()]
        return "\n".join(map(visible, map(str, told)))

    def __repr__(self) -> str:
        problems, unproven, returned = (
            some_lines(list(map(str, found[: _LINES + 1])), _LINES, len(found))
            for found in (self.problems, self.unproven, self.returned)
        )
        return "\n".join(map(visible, [*problems, *unproven, *returned, self._summary()]))

    def _summary(self) -> str:
        known = (
            f"{counted(self.objects, 'object')} ({describe_bytes(self.nbytes)}) of {counted(self.commits, 'commit')} "
            f"{are(self.objects)} whole"
        )
        away = (
            f"; {counted(self.elsewhere, 'object')} {are(self.elsewhere)} only at a remote"
            if self.elsewhere
            else ""
        )
        repaired = sum(problem.repaired for problem in self.problems)
        told = f", {repaired} of them repaired" if repaired else ""
        found = counted(len(self.problems), "problem") if self.problems else "no problems"
        return f"{known}{away}; {found}{told}"
