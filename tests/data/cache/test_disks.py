"""Disks that are full, read-only or short of room."""

import contextlib
import errno
import mmap
import os
import subprocess

import pytest

from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import NodeCache
from hopyard.errors import NotWritableError

from .entries import content_of, key, names, numbers, put


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = NodeCache(path)
        assert cache.find(key(1)) is None
        for _ in range(2):
            with pytest.raises(NotWritableError) as caught:
                cache.claim(key(1), wait=True)
        message = (
            f"the node cache {path} cannot be written: Not a directory. Give another directory as cache= or"
        )
        assert message in str(caught.value)
        assert "HOPYARD_CACHE, or cache=False to keep decoded data in memory" in str(caught.value)


def test_a_cache_that_may_only_be_read_is_read(mounted, tmp_path):
    cache = NodeCache(tmp_path / "mount" / "cache")
    with mounted(tmp_path / "mount", "1m"):
        put(cache, 1)
        os.utime(cache.path / f"{key(1)}.flat", (0, 0))
        durability.join()
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "mount"], check=True)
        assert content_of(cache.find(key(1))) == b"content"
        with pytest.raises(NotWritableError, match="Read-only file system"):
            cache.claim(key(2), wait=False)
        with pytest.raises(NotWritableError, match="Read-only file system"):
            cache.clear()
        with pytest.raises(NotWritableError, match="Read-only file system"):
            NodeCache(tmp_path / "mount" / "another").prepare()


def write_until_full(file, block):
    with contextlib.suppress(OSError):
        while file.write(block) == len(block):
            pass


def test_a_disk_that_fills_up_leaves_no_part_of_an_entry(mounted, tmp_path):
    with mounted(tmp_path / "mount", "1m"):
        cache = NodeCache(tmp_path / "mount" / "cache")
        kept = put(cache, 1, b"x" * 1000)
        with cache.claim(key(2), wait=False) as claim:
            write_until_full(claim.file, bytes(4096))
            with pytest.raises(OSError, match="No space left on device"):
                claim.publish({"long": "x" * 4096})
        assert names(cache) == [f"{key(1)}.flat"]
        assert cache.find(key(1)) == kept
        put(cache, 2)


def test_a_short_file_system_admits_what_fits_and_gives_up_what_was_used_longest_ago(mounted, tmp_path):
    with mounted(tmp_path / "mount", "2m"):
        cache = NodeCache(tmp_path / "mount" / "cache")
        for number in range(3):
            assert cache.admits(500_000)
            put(cache, number, bytes(500_000))
            durability.join()
        assert cache.admits(300_000)
        assert not cache.admits(4_000_000)
        assert numbers(cache) == [0, 1, 2], "nothing goes for what does not fit anyway"
        assert cache.admits(560_000)
        assert numbers(cache) == [1, 2]
        ballast = (tmp_path / "mount" / "ballast").open("wb", buffering=0)
        with ballast, cache.claim(key(3), wait=False) as claim:
            write_until_full(ballast, bytes(4096))
            ballast.truncate(ballast.tell() - 8192)
            claim.publish({})
        assert numbers(cache) == [2, 3], "some of the file system stays free for others"


@pytest.mark.parametrize("call", ["pwrite", "replace"])
def test_an_injected_lack_of_space_is_raised_and_leaves_nothing(cache, monkeypatch, call):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "injected")

    put(cache, 1)
    durability.join()
    with monkeypatch.context() as patch, cache.claim(key(2), wait=False) as claim:
        claim.file.write(b"mapped")
        mapped = mmap.mmap(claim.file.fileno(), 6, prot=mmap.PROT_READ)
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="injected"):
            claim.publish({})
    assert mapped[:] == b"mapped"
    assert names(cache) == [f"{key(1)}.flat"]
