"""First epochs over many small files, beside reading them all and indexing the columns in memory.

    python benchmarks/data_files.py [--files 2000] [--rows 1000] [--repeats 5]

Prints one JSON line: rows/s from opening the folder to the end of the first shuffled epoch, with an empty node cache.
The peer reads the folder by ``pyarrow.parquet.read_table`` on all cores and takes shuffled batches of each column; it
keeps nothing for the next process. Ten columns are float32, one is int64.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
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
    columns = [column.to_numpy() for column in table.columns]
    order = np.random.default_rng(0).permutation(len(table))
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
            with_pyarrow,
            arguments.repeats,
        )


if __name__ == "__main__":
    main()
