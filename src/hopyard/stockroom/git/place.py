"""Places of stockrooms: the folder with ``head.stock``, and the folder with the objects.

=========================================  ============================================
no git                                     ``<root>/.hopyard``
in a git repository                        ``<git common directory>/hopyard/<id>``
``.hopyard/FORMAT`` was there before git   ``<root>/.hopyard``, that of the main worktree
=========================================  ============================================

The id is that of ``head.stock``, so folders may be renamed. Where each working tree has the folder is written down at
the objects, in ``folders/<worktree>``: so a folder that was moved keeps what is staged there, and one that was copied
shares the objects, and is a working tree of its own.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.objects.digests import digest
from hopyard.stockroom.git.command import ask
from hopyard.stockroom.git.head import HEAD_NAME, id_of, new_id
from hopyard.stockroom.git.layout import GitFolders, locate
from hopyard.stockroom.records.quoting import quoted
from hopyard.storage import LocalStore, files
from hopyard.storage.format import FORMAT_NAME
from hopyard.storage.oserrors import read_error, write_errors
from hopyard.wording import counted

_WITHOUT_GIT = ".hopyard"
_IN_GIT = "hopyard"
_FOLDERS = "folders"
_TRACKED = ("ls-files", "--stage", "-z", "--", f":(glob)**/{HEAD_NAME}")
_SECONDS = 10.0
_NAMED = 5  # of the stockrooms below a folder
_LONGEST = 150  # characters of a quoted name


@dataclass(frozen=True)
class Place:
    """One stockroom's folders; absolute, links resolved.

    Attributes:
        root: the folder that ``head.stock`` is in.
        objects: where the repository's objects are; need not exist yet (`prepare`).
        worktree: id of this working tree, a plain name: ``main``, ``worktree-NAME`` or ``tree-DIGEST``; of a copy of
            the folder within it, ``copy2-main``.
        git: git's common directory, or None without git.
        id: of the stockroom.
        git_own: git's own directory of this working tree, whose ``HEAD`` says which branch git is at; None without git.
    """

    root: Path
    objects: Path
    worktree: str
    git: Path | None
    id: str = ""
    git_own: Path | None = None

    @property
    def head(self) -> Path:
        """The file ``head.stock``."""
        return self.root / HEAD_NAME

    @property
    def exposed(self) -> str | None:
        """Text on how to move objects that ``git clean`` could delete into git's directory; None: they are safe."""
        if self.git is None or self.objects.name != _WITHOUT_GIT:
            return None
        safe = shlex.quote(str(self.git / _IN_GIT / self.id))
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
    files.look_anew(start.parent)
    if not start.exists():
        raise NotFoundError(f"{start} does not exist. Give a folder in a stockroom, or make it first.")
    for folder in (start, *start.parents):
        files.look_anew(folder)
        if os.path.isfile(folder / HEAD_NAME):  # noqa: PTH113 - False where it cannot be looked at
            return at(folder)
    raise NotFoundError(
        f"{start} is in no stockroom: neither it nor a folder above has a {HEAD_NAME}. {_below(start)}Make one here "
        "with: hopyard stock init"
    )


def _below(start: Path) -> str:
    """Text that names the stockrooms below a folder that git tracks, and says how to go there."""
    folder = start if start.is_dir() else start.parent
    try:
        tracked = None if locate(folder) is None else ask(folder, *_TRACKED, seconds=_SECONDS)
    except StorageError:  # which is not what the user is to be told now
        return ""
    if tracked is None or tracked.returncode:
        return ""
    files = [os.fsdecode(line.partition(b"\t")[2]) for line in tracked.stdout.split(b"\0") if line]
    if HEAD_NAME in files:
        return (
            f"Git tracks one in {folder}, which was deleted; to have it back: git checkout -- {HEAD_NAME}. "
        )
    rooms = sorted({shlex.quote(str(Path(file).parent)) for file in files})
    more = f" and {len(rooms) - _NAMED} more" if len(rooms) > _NAMED else ""
    listed = ", ".join(f"cd {room}" for room in rooms[:_NAMED])
    return (
        f"Below it git tracks {counted(len(rooms), 'stockroom')}; go there: {listed}{more}. " if rooms else ""
    )


