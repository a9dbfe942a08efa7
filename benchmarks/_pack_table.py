"""The table of ``packs.py``, as its peers read it, without any framework."""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS, BATCH, EPOCHS, SHARE = 40, 256, 2, 0.2
NAMES = [f"c{number:02}" for number in range(COLUMNS)]


def write(folder: Path, rows: int) -> Path:
    """Write a table of ``rows`` with 40 features and a target, all float32."""
    random = np.random.default_rng(0)
    features = random.standard_normal((rows, COLUMNS), dtype=np.float32)
    target = (features @ random.standard_normal(COLUMNS) + random.standard_normal(rows)).astype(np.float32)
    columns = {name: features[:, number] for number, name in enumerate(NAMES)}
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns | {"target": target}), path, row_group_size=65_536)
    return path


@functools.cache
def arrays(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features (rows, 40) and targets (rows, 1) of the rows that are trained on."""
    table = pq.read_table(path)
    features = np.stack([table[name].to_numpy() for name in NAMES], 1)
    kept = int(len(features) * (1 - SHARE))
    return features[:kept], table["target"].to_numpy()[:kept, None].copy()


def in_two_processes(work: Callable[..., None], path: Path, rates: Sequence[float], *given: Any) -> float:
    """Seconds until two new processes have done their halves of the rates."""
    context = multiprocessing.get_context("spawn")
    began = time.perf_counter()
    processes = [
        context.Process(target=work, args=(path, list(rates[half::2]), half, *given)) for half in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of a peer failed; its standard error says why")
    return time.perf_counter() - began
