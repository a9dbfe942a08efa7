"""What the benchmarks of the stockroom share: their data, a repository, peers in turn, and their lines.

Every line has the median of the rounds, the same for a peer in the same rounds, and the median of the rounds'
ratios, ours to the peer's. A line with a goal says it, as it is said of the value or of the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import _peers
from hopyard import StockRoom

PAIRS = 5
ENVIRONMENTS = {
    "hangar": "hangar",
    "icechunk": "versions",
    "lance": "versions",
    "dvc": "versions",
    "lmdb": "versions",
}
FEWER = {"hangar": 50_000}
"""Peers that take minutes for all samples: their times are of so many, multiplied. Their speed is the same."""


def arguments_of(description: str | None, rows: int = 1_000_000, pairs: int = PAIRS) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=rows, help="samples; the claims are of the default")
    parser.add_argument("--pairs", type=int, default=pairs, help="rounds in which each has a turn")
    parser.add_argument("--peers", default="all", help="all, none, or names with commas")
    return parser.parse_args()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory beside the sources, not in a temporary directory, which may be memory. Gone afterwards."""
    _peers.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_peers.BUILD, prefix="stock-") as directory:
        yield Path(directory)


def new_stock(directory: Path) -> StockRoom:
    """A stockroom in a new git repository, as most are; so commits record what git has checked out."""
    new_git(directory)
    return StockRoom.init(directory)


def new_git(directory: Path) -> None:
    """A git repository with one commit, so that nothing here is of the one that the benchmarks are in."""
    author = ["-c", "user.name=Bench", "-c", "user.email=bench@example.com"]
    subprocess.run(["git", "init", "-q", directory], check=True)
    empty = ["commit", "-q", "--allow-empty", "-m", "empty"]
    subprocess.run(["git", "-C", directory, *author, *empty], check=True)


# Turns


class Turns:
    """Actions of several, which take turns; the one that begins changes from round to round."""

    def __init__(self, actions: dict[str, Callable[[], float]], pairs: int) -> None:
        self.found: dict[str, list[float]] = {name: [] for name in actions}
        self.failed: dict[str, str] = {}
        names = list(actions)
        for number in range(pairs):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                if name not in self.failed:
                    try:
                        self.found[name].append(actions[name]())
                    except _peers.PeerError as error:
                        self.failed[name] = str(error)

    def only(self, *names: str) -> Turns:
        """Those of some."""
        some = Turns({}, 0)
        some.found = {name: self.found[name] for name in names}
        some.failed = {name: why for name, why in self.failed.items() if name in names}
        return some

    def median(self, name: str) -> float:
        return statistics.median(self.found[name])

    def ratio(self, name: str, peer: str) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(
            ours / theirs for ours, theirs in zip(self.found[name], self.found[peer], strict=True)
        )


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def report(
    name: str, value: float, unit: str, peer: float | None = None, ratio: float | None = None, **more: Any
) -> None:
    def rounded(number: float | None) -> float | None:
        return None if number is None else round(number, 4 if abs(number) < 100 else 1)

    line = {
        "name": name,
        "value": rounded(value),
        "unit": unit,
        "peer": rounded(peer),
        "ratio": rounded(ratio),
    }
    print(json.dumps(line | more), flush=True)


def report_skipped(name: str, unit: str, reason: str) -> None:
    line = {"name": name, "value": None, "unit": unit, "peer": None, "ratio": None, "skipped": reason}
    print(json.dumps(line), flush=True)


def report_turns(
    what: str,
    turns: Turns,
    unit: str,
    convert: Callable[[float], float],
    ours: str = "hopyard",
    **goals: str,
) -> None:
    """A line for each that ours took turns with. ``convert`` makes the unit of what was measured."""
    for name in turns.found:
        if name == ours:
            continue
        line = f"{what} against {name}"
        if name in turns.failed:
            report_skipped(line, unit, turns.failed[name])
            continue
        value, peer = convert(turns.median(ours)), convert(turns.median(name))
        ratio = turns.ratio(ours, name)
        inverse = convert(1.0) > convert(2.0)  # a rate: of times, the other way round
        goal = {"goal": goals[name]} if name in goals else {"goal": goals["all"]} if "all" in goals else {}
        report(line, value, unit, peer, 1 / ratio if inverse else ratio, **goal, pairs=len(turns.found[name]))


