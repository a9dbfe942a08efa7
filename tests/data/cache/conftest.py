"""A cache of a test's own; what it brings to the disk in the background ends with the test."""

import pytest

from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import NodeCache


@pytest.fixture
def cache(tmp_path):
    return NodeCache(tmp_path / "cache", limit=10**6)


@pytest.fixture(autouse=True)
def nothing_under_way():
    yield
    durability.join()
