"""Private mount namespace: a process that sees some directories in other places, or may only read them.

``enter`` moves this process into one, by calls of libc. As a program, ``python -I -S namespace.py PLAN COMMAND...``
does so and then becomes the command, so that its process id, descriptors and exit status are those of the command;
it uses the standard library alone, and starts in a few hundredths of a second.

Root needs nothing else; another user gets a user namespace, in which files keep their owners and rights.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import NamedTuple

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_SLAVE, MS_RELATIME = (
    1,
    32,
    4096,
    8192,
    16384,
    1 << 19,
    1 << 21,
)
_KEPT_FLAGS = (
    2 | 4 | 8 | 1024 | 2048
)  # nosuid, nodev, noexec, noatime, nodiratime: the same numbers in statvfs(3)
_ST_RELATIME = 4096

FAILED = 125
"""Exit status of the program where the kernel refuses."""


class Plan(NamedTuple):
    """What a namespace has in other places.

    All paths are absolute and without links.

    Attributes:
        covers: directories that are replaced by read-only ones with the same entries, and with places for mounts that
            are not there; parents first.
        binds: (source, target, whether it is read-only), parents of targets first. Targets exist, or are below one of
            ``covers``.
    """

    covers: tuple[str, ...]
    binds: tuple[tuple[str, str, bool], ...]


def enter(plan: Plan) -> None:
    """Move this process, which must have one thread, into a new mount namespace.

    Where the working directory is hidden then, it is the root.

    Raises:
        RuntimeError: the process has more threads; they would stay where they are. Nothing was changed.
        OSError: the kernel refused something. The process may be in an unfinished namespace, and must end.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("a mount namespace must be entered before the process starts threads")
    working_directory = Path.cwd()
    _unshare()
    # Opened before anything is hidden, and in this namespace, since those of another one cannot be mounted.
    sources = {source: os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _, _ in plan.binds}
    root = Path("/")
    if "/" in plan.covers:
        _mount("tmpfs", "/proc", "tmpfs", options="mode=755")
        os.chdir("/proc")
        _mount(".", "/", flags=MS_MOVE)
        root = Path()  # and / leads to the old root until chroot
    for directory in plan.covers:
        _cover(Path(directory), root)
    for source, target, _ in plan.binds:
        place = root / target[1:]
        if not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            _make_mount_point(place, os.fstat(sources[source]).st_mode)
        _bind(f"/proc/self/fd/{sources[source]}", place)
    if "/" in plan.covers:
        os.chroot(root)
    for descriptor in sources.values():
        os.close(descriptor)
    for directory in plan.covers:
        _remount_read_only(directory)
    _make_read_only(plan)
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.chdir(working_directory)


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWNS)
    except PermissionError:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(text)
    _mount(
        "none", "/", flags=MS_REC | MS_SLAVE
    )  # what others mount still comes in, and nothing of ours goes out


def _cover(directory: Path, root: Path) -> None:
    """Put a directory in memory, with the same entries, over a directory."""
    place = root / directory.relative_to("/")
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        old = Path(f"/proc/self/fd/{descriptor}")
        entries = list(old.iterdir())
        if place != root:
            _mount("tmpfs", place, "tmpfs", options=f"mode={stat.S_IMODE(old.stat().st_mode):o}")
        for entry in entries:
            if entry.is_symlink():
                (place / entry.name).symlink_to(entry.readlink())
            else:
                _make_mount_point(place / entry.name, entry.stat().st_mode)
                _bind(entry, place / entry.name)
    finally:
        os.close(descriptor)


def _make_mount_point(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        path.mkdir()
    else:
        path.touch()


def _make_read_only(plan: Plan) -> None:
    """Let nothing write below read-only targets, also where other file systems are mounted there."""
    read_only = {Path(target): is_read_only for _, target, is_read_only in plan.binds}
    escaped = {line.split()[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines()}
    for text in escaped:
        path = Path(os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), text)))
        around = next((above for above in (path, *path.parents) if above in read_only), None)
        if around is not None and read_only[around]:
            _remount_read_only(path)


def _remount_read_only(path: str | Path) -> None:
    flags = os.statvfs(path).f_flag
    kept = (flags & _KEPT_FLAGS) | (MS_RELATIME if flags & _ST_RELATIME else 0)
    _mount("none", path, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _bind(source: str | Path, target: Path) -> None:
    _mount(source, target, flags=MS_BIND | MS_REC)


def _mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [os.fsencode(text) or None for text in (source, target, kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), os.fsencode(options) or None, path=str(target))


def _call(name: str, *arguments: object, path: str | None = None) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


def main(arguments: list[str]) -> None:
    """Enter the namespace of the plan, the first argument as JSON, and become the command that the others are."""
    covers, binds = json.loads(arguments[0])
    try:
        enter(Plan(tuple(covers), tuple(map(tuple, binds))))
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and programs take over
        signal.signal(number, signal.SIG_DFL)
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
