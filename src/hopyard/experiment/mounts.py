"""Bind mounts: directories of a machine that trials see under the paths they expect.

Where ``container_path`` is ``host_path`` and nothing is read-only, trials simply use the path. Else their processes
need a mount namespace of their own, which bubblewrap makes where it is installed and works, and otherwise the kernel,
where it lets this user have one. Nothing is ever created on the machine: where ``container_path`` is not there, a
stand-in is put, for the trial alone, over the nearest directory above it: a read-only one with the same entries and the
missing ones. That takes nothing from a user who may not write there anyway; for others, the error says how to make
``container_path``.

Paths and rights are those of one machine, so all functions here are to be called where the trial will run. Their
arguments and results can be pickled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import hopyard
from hopyard.data.cache.node import cache_directory
from hopyard.errors import UsageError
from hopyard.experiment import namespace
from hopyard.experiment.namespace import Plan
from hopyard.storage.names import path_given
from hopyard.wording import beginning, one_line, some_names

_NOT_COVERED = ("/proc", "/sys", "/dev")
_NUMPY = importlib.util.find_spec("numpy")  # an import would start threads
_OF_ALL_TRIALS = {
    os.__file__: "Python",
    str(_NUMPY and _NUMPY.origin): "the packages of Python",
    hopyard.__file__: "Hopyard",
    "/proc/self": "/proc",
}
"""Files that each trial needs, and what they are part of."""


@dataclass(frozen=True)
class Mount:
    """A directory or file of the machine, and the path under which a trial finds it.

    Attributes:
        host_path: absolute path on the machine; a link is followed.
        container_path: absolute path in the trial.
        read_only: whether the trial may not write below ``container_path``.
        passing: whether ``host_path`` may be gone when the trial starts, and the mount with it.
    """

    host_path: str
    container_path: str
    read_only: bool = False
    passing: bool = False


@dataclass(frozen=True)
class MountProblem:
    """A reason why a mount does not work on a machine, or not as it is meant.

    Attributes:
        host: name of the machine.
        path: the path concerned.
        message: a sentence with both, the rule, and the next step.
        fatal: whether trials cannot run there; False: it is a warning.
    """

    host: str
    path: str
    message: str
    fatal: bool = True


def check(mounts: Sequence[Mount]) -> list[MountProblem]:
    """All that is wrong with mounts on this machine. A namespace that trials need is tried out."""
    problems = [problem for mount in mounts if (problem := _path_problem(mount) or _host_problem(mount))]
    problems += [] if problems else _duplicates(mounts)
    if problems or not _need_namespace(mounts):
        return problems
    plan, problems = _plan(mounts)
    if problems:
        return problems
    prefix, reasons = _working_prefix(plan)
    return [] if prefix else _not_mounted(mounts, reasons, _works)


def command_prefix(mounts: Sequence[Mount]) -> list[str]:
    """What to put before a command, so that its process has the mounts; empty if plain access does.

    Read-only mounts where no namespace can be had are plain access, too, of which ``check`` warns.

    Raises:
        UsageError: trials cannot run here with these mounts; has the messages of ``check``.
    """
    if not _need_namespace(mounts):
        return []
    plan = _checked_plan(mounts)
    prefix, reasons = _working_prefix(plan)
    if not prefix:
        _raise_fatal(_not_mounted(mounts, reasons, _works))
    return prefix


def start_with(mounts: Sequence[Mount], tmp: Sequence[str] = ()) -> list[str]:
    """``command_prefix`` of mounts that were all checked, those with plain access too; warnings are printed.

    Args:
        tmp: places in code that name files in ``/tmp``. Where a namespace can be made, the process has a ``/tmp`` of
            its own then, beside what is in the machine's now; elsewhere a warning says that trials share these files.

    Raises:
        UsageError: as ``command_prefix``.
    """
    problems = check(mounts)
    _raise_fatal(problems)
    for problem in problems:
        print(problem.message, file=sys.stderr)
    if tmp:
        try:
            return command_prefix([*mounts, *private_tmp(_own_folder(), Path("/tmp").iterdir())])
        except (UsageError, OSError) as error:
            print(
                f"{some_names(tmp)} of the model definition {'name' if len(tmp) > 1 else 'names'} files in /tmp, which "
                f"all trials on {socket.gethostname()} share, as no private one can be made there: {error} Use "
                "context.download(), which transfers a file once, or a relative path, which is each trial's own.",
                file=sys.stderr,
            )
    return [] if problems else command_prefix(mounts)


def _own_folder() -> Path:
    place = Path(f"{cache_directory()}-trials") / "tmp"
    place.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=place))


def enter(mounts: Sequence[Mount]) -> bool:
    """Give this process the mounts, for as long as it lives; what it starts inherits them.

    It must be called before the process starts threads. Only the kernel can do it: where just bubblewrap may make
    namespaces, a process is to be started with ``command_prefix``.

    Returns: whether the process has a namespace of its own now; False: plain access does, or has to, as above.

    Raises:
        UsageError: trials cannot run here with these mounts, or this process has threads.
        OSError: a mount failed halfway. The process must end.
    """
    if not _need_namespace(mounts):
        return False
    plan = _checked_plan(mounts)
    # In another process first: this one could not go back.
    reason = _reason_against(_kernel_prefix(plan))
    if reason:
        _raise_fatal(_not_mounted(mounts, [f"the kernel: {reason}"], _works_by_kernel))
        return False
    try:
        namespace.enter(plan)
    except RuntimeError as error:
        raise UsageError(
            f"the bind mounts cannot be made: {error}. Call enter first, or use command_prefix."
        ) from None
    return True


def private_tmp(folder: Path, kept: Iterable[Path]) -> list[Mount]:
    """Mounts by which a trial has ``folder`` as ``/tmp``, apart from all others.

    Args:
        folder: for this trial alone; made if it is not there.
        kept: files and directories that the trial needs under their own paths, which are in ``/tmp``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mounts = [Mount(str(folder), "/tmp")]
    for path in sorted(path.resolve() for path in kept):
        if path.is_relative_to("/tmp"):
            point = folder / path.relative_to("/tmp")
            point.parent.mkdir(parents=True, exist_ok=True)
            point.mkdir(exist_ok=True) if path.is_dir() else point.touch()
            may_write = os.access(path, os.W_OK, effective_ids=True)
            mounts.append(Mount(str(path), str(path), read_only=not may_write, passing=True))
    return mounts


