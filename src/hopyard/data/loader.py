"""Loaders: iterate over a dataset in batches. The only objects with reading state.

What a loader yields is a pure function of the dataset and its state (``order.py``); Python runs
per batch, never per row.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from hopyard.data.buffers import Buffers
from hopyard.data.order import (
    batch_bounds,
    epoch_windows,
    num_batches,
    rows_per_rank,
)
from hopyard.data.views import Batch, join
from hopyard.errors import UsageError, missing_extra, nearest

if TYPE_CHECKING:
    from hopyard.data.dataset import Dataset

Output: TypeAlias = Literal["numpy", "torch", "jax"]
Remainder: TypeAlias = Literal["drop", "repeat", "error"]
Tail: TypeAlias = Literal["short", "join"]


class Loader:
    """Batches of a dataset, one epoch an iteration: each new iteration is the next epoch.

    A batch is a dict of the columns asked for: arrays (n, *shape), owned by whoever holds them,
    writable, beginning at a multiple of 64 bytes; strings and bytes as object arrays; ragged
    columns as ``Ragged``. Memory is used again once nothing refers to it. One thread at a time may
    use a loader; its batches may go anywhere.

    Step s of an epoch is rows [s*B*W, (s+1)*B*W) of its stream, for batch size B and W ranks, and
    rank r gets the r-th slice: all ranks take equally many steps of equally many rows. The last
    step is cut into equal slices too; fewer than W rows that are left of it follow ``remainder``.

    Args:
        dataset: what to read.
        batch_size: rows of a batch, on each rank.
        shuffle: a permutation of all rows, new each epoch, instead of the natural order. (Parquet
            that must be decoded and is larger than 256 MiB is permuted in windows of that size.)
        seed: of the permutations.
        rank, world_size: this loader's share of every step.
        columns: names of the columns of a batch, in its order; None for all.
        remainder: ``"drop"``; ``"repeat"`` rows from the start of the stream; or ``"error"``.
        output: ``"numpy"`` or ``"torch"``: tensors that share memory with the arrays.
        tail: what becomes of a last batch of fewer than ``batch_size / 2`` rows: a ``"short"``
            batch, or rows that ``"join"`` the batch before it.
        epoch: of the first iteration.

    Raises:
        UsageError: an argument is impossible, or some rank would get no rows.
        ColumnError: a column is unknown.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        columns: Sequence[str] | None = None,
        remainder: Remainder = "drop",
        output: Output = "numpy",
        *,
        tail: Tail = "short",
        epoch: int = 0,
    ) -> None:
        self.dataset = dataset
        self.batch_size = _integer("batch_size", batch_size, 1)
        self.world_size = _integer("world_size", world_size, 1)
        self.rank = _integer("rank", rank, 0)
        if self.rank >= self.world_size:
            raise UsageError(
                f"rank={rank} of world_size={world_size}: ranks are 0 to {self.world_size - 1}. Give one of them."
            )
        self.columns = dataset.schema.select(dataset.schema.names if columns is None else columns).names
        self.remainder = _choice("remainder", remainder, get_args(Remainder))
        self.tail = _choice("tail", tail, get_args(Tail))
        self._convert = _converter(output)
        self._shuffle = bool(shuffle)
        self._seed = _integer("seed", seed, None)
        self._identity = f"{dataset.fingerprint} ({dataset.manifest.split})"
        self._window = dataset.reader().window_rows()
        self._epoch = _integer("epoch", epoch, 0)
        self._position = 0  # rows of the epoch's stream that all ranks together have been given
        self._begun = False
        self._iteration = object()  # the latest; only it moves the position
        self._buffers = Buffers()
        self._per_rank(0)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return num_batches(self._per_rank(0), self.batch_size, self.tail)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or, after ``load_state_dict``, of the rest of the one it was in."""
        if self._begun:
            self._epoch += 1
            self._position = 0
        self._begun = True
        self._iteration = object()
        # Made here, not at the first batch: by then another iteration may have begun.
        stream = _Stream(self.dataset, self.columns, self._seed, self._epoch, self._window, self._shuffle)
        return self._batches(stream, self._position, self._iteration)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: JSON values. Rows count once they have been yielded.

        After the last batch of an epoch it says so, until the next iteration begins.
        """
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "window": self._window,
            "epoch": self._epoch,
            "rows": self._position,
            "dataset": self._identity,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: the next iteration is the rest of that epoch.

        Batch size and number of ranks may differ from then; seed, shuffle and epoch become the state's.

        Raises:
            UsageError: the state is of another dataset, or no state.
        """
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise UsageError(
                f"A loader's state was given without {', '.join(missing)}. Give what state_dict() returned."
            )
        if state["dataset"] != self._identity:
            raise UsageError(
                f"The state is of the dataset {state['dataset']}, but this loader reads "
                f"{self._identity}. Open the dataset (or the partition) that the state was taken from."
            )
        rows = _integer("rows", state["rows"], 0)
        if rows > len(self.dataset):
            raise UsageError(
                f"The state is at row {rows} of {len(self.dataset)}. Give what state_dict() returned."
            )
        self._seed, self._shuffle = state["seed"], state["shuffle"]
        self._window, self._epoch = state["window"], state["epoch"]
        self._position, self._begun = rows, False
        self._iteration = object()

    def _per_rank(self, position: int) -> int:
        """Rows that each rank gets of those behind ``position``."""
        rows = len(self.dataset) - position
        each = rows_per_rank(rows, self.world_size, self.remainder)
        if not each and rows and not position:
            raise UsageError(
                f"{rows} rows are not enough for one on each of {self.world_size} ranks. Use fewer ranks, or "
                "remainder='repeat'."
            )
        return each

    def _batches(self, stream: _Stream, position: int, iteration: object) -> Iterator[Batch]:
        ranks, rank, buffers, convert = self.world_size, self.rank, self._buffers, self._convert
        rows = len(self.dataset)
        for start, stop in batch_bounds(self._per_rank(position), self.batch_size, self.tail):
            first = position + start * ranks + rank * (stop - start)
            if self._iteration is iteration:
                self._position = min(position + stop * ranks, rows)
            # No name for the batch here: it would keep the memory from being used again.
            yield convert(stream.batch(first, first + stop - start, buffers))


class _Stream:
    """The rows of one epoch in their order, gathered by position; one window in memory at a time."""

    def __init__(
        self, dataset: Dataset, columns: Sequence[str], seed: int, epoch: int, window: int | None, shuffle: bool
    ) -> None:  # fmt: skip
        self._reader = dataset.reader()
        self._columns = columns
        self._windows = epoch_windows(dataset.group_rows, seed, epoch, window, shuffle)
        self._ends = list(accumulate(window.rows for window in self._windows))
        self._rows = len(dataset)
        self._start = self._stop = 0

    def batch(self, first: int, last: int, buffers: Buffers) -> Batch:
        """Positions [first, last) of the stream; behind its end comes its start."""
        if self._start <= first and last <= self._stop:
            return self._view.gather(self._order[first - self._start : last - self._start], buffers)
        return join(list(self._parts(first, last, buffers)), buffers)

    def _parts(self, first: int, last: int, buffers: Buffers) -> Iterator[Batch]:
        """A batch for each window that the positions are in."""
        while first < last:
            place = first % self._rows
            if not self._start <= place < self._stop:
                self._open(bisect_right(self._ends, place))
            taken = min(last - first, self._stop - place)
            begin = place - self._start
            yield self._view.gather(self._order[begin : begin + taken], buffers)
            first += taken

    def _open(self, number: int) -> None:
        window = self._windows[number]
        self._view = self._reader.view(self._columns, None if len(self._windows) == 1 else window.groups)
        self._order = window.order()
        self._stop = self._ends[number]
        self._start = self._stop - window.rows


def _integer(name: str, value: Any, lowest: int | None) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or (lowest is not None and whole < lowest):
        rule = "an integer" if lowest is None else f"an integer of at least {lowest}"
        raise UsageError(f"{name}={value!r}, but it must be {rule}.")
    return whole


_Option = TypeVar("_Option", bound=str)


def _choice(name: str, value: _Option, options: Sequence[str]) -> _Option:
    if value not in options:
        listed = ", ".join(map(repr, options))
        raise UsageError(
            f"{name}={value!r}, but it must be one of {listed}{nearest(str(value), options, '.')}"
        )
    return value


def _converter(output: Output) -> Callable[[Batch], Batch]:
    if _choice("output", output, get_args(Output)) == "jax":
        raise UsageError(
            "output='jax' comes with a later version of Hopyard. Use output='numpy' and jax.numpy.asarray."
        )
    if output == "numpy":
        return _as_it_is
    try:
        from hopyard.data.torch_output import as_tensors
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "torch", "output='torch'") from error
    return as_tensors


def _as_it_is(batch: Batch) -> Batch:
    return batch
