"""Speed of reading a dataset on this machine, beside the machine's limits.

The loop does nothing with its batches. The first epoch decodes data that is neither mapped nor in the node
cache; later ones find it there. Limits are measured afterwards, on the same rows:

* of later epochs, bare ``numpy.take(out=, mode="clip")`` from arrays in memory, with a permutation of the same
  rows in the same batches, columns side by side where the dataset has them so, alternating two outputs;
* of a first epoch that decodes, pyarrow reading the same columns of the same files on one thread.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hopyard.checks import integer
from hopyard.data.arguments import Output
from hopyard.data.base import BaseDataset
from hopyard.data.dataset import Dataset
from hopyard.data.files.stored import StoredFile
from hopyard.data.loader import Batches
from hopyard.data.opening.opening import open_dataset
from hopyard.data.order import WINDOW_BYTES, Rows, batch_bounds, epoch_windows, permutation
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.objects.digests import derive_seed
from hopyard.terminal import Shown
from hopyard.wording import describe_bytes, some_names

_SAMPLED_EVERY = 0.05  # seconds between looks at this process's memory
_LIMIT_BYTES = 256 << 20  # the gather limit is measured over at most so many bytes of rows
_LIMIT_SECONDS = 0.5  # of each measurement of it; the median counts
_LIMIT_TIMES = 5
_DECODE_SECONDS = 5.0
_QUALITY_BATCHES = 2000  # fewer: further epochs are drawn, as long as that is cheap
_QUALITY_EPOCHS = 20
_SAMPLED_ROWS = 1000
_NAMED_COLUMNS = 6
_GIGABYTE = 10**9


@dataclass(frozen=True)
class Epoch:
    """One pass over the dataset.

    Attributes:
        rows, batches: numbers of both in the pass; nbytes: of the values.
        seconds: of the pass; first_batch: from its start to the first batch.
        cpu_seconds: of all threads of this process.
        peak_anonymous: bytes, the most anonymous memory of the process (``RssAnon``) that was seen; None where
            the system does not tell.
        peak_shared: the same of memory files (``RssShmem``), which hold data that is decoded without a cache.
    """

    rows: int
    batches: int
    nbytes: int
    seconds: float
    first_batch: float
    cpu_seconds: float
    peak_anonymous: int | None
    peak_shared: int | None

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes / self.seconds

    @property
    def cpu_seconds_per_gigabyte(self) -> float:
        """Seconds of processor time per 10**9 bytes of values; 0 for rows without bytes."""
        return self.cpu_seconds * _GIGABYTE / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class Throughput(Shown):
    """Measurements of :func:`throughput`.

    Attributes:
        columns: of a batch.
        rows: of the dataset.
        batch_size, shuffle, output: of the loader.
        epochs: the first, which may have to decode, and later ones.
        anonymous_before: bytes of ``RssAnon`` before the first epoch, or None.
        decoded: columns that are decoded, not mapped.
        gather_limit: rows/s of bare ``numpy.take``; None if a column's rows differ in size.
        gather_rows: of so many rows, if not of all.
        decode_limit: rows/s of bare pyarrow; None if nothing is decoded, or files are not on this machine.
        window: rows that are permuted together; None: all.
        quality: see :func:`shuffle_quality`; None if it is not known of this kind of dataset.
    """

    columns: Schema
    rows: int
    batch_size: int
    shuffle: bool
    output: str
    epochs: tuple[Epoch, ...]
    anonymous_before: int | None
    decoded: tuple[str, ...]
    gather_limit: float | None
    gather_rows: int
    decode_limit: float | None
    window: int | None
    quality: float | None

    def __rich__(self) -> RenderableType:
        order = "shuffled" if self.shuffle else "in natural order"
        columns = some_names([str(column) for column in self.columns], _NAMED_COLUMNS)
        title = f"{self.rows:,} rows, batches of {self.batch_size:,}, {order}, as {self.output}: {columns}"
        return Group(Text(title), self._table(), *map(Text, self._explained()))

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in (
            "epoch", "rows/s", "bytes/s", "first batch", "CPU s/GB", "RssAnon", "RssShmem", "of limit",
        ):  # fmt: skip
            table.add_column(title, justify="right", no_wrap=True)
        for number, epoch in enumerate(self.epochs, start=1):
            table.add_row(
                str(number), f"{epoch.rows_per_second:,.0f}", f"{describe_bytes(epoch.bytes_per_second)}/s",
                f"{epoch.first_batch * 1000:,.1f} ms", f"{epoch.cpu_seconds_per_gigabyte:.2f}",
                *("" if peak is None else describe_bytes(peak) for peak in (epoch.peak_anonymous, epoch.peak_shared)),
                _share(epoch.rows_per_second, self._limit_of(number)),
            )  # fmt: skip
        if self.decode_limit is not None:
            table.add_row("pyarrow", f"{self.decode_limit:,.0f}", *[""] * 6)
        if self.gather_limit is not None:
            table.add_row("take", f"{self.gather_limit:,.0f}", *[""] * 6)
        return table

    def _limit_of(self, epoch: int) -> float | None:
        return self.decode_limit if epoch == 1 and self.decode_limit is not None else self.gather_limit

    def _explained(self) -> Iterator[str]:
        if self.decode_limit is not None:
            yield "pyarrow: bare decoding of the same columns on one thread, the limit of a first epoch"
        if self.gather_limit is not None:
            rows = f", over {self.gather_rows:,} rows" if self.gather_rows < self.rows else ""
            yield f"take: bare numpy.take from memory in the same batches{rows}, the limit of the others"
        if self.anonymous_before is not None:
            yield f"RssAnon was {describe_bytes(self.anonymous_before)} before the first epoch"
        if self.quality is not None:
            window = (
                "all rows are permuted together"
                if self.window is None
                else f"permuted in windows of {self.window:,} rows"
            )
            yield (
                f"order: batch means of the row number vary {self.quality:.2f} times as much as those of independent "
                f"draws{f' ({window})' if self.shuffle else ''}"
            )


def throughput(
    data: Any,
    batch_size: int = 1024,
    shuffle: bool = True,
    columns: Sequence[str] | None = None,
    epochs: int = 3,
    output: Output = "numpy",
    *,
    seed: int = 0,
    window: int | None = WINDOW_BYTES,
    batches: int | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Throughput:
    """Read a dataset and measure it.

    Args:
        data: a dataset, or anything that ``open_dataset`` takes.
        batch_size, shuffle, columns, output, seed, window: of the loader.
        epochs: number of passes; the first also decodes data that the node cache does not hold.
        batches: of each pass at most; None: all.
        progress: called with the phase, rows done and rows in all, some times a second.

    Raises:
        UsageError: an argument is impossible; also errors of ``open_dataset`` and ``Dataset.loader``.
    """
    for name, value in (("epochs", epochs), ("batches", 1 if batches is None else batches)):
        integer(name, value, 1)
    dataset = data if isinstance(data, BaseDataset) else open_dataset(data)
    loader = dataset.loader(batch_size, shuffle, seed, columns=columns, output=output, window=window)
    tell = progress or (lambda phase, done, total: None)
    names = loader.columns
    before = _memory()[0]
    passes = [
        _epoch(loader, len(dataset), batch_size, batches, functools.partial(tell, f"epoch {number}"))
        for number in range(1, epochs + 1)
    ]
    width = _row_bytes(dataset, names)
    known = dataset if isinstance(dataset, Dataset) else None
    decoded = [] if known is None else _decoded(known, names)
    gather, rows = _gather_limit(dataset, names, decoded, batch_size, shuffle, seed)
    return Throughput(
        dataset.schema.select(names), len(dataset), batch_size, shuffle, output,
        tuple(replace(each, nbytes=round(each.rows * width)) for each in passes), before, tuple(decoded),
        gather, rows, None if known is None else _decode_limit(known, decoded), _window_rows(dataset, window),
        None if known is None else shuffle_quality(known, batch_size, shuffle, seed, window),
    )  # fmt: skip


def _decoded(dataset: Dataset, names: Sequence[str]) -> list[str]:
    reader = dataset.reader()
    return [name for name in names if not reader.is_mapped(dataset.schema[name])]


def shuffle_quality(
    dataset: Dataset,
    batch_size: int,
    shuffle: bool = True,
    seed: int = 0,
    window: int | None = WINDOW_BYTES,
) -> float | None:
    """Distance of batches from independent draws: the standard deviation of their means of the row number, over
    that of the means of as many independent draws.

    A true permutation gives nearly 1 (a little less where a batch is a large part of all rows), windows of few
    rows more, the natural order most. It is of the whole dataset's order, not of a window's. Nothing is read.

    Returns:
        None if there are fewer rows than two batches.
    """
    rows = len(dataset)
    if rows < 2 * batch_size:
        return None
    reach = dataset.reach(window)
    assert not isinstance(reach, list)
    squares, count = 0.0, 0
    for epoch in range(_QUALITY_EPOCHS if shuffle else 1):
        distances = _batch_means(dataset.group_rows, seed, epoch, reach, shuffle, batch_size) - (rows - 1) / 2
        squares += float((distances**2).sum())
        count += len(distances)
        if count >= _QUALITY_BATCHES or count * batch_size >= _QUALITY_BATCHES * 1000:
            break
    drawn = math.sqrt((rows**2 - 1) / 12 / batch_size)
    return math.sqrt(squares / count) / drawn


def _batch_means(
    group_rows: Sequence[int], seed: int, epoch: int, reach: int | None, shuffle: bool, batch_size: int
) -> npt.NDArray[np.float64]:
    """The mean row number of each full batch of an epoch."""
    firsts = np.concatenate([[0], np.cumsum(group_rows)])
    means: list[npt.NDArray[np.float64]] = []
    rest: Rows = np.empty(0, np.int64)
    for window in epoch_windows(group_rows, seed, epoch, reach, shuffle):
        numbers = np.concatenate([np.arange(firsts[group], firsts[group + 1]) for group in window.groups])
        stream = np.concatenate([rest, numbers[window.order()]])
        full = len(stream) // batch_size * batch_size
        means.append(stream[:full].reshape(-1, batch_size).mean(axis=1))
        rest = stream[full:]
    return np.concatenate(means)


def _window_rows(dataset: BaseDataset, window: int | None) -> int | None:
    reach = dataset.reach(window)
    return None if isinstance(reach, list) else reach


def _epoch(
    loader: Batches, total: int, batch_size: int, batches: int | None, tell: Callable[[int, int], None]
) -> Epoch:
    """The next pass; its bytes are not counted yet."""
    if batches is not None:
        total = min(total, batches * batch_size)
    anonymous, shared = _memory()
    cpu, began = time.process_time(), time.perf_counter()
    first_batch = looked = 0.0
    count = rows = 0
    running = iter(loader)
    for _ in itertools.islice(running, batches):
        count += 1
        rows = min(rows + batch_size, total)
        now = time.perf_counter() - began
        if count == 1:
            first_batch = now
        if now - looked > _SAMPLED_EVERY:
            looked = now
            its = _memory()
            anonymous, shared = _larger(anonymous, its[0]), _larger(shared, its[1])
            tell(rows, total)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    its = _memory()
    del running  # ends what it has in the background, if it was left early
    return Epoch(
        rows, count, 0, seconds, first_batch, cpu, _larger(anonymous, its[0]), _larger(shared, its[1])
    )  # fmt: skip


def _memory() -> tuple[int | None, int | None]:
    """Bytes of anonymous memory of this process, and of memory files that it has mapped."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None, None
    found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)
             if name in ("RssAnon", "RssShmem")}  # fmt: skip
    return found.get("RssAnon"), found.get("RssShmem")


