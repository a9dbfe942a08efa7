"""Claim: a first epoch over a bucket is as fast as the wire, begins within two seconds, and later ones ask nothing.

    HOPYARD_S3_SERVER=versitygw python benchmarks/stream.py [--megabytes 370] [--repeats 3]

A real S3 server on this machine, behind a wire with 30 ms of latency and 100 MB/s (``tests/slow_wire.py``), and
without one. Prints a JSON line for each: the MB/s of a cold epoch of float32[768] in foreign Parquet, beside eight
readers of bare ranges over the same objects, in turns; seconds to the first batch of data that is larger than a window;
requests and bytes beside the least that the columns need; memory that the loader adds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _peers import PeerError
from _peers import environment as peer_environment
from _stream_peers import ENVIRONMENTS, MAKE, READ

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.s3_gateway import PROGRAM, Gateway
from tests.slow_wire import Settings, SlowWire, slow_wire

HERE = Path(__file__).resolve().parent
WIDTH, FILES, GROUP = 768, 4, 4096
AT_ONCE, RANGE = 8, 8 << 20
SLOWEST = 60  # seconds of a peer's epoch

COMMON = """
import json, os, re, sys, time
def anonymous():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(l.split()[1]) for l in lines if l.startswith(("Anonymous:", "Shmem"))) * 1024
"""

OURS = (
    COMMON
    + """
from hopyard.data import open_dataset
import threading
data, batch = sys.argv[1], int(sys.argv[2])
started = time.perf_counter()
loader = open_dataset(data, columns=["x", "label"]).loader(batch_size=batch, shuffle=True)
before, peak, stop = anonymous(), 0, threading.Event()
def watch():
    global peak
    while not stop.wait(0.05):
        peak = max(peak, anonymous())
threading.Thread(target=watch, daemon=True).start()
first, rows, seconds = None, 0, []
for epoch in range(int(sys.argv[3])):
    began = started if epoch == 0 else time.perf_counter()
    for values in loader:
        first = first or time.perf_counter() - started
        rows += len(values["label"])
    seconds.append(time.perf_counter() - began)
print(json.dumps({"seconds": seconds, "first": first, "rows": rows, "memory": max(peak - before, 0)}))
"""
)

RANGES = (
    COMMON
    + """
from concurrent.futures import ThreadPoolExecutor
from hopyard.storage import open_store
store, size = open_store(sys.argv[1]), int(sys.argv[2])
ranges = [(e.name, s, min(size, e.size - s)) for e in store.list() for s in range(0, e.size, size)]
started = time.perf_counter()
with ThreadPoolExecutor(int(sys.argv[3])) as pool:
    total = sum(pool.map(lambda r: len(store.read(*r).data), ranges))
