"""Which cases are tried at which level."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import sampling
from tests.sampling import LEVEL, diagonal


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=5), min_size=1, max_size=4), st.text(max_size=3))
def test_a_diagonal_has_each_value_of_each_axis(axes: list[list[int]], name: str) -> None:
    chosen = diagonal(name, *axes)
    assert chosen == diagonal(name, *axes)
    if LEVEL == "exhaustive":
        assert chosen == list(itertools.product(*axes))
        return
    assert len(chosen) == max(map(len, axes))
    assert [set(values) for values in zip(*chosen, strict=True)] == list(map(set, axes))


@pytest.mark.skipif(LEVEL == "exhaustive", reason="all combinations are tried at the level exhaustive")
def test_what_a_diagonal_combines_differs_between_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in range(40):
        monkeypatch.setattr(sampling, "SEED", seed)
        found.add(frozenset(diagonal("seeds", range(4), range(4))))
    assert len(found) == 4
