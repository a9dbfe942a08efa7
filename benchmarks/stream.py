"""Claim: a first epoch over a bucket is as fast as the wire, begins within two seconds, and later ones ask nothing.

    HOPYARD_S3_SERVER=versitygw python benchmarks/stream.py [--megabytes 370] [--images 26000] [--repeats 3]

A real S3 server on this machine, behind a wire with 30 ms of latency and 100 MB/s (``tests/slow_wire.py``), and
without one. Prints a JSON line for each: the MB/s of a cold epoch of foreign Parquet, beside the limit, which is the
slower of eight readers of bare ranges over the same objects and of the decoder alone over the same bytes in memory, in
turns, and beside both of these at once, which share the cores with the server and the wire as the epoch does; its
processor time; seconds to the first batch; requests and bytes beside the least that the columns need; memory that the
loader adds, anonymous or files in memory. Rows are float32[768], and JPEG of 224x224 that simplejpeg decodes on all
cores, in each epoch. Then floats that are more than a window.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _peers import PeerError
from _peers import environment as peer_environment
from _stream_peers import BATCHES, ENVIRONMENTS, MAKE, READ
from images import encode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.s3_gateway import PROGRAM, Gateway
from tests.slow_wire import Settings, SlowWire, slow_wire

HERE = Path(__file__).resolve().parent
WIDTH, FILES, DIFFERENT = 768, 4, 500
AT_ONCE, RANGE = 8, 8 << 20
SLOWEST = 60  # seconds of a peer's epoch

COMMON = """
import json, os, re, sys, time
def held():  # bytes of anonymous memory and of files in memory; to read smaps takes a tenth of the processor's time
    with open("/proc/self/status") as lines:
        pages = sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:"):
                pages += os.stat(f"/proc/self/fd/{descriptor}").st_blocks * 512
        except FileNotFoundError:  # the one of this list, or one that was closed meanwhile
            pass
    return pages
"""

OURS = (
    COMMON
    + """
from hopyard.data import image, open_dataset
import threading
data, batch = sys.argv[1], int(sys.argv[2])
started, busy = time.perf_counter(), time.process_time()
decode = {"x": image()} if sys.argv[4] == "images" else None
loader = open_dataset(data, columns=["x", "label"], decode=decode).loader(batch_size=batch, shuffle=True)
before, peak, stop = held(), 0, threading.Event()
def watch():
    global peak
    while not stop.wait(0.05):
        peak = max(peak, held())
threading.Thread(target=watch, daemon=True).start()
first, rows, seconds, cpu = None, 0, [], []
for epoch in range(int(sys.argv[3])):
    began = started if epoch == 0 else time.perf_counter()
    for values in loader:
        first = first or time.perf_counter() - started
        rows += len(values["label"])
    seconds.append(time.perf_counter() - began)
    cpu.append(time.process_time() - busy)
print(json.dumps({"seconds": seconds, "first": first, "rows": rows, "memory": max(peak - before, 0), "cpu": cpu[0]}))
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

BOTH = (
    COMMON
    + """
import pyarrow.dataset
from concurrent.futures import ThreadPoolExecutor
from hopyard.storage import open_store
from images import into_batches
encoded = pyarrow.dataset.dataset(sys.argv[4]).to_table(["x"])["x"].to_pylist()
store, size = open_store(sys.argv[1]), int(sys.argv[2])
ranges = [(e.name, s, min(size, e.size - s)) for e in store.list() for s in range(0, e.size, size)]
started, busy = time.perf_counter(), time.process_time()
with ThreadPoolExecutor(int(sys.argv[3])) as pool:
    read = [pool.submit(lambda r: len(store.read(*r).data), r) for r in ranges]
    into_batches(encoded, os.cpu_count())
    total = sum(future.result() for future in read)
seconds, cpu = time.perf_counter() - started, time.process_time() - busy
print(json.dumps({"seconds": [seconds], "bytes": total, "cpu": cpu}))
"""
)
"""The ranges from the store and, meanwhile, the decoder over the same images, which lie in memory. Parquet, the
cache and batches are not in it."""

