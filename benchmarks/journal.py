"""Claim: the journal keeps up with a database that commits as durably, and stays small in objects and bytes.

A million records do not fit a benchmark's minute; 100,000 unit records show the rates. Records are appended
as a run appends them (as many to a segment as arrive while the one before is written), and one by one, each
durable before the next. SQLite (WAL, synchronous=FULL) does the same appends in the same process.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopyard.hopper.journal import Journal, read_records
from hopyard.storage import LocalStore

RECORDS, ONE_BY_ONE, BATCH = 100_000, 300, 1000


def record(number: int) -> dict[str, Any]:
    state = {"digest": f"{number:064x}", "files": [f"{number:064x}"], "nbytes": 12345}
    metrics = {"loss": [number * 0.7, 64.0], "accuracy": [number * 0.3, 64.0]}
    return {
        "r": "unit",
        "t": [number % 64],
        "e": number // 640,
        "ph": "train",
        "p": number % 8,
        "w": number % 2,
        "v": number // 64,
        "n": number // 64,
        "to": 640,
        "last": False,
        "a": number * 0.001,
        "z": number * 0.001 + 0.0009,
        "s": [{**state, "parts": {"model": state}}],
        "m": [metrics],
        "rows": 64,
        "written": 12345,
        "moved": 12345,
        "read": 1234567,
    }


def files(folder: Path) -> tuple[int, int]:
    """Number and bytes of the files of a journal."""
    found = [path for path in folder.rglob("*") if path.is_file() and "lease" not in path.name]
    return len(found), sum(path.stat().st_size for path in found)


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def written(folder: Path, records: list[dict[str, Any]], merge_at: int, every: int) -> float:
    """Seconds for appending, with a ``flush`` after ``every`` records."""
    journal = Journal(LocalStore(folder), merge_at=merge_at)

    def write() -> None:
        for number, found in enumerate(records, 1):
            journal.append(found)
            if number % every == 0:
                journal.flush()
        journal.flush()

    try:
        return seconds(write)
    finally:
        journal.close()


def sqlite_written(path: Path, records: list[dict[str, Any]], every: int) -> float:
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table records (record text)")
    connection.commit()

    def write() -> None:
        for number, found in enumerate(records, 1):
            connection.execute("insert into records values (?)", (json.dumps(found),))
            if number % every == 0:
                connection.commit()
        connection.commit()

    try:
        return seconds(write)
    finally:
        connection.close()


def sqlite_replayed(path: Path) -> None:
    for (found,) in sqlite3.connect(path).execute("select record from records order by rowid"):
        json.loads(found)


def replayed(folder: Path) -> None:
    for _ in read_records(LocalStore(folder)):
        pass


def report(name: str, value: float, unit: str, peer: str, ratio: float) -> None:
    line = {"name": name, "value": round(value, 1), "unit": unit, "peer": peer, "ratio": round(ratio, 3)}
    print(json.dumps(line))


def measure(root: Path) -> dict[str, float]:
    records = [record(number) for number in range(RECORDS)]
    few, never = records[:ONE_BY_ONE], 10**9
    rates = {
        "one": ONE_BY_ONE / written(root / "one", few, never, 1),
        "sqlite one": ONE_BY_ONE / sqlite_written(root / "one.db", few, 1),
        "run": RECORDS / written(root / "run", records, 64, BATCH),
        "sqlite run": RECORDS / sqlite_written(root / "run.db", records, BATCH),
    }
    rates["replay"] = RECORDS / seconds(lambda: replayed(root / "run"))
    rates["sqlite replay"] = RECORDS / seconds(lambda: sqlite_replayed(root / "run.db"))
    written(root / "plain", records[: RECORDS // 10], never, 20)
    rates["files"], rates["bytes"] = files(root / "plain")
    rates["replay plain"] = RECORDS / 10 / seconds(lambda: replayed(root / "plain"))
    rates["merge"] = seconds(lambda: Journal(LocalStore(root / "plain")).close())
    rates["files merged"], rates["bytes merged"] = files(root / "plain")
    rates["replay merged"] = RECORDS / 10 / seconds(lambda: replayed(root / "plain"))
    rates["bytes run"], rates["bytes sqlite"] = files(root / "run")[1], (root / "run.db").stat().st_size
    return rates


def main() -> None:
    rounds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            rounds.append(measure(Path(folder)))
    found = {name: statistics.median(rates[name] for rates in rounds) for name in rounds[0]}
    peer = "SQLite, WAL, synchronous=FULL"
    report(
        "records, each durable before the next",
        found["one"],
        "records/s",
        peer,
        found["one"] / found["sqlite one"],
    )
    report(
        f"records, {BATCH} to a flush, merged meanwhile",
        found["run"],
        "records/s",
        peer,
        found["run"] / found["sqlite run"],
    )
    report("records replayed", found["replay"], "records/s", peer, found["replay"] / found["sqlite replay"])
    report(
        "bytes a record",
        found["bytes run"] / RECORDS,
        "bytes",
        peer,
        found["bytes run"] / found["bytes sqlite"],
    )
    before = f"{found['files']:.0f} before merging"
    report(
        "files of 10,000 records",
        found["files merged"],
        "files",
        before,
        found["files merged"] / found["files"],
    )
    before = f"{found['bytes']:.0f} bytes before merging"
    report(
        "size of 10,000 records",
        found["bytes merged"],
        "bytes",
        before,
        found["bytes merged"] / found["bytes"],
    )
    before = f"{found['replay plain']:.0f}/s before merging"
    report(
        "replayed after merging",
        found["replay merged"],
        "records/s",
        before,
        found["replay merged"] / found["replay plain"],
    )
    report("merging them when the run is opened", found["merge"], "s", "1 s", found["merge"])


if __name__ == "__main__":
    main()
