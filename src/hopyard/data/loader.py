"""Loaders: iterate over a dataset in batches. The only objects with reading state.

What a loader yields is a pure function of the dataset and its state (``order.py``); Python runs
per batch, never per row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from hopyard.checks import choice, flag, integer
from hopyard.data.ahead import AheadStream
from hopyard.data.arguments import (
    ColumnSelection,
    Output,
    Remainder,
    Strings,
    Tail,
    Transform,
    arrow_types,
    callable_transform,
    checked_views,
    converter,
    wanted_of,
)
from hopyard.data.contract import EpochStream, RowSource
from hopyard.data.order import WINDOW_BYTES, Reach, batch_bounds, num_batches, rows_per_rank
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.several import Gather, several_at_once
from hopyard.data.reading.views import Batch, Wanted
from hopyard.errors import UsageError
from hopyard.objects.digests import derive_seed

BatchSpan: TypeAlias = tuple[int, int]
"""[first, last) of the positions in an epoch's stream that one batch of a rank is."""


class Batches(Protocol):
    """A loader as ``dataset.loader`` returns it: a :class:`Loader`, or, for PyTorch, a ``TorchLoader``."""

    @property
    def columns(self) -> list[str]:
        """The names in a batch."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """See :meth:`Loader.state_dict`."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`Loader.load_state_dict`."""

    def set_epoch(self, epoch: int) -> None:
        """See :meth:`Loader.set_epoch`."""


