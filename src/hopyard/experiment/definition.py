"""Model definition directory: the files that every trial of an experiment finds in its working directory.

``pack`` stores a directory once by content, as a plain tar file ``definition/<digest>.tar``; ``unpack`` makes it the
working directory of a trial. The digest is of names, kinds, executable bits and contents, so that times,
owners, the order of a listing, and the library that writes the tar file make no difference.

Links inside the directory stay links. A link that leads out of it is an error instead of being followed: what it leads
to may be large or secret, and would be a copy that nobody asked for. Names that differ only in case are packed; where
a worker's file system takes them for one, unpacking is an error and overwrites nothing.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.experiment.ignoring import (
    DEFAULT_IGNORES,
    DETERMINED_IGNORE_FILE,
    IGNORE_FILE,
    IgnoreRules,
)
from hopyard.objects import digests
from hopyard.storage import Store, files
from hopyard.storage.names import path_given
from hopyard.storage.oserrors import write_errors
from hopyard.storage.small import get_whole
from hopyard.storage.temporary import machine, sweep, temporary_name
from hopyard.wording import counted, describe_bytes, one_line, some_lines, some_names

MAX_BYTES = 96 * 2**20
"""Bytes of file contents that a model definition may have."""

Kind: TypeAlias = Literal["file", "directory", "link"]

_TYPES: dict[Kind, bytes] = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}
_DOMAIN = "hopyard.definition"
_FOLDER = "definition"
_LARGEST_SHOWN = 5
_PROBLEMS_SHOWN = 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Member:
    """A file, directory or link of a model definition.

    Attributes:
        path: from the top directory, separated by ``/``.
        kind: ``"file"``, ``"directory"`` or ``"link"``.
        size: bytes of a file.
        executable: whether the owner of a file may execute it.
        target: text of a link.
    """

    path: str
    kind: Kind
    size: int = 0
    executable: bool = False
    target: str = ""


@dataclass(frozen=True)
class Listing:
    """The contents of a model definition directory.

    Attributes:
        directory: absolute path.
        members: what is packed, in order of paths.
        ignore_files: paths of the ignore files that were read, from the top directory.
        ignored: paths that were left out, from the top directory; of a directory, with ``/`` at its end, only its own.
    """

    directory: Path
    members: tuple[Member, ...]
    ignore_files: tuple[str, ...]
    ignored: tuple[str, ...]

    @property
    def files(self) -> int:
        """Number of files."""
        return sum(member.kind == "file" for member in self.members)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(member.size for member in self.members)


@dataclass(frozen=True)
class Definition:
    """A model definition in a store.

    Attributes:
        digest: 64 hex digits, of the logical content.
        files: number of files.
        bytes: bytes of all files.
    """

    digest: str
    files: int
    bytes: int


def listing(
    directory: str | os.PathLike[str], store: Store | None = None, configuration: Sequence[Path] = ()
) -> Listing:
    """The files that ``pack`` takes from a directory. Nothing is stored.

    Args:
        directory: the model definition directory.
        store: is left out where its own directory is inside ``directory``.
        configuration: the files of the configuration, which counts by itself. Those inside ``directory`` are left out,
            so that a comment in them makes no other definition, but for those whose name is in a Python file there.

    Raises:
        UsageError: there is no such directory; nothing of it is left by the ignore rules; it has more than
            ``MAX_BYTES``; or it has something that cannot be packed. The message names everything that is wrong.
    """
    root = path_given(directory).absolute()
    what = f"the model definition directory {str(root)!r}"
    try:
        is_directory = stat.S_ISDIR(root.stat().st_mode)
    except OSError as error:
        raise UsageError(
            f"{what} cannot be read ({error.strerror}). Give the directory that holds the code of the trial."
        ) from None
    if not is_directory:
        raise UsageError(f"{what} is a file. Give the directory that holds it: {str(root.parent)!r}.")
    walk = _Walk(root, None if store is None else _own_directory(store, root))
    walk.visit("", IgnoreRules().with_file(DEFAULT_IGNORES.encode()))
    apart = _not_read_by_code(root, walk.members, configuration)
    members = sorted((each for each in walk.members if each.path not in apart), key=lambda each: each.path)
    listed = Listing(
        root, tuple(members), tuple(sorted(walk.ignore_files)), tuple(sorted([*walk.ignored, *apart]))
    )
    problems = [*([_oversize(listed)] if listed.bytes > MAX_BYTES else []), *walk.problems]
    if problems:
        lines = "\n  ".join(some_lines(problems, _PROBLEMS_SHOWN))
        raise UsageError(
            f"{what} cannot be packed:\n  {lines}\nMend this, or name in {IGNORE_FILE} what trials do not need."
        )
    if not listed.files:
        read = f" and {some_names(listed.ignore_files)}" if listed.ignore_files else ""
        raise UsageError(
            f"{what} has no file that the default ignore rules{read} leave. "
            "Give the directory that holds the code of the trial."
        )
    return listed


def pack(directory: str | os.PathLike[str], store: Store, configuration: Sequence[Path] = ()) -> Definition:
    """Store a model definition directory. The same content is stored once; what is damaged there is replaced.

    Args:
        configuration: as of ``listing``.

    Raises:
        UsageError: as ``listing``, or a file changed while it was read. Nothing was stored.
        StorageError: the store cannot be written.
    """
    listed = listing(directory, store, configuration)
    archive, index = io.BytesIO(), []
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in listed.members:
            content = _content(listed.directory, member) if member.kind == "file" else b""
            tar.addfile(_header(member), io.BytesIO(content))
            index.append(_indexed(member, content))
    name = digests.digest_json(index, _DOMAIN)
    if not store.exists(definition_object(name)):
        store.put_new(definition_object(name), archive.getbuffer())
    elif not _is_whole(store, name):
        store.put(definition_object(name), archive.getbuffer())
    return Definition(name, listed.files, listed.bytes)


def unpack(store: Store | bytes, digest: str, folder: Path) -> Path:
    """The working directory of a trial: unpacked below ``folder``, or as it was left there by an earlier call.

    Any number of processes may call it at once for the same ``folder``. A directory that a killed process, or a power
    cut, left unfinished is not used: the directory gets its name when it is whole, and another name after each start
    of the machine.

    Args:
        store: has the definition, or is the definition itself, as ``definition_archive`` gives it.
        digest: of a definition that ``pack`` stored.
        folder: for this trial alone; made if it is not there.

    Raises:
        NotFoundError: the store has no such definition.
        CorruptError: its bytes are not what was stored. Nothing was unpacked.
        UsageError: this file system takes two of its names for one.
        StorageError: ``folder`` cannot be written.
    """
    target = folder / machine()
    if target.is_dir():
        return target
    if isinstance(store, bytes):
        archive, where = store, "the model's definition"
    else:
        archive = definition_archive(store, digest)
        where = f"{store.url}/{definition_object(digest)}"
    with write_errors(target):
        files.make_directory(folder)
        sweep(str(folder))
        temporary = folder / temporary_name()
        files.new_directory(temporary)
        try:
            _extract(archive, digest, temporary, where)
            files.rename(temporary, target)
        except OSError:
            if not target.is_dir():  # no other process was faster
                raise
        finally:
            files.remove_tree(temporary)
    return target


def definition_archive(store: Store, digest: str) -> bytes:
    """The bytes that a store has of a definition.

    Raises:
        NotFoundError: it has no such definition.
    """
    return get_whole(store, definition_object(digest))


def places_of(text: str, store: Store, digest: str) -> list[str]:
    """Places where a text stands in the Python files of a definition, such as ``model_def.py, line 3``.

    Raises:
        NotFoundError: the store has no such definition.
        CorruptError: its bytes are not what was stored.
    """
    found = []
    archive, where = definition_archive(store, digest), f"{store.url}/{definition_object(digest)}"
    for member, content in _members(archive, digest, where):
        lines = bytes(content).split(b"\n") if member.path.endswith(".py") else []
        found += [
            f"{member.path}, line {number}"
            for number, line in enumerate(lines, 1)
            if text.encode() in line and not line.lstrip().startswith(b"#")
        ]
    return found


def files_that_differ(store: Store, before: str, now: str) -> dict[str, str]:
    """The files, directories and links of two definitions that differ, by their paths: ``"changed"``, ``"new"``, or
    ``"gone"``.

    Raises:
        NotFoundError: the store lacks one of them.
        CorruptError: the bytes of one are not what was stored.
    """
    old, new = (
        {member.path: _indexed(member, content) for member, content in _members(archive, digest, where)}
        for digest in (before, now)
        for archive, where in [
            (definition_archive(store, digest), f"{store.url}/{definition_object(digest)}")
        ]
    )
    return {
        path: "new" if path not in old else "gone" if path not in new else "changed"
        for path in sorted(old | new)
        if old.get(path) != new.get(path)
    }


def definition_object(digest: str) -> str:
    """Name of the object that holds a definition."""
    return f"{_FOLDER}/{digest}.tar"


def is_definition(name: str) -> bool:
    """Whether it is the name of an object that holds a definition."""
    return name.startswith(f"{_FOLDER}/")


def extract(store: Store, digest: str, folder: Path) -> None:
    """Unpack a definition into a new directory.

    Raises:
        What ``unpack`` raises, and StorageError if the directory is there.
    """
    archive = definition_archive(store, digest)
    with write_errors(folder):
        files.new_directory(folder)
        _extract(archive, digest, folder, f"{store.url}/{definition_object(digest)}")


def _indexed(member: Member, content: bytes | memoryview) -> list[str | bool]:
    """What the digest of a definition is of: one list for each member, in order of paths."""
    if member.kind == "file":
        return [member.path, member.kind, member.executable, digests.digest(content, _DOMAIN)]
    return [member.path, member.kind, member.target]


def _own_directory(store: Store, root: Path) -> str | None:
    """The directory of a store from ``root`` on, if it is inside."""
    path = store.path("definition")
    own = None if path is None else path.parent.resolve()
    if own is None or not own.is_relative_to(root.resolve()):
        return None
    if own == root.resolve():
        raise UsageError(
            f"the model definition directory {str(root)!r} is the store {store.url} itself, so that every run would "
            "be part of the next definition. Use a directory of its own for the store; it may be inside."
        )
    return str(own.relative_to(root.resolve()))


def _not_read_by_code(root: Path, members: Sequence[Member], configuration: Sequence[Path]) -> set[str]:
    """Those of the files of the configuration that are members, and whose name is in no Python file of them."""
    there = {root.resolve() / each.path: each for each in members if each.kind != "directory"}
    # Where its directory is, but not where a link leads: that is another file.
    places = [each.expanduser().parent.resolve() / each.name for each in configuration]
    apart = {there[place].path for place in places if place in there}
    if apart:
        code = [each for each in members if each.kind == "file" and each.path.endswith(".py")]
        texts = [_content(root, each) for each in code]
        apart = {
            path for path in apart if not any(posixpath.basename(path).encode() in text for text in texts)
        }
    return apart


# Listing


@dataclass
class _Walk:
    """Looks at everything below a directory that is not ignored."""

    root: Path
    left_out: str | None
    members: list[Member] = field(default_factory=list)
    ignore_files: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def visit(self, directory: str, rules: IgnoreRules) -> None:
        """Look at a directory, by its path from the root; the root's own is empty."""
        try:
            with os.scandir(self.root / directory) as found:
                entries = {f"{directory}/{entry.name}" if directory else entry.name: entry for entry in found}
        except OSError as error:
            self._refuse(directory or ".", f"cannot be read ({error.strerror})")
            return
        names = (f"{directory}/{IGNORE_FILE}",) if directory else (IGNORE_FILE, DETERMINED_IGNORE_FILE)
        ignore_file = next((name for name in names if name in entries), None)
        if ignore_file is not None:
            rules = self._with_file(ignore_file, directory, rules)
        for path, entry in entries.items():
            is_directory = entry.is_dir(follow_symlinks=False)
            if path == self.left_out or rules.ignore(os.fsencode(path), is_directory):
                self.ignored.append(path + "/" * is_directory)
            elif (member := self._member(path, entry)) is not None:
                self.members.append(member)
                if is_directory:
                    self.visit(path, rules)

    def _with_file(self, path: str, directory: str, rules: IgnoreRules) -> IgnoreRules:
        try:
            if not stat.S_ISREG((self.root / path).lstat().st_mode):
                self._refuse(path, "is an ignore file, and must be a regular file, as for git")
                return rules
            content = (self.root / path).read_bytes()
        except OSError as error:
            self._refuse(path, f"is an ignore file that cannot be read ({error.strerror})")
            return rules
        self.ignore_files.append(path)
        return rules.with_file(content, os.fsencode(directory))

    def _member(self, path: str, entry: os.DirEntry[str]) -> Member | None:
        """The entry as it is packed; None, and a problem, if it cannot be."""
        try:
            status = entry.stat(follow_symlinks=False)
            target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""  # noqa: PTH115 - as written
            f"{path}{target}".encode()
            if stat.S_ISDIR(status.st_mode):
                return Member(path, "directory")
            if target:
                problem = self._problem_of_link(path, target)
                if problem is None:
                    return Member(path, "link", target=target)
                self._refuse(path, problem)
            elif stat.S_ISREG(status.st_mode):
                os.close(os.open(entry.path, _READ))
                return Member(path, "file", status.st_size, bool(status.st_mode & stat.S_IXUSR))
            else:
                self._refuse(
                    path, "is a socket, pipe or device; only files, directories and links are packed"
                )
        except UnicodeEncodeError:
            self._refuse(
                path, "has a name or target that is not UTF-8, which not all machines can show and store"
            )
        except OSError as error:
            self._refuse(path, f"cannot be read ({error.strerror})")
        return None

    def _problem_of_link(self, path: str, target: str) -> str | None:
        try:
            (self.root / path).stat()
        except OSError as error:  # such as of a link to what is not there, which is packed
            if error.errno == errno.ELOOP:
                return f"is a link to {target}, which leads back to it; remove it"
        if not (self.root / path).parent.joinpath(target).resolve().is_relative_to(self.root.resolve()):
            return f"is a link out of the directory, to {target}; put a copy there, or use bind_mounts"
        if target.startswith("/"):
            return f"is a link to {target}, which is no place on other machines; make it relative (ln -sr)"
        return None

    def _refuse(self, path: str, problem: str) -> None:
        self.problems.append(f"{one_line(path)} {one_line(problem)}")


