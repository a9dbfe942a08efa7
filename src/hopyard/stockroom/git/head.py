"""``head.stock``: a few plain lines that say at which branch and commit a working tree is.

::

    # StockRoom: the data, models and experiments that belong to this working tree (hopyard stock status)
    branch main
    commit 3f0c...

A missing ``branch`` means detached, ``commit none`` that there is none yet; a file without a ``commit`` was emptied or
cut off. Lines that begin with ``#`` are comments, and the user's own are kept. People edit this file and git merges it,
so it is read tolerantly (byte order mark, CRLF, blank lines, spaces at the ends), but never guessed at.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import CorruptError, UsageError
from hopyard.storage import files
from hopyard.storage.oserrors import read_error, write_errors
from hopyard.storage.temporary import is_alive, machine, temporary_name

HEAD_NAME = "head.stock"

_TITLE = (
    "# StockRoom: the data, models and experiments that belong to this working tree (hopyard stock status)"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NONE = "none"
_MARKER = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)|^={7}$", re.MULTILINE)
_IN_CONFLICT = re.compile(r"^commit +([0-9A-Fa-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class Head:
    """Where a working tree is.

    Attributes:
        branch: its name, or None: detached.
        commit: 64 lower-case hex digits, or None: no commit yet.
    """

    branch: str | None
    commit: str | None


def read(file: Path) -> Head:
    """What ``file`` says.

    Raises:
        UsageError: it holds a conflict of git; says how to merge.
        CorruptError: lines that mean nothing here, or no ``commit``; StorageError: it cannot be read.
    """
    return _parse(_text(file), file)[0]


def parse(data: bytes, file: Path) -> Head:
    """The same of bytes; ``file`` is for messages."""
    return _parse(_decoded(data, file), file)[0]


def write(file: Path, head: Head) -> None:
    """Replace ``file`` durably: after a crash there is the old or the new content. Equal content is not written anew.

    The mode of a file that is there stays, a new one honours the umask, a link stays one, comments are kept.

    Raises:
        UsageError: ``head`` cannot be written as lines, or the file holds a conflict.
        CorruptError: the file holds what is not understood here; it was left as it is.
        StorageError: the file cannot be written.
    """
    file = Path(os.path.realpath(file))
    comments = (_parse(_text(file), file)[1] if file.exists() else []) or [_TITLE]
    data = "".join(line + "\n" for line in [*comments, *lines_of(head)]).encode()
    with write_errors(file):
        if not file.exists() or file.read_bytes() != data:
            _replace(file, data)


def lines_of(head: Head) -> list[str]:
    """The lines that say where a working tree is.

    Raises:
        UsageError: ``head`` cannot be written as lines.
    """
    if head.commit is not None and not _DIGEST.fullmatch(head.commit):
        raise UsageError(f"{head.commit!r} is not a commit: give all its 64 lower-case hex digits.")
    branch = [] if head.branch is None else [f"branch {_checked_branch(head.branch)}"]
    return [*branch, f"commit {head.commit or _NONE}"]


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise read_error(str(file), error) from error
    return _decoded(data, file)


def _decoded(data: bytes, file: Path) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CorruptError(
            f"{file} is not UTF-8 text: it begins with {data[:20]!r}. {_restore(file)}"
        ) from None
    return "\n".join(line.strip(" \t") for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def _parse(text: str, file: Path) -> tuple[Head, list[str]]:
    """The head, and the comments."""
    if _MARKER.search(text):
        raise UsageError(_conflict(text, file))
    found: dict[str, str] = {}
    comments = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            comments.append(line)
        if not line or line.startswith("#"):
            continue
        word, value = (*re.split(r"[ \t]+", line, maxsplit=1), "")[:2]
        if word not in ("branch", "commit") or not value:
            raise CorruptError(
                f"line {number} of {file} is {line[:80]!r}, but only 'branch NAME' and 'commit DIGEST' mean "
                f"something there. {_restore(file)}"
            )
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
    return Head(found.get("branch"), None if found["commit"] == _NONE else found["commit"]), comments


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
    commits = list(dict.fromkeys(_IN_CONFLICT.findall(text)))
    theirs = commits[-1] if commits else "THE_OTHER_COMMIT"
    between = f" between {' and '.join(f'{commit[:12]}' for commit in commits)}" if len(commits) > 1 else ""
    return (
        f"{file} holds a merge conflict of git{between}: two versions of the data are to be merged. "
        f"Take one side, merge the other, and tell git:\n"
        f"    git checkout --ours -- {file.name}\n"
        f"    hopyard stock merge {theirs}\n"
        f"    git add {file.name}\n"
        "Or take one side's lines by hand. With the merge driver git does this by itself: "
        "hopyard stock init shows how to install it."
    )


def _replace(file: Path, data: bytes) -> None:
    _sweep(file)
    temporary = f"{file}{temporary_name()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(file.stat().st_mode))
        files.write_all(descriptor, data)
        Path(temporary).replace(file)
    except BaseException:
        files.unlink_quietly(temporary)
        raise
    finally:
        os.close(descriptor)
    files.sync(file.parent)


def _sweep(file: Path) -> None:
    """Remove what killed writers of this machine left beside ``file``."""
    beginning = f"{file.name}.tmp-{machine()}-"
    for left in file.parent.iterdir():
        pid = left.name.removeprefix(beginning).partition("-")[0]
        if left.name.startswith(beginning) and pid.isdigit() and not is_alive(int(pid)):
            files.unlink_quietly(str(left))
