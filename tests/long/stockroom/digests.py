"""A stockroom of many kinds of content; prints the digest of its root map, which depends on content alone.

    python -m tests.long.stockroom.digests FOLDER

Under whatever versions of PyArrow, NumPy and PyTorch it runs, the digest is the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hopyard import StockRoom
from hopyard.stockroom.session.tree import root_of


def main(folder: Path) -> str:
    numbers = np.arange(5000)
    table = pa.table(
        {
            "x": numbers / 7,
            "label": numbers % 9,
            "text": [f"text {number}" for number in numbers],
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(10000, dtype="f4")), 2),
        }
    )
    pq.write_table(table, folder / "rows.parquet", row_group_size=1000)
    lines = table.drop_columns("pair").rename_columns(["csv x", "csv label", "csv text"])
    pa.csv.write_csv(lines, folder / "rows.csv")
    with StockRoom.init(folder / "room") as stock:
        with stock.enable_write():
            stock.data["image"] = np.arange(3000 * 16, dtype="f4").reshape(3000, 16)
            stock.data["name"] = [f"é{number}" for number in range(500)]
            stock.data["varying"] = [np.arange(number % 7, dtype="i2") for number in range(300)]
            stock.model["net"] = {"weight": np.arange(4096, dtype="f8").reshape(64, 64), "step": 3}
            stock.experiment["lr"] = 0.01
        for kind in ("parquet", "csv"):
            stock.import_from(kind, folder / f"rows.{kind}")
        return str(root_of(stock.local, stock.head.commit))


if __name__ == "__main__":
    print(pa.__version__, main(Path(sys.argv[1])))
