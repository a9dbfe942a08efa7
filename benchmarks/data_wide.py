"""First epochs over wide frames, beside reading the table, copying it into one array and indexing that.

    python benchmarks/data_wide.py [--mb 80,200] [--rows 50000] [--columns 100,500,2000] [--repeats 5]

Prints one JSON line per number of columns and size, in megabytes or rows: rows/s from opening the file to the end of
the first shuffled epoch, with an empty node cache. The peer reads the file by ``pyarrow.parquet.read_table`` on all
cores, copies its columns into one (rows, columns) array and takes shuffled batches of it; it keeps nothing for the next
process. Columns are float32, in row groups of 10,000 rows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _first_epochs import BATCH, compare


def write(path: Path, rows: int, columns: int) -> None:
    random = np.random.default_rng(0)
    table = {f"f{number:04}": random.standard_normal(rows, np.float32) for number in range(columns)}
    pq.write_table(pa.table(table), path, row_group_size=10_000)


def with_pyarrow(path: Path) -> None:
    table = pq.read_table(path)
    rows = np.empty(table.shape, np.float32)
    for number, column in enumerate(table.columns):
        rows[:, number] = column.to_numpy()
    order = np.random.default_rng(0).permutation(len(rows))
    for start in range(0, len(rows), BATCH):
        np.take(rows, order[start : start + BATCH], axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", default="80,200")
    parser.add_argument("--rows", default="50000")
    parser.add_argument("--columns", default="100,500,2000")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for columns in map(int, arguments.columns.split(",")):
        sizes = [int(each) * 1_000_000 // (4 * columns) for each in arguments.mb.split(",") if each]
        for rows in (*sizes, *(int(each) for each in arguments.rows.split(",") if each)):
            with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as directory:
                path = Path(directory) / "wide.parquet"
                write(path, rows, columns)
                name = f"first epoch over {columns} float32 columns x {rows} rows"
                compare(name, path, rows, {"read_table and a copy": with_pyarrow}, arguments.repeats)


if __name__ == "__main__":
    main()