# Peers


class Peers:
    """The peers that were asked for, each a process of its own with the same samples.

    Attributes:
        processes: those that opened. failed: why the others did not.
    """

    def __init__(
        self, names: Sequence[str], asked: str, directory: Path, kind: str, rows: int, prepare: bool
    ) -> None:
        wanted = {"all": set(names), "none": set()}.get(asked, set(asked.split(",")))
        self.processes: dict[str, _peers.Process] = {}
        self.failed: dict[str, str] = {}
        self._rows = rows
        for name in names:
            if name not in wanted:
                continue
            try:
                self.processes[name] = opened(name, directory / name, kind, self._rows_of(name))
                if prepare:
                    self.processes[name].ask("prepare")
            except _peers.PeerError as error:
                self.failed[name] = str(error)

    def actions(self, command: str, **arguments: Any) -> dict[str, Callable[[], float]]:
        """The seconds that each says it takes; of those that have fewer samples, as many times more."""

        def action(name: str) -> Callable[[], float]:
            times = self._rows / self._rows_of(name)
            return lambda: times * float(self.processes[name].ask(command, **arguments)["seconds"])

        return {name: action(name) for name in self.processes}

    def changes(self, numbers: np.random.Generator) -> dict[str, Callable[[], float]]:
        """The seconds of changing a sample and committing that, each time another one."""

        def action(name: str) -> Callable[[], float]:
            rows = self._rows_of(name)
            return lambda: float(
                self.processes[name].ask("change", number=int(numbers.integers(rows)))["seconds"]
            )

        return {name: action(name) for name in self.processes}

    def _rows_of(self, name: str) -> int:
        return min(self._rows, FEWER.get(name, self._rows))

    def report_failed(self, what: str, unit: str) -> None:
        for name, reason in self.failed.items():
            report_skipped(f"{what} against {name}", unit, reason)

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.close()


def opened(name: str, directory: Path, kind: str, rows: int) -> _peers.Process:
    """A peer's process.

    Raises:
        PeerError: it cannot be.
    """
    process = _peers.Process(_peers.environment(ENVIRONMENTS[name]), "_stock_peers.py", f"stock-{name}")
    try:
        process.ask("open", peer=name, directory=str(directory), kind=kind, rows=rows)
    except BaseException:
        process.close()
        raise
    return process


# The file system


class Syncs:
    """What is synced meanwhile: sizes of files, and -1 for directories. Then the same without anything else."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sizes: list[int] = []

    def __enter__(self) -> Syncs:
        self._fsync = os.fsync

        def noted(fd: int) -> None:
            status = os.fstat(fd)
            self.sizes.append(-1 if os.path.isdir(f"/proc/self/fd/{fd}") else status.st_size)  # noqa: PTH112
            self._fsync(fd)

        os.fsync = noted  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync = self._fsync

    def bare(self) -> float:
        """Seconds for as many files of the same sizes, written, synced and renamed, and as many directories."""
        place = Path(tempfile.mkdtemp(dir=self.directory))
        contents = [None if size < 0 else bytes(size) for size in self.sizes]
        directory = os.open(place, os.O_RDONLY)
        start = time.perf_counter()
        for number, content in enumerate(contents):
            if content is None:
                os.fsync(directory)
                continue
            fd = os.open(place / f"{number}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(fd, content)
            os.fsync(fd)
            os.close(fd)
            (place / f"{number}.tmp").rename(place / str(number))
        took = time.perf_counter() - start
        os.close(directory)
        shutil.rmtree(place)
        return took


def write_file(path: Path, data: Any) -> None:
    """One file, written at once and synced with its name: what no store of these bytes undercuts."""
    with path.open("xb", buffering=0) as file:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    fd = os.open(path.parent, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def bytes_written() -> int:
    """By this process to files so far, in whole pages, as the kernel counts them (Linux)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["write_bytes"])


def forget_cached(directory: Path) -> None:
    """Let the page cache forget all files below: they are read from the disk when they are next opened."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
