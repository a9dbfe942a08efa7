"""Where models come from that are to be registered: commits, runs, and what these say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hopyard.errors import UsageError
from hopyard.stockroom.experiments import ExperimentShelf, RunView
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.maps import SortedMap
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.models.versions import Source, read_note
from hopyard.stockroom.records import Json, ModelRecord
from hopyard.stockroom.views.view import ObjectReader, View, record_in
from hopyard.wording import some_names


@dataclass(frozen=True)
class Registering:
    """What a stockroom knows when a version is registered.

    Attributes:
        author: who does it.
        commit: where the stockroom is; None: nothing is committed.
    """

    author: str
    commit: str | None


@dataclass(frozen=True)
class Found:
    """What is known of a model that is to be registered.

    Attributes:
        record: of its weights, whose objects were added.
        params, metrics, source: as of a ``VersionNote``.
        files, state: likewise.
    """

    record: ModelRecord
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    source: Source = field(default_factory=Source)
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    state: str | None = None


def on_shelf(draft: View, head: str | None, name: str) -> Found:
    """A model of the model shelf."""
    record = ModelShelf(draft).record(name)
    if record.about is not None:
        note = read_note(draft.objects, record, name)
        return Found(record, note.params, note.metrics, note.source, note.files, note.state)
    return Found(record, source=Source(brought_by(draft.objects, head, name, record), name))


def brought_by(objects: ObjectReader, head: str | None, name: str, record: ModelRecord) -> str | None:
    """The first of the commits up to ``head`` that have this model under this name without a break; None: ``head`` has
    another one, or none."""

    def has(digest: str) -> bool:
        return record_in(SortedMap(objects, read_commit(objects, digest).root), "model", name) == record

    found = None
    while head is not None and has(head):
        found = head
        head = next(filter(has, read_commit(objects, head).parents), None)
    return found


def made_by(view: View, run: str | None) -> str:
    """The name of the one model that a run of the experiment shelf is linked to.

    Raises:
        MissingKeyError: there is no such run. UsageError: it is linked to no model, to several, or to what this was.
    """
    if run is None:
        raise UsageError("register was given neither a model nor a run. Give the name of a model, or run=ID.")
    linked = ExperimentShelf(view).run(run).links.get("model", {})
    # That of a search may be linked to what it began with as well.
    names = [run] if run in linked else list(linked)
    if len(names) != 1:
        how = f"to several: {some_names(list(map(repr, names)))}. Name one" if names else "to none. Name it"
        raise UsageError(
            f"the model of the run {run!r} was to be registered, but a run is linked to the model that it made by "
            f"run.link(model=...), and this one is linked {how}: register(name, MODEL, run={run!r})."
        )
    record = view.record("model", names[0])
    if not isinstance(record, ModelRecord) or record.tree != linked[names[0]]["model"]["tree"]:
        raise UsageError(
            f"the model of the run {run!r} was to be registered, but model/{names[0]} is no longer what the run was "
            f"linked to. Give the name of a model that is: register(name, MODEL, run={run!r})."
        )
    return names[0]


def with_run(view: View, found: Found, id: str | None) -> Found:
    """The same with parameters, metrics and data of the run that made it."""
    shelf = ExperimentShelf(view)
    if id is not None:
        run: RunView | None = shelf.run(id)
    else:
        run = _linked_to(shelf, found.record) if found.record.about is None else None
    if run is None:
        return found
    trial, epoch = _of_search(run)
    data = _contents(run.links.get("data", {}))
    source = replace(found.source, run=run.id, trial=trial, epoch=epoch, data=data)
    return replace(found, params=run.params.copy(), metrics=_last_metrics(run, epoch), source=source)


def _of_search(run: RunView) -> tuple[int | None, float | None]:
    """Trial and epoch of the best model of a search that was committed; None: the run is no such."""
    tags = run.tags
    trial, epoch = tags.get("trial"), tags.get("epoch")
    is_search = "search" in tags and type(trial) is int and type(epoch) in (int, float)
    return (trial, epoch) if is_search else (None, None)


def _linked_to(shelf: ExperimentShelf, record: ModelRecord) -> RunView | None:
    """The latest run that is linked to these weights."""
    for run in shelf.runs():
        if any(linked["model"]["tree"] == record.tree for linked in run.links.get("model", {}).values()):
            return run
    return None


def _contents(links: Mapping[str, Json]) -> dict[str, str]:
    """The digests of what columns and datasets were; of a column without samples there is none."""
    found = {}
    for name, record in links.items():
        ((kind, fields),) = record.items()
        found[name] = fields["pages"] if kind == "column" else fields["manifest"]
    return {name: digest for name, digest in found.items() if digest is not None}


def _last_metrics(run: RunView, epoch: float | None) -> dict[str, float]:
    """Of each metric the last value; of a search's run the best trial's at its best epoch, whose part counts as
    whole."""
    found = {}
    for name, (steps, values) in run.metrics.items():
        if epoch is not None and name.startswith("trial "):  # every trial's, under names of their own
            continue
        at = values if epoch is None else values[steps <= math.ceil(epoch)]
        if len(at):
            found[name] = float(at[-1])
    return found
