"""Common part of the commands on runs: their arguments, and opening a store without making one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hopyard.errors import NotFoundError
from hopyard.storage import LocalStore, Store, open_store

StorePath = Annotated[str, typer.Argument(help="The store: what LocalStore(...) was given.")]
RunId = Annotated[str, typer.Argument(help="The run's id, as `hopyard run list` shows it.")]


def open_existing(path: str, advice: str = "Give the path that LocalStore(...) was given.") -> Store:
    """The store at ``path``, which must exist: looking at a store must not make one.

    Args:
        advice: what to do about a path where there is none.

    Raises:
        NotFoundError: there is no directory.
    """
    store = open_store(path)
    if isinstance(store, LocalStore) and not Path(store.url).is_dir():
        problem = "is no directory" if Path(store.url).exists() else f"does not exist here ({Path.cwd()})"
        raise NotFoundError(f"{path} {problem}. {advice}")
    return store
