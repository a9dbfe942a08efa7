"""Clone: all metadata of a large repository, from a directory.

    python benchmarks/stock_clone.py [--rows 1000000] [--pairs 7]

1M samples of 10,000 bytes, 10 GB, in ten commits. The commits are real ones; after each, the bytes of its samples are
given back to the file system: packfiles of data (but the last one) keep their names, headers and sizes, and are holes
behind the header. A clone sees of them what it would see of full ones. Measured is from nothing to a repository that
can be opened, and is durable: seconds, bytes read from the remote and bytes that lie in the clone, its index included.
Goals: less than 1 s, less than 5 MB.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import numpy as np

from _stock import Turns, arguments_of, new_git, new_stock, report, scratch, seconds
from hopyard import StockRoom

SAMPLE_BYTES = 10_000
COMMITS = 10


def make(directory: Path, rows: int) -> None:
    """The repository that is cloned."""
    stock = new_stock(directory)
    numbers = np.random.default_rng(0)
    for part in np.array_split(np.arange(rows), COMMITS):
        data = np.frombuffer(numbers.bytes(len(part) * SAMPLE_BYTES), np.uint8)
        with stock.enable_write():
            if "x" not in stock.data:
                stock.data.create("x", dtype="uint8", shape=(SAMPLE_BYTES,))
            stock.data["x"].extend(data.reshape(len(part), SAMPLE_BYTES))
        packfiles = sorted(
            stock.place.objects.glob("packfiles/data-*"), key=lambda packfile: packfile.stat().st_mtime_ns
        )
        for packfile in packfiles[:-1]:  # the last fragment is written anew by the next commit
            hollow(packfile)


def hollow(packfile: Path) -> None:
    """Give back what lies behind a packfile's header."""
    size = packfile.stat().st_size
    packfile.chmod(0o600)
    with packfile.open("r+b") as file:
        file.truncate(8 + int.from_bytes(file.read(8), "little"))
        file.truncate(size)


def bytes_read() -> int:
    """By this process so far, from whatever (Linux)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def main() -> None:
    arguments = arguments_of(__doc__)
    with scratch() as directory:
        make(directory / "remote", arguments.rows)
        remote = StockRoom(directory / "remote").place.objects
        copy = directory / "clone"
        read: list[int] = []
        lie: list[int] = []

        def clone() -> float:
            new_git(copy)
            before = bytes_read()
            took = seconds(lambda: StockRoom.clone(str(remote), copy))
            read.append(bytes_read() - before)
            with StockRoom(copy, fetch="never") as stock:
                assert len(stock.data["x"]) == arguments.rows
                lie.append(
                    sum(path.stat().st_size for path in stock.place.objects.rglob("*") if path.is_file())
                )
            shutil.rmtree(copy)
            return took

        turns = Turns({"hopyard": clone}, arguments.pairs)
        what = f"stock clone, {arguments.rows * SAMPLE_BYTES / 1e9:g} GB, metadata only"
        report(what, turns.median("hopyard"), "s", goal="value < 1", pairs=arguments.pairs)
        for name, sizes in (("read", read), ("in the clone", lie)):
            value = statistics.median(sizes) / 1e6
            report(f"{what}, {name}", value, "MB", goal="value < 5", pairs=arguments.pairs)


if __name__ == "__main__":
    main()
