"""First epochs from opening a path, with an empty node cache, beside peers that read the same path in turn.

Before each, the files are touched, so that this process knows none of their footers; the cache's folder is made and
removed outside of what is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hopyard.data import NodeCache, open_dataset

BATCH = 1024


def with_hopyard(path: Path) -> float:
    """Seconds."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        os.utime(file)
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as folder:
        cache = NodeCache(Path(folder))
        cache.prepare()
        started = time.perf_counter()
        for _ in open_dataset(path, cache=cache).loader(BATCH, shuffle=True, output="numpy"):
            pass
        return time.perf_counter() - started


def seconds(action: Callable[[Path], None], path: Path) -> float:
    started = time.perf_counter()
    action(path)
    return time.perf_counter() - started


def compare(
    name: str, path: Path, rows: int, peers: Mapping[str, Callable[[Path], None]], repeats: int
) -> None:
    """Print one JSON line for each peer: rows/s of both, medians, of the pairs' ratios too, and that of the minima."""
    with_hopyard(path)  # what is imported once
    for peer in peers.values():
        peer(path)
    ours: list[float] = []
    took: dict[str, list[float]] = {peer: [] for peer in peers}
    for _ in range(repeats):
        ours.append(with_hopyard(path))
        for peer, action in peers.items():
            took[peer].append(seconds(action, path))
    for peer, theirs in took.items():
        line = {
            "name": f"{name}, peer {peer}",
            "value": round(rows / statistics.median(ours)),
            "unit": "rows/s",
            "peer": round(rows / statistics.median(theirs)),
            "ratio": round(statistics.median(its / mine for mine, its in zip(ours, theirs, strict=True)), 3),
            "ratio of the minima": round(min(theirs) / min(ours), 3),
        }
        print(json.dumps(line), flush=True)
