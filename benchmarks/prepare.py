"""How fast ``prepare`` is, beside ``pyarrow.parquet.write_table`` of the same rows in the same process.

    python benchmarks/prepare.py [--rows 200000] [--columns 768] [--scalar-rows 1000000] [--repeats 5]

Prints one JSON line per measurement: name, value, unit, peer (what the peer did, same unit), ratio.
``prepare`` also digests, shuffles, splits and computes statistics, and its files survive a power
failure; the peer only writes the array as one column of fixed-size lists, uncompressed and without
a dictionary, which is its best setting for these data. A table of 40 scalar columns (13 float32, 26
int64, an int64 label) is prepared from a Parquet file; there the peer reads the file, shuffles the table
by ``take`` and writes it. MB are of decoded data.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data import prepare
from hopyard.storage import LocalStore


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def write_with_pyarrow(values: np.ndarray, directory: Path) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    pq.write_table(
        pa.table({"features": lists}),
        directory / "peer.parquet",
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )


def write_bytes_with_pyarrow(values: np.ndarray, directory: Path) -> None:
    kind = pa.binary(values.shape[1] * values.itemsize)
    column = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    pq.write_table(
        pa.table({"features": column}),
        directory / "peer.parquet",
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )


def write_scalars(rows: int, path: Path) -> int:
    """A Parquet file of 40 scalar columns as pandas writes it; its decoded bytes."""
    random = np.random.default_rng(0)
    columns = {f"f{i}": random.random(rows, np.float32) for i in range(13)}
    columns |= {f"c{i}": random.integers(0, 100_000, rows) for i in range(26)}
    columns["label"] = random.integers(0, 2, rows)
    pq.write_table(pa.table(columns), path)
    return sum(column.nbytes for column in columns.values())


def shuffle_with_pyarrow(path: Path, directory: Path) -> None:
    table = pq.read_table(path)
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    pq.write_table(
        shuffled, directory / "peer.parquet", compression="none", use_dictionary=False, write_statistics=False
    )


def measure_scalars(rows: int, repeats: int) -> None:
    taken: dict[str, list[float]] = {"prepare": [], "peer": []}
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as temporary:
        source = Path(temporary) / "scalars.parquet"
        nbytes = write_scalars(rows, source)
        for number in range(repeats):
            directory = Path(temporary) / str(number)
            store = LocalStore(directory / "store")
            taken["prepare"].append(seconds(lambda: prepare(source, store, validation=None)))  # noqa: B023
            taken["peer"].append(seconds(lambda: shuffle_with_pyarrow(source, directory)))  # noqa: B023
            shutil.rmtree(directory)
    median = {name: statistics.median(times) for name, times in taken.items()}
    print_lines(
        "prepare of 40 scalar columns, against read, take and write_table", rows, nbytes, *median.values()
    )


def print_lines(name: str, rows: int, nbytes: int, ours: float, peer: float) -> None:
    for unit, amount in (("rows/s", rows), ("MB/s", nbytes / 1e6)):
        line = {
            "name": name,
            "value": round(amount / ours, 1),
            "unit": unit,
            "peer": round(amount / peer, 1),
            "ratio": round(peer / ours, 3),
        }
        print(json.dumps(line))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--scalar-rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    values = np.random.default_rng(0).random((options.rows, options.columns), np.float32)
    peers = {"lists": write_with_pyarrow, "fixed binary": write_bytes_with_pyarrow}
    taken: dict[str, list[float]] = {name: [] for name in ("prepare", "reuse", *peers)}
    for _ in range(options.repeats):
        directory = Path(tempfile.mkdtemp(prefix="hopyard-bench-"))
        store = LocalStore(directory / "store")
        taken["prepare"].append(seconds(lambda: prepare({"features": values}, store)))  # noqa: B023
        taken["reuse"].append(seconds(lambda: prepare({"features": values}, store)))  # noqa: B023
        for name, write in peers.items():
            taken[name].append(seconds(lambda: write(values, directory)))  # noqa: B023
        shutil.rmtree(directory)
    median = {name: statistics.median(times) for name, times in taken.items()}
    for name in ("prepare", "reuse"):
        for peer in peers:
            what = f"{name}, against write_table of {peer}"
            print_lines(what, options.rows, values.nbytes, median[name], median[peer])
    measure_scalars(options.scalar_rows, options.repeats)


if __name__ == "__main__":
    main()
