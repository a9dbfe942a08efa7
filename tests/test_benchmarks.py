"""Parts of benchmarks that stand in for parts of the package go on to fit it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from hopyard.backend import InlineBackend
from hopyard.hopper.scheduler import Layout
from hopyard.search import FullLength, RandomPoints, hp_uniform


@pytest.mark.parametrize("validate", [0, 1])
def test_units_that_do_nothing_are_a_run(
    validate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    noop = importlib.import_module("_noop")
    searcher = FullLength(RandomPoints({"x": hp_uniform(0, 1)}, 0), 3, 1)
    state = noop.run(InlineBackend(), tmp_path, searcher, Layout(1, validate), 1)
    assert [trial.status for trial in state.trials.values()] == ["completed"] * 3