class Loader:
    """Batches of a dataset, one epoch an iteration: each new iteration is the next epoch.

    A batch is a dict of the columns asked for: arrays (n, *shape), owned by their holder,
    writable, beginning at a multiple of 64 bytes; strings and bytes as object arrays; ragged
    columns as ``Ragged``. Memory is used again once nothing refers to it. One thread at a time may
    use a loader; its batches may go anywhere.

    Step s of an epoch is rows [s*B*W, (s+1)*B*W) of its stream, for batch size B and W ranks, and
    rank r gets the r-th slice: all ranks take equally many steps of equally many rows. The last
    step is cut into equal slices too; fewer than W rows that are left of it follow ``remainder``.

    Args:
        dataset: the rows to read.
        batch_size: rows of a batch, on each rank.
        shuffle: a permutation of the rows, new each epoch, instead of the natural order.
        seed: of the permutations and of ``transform``'s generators. 0 is a seed like any other.
        rank, world_size: this loader's share of every step.
        columns: names of the columns of a batch, in its order; None for all. Or a dict from names in the
            batch to a column, or to several scalar columns of one dtype, which become one (n, k) array.
        remainder: ``"drop"``; ``"repeat"`` rows from the start of the stream; or ``"error"``.
        output: ``"numpy"``; ``"torch"``: tensors that share memory with the arrays; ``"jax"``: JAX arrays.
        window: bytes. A dataset whose rows are at most so many, decoded, is permuted as a whole; a larger one in
            windows of so many: whole row groups, drawn anew each epoch from all files, one window after another, with
            a permutation of all rows within. None permutes any data as a whole; data that cannot be mapped is decoded
            before the first batch then. The order does not depend on the place of the files or on the cache.
        transform: ``fn(batch, rng)``, whose result is yielded instead of the batch. Never cached. ``rng`` is a
            ``numpy.random.Generator`` seeded by seed, epoch, dataset and the batch's place in the stream.
        tail: treatment of a last batch of fewer than ``batch_size / 2`` rows: a ``"short"``
            batch, or rows that ``"join"`` the batch before it. ``"drop"`` leaves out any batch that is not full.
        epoch: of the first iteration.
        views: batches of mapped data are read-only views of the files where the rows of a batch lie side by
            side, and copies where they do not. For numpy, without shuffle.
        strings: ``"objects"``: strings and bytes are object arrays, for every output; ``"arrow"``: Arrow arrays of
            ``large_string`` and ``large_binary``.

    Raises:
        UsageError: an argument is impossible, or some rank would get no rows.
        ColumnError: a column is unknown.
    """

    def __init__(
        self,
        dataset: RowSource,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        columns: ColumnSelection | None = None,
        remainder: Remainder = "drop",
        output: Output = "numpy",
        *,
        window: int | None = WINDOW_BYTES,
        transform: Transform | None = None,
        tail: Tail = "short",
        epoch: int = 0,
        views: bool = False,
        strings: Strings = "objects",
    ) -> None:
        self.dataset = dataset
        self.batch_size: int = integer("batch_size", batch_size, 1)
        self.world_size: int = integer("world_size", world_size, 1)
        self.rank: int = integer("rank", rank, 0)
        if self.rank >= self.world_size:
            raise UsageError(
                f"rank={rank} of world_size={world_size}: ranks are 0 to {self.world_size - 1}. Give one of them."
            )
        self.wanted: Wanted = wanted_of(dataset.row_schema, columns)
        self.remainder: Remainder = choice("remainder", remainder, get_args(Remainder))
        self.tail: Tail = choice("tail", tail, get_args(Tail))
        self._convert = converter(output)
        self._views = checked_views(views, output, shuffle)
        self._shuffle = flag("shuffle", shuffle)
        self._seed = integer("seed", seed, None)
        self._transform = callable_transform(transform)
        self._reach = dataset.reach(None if window is None else integer("window", window, 1))
        self._epoch = integer("epoch", epoch, 0)
        self._position = 0  # rows of the epoch's stream that all ranks together have been given
        self._start = 0  # where the latest iteration began
        self._begun = False
        self._iteration = object()  # the latest; only it moves the position
        self._arrow_types = arrow_types(strings, dataset.schema, self.wanted)
        self._buffers = Buffers(bool(self._arrow_types))
        self._spare: list[Buffers] = []  # of iterations that made batches ahead
        self._check_share()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return num_batches(self._per_rank(0), self.batch_size, self.tail)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or, after ``load_state_dict``, of the rest of the one it was in."""
        # All made here, not at the first batch: by then another iteration may have begun.
        epoch = self._begin()
        return self._batches(self.stream(epoch), epoch, self._start, self._iteration)

    def __getitem__(self, row: object) -> NoReturn:
        raise not_by_number()

    def steps(self) -> tuple[int, Iterator[BatchSpan]]:
        """Begin an iteration, and return the epoch and the steps; a step counts as yielded once it is given."""
        epoch = self._begin()
        return epoch, self._steps(self._start, self._iteration)

    def _begin(self) -> int:
        if self._begun:
            self._epoch += 1
            self._position = 0
        self._begun = True
        self._start = self._position
        self._iteration = object()
        return self._epoch

    def stream(self, epoch: int) -> EpochStream:
        """The rows of an epoch, to be closed after use: behind :meth:`steps`, those of the iteration that began."""

        def opened() -> EpochStream:
            return self.dataset.stream(self.wanted, self._seed, epoch, self._shuffle, self._reach)

        if not self.dataset.decodes(self.wanted):
            return opened()
        return AheadStream(opened, (span for span, _ in self._spans(self._start)), self._spare)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch: all of it, or the rest if a state in it was just loaded."""
        epoch = integer("epoch", epoch, 0)
        if self._begun or epoch != self._epoch:
            self._epoch, self._position, self._begun = epoch, 0, False
            self._iteration = object()

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """State of the loader as JSON values. Rows count once they have been yielded.

        After the last batch of an epoch it says so, until the next iteration begins. Where something
        between the loader and its user reads ahead, ``batches`` says how many batches of the latest
        iteration were used; those behind them do not count then.

        Raises:
            UsageError: an iteration does not have that many batches.
        """
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "window": self._reach,
            "epoch": self._epoch,
            "rows": self._position if batches is None else self._after(integer("batches", batches, 0)),
            "dataset": self.dataset.describe(),
        }

    def _after(self, batches: int) -> int:
        """The position behind so many batches of the latest iteration."""
        each = self._per_rank(self._start)
        count = num_batches(each, self.batch_size, self.tail)
        if batches > count:
            raise UsageError(
                f"state_dict(batches={batches}) was asked for, but the iteration has {count}. Count the batches "
                "since the loop over the loader began, not since training began."
            )
        stop = each if batches == count and self.tail != "drop" else batches * self.batch_size
        return min(self._start + stop * self.world_size, len(self.dataset))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: the next iteration is the rest of that epoch.

        Batch size and number of ranks may differ from then; seed, shuffle and epoch become the state's.

        Raises:
            UsageError: the state is of another dataset, or no state.
        """
        if not isinstance(state, dict):
            raise UsageError(
                f"state={state!r} is no loader's state. Give the dict that state_dict() returned."
            )
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise UsageError(
                f"A loader's state was given without {', '.join(missing)}. Give what state_dict() returned."
            )
        self._check_same_dataset(state["dataset"])
        rows = integer("rows", state["rows"], 0)
        if rows > len(self.dataset):
            raise UsageError(
                f"The state is at row {rows} of {len(self.dataset)}. Give what state_dict() returned."
            )
        seed, epoch = integer("seed", state["seed"]), integer("epoch", state["epoch"], 0)
        self._reach, self._shuffle = _reach(state["window"]), flag("shuffle", state["shuffle"])
        self._seed, self._epoch = seed, epoch
        self._start = self._position = rows
        self._begun = False
        self._iteration = object()

    def _check_same_dataset(self, its: Any) -> None:
        own = self.dataset.describe()
        if (
            isinstance(its, dict)
            and its.get("fingerprint") == own["fingerprint"]
            and its.get("split") == own["split"]
        ):
            return
        if not isinstance(its, dict):
            its = {"fingerprint": its}
        differing = [
            f"{key} {its[key]!r} there, {value!r} here"
            for key, value in own.items()
            if its.get(key, value) != value
        ]
        raise UsageError(
            f"The state is of another dataset than this loader reads; what differs: {'; '.join(differing)}. Open the "
            "dataset (or the partition) that the state was taken from, with the same filters and transforms."
        )

    def _check_share(self) -> None:
        each = self._per_rank(0)
        if self.tail == "drop" and 0 < each < self.batch_size:
            raise UsageError(
                f"drop_last=True leaves no batch: {each} rows a rank are fewer than batch_size={self.batch_size}. "
                "Use smaller batches, fewer ranks, or drop_last=False."
            )

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

    def _steps(self, position: int, iteration: object) -> Iterator[BatchSpan]:
        for span, end in self._spans(position):
            if self._iteration is iteration:
                self._position = end
            yield span

    def _spans(self, position: int) -> Iterator[tuple[BatchSpan, int]]:
        """The steps behind a position, each with the position behind the batches of all ranks."""
        ranks, rank, rows = self.world_size, self.rank, len(self.dataset)
        for start, stop in batch_bounds(self._per_rank(position), self.batch_size, self.tail):
            first = position + start * ranks + rank * (stop - start)
            yield (first, first + stop - start), min(position + stop * ranks, rows)

    def _batches(self, stream: EpochStream, epoch: int, position: int, iteration: object) -> Iterator[Any]:
        buffers, convert, transform = self._buffers, self._converted, self._transform
        gather: Gather = stream.views if self._views else stream.batch
        # Else the batches of a rank do not follow each other, or are made ahead.
        if not self._views and self.world_size == 1 and not isinstance(stream, AheadStream):
            dataset = self.dataset
            gather = several_at_once(stream.batch, dataset.schema, self.wanted, self.batch_size, len(dataset))

        def counted(made: Any, end: int) -> Any:
            if self._iteration is iteration:
                self._position = end
            return made

        try:
            for (first, last), end in self._spans(position):
                # No name for the batch here: it would keep the memory from being used again. It counts once it is
                # made: where an error comes instead, a state of then has it in the rest.
                if transform is None:
                    yield counted(convert(gather(first, last, buffers)), end)
                else:
                    yield counted(
                        _given(transform(convert(gather(first, last, buffers)), self._rng(epoch, first))), end
                    )
            self.dataset.check_not_written()
        finally:
            stream.close()

    def _converted(self, batch: Batch) -> Batch:
        for name, kind in self._arrow_types.items():
            if isinstance(batch[name], np.ndarray):  # not every dataset gives Arrow's
                batch[name] = pa.array(batch[name], kind)
        return self._convert(batch)

    def finished(self, batch: Batch, epoch: int, first: int) -> Any:
        """A batch of a stream, whose first row is at that position, as the loader yields it."""
        made = self._converted(batch)
        return made if self._transform is None else _given(self._transform(made, self._rng(epoch, first)))

    def changed(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool | None = None,
        convert: Callable[[Batch], Batch] | None = None,
        buffers: Buffers | None = None,
    ) -> Loader:
        """A loader at the same position, with changes to its share, its order, or the making of batches."""
        other = copy.copy(self)
        other.rank = self.rank if rank is None else rank
        other.world_size = self.world_size if world_size is None else world_size
        other._shuffle = self._shuffle if shuffle is None else shuffle
        other._convert = self._convert if convert is None else convert
        other._buffers = self._buffers if buffers is None else buffers
        other._spare = []
        other._iteration = object()
        other._check_share()
        return other

    def over(self, dataset: RowSource, *, seed: int, epoch: int) -> Loader:
        """A loader of other rows of the same columns, at the begin of an epoch, with this one's batches and order."""
        other = self.changed()
        other.dataset, other._reach = dataset, dataset.reach(WINDOW_BYTES)
        other._seed, other._epoch = seed, epoch
        other._start = other._position = 0
        other._begun = False
        return other

    @property
    def columns(self) -> list[str]:
        """The names in a batch."""
        return list(self.wanted)

    @property
    def shuffle(self) -> bool:
        """Whether the order is a permutation."""
        return self._shuffle

    @property
    def begun(self) -> bool:
        """Whether an iteration has begun since the loader was made or a state was loaded."""
        return self._begun

    @property
    def buffers(self) -> Buffers:
        """Buffers that batches are made in."""
        return self._buffers

    def _rng(self, epoch: int, first: int) -> np.random.Generator:
        return np.random.default_rng(
            derive_seed("transform", self._seed, epoch, self.dataset.fingerprint, first)
        )


def not_by_number() -> UsageError:
    """The error that ``loader[0]`` raises, and a DataLoader around a loader."""
    return UsageError(
        "A loader was asked for an item by number, but it gives whole batches in order. It is what a DataLoader is: "
        "iterate over it, without a DataLoader around it (output='torch' gives tensors). dataset[10:20] reads rows; "
        "DataLoader(hopyard.make_torch_dataset(dataset)) is for loops that must have one of their own."
    )


def _reach(window: Any) -> Reach:
    """The ``window`` of a state; of a mixture, one for each of its datasets."""
    if isinstance(window, list):
        return [_reach(each) for each in window]
    return None if window is None else integer("window", window, 1)


def _given(made: Any) -> Any:
    if made is None:
        raise UsageError(
            "transform(batch, rng) gave None for a batch. It must give what the loader yields: end it with return "
            "batch."
        )
    return made
