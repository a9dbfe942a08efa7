"""The merge driver: git hands three versions of ``head.stock`` to Hopyard, which merges the data that they name.

The common version is git's own, whatever git is doing: of a cherry-pick it is what was before the picked commit, of a
revert the commit to be undone. So the data change as the code does.

Git knows a driver only if the user says so, once in each clone: a command in git's config, and a line in
``.gitattributes``, which is tracked. See gitattributes(5), "Defining a custom merge driver".
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hopyard.errors import ConflictError, HopyardError, UsageError
from hopyard.stockroom.git.command import ask, demand, installed
from hopyard.stockroom.git.head import HEAD_NAME, Head, mark_unmerged, read, read_bases, write
from hopyard.stockroom.git.layout import locate
from hopyard.stockroom.git.place import Place
from hopyard.storage.oserrors import write_errors
from hopyard.wording import visible

ARGUMENTS = ("stock", "merge-driver", "%O", "%A", "%B", "%P")
"""Arguments with which git runs ``hopyard``: base, ours, theirs, and which ``head.stock`` it is."""

_NAME = "merges data, models and experiments of StockRoom"
_LINE = f"{HEAD_NAME} merge=hopyard"
# Several common versions are given as one with conflicts, which names all of them; a driver could name but one.
_AMONG_BASES = "text"


def offer(place: Place) -> str | None:
    """Advice for a user whose git has no merge driver yet, with the exact commands; None: nothing to do."""
    if place.git is None or not installed() or (_is_configured(place) and _attribute(place) == "hopyard"):
        return None
    return (
        f"git does not know yet how to merge {HEAD_NAME}: branches that both changed data would conflict. "
        f"To let git merge call Hopyard, run in {place.root}:\n"
        f"    git config --local merge.hopyard.name {shlex.quote(_NAME)}\n"
        f"    git config --local merge.hopyard.driver {shlex.quote(_command())}\n"
        f"    git config --local merge.hopyard.recursive {_AMONG_BASES}\n"
        f"    echo {shlex.quote(_LINE)} >> .gitattributes"
    )


def install(place: Place) -> None:
    """Do what `offer` says. ``.gitattributes`` is appended to, once; whether to add it to git is the user's decision.

    Raises:
        UsageError: there is no git, or another attribute overrides the line.
        StorageError: git's config or ``.gitattributes`` cannot be written.
    """
    if place.git is None:
        raise UsageError(f"{place.root} is in no git repository, so nothing is merged there. First: git init")
    demand(place.root, "config", "--local", "merge.hopyard.name", _NAME)
    demand(place.root, "config", "--local", "merge.hopyard.driver", _command())
    demand(place.root, "config", "--local", "merge.hopyard.recursive", _AMONG_BASES)
    if _attribute(place) != "hopyard":
        _append(place.root / ".gitattributes")
    if (attribute := _attribute(place)) != "hopyard":
        raise UsageError(
            f"git merges {place.head} with the attribute merge={attribute}, which another file of attributes sets "
            f"({place.git / 'info' / 'attributes'}?). Remove it there; the driver itself is installed."
        )


def run(
    base: Path, ours: Path, theirs: Path, merge: Callable[[Sequence[str], Head, Head], Head], root: Path
) -> int:
    """Be the driver: merge what three versions of ``head.stock`` name, and write the result into ``ours``.

    Args:
        base: the common version; an empty file if there is none.
        ours: gets the result, or a line that names the other side as unmerged.
        merge: commits of the common version, ours, theirs -> the merged head. A `HopyardError` of it, as one that
            lists conflicts, is reported on standard error.
        root: the folder of the ``head.stock``, for messages.

    Returns:
        the exit status for git: 0 merged, 1 a conflict remains.
    """
    try:
        mine, other = read(ours), read(theirs)
        merged = mine if mine == other else merge(read_bases(base), mine, other)
        write(ours, merged)
        before = set(_unmerged_in(base))
        add, remove = set(other.unmerged) - before, before - set(other.unmerged)
        mark_unmerged(ours, sorted(add, key=str), {commit for commit, _ in remove})
    except HopyardError as error:
        commit, since = _commit_of(theirs), _since(base)
        with suppress(HopyardError):  # ours cannot be read: whoever uses it is told
            mark_unmerged(ours, [] if commit is None else [(commit, since)])
        sides, option = "", ""
        if isinstance(error, ConflictError):
            sides = ", with your side of what conflicts (or with the other one: --resolve theirs)"
            option = " --resolve ours"
        print(
            f"{HEAD_NAME} was not merged: {visible(str(error))}\n"
            f"It still names your side, and the other as unmerged. Merge the data{sides}, then tell git, in {root}:\n"
            f"    {merge_command(commit or 'THE_OTHER_COMMIT', since)}{option}\n    git add {HEAD_NAME}",
            file=sys.stderr,
        )
        return 1
    return 0


def is_merging() -> bool:
    """Whether git runs the driver for ``git merge`` or ``git pull``, which tell it the name of the other side."""
    return any(name.startswith("GITHEAD_") for name in os.environ)


def is_rebasing(place: Place) -> bool:
    """Whether git is in the middle of a rebase of this working tree."""
    layout = locate(place.root)
    return layout is not None and (layout.own / "rebase-merge").is_dir()


def merge_command(commit: str, base: str | None) -> str:
    """The command that merges the data of a commit, or the changes to it from a base."""
    return f"hopyard stock merge {commit}{'' if base is None else f' --base {base}'}"


def _commit_of(theirs: Path) -> str | None:
    try:
        return read(theirs).commit
    except HopyardError:
        return None


def _since(base: Path) -> str | None:
    """The common version's commit, if there is just one."""
    try:
        bases = read_bases(base)
    except HopyardError:
        return None
    return bases[0] if len(bases) == 1 else None


def _unmerged_in(base: Path) -> tuple[tuple[str, str | None], ...]:
    try:
        return read(base).unmerged
    except HopyardError:  # there is none, or several with conflicts
        return ()


def _command() -> str:
    """The command for git's config. This Python by its path: a merge may run where no environment is active."""
    python = shlex.quote(sys.executable).replace("%", "%%")
    return " ".join((python, "-m", "hopyard", *ARGUMENTS))


def _is_configured(place: Place) -> bool:
    answer = ask(place.root, "config", "--get", "merge.hopyard.driver")
    return answer is not None and answer.returncode == 0


def _attribute(place: Place) -> str:
    """Git's way to merge ``head.stock``: ``hopyard``, ``unspecified``, or another that the user chose."""
    fields = demand(place.root, "check-attr", "-z", "merge", "--", HEAD_NAME).split(b"\0")
    return os.fsdecode(fields[2])


def _append(attributes: Path) -> None:
    with write_errors(attributes), attributes.open("a+b") as file:
        file.seek(0)
        present = file.read()
        end = b"\r\n" if b"\r\n" in present else b"\n"
        file.write((end if present and not present.endswith(b"\n") else b"") + _LINE.encode() + end)
