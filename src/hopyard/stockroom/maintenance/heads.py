"""``head.stock``, as verify sees it: whether it can be read, and if it cannot, what it most likely said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from hopyard.errors import HopyardError, StorageError
from hopyard.stockroom.git import HEAD_NAME, Head, Place, branch_like, current_branch, folders, parse, write
from hopyard.stockroom.git.command import demand
from hopyard.stockroom.git.head import lines_of
from hopyard.stockroom.git.layout import locate
from hopyard.stockroom.history.references import Move, ReferenceLog
from hopyard.storage import Store, files

ASIDE = "damaged"
"""The folder that keeps damaged files as they were found."""

_CHANGED = 2  # digits of a digest: a flipped bit changes one


def heads(place: Place) -> Iterator[Path]:
    """Every ``head.stock`` on disk: of this working tree, and of git's others, in the same folder or where else the
    stockroom was in one of them."""
    found = {place.head}
    layout = None if place.git is None else locate(place.root)
    if layout is not None:
        inside = {place.root.relative_to(layout.top), *map(Path, folders(place.objects).values())}
        linked = layout.common / "worktrees"
        tops = [layout.common.parent]
        for tree in sorted(linked.iterdir()) if linked.is_dir() else ():
            link = tree / "gitdir"
            if link.is_file():
                tops.append((tree / link.read_text().strip()).parent)
        found |= {top / folder / HEAD_NAME for top in tops for folder in inside}
    return (file for file in sorted(found) if files.look_anew(file.parent) and file.exists())


def likely(place: Place, logs: Iterable[ReferenceLog]) -> Head:
    """The head that the working tree most likely had: on git's branch, or the branch that git's version of
    ``head.stock`` names; else at the last move of all branches and of this working tree's own commits; without a commit
    if nothing is committed."""
    git = current_branch(place)
    moves = {log.name: move for log in logs if (move := _last(log)) is not None}
    for head in _versions(place):
        if head.branch is None:
            return head
        name = head.branch if git in (None, head.git) else branch_like(git)
        if (move := moves.get(f"heads/{name}")) is not None:
            return Head(name, move.commit, git)
    own = f"worktrees/{place.worktree}"
    known = {name: move for name, move in moves.items() if name == own or name.startswith("heads/")}
    if not known:
        return Head(branch_like(git), None, git)
    name = max(known, key=lambda each: known[each].time)
    return Head(None if name == own else name.removeprefix("heads/"), known[name].commit, git)


def nearest(commit: str, logs: Iterable[ReferenceLog]) -> str | None:
    """The commit that a reference has named and that differs from this one in a digit or two; None: there is none."""
    named = {move.commit for log in logs for move in log.entries.values() if move.commit is not None}
    for one in sorted(named):
        if one != commit and sum(a != b for a, b in zip(one, commit, strict=True)) <= _CHANGED:
            return one
    return None


def described(head: Head) -> str:
    """The lines of a head, for messages."""
    return " and ".join(repr(line) for line in lines_of(head))


def rewrite(place: Place, head: Head, store: Store) -> None:
    """Replace a damaged ``head.stock``; what it was is kept aside.

    Raises:
        StorageError: it is a folder, or cannot be read or written.
    """
    if place.head.is_dir():
        raise StorageError(f"{place.head} is a folder. Move it away, then do this again.")
    if place.head.exists():
        try:
            found = place.head.read_bytes()
        except OSError as error:
            raise StorageError(f"{place.head} cannot be read ({error}), so it is not replaced.") from error
        store.put(f"{ASIDE}/{HEAD_NAME}", found)
        files.unlink(place.head)
    write(place.head, head, place.id)


def _last(log: ReferenceLog) -> Move | None:
    """A reference's last entry; None: there is none now."""
    move = list(log.entries.values())[-1] if log.entries else None
    return None if move is None or move.commit is None else move


def _versions(place: Place) -> Iterator[Head]:
    """The heads of git's index and of its last commit, as far as they can be read."""
    if place.git is None:
        return
    for revision in ("", "HEAD"):
        try:
            answer = demand(place.root, "cat-file", "--batch", given=f"{revision}:./{HEAD_NAME}\n".encode())
            line, _, data = answer.partition(b"\n")
            if line.split()[1:2] == [b"blob"]:
                yield parse(data[: int(line.split()[2])], place.head)
        except HopyardError:
            continue
