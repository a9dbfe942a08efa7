"""Claim: a store on HDFS reads as fast as its client.

    HOPYARD_HADOOP=hadoop-client-minicluster-X.jar python benchmarks/hdfs.py [--megabytes 256] [--repeats 5]

One name node and two data nodes of Hadoop on this machine. Prints three JSON lines each for ``hdfs://`` and
``webhdfs://``: MB/s of a file that is read from its start to its end, piece by piece and in ranges of 8 MiB by
``HDFSStore.receive``, as loaders read, and as a whole by ``HDFSStore.get``, beside hdfs-native's own stream over the
same file, in turns. The stream and ``receive`` drop their pieces, while a whole file is in memory in the end.
CONTRIBUTING.md says how to get Hadoop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hopyard.storage import HDFSStore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests import hdfs_cluster


def seconds(action: Callable[[], int], size: int) -> float:
    started = time.perf_counter()
    assert action() == size
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    missing = hdfs_cluster.missing()
    if missing is not None:
        print(f"benchmarks/hdfs.py needs {missing}: left out", file=sys.stderr)
        return
    size = arguments.megabytes * 1_000_000
    with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as folder:
        cluster = hdfs_cluster.HdfsCluster(Path(folder))
        try:
            cluster.start()
            import hdfs_native

            stores = {
                "read a file from HDFS": HDFSStore(f"{cluster.url}/bench"),
                "read a file from HDFS over HTTP": HDFSStore(f"webhdfs://{cluster.web}/bench"),
            }
            next(iter(stores.values())).put("file", np.random.default_rng(0).bytes(size))
            reader = hdfs_native.Client(cluster.url)

            def streamed() -> int:
                return sum(len(piece) for piece in reader.read("/bench/file").read_range_stream(0, size))

            for name, store in stores.items():
                for how, length in (
                    ("piece by piece", size),
                    ("in ranges of 8 MiB", 8 << 20),
                    ("as a whole", None),
                ):
                    ours, theirs = [], []
                    for _ in range(
                        arguments.repeats
                    ):  # nodes that were just started compile what they do often
                        read(store, size, length)
                    for _ in range(arguments.repeats):
                        ours.append(seconds(partial(read, store, size, length), size))
                        theirs.append(seconds(streamed, size))
                    report(f"{name}, {how}", size, ours, theirs)
        finally:
            cluster.stop()


def read(store: HDFSStore, size: int, length: int | None) -> int:
    if length is None:
        return len(store.get("file"))
    received = 0

    def keep(position: int, piece: memoryview) -> None:
        nonlocal received
        received += len(piece)

    for start in range(0, size, length):
        store.receive("file", start, min(length, size - start), keep)
    return received


def report(name: str, size: int, ours: list[float], theirs: list[float]) -> None:
    value, peer = (round(size / 1e6 / statistics.median(times)) for times in (ours, theirs))
    line = {"name": name, "value": value, "unit": "MB/s", "peer": peer}
    ratio = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    print(json.dumps(line | {"ratio": round(ratio, 3)}), flush=True)


if __name__ == "__main__":
    main()
