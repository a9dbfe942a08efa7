"""Commits, and walking from them to those that they follow.

A commit is an object of kind ``commit``::

    {"author", "format", "generation", "git", "message", "parents", "root", "time"}

Its *generation* is 1 without parents, else one more than the highest of its parents'. So a commit's generation is
above that of all its ancestors, whatever the clocks of their writers said, and a walk that always goes on from the
highest generation meets each commit after all that follow it. Times are for people; they only order commits for
which nothing else does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hopyard.errors import CorruptError, UsageError
from hopyard.markup import cut, table
from hopyard.stockroom.maps import PageReader, PageWriter
from hopyard.stockroom.records import parsing
from hopyard.storage.format import check_format, object_header
from hopyard.wording import counted, one_line

_KIND = "commit"
_SHOWN = 30  # commits that a console shows unasked
_LONGEST = 80  # characters of a message
_BREAK = "\n"


@dataclass(frozen=True)
class Commit:
    """The content of one commit. Commits of one digest are equal.

    Attributes:
        digest: 64 hex digits; the commit's name.
        parents: digests of the commits that it follows: none, one, or of a merge two or more, ours first.
        root: digest of the root map; None: nothing is in it.
        message: any text.
        author: ``"Name <address>"``, or what else was configured.
        time: when it was made: ISO 8601 with microseconds, UTC.
        generation: 1 + the highest of its parents', or 1.
        git: what was checked out in git, as the git room records it; None without git.
    """

    digest: str
    parents: tuple[str, ...] = field(compare=False)
    root: str | None = field(compare=False)
    message: str = field(compare=False)
    author: str = field(compare=False)
    time: str = field(compare=False)
    generation: int = field(compare=False)
    git: dict[str, Any] | None = field(compare=False)

    def _repr_html_(self) -> str:
        """A table of the fields, for notebooks."""
        rows = [("time", self.time), ("author", self.author), ("message", self.message)]
        rows += [] if self.git is None else [("git", str(self.git.get("commit") or "nothing is committed"))]
        rows += [("follows", parent) for parent in self.parents]
        return table(f"commit {self.digest}", ("", ""), rows, len(rows))


class Commits(list[Commit]):
    """A list of commits. A console or notebook shows the first of them."""

    def __repr__(self) -> str:
        lines = [
            one_line(
                f"{each.digest[:12]} {each.time[:16].replace('T', ' ')} {each.message.partition(_BREAK)[0][:_LONGEST]}"
            )
            for each in self[:_SHOWN]
        ]
        if len(self) > _SHOWN:
            lines.append(f"and {len(self) - _SHOWN:,} more")
        return "\n".join([f"{counted(len(self), 'commit')}, times in UTC", *lines])

    def _repr_html_(self) -> str:
        """A table with a row for each commit, for notebooks."""
        rows = (
            (each.digest[:12], each.time[:19], cut(each.author), cut(each.message.partition(_BREAK)[0]))
            for each in self
        )
        titles = ("commit", "time, UTC", "author", "message")
        return table(counted(len(self), "commit"), titles, rows, _SHOWN)


def write_commit(
    writer: PageWriter,
    root: str | None,
    parents: Sequence[str],
    message: str,
    author: str,
    git: dict[str, Any] | None = None,
    time: datetime | None = None,
) -> Commit:
    """Write a commit that follows ``parents``. ``time`` is that of this machine if None.

    Raises:
        UsageError: a parent is named twice, or ``time`` has no offset.
        NotFoundError: a parent is not here; CorruptError: it is no commit. Nothing was written.
    """
    if len(set(parents)) < len(parents):
        raise UsageError(f"the parents {list(parents)} name a commit twice. Name each once.")
    time = datetime.now(UTC) if time is None else time
    if time.tzinfo is None:
        raise UsageError(
            f"the time {time.isoformat()} has no offset from UTC. Give one: datetime(..., tzinfo=UTC)."
        )
    value = {
        "author": author,
        "format": object_header(_KIND),
        "generation": 1 + max((read_commit(writer, parent).generation for parent in parents), default=0),
        "git": git,
        "message": message,
        "parents": list(parents),
        "root": root,
        "time": time.astimezone(UTC).isoformat(timespec="microseconds"),
    }
    return _commit(writer.add_json(value, kind=_KIND), value)


def read_commit(objects: PageReader, digest: str) -> Commit:
    """The commit of this digest.

    Raises:
        NotFoundError: it is not here.
        CorruptError: what lies there is no commit; FormatError: a newer version of Hopyard wrote it.
    """
    data = objects.read(digest).tobytes()
    try:
        value = parsing.json_of(data)
        header = value["format"]
        check_format(header, _KIND, where=f"the commit {digest}")
        return _checked(_commit(digest, value))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise CorruptError(
            f"the object {digest} is not a commit ({type(error).__name__}: {error}). Bring the repository's file that "
            "holds it from a remote or a copy; verify() lists all that is damaged, and what depends on it."
        ) from error


def _checked(commit: Commit) -> Commit:
    for parent in commit.parents:
        parsing.digest(parent)
    parsing.digest_or_none(commit.root)
    for said in (commit.message, commit.author, commit.time):
        parsing.text(said)
    if datetime.fromisoformat(commit.time).utcoffset() != timedelta(0):
        raise ValueError(f"its time is {commit.time!r}, which is not of UTC")
    datetime.fromisoformat(commit.time).timestamp()
    parsing.whole(commit.generation, 1)
    if commit.git is not None and not isinstance(commit.git, dict):
        raise TypeError("what it says of git is no object")
    return commit


def _commit(digest: str, value: dict[str, Any]) -> Commit:
    fields = {name: value[name] for name in ("root", "message", "author", "time", "generation", "git")}
    return Commit(digest, tuple(value["parents"]), **fields)


def log(objects: PageReader, *digests: str) -> Iterator[Commit]:
    """The commits ``digests`` and all that they follow, each once and after all that follow it.

    The highest generation comes first, then the latest time. Commits are read as the iterator goes on.
    """
    for commit, _ in _walk(objects, [(digest, 1) for digest in digests]):
        yield commit


def ancestors(objects: PageReader, digests: Iterable[str], without: Iterable[str] = ()) -> set[str]:
    """``digests`` and all that they follow, less ``without`` and all that these follow.

    So with ``without`` what a remote has, it is what the remote lacks. Only commits between the two are read.
    """
    wanted, unwanted = 1, 2
    starts = [(digest, wanted) for digest in digests] + [(digest, unwanted) for digest in without]
    return {commit.digest for commit, marks in _walk(objects, starts, done=unwanted) if marks == wanted}


def merge_bases(objects: PageReader, a: str, b: str) -> list[str]:
    """The last commits that both ``a`` and ``b`` are or follow: common ones that no other common one follows.

    None if they share no history, several after criss-cross merges: the highest generation first, then the latest.
    """
    ours, theirs, followed = 1, 2, 4
    both = ours | theirs

    def inherit(marks: int) -> int:
        return marks | followed if marks == both else marks

    walk = _walk(objects, [(a, ours), (b, theirs)], inherit, done=followed)
    return [commit.digest for commit, marks in walk if marks == both]


def is_ancestor(objects: PageReader, ancestor: str, digest: str) -> bool:
    """Whether the commit ``digest`` is ``ancestor`` or follows it."""
    least = read_commit(objects, ancestor).generation
    for commit in log(objects, digest):
        if commit.digest == ancestor:
            return True
        if commit.generation < least:
            break
    return False


def _walk(
    objects: PageReader,
    starts: Iterable[tuple[str, int]],
    inherit: Callable[[int], int] = int,
    done: int = 0,
) -> Iterator[tuple[Commit, int]]:
    """Commits from ``starts`` on, the highest generation first, each with the marks of all that lead to it.

    A start has the bits given as its marks; its parents have ``inherit(marks)``, together with what they inherit
    from others. The walk ends once all commits that wait have a bit of ``done``.

    Raises:
        CorruptError: a commit's generation is not above its parents'.
    """
    waiting: dict[str, tuple[Commit, int]] = {}
    order: list[tuple[int, float, str]] = []
    open_ends: set[str] = set()  # those that wait without a bit of `done`

    def add(digest: str, marks: int, below: Commit | None = None) -> None:
        if digest in waiting:
            commit, present = waiting[digest]
            marks |= present
        else:
            commit = read_commit(objects, digest)
            moment = datetime.fromisoformat(commit.time).timestamp()
            heapq.heappush(order, (-commit.generation, -moment, digest))
        if below is not None and commit.generation >= below.generation:
            raise CorruptError(
                f"the commit {below.digest} has generation {below.generation}, but its parent {digest} has "
                f"{commit.generation}. Hopyard writes no such commit: bring both from a remote or a copy."
            )
        waiting[digest] = commit, marks
        (open_ends.discard if marks & done else open_ends.add)(digest)

    for digest, marks in starts:
        add(digest, marks)
    while open_ends:
        commit, marks = waiting.pop(heapq.heappop(order)[2])
        open_ends.discard(commit.digest)
        yield commit, marks
        for parent in commit.parents:
            add(parent, inherit(marks), commit)


def short(commit: str | None) -> str:
    """A commit for messages."""
    return "no commit" if commit is None else commit[:12]