def _larger(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _row_bytes(dataset: BaseDataset, names: Sequence[str]) -> float:
    """Bytes of a row's values; where rows differ in size, as in the first rows."""
    columns = [dataset.schema[name] for name in names]
    fixed = sum(column.width for column in columns if column.width is not None)
    others = [column.name for column in columns if column.width is None]
    if not others:
        return fixed
    rows = np.arange(min(_SAMPLED_ROWS, len(dataset)))
    sample = dataset.take(rows, {name: name for name in others})
    return fixed + sum(_nbytes(values) for values in sample.values()) / len(rows)


def _nbytes(values: Any) -> int:
    if isinstance(values, Ragged):
        return values.values.nbytes + values.offsets.nbytes
    return sum(len(value.encode()) if isinstance(value, str) else len(value) for value in values)


def _gather_limit(
    dataset: BaseDataset,
    names: Sequence[str],
    decoded: Sequence[str],
    batch_size: int,
    shuffle: bool,
    seed: int,
) -> tuple[float | None, int]:
    """Rows/s of bare ``take`` in the loader's batches, and the number of rows it was measured over."""
    columns = [dataset.schema[name] for name in names]
    width = sum(column.width or 0 for column in columns)
    if any(column.width is None for column in columns) or not width:
        return None, 0
    rows = max(min(len(dataset), _LIMIT_BYTES // width), 1)
    sample = dataset.take(np.arange(rows), {name: name for name in names})
    arrays = _side_by_side([column for column in columns if column.name in decoded], sample)
    arrays += [sample[name] for name in names if name not in decoded]
    order = permutation(rows, derive_seed("order", seed, 0)) if shuffle else np.arange(rows)
    outs = [[np.empty((batch_size, *array.shape[1:]), array.dtype) for array in arrays] for _ in "ab"]
    speeds = sorted(_take_speed(arrays, order, outs, batch_size) for _ in range(_LIMIT_TIMES))
    return speeds[_LIMIT_TIMES // 2], rows


def _side_by_side(columns: Sequence[Column], sample: dict[str, Any]) -> list[npt.NDArray[Any]]:
    """Scalar columns of one dtype as one array, as decoded data lies; the others by themselves."""
    by_dtype: dict[str, list[npt.NDArray[Any]]] = {}
    for column in columns:
        key = column.name if column.shape else f"scalars of {column.dtype}"
        by_dtype.setdefault(key, []).append(sample[column.name])
    return [arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1) for arrays in by_dtype.values()]


def _take_speed(
    arrays: Sequence[npt.NDArray[Any]],
    order: Rows,
    outs: Sequence[Sequence[npt.NDArray[Any]]],
    batch_size: int,
) -> float:
    """Rows/s: whole passes, for a while."""
    done, began = 0, time.perf_counter()
    while True:
        for number, (first, last) in enumerate(batch_bounds(len(order), batch_size)):
            rows = order[first:last]
            for array, out in zip(arrays, outs[number % 2], strict=True):
                np.take(array, rows, axis=0, out=out[: last - first], mode="clip")
        done += len(order)
        seconds = time.perf_counter() - began
        if seconds > _LIMIT_SECONDS / _LIMIT_TIMES:
            return done / seconds


def _decode_limit(dataset: Dataset, decoded: Sequence[str]) -> float | None:
    """Rows/s of pyarrow alone, or None: nothing is decoded, or files are not on this machine."""
    needed = dataset.recipe.needs(decoded)
    rows, began = 0, time.perf_counter()
    for entry in dataset.manifest.files:
        file = StoredFile.open(dataset.store, entry.name)
        if file.path is None or not decoded:
            return None
        opened = file.parquet()
        for group, count in enumerate(entry.group_rows):
            opened.read_row_group(group, columns=needed, use_threads=False)
            rows += count
            if time.perf_counter() - began > _DECODE_SECONDS:
                return rows / (time.perf_counter() - began)
    return rows / (time.perf_counter() - began)


def _share(speed: float, limit: float | None) -> str:
    return "" if limit is None else f"{speed / limit:.2f}"
