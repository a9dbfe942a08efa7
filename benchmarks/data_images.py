"""First epochs over images as arrays, compressed by snappy, beside reading them all and indexing one array in memory.

    python benchmarks/data_images.py [--rows 2000] [--repeats 5]

Prints one JSON line: rows/s from opening the file to the end of the first shuffled epoch, with an empty node cache.
Rows are uint8[3, 224, 224], as fixed-size lists in row groups of 200. The peer reads the file by
``pyarrow.parquet.read_table`` on all cores, makes one array of it and takes shuffled batches; it keeps nothing for the
next process.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _first_epochs import BATCH, compare

SIZE = 3 * 224 * 224


def write(path: Path, rows: int) -> None:
    """Images of smooth surfaces with some noise, which snappy makes somewhat smaller."""
    random = np.random.default_rng(0)
    pixels = np.repeat(random.integers(0, 256, rows * SIZE // 16 + 1, np.uint8), 16)[: rows * SIZE]
    noisy = random.random(len(pixels), np.float32) < 0.1
    pixels[noisy] += 1
    images = pa.FixedSizeListArray.from_arrays(pa.array(pixels), SIZE)
    pq.write_table(pa.table({"image": images, "label": np.arange(rows)}), path, row_group_size=200)


def with_pyarrow(path: Path) -> None:
    table = pq.read_table(path)
    label = table["label"].to_numpy()
    image = table["image"].combine_chunks().flatten().to_numpy().reshape(-1, 3, 224, 224)
    order = np.random.default_rng(0).permutation(len(table))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        image.take(rows, axis=0), label.take(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as directory:
        path = Path(directory) / "images.parquet"
        write(path, arguments.rows)
        name = f"first epoch over {arguments.rows} images, uint8[3, 224, 224], snappy"
        compare(name, path, arguments.rows, {"pyarrow": with_pyarrow}, arguments.repeats)


if __name__ == "__main__":
    main()
