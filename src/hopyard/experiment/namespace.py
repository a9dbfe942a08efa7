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
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC = 1, 32, 4096, 8192, 16384
MS_UNBINDABLE, MS_SLAVE, MS_RELATIME = 1 << 17, 1 << 19, 1 << 21
MNT_DETACH = 2
# nosuid, nodev, noexec, noatime and nodiratime, which have the same numbers in statvfs(3).
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048
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
        passing: sources that may be gone by now, and are left out then.
    """

    covers: tuple[str, ...]
    binds: tuple[tuple[str, str, bool], ...]
    passing: tuple[str, ...] = ()


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
    _stage()
    # First of all, since a mount may hide the source of another one.
    gone = {source for number, (source, _, _) in enumerate(plan.binds) if not _bound(source, number, plan)}
    binds = [(number, bind) for number, bind in enumerate(plan.binds) if bind[0] not in gone]
    root = Path("/")
    if "/" in plan.covers:
        root = Path("root")
        root.mkdir()
        _mount("tmpfs", root, "tmpfs", options="mode=755")
    for directory in plan.covers:
        _cover(Path(directory), root)
    for number, (_, target, _) in binds:
        place = root / target[1:]
        is_below_cover = any(Path(target).is_relative_to(directory) for directory in plan.covers)
        if is_below_cover and not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            _make_mount_point(place, Path(str(number)).stat().st_mode)
        _mount(str(number), place, flags=MS_MOVE)
    if "/" in plan.covers:
        os.chdir(root)
        _mount(".", "/", flags=MS_MOVE)
        os.chroot(".")
    else:
        _call("umount2", b".", MNT_DETACH)
    for directory in plan.covers:
        _remount_read_only(directory)
    _make_read_only({target: is_read_only for _, (_, target, is_read_only) in binds})
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.chdir(working_directory)


def _bound(source: str, number: int, plan: Plan) -> bool:
    """Have a source at ``number`` in the working directory; False if it is gone, and may be."""
    try:
        _make_mount_point(Path(str(number)), Path(source).stat().st_mode)
        _bind(source, Path(str(number)))
    except FileNotFoundError:
        if source in plan.passing:
            return False
        raise
    return True


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWNS)
    except PermissionError:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER, path="/proc/sys/user/max_user_namespaces")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    # Others' later mounts still come in, and nothing of ours goes out.
    _mount("none", "/", flags=MS_REC | MS_SLAVE)


def _stage() -> None:
    """Make an empty directory in memory that no absolute path leads to, and enter it."""
    _mount("tmpfs", "/proc", "tmpfs", options="mode=755")
    os.chdir("/proc")
    # So that it is no part of what is mounted from here on.
    _mount("none", ".", flags=MS_UNBINDABLE)
    # No absolute path leads there: each begins at the root below it.
    _mount(".", "/", flags=MS_MOVE)


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


def _make_read_only(targets: dict[str, bool]) -> None:
    """Let nothing write below the targets for which that is true, also where other file systems are mounted there."""
    read_only = {_mount_at(target): is_read_only for target, is_read_only in targets.items()}
    fields = [line.split() for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    parents = {int(mount): int(parent) for mount, parent, *_ in fields}
    for mount, *_, path in (line[:5] for line in fields):
        around = int(mount)
        while around not in read_only and parents.get(around, around) != around:
            around = parents[around]
        place = os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), path))
        if read_only.get(around) and _mount_at(place) == int(mount):  # else another one hides it
            _remount_read_only(place)


def _mount_at(path: str) -> int | None:
    """The number of the mount that a path is in, as in mountinfo; None: there is no such path."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(Path(f"/proc/self/fdinfo/{descriptor}").read_text().partition("mnt_id:")[2].split()[0])
    finally:
        os.close(descriptor)


def _remount_read_only(path: str) -> None:
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
    covers, binds, passing = json.loads(arguments[0])
    try:
        enter(Plan(tuple(covers), tuple(map(tuple, binds)), tuple(passing)))
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and programs take over
        signal.signal(number, signal.SIG_DFL)
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
