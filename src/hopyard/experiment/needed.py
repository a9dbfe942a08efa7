"""Objects of a store that experiments need beside their run folders: model definitions, and weights to begin from.

Experiments share them by content. One goes with the last experiment that needs it, or with the attempt to begin one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set

from hopyard.data.files.parallel import of_each
from hopyard.errors import HopyardError, NotFoundError, StorageError
from hopyard.experiment.definition import definition_object, is_definition
from hopyard.experiment.launching import WarmStart
from hopyard.hopper.journal import read_records
from hopyard.hopper.state import JournalRecord
from hopyard.storage import Store
from hopyard.storage.small import get_whole
from hopyard.tune import list_runs


def objects_of(header: JournalRecord) -> set[str]:
    """The objects that a run needs by its first record."""
    about = header.get("experiment")
    if about is None:
        return set()
    warm = about.get("warm_start")
    return objects(about["definition"], None if warm is None else WarmStart.from_json(warm))


def objects(definition: str, warm_start: WarmStart | None) -> set[str]:
    """The objects that an experiment with this definition needs."""
    files = () if warm_start is None else warm_start.state.files
    return {definition_object(definition), *(f"{WarmStart.FOLDER}/{name}" for name in files)}


def header_of(store: Store, run_id: str) -> JournalRecord:
    """The first record of a run; empty if it cannot be read."""
    try:
        return next(iter(read_records(store.runs.at(run_id))), {})
    except (StorageError, ValueError):
        return {}


def delete_unneeded(store: Store, names: Set[str]) -> None:
    """Delete the objects among these that no run needs. The definition of one that has begun meanwhile is put back."""
    unneeded = names - _needed(store)
    definitions = {}
    for name in unneeded:
        if is_definition(name):
            with contextlib.suppress(NotFoundError):
                definitions[name] = get_whole(store, name)
        store.delete(name)
    for name in definitions.keys() & (_needed(store) if definitions else set()):
        store.put_new(name, definitions[name])


@contextlib.contextmanager
def left_if_needed(store: Store, names: Set[str], *, also_after_success: bool = False) -> Iterator[None]:
    """Delete these objects where what is done within fails, unless a run needs them.

    Args:
        also_after_success: no run is begun within.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(HopyardError):  # of a store that fails, too; the first error counts
            delete_unneeded(store, names)
        raise
    if also_after_success:
        delete_unneeded(store, names)


def _needed(store: Store) -> set[str]:
    ids = list_runs(store)
    headers = of_each(store, [f"runs/{each}" for each in ids], ids, lambda each: header_of(store, each))
    return {name for header in headers for name in objects_of(header)}
