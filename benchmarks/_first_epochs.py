"""First epochs from opening a path, with an empty node cache, beside peers that read the same path in turn."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
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


def compare(
    name: str, path: Path, rows: int, peers: Mapping[str, Callable[[Path], None]], repeats: int
) -> None:
    """Print one JSON line for each peer: rows/s of both, medians, of the pairs' ratios too, and that of the minima."""
    with_hopyard(path)  # what is imported once
    for peer in peers.values():
        peer(path)
    took: dict[str, list[float]] = {"Hopyard": [], **{peer: [] for peer in peers}}
    for _ in range(repeats):
        for who, action in {"Hopyard": with_hopyard, **peers}.items():
            took[who].append(seconds(action, path))
    ours = took.pop("Hopyard")
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
