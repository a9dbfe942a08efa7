"""How fast ``prepare`` is, beside ``pyarrow.parquet.write_table`` of the same rows in the same process.

    python benchmarks/prepare.py [--rows 200000] [--columns 768] [--repeats 5]

Prints one JSON line per measurement: name, value, unit, peer (what the peer did, same unit), ratio.
``prepare`` also digests, shuffles, splits and computes statistics, and its files survive a power
failure; the peer only writes the array as one column of fixed-size lists, uncompressed and without
a dictionary, which is its best setting for these data.
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=768)
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
            for unit, amount in (("rows/s", options.rows), ("MB/s", values.nbytes / 1e6)):
                line = {
                    "name": f"{name}, against write_table of {peer}",
                    "value": round(amount / median[name], 1),
                    "unit": unit,
                    "peer": round(amount / median[peer], 1),
                    "ratio": round(median[peer] / median[name], 3),
                }
                print(json.dumps(line))


if __name__ == "__main__":
    main()