print(json.dumps({"seconds": [time.perf_counter() - started], "bytes": total}))
"""
)


def write(folder: Path, megabytes: int) -> int:
    """Files of others: lists of floats, as pandas and Arrow write them. Returns the rows."""
    rows = megabytes * 1_000_000 // (4 * WIDTH)
    generator = np.random.default_rng(0)
    for number in range(FILES):
        part = rows * (number + 1) // FILES - rows * number // FILES
        values = generator.standard_normal(part * WIDTH, np.float32)
        table = pa.table(
            {
                "x": pa.FixedSizeListArray.from_arrays(values, WIDTH),
                "label": generator.integers(0, 10, part),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP, compression="none")
    return rows


def least(folder: Path) -> tuple[int, int]:
    """Requests and bytes that the columns need: ranges of 8 MiB over each file, and a footer each."""
    sizes = [path.stat().st_size for path in folder.glob("*.parquet")]
    return sum(math.ceil(size / RANGE) + 1 for size in sizes), sum(sizes)


def run(code: str, environment: dict[str, str], *arguments: object) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as cache:
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], check=True, stdout=subprocess.PIPE,
            env={**os.environ, **environment, "HOPYARD_CACHE": cache},
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def report(name: str, value: float, unit: str, peer: str, than: float) -> None:
    print(
        json.dumps(
            {
                "name": name,
                "value": round(value, 3),
                "unit": unit,
                "peer": peer,
                "ratio": round(value / than, 3),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=370)
    parser.add_argument(
        "--large", type=int, default=1500, help="megabytes of the data beyond a window; 0: none"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peers", default=",".join(READ), help="whose epochs are measured, too; may be empty"
    )
    arguments = parser.parse_args()
    program = os.environ.get(PROGRAM)
    if program is None:
        print(f"benchmarks/stream.py needs versitygw ({PROGRAM}): left out", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as folder:
        gateway = Gateway(program, Path(folder))
        try:
            data = gateway.data / "bench" / "small"
            data.mkdir(parents=True)
            write(data, arguments.megabytes)
            for title, latency, speed in (("30 ms, 100 MB/s", 0.03, 1e8), ("no wire", 0.0, 0.0)):
                if speed:
                    with slow_wire(Settings(gateway.url, latency, speed)) as wire:
                        environment = gateway.environment(wire.url)
                        speed = cold_epochs(title, environment, data, arguments.repeats, wire)
                        peers(arguments.peers.split(","), environment, data, speed)
                else:
                    cold_epochs(title, gateway.environment(), data, arguments.repeats, None)
            if arguments.large:
                large = gateway.data / "bench" / "large"
                large.mkdir()
                write(large, arguments.large)
                with slow_wire(Settings(gateway.url, 0.03, 1e8)) as wire:
                    got = run(OURS, gateway.environment(wire.url), "s3://bench/large", 256, 1)
                report("first batch of data beyond a window", got["first"], "s", "2 s", 2)
                size = sum(path.stat().st_size for path in large.glob("*.parquet"))
                report("cold epoch beyond a window", size / 1e6 / got["seconds"][0], "MB/s", "the wire", 100)
                report("memory beyond a window", got["memory"] / 1e6, "MB", "300 MB", 300)
        finally:
            gateway.stop()


def cold_epochs(
    title: str, environment: dict[str, str], data: Path, repeats: int, wire: SlowWire | None
) -> float:
    """Measure and report first epochs; returns their speed in MB/s."""
    size = sum(path.stat().st_size for path in data.glob("*.parquet"))
    ours, theirs, warm, memory, first = [], [], [], [], []
    for _ in range(repeats):
        before = wire.passed() if wire else None
        got = run(OURS, environment, "s3://bench/small", 256, 2)
        ours.append(got["seconds"][0])
        warm.append(got["seconds"][1])
        memory.append(got["memory"])
        first.append(got["first"])
        if wire and before:
            after = wire.passed()
            requests, received = after.requests - before.requests, after.received - before.received
        theirs.append(run(RANGES, environment, "s3://bench/small", RANGE, AT_ONCE)["seconds"][0])
    limit = size / 1e6 / statistics.median(theirs)
    report(
        f"cold epoch, {title}",
        size / 1e6 / statistics.median(ours),
        "MB/s",
        "eight bare ranged readers",
        limit,
    )
    report(
        f"first batch, {title}",
        statistics.median(first),
        "s",
        "eight bare ranged readers",
        statistics.median(theirs),
    )
    report(
        f"warm epoch, {title}",
        size / 1e6 / statistics.median(warm),
        "MB/s",
        "cold",
        size / 1e6 / statistics.median(ours),
    )
    if wire:
        fewest, bytes_ = least(data)
        report("requests of a cold epoch", requests, "requests", "the least", fewest)
        report("bytes of a cold epoch", received / 1e6, "MB", "the least", bytes_ / 1e6)
        report("memory that the loader adds", max(memory) / 1e6, "MB", "300 MB", 300)
    return size / 1e6 / statistics.median(ours)


def peers(names: list[str], environment: dict[str, str], data: Path, ours: float) -> None:
    """Measure and report one epoch of each peer over the same rows, on the same wire."""
    size = sum(path.stat().st_size for path in data.glob("*.parquet"))
    rows = sum(pq.read_metadata(path).num_rows for path in data.glob("*.parquet"))
    for number, name in enumerate(filter(None, names)):
        script = [HERE / "_stream_peers.py"]
        place = data
        try:
            python = peer_environment(ENVIRONMENTS.get(name, "modern"))
            if name in MAKE:
                place = data.parent / f"peer{number}"
                place.mkdir()
                call([python, *script, "make", name, place, rows], environment, 600)
            with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as cache:
                command = [python, *script, "read", name, f"bench/{place.name}", cache]
                got = json.loads(call(command, environment, SLOWEST).splitlines()[-1])
            assert got["rows"] == rows, got
        except subprocess.TimeoutExpired:
            print(
                json.dumps({"name": f"cold epoch of {name}", "error": f"not done in {SLOWEST} s"}), flush=True
            )
        except (PeerError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
            print(json.dumps({"name": f"cold epoch of {name}", "error": said[:300]}), flush=True)
        else:
            theirs = size / 1e6 / got["seconds"]
            report(f"cold epoch beside {name}'s {theirs:.1f} MB/s", ours, "MB/s", name, theirs)


def call(command: list[object], environment: dict[str, str], seconds: float) -> str:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            list(map(str, command)), env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and workers of the peer
        if process.returncode:
            log.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=log.read())
        return said


if __name__ == "__main__":
    main()
