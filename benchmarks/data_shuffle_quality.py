"""How well shuffled batches are mixed: means of a sorted column over the batches of one epoch.

    python benchmarks/data_shuffle_quality.py [--rows 1048576] [--batch 1024] [--window 65536]

One JSON line per result: the standard deviation of the batches' means (value), that of batches whose rows are
drawn independently (peer), and their ratio. 1 is a perfect mix; batches of consecutive rows have the square
root of the batch size. Parquet that is mapped is permuted as a whole. What must be decoded and does not fit
a window is permuted in windows of row groups: within a window the mix must be as good, and over the epoch
it is as good as the window is wide.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data import open_dataset

GROUPS = 64


def epoch_of(path: Path, batch: int, window: int) -> tuple[np.ndarray, int | None]:
    """(batches, batch): a shuffled epoch, and how many rows are permuted together (None: all)."""
    loader = open_dataset(path, cache=False).loader(batch, shuffle=True, window=window * 8)
    whole = [each["x"] for each in loader if len(each["x"]) == batch]
    return np.stack(whole), loader.state_dict()["window"]


def report(name: str, value: float, peer: float) -> None:
    line = {"name": name, "value": value, "unit": "standard deviation", "peer": peer, "ratio": value / peer}
    print(
        json.dumps({key: round(x, 4) if isinstance(x, float) else x for key, x in line.items()}), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--window", type=int, default=1 << 16, help="rows of a window")
    arguments = parser.parse_args()
    batch, window = arguments.batch, arguments.window
    group = arguments.rows // GROUPS
    x = np.arange(GROUPS * group) / (GROUPS * group)
    draws = np.random.default_rng(0).integers(0, len(x), (len(x) // batch, batch))
    independent = float(x[draws].mean(axis=1).std())
    with tempfile.TemporaryDirectory() as directory:
        mapped, decoded = Path(directory) / "mapped.parquet", Path(directory) / "decoded.parquet"
        table = pa.table({"x": pa.array(x)}, schema=pa.schema([pa.field("x", pa.float64(), nullable=False)]))
        pq.write_table(table, mapped, row_group_size=group, compression="none", use_dictionary=False)
        pq.write_table(table, decoded, row_group_size=group, compression="snappy")
        epoch, _ = epoch_of(mapped, batch, window)
        report("shuffle, mapped", float(epoch.mean(axis=1).std()), independent)
        epoch, together = epoch_of(decoded, batch, window)
    if together is None or together % group or together % batch or len(x) % together:
        parser.error(f"--window={window} gave windows of {together} rows, not whole row groups and batches")
    name = f"shuffle, windows of {together} of {len(x)} rows"
    windows = epoch.reshape(-1, together // batch, batch)  # each has rows of its own to draw from
    within = np.sqrt(windows.mean(axis=2).var(axis=1, ddof=1).mean())
    drawn = np.sqrt(windows.reshape(len(windows), -1).var(axis=1).mean() / batch)
    report(f"{name}, within a window", float(within), float(drawn))
    report(f"{name}, over the epoch", float(epoch.mean(axis=1).std()), independent)


if __name__ == "__main__":
    main()