DECODER = (
    COMMON
    + """
import pyarrow.dataset
from images import into_batches
encoded = pyarrow.dataset.dataset(sys.argv[1]).to_table(["x"])["x"].to_pylist()
started = time.perf_counter()
into_batches(encoded, os.cpu_count())
print(json.dumps({"seconds": [time.perf_counter() - started]}))
"""
)


def write_floats(folder: Path, megabytes: int) -> None:
    """Files of others: lists of floats, as pandas and Arrow write them."""
    rows = megabytes * 1_000_000 // (4 * WIDTH)
    generator = np.random.default_rng(0)
    for number, part in enumerate(parts(rows, FILES)):
        values = generator.standard_normal(len(part) * WIDTH, np.float32)
        write(folder, number, pa.FixedSizeListArray.from_arrays(values, WIDTH), 4096)


def write_images(folder: Path, rows: int) -> None:
    """Files with a column of JPEG; the same images come again and again, which no codec or decoder here notices."""
    encoded = encode(DIFFERENT, 224, 224)
    for number, part in enumerate(parts(rows, FILES)):
        write(folder, number, pa.array([encoded[row % DIFFERENT] for row in part], pa.binary()), 500)


def write(folder: Path, number: int, column: pa.Array, group: int) -> None:
    labels = np.random.default_rng(number).integers(0, 10, len(column))
    table = pa.table({"x": column, "label": labels})
    path = folder / f"{number}.parquet"
    pq.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)


WRITE: dict[str, Callable[[Path, int], None]] = {"floats": write_floats, "images": write_images}


def parts(rows: int, files: int) -> list[range]:
    bounds = [rows * number // files for number in range(files + 1)]
    return [range(*pair) for pair in itertools.pairwise(bounds)]


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def least(folder: Path) -> tuple[int, int]:
    """Requests and bytes that the columns need: ranges of 8 MiB over each file, and a footer each."""
    sizes = [path.stat().st_size for path in folder.glob("*.parquet")]
    return sum(math.ceil(size / RANGE) + 1 for size in sizes), sum(sizes)


def run(code: str, environment: dict[str, str], *arguments: object) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as cache:
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], check=True, stdout=subprocess.PIPE, cwd=HERE,
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
    parser.add_argument("--megabytes", type=int, default=370, help="of floats; 0: none")
    parser.add_argument("--images", type=int, default=26000, help="0: none")
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
            bucket = gateway.data / "bench"
            for kind, amount in (("floats", arguments.megabytes), ("images", arguments.images)):
                if amount:
                    (bucket / kind).mkdir(parents=True)
                    WRITE[kind](bucket / kind, amount)
                    compare(kind, gateway, bucket / kind, arguments.repeats, arguments.peers.split(","))
            if arguments.large:
                large = bucket / "large"
                large.mkdir(parents=True)
                write_floats(large, arguments.large)
                with slow_wire(Settings(gateway.url, 0.03, 1e8)) as wire:
                    got = run(
                        OURS,
                        gateway.environment(wire.url),
                        "s3://bench/large",
                        BATCHES["floats"],
                        1,
                        "floats",
                    )
                report("first batch of data beyond a window", got["first"], "s", "2 s", 2)
                speed = bytes_of(large) / 1e6 / got["seconds"][0]
                report("cold epoch beyond a window", speed, "MB/s", "the wire", 100)
                report("memory beyond a window", got["memory"] / 1e6, "MB", "300 MB", 300)
        finally:
            gateway.stop()


def compare(kind: str, gateway: Gateway, data: Path, repeats: int, names: list[str]) -> None:
    with slow_wire(Settings(gateway.url, 0.03, 1e8)) as wire:
        environment = gateway.environment(wire.url)
        speed = cold_epochs(kind, "30 ms, 100 MB/s", environment, data, repeats, wire)
        peers(kind, names, environment, data, speed)
    cold_epochs(kind, "no wire", gateway.environment(), data, repeats, None)


