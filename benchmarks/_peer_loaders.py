"""The peers: each opened as its documentation says is fastest, over the same rows, shuffled.

``OPENERS[name](workload, root, rows)`` converts the data to the loader's own format, once, and returns a
function from the number of cores to named settings; each setting begins an epoch. The fastest is measured.
Loaders that keep tensors get the columns of W1 packed in two matrices; those that read Parquet read what
pandas or Spark wrote.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from _workloads import Arrays, Workload, made_once, parquet_files, raw_arrays

Settings = Callable[[int], dict[str, Callable[[], Iterable[Any]]]]
SHUFFLED_AT_ONCE = 4  # shuffle buffers hold this many batches, but no fewer rows than
LEAST_BUFFER = 10_000


def buffer_rows(workload: Workload, rows: int) -> int:
    return min(rows, max(SHUFFLED_AT_ONCE * workload.batch, LEAST_BUFFER))


def workers_of(cores: int) -> tuple[int, ...]:
    """Numbers of worker processes worth trying."""
    return (0,) if cores == 1 else (0, 2)


def sample(arrays: Arrays, index: int) -> dict[str, Any]:
    """One row, as loaders that store rows are given it."""
    row = {name: array[index] for name, array in arrays.items()}
    return {name: value.copy() if value.ndim else int(value) for name, value in row.items()}


def tensors(workload: Workload, root: Path, rows: int) -> TensorDataset:
    arrays = raw_arrays(workload, root, rows, mmap=False)
    return TensorDataset(*(torch.from_numpy(array) for array in arrays.values()))


def torch_tuned(workload: Workload, root: Path, rows: int) -> Settings:
    data = tensors(workload, root, rows)
    sampler = BatchSampler(RandomSampler(data), workload.batch, drop_last=False)
    return lambda cores: {
        f"tensors in memory, {workers} workers": partial(
            DataLoader, data, sampler=sampler, batch_size=None, num_workers=workers
        )
        for workers in workers_of(cores)
    }


def torch_default(workload: Workload, root: Path, rows: int) -> Settings:
    data = tensors(workload, root, rows)
    return lambda cores: {
        "tensors in memory": partial(DataLoader, data, batch_size=workload.batch, shuffle=True)
    }


def hugging_face(workload: Workload, root: Path, rows: int) -> Settings:
    import datasets

    datasets.disable_progress_bars()
    files = [str(path) for path in sorted(parquet_files(workload, root, rows).glob("*.parquet"))]
    place = workload.directory(root, rows)
    data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(place / "hf"))
    arrays = raw_arrays(workload, root, rows)
    fixed = {
        name: datasets.List(data.features[name].feature, length=array[0].size)
        for name, array in arrays.items()
        if array.ndim > 1 and name in data.features
    }
    for name, feature in fixed.items():  # lists of one length have a faster way to tensors
        data = data.cast_column(name, feature)
    batch, seeds = workload.batch, itertools.count()
    numeric = data.with_format("numpy")

    def batches() -> Iterator[Any]:
        order = np.random.default_rng(next(seeds)).permutation(rows)
        for start in range(0, rows, batch):
            yield numeric[order[start : start + batch]]

    def streamed() -> Iterator[Any]:
        stream = data.to_iterable_dataset(num_shards=16).with_format("numpy")
        stream = stream.shuffle(seed=next(seeds), buffer_size=buffer_rows(workload, rows))
        yield from stream.iter(batch_size=batch)

    def loader(workers: int) -> Iterable[Any]:
        return DataLoader(data.with_format("torch"), batch_size=batch, shuffle=True, num_workers=workers)

    return lambda cores: {
        "numpy format, batches of indices": batches,
        "iterable with a shuffle buffer": streamed,
        **{f"DataLoader, {workers} workers": partial(loader, workers) for workers in workers_of(cores)},
    }


def litdata(workload: Workload, root: Path, rows: int) -> Settings:
    import litdata

    arrays = raw_arrays(workload, root, rows)

    def as_tensors(index: int) -> dict[str, Any]:
        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in sample(arrays, index).items()
        }

    def make(directory: Path) -> None:
        litdata.optimize(
            as_tensors,
            list(range(rows)),
            str(directory),
            chunk_bytes="64MB",
            num_workers=1,
            start_method="fork",
            verbose=False,
        )

    directory = made_once(workload.directory(root, rows) / "litdata", make)

    def loader(workers: int) -> Iterable[Any]:
        data = litdata.StreamingDataset(str(directory), shuffle=True)
        return litdata.StreamingDataLoader(data, batch_size=workload.batch, num_workers=workers)

    return lambda cores: {f"{workers} workers": partial(loader, workers) for workers in workers_of(cores)}


def table_of(arrays: Arrays) -> Any:
    import pyarrow as pa

    def column(array: np.ndarray) -> pa.Array:
        values = pa.array(np.ascontiguousarray(array).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(values, array[0].size) if array.ndim > 1 else values

    return pa.table({name: column(array) for name, array in arrays.items()})


def lance(workload: Workload, root: Path, rows: int) -> Settings:
    import lance
    import pyarrow as pa

    arrays = raw_arrays(workload, root, rows)

    def make(directory: Path) -> None:
        lance.write_dataset(table_of(arrays), str(directory / "data"))

    data = lance.dataset(str(made_once(workload.directory(root, rows) / "lance", make) / "data"))
    rng = np.random.default_rng(0)

    def numbers(table: pa.Table, name: str) -> torch.Tensor:
        values = table.column(name).combine_chunks()
        wide = arrays[name].ndim > 1
        flat = np.asarray(values.flatten() if wide else values)
        return torch.from_numpy(flat.reshape(len(values), -1) if wide else flat)

    def takes(sort: bool) -> Iterator[Any]:
        order = rng.permutation(rows)
        for start in range(0, rows, workload.batch):
            indices = order[start : start + workload.batch]
            table = data.take(np.sort(indices) if sort else indices)
            yield [numbers(table, name) for name in arrays]

    return lambda cores: {
        "take of a permutation": partial(takes, False),
        "take, sorted in a batch": partial(takes, True),
    }


def lancedb(workload: Workload, root: Path, rows: int) -> Settings:
    import lancedb
    import pyarrow as pa
    from lancedb.streaming import StreamingDataset

    arrays = raw_arrays(workload, root, rows)

    def make(directory: Path) -> None:
        lancedb.connect(str(directory)).create_table("data", table_of(arrays))

    table = lancedb.connect(str(made_once(workload.directory(root, rows) / "lancedb", make))).open_table(
        "data"
    )

    def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        # Arrays instead of the lists that it makes by itself: the fastest that it allows.
        columns = {
            name: np.asarray(batch.column(name).flatten()).reshape(len(batch), -1)
            if arrays[name].ndim > 1
            else batch.column(name).to_numpy()
            for name in arrays
        }
        return [{name: values[row] for name, values in columns.items()} for row in range(len(batch))]

    def loader(clump: int | None, read: int) -> Iterable[Any]:
        data = StreamingDataset(
            table, shuffle_seed=None, read_batch_size=read, shuffle_clump_size=clump, transform=rows_of
        )
        return DataLoader(data, batch_size=workload.batch)

    return lambda cores: {
        f"StreamingDataset, clumps of {clump}, reads of {read}": partial(loader, clump, read)
        for clump, read in ((None, workload.batch), (64, 1024), (1024, 1024))
    }


def mosaic(workload: Workload, root: Path, rows: int) -> Settings:
    package = types.ModuleType("streaming")  # its __init__ imports torchvision, which none of this needs
    package.__path__ = list(importlib.util.find_spec("streaming").submodule_search_locations)  # type: ignore
    sys.modules["streaming"] = package
    from streaming.base import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    arrays = raw_arrays(workload, root, rows)
    kinds = {
        name: f"ndarray:{array.dtype}:{','.join(map(str, array.shape[1:]))}" if array.ndim > 1 else "int"
        for name, array in arrays.items()
    }

    def make(directory: Path) -> None:
        with MDSWriter(out=str(directory / "data"), columns=kinds) as writer:
            for index in range(rows):
                writer.write(sample(arrays, index))

    directory = made_once(workload.directory(root, rows) / "mosaic", make)

    def loader(workers: int) -> Iterable[Any]:
        clean_stale_shared_memory()
        data = StreamingDataset(local=str(directory / "data"), shuffle=True, batch_size=workload.batch)
        return StreamingDataLoader(data, batch_size=workload.batch, num_workers=workers)

    return lambda cores: {f"{workers} workers": partial(loader, workers) for workers in workers_of(cores)}


def webdataset(workload: Workload, root: Path, rows: int) -> Settings:
    import webdataset

    arrays = raw_arrays(workload, root, rows)
    kinds = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
    shards = 8

    def make(directory: Path) -> None:
        bounds = np.linspace(0, rows, shards + 1).astype(int)
        for shard, (start, stop) in enumerate(itertools.pairwise(bounds)):
            with webdataset.TarWriter(str(directory / f"{shard:03}.tar"), encoder=False) as writer:
                for index in range(start, stop):
                    record = {f"{name}.bin": array[index].tobytes() for name, array in arrays.items()}
                    writer.write({"__key__": f"{index:08}", **record})

    directory = made_once(workload.directory(root, rows) / "webdataset", make)
    urls = [str(path) for path in sorted(directory.glob("*.tar"))]

    def stack(records: list[dict[str, Any]]) -> list[torch.Tensor]:
        whole = []
        for name, (dtype, shape) in kinds.items():
            data = bytearray().join(record[f"{name}.bin"] for record in records)
            whole.append(torch.from_numpy(np.frombuffer(data, dtype).reshape(len(records), *shape)))
        return whole

    def loader(workers: int) -> Iterable[Any]:
        data = (
            webdataset.WebDataset(
                urls, shardshuffle=shards, workersplitter=webdataset.split_by_worker, empty_check=False
            )
            .shuffle(buffer_rows(workload, rows))
            .batched(workload.batch, collation_fn=stack)
        )
        return webdataset.WebLoader(data, batch_size=None, num_workers=workers)

    return lambda cores: {f"{workers} workers": partial(loader, workers) for workers in workers_of(cores)}


def ray_data(workload: Workload, root: Path, rows: int) -> Settings:
    import ray

    path = str(parquet_files(workload, root, rows))
    wide = {name for name, array in raw_arrays(workload, root, rows).items() if array.ndim > 1}

    def settings(cores: int) -> dict[str, Callable[[], Iterable[Any]]]:
        if ray.is_initialized():
            ray.shutdown()
        ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, object_store_memory=4 * 10**9)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        decoded = ray.data.read_parquet(path).materialize()

        def epoch() -> Iterator[Any]:
            yield from decoded.randomize_block_order().iter_torch_batches(
                batch_size=workload.batch, local_shuffle_buffer_size=buffer_rows(workload, rows)
            )

        def as_numpy() -> Iterator[Any]:
            for batch in decoded.randomize_block_order().iter_batches(
                batch_size=workload.batch, local_shuffle_buffer_size=buffer_rows(workload, rows)
            ):
                yield {
                    name: torch.from_numpy(
                        np.stack(column) if name in wide and column.dtype == object else column
                    )
                    for name, column in batch.items()
                }

        return {"materialized, torch batches": epoch, "materialized, numpy batches": as_numpy}

    return settings


def petastorm(workload: Workload, root: Path, rows: int) -> Settings:
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader, InMemBatchedDataLoader

    url = parquet_files(workload, root, rows).resolve().as_uri()
    seeds = itertools.count(1)

    def reader(workers: int) -> Any:
        return make_batch_reader(url, workers_count=workers, num_epochs=1, seed=next(seeds))

    def batched(workers: int) -> Iterator[Any]:
        begun = False
        while not begun:  # at times its readers end before they begin
            with reader(workers) as opened:
                for batch in BatchedDataLoader(
                    opened, workload.batch, shuffling_queue_capacity=buffer_rows(workload, rows)
                ):
                    begun = True
                    yield batch

    held: list[Iterator[Any]] = []

    def in_memory() -> Iterator[Any]:
        if not held:
            with reader(2) as opened:
                loader = InMemBatchedDataLoader(
                    opened, workload.batch, num_epochs=10**6, rows_capacity=rows, shuffle=True
                )
            held.append(iter(loader))
        return itertools.islice(held[0], -(-rows // workload.batch))

    return lambda cores: {
        **{
            f"BatchedDataLoader, {workers} threads": partial(batched, workers)
            for workers in range(1, cores + 1)
        },
        "InMemBatchedDataLoader": in_memory,
    }


OPENERS: dict[str, Callable[[Workload, Path, int], Settings]] = {
    "torch": torch_default,
    "torch-tuned": torch_tuned,
    "datasets": hugging_face,
    "litdata": litdata,
    "lance": lance,
    "lancedb": lancedb,
    "mosaic": mosaic,
    "webdataset": webdataset,
    "ray": ray_data,
    "petastorm": petastorm,
}
