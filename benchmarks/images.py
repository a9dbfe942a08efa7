"""Claim: an epoch over JPEG in Parquet takes as long as its decoder does, on as many cores.

    python benchmarks/images.py [--rows 4000] [--repeats 5] [--cores 1,2]

Prints JSON lines, images/s, medians of epochs that take turns. Images of 224x224 (smooth surfaces and noise, quality
85, 4:2:0) in row groups of 500, shuffled, in batches of 64 as torch tensors:

* beside the bare decoder, simplejpeg in as many threads over the same bytes in memory, which drops the pixels;
* beside the same where the pixels are those of batches, two that alternate in each thread: the limit;
* beside Pillow in the same place;
* beside PyTorch's DataLoader, whose workers, one a core, decode by Pillow from bytes in memory;
* a first epoch, with an empty node cache, beside the limit.

A fourth as many images of 500x375 resized to 112x112 and 224x224, beside simplejpeg at full size, resized by Pillow, in
as many threads.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader

from hopyard.data import NodeCache, image, open_dataset

BATCH = 64
Size = tuple[int, int]


def encode(rows: int, height: int, width: int) -> list[bytes]:
    random = np.random.default_rng(0)
    encoded = []
    for _ in range(rows):
        coarse = random.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
        noisy = smooth + random.normal(0, 8, smooth.shape)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        encoded.append(file.getvalue())
    return encoded


def with_pillow(encoded: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded)))


def resized(size: Size) -> Callable[[bytes], np.ndarray]:
    """Decode at full size, and resize."""

    def decode(encoded: bytes) -> np.ndarray:
        whole = Image.fromarray(simplejpeg.decode_jpeg(encoded))
        return np.asarray(whole.resize(size[::-1], Image.Resampling.BILINEAR))

    return decode


def in_threads(decode: Callable[[bytes], np.ndarray], encoded: Sequence[bytes], threads: int) -> None:
    """Decode all, and keep nothing."""
    rows: Iterator[bytes] = iter(encoded)

    def work() -> None:
        for each in rows:
            decode(each)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


def into_batches(encoded: Sequence[bytes], threads: int) -> None:
    """Decode all into batches of images of one size."""
    rows = iter(encoded)

    def work() -> None:
        shape = simplejpeg.decode_jpeg_header(encoded[0])[:2]
        batches = np.empty((2 * BATCH // threads, *shape, 3), np.uint8)
        for number, each in enumerate(rows):
            simplejpeg.decode_jpeg(each, buffer=batches[number % len(batches)])

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


class InMemory(torch.utils.data.Dataset[torch.Tensor]):
    """Encoded images that workers get by their fork, decoded by Pillow."""

    def __init__(self, encoded: Sequence[bytes]) -> None:
        self.encoded = encoded

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(with_pillow(self.encoded[row]).copy())


def seconds(epoch: Callable[[], Any]) -> float:
    started = time.perf_counter()
    epoch()
    return time.perf_counter() - started


def exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def compare(
    name: str, rows: int, ours: Callable[[], Any], peers: dict[str, Callable[[], Any]], repeats: int
) -> None:
    """Print one JSON line for each peer."""
    took: dict[str, list[float]] = {each: [] for each in ("ours", *peers)}
    for each in (ours, *peers.values()):
        each()
    for _ in range(repeats):
        for each, epoch in {"ours": ours, **peers}.items():
            took[each].append(seconds(epoch))
    mine = took["ours"]
    for peer in peers:
        line = {
            "name": f"{name}, peer {peer}",
            "value": round(rows / statistics.median(mine)),
            "unit": "images/s",
            "peer": round(rows / statistics.median(took[peer])),
            "ratio": round(statistics.median(its / my for my, its in zip(mine, took[peer], strict=True)), 3),
        }
        print(json.dumps(line), flush=True)


def run(folder: Path, rows: int, cores: int, repeats: int) -> None:
    on = f"on {cores} core{'s' if cores > 1 else ''}"

    def written(height: int, width: int, rows: int) -> tuple[Path, list[bytes]]:
        encoded = encode(rows, height, width)
        path = folder / f"{height}x{width}.parquet"
        pq.write_table(pa.table({"image": encoded, "label": np.arange(rows)}), path, row_group_size=500)
        return path, encoded

    def epochs(path: Path, cache: Path, **how: Any) -> Callable[[], None]:
        dataset = open_dataset(path, decode={"image": image(**how)}, cache=NodeCache(cache))
        loader = dataset.loader(BATCH, shuffle=True, output="torch")
        return lambda: exhaust(loader)

    path, encoded = written(224, 224, rows)
    workers = DataLoader(
        InMemory(encoded), BATCH, shuffle=True, num_workers=cores, persistent_workers=True, prefetch_factor=4
    )
    limit = {"simplejpeg into batches": lambda: into_batches(encoded, cores)}
    peers: dict[str, Callable[[], Any]] = {
        **limit,
        "simplejpeg alone": lambda: in_threads(simplejpeg.decode_jpeg, encoded, cores),
        "Pillow alone": lambda: in_threads(with_pillow, encoded, cores),
        "DataLoader with Pillow": lambda: exhaust(workers),
    }
    compare(f"JPEG 224x224 {on}", rows, epochs(path, folder / "cache"), peers, repeats)

    def first() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            epochs(path, Path(cache))()

    compare(f"JPEG 224x224, first epoch, {on}", rows, first, limit, repeats)
    path, encoded = written(375, 500, rows // 4)
    for size in [(112, 112), (224, 224)]:
        name = f"JPEG 500x375 resized to {size[1]}x{size[0]} {on}"
        peer = partial(in_threads, resized(size), encoded, cores)
        ours = epochs(path, folder / "cache", size=size)
        compare(name, len(encoded), ours, {"full size, then resized": peer}, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", default="1,2")
    arguments = parser.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    for cores in map(int, arguments.cores.split(",")):
        os.sched_setaffinity(0, usable[:cores])  # threads and workers inherit it
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory(prefix="hopyard-bench-") as folder:
            run(Path(folder), arguments.rows, cores, arguments.repeats)


if __name__ == "__main__":
    main()
