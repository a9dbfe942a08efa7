"""Loaders side by side: each in a process of its own, on the same cores, their epochs in turn.

A peer that is not part of Hopyard's ``bench`` extra gets a virtual environment below ``build/peers``, made
from the complete list of exact versions in ``benchmarks/peers/<environment>.txt``; torch, and what a list
leaves out, comes from the environment that runs the benchmark. If an environment cannot be made, or a peer
fails, its line says why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _workloads import WORKLOADS, Workload

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build"
OURS = "_ours"
THEIRS = "_peer_loaders"
PAIRS, FEWEST_PAIRS, SLOW = 3, 1, 20.0  # a peer whose epoch takes longer than SLOW seconds: the fewest pairs


class PeerError(Exception):
    """A loader could not be measured; the text says why."""


@dataclass(frozen=True)
class Peer:
    """A loader, the environment that has it, and how many rows it reads of each workload (None: all)."""

    name: str
    environment: str | None = None
    rows: tuple[tuple[str, int], ...] = ()
    not_for: tuple[tuple[str, str], ...] = ()

    def rows_of(self, workload: Workload, rows: int) -> int:
        return min(rows, dict(self.rows).get(workload.name, rows))


def _each(W1: int, W2: int, W3: int, W4: int) -> tuple[tuple[str, int], ...]:  # noqa: N803
    return (("W1", W1), ("W2", W2), ("W3", W3), ("W4", W4))


PEERS = {
    peer.name: peer
    for peer in [
        Peer("torch-tuned"),
        Peer("torch", rows=_each(50_000, 100_000, 50_000, 20_000)),
        Peer("datasets", "modern", _each(20_000, 20_000, 20_000, 10_000)),
        Peer("litdata", "modern", _each(16_384, 8_192, 8_192, 4_096)),
        Peer("lance", "modern", _each(200_000, 100_000, 50_000, 20_000)),
        Peer("lancedb", "modern", _each(50_000, 50_000, 20_000, 10_000)),
        Peer("webdataset", "modern", _each(16_384, 8_192, 8_192, 4_096)),
        Peer("ray", "modern"),
        Peer("mosaic", "mosaic", _each(16_384, 8_192, 8_192, 4_096)),
        Peer("petastorm", "petastorm"),
    ]
}


def environment(name: str | None) -> Path:
    """The interpreter of an environment, made if it is not there or its list has changed.

    Raises:
        PeerError: it cannot be made.
    """
    if name is None:
        return Path(sys.executable)
    requirements = HERE / "peers" / f"{name}.txt"
    directory = BUILD / "peers" / name
    python, made = directory / "bin" / "python", directory / "made.txt"
    wanted = f"{sys.version}\n{requirements.read_text()}"
    if made.exists() and made.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=True, symlinks=True)
    # Behind the environment's own packages: torch is large, and must be the same for all.
    site = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    (Path(site.strip()) / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*install, "-r", requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"its environment cannot be made: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    made.write_text(wanted)
    return python


class Process:
    """A process that answers commands; see ``_serve``."""

    def __init__(self, python: Path, script: str, log: str) -> None:
        path = BUILD / "bench" / "logs" / f"{log}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = path.open("w")
        self._process = subprocess.Popen(
            [python, "-W", "ignore", HERE / script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **_ENVIRONMENT},
        )

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a command.

        Raises:
            PeerError: the loader failed, or its process is gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": f"its process ended; see {self._log.name}"}
        if "error" in answer:
            raise PeerError(answer["error"])
        return dict(answer)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Worker(Process):
    """A process with one loader; see ``_peer_worker``."""

    def __init__(self, loader: str, python: Path, workload: Workload, rows: int) -> None:
        self.loader = loader
        super().__init__(python, "_peer_worker.py", f"{workload.name}-{loader}")
        module = OURS if loader in OURS_AND_LIMITS else THEIRS
        try:
            opened = self.ask(
                "open", module=module, loader=loader, workload=workload.name, rows=rows, root=str(ROOT)
            )
        except BaseException:
            self.close()
            raise
        self.row_bytes = opened["row_bytes"]
        self.setting = ""

    def cores(self, cores: Sequence[int]) -> None:
        self.setting = self.ask("cores", cores=list(cores))["setting"]

    def epoch(self) -> dict[str, Any]:
        return self.ask("epoch")


OURS_AND_LIMITS = ("hopyard", "hopyard-cold", "take", "decode", "memcpy")
ROOT = BUILD / "bench"
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": str(ROOT / "hf"),
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "DISABLE_OPTIMIZED_NAMES": "1",
}


@contextmanager
def working(loader: str, workload: Workload, rows: int) -> Iterator[Worker]:
    worker = Worker(
        loader, environment(PEERS[loader].environment if loader in PEERS else None), workload, rows
    )
    try:
        yield worker
    finally:
        worker.close()


@dataclass(frozen=True)
class Comparison:
    """Medians of the epochs of two loaders that took turns, in rows/s, and of the pairs' ratios."""

    ours: float
    peer: float
    ratio: float
    pairs: int
    own: dict[str, float]
    theirs: dict[str, float]


