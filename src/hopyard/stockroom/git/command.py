"""The one function through which git is run; it knows few subcommands, and all but one only read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hopyard.errors import StorageError
from hopyard.stockroom.git.layout import GitFolders, locate

_ALLOWED = (
    ("cat-file", "--batch"),
    ("check-attr", "-z", "merge"),
    ("config", "--get"),
    ("log",),
    ("ls-files", "--stage"),
    ("rev-parse", "--verify"),
    ("status",),
    ("symbolic-ref", "--quiet", "--short", "HEAD"),
    ("var", "GIT_AUTHOR_IDENT"),
    # Writes; only `driver.install` asks for it.
    ("config", "--local", "merge.hopyard.name"),
    ("config", "--local", "merge.hopyard.driver"),
    ("config", "--local", "merge.hopyard.recursive"),
)

_SETTINGS = (
    "-c", "core.fsmonitor=false",
    "-c", "log.showSignature=false",
    "-c", "log.follow=false",
    "-c", "log.diffMerges=separate",
)  # fmt: skip

GitAnswer = subprocess.CompletedProcess[bytes]
AskedGit = Callable[[bytes, float | None], GitAnswer | None]
"""Waits for a git that was started, given its standard input, and how many seconds it may take from now on."""

_NAME = "git"
_programs: dict[str, str] = {}  # by PATH

# Variables that tie git to one repository: they must not lead a call for another one astray.
_PATHS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
_TIED = (
    *_PATHS,
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_CONFIG",
)


def installed() -> bool:
    """Whether there is a program ``git``."""
    return _program() != _NAME


def _program() -> str:
    """The path of ``git``, or its bare name if it is nowhere. Each commit runs it, and looking takes a while."""
    path = os.environ.get("PATH", os.defpath)
    if path not in _programs and (found := shutil.which(_NAME, path=path)) is not None:
        _programs[path] = found
    return _programs.get(path, _NAME)


def ask(
    folder: Path, *arguments: str, given: bytes = b"", seconds: float | None = None, index: Path | None = None
) -> GitAnswer | None:
    """Run ``git ARGUMENTS`` in ``folder``; its exit status is the caller's to judge. None: it took too long.

    Args:
        given: its standard input.
        seconds: how long it may take; None: as long as it needs.
        index: the file that is the index, instead of the working tree's own.

    Raises:
        StorageError: git is not installed, or refuses the repository for its owner.
    """
    with asking(folder, *arguments, index=index) as answer:
        return answer(given, seconds)


@contextmanager
def asking(folder: Path, *arguments: str, index: Path | None = None) -> Iterator[AskedGit]:
    """Run ``git ARGUMENTS`` while something else is done; gives what waits for the answer, once. At the end git is
    killed if nobody has.

    Nothing is fetched, no lock is taken, no pager, hook or monitor is started. Arguments and errors as of :func:`ask`.
    """
    if not any(arguments[: len(allowed)] == allowed for allowed in _ALLOWED):
        raise AssertionError(f"git {' '.join(arguments)} is not among the commands that Hopyard may run")
    environment = _environment(locate(folder))
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    options = ["--no-pager", "--no-replace-objects", *_SETTINGS]
    try:
        git = subprocess.Popen(
            [_program(), *options, *arguments], cwd=folder, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except FileNotFoundError:
        raise StorageError(
            f"git is needed to look at the repository of {folder}, but no program git is on the PATH. Install git."
        ) from None
    with git:
        try:
            yield partial(_answer, git, folder)
        finally:
            git.kill()  # nothing, where it has ended and was waited for


def _answer(
    git: subprocess.Popen[bytes], folder: Path, given: bytes, seconds: float | None
) -> GitAnswer | None:
    try:
        out, said = git.communicate(given, seconds)
    except subprocess.TimeoutExpired:
        return None
    answer = subprocess.CompletedProcess(git.args, git.returncode, out, said)
    if owner := re.search(rb"detected dubious ownership in repository at '(.+?)'", answer.stderr):
        raise StorageError(
            f"git does not read {os.fsdecode(owner[1])}, because it belongs to another user. If you trust what is in "
            f"it: git config --global --add safe.directory {os.fsdecode(owner[1])}"
        )
    return answer


def demand(folder: Path, *arguments: str, given: bytes = b"", index: Path | None = None) -> bytes:
    """The output of ``git ARGUMENTS``.

    Raises:
        StorageError: as `ask`, or git failed; brings what git said.
    """
    answer = ask(folder, *arguments, given=given, index=index)
    if answer is None or answer.returncode != 0:
        said = "" if answer is None else answer.stderr.decode(errors="replace").strip()[-2000:]
        raise StorageError(
            f"git {arguments[0]} failed in {folder}: {said or 'it gave no reason'}\n"
            f"Look at what is wrong with the repository: git -C {folder} fsck"
        )
    return answer.stdout


def _environment(layout: GitFolders | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _TIED}
    if layout is not None and layout.given:
        environment |= {name: os.environ[name] for name in _TIED if name in os.environ}
        environment |= {name: os.path.realpath(os.environ[name]) for name in _PATHS if os.environ.get(name)}
        environment["GIT_WORK_TREE"] = str(layout.top)
    return environment | {
        "LC_ALL": "C",  # messages are looked into
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        # A partial clone must not fetch here; git before 2.45 knows only the second.
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
    }
