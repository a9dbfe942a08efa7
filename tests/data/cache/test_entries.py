"""What is published is found whole, with its description; keys, the place and the limit are checked."""

import contextlib
import mmap
import os
import pickle
from pathlib import Path

import pytest

from hopyard.data.cache.node import DEFAULT_LIMIT, NodeCache
from hopyard.errors import UsageError

from .entries import content_of, key, names, put


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(100_000)], ids=len)
@pytest.mark.parametrize("description", [{}, {"columns": [{"name": "é" * n} for n in range(200)]}], ids=len)
def test_what_is_published_is_found_with_its_description(cache, content, description):
    assert cache.find(key(1)) is None
    published = put(cache, 1, content, description)
    found = cache.find(key(1))
    assert found == published
    assert content_of(found) == content
    assert found.description == description
    [entry] = cache.entries()
    assert (entry.key, entry.path, entry.description) == (key(1), found.path, description)
    assert entry.nbytes == found.path.stat().st_size


def test_nothing_touches_the_disk_before_the_first_claim(tmp_path):
    cache = NodeCache(tmp_path / "a" / "b")
    assert cache.find(key(1)) is None
    assert cache.entries() == []
    assert cache.clear() == 0
    assert cache.admits(1000)
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_claim_leaves_nothing(cache):
    with contextlib.suppress(ZeroDivisionError), cache.claim(key(1), wait=False) as claim:
        claim.file.write(b"half")
        raise ZeroDivisionError
    assert claim.file.closed
    claim.close()
    assert cache.find(key(1)) is None
    assert names(cache) == []
    put(cache, 1)


def test_an_entry_can_be_mapped_while_it_is_made_and_after_it_is_gone(cache):
    with cache.claim(key(1), wait=False) as claim:
        claim.file.write(b"early")
        early = mmap.mmap(claim.file.fileno(), 5, prot=mmap.PROT_READ)
        found = claim.publish({})
    with found.path.open("rb") as file:
        late = mmap.mmap(file.fileno(), found.size, prot=mmap.PROT_READ)
    assert cache.clear() > 0
    assert not found.path.exists()
    assert early[:] == late[:] == b"early"


def test_an_entry_can_be_replaced(cache):
    put(cache, 1, b"old")
    put(cache, 1, b"new")
    assert content_of(cache.find(key(1))) == b"new"
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("bad", ["", "abc", "../" + "a" * 61, "A" * 64, "g" * 64, "a" * 129, 7, None])
def test_keys_are_hex_digests(cache, bad):
    for use in (cache.find, lambda bad: cache.claim(bad, wait=False)):
        with pytest.raises(UsageError, match=r"must be a hex digest, 16 to 128 digits in lower case. Give"):
            use(bad)


def test_a_cache_can_be_pickled(cache):
    put(cache, 1)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.path, copy.limit) == (cache.path, cache.limit)
    assert copy.find(key(1)) == cache.find(key(1))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOPYARD_CACHE": "/x/y", "XDG_CACHE_HOME": "/z"}, "/x/y"),
        ({"HOPYARD_CACHE": "", "XDG_CACHE_HOME": "/z"}, "/z/hopyard/data"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/hopyard/data"),
        ({"HOME": "/home/me"}, "/home/me/.cache/hopyard/data"),
        ({"HOME": "/home/me", "HOPYARD_CACHE": "~/x"}, "/home/me/x"),
    ],
)
def test_the_default_place(monkeypatch, environment, expected):
    for name in ("HOPYARD_CACHE", "XDG_CACHE_HOME", "HOPYARD_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert NodeCache().path == Path(expected)
    assert NodeCache().limit == DEFAULT_LIMIT == 20_000_000_000


def test_the_default_limit_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("HOPYARD_CACHE_BYTES", "2e9")
    assert NodeCache(tmp_path).limit == 2_000_000_000
    assert NodeCache(tmp_path, limit=5).limit == 5
    monkeypatch.setenv("HOPYARD_CACHE_BYTES", "20GB")
    with pytest.raises(
        UsageError, match="HOPYARD_CACHE_BYTES='20GB', but it must be a whole number of bytes"
    ):
        NodeCache(tmp_path)


@pytest.mark.parametrize("limit", [-1, 1.5, True, float("nan"), float("inf"), [1]])
def test_a_limit_is_a_number_of_bytes(tmp_path, limit):
    with pytest.raises(UsageError, match=r"limit=.*, but it must be a whole number of bytes, such as 20e9"):
        NodeCache(tmp_path, limit)


@pytest.mark.parametrize("path", ["", 7, b"x"])
def test_a_path_is_a_path(path):
    with pytest.raises(UsageError, match="a cache's path must be a non-empty string or Path"):
        NodeCache(path)
