"""Facts of git that a commit records: git's commit, branch, whether files differ from it, and the author."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hopyard.stockroom.git.command import GitAnswer, ask, asking, installed
from hopyard.stockroom.git.head import HEAD_NAME
from hopyard.stockroom.git.place import Place
from hopyard.storage.oserrors import read_error
from hopyard.storage.small import read_small

_SECONDS = 10.0


@dataclass(frozen=True)
class GitFacts:
    """Commit and branch of git, and whether files differ; all None without git.

    Attributes:
        commit: full hex digits of git's commit, or None: there is none yet.
        branch: git's branch, or None: detached.
        dirty: whether tracked files other than ``head.stock`` differ from the commit; None: not known, because there
            is no working tree, or git took longer than allowed.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


def facts(place: Place, seconds: float = _SECONDS) -> GitFacts:
    """The facts of git about the working tree. Waits at most ``seconds`` for dirty files, and takes no lock.

    Raises:
        StorageError: git refuses to read the repository; says what to do.
    """
    with finding(place, seconds) as found:
        return found()


@contextmanager
def finding(place: Place, seconds: float = _SECONDS) -> Iterator[Callable[[], GitFacts]]:
    """The same while something else is done: gives what waits for it, once. git looks from the beginning on."""
    if place.git is None or not installed():
        yield GitFacts
        return
    with asking(
        place.root,
        "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no",
        "--", ":(top)", f":(top,exclude,glob)**/{HEAD_NAME}",
    ) as answer:  # fmt: skip
        yield lambda: _read(place, answer(b"", seconds))


def _read(place: Place, status: GitAnswer | None) -> GitFacts:
    if status is None or status.returncode != 0:  # too slow, or a bare repository
        commit = _line(place, "rev-parse", "--verify", "--quiet", "HEAD")
        branch = _line(place, "symbolic-ref", "--quiet", "--short", "HEAD")
        return GitFacts(commit, branch)
    lines = status.stdout.decode(errors="replace").split("\0")
    header = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit, branch = header["branch.oid"], header["branch.head"]
    return GitFacts(
        None if commit == "(initial)" else commit,
        None if branch == "(detached)" else branch,
        any(line and not line.startswith("# ") for line in lines),
    )


def current_branch(place: Place) -> str | None:
    """git's branch, read from its files; None: detached, or no git."""
    if place.git_own is None:
        return None
    head = place.git_own / "HEAD"
    try:
        text = os.fsdecode(read_small(head)).strip()
    except OSError as error:
        raise read_error(str(head), error) from error
    if not text.startswith("ref:"):
        return None
    name = text.removeprefix("ref:").strip().removeprefix("refs/heads/")
    # In a repository whose references are tables, the file only says that git is to be asked.
    return _line(place, "symbolic-ref", "--quiet", "--short", "HEAD") if name == ".invalid" else name


def branch_like(git: str | None) -> str:
    """The branch here that belongs to a branch of git: that of the same name; to ``master``, and to none, ``main``."""
    return "main" if git in (None, "master") else str(git)


def _line(place: Place, *arguments: str) -> str | None:
    answer = ask(place.root, *arguments, seconds=_SECONDS)
    return answer.stdout.decode(errors="replace").strip() or None if answer else None


def author(place: Place) -> str:
    """``Name <e-mail>`` as git would write it into a commit; where git knows nobody, the user and the host."""
    if installed():
        answer = ask(place.root, "var", "GIT_AUTHOR_IDENT", seconds=_SECONDS)
        known = re.match(rb"(.+ <.*>) \d+ [+-]\d{4}$", answer.stdout.strip()) if answer else None
        if known:
            return known[1].decode(errors="replace")
    user = _user()
    name = os.environ.get("GIT_AUTHOR_NAME") or user
    return f"{name} <{os.environ.get('GIT_AUTHOR_EMAIL') or f'{user}@{socket.gethostname()}'}>"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"uid-{os.getuid()}"
