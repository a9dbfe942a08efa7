"""Where a stockroom is: the folder with ``head.stock``, and where its objects lie.

=========================================  ============================================
no git                                     ``<root>/.hopyard``
top folder of a git repository             ``<git common directory>/hopyard``
folder ``a/b`` of a git repository         ``<git common directory>/hopyard/=2Fa=2Fb``
``.hopyard/FORMAT`` was there before git   ``<root>/.hopyard``, that of the main worktree
=========================================  ============================================

Quoted folders begin with ``=2F``, which no name of the top folder's own objects does.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import NotFoundError
from hopyard.objects.digests import digest
from hopyard.stockroom.git.head import HEAD_NAME
from hopyard.stockroom.git.layout import Layout, locate
from hopyard.stockroom.quoting import quoted
from hopyard.storage import files
from hopyard.storage.format import FORMAT_NAME
from hopyard.storage.oserrors import write_errors

_WITHOUT_GIT = ".hopyard"
_LONGEST = 150  # characters of a quoted name


@dataclass(frozen=True)
class Place:
    """One stockroom's folders; absolute, links resolved.

    Attributes:
        root: the folder that ``head.stock`` is in.
        objects: where the repository's objects are; need not exist yet (`prepare`).
        worktree: id of this working tree, a plain name: ``main``, ``worktree-NAME`` or ``tree-DIGEST``.
        git: git's common directory, or None without git.
    """

    root: Path
    objects: Path
    worktree: str
    git: Path | None

    @property
    def head(self) -> Path:
        """The file ``head.stock``."""
        return self.root / HEAD_NAME

    @property
    def exposed(self) -> str | None:
        """Text on how to move objects that ``git clean`` could delete into git's directory; None: they are safe."""
        if self.git is None or self.objects.name != _WITHOUT_GIT:
            return None
        safe = shlex.quote(str(_in_git(self.git, self.root, locate(self.root))))
        here = shlex.quote(str(self.objects))
        return (
            f"{self.objects} was there before git, and git clean -fdx would delete it. Move it to where "
            f"it does not, while nothing uses it: mkdir -p {safe} && mv {here}/* {safe}"
        )


def find(path: Path | None = None) -> Place:
    """The stockroom that holds ``path`` (None: the current directory): the nearest ``head.stock`` upwards.

    Raises:
        NotFoundError: there is none, or no such path.
        StorageError: git's folders are damaged or cannot be read.
    """
    start = Path(os.path.realpath(Path.cwd() if path is None else path))
    if not start.exists():
        raise NotFoundError(f"{start} does not exist. Give a folder in a stockroom, or make it first.")
    for folder in (start, *start.parents):
        if os.path.isfile(folder / HEAD_NAME):  # noqa: PTH113 - False where it cannot be looked at
            return at(folder)
    raise NotFoundError(
        f"{start} is in no stockroom: neither it nor a folder above has a {HEAD_NAME}. Make one here with: hopyard "
        "stock init"
    )


def at(root: Path) -> Place:
    """The place of a stockroom whose ``head.stock`` is, or will be, in the folder ``root``. Writes nothing."""
    root = Path(os.path.realpath(root))
    layout = locate(root)
    if layout is None:
        return Place(root, root / _WITHOUT_GIT, "main", None)
    for older in (root, _in_main_worktree(root, layout)):
        if (older / _WITHOUT_GIT / FORMAT_NAME).is_file():
            return Place(root, older / _WITHOUT_GIT, _worktree(layout), layout.common)
    return Place(root, _in_git(layout.common, root, layout), _worktree(layout), layout.common)


def prepare(place: Place) -> None:
    """Make the folder for objects. A ``.hopyard`` ignores itself, so that no git will ever add it.

    Raises:
        StorageError: it cannot be made.
    """
    with write_errors(place.objects):
        files.make_directory(str(place.objects))
        ignored = place.objects / ".gitignore"
        if place.objects.name == _WITHOUT_GIT and not (ignored.exists() and ignored.stat().st_size):
            ignored.write_text("*\n")


def _in_git(common: Path, root: Path, layout: Layout | None) -> Path:
    relative = Path() if layout is None or root == layout.top else root.relative_to(layout.top)
    return common / "hopyard" / (_segment("/" + relative.as_posix()) if relative.parts else "")


def _in_main_worktree(root: Path, layout: Layout) -> Path:
    """The same folder in the main worktree: an older ``.hopyard`` is not tracked, so it is only there."""
    main = layout.common.parent if layout.common.name == ".git" else layout.top
    return main / root.relative_to(layout.top)


def _worktree(layout: Layout) -> str:
    if layout.own != layout.common:
        return f"worktree-{_segment(layout.own.name)}"
    if layout.given and layout.own != layout.top / ".git":
        # One git directory may serve several trees by GIT_WORK_TREE.
        return f"tree-{digest(os.fsencode(layout.top), 'hopyard.worktree')[:16]}"
    return "main"


def _segment(text: str) -> str:
    """``text`` as one segment that every store may hold; different texts stay different."""
    name = quoted(text)
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 17]}-{digest(os.fsencode(text), 'hopyard.folder')[:16]}"
