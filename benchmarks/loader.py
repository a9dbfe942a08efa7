"""How fast a loader is beside the limit of the machine and beside PyTorch's DataLoader.

    python benchmarks/loader.py [--rows 120000] [--pairs 3] [--cpu-time]

One JSON line per result: name, value and peer in rows/s, and their ratio (medians of interleaved
pairs on the same rows, dtypes, batch size and shuffle, feeding the same consumer).

* ``wide``: float32[768] and an int64 label, batch 1,024, against ``numpy.take(out=, mode="clip")``
  with the same indices and two alternating buffers, and against DataLoaders over tensors in memory.
* ``overhead``: 64 float32 and an int64 label, batch 256, one partition of eight: microseconds a
  batch above the bare takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.order import epoch_windows
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.schema import Column, Schema
from hopyard.storage import LocalStore

GROUPS = 24
CLOCK = time.perf_counter


def write_dataset(
    directory: Path, rows: int, width: int, files: int = 1
) -> tuple[Dataset, np.ndarray, np.ndarray]:
    """A prepared dataset of ``rows`` rows in ``files`` files, and its arrays."""
    rng = np.random.default_rng(0)
    values = {"features": rng.random((rows, width), np.float32), "label": rng.integers(0, 10, rows)}
    schema = Schema([Column("features", "tensor", "float32", (width,)), Column("label", "tensor", "int64")])
    size = rows // GROUPS
    entries = []
    for number in range(files):
        temporary = directory / "temporary"
        writer = FileWriter(temporary, schema)
        for group in range(number * GROUPS // files, (number + 1) * GROUPS // files):
            writer.write({name: array[group * size : (group + 1) * size] for name, array in values.items()})
        entries.append(writer.close())
        temporary.rename(directory / entries[-1].name)
    manifest = Manifest("train", f"benchmark of {rows} x {width}", schema, tuple(entries))
    kept = GROUPS * size
    return Dataset(LocalStore(directory), manifest), values["features"][:kept], values["label"][:kept]


def bare_takes(
    features: np.ndarray, labels: np.ndarray, order: np.ndarray, batch: int
) -> Iterator[torch.Tensor]:
    """The limit: one take a column into two alternating buffers."""
    buffers = [
        (np.empty((batch, features.shape[1]), np.float32), np.empty(batch, np.int64)) for _ in range(2)
    ]
    for number, start in enumerate(range(0, len(order), batch)):
        rows = order[start : start + batch]
        x, y = (buffer[: len(rows)] for buffer in buffers[number % 2])
        np.take(features, rows, axis=0, out=x, mode="clip")
        np.take(labels, rows, axis=0, out=y, mode="clip")
        yield torch.from_numpy(x)


def consume(batches: Iterator[torch.Tensor]) -> float:
    """Seconds to sum every batch."""
    start = CLOCK()
    for x in batches:
        x.sum()
    return CLOCK() - start


def compare(ours: Callable[[], float], peer: Callable[[], float], pairs: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the pairs' ratios peer / ours."""
    times = []
    for pair in range(pairs):
        if pair % 2:
            theirs, own = peer(), ours()
        else:
            own, theirs = ours(), peer()
        times.append((own, theirs))
    own, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    return own, theirs, statistics.median(theirs / own for own, theirs in times)


def report(name: str, value: float, unit: str, peer: float, ratio: float) -> None:
    line = {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "peer": round(peer, 2),
        "ratio": round(ratio, 3),
    }
    print(json.dumps(line), flush=True)


def wide(directory: Path, rows: int, pairs: int, files: int) -> None:
    batch = 1024
    dataset, features, labels = write_dataset(directory, rows, 768, files)
    rows = len(dataset)
    loader = dataset.loader(batch, shuffle=True, output="torch")
    suffix = f"{files} files" if files > 1 else "1 file"

    def ours() -> float:
        return consume(batch["features"] for batch in loader)

    order = epoch_windows(dataset.group_rows, 0, 0)[0].order()

    def limit() -> float:
        return consume(bare_takes(features, labels, order, batch))

    first = ours()  # page cache is warm: the file was just written
    limit()
    own, theirs, ratio = compare(ours, limit, pairs)
    report(
        f"loader float32[768] batch 1024, {suffix}, against numpy.take",
        rows / own,
        "rows/s",
        rows / theirs,
        ratio,
    )
    report(
        f"loader float32[768] batch 1024, {suffix}, first epoch against later ones",
        rows / first,
        "rows/s",
        rows / own,
        own / first,
    )
    if files > 1:
        return
    tensors = TensorDataset(torch.from_numpy(features), torch.from_numpy(labels))
    tuned = DataLoader(
        tensors, sampler=BatchSampler(RandomSampler(tensors), batch, drop_last=False), batch_size=None
    )
    default = DataLoader(tensors, batch_size=batch, shuffle=True)
    for name, peer in ("tuned", tuned), ("default", default):
        own, theirs, ratio = compare(ours, lambda peer=peer: consume(x for x, _ in peer), max(pairs // 3, 1))
        report(
            f"loader float32[768] batch 1024 against a {name} DataLoader",
            rows / own,
            "rows/s",
            rows / theirs,
            ratio,
        )


def overhead(directory: Path, rows: int, pairs: int) -> None:
    batch = 256
    dataset, features, labels = write_dataset(directory, rows, 64)
    part = dataset.partitions(8)[0]
    loader = part.loader(batch, shuffle=True, output="torch")
    features, labels = features[: len(part)].copy(), labels[: len(part)].copy()

    def ours() -> float:
        return consume(batch["features"] for batch in loader)

    order = epoch_windows(part.group_rows, 0, 0)[0].order()

    def limit() -> float:
        return consume(bare_takes(features, labels, order, batch))

    ours(), limit()
    own, theirs, _ = compare(ours, limit, 4 * pairs)
    beyond, bare = (1e6 * seconds / len(loader) for seconds in (own - theirs, theirs))
    report(
        "loader beyond numpy.take, 64 float32 and a label, batch 256", beyond, "us/batch", bare, beyond / bare
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--cpu-time", action="store_true", help="of this thread, for machines shared with others"
    )
    arguments = parser.parse_args()
    if arguments.cpu_time:
        global CLOCK
        CLOCK = time.thread_time
    torch.set_num_threads(1)
    for files in (1, 4):
        with tempfile.TemporaryDirectory() as directory:
            wide(Path(directory), arguments.rows, arguments.pairs, files)
    with tempfile.TemporaryDirectory() as directory:
        overhead(Path(directory), arguments.rows, arguments.pairs)


if __name__ == "__main__":
    main()
