"""Whole entries outlive a killed writer; after a loss of power, those that the disk has."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hopyard.data.cache import format as cache_format
from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import NodeCache

from .entries import content_of, key, names, put, sized

KILLED = """
import os, signal, sys, threading
from hopyard.data.cache import durability as cache_durability
from hopyard.data.cache.node import NodeCache
NodeCache(sys.argv[1]).prepare()
def end(*ignored, **too):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "before the trailer":
    os.pwrite = end
if sys.argv[2] == "before it has its name":
    os.replace = end
if sys.argv[2] == "before it is durable":
    os.fsync = lambda fd: threading.Event().wait()
with NodeCache(sys.argv[1]).claim("0" * 63 + "1", wait=False) as claim:
    if sys.argv[2] == "before the first write":
        end()
    claim.file.write(b"x" * 10000)
    if sys.argv[2] == "in the middle":
        end()
    claim.file.write(b"y" * 10000)
    claim.publish({})
    end()
"""
MOMENTS = ["before the first write", "in the middle", "before the trailer", "before it has its name"]


def kill(cache, moment):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(cache.path), moment], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_killed_writer_left_is_no_entry_and_is_removed(cache, moment):
    kill(cache, moment)
    assert f"{key(1)}.part" in names(cache)
    assert cache.find(key(1)) is None
    assert cache.entries() == []
    with cache.claim(key(2), wait=False):
        freed = cache.clear()
        assert names(cache) == [f"{key(2)}.part"], "what is being written stays"
    assert (freed > 0) == (moment != MOMENTS[0])


def test_the_next_claim_does_so_too(cache):
    kill(cache, "in the middle")
    put(cache, 1, b"whole")
    assert content_of(cache.find(key(1))) == b"whole"


def test_the_next_eviction_does_so_too(cache):
    kill(cache, "in the middle")
    small = NodeCache(cache.path, limit=1000)
    put(small, 2, sized(700))
    put(small, 3, sized(700))
    assert names(cache) == [f"{key(3)}.flat"]


def power_fails(monkeypatch):
    monkeypatch.setattr(cache_format, "boot_id", lambda: b"\x01" * 16)


@pytest.mark.skipif(cache_format.boot_id() is None, reason="needs a system that tells its boot's id")
def test_a_published_entry_outlives_a_kill_and_what_the_power_left_whole(cache, monkeypatch):
    kill(cache, "before it is durable")
    power_fails(monkeypatch)
    assert content_of(found := cache.find(key(1))) == b"x" * 10000 + b"y" * 10000
    durability.join()  # who finds it makes it durable
    assert cache.find(key(1)) == found


@pytest.mark.skipif(cache_format.boot_id() is None, reason="needs a system that tells its boot's id")
def test_an_entry_that_lost_bytes_with_the_power_is_deleted(cache, monkeypatch):
    kill(cache, "before it is durable")
    path = cache.path / f"{key(1)}.flat"
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(bytes(4096) + content[4096:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    power_fails(monkeypatch)
    assert cache.find(key(1)) is None
    assert f"{key(1)}.flat" not in names(cache)


def test_without_a_boot_id_an_entry_is_synced_before_it_is_published(cache, monkeypatch):
    monkeypatch.setattr(cache_format, "boot_id", lambda: None)
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size) or real(fd))
    found = put(cache, 1, bytes(1000))
    assert found.path.stat().st_size in synced
    power_fails(monkeypatch)
    assert cache.find(key(1)) == found


def test_an_entry_that_the_disk_does_not_take_is_deleted(cache, monkeypatch):
    cache.prepare()

    def fail(fd):
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fsync", fail)
    found = put(cache, 1)
    durability.join()
    assert not found.path.exists()


def test_syncing_leaves_no_thread_and_no_descriptor(cache):
    put(cache, 0)
    durability.join()
    before = len(list(Path("/dev/fd").iterdir()))
    for number in range(20):
        put(cache, number)
        cache.find(key(number))
    durability.join()
    assert "hopyard-cache" not in {thread.name for thread in threading.enumerate()}
    assert len(list(Path("/dev/fd").iterdir())) == before