# Rules


def _need_namespace(mounts: Sequence[Mount]) -> bool:
    return any(map(_needs_namespace, mounts))


def _needs_namespace(mount: Mount) -> bool:
    return mount.read_only or _is_elsewhere(mount)


def _is_elsewhere(mount: Mount) -> bool:
    return os.path.realpath(mount.host_path) != os.path.realpath(mount.container_path)


def _problem(path: str, text: str, fatal: bool = True) -> MountProblem:
    host = socket.gethostname()
    return MountProblem(host, path, f"on {host}, {text}", fatal)


def _path_problem(mount: Mount) -> MountProblem | None:
    """A rule that the texts of the paths break."""
    for field in ("host_path", "container_path"):
        path = getattr(mount, field)
        try:
            path_given(path)
        except UsageError as error:
            return _problem(path, f"{field} of bind_mounts: {error}")
        if not path.startswith("/"):
            return _problem(
                path,
                f"{field} {path!r} of bind_mounts is relative, but it must be an absolute path, since trials have "
                "different working directories. Write it from / on.",
            )
    if os.path.normpath(mount.container_path).strip("/") == "":
        return _problem(
            "/",
            "container_path '/' of bind_mounts would hide all programs and files, so it must be a directory below. "
            "Name one.",
        )
    return None


def _host_problem(mount: Mount) -> MountProblem | None:
    """A rule that ``host_path`` breaks on this machine."""
    path, what = Path(mount.host_path), f"host_path {mount.host_path!r} of bind_mounts"
    rights = f"Give this user (uid {os.geteuid()}) the right to"
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            with os.scandir(path) as entries:
                next(entries, None)
        elif stat.S_ISREG(mode):
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except (FileNotFoundError, NotADirectoryError):
        text = (
            f"{what} does not exist, but must, on every machine that runs trials. Mount the file system there, or "
            "correct the path."
        )
        return _problem(mount.host_path, text)
    except OSError as error:
        step = f"{rights} read it" if isinstance(error, PermissionError) else "Look at its mount"
        return _problem(
            mount.host_path, f"{what} cannot be read ({error.strerror}), but must be readable. {step}."
        )
    wanted = os.W_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if mount.read_only or os.access(path, wanted, effective_ids=True):
        return None
    text = (
        f"{what} cannot be written to, but must be writable, since read_only is not set. {rights} write there, or set "
        "read_only: true."
    )
    return _problem(mount.host_path, text)


