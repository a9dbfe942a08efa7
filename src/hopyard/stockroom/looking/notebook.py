"""Markup of a stockroom for notebooks: bounded tables in which names and values are text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hopyard.markup import Html, tag
from hopyard.stockroom.experiments.read import RunView
from hopyard.stockroom.history.commits import Commit
from hopyard.stockroom.looking.listing import Listed, list_shelves
from hopyard.stockroom.records import Shelf
from hopyard.stockroom.shelves import Shelves
from hopyard.stockroom.view import View
from hopyard.wording import counted, describe_bytes, describe_seconds, some_lines

_MOST = 30  # rows of a table
_SAMPLES = 5
_ELEMENTS = 8  # of a sample
_SHOWN = 12  # hex digits of a commit
_LONGEST = 80  # characters of a sample, or of a line
_LONGEST_CELL = 2400  # characters of anything else


def shelves_html(title: str, view: View, shelf: Shelf | None = None) -> str:
    """A table of the things on the shelves of a view, or on one of them. Reads metadata only."""

    class Shown(Shelves):
        @property
        def view(self) -> View:
            return view

    rows = list(islice(list_shelves(Shown(), shelf), _MOST + 1))
    return table_html(title, ("", "", "samples", "bytes"), map(_cells, rows[:_MOST]), len(rows) > _MOST)


def column_html(column: Any) -> str:
    """A column and its first samples."""
    keys = list(islice(column, _SAMPLES + 1))
    rows = ((repr(key), _short(column[key])) for key in keys[:_SAMPLES])
    return table_html(repr(column)[1:-1], ("key", "sample"), rows, len(keys) > _SAMPLES)


def commit_html(commit: Commit) -> str:
    """A table of the fields of a commit."""
    said = (("time", commit.time), ("author", commit.author), ("message", commit.message))
    git = [] if commit.git is None else [("git", str(commit.git.get("commit") or "nothing is committed"))]
    follows = [("follows", parent) for parent in commit.parents]
    return table_html(f"commit {commit.digest}", ("", ""), [*said, *git, *follows], more=False)


def commits_html(commits: Sequence[Commit]) -> str:
    """A table of commits, a line each, as far as the table goes."""
    rows = (
        (each.digest[:_SHOWN], each.time[:19], _cut(each.author), _cut(each.message.partition("\n")[0]))
        for each in commits[:_MOST]
    )
    titles = ("commit", "time, UTC", "author", "message")
    return table_html(counted(len(commits), "commit"), titles, rows, len(commits) > _MOST)


def status_html(lines: Sequence[str], staged: Sequence[tuple[str, str]]) -> str:
    """Lines about a working tree, and a table of what is staged."""
    said = [tag("p", _cut(line, _LONGEST_CELL)) for line in some_lines(lines, _MOST)]
    if not staged:
        return tag("div", said)
    rows = ((how, path) for path, how in staged[:_MOST])
    title = f"{counted(len(staged), 'thing')} staged"
    return tag("div", said, table_html(title, ("", ""), rows, len(staged) > _MOST))


def runs_html(runs: Sequence[RunView]) -> str:
    """A table of runs. Reads their metadata only."""
    rows = (
        (
            run.id,
            run.status,
            f"{run.started:%Y-%m-%d %H:%M}",
            describe_seconds(run.seconds),
            _settings(run.params),
        )
        for run in runs[:_MOST]
    )
    titles = ("run", "", "begun, UTC", "took", "params")
    return table_html(counted(len(runs), "run"), titles, rows, len(runs) > _MOST)


def run_html(run: RunView) -> str:
    """A table of what a run was given, logged and left. Reads its metadata only."""
    ended = "" if run.ended is None else f"{run.ended:%Y-%m-%d %H:%M:%S}"
    rows = [("begun, UTC", f"{run.started:%Y-%m-%d %H:%M:%S}"), ("ended", ended)]
    rows += [("took", describe_seconds(run.seconds))]
    rows += _of_each("param", ((name, repr(value)) for name, value in run.params.items()))
    rows += _of_each("tag", ((name, repr(value)) for name, value in run.tags.items()))
    rows += _of_each("metric", ((name, counted(count, "value")) for name, count in run.counts.items()))
    rows += _of_each("artifact", ((name, describe_bytes(size)) for name, size in run.artifacts.items()))
    rows += [("uses", f"{shelf}/{name}") for shelf, names in run.links.items() for name in names][:_MOST]
    rows += [] if run.error is None else [("error", f"{run.error['kind']}: {run.error['message']}")]
    return table_html(f"run {run.id}: {run.status}", ("", ""), rows, more=False)


def _of_each(kind: str, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    listed = list(islice(pairs, _MOST + 1))
    rows = [(f"{kind} {name}", _cut(text)) for name, text in listed[:_MOST]]
    return [*rows, (kind, "and more")] if len(listed) > _MOST else rows


def _settings(values: Mapping[str, Any]) -> str:
    return _cut(", ".join(f"{name}={value!r}" for name, value in islice(values.items(), _MOST)), 2 * _LONGEST)


def _cells(each: Listed) -> Sequence[str]:
    count, nbytes = ("" if number is None else f"{number:,}" for number in (each.count, each.nbytes))
    return each.path, each.what, count, nbytes


def _short(sample: Any) -> str:
    if getattr(sample, "ndim", None) is None:
        return _cut(repr(sample))
    shown = ", ".join(map(str, sample.reshape(-1)[:_ELEMENTS]))  # as few digits as tell a float of this dtype
    more = f", ... ({sample.size:,} in all)" if sample.size > _ELEMENTS else ""
    return _cut(f"[{shown}{more}]" if sample.ndim else shown)


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def table_html(title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], more: bool) -> Html:
    """A table under a title; long cells are cut.

    Args:
        more: whether there are more rows than these.
    """

    def lines() -> Iterator[Html]:
        yield tag("tr", [tag("th", name) for name in titles])
        for row in rows:
            yield tag("tr", [tag("td", _cut(cell, _LONGEST_CELL)) for cell in row])

    return tag("div", tag("p", title), tag("table", lines()), tag("p", "and more") if more else None)
