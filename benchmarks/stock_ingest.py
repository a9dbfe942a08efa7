"""Ingest: samples in memory become a durable commit.

    python benchmarks/stock_ingest.py [--rows 1000000] [--pairs 7] [--peers all]

1M samples of 64 bytes, and a tenth as many images of 3 x 32 x 32 uint8: into a new repository, until the commit is
durable. Peers: Hangar, Lance, Icechunk. Limits: LMDB, which keeps no versions, and one file with the same bytes.
Goals: 500,000 samples and 100,000 images a second.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from _stock import Peers, Turns, arguments_of, new_stock, report_turns, scratch, seconds, write_file
from _stock_data import samples

PEERS = ("hangar", "lance", "icechunk", "lmdb")
GOALS = {"64-byte": 500_000, "image": 100_000}


def ingest(data: np.ndarray[Any, Any], directory: Path) -> float:
    """Into a new repository, which is gone afterwards."""
    stock = new_stock(directory)

    def action() -> None:
        with stock.enable_write():
            stock.data["x"] = data

    took = seconds(action)
    shutil.rmtree(directory)
    return took


def write_raw(data: np.ndarray[Any, Any], path: Path) -> float:
    took = seconds(lambda: write_file(path, data))
    path.unlink()
    return took


def compare(kind: str, rows: int, pairs: int, asked: str) -> None:
    data, numbers = samples(kind, rows), itertools.count()
    with scratch() as directory, Peers(PEERS, asked, directory, kind, rows, False) as peers:
        places = (directory / f"{number}" for number in numbers)
        turns = Turns(
            {
                "hopyard": lambda: ingest(data, next(places)),
                "one file": lambda: write_raw(data, next(places)),
                **peers.actions("ingest"),
            },
            pairs,
        )
        what = f"stock ingest, {rows} {kind} samples"
        report_turns(what, turns, "samples/s", lambda took: rows / took, all=f"value >= {GOALS[kind]}")
        peers.report_failed(what, "samples/s")


def main() -> None:
    arguments = arguments_of(__doc__)
    compare("64-byte", arguments.rows, arguments.pairs, arguments.peers)
    compare("image", max(1, arguments.rows // 10), arguments.pairs, arguments.peers)


if __name__ == "__main__":
    main()
