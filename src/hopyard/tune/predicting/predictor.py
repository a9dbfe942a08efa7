"""Predictions where the rows are: the function that every engine runs on its blocks of rows.

A model travels once, as bytes that an engine knows how to fetch; a process of the engine loads it at its first block
and keeps it for the next ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from hopyard.data.columns.policies import Policies
from hopyard.data.preprocessing.fitting import FittedSteps
from hopyard.data.sources.frame_batches import dense_vectors
from hopyard.objects import digest
from hopyard.training import build_replica
from hopyard.training.estimator import Replica
from hopyard.tune.predicting.frames import Outputs, arrow_column, outputs_of
from hopyard.tune.predicting.saved import (
    ModelInfo,
    Weights,
    load_weights,
    pack_model,
    policies_of,
    unpack_model,
)

_KEPT = 2
_loaded: OrderedDict[tuple[str, str], tuple[Replica, Policies, FittedSteps | None]] = OrderedDict()
_lock = threading.Lock()


class Packed:
    """A model as bytes.

    Attributes:
        data: what ``unpack_model`` reads.
        digest: names them.
    """

    def __init__(self, info: ModelInfo, weights: Weights) -> None:
        self.data: bytes = pack_model(info, weights)
        self.digest: str = digest(self.data, "hopyard.packed-model")


class Predictor:
    """Adds a model's outputs to blocks of rows. It is pickled and used by any number of processes.

    Args:
        digest: of the packed model.
        fetch: gives its bytes, in a process that has not loaded it yet.
        columns: what the features are made of.
        fields: names and types of the columns to add, one per output.
        device: says on which device to predict: ``"auto"``, ``"cpu"``, ``"cuda:n"``.
        vectors: columns that are vectors of Spark ML.
    """

    def __init__(
        self,
        digest: str,
        fetch: Callable[[], bytes],
        columns: Sequence[str],
        fields: Sequence[pa.Field],
        device: Callable[[], str],
        vectors: Sequence[str] = (),
    ) -> None:
        self._digest, self._fetch, self._device = digest, fetch, device
        self._columns, self._fields = tuple(columns), tuple(fields)
        self._vectors = [name for name in columns if name in vectors]

    def outputs(self, rows: Any) -> Outputs:
        """The outputs for a frame or table of at least one row."""
        with _lock:  # a replica is used by one thread at a time
            replica, policies, preprocessing = self._replica()
            columns = replica.prediction_columns
            block = f"of a block of {len(rows)}"
            return outputs_of(replica.predict, columns, rows, policies, preprocessing, block)

    def __call__(self, table: pa.Table) -> pa.Table:
        """``table`` with the outputs; also one without rows."""
        if table.num_rows:
            features = table.select(self._columns)
            for name in self._vectors:
                place = features.schema.get_field_index(name)
                features = features.set_column(place, name, dense_vectors(features[name]))
            added = [arrow_column(values) for values in self.outputs(features)]
        else:
            added = [pa.array([], field.type) for field in self._fields]
        for field, column in zip(self._fields, added, strict=True):
            table = table.append_column(field, column.cast(field.type))
        return table

    def _replica(self) -> tuple[Replica, Policies, FittedSteps | None]:
        """The model, and the policies and preprocessing of its training data."""
        key = (self._digest, self._device())
        if key not in _loaded:
            info, weights = unpack_model(self._fetch())
            program = weights.load_program()
            _loaded[key] = load_replica(info, weights, key[1]), policies_of(program), program.preprocessing
            while len(_loaded) > _KEPT:
                _loaded.popitem(last=False)
        _loaded.move_to_end(key)
        return _loaded[key]


def held_by(info: ModelInfo, weights: Weights, device: str) -> Any:
    """What this process has of the tree of a model without reading it, for ``load_weights``: its base."""
    return build_replica(weights.load_program(), info.params, info.trial, device=device).held()["model"]


def load_replica(info: ModelInfo, weights: Weights, device: str) -> Any:
    """A model that predicts, on a device."""
    replica = build_replica(weights.load_program(), info.params, info.trial, device=device)
    replica.load({"model": load_weights(info, weights, replica.held()["model"])})
    if replica.framework == "torch":
        replica.module.eval()
    return replica