def at(root: Path, room_id: str | None = None) -> Place:
    """The place of a stockroom whose ``head.stock`` is, or will be, in the folder ``root``. Writes nothing.

    Args:
        room_id: of the stockroom; None: as ``head.stock`` says. Without one it is the id of the only stockroom that was
            in this folder before, such as one whose making was interrupted; else a new one.
    """
    root = Path(os.path.realpath(root))
    layout = locate(root)
    room_id = room_id or id_of(root / HEAD_NAME)
    if layout is None:
        return Place(root, root / _WITHOUT_GIT, "main", None, room_id or new_id())
    for older in (root, _in_main_worktree(root, layout)):
        if (older / _WITHOUT_GIT / FORMAT_NAME).is_file():
            objects = older / _WITHOUT_GIT
            return Place(root, objects, _worktree(layout), layout.common, room_id or new_id(), layout.own)
    room_id = room_id or _remembered(layout, root) or new_id()
    objects = layout.common / _IN_GIT / room_id
    worktree = _own_worktree(objects, layout, root, room_id)
    return Place(root, objects, worktree, layout.common, room_id, layout.own)


def folders(objects: Path) -> dict[str, str]:
    """By working tree the folder, within the git working tree, in which the stockroom with these objects was last.

    Raises:
        CorruptError: such a file names none. StorageError: it cannot be read.
    """
    try:
        found = {file: file.read_bytes() for file in (objects / _FOLDERS).iterdir()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise read_error(str(error.filename or objects), error) from error
    for file, folder in found.items():
        if not folder or b"\0" in folder:
            raise CorruptError(
                f"{file} holds {folder[:20]!r}, which is no folder. It names the folder of a git working tree that the "
                "stockroom is in, by which changes that are not committed yet are found. Write that folder into it: "
                "'.' if it is the top one, else its path from there, without a line end."
            )
    return {file.name: os.fsdecode(folder) for file, folder in found.items()}


def settle(place: Place) -> None:
    """Write down, where it is new, in which folder this working tree has the stockroom.

    Raises:
        StorageError: it cannot be written.
    """
    layout = locate(place.root)
    if layout is None or place.objects.name == _WITHOUT_GIT:
        return
    inside = _inside(layout, place.root)
    if folders(place.objects).get(place.worktree) != inside:
        LocalStore(place.objects).put(f"{_FOLDERS}/{place.worktree}", os.fsencode(inside))


def mark_of(place: Place) -> Path | None:
    """The file in git's own directory of a linked worktree that says that this stockroom was opened there: git deletes
    it with the worktree, so that another worktree of the same name has none. None: it is no linked worktree."""
    if place.git_own is None or place.git_own == place.git:
        return None
    return place.git_own / _IN_GIT / f"{place.id}.{place.worktree}"


def make_folder(folder: Path) -> None:
    """Make the folder of a working tree, if it is not there; it is on the disk then, before what is to be in it.

    Raises:
        StorageError: it cannot be made.
    """
    with write_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        files.make_directory(files.absolute(folder))


def prepare(place: Place) -> None:
    """Make the folder for objects. A ``.hopyard`` ignores itself, so that no git will ever add it.

    Raises:
        StorageError: it cannot be made.
    """
    with write_errors(place.objects):
        files.make_directory(str(place.objects))
        settle(place)
        ignored = place.objects / ".gitignore"
        if place.objects.name == _WITHOUT_GIT and not (ignored.exists() and ignored.stat().st_size):
            LocalStore(place.objects).put(ignored.name, b"*\n")


def _inside(layout: GitFolders, root: Path) -> str:
    return root.relative_to(layout.top).as_posix()


def _remembered(layout: GitFolders, root: Path) -> str | None:
    """The id of the only stockroom that was in this folder."""
    try:
        rooms = sorted((layout.common / _IN_GIT).iterdir())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(str(error.filename or layout.common), error) from error
    own, inside = _worktree(layout), _inside(layout, root)
    here = [room.name for room in rooms if folders(room).get(own) == inside]
    return here[0] if len(here) == 1 else None


def _own_worktree(objects: Path, layout: GitFolders, root: Path, room_id: str) -> str:
    """The id of the working tree that the stockroom in this folder is."""
    own, inside = _worktree(layout), _inside(layout, root)
    known = {
        name: folder
        for name, folder in sorted(folders(objects).items())
        if name == own or re.fullmatch(rf"copy\d+-{re.escape(own)}", name)
    }
    for name, folder in known.items():
        if folder == inside:
            return name
    for name, folder in known.items():
        if id_of(layout.top / folder / HEAD_NAME) != room_id:  # it was moved from there
            return name
    number = 2
    while known and f"copy{number}-{own}" in known:
        number += 1
    return f"copy{number}-{own}" if known else own


def _in_main_worktree(root: Path, layout: GitFolders) -> Path:
    """The counterpart of a folder in the main worktree: an older ``.hopyard`` is not tracked, so it is only there."""
    main = layout.common.parent if layout.common.name == ".git" else layout.top
    return main / root.relative_to(layout.top)


def _worktree(layout: GitFolders) -> str:
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