def cold_epochs(
    kind: str, title: str, environment: dict[str, str], data: Path, repeats: int, wire: SlowWire | None
) -> float:
    """Measure and report first epochs; returns their speed in MB/s."""
    megabytes = bytes_of(data) / 1e6
    ours, ranges, decoder, both, warm, memory, first = [], [], [], [], [], [], []
    cpu: list[float] = []
    both_cpu: list[float] = []
    for _ in range(repeats):
        before = wire.passed() if wire else None
        got = run(OURS, environment, f"s3://bench/{kind}", BATCHES[kind], 2, kind)
        ours.append(got["seconds"][0])
        warm.append(got["seconds"][1])
        memory.append(got["memory"])
        cpu.append(got["cpu"])
        first.append(got["first"])
        if wire and before:
            after = wire.passed()
            requests, received = after.requests - before.requests, after.received - before.received
        ranges.append(run(RANGES, environment, f"s3://bench/{kind}", RANGE, AT_ONCE)["seconds"][0])
        if kind == "images":
            decoder.append(run(DECODER, environment, data)["seconds"][0])
            got = run(BOTH, environment, f"s3://bench/{kind}", RANGE, AT_ONCE, data)
            both.append(got["seconds"][0])
            both_cpu.append(got["cpu"])
    limits = {"eight bare ranged readers": statistics.median(ranges)}
    if decoder:
        limits["the decoder alone"] = statistics.median(decoder)
    limit = max(limits, key=lambda name: limits[name])
    speed, warm_speed = (megabytes / statistics.median(seconds) for seconds in (ours, warm))
    what = f"{kind}, {title}"
    report(f"cold epoch of {what}", speed, "MB/s", limit, megabytes / limits[limit])
    if both:
        report(f"cold epoch of {what}", speed, "MB/s", "both at once", megabytes / statistics.median(both))
        medians = statistics.median(cpu), statistics.median(both_cpu)
        report(f"processor time of a cold epoch of {what}", medians[0], "s", "both at once", medians[1])
    report(f"first batch of {what}", statistics.median(first), "s", limit, limits[limit])
    against = ("the decoder alone", megabytes / limits["the decoder alone"]) if decoder else ("cold", speed)
    report(f"warm epoch of {what}", warm_speed, "MB/s", *against)
    if wire:
        fewest, bytes_ = least(data)
        report(f"requests of a cold epoch of {kind}", requests, "requests", "the least", fewest)
        report(f"bytes of a cold epoch of {kind}", received / 1e6, "MB", "the least", bytes_ / 1e6)
        report(f"memory that the loader of {kind} adds", max(memory) / 1e6, "MB", "300 MB", 300)
    return speed


def peers(kind: str, names: list[str], environment: dict[str, str], data: Path, ours: float) -> None:
    """Measure and report one epoch of each peer over the same rows, on the same wire."""
    rows = sum(pq.read_metadata(path).num_rows for path in data.glob("*.parquet"))
    for number, name in enumerate(filter(None, names)):
        script = [HERE / "_stream_peers.py"]
        place = data
        try:
            python = peer_environment(ENVIRONMENTS.get(name, "modern"))
            if name in MAKE:
                place = data.parent / f"{kind}-peer{number}"
                place.mkdir()
                call([python, *script, "make", name, kind, place, data], environment, 600)
            with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as cache:
                command = [python, *script, "read", name, kind, f"bench/{place.name}", cache]
                got = json.loads(call(command, environment, SLOWEST).splitlines()[-1])
            assert got["rows"] == rows, got
        except subprocess.TimeoutExpired:
            failure = f"not done in {SLOWEST} s"
        except (PeerError, subprocess.CalledProcessError) as error:
            failure = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1][:300]
        else:
            theirs = bytes_of(data) / 1e6 / got["seconds"]
            report(f"cold epoch of {kind} beside {name}'s {theirs:.1f} MB/s", ours, "MB/s", name, theirs)
            continue
        print(json.dumps({"name": f"cold epoch of {kind} of {name}", "error": failure}), flush=True)


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