def compare(ours: Worker, peer: Worker, pairs: int) -> Comparison:
    done: list[tuple[dict[str, Any], dict[str, Any]]] = []
    while len(done) < pairs:
        if len(done) % 2:
            theirs, own = peer.epoch(), ours.epoch()
        else:
            own, theirs = ours.epoch(), peer.epoch()
        done.append((own, theirs))
        if theirs["seconds"] > SLOW:
            pairs = min(pairs, FEWEST_PAIRS)
    return Comparison(
        statistics.median(_rate(own) for own, _ in done),
        statistics.median(_rate(theirs) for _, theirs in done),
        statistics.median(_rate(own) / _rate(theirs) for own, theirs in done),
        len(done),
        _costs([own for own, _ in done], ours.row_bytes),
        _costs([theirs for _, theirs in done], peer.row_bytes),
    )


def _rate(epoch: dict[str, Any]) -> float:
    return float(epoch["rows"] / epoch["seconds"])


def _costs(epochs: list[dict[str, Any]], row_bytes: int) -> dict[str, float]:
    def median(values: Iterator[float]) -> float:
        return round(statistics.median(values), 4)

    return {
        "cpu_s_per_gb": median(epoch["cpu_s"] / (epoch["rows"] * row_bytes / 1e9) for epoch in epochs),
        "first_batch_s": median(epoch["first_batch_s"] for epoch in epochs),
        "peak_mb": median(epoch["peak_mb"] for epoch in epochs),
        "anonymous_mb": median(epoch["anonymous_mb"] for epoch in epochs),
    }


def report(name: str, found: Comparison, **more: Any) -> None:
    line = {
        "name": name,
        "value": round(found.ours, 1),
        "unit": "rows/s",
        "peer": round(found.peer, 1),
        "ratio": round(found.ratio, 3),
        **more,
        "pairs": found.pairs,
        **found.own,
        "peer_costs": found.theirs,
    }
    print(json.dumps(line), flush=True)


def report_skipped(name: str, reason: str) -> None:
    line = {"name": name, "value": None, "unit": "rows/s", "peer": None, "ratio": None, "skipped": reason}
    print(json.dumps(line), flush=True)


def arguments_of(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help="of the whole data; the default is the workload's")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--peers", default="all", help="all, none, or names with commas: " + ", ".join(PEERS))
    parser.add_argument("--cores", default="2", help="how many the processes may use, with commas")
    return parser.parse_args()


def run(name: str, description: str, limits: Sequence[tuple[str, str]] = (("hopyard", "take"),)) -> None:
    """Everything about one workload: ours against its limits, then against each peer.

    Args:
        limits: (ours, the limit) to compare.
    """
    arguments = arguments_of(description)
    workload = WORKLOADS[name]
    rows = arguments.rows or workload.rows
    cores = [int(each) for each in arguments.cores.split(",")]
    peers = {"all": list(PEERS), "none": []}.get(arguments.peers, arguments.peers.split(","))
    unknown = sorted(set(peers) - set(PEERS))
    if unknown:
        sys.exit(f"--peers={arguments.peers}: {unknown[0]} is none of {', '.join(PEERS)}")
    for ours, limit in limits:
        with working(ours, workload, rows) as own:
            against(own, limit, workload, rows, cores, arguments.pairs)
    if peers:
        with working("hopyard", workload, rows) as own:
            for peer in peers:
                against(own, peer, workload, rows, cores, arguments.pairs)


def against(
    ours: Worker, other: str, workload: Workload, rows: int, cores: Sequence[int], pairs: int
) -> None:
    """One line for each number of cores."""
    if other in PEERS:
        rows = PEERS[other].rows_of(workload, rows)
    title = f"{workload.name} {ours.loader} against {other}"
    available = sorted(os.sched_getaffinity(0))
    try:
        with working(other, workload, rows) as peer:
            for count in cores:
                named = f"{title}, {count} core{'s' if count > 1 else ''}"
                if count > len(available):
                    report_skipped(named, f"this machine has {len(available)}")
                    continue
                ours.cores(available[:count])
                peer.cores(available[:count])
                report(named, compare(ours, peer, pairs), setting=peer.setting, peer_rows=rows)
    except PeerError as error:
        report_skipped(title, str(error))
