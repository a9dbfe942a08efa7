"""Models of searches as versions of registered models in a stockroom: weights, and the code that runs them."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hopyard.errors import ConflictError
from hopyard.objects import StateRef, state_digest
from hopyard.stockroom import StockRoom
from hopyard.stockroom.catalog.origins import Found, Registering, brought_by
from hopyard.stockroom.catalog.registry import ModelVersion
from hopyard.stockroom.models.content import read, write
from hopyard.stockroom.models.leaves import take_in
from hopyard.stockroom.models.versions import Source, check_registered_name
from hopyard.stockroom.records import ModelRecord
from hopyard.stockroom.views.view import WritableView
from hopyard.storage import LocalStore
from hopyard.tune.predicting.saved import STATE_FOLDER, ModelInfo, Weights, read_model, write_model
from hopyard.tune.weights import HasWeights, weights_of


class Saveable(HasWeights, Protocol):
    """A model of a search that can be saved."""

    def contents(self) -> tuple[ModelInfo, Weights]:
        """What is known of the model, and where its bytes are."""


def register(
    model: Saveable,
    stock: StockRoom | str | os.PathLike[str],
    name: str,
    description: str,
    labels: Iterable[str],
    data: str | None,
) -> ModelVersion:
    """Register a model of a search; see ``Model.register``.

    Args:
        data: fingerprint of what it was trained on; None: not known.
    """
    check_registered_name(name)
    with opened(stock) as room, tempfile.TemporaryDirectory(prefix="hopyard-register-") as folder:
        info, weights = _saved(model, Path(folder))
        taken = take_in(weights_of(model), name)

        def find(draft: WritableView, now: Registering) -> Found:
            record = write(draft.writer, taken)
            files, state = _files(draft, record, Path(folder), weights.state)
            metrics, source = _metrics(info), _source(draft, now, record, info, data)
            return Found(record, info.params, metrics, source, files, state)

        return in_a_block(room, lambda: room.registry.add(name, find, description=description, labels=labels))


@contextmanager
def opened(stock: StockRoom | str | os.PathLike[str]) -> Iterator[StockRoom]:
    """A stockroom that was given; one that was given by its path is opened meanwhile."""
    if isinstance(stock, StockRoom):
        yield stock
    else:
        with StockRoom(stock) as room:
            yield room


def in_a_block(room: StockRoom, register: Callable[[], ModelVersion]) -> ModelVersion:
    """Register a version in a block, which is begun again where others have committed one of its number meanwhile."""
    while True:
        version = None
        try:
            with room.enable_write():
                version = register()
        except ConflictError as error:
            if version is None or [each.path for each in error.conflicts] != [f"model/{version.path}"]:
                raise
        else:
            return version


def _saved(model: Saveable, folder: Path) -> tuple[ModelInfo, Weights]:
    """The model as ``Model.save`` writes it."""
    store = LocalStore(folder)
    write_model(store, *model.contents())
    return read_model(store, store.url)


def _files(
    draft: WritableView, record: ModelRecord, folder: Path, state: StateRef
) -> tuple[dict[str, tuple[str, int]], str | None]:
    """The saved files, and the folder of the weights if these can be made of those on the model shelf again.

    They cannot be where the saved state is another tree: of a model on a trunk it is the head alone.
    """
    is_made = state_digest(read(draft.objects, record, "the model").tree()) == state.digest
    files = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        inside = path.relative_to(folder).as_posix()
        if not (is_made and inside.startswith(f"{STATE_FOLDER}/")):
            files[inside] = draft.writer.add_file(path, link=False), path.stat().st_size
    return files, STATE_FOLDER if is_made else None


def _metrics(info: ModelInfo) -> dict[str, float]:
    """The values of the epoch that the weights are of."""
    at = math.ceil(info.epoch) - 1
    return {name: float(values[at]) for name, values in info.history.items() if at < len(values)}


def _source(
    draft: WritableView, now: Registering, record: ModelRecord, info: ModelInfo, data: str | None
) -> Source:
    source = Source(
        run=info.run_id, trial=info.trial, epoch=info.epoch, data={} if data is None else {"train": data}
    )
    there: Any = draft.record("model", info.run_id)
    if not isinstance(there, ModelRecord) or there.tree != record.tree:
        return source
    # The search has committed its outcome.
    commit = brought_by(draft.objects, now.commit, info.run_id, there)
    return replace(source, commit=commit, model=info.run_id)
