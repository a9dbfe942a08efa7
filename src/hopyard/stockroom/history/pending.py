"""Moves of a working tree that were announced and may not have come to their end."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hopyard.errors import CorruptError
from hopyard.stockroom.history.stage import StagePosition
from hopyard.storage import Store
from hopyard.storage.format import check_format, format_header
from hopyard.storage.small import get_small

_KIND = "moving"
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Pending:
    """A move of a working tree that a commit announces before it moves a branch.

    Attributes:
        branch: what moves; None: the reference of the working tree.
        commit: to which.
        number: of the reference's last entry before.
        branch_before, commit_before: what ``head.stock`` says before.
        left: the commit upon which all is staged that the commit has, or that is carried upon it.
        carried: the staged write upon the commit, which is there already; None: there is none.
        head: the name of the file that is to be ``head.stock``; None: that says it already.
    """

    branch: str | None
    commit: str
    number: int
    branch_before: str | None
    commit_before: str | None
    left: str | None
    carried: StagePosition | None
    head: str | None

    def encode(self) -> bytes:
        """The bytes that :func:`read_pending` reads."""
        value = {
            "branch": self.branch, "carried": self.carried and [self.carried.number, self.carried.seal.hex()],
            "commit": self.commit, "format": format_header(_KIND), "from": self.commit_before, "head": self.head,
            "left": self.left, "number": self.number, "was": self.branch_before,
        }  # fmt: skip
        return json.dumps(value, sort_keys=True).encode()


def read_pending(store: Store, name: str) -> Pending:
    """The note that a commit writes before it moves a working tree.

    Raises:
        CorruptError: it cannot be read.
    """
    try:
        found = json.loads(get_small(store, name))
        check_format(found["format"], _KIND, where=f"{store.url}/{name}")
        pending = Pending(
            found["branch"],
            found["commit"],
            found["number"],
            found["was"],
            found["from"],
            found["left"],
            found["carried"] and StagePosition(int(found["carried"][0]), bytes.fromhex(found["carried"][1])),
            found["head"],
        )
        if pending.head is not None and not isinstance(pending.head, str):
            raise ValueError(f"{pending.head!r} is no file's name")
        if pending.commit is None:
            raise ValueError("it names no commit")
        for commit in (pending.commit, pending.commit_before, pending.left):
            if commit is not None and len(bytes.fromhex(commit)) != _DIGEST_BYTES:
                raise ValueError(f"{commit!r} is no commit")
        if pending.number < 0:
            raise ValueError("its number is none")
        return pending
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{store.url}/{name} cannot be read ({type(error).__name__}: {error}). It says what a commit was about to "
            "do: the branch may have moved on, and head.stock not. This puts it aside: hopyard stock verify --repair"
        ) from error
