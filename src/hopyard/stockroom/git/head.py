"""``head.stock``: a few plain lines that say which stockroom a working tree is of, and at which branch and commit.

::

    # StockRoom: the data, models and experiments that belong to this working tree (hopyard stock status)
    stockroom 5d0e3a86c2f41b97
    branch main
    git main
    commit 3f0c...

``stockroom`` is made once, and stays when folders are renamed, copied or cloned; ``git`` is the branch of git at which
the file was written, and missing where git was at none, or not there. A missing ``branch`` means detached,
``commit none`` that there is none yet; a file without a ``commit`` was emptied or cut off. ``unmerged COMMIT``, or
``unmerged COMMIT BASE``, is a side that git merged here and whose data, or the change to them from BASE, conflicted:
they are not here. Lines that begin with ``#`` are comments, and the user's own are kept. People edit this file and git
merges it, so it is read tolerantly (byte order mark, CRLF, blank lines, spaces at the ends), but never guessed at.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from hopyard.errors import CorruptError, HopyardError, UsageError
from hopyard.storage import files
from hopyard.storage.names import TEMPORARY_PREFIX
from hopyard.storage.oserrors import read_error, write_errors
from hopyard.storage.small import read_small
from hopyard.storage.temporary import sweep, temporary_name

HEAD_NAME = "head.stock"

_TITLE = (
    "# StockRoom: the data, models and experiments that belong to this working tree (hopyard stock status)"
)
_BLANKS = re.compile(r"[ \t]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STOCKROOM = re.compile(r"^stockroom +([0-9A-Fa-f]{16})$", re.MULTILINE)
_UNMERGED = re.compile(r"unmerged +([0-9a-f]{64})(?: +([0-9a-f]{64}))?")
_NONE = "none"
_MARKER = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)|^={7}$", re.MULTILINE)
_IN_CONFLICT = re.compile(r"^commit +([0-9A-Fa-f]{64})$", re.MULTILINE)
# git merges several common versions into one that has conflicts, whose markers are longer, and may show their own base.
_ANY_MARKER = re.compile(r"^(?:<{7,}|>{7,}|={7,})(?: |$)", re.MULTILINE)
_SHOWN_BASE = re.compile(r"^\|{7,}(?: .*)?\n(?:(?!={7,}$).*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Head:
    """The branch and the commit of a working tree.

    Attributes:
        branch: its name, or None: detached.
        commit: 64 lower-case hex digits, or None: no commit yet.
        git: the branch of git at which this was written, or None: at none.
        unmerged: commits whose data git's merges did not bring, since they conflicted, each with its base or None.
    """

    branch: str | None
    commit: str | None
    git: str | None = None
    unmerged: tuple[tuple[str, str | None], ...] = field(default=(), compare=False)


def new_id() -> str:
    """The id of a new stockroom."""
    return secrets.token_hex(8)


def id_of(file: Path) -> str | None:
    """The id of the stockroom that ``file`` belongs to, also if the file holds a conflict; None: it names none, or two,
    or cannot be read."""
    try:
        found = set(_STOCKROOM.findall(_text(file)))
    except HopyardError:
        return None
    return str(found.pop()).lower() if len(found) == 1 else None


def read(file: Path) -> Head:
    """The content of ``file``.

    Raises:
        UsageError: it holds a conflict of git; says how to merge.
        CorruptError: lines that mean nothing here, or no ``commit``; StorageError: it cannot be read.
    """
    return _parse(_text(file), file)[0]


def read_bases(file: Path) -> list[str]:
    """The commits of a common version, as git gives one to a merge driver: none if there is no version or no commit,
    several if git has several common versions.

    Raises:
        CorruptError: lines that mean nothing here; StorageError: it cannot be read.
    """
    text = _text(file)
    if _ANY_MARKER.search(text):
        return sorted({commit.lower() for commit in _IN_CONFLICT.findall(_SHOWN_BASE.sub("", text))})
    commit = read(file).commit if text.strip() else None
    return [] if commit is None else [commit]


def parse(data: bytes, file: Path) -> Head:
    """The head that the bytes of a ``head.stock`` say; ``file`` is for messages."""
    return _parse(_decoded(data, file), file)[0]


def write_beside(file: Path, head: Head) -> str | None:
    """Write what ``write`` would write into a file beside ``file``, durably, so that no space is needed later.

    Returns:
        The name of the file beside; None: ``file`` says that already.

    Raises:
        as ``write``; nothing was left beside ``file``.
    """
    file = Path(os.path.realpath(file))
    data = _content(file, head, None)
    with write_errors(file):
        if file.exists() and file.read_bytes() == data:
            return None
        sweep(str(file.parent), file.name)
        return _written_beside(file, data)


def discard(file: Path, prepared: str | None) -> None:
    """Remove a file that ``write_beside`` wrote, if it is still there."""
    path = _beside(Path(os.path.realpath(file)), prepared)
    if path is not None:
        files.unlink_quietly(str(path))


def write(file: Path, head: Head, room_id: str | None = None, prepared: str | None = None) -> None:
    """Replace ``file`` durably: after a crash there is the old or the new content. Equal content is not written anew.

    The mode of a file that is there stays, a new one honours the umask, a link stays one, comments and the id of the
    stockroom are kept.

    Args:
        room_id: the id of the stockroom, for a file that has none yet.
        prepared: a name that ``write_beside`` gave: a file of the right content, which then only gets another name.

    Raises:
        UsageError: ``head`` cannot be written as lines, or the file holds a conflict.
        CorruptError: the file holds what is not understood here; it was left as it is.
        StorageError: the file cannot be written.
    """
    file = Path(os.path.realpath(file))
    data = _content(file, head, room_id)
    ready = _beside(file, prepared)
    with write_errors(file):
        if not file.exists() or file.read_bytes() != data:
            if ready is not None and _bytes_of(ready) == data:
                files.rename(ready, file)
            else:
                _replace(file, data)
            files.sync(file.parent)
        elif ready is not None:
            files.unlink_quietly(str(ready))


def mark_unmerged(file: Path, add: Collection[tuple[str, str | None]], remove: Collection[str] = ()) -> None:
    """Add to ``file`` what git's merge did not bring, and take out what is merged now.

    Args:
        add: commits, each with its base or None.
        remove: commits, whatever their bases.

    Raises:
        as ``write``.
    """
    file = Path(os.path.realpath(file))
    head, kept = _parse(_text(file), file)
    unmerged = [pair for pair in head.unmerged if pair[0] not in remove]
    unmerged += [pair for pair in add if pair not in unmerged]
    lines = [line for line in kept if not _UNMERGED.fullmatch(line)]
    lines += [" ".join(("unmerged", *filter(None, pair))) for pair in unmerged]
    data = "".join(line + "\n" for line in [*(lines or [_TITLE]), *lines_of(head)]).encode()
    with write_errors(file):
        if file.read_bytes() != data:
            _replace(file, data)
            files.sync(file.parent)


def _content(file: Path, head: Head, room_id: str | None) -> bytes:
    lines = [*(_parse(_text(file), file)[1] if file.exists() else ())] or [_TITLE]
    if room_id is not None and not any(_STOCKROOM.fullmatch(line) for line in lines):
        lines.append(f"stockroom {room_id}")
    return "".join(line + "\n" for line in [*lines, *lines_of(head)]).encode()


def lines_of(head: Head) -> list[str]:
    """The lines that say where a working tree is.

    Raises:
        UsageError: ``head`` cannot be written as lines.
    """
    if head.commit is not None and not _DIGEST.fullmatch(head.commit):
        raise UsageError(f"{head.commit!r} is not a commit: give all its 64 lower-case hex digits.")
    named = [
        f"{word} {_checked_branch(name)}"
        for word, name in (("branch", head.branch), ("git", head.git))
        if name is not None
    ]
    return [*named, f"commit {head.commit or _NONE}"]


def _text(file: Path) -> str:
    try:
        data = read_small(file)
    except OSError as error:
        raise read_error(str(file), error) from error
    return _decoded(data, file)


def _decoded(data: bytes, file: Path) -> str:
    try:
        # The codec "utf-8-sig" would have to be imported first.
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise CorruptError(
            f"{file} is not UTF-8 text: it begins with {data[:20]!r}. {_restore(file)}"
        ) from None
    return "\n".join(line.strip(" \t") for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


@lru_cache(maxsize=16)  # each commit reads the same few lines six times
def _parse(text: str, file: Path) -> tuple[Head, tuple[str, ...]]:
    """The head; and the lines that stay: comments, the id of the stockroom, and what is not merged."""
    if _MARKER.search(text):
        raise UsageError(_conflict(text, file))
    found: dict[str, str] = {}
    comments = []
    unmerged: list[tuple[str, str | None]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            comments.append(line)
        if not line or line.startswith("#"):
            continue
        word, value = (*_BLANKS.split(line, maxsplit=1), "")[:2]
        if (pair := _UNMERGED.fullmatch(f"{word} {value}")) is not None:
            comments.append(line)
            unmerged.append((pair[1], pair[2]))
            continue
        is_id = _STOCKROOM.fullmatch(f"{word} {value}") is not None
        if (word not in ("branch", "git", "commit") and not is_id) or not value:
            raise CorruptError(
                f"line {number} of {file} is {line[:80]!r}, but only 'stockroom ID' (16 hex digits), 'branch NAME', "
                f"'git BRANCH', 'commit DIGEST' and 'unmerged DIGEST' mean something there. {_restore(file)}"
            )
        if is_id:
            comments.append(line)
        if word in found:
            raise CorruptError(
                f"{file} has two lines '{word} ...' ({found[word]!r} and {value!r}), but a working tree is at one "
                f"{word}. Remove the wrong line."
            )
        if word == "commit":
            value = value.lower()
            if value != _NONE and not _DIGEST.fullmatch(value):
                raise CorruptError(
                    f"line {number} of {file} names the commit {value[:80]!r} ({len(value)} characters), but a commit "
                    f"has 64 hex digits. {_restore(file)}"
                )
        found[word] = value
    if "commit" not in found:
        # Never taken for "nothing is committed yet": an emptied file would look like a new stockroom.
        raise CorruptError(
            f"{file} {'is empty' if not text.strip() else 'has no line that begins with commit'}, so it does not say "
            f"where this working tree is. {_restore(file)}"
        )
    commit = None if found["commit"] == _NONE else found["commit"]
    return Head(found.get("branch"), commit, found.get("git"), tuple(unmerged)), tuple(comments)


def _checked_branch(name: str) -> str:
    """``name`` if a line can hold it: what is read back must be what was written."""
    odd = any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name)
    if odd or not name or name != name.strip():
        raise UsageError(
            f"the branch name {name!r} cannot stand in {HEAD_NAME}: it is empty, begins or ends with white space, or "
            "has a line break or control character. Use another name."
        )
    return name


def _restore(file: Path) -> str:
    return (
        f"Take an older version of it (git checkout HEAD -- {file.name}), or let this write what it most likely said: "
        "hopyard stock verify --repair"
    )


def _conflict(text: str, file: Path) -> str:
    commits = list(dict.fromkeys(_IN_CONFLICT.findall(_SHOWN_BASE.sub("", text))))
    between = f" between {' and '.join(f'{commit[:12]}' for commit in commits)}" if len(commits) > 1 else ""
    return (
        f"{file} holds a merge conflict of git{between}: two versions of the data are to be merged. Let git call "
        f"Hopyard for that, and merge again, in {file.parent}:\n"
        "    hopyard stock init --git-driver\n"
        f"    git checkout --merge -- {file.name}\n"
        f"    git add {file.name}\n"
        "Or take one side's lines by hand: then the data are those of that side."
    )


def _replace(file: Path, data: bytes) -> None:
    sweep(str(file.parent), file.name)
    temporary = file.with_name(_written_beside(file, data))
    try:
        files.rename(temporary, file)
    except BaseException:
        files.unlink_quietly(str(temporary))
        raise


def _written_beside(file: Path, data: bytes) -> str:
    """Write a file that is to replace ``file``, with its mode; the name."""
    temporary = f"{file}{temporary_name()}"
    descriptor = files.create(temporary)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(file.stat().st_mode))
        files.write_all(descriptor, data)
    except BaseException:
        files.unlink_quietly(temporary)
        raise
    finally:
        os.close(descriptor)
    return Path(temporary).name


def _beside(file: Path, prepared: str | None) -> Path | None:
    """The file that was prepared for ``file``; None: there is no name, or it is none that ``write_beside`` gives."""
    is_named = prepared is not None and prepared.startswith(f"{file.name}{TEMPORARY_PREFIX}")
    return file.with_name(prepared) if is_named and prepared and "/" not in prepared else None


def _bytes_of(file: Path) -> bytes | None:
    try:
        return read_small(file)
    except (OSError, CorruptError):
        return None
