"""Diff: which of many samples differ between two commits.

    python benchmarks/stock_diff.py [--rows 1000000] [--pairs 21] [--peers all]

10 of 1M samples of 64 bytes are changed; measured is from opening the repository to their keys. Peers: Icechunk, which
is open already, and knows chunks only; and a comparison of two arrays in memory. Goal: less than 50 ms.
"""

from __future__ import annotations

import numpy as np

from _stock import Peers, Turns, arguments_of, new_stock, report_turns, scratch, seconds
from _stock_data import samples
from hopyard import StockRoom

KIND = "64-byte"
CHANGED = 10
PAIRS = 21


def main() -> None:
    arguments = arguments_of(__doc__, pairs=PAIRS)
    rows = arguments.rows
    before = samples(KIND, rows)
    places = np.sort(np.random.default_rng(1).choice(rows, CHANGED, replace=False))
    after = before.copy()
    after[places] ^= 1
    with (
        scratch() as directory,
        Peers(("icechunk",), arguments.peers, directory, KIND, rows, True) as peers,
    ):
        stock = new_stock(directory / "hopyard")
        with stock.enable_write():
            stock.data["x"] = before
        first = stock.resolve("main")
        with stock.enable_write():
            for place in places.tolist():
                stock.data["x"][place] = after[place]
        for place in places.tolist():
            for process in peers.processes.values():
                process.ask("change", number=place)

        def ours() -> float:
            found: list[int] = []

            def action() -> None:
                opened = StockRoom(directory / "hopyard")  # nothing is remembered from the last round
                found.extend(key for key, _ in opened.diff(first, "main")["data/x"].samples())

            took = seconds(action)
            assert found == places.tolist()
            return took

        def compare() -> float:
            return seconds(lambda: np.flatnonzero((before != after).any(axis=1)))

        turns = Turns(
            {"hopyard": ours, "arrays in memory": compare, **peers.actions("diff", count=CHANGED)},
            arguments.pairs,
        )
        what = f"stock diff, {CHANGED} of {rows} samples changed"
        report_turns(what, turns, "ms", lambda took: 1e3 * took, all="value < 50")
        peers.report_failed(what, "ms")


if __name__ == "__main__":
    main()
