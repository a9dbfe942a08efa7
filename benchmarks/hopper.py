"""Claim: a unit costs the driver little, with every one of them durable in the journal, and so does remembering it.

Units that do nothing, on the inline backend and on two local workers, journal on disk. The limit
beside them is SQLite committing the same records one by one, durably; the peer of the local backend
is a ProcessPoolExecutor running as many no-ops that journals nothing at all. Goals: 5,000/s and 1,000/s.

Memory is what the driver still holds when a run has ended (its state, not what the journal's writer and other threads
have freed), divided by the epochs that trials have finished, each measured in a process of its own: between runs of 2
and of 40 epochs, and of an ASHA search between 500 and 5,000 trials, where most is the trials'. The limit: 1 KB.
Beside it stands by how much the resident size grew, which includes what was freed and not given back.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _noop import run
from hopyard.backend import Backend, InlineBackend, LocalBackend
from hopyard.hopper.scheduler import Layout
from hopyard.search import Asha, FullLength, RandomPoints, Searcher, hp_uniform

TRIALS, EPOCHS, LAYOUT, SHORT = 64, 8, Layout(8, 2), Layout(1, 1)
UNITS = TRIALS * EPOCHS * 10


def full(epochs: int, layout: Layout = SHORT) -> Searcher:
    return FullLength(RandomPoints({"x": hp_uniform(0, 1)}), TRIALS, epochs * layout.train)


def asha(trials: int) -> Searcher:
    return Asha(RandomPoints({"x": hp_uniform(0, 1)}), trials, [1, 4, 16])


def rate(backend: Backend) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        run(backend, Path(folder), full(EPOCHS, LAYOUT), LAYOUT, EPOCHS)
        return UNITS / (time.perf_counter() - began)


def sqlite_rate() -> float:
    record = json.dumps({"r": "unit", "t": [0], "s": ["0" * 64], "m": [{"loss": [1.0, 1.0]}]})
    with tempfile.TemporaryDirectory(dir=".") as folder:
        connection = sqlite3.connect(Path(folder) / "journal.db")
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("create table units (record text)")
        began = time.perf_counter()
        for _ in range(UNITS // 4):
            connection.execute("insert into units values (?)", (record,))
            connection.commit()
        return UNITS / 4 / (time.perf_counter() - began)


def no_op(number: int) -> int:
    return number


def pool_rate() -> float:
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(no_op, range(100)))
        began = time.perf_counter()
        for future in [pool.submit(no_op, number) for number in range(UNITS)]:
            future.result()
        return UNITS / (time.perf_counter() - began)


def resident() -> int:
    """Bytes of this process in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory(make: Callable[[int], Searcher], size: int, epochs: int, traced: bool) -> tuple[int, int]:
    """In a fresh process: bytes that a run left in memory, and the epochs that its trials finished."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run(InlineBackend(), Path(folder) / "small", full(1), SHORT, 1)  # what is imported and made once
        before = resident()
        if traced:
            tracemalloc.start()
        state = run(InlineBackend(), Path(folder) / "run", make(size), SHORT, epochs)
        grown = resident() - before
        found = tracemalloc.get_traced_memory()[0] if traced else grown
        return found, sum(trial.epochs for trial in state.trials.values())


def memory_per_epoch(make: Callable[[int], Searcher], *sizes: tuple[int, int]) -> tuple[float, float]:
    """Bytes held, and bytes resident, for each further epoch of a trial."""
    calls = [(make, *size, traced) for traced in (True, False) for size in sizes]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.starmap(memory, calls, chunksize=1)
    held, grown = ((b[0] - a[0]) / (b[1] - a[1]) for a, b in (found[:2], found[2:]))
    return held, grown


def report(name: str, value: float, unit: str, peer: str, ratio: float) -> None:
    print(
        json.dumps(
            {"name": name, "value": round(value, 1), "unit": unit, "peer": peer, "ratio": round(ratio, 3)}
        )
    )


def main() -> None:
    with LocalBackend(num_workers=2) as local:
        run_rates = [(rate(InlineBackend()), sqlite_rate(), rate(local), pool_rate()) for _ in range(5)]
    inline, sqlite, pooled, pool = (statistics.median(column) for column in zip(*run_rates, strict=True))
    report(
        "no-op units, inline, journal on disk", inline, "units/s", "SQLite, a commit each", inline / sqlite
    )
    report(
        "no-op units, 2 local workers, journal on disk",
        pooled,
        "units/s",
        "ProcessPoolExecutor",
        pooled / pool,
    )
    for title, found in (
        ("", memory_per_epoch(full, (2, 2), (40, 40))),
        (", ASHA", memory_per_epoch(asha, (500, 16), (5000, 16))),
    ):
        peer = f"1024 bytes; resident size grew by {found[1]:.0f}"
        report(f"driver memory per trial epoch{title}", found[0], "bytes", peer, found[0] / 1024)


if __name__ == "__main__":
    main()
