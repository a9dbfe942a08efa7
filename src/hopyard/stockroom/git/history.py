"""Commits that git's history names: gc keeps them, since ``git checkout`` may bring any of them back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from hopyard.errors import StorageError
from hopyard.stockroom.git.command import ask, demand
from hopyard.stockroom.git.head import HEAD_NAME
from hopyard.stockroom.git.layout import GitFolders, locate
from hopyard.stockroom.git.place import Place
from hopyard.storage.oserrors import read_error

# Every head.stock, whatever folder it is in: folders are renamed, and a root too many only keeps a little more.
_EVERY_HEAD = f":(top,glob)**/{HEAD_NAME}"
_DIGEST = re.compile(rb"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])")
_RAW = re.compile(rb":(\d{6}) (\d{6}) ([0-9a-f]+) ([0-9a-f]+) [A-Z]\d*\0")  # of git diff --raw -z
_FILES = (b"10", b"12")  # what modes of files and links begin with; others are absent, or submodules
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def commits_in_history(place: Place) -> set[str]:
    """Every commit that a ``head.stock`` names in any git commit, of all branches, tags, stashes, reflogs and merges
    under way, of all worktrees, and in their indexes. Empty without git.

    Some may not be in this repository: a clone of git's history brings no objects.

    Raises:
        StorageError: git is not installed, or cannot read all of its history. Then nothing may be deleted.
    """
    if place.git is None:
        return set()
    layout = locate(place.root)
    if layout is None:
        raise StorageError(
            f"the git repository {place.git} is gone, so what its history needs is not known. {_KEEP}"
        )
    try:
        return _digests(place.root, _staged(layout, place.root) | _committed(layout, place.root))
    except (StorageError, OSError) as error:
        said = (
            error if isinstance(error, StorageError) else read_error(str(error.filename or place.git), error)
        )
        raise StorageError(f"{said}\n{_partial(layout, place.root)}{_KEEP}") from error


def has_had(place: Place, branch: str | None, digest: str) -> bool:
    """Whether the ``head.stock`` of this folder has named a commit in the history of what git has checked out, or in
    the log of git's ``branch``, which may have been reset or rebased.

    Raises:
        StorageError: git is not installed, or cannot read its history.
    """
    revisions = ["HEAD"]
    if branch is not None:
        log = ask(place.root, "log", "--walk-reflogs", "--format=%H", f"refs/heads/{branch}", "--")
        revisions += [] if log is None or log.returncode else log.stdout.decode().split()
    given = "".join(f"{revision}\n" for revision in revisions).encode()
    blobs = _logged(place.root, "--ignore-missing", "--stdin", given=given, only=HEAD_NAME)
    return digest in _digests(place.root, blobs)


def named_commits(place: Place, revisions: Sequence[str]) -> set[str]:
    """The commits that a ``head.stock`` of this stockroom names in the history of revisions of git, in whatever folder
    it was. Revisions that git does not know count as empty.

    Raises:
        StorageError: git is not installed, or cannot read its history.
    """
    if place.git is None or not revisions:
        return set()
    given = "".join(f"{revision}\n" for revision in revisions).encode()
    blobs = _logged(place.root, "--ignore-missing", "--stdin", given=given)
    return _digests(place.root, blobs, room=place.id)


_KEEP = "Until git's history can be read, nothing is deleted; then try again."


def _partial(layout: GitFolders, root: Path) -> str:
    """The command that brings all versions to a partial clone; nothing is fetched here."""
    if not any((layout.common / "objects" / "pack").glob("*.promisor")):
        return ""
    return (
        "It is a partial clone. This brings every version of the file: "
        f"git -C {shlex.quote(str(root))} log --all --reflog -m -p -- '{_EVERY_HEAD}'\n"
    )


def _committed(layout: GitFolders, root: Path) -> set[str]:
    """Ids of all versions in history."""
    ids = _logged(root, "--all", "--reflog")
    if revisions := _pseudo_references(layout):
        # Apart from the others: of these some may be gone, of references none.
        given = "".join(f"{revision}\n" for revision in sorted(revisions))
        ids |= _logged(root, "--ignore-missing", "--stdin", "--not", "--all", given=given.encode())
    return ids


def _logged(root: Path, *revisions: str, given: bytes = b"", only: str = _EVERY_HEAD) -> set[str]:
    # -m and --full-history: also what a merge made, and what it threw away.
    answer = demand(
        root,
        "log", *revisions, "--full-history", "-m", "--root", "--raw", "-z",
        "--no-abbrev", "--no-renames", "--no-color", "--no-ext-diff", "--format=", "--", only,
        given=given,
    )  # fmt: skip
    ids: set[str] = set()
    for old_mode, new_mode, old, new in _RAW.findall(answer):
        ids.update(blob.decode() for mode, blob in ((old_mode, old), (new_mode, new)) if mode[:2] in _FILES)
    return ids


def _pseudo_references(layout: GitFolders) -> set[str]:
    """Commits that MERGE_HEAD and its like name, of each worktree: no reference may hold them."""
    found: set[str] = set()
    for folder in _git_directories(layout):
        for file in folder.iterdir():
            if file.name.endswith("_HEAD"):
                found.update(word.decode() for word in file.read_bytes().split() if _ID.fullmatch(word))
    return found


def _staged(layout: GitFolders, root: Path) -> set[str]:
    """Ids of what is in the index, of each worktree."""
    ids: set[str] = set()
    for folder in _git_directories(layout):
        if (index := folder / "index").is_file():
            for line in demand(root, "ls-files", "--stage", "-z", "--", _EVERY_HEAD, index=index).split(
                b"\0"
            ):
                if line[:2] in _FILES:
                    ids.add(line.split()[1].decode())
    return ids


def _git_directories(layout: GitFolders) -> list[Path]:
    """Of all worktrees. Lists by `iterdir`, since `glob` passes over what may not be read."""
    linked = layout.common / "worktrees"
    return [layout.common, *(sorted(linked.iterdir()) if linked.exists() else ())]


def _digests(root: Path, blobs: set[str], room: str = "") -> set[str]:
    """Texts that look like digests in these blobs, also in versions that a user broke by hand.

    Args:
        room: only of blobs that have the id of this stockroom; "": of all.
    """
    output = demand(
        root, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in sorted(blobs)).encode()
    )
    digests: set[str] = set()
    start = 0
    while start < len(output):
        end = output.index(b"\n", start)
        fields = output[start:end].split()
        if len(fields) != 3:  # "<id> missing"
            raise StorageError(
                f"git lacks the version {fields[0].decode()[:12]} of a {HEAD_NAME}: git -C {root} fsck"
            )
        start = end + 1 + int(fields[2]) + 1
        if output.find(room.encode(), end + 1, start) >= 0:
            digests.update(match.decode().lower() for match in _DIGEST.findall(output, end + 1, start))
    return digests
