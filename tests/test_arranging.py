"""Tests are given to processes so that each service is started once, and quick tests come last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.arranging import SLOW_FOLDERS, arranged, service

FILES = {
    "tests/services/spark/test_a.py": ["spark_if_there"],
    "tests/services/ray/test_b.py": ["cluster_if_there"],
    "tests/services/keras/test_c.py": [],
    "tests/long/test_d.py": [],
    "tests/long/test_e.py": [],
    "tests/data/test_f.py": [],
}


def item(number: int, file: str) -> Any:
    return SimpleNamespace(nodeid=f"{file}::test_{number}", path=Path(file), fixturenames=FILES[file])


@given(st.lists(st.sampled_from(sorted(FILES)), max_size=60).map(sorted), st.integers(1, 4))
def test_every_test_is_there_once_and_those_of_a_file_keep_their_order(
    files: list[str], processes: int
) -> None:
    items = [item(number, file) for number, file in enumerate(files)]
    found = arranged(items, processes)
    for file in FILES:
        assert [each for each in found if each.path == Path(file)] == [
            i for i in items if i.path == Path(file)
        ]
    assert len(found) == len(items)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_services_are_apart_and_begin_and_quick_tests_end(processes: int) -> None:
    files = ["tests/data/test_f.py"] * 300 + [file for file in FILES for _ in range(10)]
    found = arranged([item(number, file) for number, file in enumerate(files)], processes)
    assert len(found) % processes == 0
    size = len(found) // processes
    parts = [found[at : at + size] for at in range(0, len(found), size)]
    for name in ("spark", "ray", "keras"):
        assert sum(any(service(each) == name for each in part) for part in parts) == 1
    for part in parts:
        assert service(part[0]) is not None
        assert not part[-1].nodeid.startswith(SLOW_FOLDERS)
