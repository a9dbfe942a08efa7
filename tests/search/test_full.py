"""Searches whose trials all train to the end keep the contract, and give the trials they promise."""

from __future__ import annotations

from typing import Any

from hopyard.search import FullLength, GridPoints, RandomPoints, Searcher, hp_choice, hp_int, hp_loguniform
from hopyard.search.testing import SearcherTests

SPACE: dict[str, Any] = {"width": hp_choice([32, 64, 128]), "depth": hp_int(1, 3)}
LARGE: dict[str, Any] = {"lr": hp_loguniform(-4, -1), "width": hp_choice([32, 64, 128])}


class TestGrid(SearcherTests):
    visits = 3
    extension = (9, 5)

    def searcher(self) -> Searcher:
        return FullLength(GridPoints(SPACE), None, 3)


class TestRandom(SearcherTests):
    visits = 8
    extension = (12, 11)

    def searcher(self) -> Searcher:
        return FullLength(RandomPoints(LARGE, seed=1), 7, 8)


class TestRandomFewAtOnce(TestRandom):
    def searcher(self) -> Searcher:
        return FullLength(RandomPoints(LARGE, seed=1), 7, 8, max_concurrent=3)
