"""Revisions: what people write for a commit.

========================  ====================================================================
``HEAD``                  where the working tree is
``main``, ``v1``          a branch, a tag
``origin/main``           where a remote's branch was when it was last fetched or pushed
``heads/x``, ``tags/x``   the branch or the tag, where both have the name
64 hex digits             the commit
4 and more hex digits     the one commit that begins so, if nothing else is named so
``<revision>~3``          three before it, always by the first parent
``<revision>^2``          its second parent
========================  ====================================================================
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.history.references import References
from hopyard.stockroom.packfiles import Objects
from hopyard.wording import shown

_STEPS = re.compile(r"(?P<start>[^~^]+)(?P<steps>(?:[~^][0-9]*)*)")
_STEP = re.compile(r"([~^])([0-9]*)")
_BEGINNING = re.compile(r"[0-9a-f]{4,64}")
_KINDS = ("heads", "tags", "remotes")
_SHOWN = 12  # hex digits


def resolve(objects: Objects, references: References, revision: str, head: str | None = None) -> str:
    """The digest of the commit that ``revision`` means.

    Args:
        head: the commit that ``HEAD`` is; None: there is none yet.

    Raises:
        NotFoundError: nothing is called so, or more than one thing is; says what is near, or which they are.
        UsageError: it is no revision.
    """
    found = _STEPS.fullmatch(revision.strip()) if isinstance(revision, str) else None
    if found is None:
        raise UsageError(
            f"{shown(revision)} is no revision. Give a branch, a tag, REMOTE/BRANCH, a commit's digest or how it "
            "begins, or HEAD; with ~2 behind it for two commits before, with ^2 for the second parent."
        )
    digest = _start(objects, references, found["start"], head)
    name = found["start"]
    for sign, number in _STEP.findall(found["steps"]):
        digest = _step(objects, digest, name, sign, int(number or 1))
        name += sign + number
    return digest


def _step(objects: Objects, digest: str, name: str, sign: str, number: int) -> str:
    if sign == "~":
        for done in range(number):
            parents = read_commit(objects, digest).parents
            if not parents:
                raise NotFoundError(
                    f"{name}~{number} is before the first commit: {done} come before {name}. "
                    "The log shows all: hopyard stock log."
                )
            digest = parents[0]
        return digest
    parents = (digest, *read_commit(objects, digest).parents)
    if number >= len(parents):
        raise NotFoundError(
            f"{name}^{number} is not there: {name} ({_shown(objects, digest)}) has {len(parents) - 1} parents."
        )
    return parents[number]


def _start(objects: Objects, references: References, name: str, head: str | None) -> str:
    if name == "HEAD":
        if head is None:
            raise NotFoundError(
                "HEAD means no commit: nothing is committed yet. Commit first: hopyard stock commit."
            )
        return head
    called = _called(references, name)
    if len(set(called.values())) > 1:
        raise _ambiguous(objects, name, called)
    if called:
        return next(iter(called.values()))
    beginning = name.lower()
    commits = []
    if _BEGINNING.fullmatch(beginning):
        # One that is known by its whole digest may have to be fetched, which reading it does.
        commits = [beginning] if len(beginning) == 64 else objects.beginning(beginning, "commit")
    if len(commits) > 1:
        raise _ambiguous(objects, name, {digest: digest for digest in commits})
    if not commits:
        raise _unknown(
            name, [*dict.fromkeys(each for kind in _KINDS for each in references.names(kind)), "HEAD"]
        )
    return read_commit(objects, commits[0]).digest


def _called(references: References, name: str) -> dict[str, str]:
    """The references that may be called so, by full name, and their commits."""
    found = {}
    for full in (name, *(f"{kind}/{name}" for kind in _KINDS)):
        with contextlib.suppress(UsageError):  # none can have this name
            commit = references.tip(full).commit
            if commit is not None:
                found[full] = commit
    return found


def _ambiguous(objects: Objects, name: str, candidates: dict[str, str]) -> NotFoundError:
    lines = "".join(f"\n    {full[:_SHOWN] if full == digest else full}: {_shown(objects, digest)}"
                    for full, digest in sorted(candidates.items()))  # fmt: skip
    return NotFoundError(
        f"{name!r} may mean {len(candidates)} commits. Give more digits, or the full name:{lines}"
    )


def _shown(objects: Objects, digest: str) -> str:
    commit = read_commit(objects, digest)
    return f"{digest[:_SHOWN]} {(commit.message.splitlines() or [''])[0]!r}, {commit.time[:16]}"


def _unknown(name: str, names: list[str]) -> NotFoundError:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(_some(names))}."
    )
    return NotFoundError(
        f"{name!r} is no branch, tag or commit here; {hint} If a remote has it, fetch first."
    )


def _some(names: list[str], most: int = 8) -> Iterator[str]:
    yield from map(repr, names[:most])
    if len(names) > most:
        yield f"{len(names) - most} more"
