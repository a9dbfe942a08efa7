"""Markup of a stockroom for notebooks: bounded tables in which names and values are text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from hopyard.data.reports.markup import Html, tag
from hopyard.stockroom.history.commits import Commit
from hopyard.stockroom.looking.listing import Listed, list_shelves
from hopyard.stockroom.records import Shelf
from hopyard.stockroom.shelves import Shelves
from hopyard.stockroom.view import View
from hopyard.wording import counted

_MOST = 30  # rows of a table
_SAMPLES = 5
_SHOWN = 12  # hex digits of a commit
_LONGEST = 80  # characters of a sample, or of a line


def shelves_html(title: str, view: View, shelf: Shelf | None = None) -> str:
    """A table of the things on the shelves of a view, or on one of them. Reads metadata only."""

    class Shown(Shelves):
        @property
        def view(self) -> View:
            return view

    rows = list(islice(list_shelves(Shown(), shelf), _MOST + 1))
    return _page(title, ("", "", "samples", "bytes"), map(_cells, rows[:_MOST]), len(rows) > _MOST)


def column_html(column: Any) -> str:
    """A column and its first samples."""
    keys = list(islice(column, _SAMPLES + 1))
    rows = ((repr(key), _short(column[key])) for key in keys[:_SAMPLES])
    return _page(repr(column)[1:-1], ("key", "sample"), rows, len(keys) > _SAMPLES)


def commit_html(commit: Commit) -> str:
    """A table of the fields of a commit."""
    said = (("time", commit.time), ("author", commit.author), ("message", commit.message))
    git = [] if commit.git is None else [("git", str(commit.git.get("commit") or "nothing is committed"))]
    follows = [("follows", parent) for parent in commit.parents]
    rows = [(name, _cut(value, _MOST * _LONGEST)) for name, value in [*said, *git, *follows]]
    return _page(f"commit {commit.digest}", ("", ""), rows, more=False)


def commits_html(commits: Sequence[Commit]) -> str:
    """A table of commits, a line each, as far as the table goes."""
    rows = (
        (each.digest[:_SHOWN], each.time[:19], _cut(each.author), _cut(each.message.partition("\n")[0]))
        for each in commits[:_MOST]
    )
    titles = ("commit", "time, UTC", "author", "message")
    return _page(counted(len(commits), "commit"), titles, rows, len(commits) > _MOST)


def _cells(each: Listed) -> Sequence[str]:
    count, nbytes = ("" if number is None else f"{number:,}" for number in (each.count, each.nbytes))
    return each.path, each.what, count, nbytes


def _short(sample: Any) -> str:
    if getattr(sample, "ndim", 0):
        sample = sample.reshape(-1)[:8].tolist()
    return _cut(repr(sample))


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _page(title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], more: bool) -> Html:
    def lines() -> Iterator[Html]:
        yield tag("tr", [tag("th", name) for name in titles])
        for row in rows:
            yield tag("tr", [tag("td", cell) for cell in row])

    return tag("div", tag("p", title), tag("table", lines()), tag("p", "and more") if more else None)
