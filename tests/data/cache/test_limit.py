"""The cache stays within its limit; what was not used for longest goes first."""

import os
import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hopyard.data.cache import node as module
from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import NodeCache

from .entries import ROOM_OF_TRAILER, content_of, key, names, numbers, put, sized


@pytest.fixture
def every_use_counts(monkeypatch):
    """Not just one a minute."""
    monkeypatch.setattr(module, "_REFRESH", -1.0)


def test_what_was_not_used_for_longest_goes_first(tmp_path, every_use_counts):
    cache = NodeCache(tmp_path / "cache", limit=1000)
    for number in (1, 2, 3):
        put(cache, number, sized(300))
        durability.join()
    assert cache.find(key(1))
    put(cache, 4, sized(300))
    assert numbers(cache) == [3, 1, 4]


def test_a_use_is_written_down_at_most_once_a_minute(cache):
    path = put(cache, 1).path
    durability.join()
    before = path.stat().st_mtime_ns
    cache.find(key(1))
    assert path.stat().st_mtime_ns == before
    for hour in (-3600, 3600):  # also after a clock that went wrong
        os.utime(path, ns=(before, before + hour * 10**9))
        cache.find(key(1))
        assert abs(path.stat().st_mtime_ns - before) < 1800 * 10**9


def test_an_entry_larger_than_the_limit_is_refused_and_displaces_none(tmp_path):
    cache = NodeCache(tmp_path / "cache", limit=1000)
    put(cache, 1, sized(600))
    assert cache.admits(1000)
    assert not cache.admits(1001)
    with pytest.raises(OSError, match="an entry of 1001 bytes is larger than the cache's limit of 1000"):
        put(cache, 2, sized(1001))
    assert numbers(cache) == [1]
    put(cache, 2, sized(1000))
    assert numbers(cache) == [2]
    assert names(cache) == [f"{key(2)}.flat"]


def test_the_directory_is_not_listed_at_every_publication(tmp_path, monkeypatch):
    cache = NodeCache(tmp_path / "cache", limit=100 * 200)
    listed = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or real(path))
    for number in range(300):
        put(cache, number, sized(200))
    assert len(listed) <= 2 * (1 + 200 // 6 + 1), "twice at first, and then for every sixteenth of the limit"
    assert sum(entry.nbytes for entry in cache.entries()) <= cache.limit


def test_a_sum_that_is_wrong_is_made_right_when_it_matters(tmp_path):
    cache = NodeCache(tmp_path / "cache", limit=1000)
    for number in range(3):
        put(cache, number, sized(300))
    for number in range(3):
        (cache.path / f"{key(number)}.flat").unlink()  # by someone else
    put(cache, 3, sized(300))
    put(cache, 4, sized(300))
    (cache.path / "usage").write_bytes(b"")
    put(cache, 5, sized(300))
    assert numbers(cache) == [3, 4, 5]


class CacheAgainstADict(RuleBasedStateMachine):
    """Any commands, of several objects on one directory, against a dict that knows the rule of eviction."""

    LIMIT = 1600

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.refresh = module._REFRESH
        module._REFRESH = -1.0
        self.caches = [NodeCache(Path(self.folder.name) / "cache", self.LIMIT) for _ in range(2)]
        self.model = {}  # number -> content; least recently used first
        self.claims = {}

    def teardown(self):
        if hasattr(self, "folder"):
            for claim in self.claims.values():
                claim.close()
            durability.join()
            module._REFRESH = self.refresh
            self.folder.cleanup()

    which = st.integers(0, 1)
    number = st.integers(0, 7)

    @rule(which=which, number=number)
    def find(self, which, number):
        found = self.caches[which].find(key(number))
        assert (found is None) == (number not in self.model)
        if found:
            assert content_of(found) == self.model[number]
            assert found.description == {}
            self.model[number] = self.model.pop(number)

    @rule(which=which, number=number)
    def claim(self, which, number):
        claim = self.caches[which].claim(key(number), wait=False)
        assert (claim is None) == (number in self.claims)
        if claim:
            self.claims[number] = claim

    @rule(
        number=number, size=st.integers(ROOM_OF_TRAILER, LIMIT + 100), fill=st.binary(min_size=1, max_size=1)
    )
    def publish(self, number, size, fill):
        if number not in self.claims:
            return
        claim = self.claims.pop(number)
        content = fill * (size - ROOM_OF_TRAILER)
        claim.file.write(content)
        if size > self.LIMIT:
            with pytest.raises(OSError, match="larger than the cache's limit"):
                claim.publish({})
            return
        claim.publish({})
        durability.join()
        self.model.pop(number, None)
        if self.total() + size > self.LIMIT:
            while self.model and self.total() + size > self.LIMIT - self.LIMIT // 16:
                del self.model[next(iter(self.model))]
        self.model[number] = content

    def total(self):
        return sum(len(content) + ROOM_OF_TRAILER for content in self.model.values())

    @rule(number=number)
    def abandon(self, number):
        if number in self.claims:
            self.claims.pop(number).close()

    @rule(which=which)
    def clear(self, which):
        assert self.caches[which].clear() == self.total()
        self.model.clear()

    @rule(number=number, cut=st.integers(1, 40))
    def truncate(self, number, cut):
        if number in self.model:
            path = self.caches[0].path / f"{key(number)}.flat"
            os.truncate(path, path.stat().st_size - cut)
            assert self.caches[0].find(key(number)) is None
            assert not path.exists()
            del self.model[number]
            (self.caches[0].path / "usage").unlink()  # which has counted it

    @rule()
    def copy(self):
        self.caches = pickle.loads(pickle.dumps(self.caches))

    @invariant()
    def lists_what_is_there(self):
        if hasattr(self, "model"):
            assert numbers(self.caches[0]) == list(self.model)
            assert self.total() <= self.LIMIT


CacheAgainstADict.TestCase.settings = settings(stateful_step_count=30)


TestCacheAgainstADict = CacheAgainstADict.TestCase
