"""How much memory of its own a process needs to read a dataset larger than that.

    python benchmarks/memory.py [--gigabytes 2]

A prepared dataset is written, a fresh process iterates over one shuffled epoch of it, and its
highest RssAnon is printed as a JSON line (Linux only; the page cache, which holds mapped files, is
not a process's own). The peer is the limit of 500 MB. The data is deleted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import MANIFEST_NAME, Manifest
from hopyard.data.opening import open_dataset
from hopyard.data.parquet import FileWriter
from hopyard.data.schema import Column, Schema

WIDTH = 768
GROUP_ROWS = 8192
GROUPS_PER_FILE = 8
LIMIT_MB = 500


def write(directory: Path, size: int) -> None:
    """A prepared dataset of about ``size`` bytes."""
    schema = Schema([Column("features", "tensor", "float32", (WIDTH,)), Column("label", "tensor", "int64")])
    features = np.random.default_rng(0).random((GROUP_ROWS, WIDTH), np.float32)
    groups = -(-size // (GROUP_ROWS * (4 * WIDTH + 8)))
    entries = []
    for first in range(0, groups, GROUPS_PER_FILE):
        writer = FileWriter(directory / "temporary", schema)
        for group in range(first, min(first + GROUPS_PER_FILE, groups)):
            labels = np.arange(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
            features[:, 0] = labels  # no two row groups, and so no two files, are equal
            writer.write({"features": features, "label": labels})
        entries.append(writer.close())
        (directory / "temporary").rename(directory / entries[-1].name)
    manifest = Manifest("train", f"benchmark of {size} bytes", schema, tuple(entries))
    (directory / MANIFEST_NAME).write_bytes(manifest.to_bytes())


def anonymous_mb() -> float:
    """Memory of this process that is no file's, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024 / 1e6


def iterate(directory: str) -> None:
    """One shuffled epoch; prints its rows and the highest RssAnon seen."""
    dataset: Dataset = open_dataset(directory)
    highest, rows = anonymous_mb(), 0
    for number, batch in enumerate(dataset.loader(1024, shuffle=True)):
        rows += len(batch["label"])
        if number % 16 == 0:
            highest = max(highest, anonymous_mb())
    print(json.dumps({"rows": rows, "mb": max(highest, anonymous_mb())}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--iterate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.iterate:
        iterate(arguments.iterate)
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        write(Path(directory), int(arguments.gigabytes * 1e9))
        child = [sys.executable, __file__, "--iterate", directory]
        found = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    name = f"RssAnon of an epoch over {arguments.gigabytes:g} GB ({found['rows']} rows)"
    line = {"name": name, "value": round(found["mb"], 1), "unit": "MB", "peer": LIMIT_MB}
    print(json.dumps({**line, "ratio": round(found["mb"] / LIMIT_MB, 3)}))


if __name__ == "__main__":
    main()
