"""How tests of the node cache make entries and look at them, and run other processes that do."""

import contextlib
import subprocess
import sys

from hopyard.data.cache import format as cache_format

ROOM_OF_TRAILER = cache_format._END.size + len(b"{}")


def key(number):
    return f"{number:064x}"


def put(cache, number, content=b"content", description=None):
    with cache.claim(key(number), wait=False) as claim:
        claim.file.write(content)
        return claim.publish(description or {})


def content_of(found):
    return found.path.read_bytes()[: found.size]


def names(cache):
    """Of all files but those that every cache may have."""
    return sorted({path.name for path in cache.path.iterdir()} - {"CACHEDIR.TAG", "usage", "known"})


def numbers(cache):
    return [int(entry.key, 16) for entry in cache.entries()]


def sized(nbytes):
    """Content of an entry whose file has ``nbytes``."""
    return bytes(nbytes - ROOM_OF_TRAILER)


@contextlib.contextmanager
def running(program, cache, *arguments):
    """A process that has printed a line, and ends when it is sent one."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(cache.path), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            process.said = process.stdout.readline()
            yield process
        finally:
            process.kill()
