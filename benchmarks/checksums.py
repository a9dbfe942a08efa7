"""Claim: comparing data with its checksums costs a first epoch at most the checksums' own time on all cores.

A first shuffled epoch of prepared data in batches of 1,024 rows, by a new process with a new node cache, from opening
to the last batch. Once all is compared with its checksums, as on a machine that has not read the data since it started;
once nothing is, because the machine's memory of what is good (``data/cache/known.py``) is copied into the new cache
from the epoch before. Pairs, in turns. The limit is xxh3-64 alone of the same bytes on all cores, in mapped pages.
Of data that is decoded or comes from the disk the claim is 5% of the epoch instead.

    python benchmarks/checksums.py [--repeats 7] [--scale 1]

One JSON object a line: name, value (what checking adds; the difference of the minima), unit, peer (what the
claim allows), ratio (value / peer; at most 1 is as claimed), and what the epoch takes without checks.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from hopyard.data import open_dataset, prepare
from hopyard.data.cache.files import KNOWN
from hopyard.data.cache.files import prepare as prepare_cache
from hopyard.storage import LocalStore

BATCH, PART, SHARE = 1024, 4 << 20, 0.05


def vectors(scale: float) -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((int(200_000 * scale), 768), np.float32)}


def columns(scale: float) -> dict[str, Any]:
    table = np.random.default_rng(0).standard_normal((1000, int(50_000 * scale)), np.float32)
    return {f"f{number:04}": column for number, column in enumerate(table)}


def strings(scale: float) -> dict[str, Any]:
    random = np.random.default_rng(0)
    count = int(1_000_000 * scale)
    few = np.array([f"city {number}" for number in range(1000)])[random.integers(0, 1000, count)]
    many = random.integers(0, 1 << 60, count).astype(str)
    return {"city": few.tolist(), "user": many.tolist()}


def epoch(folder: str) -> None:
    """In a process of its own."""
    began = time.perf_counter()
    for _ in open_dataset(folder).loader(BATCH, shuffle=True, output="numpy"):
        pass
    print(time.perf_counter() - began)


def seconds(data: Path, cache: Path, evicted: bool) -> float:
    """Of an epoch in a new process, from the page cache or, evicted from there, from the disk."""
    if evicted:
        for file in files(data):
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    command = [sys.executable, __file__, "--epoch", str(data)]
    environment = {**os.environ, "HOPYARD_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def files(data: Path) -> Iterator[Path]:
    yield from sorted(data.rglob("*.parquet"))


def hash_seconds(data: Path, repeats: int) -> float:
    """xxh3 alone: the least of several times."""
    mapped = []
    for path in files(data):
        with path.open("rb") as file:
            mapped.append(np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8))
    parts = [each[start : start + PART].data for each in mapped for start in range(0, len(each), PART)]
    took = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in range(repeats + 1):  # the first one maps the pages
            began = time.perf_counter()
            list(pool.map(xxh3_64_intdigest, parts))
            took.append(time.perf_counter() - began)
    return min(took[1:])


def measure(
    name: str, table: dict[str, Any], repeats: int, evicted: bool = False, decoded: bool = False
) -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="hopyard-bench-") as directory:
        folder = Path(directory)
        prepare(table, LocalStore(str(folder / "store")), validation=None)
        (data,) = (folder / "store" / "train_data").iterdir()
        del table
        checked, unchecked = [], []
        for number in range(repeats + 1):  # the first pair brings the files into the page cache
            caches = folder / f"{number}-empty", folder / f"{number}-known"
            for cache in caches:
                prepare_cache(str(cache))  # its making is durable, and no checksum's
            checked.append(seconds(data, caches[0], evicted))
            shutil.copy(caches[0] / KNOWN, caches[1])
            unchecked.append(seconds(data, caches[1], evicted))
            for cache in caches:
                shutil.rmtree(cache)
        del checked[0], unchecked[0]
        alone, without = hash_seconds(data, repeats), min(unchecked)
    added = min(checked) - without
    allowed = SHARE * without if evicted or decoded else alone
    said = f"{SHARE:.0%} of the epoch" if evicted or decoded else "xxh3 alone, on all cores"
    line = {"name": name, "value": round(added, 4), "unit": "s", "peer": f"{said}: {allowed:.4f} s"}
    line |= {"ratio": round(added / allowed, 2), "without checks": round(without, 3)}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1, help="of the rows")
    parser.add_argument("--epoch", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.epoch:
        epoch(given.epoch)
        return
    measure("float32[768], in the page cache", vectors(given.scale), given.repeats)
    measure("1,000 columns of float32, in the page cache", columns(given.scale), given.repeats)
    measure("float32[768], from the disk", vectors(given.scale), given.repeats, evicted=True)
    measure("strings, decoded", strings(given.scale), given.repeats, decoded=True)


if __name__ == "__main__":
    main()
