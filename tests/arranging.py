"""The order of tests: each service is started by one of the processes that run tests, and what takes long comes first.

pytest-xdist gives each process an equal part of the list at first, and to one that has nothing left the last half of
what another still has. So each part begins with what one process is to keep, and all parts end with many quick tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

SLOW_FOLDERS = ("tests/services/", "tests/long/", "tests/walks/")
_SERVICES = {"spark": 0, "ray": 1, "hdfs": 1, "keras": 2, "browser": 2}
"""Which process gets the tests of each, or the last one. Where Spark runs it tells what HDFS alone does not; one
of Ray needs HDFS, too."""


def service(item: pytest.Item) -> str | None:
    """The one that a test shares with others of its process, and that takes long to start."""
    fixtures = getattr(item, "fixturenames", ())
    if "spark_if_there" in fixtures:
        return "spark"
    if "cluster_if_there" in fixtures:
        return "ray"
    if "hdfs_if_there" in fixtures:
        return "hdfs"
    if "chromium" in fixtures:
        return "browser"
    return "keras" if item.nodeid.startswith(SLOW_FOLDERS) and "keras" in item.nodeid else None


def arranged(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The tests, in the order in which they are given to so many processes."""
    of: dict[str | None, list[pytest.Item]] = {}
    for item in items:
        of.setdefault(service(item), []).append(item)
    parts: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for name, number in _SERVICES.items():
        parts[min(number, processes - 1)] += of.get(name, [])
    others = of.get(None, [])
    slow = [item for item in others if item.nodeid.startswith(SLOW_FOLDERS)]
    for number, (_, each) in enumerate(itertools.groupby(slow, lambda item: item.path)):
        parts[number % processes] += each
    quick = iter([item for item in others if not item.nodeid.startswith(SLOW_FOLDERS)])
    left = len(items)
    for number, part in enumerate(parts):
        size = left // (processes - number)
        part += itertools.islice(quick, max(0, size - len(part)))
        left -= len(part)
    return [item for part in parts for item in part]
