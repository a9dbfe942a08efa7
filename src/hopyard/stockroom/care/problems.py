"""What verify reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hopyard.wording import are, counted

Kind = Literal["damaged", "missing", "unreadable", "index", "purged"]


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    Attributes:
        kind: ``damaged``: bytes are not what was written; ``missing``: something needs what is not here;
            ``unreadable``: a reference, stage, remote or tombstone; ``index``: it says something else than the packs
            (it heals by itself); ``purged``: bytes that were purged are still here, until gc is run.
        name: of the store's object, or of an object its digest.
        reason: what is wrong, in words.
        needed_by: what cannot be read therefore: ``data/image[3..17] of the commit 0123...``; "" if nothing.
        repaired: whether it was repaired.
    """

    kind: Kind
    name: str
    reason: str
    needed_by: str = ""
    repaired: bool = False

    def __str__(self) -> str:
        needed = f"; needed by {self.needed_by}" if self.needed_by else ""
        return f"{self.name}: {self.reason}{needed}{' (repaired)' if self.repaired else ''}"


@dataclass(frozen=True)
class Verified:
    """What verify found.

    Attributes:
        problems: all, in order of names.
        objects: that were read and are what their digests say, and ``nbytes`` of them.
        commits: that references and stages lead to.
        elsewhere: objects that are needed, and are only at a remote, as in every clone that has not fetched all.
    """

    problems: list[Problem] = field(default_factory=list)
    objects: int = 0
    nbytes: int = 0
    commits: int = 0
    elsewhere: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no problem, or none is left."""
        return all(problem.repaired for problem in self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        known = (
            f"{counted(self.objects, 'object')} ({self.nbytes / 1e6:.1f} MB) of {counted(self.commits, 'commit')} "
            f"{are(self.objects)} whole"
        )
        away = (
            f"; {counted(self.elsewhere, 'object')} {are(self.elsewhere)} only at a remote"
            if self.elsewhere
            else ""
        )
        repaired = sum(problem.repaired for problem in self.problems)
        told = f", {repaired} of them repaired" if repaired else ""
        return "\n".join(
            [*lines, f"{known}{away}; {counted(len(lines), 'problem') if lines else 'no problems'}{told}"]
        )
