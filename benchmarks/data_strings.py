"""Later shuffled epochs over columns of strings, beside what holds them in memory.

    python benchmarks/data_strings.py [--rows 400000] [--repeats 5]

Ten columns of strings and five of float32 in Parquet, in row groups of 50,000 rows. Of the strings, five columns hold
50 to 250 different ones of 10 to 12 bytes, and five hold others in every row: 24 to 27 bytes (``mixed``); or all are
of the first (``few``) or the second kind (``many``). Prints one JSON line for each kind and peer: rows/s of shuffled
batches, hot caches. Peers hold the table in memory and take the rows of a permutation: NumPy object arrays, which is
the best that a DataLoader can do, Arrow, and polars (if it is installed): its frames, taken by all cores, whose long
strings stay where they were; and these as arrays, as batches hold them. Hopyard's batches hold object arrays, or, where
a line says so, Arrow arrays or numbers of categories.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data import Category, NodeCache, fit_steps, open_dataset
from hopyard.data.dataset import Dataset

BATCH = 1024


def write(path: Path, rows: int, kind: str) -> None:
    random = np.random.default_rng(0)
    table = {}
    for number in range(10):
        if kind == "few" or (kind == "mixed" and number < 5):
            numbers = random.integers(0, 50 * (number % 5 + 1), rows)
            table[f"s{number}"] = [f"category-{each}" for each in numbers]
        else:
            numbers = random.integers(10**8, 10**9, rows)
            table[f"s{number}"] = [f"user {each} of town {each % 97}" for each in numbers]
    floats = {f"x{number}": random.standard_normal(rows, np.float32) for number in range(5)}
    pq.write_table(pa.table({**table, **floats}), path, row_group_size=50_000)


def peers_of(path: Path) -> dict[str, Callable[[np.ndarray], object]]:
    """Of each, what gives a batch of the rows of these numbers."""
    table = pq.read_table(path)
    columns = {
        name: np.array(column.to_pylist(), object) if name[0] == "s" else column.to_numpy()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    peers: dict[str, Callable[[np.ndarray], object]] = {
        "object arrays": lambda rows: {name: values[rows] for name, values in columns.items()},
        "Arrow": table.combine_chunks().take,
    }
    try:
        import polars
    except ModuleNotFoundError:
        return peers
    frame = polars.read_parquet(path).rechunk()
    peers["polars"] = frame.__getitem__
    peers["polars as arrays"] = lambda rows: {each.name: each.to_numpy() for each in frame[rows]}
    return peers


def theirs(take: Callable[[np.ndarray], object], rows: int) -> None:
    order = np.random.default_rng(0).permutation(rows)
    for start in range(0, rows, BATCH):
        take(order[start : start + BATCH])


def ours(dataset: Dataset, strings: str = "objects") -> None:
    for _ in dataset.loader(BATCH, shuffle=True, output="numpy", strings=strings):
        pass


def seconds(action: Callable[..., None], *arguments: object) -> float:
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started


def measure(path: Path, rows: int, kind: str, repeats: int) -> None:
    dataset = open_dataset(path, cache=NodeCache(path.parent / "cache"))
    name = f"later epochs over 10 columns of strings ({kind}) and 5 of float32"
    ours(dataset)  # decoded
    peers = peers_of(path)
    for peer, how in [*((peer, "objects") for peer in peers), ("Arrow", "arrow")]:
        pairs = [(seconds(ours, dataset, how), seconds(theirs, peers[peer], rows)) for _ in range(repeats)]
        line = {
            "name": f"{name}, {'as Arrow arrays, ' if how == 'arrow' else ''}peer {peer}",
            "value": round(rows / statistics.median(mine for mine, _ in pairs)),
            "unit": "rows/s",
            "peer": round(rows / statistics.median(its for _, its in pairs)),
            "ratio": round(statistics.median(its / mine for mine, its in pairs), 3),
        }
        print(json.dumps(line), flush=True)
    if kind == "few":
        codes = fit_steps([Category(*(f"s{number}" for number in range(10)))], dataset).of(dataset)
        median = statistics.median(seconds(ours, codes) for _ in range(repeats))
        line = {"name": f"{name}, as numbers of categories", "value": round(rows / median), "unit": "rows/s"}
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for kind in ("mixed", "few", "many"):
        with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as directory:
            path = Path(directory) / "strings.parquet"
            write(path, arguments.rows, kind)
            measure(path, arguments.rows, kind, arguments.repeats)


if __name__ == "__main__":
    main()