def _oversize(listed: Listing) -> str:
    largest = sorted(listed.members, key=lambda member: (-member.size, member.path))[:_LARGEST_SHOWN]
    shown = ", ".join(f"{one_line(member.path)} ({describe_bytes(member.size)})" for member in largest)
    return (
        f"{counted(listed.bytes, 'byte')} are in {counted(listed.files, 'file')}, but at most {MAX_BYTES:,} (96 x "
        f"2^20) may be; the largest are {shown}; trials reach other data by context.download, context.stream or "
        "bind_mounts"
    )


# Packing


def _content(root: Path, member: Member) -> bytes:
    """The bytes of a file that nobody writes to meanwhile."""
    try:
        with os.fdopen(os.open(root / member.path, _READ), "rb") as file:
            before = os.fstat(file.fileno())
            content = file.read(member.size + 1)
            after = os.fstat(file.fileno())
    except OSError as error:
        problem = f"cannot be read any more ({error.strerror})"
    else:
        if len(content) == member.size and before.st_mtime_ns == after.st_mtime_ns:
            return content
        problem = "changed while it was read"
    raise UsageError(
        f"{member.path} in the model definition directory {str(root)!r} {problem}, so nothing was stored. Let nothing "
        f"write there meanwhile, or name the file in {IGNORE_FILE}."
    )


