"""Hopyard as a loader of the benchmarks, and the limits of the machine beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from _workloads import Workload, made_once, parquet_files, raw_arrays
from hopyard.data import open_dataset, prepare
from hopyard.data.cache.node import NodeCache
from hopyard.data.dataset import Dataset
from hopyard.storage import LocalStore

Settings = Callable[[int], dict[str, Callable[[], Iterator[Any]]]]
PREPARED = ("W3", "W4")  # the others are read as they lie, through the node cache


def dataset_of(workload: Workload, root: Path, rows: int, cache: Path) -> Dataset:
    if workload.name not in PREPARED:
        return open_dataset(parquet_files(workload, root, rows), cache=NodeCache(cache))

    def make(directory: Path) -> None:
        prepare(dict(raw_arrays(workload, root, rows)), LocalStore(directory), validation=None)

    return open_dataset(made_once(workload.directory(root, rows) / "hopyard", make))


def warm(workload: Workload, root: Path, rows: int) -> Settings:
    """Later epochs: what is not mapped as it lies is in the node cache."""
    cache = workload.directory(root, rows) / "node-cache"
    dataset = dataset_of(workload, root, rows, cache)
    loader = dataset.loader(workload.batch, shuffle=True, columns=workload.columns, output="torch")
    for _ in loader:  # decodes into the cache, or finds it there
        pass

    def epoch() -> Iterator[Any]:
        yield from loader

    return lambda cores: {"": epoch}


def cold(workload: Workload, root: Path, rows: int) -> Settings:
    """First epochs, each with a new dataset and an empty node cache."""
    cache = workload.directory(root, rows) / "node-cache-cold"

    def epoch() -> Iterator[Any]:
        dataset = dataset_of(workload, root, rows, cache)
        yield from dataset.loader(workload.batch, shuffle=True, columns=workload.columns, output="torch")

    def forget() -> None:
        shutil.rmtree(cache, ignore_errors=True)

    epoch.before = forget  # type: ignore[attr-defined]
    return lambda cores: {"": epoch}


def take(workload: Workload, root: Path, rows: int) -> Settings:
    """The limit of a shuffled epoch: one take a block and batch into two alternating buffers.

    The blocks are those of the node cache (columns of one dtype side by side), in memory. The permutation
    is made beforehand.
    """
    blocks = [array.reshape(rows, -1) for array in raw_arrays(workload, root, rows, mmap=False).values()]
    order = np.random.default_rng(0).permutation(rows)
    batch = workload.batch
    pair = [[np.empty((batch, block.shape[1]), block.dtype) for block in blocks] for _ in range(2)]

    def epoch() -> Iterator[Any]:
        for number, start in enumerate(range(0, rows, batch)):
            indices = order[start : start + batch]
            buffers = [buffer[: len(indices)] for buffer in pair[number % 2]]
            for block, buffer in zip(blocks, buffers, strict=True):
                np.take(block, indices, axis=0, out=buffer, mode="clip")
            yield [torch.from_numpy(buffer) for buffer in buffers]

    return lambda cores: {"": epoch}


def decode(workload: Workload, root: Path, rows: int) -> Settings:
    """The limit of a first epoch: pyarrow decodes every row group in one thread, and nothing is done with it.

    Files are read, not mapped, as the loader reads files of others: cutting one that is mapped ends the process.
    """
    files = sorted(parquet_files(workload, root, rows).glob("*.parquet"))

    def epoch() -> Iterator[Any]:
        for path in files:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    file.read_row_group(group, use_threads=False)
        yield torch.zeros(rows)

    return lambda cores: {"": epoch}


def memcpy(workload: Workload, root: Path, rows: int) -> Settings:
    """The limit of any epoch: its bytes, copied in order, a batch at a time, into two alternating buffers."""
    blocks = [array.reshape(rows, -1) for array in raw_arrays(workload, root, rows, mmap=False).values()]
    batch = workload.batch
    pair = [[np.empty((batch, block.shape[1]), block.dtype) for block in blocks] for _ in range(2)]

    def epoch() -> Iterator[Any]:
        for number, start in enumerate(range(0, rows, batch)):
            for block, buffer in zip(blocks, pair[number % 2], strict=True):
                part = block[start : start + batch]
                np.copyto(buffer[: len(part)], part)
        yield torch.zeros(rows)

    return lambda cores: {"": epoch}


OPENERS: dict[str, Callable[[Workload, Path, int], Settings]] = {
    "hopyard": warm,
    "hopyard-cold": cold,
    "take": take,
    "decode": decode,
    "memcpy": memcpy,
}
