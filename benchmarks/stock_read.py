"""Reading: one sample of an old commit by a new process, and all samples in random order.

    python benchmarks/stock_read.py [--rows 1000000] [--pairs 7] [--peers all]

* "first": 1M samples of 64 bytes are committed, then ten changes of one sample each. A new process has imported what
  it needs; measured is from there until it has a sample of the first commit. "not cached": the page cache was made
  to forget the files before. What the process takes to start and to import has lines of its own. Peers: Icechunk,
  Lance. Goal: less than 20 ms.
* "all": batches of 1,024 of a permutation, into the same array each, against ``numpy.take`` from a mapped array, which
  is the limit, and from memory, and Lance's ``take``. Samples of 64 bytes, and a tenth as many images of 3 x 32 x 32.
  Goal: 0.8 of the limit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from _peers import Process, environment
from _stock import (
    ENVIRONMENTS,
    Peers,
    Turns,
    arguments_of,
    forget_cached,
    new_stock,
    report,
    report_turns,
    scratch,
    seconds,
)
from _stock_data import samples
from hopyard import StockRoom

BATCH = 1024
CHANGES = 10
FIRST = Path(__file__).with_name("_stock_first.py")
FIRST_PEERS = ("icechunk", "lance")


def in_new_process(directory: Path, commit: str, number: int, expected: int) -> dict[str, Any]:
    command = [sys.executable, str(FIRST), str(directory), commit, str(number)]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["sum"] == expected
    return {**found, "whole": time.perf_counter() - start}


def first(rows: int, pairs: int, asked: str) -> None:
    kind, number = "64-byte", rows // 3
    data = samples(kind, rows)
    with scratch() as directory, Peers(FIRST_PEERS, asked, directory, kind, rows, True) as peers:
        home = directory / "hopyard"
        stock = new_stock(home)
        with stock.enable_write():
            stock.data["x"] = data
        old = stock.resolve("main")
        for change in range(CHANGES):
            with stock.enable_write():
                stock.data["x"][change] = data[change] ^ 1
            for process in peers.processes.values():
                process.ask("change", number=change)
        places = {
            name: Path(process.ask("at_home")["directory"]) for name, process in peers.processes.items()
        }
        more: list[dict[str, Any]] = []

        def ours(is_cached: bool) -> float:
            if not is_cached:
                forget_cached(home)
            more.append(in_new_process(home, old, number, int(data[number].sum())))
            return float(more[-1]["seconds"])

        def peer(name: str, is_cached: bool) -> float:
            if not is_cached:
                forget_cached(places[name])
            process = Process(environment(ENVIRONMENTS[name]), "_stock_peers.py", f"stock-first-{name}")
            try:
                return float(
                    process.ask(
                        "first", peer=name, directory=str(places[name]), kind=kind, rows=rows, number=number
                    )["seconds"]
                )
            finally:
                process.close()

        for is_cached, how in ((True, "cached"), (False, "not cached")):
            actions: dict[str, Callable[[], float]] = {"hopyard": lambda c=is_cached: ours(c)}  # type: ignore[misc]
            for name in places:
                actions[name] = lambda n=name, c=is_cached: peer(n, c)  # type: ignore[misc]
            turns = Turns(actions, pairs)
            what = f"stock read, first of {rows} samples at an old commit, {how}"
            value = 1e3 * turns.median("hopyard")
            report(what, value, "ms", None, None, goal="value < 20", pairs=pairs)
            report_turns(what, turns, "ms", lambda took: 1e3 * took)
            peers.report_failed(what, "ms")
        report_start(more)


def report_start(found: list[dict[str, Any]]) -> None:
    """What a process takes before: the interpreter, and the imports."""
    alone = [seconds(lambda: subprocess.run([sys.executable, "-c", ""], check=True)) for _ in found]
    whole = statistics.median(each["whole"] - each["seconds"] for each in found)
    value, peer = 1e3 * whole, 1e3 * statistics.median(alone)
    what = "stock read, first: start and imports against the interpreter alone"
    report(what, value, "ms", peer, value / peer, pairs=len(found))


def read_all(kind: str, rows: int, pairs: int, asked: str) -> None:
    data = samples(kind, rows)
    with scratch() as directory, Peers(("lance",), asked, directory, kind, rows, True) as peers:
        stock = new_stock(directory / "hopyard")
        with stock.enable_write():
            stock.data["x"] = data
        column = StockRoom(directory / "hopyard").data["x"]
        batch = np.empty((BATCH, *data.shape[1:]), data.dtype)
        orders = np.random.default_rng(0)
        order = orders.permutation(rows)

        def batches(take: Callable[[Any, Any], object]) -> Callable[[], float]:
            def action() -> None:
                for start in range(0, rows, BATCH):
                    places = order[start : start + BATCH]
                    take(places, batch[: len(places)])

            return lambda: seconds(action)

        np.save(directory / "plain.npy", data)
        mapped = np.asarray(np.load(directory / "plain.npy", mmap_mode="r"))

        def numpy_take(array: Any) -> Callable[[Any, Any], object]:
            return lambda places, out: np.take(array, places, axis=0, out=out, mode="clip")

        ours = batches(lambda places, out: column.take(places, out=out))
        ours()
        assert np.array_equal(batch[: rows % BATCH or BATCH], data[order[-(rows % BATCH or BATCH) :]])
        turns = Turns(
            {
                "hopyard": ours,
                "numpy.take, mapped": batches(numpy_take(mapped)),
                "numpy.take, in memory": batches(numpy_take(data)),
                **peers.actions("shuffled", batch=BATCH, seed=0),
            },
            pairs,
        )
        what = f"stock read, all {rows} {kind} samples shuffled"
        report_turns(
            what, turns, "samples/s", lambda took: rows / took, **{"numpy.take, mapped": "ratio >= 0.8"}
        )
        peers.report_failed(what, "samples/s")


def main() -> None:
    arguments = arguments_of(__doc__)
    first(arguments.rows, arguments.pairs, arguments.peers)
    read_all("64-byte", arguments.rows, arguments.pairs, arguments.peers)
    read_all("image", max(1, arguments.rows // 10), arguments.pairs, arguments.peers)


if __name__ == "__main__":
    main()
