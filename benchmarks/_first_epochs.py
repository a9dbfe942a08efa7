"""First epochs from opening a path, with an empty node cache, beside a peer that reads the same path in turn."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hopyard.data import NodeCache, open_dataset

BATCH = 1024


def with_hopyard(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as cache:
        for _ in open_dataset(path, cache=NodeCache(Path(cache))).loader(BATCH, shuffle=True, output="numpy"):
            pass


def seconds(action: Callable[[Path], None], path: Path) -> float:
    started = time.perf_counter()
    action(path)
    return time.perf_counter() - started


def compare(name: str, path: Path, rows: int, peer: Callable[[Path], None], repeats: int) -> None:
    """Print one JSON line: rows/s of both, medians, and of the pairs' ratios."""
    with_hopyard(path), peer(path)  # what is imported once
    pairs = [(seconds(with_hopyard, path), seconds(peer, path)) for _ in range(repeats)]
    line = {
        "name": name,
        "value": round(rows / statistics.median(ours for ours, _ in pairs)),
        "unit": "rows/s",
        "peer": round(rows / statistics.median(theirs for _, theirs in pairs)),
        "ratio": round(statistics.median(theirs / ours for ours, theirs in pairs), 3),
    }
    print(json.dumps(line), flush=True)
