"""Sixteen processes at one branch: ``python -m tests.long.stockroom.racing FOLDER ROUNDS``."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from hopyard import StockRoom
from hopyard.errors import ConflictError

RACERS = 16


def race(folder: Path, me: int, rounds: int, barrier: Barrier, wins: Any) -> None:
    """Each round all want the same sample, and each one of its own."""
    for number in range(rounds):
        stock = StockRoom(folder)
        barrier.wait(60)
        try:
            with stock.enable_write():
                stock.data["wanted"][number] = np.array(me)
                barrier.wait(60)  # all began from the same commit
        except ConflictError:
            pass
        else:
            wins[number * RACERS + me] = 1
        with stock.enable_write():
            stock.data["own"][number, me] = np.array(me)
        stock.close()
        barrier.wait(60)


def main(folder: Path, rounds: int) -> None:
    """Fails if any round has not exactly one winner, or if anything is lost."""
    with StockRoom.init(folder) as stock, stock.enable_write():
        stock.data.create("wanted", dtype="int64")
        stock.data.create("own", dtype="int64", nested=True)
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(RACERS), context.Array("b", rounds * RACERS)
    racers = [context.Process(target=race, args=(folder, me, rounds, barrier, wins)) for me in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    with StockRoom(folder) as stock:
        won = np.array(wins).reshape(rounds, RACERS)
        assert (won.sum(1) == 1).all()
        assert np.array_equal(stock.data["wanted"][...], won.argmax(1))
        assert len(stock.data["own"]) == rounds * RACERS
        assert len(stock.log()) == 1 + rounds * (1 + RACERS)
        assert stock.head.branch == "main"
        assert stock.head.commit == stock.branches()["main"]
        assert not stock.status().staged


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(Path(sys.argv[1]), int(sys.argv[2]))