def _header(member: Member) -> tarfile.TarInfo:
    """The member in a tar file, without times and owners."""
    header = tarfile.TarInfo(member.path)
    header.type = _TYPES[member.kind]
    header.mode = 0o755 if member.executable or member.kind == "directory" else 0o644
    header.size, header.linkname = member.size, member.target
    return header


# Unpacking


def _extract(archive: bytes, digest: str, folder: Path, where: str) -> None:
    """Write all members below a new directory, once they are known to be those of the digest."""
    contents = _members(archive, digest, where)
    # Links last, so that nothing is written through one.
    for member, content in sorted(contents, key=lambda pair: pair[0].kind == "link"):
        try:
            _write(folder / member.path, member, content)
        except FileExistsError:
            raise UsageError(
                f"the file system of {folder.parent} takes {member.path!r} and another name of the model definition "
                "for one, maybe since it does not tell upper from lower case. Rename one of them and create the "
                "experiment again, or have trials work in another file system."
            ) from None


def _members(archive: bytes, digest: str, where: str) -> list[tuple[Member, memoryview]]:
    """The members and their contents, once they are known to be those of the digest."""
    view = memoryview(archive)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            contents = [(_read_header(each), view[each.offset_data :][: each.size]) for each in tar]
    except (tarfile.TarError, UnicodeError, KeyError, ValueError) as error:
        raise _corrupt(where, f"is no whole tar file of a model definition ({error})") from None
    if digests.digest_json([_indexed(*pair) for pair in contents], _DOMAIN) != digest:
        raise _corrupt(where, "does not have the digest that names it")
    return contents


