"""Names of unfinished files, which say who writes them, and removal of files that dead writers left.

``.tmp-<machine>-<pid>-<random>``: a file of a process that is gone from this machine, or that
nobody touched for a day, belongs to nobody and is swept by the next writer in its directory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket
import time
from pathlib import Path

from hopyard.storage import files
from hopyard.storage.names import TEMPORARY_PREFIX

_OLD_SECONDS = 24 * 3600.0
_WRITER = re.compile(r"[0-9a-f]{8}-\d+-[0-9a-f]{12}$")


@functools.cache
def machine() -> str:
    """Eight hex digits for the scope of this machine's process ids: host, boot and PID namespace."""
    known = [socket.gethostname()]
    with contextlib.suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.blake2s("\n".join(known).encode(), digest_size=4).hexdigest()


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def writer_name() -> str:
    """``<machine>-<pid>-<random>``: a name for what this process writes; no other writer uses it, now or later."""
    # Random, since a dead process that had the same id may have left files here.
    return f"{machine()}-{os.getpid()}-{os.urandom(6).hex()}"


def is_writer_gone(name: str) -> bool:
    """Whether a name begins as ``writer_name`` gives it, for a process that is provably gone from this machine."""
    fields = name.split("-")
    return len(fields) > 2 and fields[0] == machine() and fields[1].isdigit() and not is_alive(int(fields[1]))


def temporary_name() -> str:
    """The name of an unfinished file of this process."""
    return TEMPORARY_PREFIX + writer_name()


def staging_name() -> str:
    """The name of this process's own directory for files that are to be moved into a store."""
    return f"{TEMPORARY_PREFIX}{machine()}-{os.getpid()}-staging"


def remove_if_empty(directory: str) -> None:
    """Remove a directory that nothing is in."""
    with contextlib.suppress(OSError):
        files.remove_directory(directory)


def sweep(directory: str, of: str = "") -> None:
    """Remove unfinished files in ``directory`` whose writers are provably gone.

    Args:
        of: the file that they are to replace, in a directory that is the user's: their names begin with it, and go on
            as ``temporary_name`` gives it.
    """
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            beginning, found, writer = entry.name.partition(TEMPORARY_PREFIX)
            if (
                found
                and beginning == of
                and (not of or _WRITER.match(writer))
                and _is_abandoned(entry, writer)
            ):
                files.remove_tree(entry.path)


def _is_abandoned(entry: os.DirEntry[str], writer: str) -> bool:
    if is_writer_gone(writer):
        return True
    with contextlib.suppress(FileNotFoundError):
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD_SECONDS
    return False
