"""A dataset whose rows go through fitted steps as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hopyard.data.base import Partitioned
from hopyard.data.cache.node import NodeCache
from hopyard.data.contract import Stream
from hopyard.data.order import Reach, Rows
from hopyard.data.preprocessing.fitting import FittedSteps, masks_of, schema_of
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.stream import WindowStream
from hopyard.data.reading.strings import Coded, as_objects
from hopyard.data.reading.views import Batch, Wanted, columns_of
from hopyard.data.schema import Schema
from hopyard.objects.digests import digest_json


class Preprocessed(Partitioned):
    """``base`` after ``fitted``, with the columns ``names``: the same rows in the same order."""

    def __init__(self, base: Partitioned, fitted: FittedSteps, names: tuple[str, ...]) -> None:
        self.base, self.fitted = base, fitted
        self._names = names
        self._schema = schema_of(base.schema, fitted, names)

    @property
    def schema(self) -> Schema:
        """The columns, after the steps."""
        return self._schema

    @property
    def fingerprint(self) -> str:
        """Of the rows before the steps, and of these."""
        return self._digest(self.base.fingerprint)

    def content(self) -> str:
        """As the fingerprint, of the rows on this machine and now."""
        return self._digest(self.base.content())

    def _digest(self, base: str) -> str:
        return digest_json([base, self.fitted.digest, list(self._names)], "hopyard.preprocessed")

    @property
    def split(self) -> str:
        """As of the rows before the steps."""
        return self.base.split

    def __len__(self) -> int:
        return len(self.base)

    def __repr__(self) -> str:
        return f"Preprocessed({self.base!r}, {self.fitted!r})"

    @property
    def num_row_groups(self) -> int:
        """The most partitions there can be."""
        return self.base.num_row_groups

    def partitions(self, p: int) -> Sequence[Preprocessed]:
        """Those of the rows before the steps."""
        return [Preprocessed(part, self.fitted, self._names) for part in self.base.partitions(p)]

    def order(self, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Rows:
        """The order of the rows before the steps."""
        return self.base.order(seed, epoch, shuffle, reach)

    def node_cache(self) -> NodeCache | None:
        """As of the rows before the steps."""
        return self.base.node_cache()

    def reach(self, window: int | None) -> Reach:
        """As of the rows before the steps."""
        return self.base.reach(window)

    def stream(self, wanted: Wanted, seed: int, epoch: int, shuffle: bool, reach: Reach) -> Stream:
        """The rows of an epoch."""
        read = self._read(wanted)
        return _PreprocessedStream(self, wanted, self.base.stream(read, seed, epoch, shuffle, reach))

    def take(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any rows, by number."""
        return self.after(self.base.take(rows, self._read(wanted)), wanted)

    def check_not_written(self) -> None:
        """Raise CorruptError if a file was written to since it was opened; names it."""
        self.base.check_not_written()

    def _read(self, wanted: Wanted) -> dict[str, str]:
        """The columns of the base, with the masks that go with them."""
        sources = self.fitted.sources(columns_of(wanted))
        return {name: name for name in (*sources, *masks_of(self.base.schema, sources))}

    def after(self, batch: Batch, wanted: Wanted) -> Batch:
        """What is wanted of a batch of the base."""
        made = self.fitted.apply_to_arrays(batch)
        return {name: _side_by_side(made, columns) for name, columns in wanted.items()}


class _PreprocessedStream(Stream):
    def __init__(self, dataset: Preprocessed, wanted: Wanted, rows: Stream) -> None:
        self._dataset, self._wanted, self._rows = dataset, wanted, rows

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        # Not where rows come by way of others, as windows and mixtures, which take arrays.
        buffers.coded = isinstance(self._rows, WindowStream)
        try:
            batch = self._rows.batch(first, last, buffers)
        finally:
            buffers.coded = False
        taken = self._dataset.fitted.takes_coded
        objects = {
            name: values if name in taken and isinstance(values, Coded) else as_objects(values)
            for name, values in batch.items()
        }
        return self._dataset.after(objects, self._wanted)

    def close(self) -> None:
        self._rows.close()


def _side_by_side(made: dict[str, Any], columns: str | Iterable[str]) -> Any:
    if isinstance(columns, str):
        return made[columns]
    return np.stack([made[name] for name in columns], axis=1)