def _is_whole(store: Store, digest: str) -> bool:
    """Whether a definition is there, and is what was stored; another process may delete it at any time."""
    try:
        _members(definition_archive(store, digest), digest, store.url)
    except (CorruptError, NotFoundError):
        return False
    return True


def _read_header(header: tarfile.TarInfo) -> Member:
    """The member of a header.

    Raises:
        ValueError: it is, or leads, out of the directory.
        KeyError: it is none that ``pack`` writes.
    """
    kind = {of_tar: kind for kind, of_tar in _TYPES.items()}[header.type]
    target = header.linkname if kind == "link" else ""
    for path in (header.name, f"{header.name}/../{target}"):
        normal = posixpath.normpath(path)
        if path.startswith("/") or "\0" in path or normal.split("/")[0] == "..":
            raise ValueError(f"{path!r} leaves the directory")
    if target.startswith("/"):
        raise ValueError(f"{target!r} leaves the directory")
    return Member(header.name, kind, header.size, bool(header.mode & stat.S_IXUSR), target)


def _write(path: Path, member: Member, content: memoryview) -> None:
    if member.kind == "directory":
        files.new_directory(path)
    elif member.kind == "link":
        path.symlink_to(member.target)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o777 if member.executable else 0o666)  # less the umask
        try:
            files.write_pieces(fd, [content])
        finally:
            os.close(fd)


def _corrupt(where: str, problem: str) -> CorruptError:
    return CorruptError(
        f"{where} {problem}: it was changed or cut off. Create the experiment again from its directory, which stores "
        "it anew."
    )
