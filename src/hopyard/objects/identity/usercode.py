"""What is the user's own code, whose content counts, and what belongs to a library, whose name is enough."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
from pathlib import Path

OWN_PACKAGE = __name__.partition(".")[0]


def is_user_module(name: str | None) -> bool:
    """Whether the module of that name is neither of the standard library nor installed nor of this package.

    Scripts, notebooks, interactive sessions and packages installed for editing are the user's.
    """
    if not name:
        return True
    top = name.partition(".")[0]
    if top == "__main__":  # also what came from there to a worker, whose own main module is a library's
        return True
    if top == OWN_PACKAGE or top in sys.stdlib_module_names:
        return False
    files = [_file_of(name), _file_of(top)]
    return not _is_installed(next((file for file in files if file), None))


def _file_of(name: str) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec else None


def _is_installed(file: str | None) -> bool:
    if file is None:
        return False
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in _standard_library())


@functools.cache
def _standard_library() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
