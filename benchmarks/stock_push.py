"""Push: many small samples to a bucket, beside s3fs.

    HOPYARD_S3_SERVER=versitygw python benchmarks/stock_push.py [--rows 10000] [--pairs 3]

10,000 samples of 1,000 bytes. Ours are appended, committed and pushed: they travel in packfiles, which is what makes
the difference. ``s3fs.put`` sends a folder with a file for each, 128 at a time as is its default. A real S3 server on
this machine, behind a wire with 30 ms of latency and 100 MB/s (``tests/slow_wire.py``). Goal: at least 5 times s3fs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import _peers
from _stock import Turns, arguments_of, new_stock, report_turns, scratch, seconds

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.s3_gateway import PROGRAM, Gateway
from tests.slow_wire import Settings, slow_wire

BYTES = 1000
SLOWEST = 600  # seconds of the peer's turn

THEIRS = """
import os, sys, time
import s3fs
store = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
started = time.perf_counter()
store.put(sys.argv[1], sys.argv[2], recursive=True)
print(time.perf_counter() - started)
"""


def main() -> None:
    arguments = arguments_of(__doc__, rows=10_000, pairs=3)
    program = os.environ.get(PROGRAM)
    if program is None:
        print(f"benchmarks/stock_push.py needs versitygw ({PROGRAM}): left out", file=sys.stderr)
        return
    samples = np.random.default_rng(0).integers(0, 256, (arguments.rows, BYTES), np.uint8)
    with scratch() as directory:
        gateway = Gateway(program, directory)
        try:
            with slow_wire(Settings(gateway.url, 0.03, 1e8)) as wire:
                environment = gateway.environment(wire.url)
                os.environ.update(environment)
                (gateway.data / "bench").mkdir()
                report_turns(
                    f"stock push, {arguments.rows:,} samples of {BYTES:,} bytes, 30 ms and 100 MB/s",
                    turns(directory, samples, environment, arguments.pairs),
                    "samples/s",
                    lambda took: arguments.rows / took,
                    all="ratio >= 5",
                )
        finally:
            gateway.stop()


def turns(directory: Path, samples: np.ndarray, environment: dict[str, str], pairs: int) -> Turns:
    folder = directory / "files"
    folder.mkdir()
    for number, sample in enumerate(samples):
        (folder / f"{number:06}.bin").write_bytes(sample.tobytes())
    count = iter(range(2 * pairs))

    def ours() -> float:
        number = next(count)
        with new_stock(directory / f"stock{number}") as stock:

            def push() -> None:
                with stock.enable_write():
                    stock.data.create("x", dtype="uint8", shape=(BYTES,))
                    stock.data["x"].extend(samples)
                stock.push(f"s3://bench/ours{number}")

            return seconds(push)

    def theirs() -> float:
        command = [_peers.environment("s3fs"), "-c", THEIRS, folder, f"bench/theirs{next(count)}"]
        try:
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=SLOWEST,
                env={**os.environ, **environment},
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise _peers.PeerError(f"not done in {SLOWEST} s") from error
        except subprocess.CalledProcessError as error:
            raise _peers.PeerError(error.stderr.strip().splitlines()[-1]) from error
        return float(done.stdout)

    return Turns({"hopyard": ours, "s3fs": theirs}, pairs)


if __name__ == "__main__":
    main()
