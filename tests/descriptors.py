"""The files that this process holds open, as tests look for forgotten ones."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path


def open_files(prefix: str) -> list[str]:
    """The open files whose names begin so."""
    gc.collect()
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # a thread that an earlier test left has closed another file
            names.append(str(link.readlink()))
    return [name for name in names if name.startswith(prefix)]
