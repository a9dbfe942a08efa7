"""Commit: what it takes, and writes, when one of many samples has changed.

    python benchmarks/stock_commit.py [--rows 1000000] [--pairs 21] [--peers all]

One of 1M samples of 64 bytes is replaced, and a commit made, by a process that has the repository open. The same
files are written and synced in the same round, without anything else ("bare fsyncs"); what a commit takes beyond them
is ours. Peers: Icechunk, Lance, DVC, Hangar (of 50,000 samples). At last a repository with 1,000 more commits, each of
which left packfiles behind, is held against itself as it was.
Goals: less than 20 ms beyond the bare fsyncs, and less than 1.5 MB written.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from _peers import PeerError
from _stock import (
    Peers,
    Syncs,
    Turns,
    arguments_of,
    bytes_written,
    new_stock,
    report,
    report_skipped,
    report_turns,
    scratch,
    seconds,
)
from _stock_data import samples

KIND = "64-byte"
PEERS = ("icechunk", "lance", "dvc", "hangar")
PAIRS = 21
MORE = 1000  # commits that are made before the last measurement


class Ours:
    """The repository, and what its commits took."""

    def __init__(self, directory: Path, rows: int) -> None:
        self.directory, self.rows = directory / "hopyard", rows
        self.stock = new_stock(self.directory)
        with self.stock.enable_write():
            self.stock.data["x"] = samples(KIND, rows)
        self.rng = np.random.default_rng(0)
        self.beyond: list[float] = []
        self.bare: list[float] = []
        self.written: list[int] = []
        self.syncs = 0

    def commit(self) -> float:
        """Seconds of a commit; then the bare fsyncs."""
        number, sample = int(self.rng.integers(self.rows)), self.rng.bytes(64)

        def action() -> None:
            with self.stock.enable_write():
                self.stock.data["x"][number] = np.frombuffer(sample, np.uint8)

        written = bytes_written()
        with Syncs(self.directory) as syncs:
            took = seconds(action)
        self.written.append(bytes_written() - written)
        self.bare.append(syncs.bare())
        self.beyond.append(took - self.bare[-1])
        self.syncs = len(syncs.sizes)
        return took


def main() -> None:
    arguments = arguments_of(__doc__, pairs=PAIRS)
    what = f"stock commit, 1 of {arguments.rows} samples changed"
    with (
        scratch() as directory,
        Peers(PEERS, arguments.peers, directory, KIND, arguments.rows, True) as peers,
    ):
        ours = Ours(directory, arguments.rows)
        ours.commit()  # imports, the first look at the index
        for figures in (ours.beyond, ours.bare, ours.written):
            figures.clear()
        numbers = np.random.default_rng(1)
        turns = Turns(
            {"hopyard": ours.commit, **peers.changes(numbers)},
            arguments.pairs,
        )
        beyond = statistics.median(ours.beyond)
        bare = statistics.median(ours.bare)
        report(
            f"{what}, beyond its {ours.syncs} fsyncs", 1e3 * beyond, "ms", 1e3 * bare, beyond / bare,
            goal="value < 20", pairs=arguments.pairs,
        )  # fmt: skip
        written = statistics.median(ours.written) / 1e6
        report(f"{what}, written", written, "MB", None, None, goal="value < 1.5", pairs=arguments.pairs)
        report_turns(what, turns, "ms", lambda took: 1e3 * took)
        for name in peers.processes:
            try:
                theirs = peers.processes[name].ask("change", number=0)["written"] / 1e6
            except PeerError as error:
                report_skipped(f"{what}, written, against {name}", "MB", str(error))
            else:
                report(f"{what}, written, against {name}", written, "MB", theirs, written / theirs)
        peers.report_failed(what, "ms")
        ours.beyond.clear()  # of commits between those of peers
        for _ in range(MORE + PAIRS):
            ours.commit()
        young, old = statistics.median(ours.beyond[:PAIRS]), statistics.median(ours.beyond[-PAIRS:])
        report(
            f"{what}, beyond its fsyncs, after {MORE} more commits", 1e3 * old, "ms", 1e3 * young, old / young,
            pairs=PAIRS,
        )  # fmt: skip


if __name__ == "__main__":
    main()
