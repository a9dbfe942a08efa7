"""Git's folders, found in git's files as gitrepository-layout(5) has them, without running git.

A ``.git`` folder, or a ``.git`` file that names it (worktrees, submodules); ``commondir`` in it names what worktrees
share. GIT_DIR, GIT_WORK_TREE and GIT_COMMON_DIR, which git sets for its hooks and drivers, count for folders inside the
working tree that they mean, unless another repository is nearer.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hopyard.errors import StorageError
from hopyard.storage.oserrors import read_error


@dataclass(frozen=True)
class GitFolders:
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


def locate(folder: Path) -> GitFolders | None:
    """Git's folders for an absolute ``folder`` whose links are resolved, or None: no git repository holds it.

    Raises:
        StorageError: a repository that is damaged, has moved, or cannot be read.
    """
    try:
        around = (_layout(parent) for parent in chain((folder,), folder.parents))
        found = next((layout for layout in around if layout is not None), None)
        given = _given(found)
    except OSError as error:
        raise read_error(str(error.filename or folder), error) from error
    if given is None or not folder.is_relative_to(given.top):
        return found
    nearer = found is not None and found.top != given.top and found.top.is_relative_to(given.top)
    return found if nearer else given


def _layout(folder: Path) -> GitFolders | None:
    """The layout whose top is ``folder``."""
    link = f"{folder}/.git"
    mode = _mode(link)
    if stat.S_ISREG(mode):
        own = _named_by(Path(link))
    elif stat.S_ISDIR(mode) and is_git_directory(link):
        own = os.path.realpath(link) if os.path.islink(link) else link  # noqa: PTH114 - as below
    elif stat.S_ISDIR(mode) and stat.S_ISDIR(_mode(f"{link}/hopyard")):
        raise StorageError(
            f"{link} is not a git repository any more (it needs HEAD, objects and refs), but {link}/hopyard is "
            f"there. Restore what git lost; git -C {folder} fsck says what that is."
        )
    elif is_git_directory(str(folder)):
        own = str(folder)  # bare
    else:
        return None
    path, common = Path(own), _common(own)
    return GitFolders(folder, path, path if common == own else Path(common))


def _named_by(link: Path) -> str:
    """The git directory that a ``.git`` file names."""
    text = link.read_text(errors="surrogateescape")
    own = os.path.realpath(link.parent / text.removeprefix("gitdir:").strip())
    if not text.startswith("gitdir:") or not is_git_directory(own):
        raise StorageError(
            f"{link} should name a git directory, but it says {text.strip()[:200]!r}, and no git repository is there. "
            "If the repository was moved, run in its new place: git worktree repair"
        )
    return own


def is_git_directory(folder: str) -> bool:
    """Whether git would take ``folder`` for a git directory."""
    head = f"{folder}/HEAD"
    if not os.path.islink(head) and not stat.S_ISREG(_mode(head)):  # noqa: PTH114 - as below
        return False
    common = _common(folder)
    return stat.S_ISDIR(_mode(f"{common}/objects")) and stat.S_ISDIR(_mode(f"{common}/refs"))


def _common(own: str) -> str:
    file = f"{own}/commondir"
    if not stat.S_ISREG(_mode(file)):
        return own
    return os.path.realpath(f"{own}/{Path(file).read_text().strip()}")


def _mode(path: str) -> int:
    """The mode of what is at a path; 0: nothing is. Each commit looks at several dozen, and ``Path`` would take longer
    than looking."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - as above
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0
        raise


def _given(found: GitFolders | None) -> GitFolders | None:
    """The layout that the environment names, if it is another than was ``found``.

    Without GIT_WORK_TREE, git takes the current directory for the top.
    """
    if not (directory := os.environ.get("GIT_DIR")):
        return None
    own = os.path.realpath(directory)
    if not is_git_directory(own):
        raise StorageError(
            f"GIT_DIR is {directory!r}, but no git repository is there. Set it right, or: unset GIT_DIR"
        )
    tree, shared = os.environ.get("GIT_WORK_TREE"), os.environ.get("GIT_COMMON_DIR")
    common = Path(os.path.realpath(shared) if shared else _common(own))
    top = Path(os.path.realpath(tree or "."))
    if (
        found is not None
        and (found.own, found.common) == (Path(own), common)
        and (not tree or found.top == top)
    ):
        return None
    return GitFolders(top, Path(own), common, given=True)
