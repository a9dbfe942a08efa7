"""Where git's folders are, read from its files as gitrepository-layout(5) has them, without running git.

A ``.git`` folder, or a ``.git`` file that names it (worktrees, submodules); ``commondir`` in it names what worktrees
share. GIT_DIR, GIT_WORK_TREE and GIT_COMMON_DIR, which git sets for its hooks and drivers, count for folders inside the
working tree that they mean, unless another repository is nearer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import StorageError
from hopyard.storage.oserrors import read_error


@dataclass(frozen=True)
class Layout:
    """The folders of one git working tree; absolute, links resolved.

    Attributes:
        top: the working tree's top; of a bare repository, the repository.
        own: the git directory of this working tree.
        common: the git directory that all working trees of the repository share.
        given: the environment names them, not a ``.git`` in ``top``.
    """

    top: Path
    own: Path
    common: Path
    given: bool = False


def locate(folder: Path) -> Layout | None:
    """Git's folders for an absolute ``folder`` whose links are resolved, or None: no git repository holds it.

    Raises:
        StorageError: a repository that is damaged, has moved, or cannot be read.
    """
    try:
        around = (_layout(parent) for parent in (folder, *folder.parents))
        found = next((layout for layout in around if layout is not None), None)
        given = _given(found)
    except OSError as error:
        raise read_error(str(error.filename or folder), error) from error
    if given is None or not folder.is_relative_to(given.top):
        return found
    nearer = found is not None and found.top != given.top and found.top.is_relative_to(given.top)
    return found if nearer else given


def _layout(folder: Path) -> Layout | None:
    """The layout whose top is ``folder``."""
    link = folder / ".git"
    if link.is_file():
        own = _named_by(link)
    elif is_git_directory(link):
        own = link.resolve()
    elif (link / "hopyard").is_dir():
        raise StorageError(
            f"{link} is not a git repository any more (it needs HEAD, objects and refs), but {link / 'hopyard'} is "
            f"there. Restore what git lost; git -C {folder} fsck says what that is."
        )
    elif is_git_directory(folder):
        own = folder  # bare
    else:
        return None
    return Layout(folder, own, _common(own))


def _named_by(link: Path) -> Path:
    """The git directory that a ``.git`` file names."""
    text = link.read_text(errors="surrogateescape")
    own = Path(os.path.realpath(link.parent / text.removeprefix("gitdir:").strip()))
    if not text.startswith("gitdir:") or not is_git_directory(own):
        raise StorageError(
            f"{link} should name a git directory, but it says {text.strip()[:200]!r}, and no git repository is there. "
            "If the repository was moved, run in its new place: git worktree repair"
        )
    return own


def is_git_directory(folder: Path) -> bool:
    """Whether git would take ``folder`` for a git directory."""
    head = folder / "HEAD"
    if not head.is_symlink() and not head.is_file():
        return False
    common = _common(folder)
    return (common / "objects").is_dir() and (common / "refs").is_dir()


def _common(own: Path) -> Path:
    file = own / "commondir"
    return Path(os.path.realpath(own / file.read_text().strip())) if file.is_file() else own


def _given(found: Layout | None) -> Layout | None:
    """The layout that the environment names, if it is another than was ``found``.

    Without GIT_WORK_TREE, git takes the current directory for the top.
    """
    if not (directory := os.environ.get("GIT_DIR")):
        return None
    own = Path(os.path.realpath(directory))
    if not is_git_directory(own):
        raise StorageError(
            f"GIT_DIR is {directory!r}, but no git repository is there. Set it right, or: unset GIT_DIR"
        )
    tree, shared = os.environ.get("GIT_WORK_TREE"), os.environ.get("GIT_COMMON_DIR")
    common = Path(os.path.realpath(shared)) if shared else _common(own)
    top = Path(os.path.realpath(tree or "."))
    if found is not None and (found.own, found.common) == (own, common) and (not tree or found.top == top):
        return None
    return Layout(top, own, common, given=True)