def _duplicates(mounts: Sequence[Mount]) -> list[MountProblem]:
    first: dict[str, Mount] = {}
    problems = []
    for mount in mounts:
        other = first.setdefault(os.path.realpath(mount.container_path), mount)
        if other is not mount:
            text = (
                f"container_path {mount.container_path!r} of bind_mounts is the place of both {other.host_path!r} and "
                f"{mount.host_path!r}, but can be of one only. Give them different paths, or remove one."
            )
            problems.append(_problem(mount.container_path, text))
    return problems


def _not_mounted(
    mounts: Sequence[Mount], reasons: Sequence[str], works: Callable[[Plan], bool]
) -> list[MountProblem]:
    """The problems with mounts that need a namespace, where there is none, or Python does not start in it.

    Args:
        reasons: why Python does not start with the mounts.
        works: whether it starts with others.
    """
    elsewhere = list(filter(_is_elsewhere, mounts))
    has_namespaces = works(Plan((), ()))
    if has_namespaces and elsewhere:
        wrong = [mount for mount in elsewhere if not works(_plan([mount])[0])]
        return [_not_started(mount, reasons) for mount in wrong or elsewhere]
    why = "the mount cannot be made" if has_namespaces else "no mount namespace can be made"
    why += f" ({'; '.join(reasons)})"
    install = "" if has_namespaces else "Install bubblewrap there, or allow user namespaces, or "
    problems = []
    for mount in filter(_needs_namespace, mounts):
        path = mount.container_path
        is_elsewhere = _is_elsewhere(mount)
        if is_elsewhere:
            text = (
                f"container_path {path!r} of bind_mounts must be its host_path {mount.host_path!r}, since {why}. "
                f"{install}write the same path for both."
            )
        else:
            text = (
                f"read_only of {path!r} in bind_mounts is not enforced, since {why}: trials can write there if their "
                f"user can. {beginning(f'{install}have the file system mounted read-only.')}"
            )
        problems.append(_problem(path, text, is_elsewhere))
    return problems


def _not_started(mount: Mount, reasons: Sequence[str]) -> MountProblem:
    text = (
        f"Python does not start where container_path {mount.container_path!r} of bind_mounts is host_path "
        f"{mount.host_path!r} ({'; '.join(reasons)}), but each trial is a process of Python. Choose another "
        "container_path."
    )
    return _problem(mount.container_path, text)


def _raise_fatal(problems: Sequence[MountProblem]) -> None:
    messages = [problem.message for problem in problems if problem.fatal]
    if messages:
        raise UsageError("the bind mounts cannot be made: " + "\n".join(messages))


# Planning


def _checked_plan(mounts: Sequence[Mount]) -> Plan:
    plan, problems = _plan(mounts)
    _raise_fatal(problems)
    return plan


def _plan(mounts: Sequence[Mount]) -> tuple[Plan, list[MountProblem]]:
    """The namespace for mounts, and why it cannot be made so."""
    covers, problems = set(), []
    passing: list[str] = []
    binds: dict[Path, tuple[Path, bool]] = {}
    targets = [(Path(mount.container_path).resolve(), mount) for mount in mounts]
    for target, mount in sorted(targets, key=lambda pair: pair[0].parts):
        source = Path(mount.host_path).resolve()
        if mount.passing:
            if not source.exists():
                continue
            passing.append(str(source))
        outer = next((above for above in target.parents if above in binds), None)
        seen = target if outer is None else binds[outer][0] / target.relative_to(outer)
        above = next(each for each in seen.parents if each.exists())
        if seen.exists():
            if seen.is_dir() != source.is_dir():
                problems.append(_kinds_differ(mount, seen))
        elif outer is None and _can_be_covered(above):
            covers.add(str(above))
        else:
            problems.append(_not_there(mount, seen, above))
        binds[target] = (source, mount.read_only)
    problems += [] if problems else _hidden(targets, binds)
    ordered = ((str(source), str(target), read_only) for target, (source, read_only) in binds.items())
    return Plan(tuple(sorted(covers)), tuple(ordered), tuple(passing)), problems


