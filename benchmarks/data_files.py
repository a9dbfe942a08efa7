"""First epochs over many small files, beside reading them all and indexing the columns in memory.

    python benchmarks/data_files.py [--files 2000] [--rows 1000] [--repeats 5]

Prints one JSON line for each peer: rows/s from opening the folder to the end of the first shuffled epoch, with an empty
node cache. Peers read the folder by ``pyarrow.parquet.read_table`` or polars (if it is installed) on all cores and take
shuffled batches of each column; they keep nothing for the next process. Ten columns are float32, one is int64.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from _first_epochs import BATCH, compare


def write(folder: Path, files: int, rows: int) -> None:
    random = np.random.default_rng(0)
    for number in range(files):
        columns = {f"f{column}": random.standard_normal(rows, np.float32) for column in range(10)}
        columns["label"] = random.integers(0, 2, rows)
        pq.write_table(pa.table(columns), folder / f"part-{number:05}.parquet")


def with_pyarrow(folder: Path) -> None:
    table = pq.read_table(folder)
    take([column.to_numpy() for column in table.columns])


def with_polars(folder: Path) -> None:
    import polars

    take([column.to_numpy() for column in polars.read_parquet(folder / "*.parquet")])


def take(columns: Sequence[npt.NDArray[Any]]) -> None:
    order = np.random.default_rng(0).permutation(len(columns[0]))
    for start in range(0, len(order), BATCH):
        for column in columns:
            column.take(order[start : start + BATCH])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = arguments.files * arguments.rows
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as directory:
        write(Path(directory), arguments.files, arguments.rows)
        compare(
            f"first epoch over {arguments.files} files of {arguments.rows} rows",
            Path(directory),
            rows,
            {"pyarrow": with_pyarrow} | ({"polars": with_polars} if find_spec("polars") else {}),
            arguments.repeats,
        )


if __name__ == "__main__":
    main()
