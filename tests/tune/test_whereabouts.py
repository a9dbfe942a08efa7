"""Bytes of partitions follow the row groups that they are of, on whatever machines the files are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hopyard.data import prepare
from hopyard.storage import MemoryStore
from hopyard.storage.wrappers import Wrapper
from hopyard.tune.whereabouts import whereabouts


class OnTwoMachines(Wrapper):
    """A store that says which machines have a file: all of it one, half of it the other."""

    asked = 0

    def hosts(self, name: str) -> Mapping[str, int]:
        type(self).asked += 1
        size = self.inner.size(name) or 0
        return {"a": size, "b": size // 2}


@pytest.fixture
def rows() -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(0).standard_normal((640, 4)).astype(np.float32)}


def test_partitions_have_the_share_of_their_files(rows: Any) -> None:
    dataset = prepare(rows, store=OnTwoMachines(MemoryStore())).train
    places = whereabouts(dataset, 5)
    files = sum(entry.size for entry in dataset.manifest.files)
    assert files - 10 <= sum(place.size for place in places) <= files
    for place in places:
        assert place.shares["a"] == 1
        assert place.shares["b"] == pytest.approx(0.5, abs=0.01)
    assert OnTwoMachines.asked == len(dataset.manifest.files)


def test_nothing_is_known_of_other_stores_and_no_data(rows: Any) -> None:
    assert whereabouts(prepare(rows, store=MemoryStore()).train, 1) == []
    assert whereabouts(None, 3) == []
