"""Environment of a run: recorded with it, because results depend on it to the last bit."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hopyard import __version__

_PACKAGES = ("numpy", "torch", "tensorflow", "keras", "jax")


def environment(threads: int, instruction_set: str) -> dict[str, Any]:
    """Versions, instruction set and threads, which must be equal for a run to go on bitwise the same."""
    versions = {"python": platform.python_version(), "hopyard": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"threads_per_worker": threads, "instruction_set": instruction_set, "versions": versions}


def environment_changes(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences between two environments, in words."""
    changes = []
    for name in ("threads_per_worker", "instruction_set"):
        if recorded[name] != now[name]:
            changes.append(f"{name}: {recorded[name]} (run) -> {now[name]} (now)")
    before, after = recorded["versions"], now["versions"]
    for package in sorted(before.keys() | after.keys()):
        if before.get(package) != after.get(package):
            changes.append(
                f"{package}: {before.get(package, 'none')} (run) -> {after.get(package, 'none')} (now)"
            )
    return changes


def command() -> dict[str, Any]:
    """Command line and directory of this process, so that ``hopyard run resume`` can start it again.

    ``argv`` is None in a notebook, a prompt or a script from standard input: there is nothing to start again.
    """
    argv: Sequence[str] | None = sys.orig_argv
    script = sys.argv[0] if sys.argv else ""
    if not script or script == "-c" or not Path(script).exists() or "ipykernel" in script:
        argv = None
    return {"argv": None if argv is None else [sys.executable, *argv[1:]], "cwd": str(Path.cwd())}
