"""What tests do with git repositories."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from hopyard.stockroom.git import Head, at, prepare, write

Git = Callable[..., str]

A, B, C, D = "a" * 64, "b" * 64, "c" * 64, "d" * 64
ID = "0123456789abcdef"


def run_git(folder: Path, *arguments: str, code: int = 0) -> str:
    """What git prints; it must end with ``code``."""
    ended = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def commit_head(folder: Path, head: Head, message: str = "head") -> str:
    """Write ``head.stock`` in ``folder`` and commit everything; the git commit."""
    write(folder / "head.stock", head, ID)
    run_git(folder, "add", "-A", ".")
    run_git(folder, "commit", "-m", message)
    return run_git(folder, "rev-parse", "HEAD").strip()


def stored(folder: Path) -> Path:
    """Put one file where the objects of the stockroom in ``folder`` are; its path."""
    place = at(folder)
    prepare(place)
    file = place.objects / "FORMAT"
    file.write_text("{}")
    return file


def digests(folder: Path) -> dict[str, str]:
    """Every file below ``folder``, with a digest of its content and its mode."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        + oct(file.stat().st_mode)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
