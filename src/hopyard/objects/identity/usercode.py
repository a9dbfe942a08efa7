"""Tells the user's own code, whose content counts, from a library's, whose name is enough."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import cloudpickle

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


@functools.cache  # a path is resolved by a system call for each of its folders, and thousands of modules are asked for
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


@contextmanager
def user_code_by_value() -> Iterator[None]:
    """The modules that are the user's own are pickled as they are, not by name."""
    registered = set(cloudpickle.list_registry_pickle_by_value())
    own = [
        module
        for name, module in list(sys.modules.items())
        if type(module) is ModuleType
        and getattr(module, "__file__", None)
        and name == module.__name__
        and name not in registered
        and is_user_module(name)
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
