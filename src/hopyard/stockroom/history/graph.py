"""History as a drawing: lanes of branches beside commits, as ``git log --graph`` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hopyard.stockroom.history.commits import Commit


def graph(commits: Iterable[Commit]) -> Iterator[tuple[str, Commit | None]]:
    """Lines of the drawing from the top, each with its commit; lines between commits have none.

    Args:
        commits: each before those that it follows.
    """
    lanes: list[str] = []  # of each, the commit that it leads to
    for commit in commits:
        if commit.digest not in lanes:
            lanes.append(commit.digest)
        place = lanes.index(commit.digest)
        while lanes.count(commit.digest) > 1:  # lanes that meet here
            last = len(lanes) - 1 - lanes[::-1].index(commit.digest)
            yield _line(lanes, "/", last, -1), None
            del lanes[last]
        yield " ".join("*" if lane == place else "|" for lane in range(len(lanes))), commit
        for number, parent in enumerate(commit.parents[1:], 1):
            yield _line(lanes, "\\", place + number, 1), None
            lanes.insert(place + number, parent)
        if commit.parents:
            lanes[place] = commit.parents[0]
        else:
            if place < len(lanes) - 1:
                yield _line(lanes[:place] + lanes[place + 1 :], "/", place, 1, keep=False), None
            del lanes[place]


def _line(lanes: list[str], sign: str, first: int, shift: int, keep: bool = True) -> str:
    """A line in which the lanes from ``first`` on move to the side."""
    line = [" "] * (2 * len(lanes) + 2)
    for lane in range(len(lanes)):
        if lane < first:
            line[2 * lane] = "|"
        elif shift < 0:
            line[2 * lane - 1] = sign
        else:
            line[2 * lane + 1] = sign
    if shift > 0 and keep:
        line[2 * first - 1] = sign
    return "".join(line).rstrip()
