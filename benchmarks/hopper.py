"""Claim: a unit costs the driver little, with every one of them durable in the journal.

Units that do nothing, on the inline backend and on two local workers, journal on disk. The limit
beside them is SQLite committing the same records one by one, durably; the peer of the local backend
is a ProcessPoolExecutor running as many no-ops that journals nothing at all.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from _noop import work
from hopyard.backend import Backend, InlineBackend, LocalBackend
from hopyard.hopper.decisions import Decisions, replay
from hopyard.hopper.hopper import Hopper
from hopyard.hopper.work import Options
from hopyard.hopper.journal import Journal
from hopyard.hopper.state import RunState
from hopyard.search import FullLength, RandomPoints, hp_uniform
from hopyard.storage import LocalStore

TRIALS, EPOCHS, LAYOUT = 64, 8, {"train": 8, "validate": 2}
UNITS = TRIALS * EPOCHS * 10


def run(backend: Backend, folder: Path, epochs: int = EPOCHS) -> RunState:
    store = LocalStore(folder)
    journal = Journal(store)
    state = RunState()
    searcher = FullLength(RandomPoints({"x": hp_uniform(0, 1)}), TRIALS, epochs * LAYOUT["train"])
    decisions = Decisions(state, searcher, 8)
    header: dict[str, Any] = {"r": "run", "run_id": "r", "layout": LAYOUT, "settings": {}, "seed": 0}
    header |= {"num_epochs": epochs, "metric": {"key": "val_loss", "mode": "min"}, "order_groups": 8}
    journal.append(header)
    pending = replay([header], state, decisions)
    hopper = Hopper(
        store=store,
        state=state,
        journal=journal,
        decisions=decisions,
        backend=backend,
        work=work,
        options=Options(),
    )
    hopper.run(pending)
    journal.close()
    return state


def rate(backend: Backend) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        began = time.perf_counter()
        run(backend, Path(folder))
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


def memory_per_unit() -> float:
    """Bytes by which the driver's peak grows for each further unit."""
    peaks = []
    for epochs in (2, 40):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            run(InlineBackend(), Path(folder), epochs)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return (peaks[1] - peaks[0]) / (TRIALS * 38 * 10)


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
    grown = memory_per_unit()
    report("driver memory per unit", grown, "bytes", "2048 bytes", grown / 2048)


if __name__ == "__main__":
    main()