def _hidden(
    targets: Sequence[tuple[Path, Mount]], binds: dict[Path, tuple[Path, bool]]
) -> list[MountProblem]:
    """A problem for each mount that takes a file away without which no trial can run."""
    hidden: dict[Path, list[str]] = {}
    for needed, name in {sys.executable: "Python", **_OF_ALL_TRIALS}.items():
        for path in dict.fromkeys(
            (Path(needed), Path(needed).resolve() if name != "/proc" else Path(needed))
        ):
            over = next((above for above in (path, *path.parents) if above in binds), None)
            if over and path.exists() and not (binds[over][0] / path.relative_to(over)).exists():
                names = hidden.setdefault(over, [])
                names += [] if name in names else [name]
    mounts = dict(targets)
    problems = []
    for over, names in hidden.items():
        things = " and ".join(names)
        text = (
            f"container_path {mounts[over].container_path!r} of bind_mounts would hide {things}, which each trial "
            f"needs and host_path {mounts[over].host_path!r} does not have. Choose another container_path."
        )
        problems.append(_problem(mounts[over].container_path, text))
    return problems


def _can_be_covered(directory: Path) -> bool:
    """Whether a read-only directory with the same entries does as well for this user."""
    return (
        directory.is_dir()
        and not any(directory.is_relative_to(special) for special in _NOT_COVERED)
        and os.access(directory, os.R_OK | os.X_OK, effective_ids=True)
        and not os.access(directory, os.W_OK, effective_ids=True)
    )


def _kinds_differ(mount: Mount, seen: Path) -> MountProblem:
    kinds = ("a directory", "no directory")
    there, given = kinds if seen.is_dir() else kinds[::-1]
    text = (
        f"{str(seen)!r}, the place of container_path {mount.container_path!r}, is {there}, but host_path "
        f"{mount.host_path!r} is {given}, and both must be alike. Use another container_path."
    )
    return _problem(mount.container_path, text)


def _not_there(mount: Mount, seen: Path, above: Path) -> MountProblem:
    is_directory = Path(mount.host_path).is_dir()
    make = f"mkdir -p {seen}" if is_directory else f"mkdir -p {seen.parent} && touch {seen}"
    text = (
        f"{str(seen)!r}, the place of container_path {mount.container_path!r}, does not exist, but must, "
        f"since a stand-in for {str(above)!r} could hide something from trials. Make it there ({make}), or use another "
        "container_path."
    )
    return _problem(mount.container_path, text)


# Namespaces


def _working_prefix(plan: Plan) -> tuple[list[str], list[str]]:
    """The first prefix with which Python starts; empty, and why, if there is none."""
    prefixes = [("the kernel", _kernel_prefix(plan))]
    bubblewrap = shutil.which("bwrap")
    if bubblewrap:
        prefixes.insert(0, ("bubblewrap", [bubblewrap, *_bubblewrap_options(plan)]))
    reasons = []
    for name, prefix in prefixes:
        reason = _reason_against(prefix)
        if reason is None:
            return prefix, []
        reasons.append(f"{name}: {reason}")
    return [], reasons


def _works(plan: Plan) -> bool:
    return bool(_working_prefix(plan)[0])


def _works_by_kernel(plan: Plan) -> bool:
    return _reason_against(_kernel_prefix(plan)) is None


def _reason_against(prefix: list[str]) -> str | None:
    """Why Python does not start with a prefix; None if it does."""
    command = [*prefix, sys.executable, "-I", "-S", "-c", ""]
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if tried.returncode == 0:
        return None
    last_line = tried.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return one_line(last_line) or f"exit status {tried.returncode}"


def _kernel_prefix(plan: Plan) -> list[str]:
    return [sys.executable, "-I", "-S", namespace.__file__, json.dumps(plan)]


def _bubblewrap_options(plan: Plan) -> list[str]:
    options = ["--die-with-parent"]
    if "/" not in plan.covers:
        options += ["--dev-bind", "/", "/"]
    for directory in plan.covers:
        options += [] if directory == "/" else ["--tmpfs", directory]
        for entry in sorted(Path(directory).iterdir()):
            if entry.is_symlink():
                options += ["--symlink", str(entry.readlink()), str(entry)]
            else:
                options += ["--dev-bind", str(entry), str(entry)]
    for source, target, read_only in plan.binds:
        kind = ("--ro-bind" if read_only else "--dev-bind") + ("-try" if source in plan.passing else "")
        options += [kind, source, target]
    for directory in plan.covers:
        options += ["--remount-ro", directory]
    return options
