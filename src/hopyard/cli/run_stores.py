"""Common part of the commands on runs: their arguments, and opening a store without making one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from hopyard.errors import HopyardError, NotFoundError
from hopyard.storage import LocalStore, Store, open_store


def complete_run_of_store(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs of the store that was named, that begin so."""

    def runs() -> Iterable[str]:
        from hopyard.tune.listing import list_runs  # not before the Tab key is pressed here

        return list_runs(open_existing(_argument(ctx, "store", 0)))

    return names_beginning(incomplete, runs)


def complete_trial(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of trials of the run that was named, that begin so."""

    def trials() -> Iterable[str]:
        from hopyard.hopper.history import read_state
        from hopyard.hopper.journal import read_records
        from hopyard.tune.listing import find_run

        folder = find_run(open_existing(_argument(ctx, "store", 0)), _argument(ctx, "run_id", 1))
        return map(str, read_state(read_records(folder), folder.url).trials)

    return names_beginning(incomplete, trials)


def names_beginning(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """The names that begin so; none where they cannot be found."""
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except HopyardError:  # no store, or no such run, so nothing to offer
        return []


def _argument(ctx: typer.Context, name: str, position: int) -> str:
    """An argument that stands before what is completed, or an empty text."""
    # An option without its value yet ends parsing before the arguments are named.
    return ctx.params.get(name) or next(iter(ctx.args[position:]), "")


StorePath = Annotated[str, typer.Argument(help="The store: what LocalStore(...) was given.")]
RunId = Annotated[
    str,
    typer.Argument(
        help="The run's id, as `hopyard run list` shows it.", autocompletion=complete_run_of_store
    ),
]


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
