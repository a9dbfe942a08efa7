"""Peers of ``stream.py``: a process each, in the peer's environment. ``make`` writes the rows of a folder of Parquet in
the peer's own format into a folder that is a prefix of the bucket; ``read`` reads one epoch of it from there, and
prints seconds and rows.

    python _stream_peers.py make NAME KIND FOLDER PARQUET
    python _stream_peers.py read NAME KIND BUCKET/PREFIX CACHE

Each is set as its documentation says is fastest for one pass over data that is not here yet. Of the two kinds, "floats"
become arrays, and "images" are decoded by simplejpeg, as ours are: in the workers that a peer has, else in as many
threads as there are cores.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shlex
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, SHARDS = 768, 8
BATCHES = {"floats": 256, "images": 64}
BATCH = BATCHES["floats"]  # of the rows that this process reads
ENDPOINT = os.environ.get("AWS_ENDPOINT_URL", "")


def samples(kind: str, parquet: str) -> tuple[Sequence[Any], np.ndarray]:
    """The values, float32[768] or encoded images, and the labels."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(parquet).to_table()
    labels = table["label"].to_numpy()
    column = table["x"].combine_chunks()
    return column.to_pylist() if kind == "images" else vectors(column), labels


def vectors(column: Any) -> np.ndarray:
    return column.flatten().to_numpy().reshape(-1, WIDTH)


def decoded(image: bytes) -> np.ndarray:
    import simplejpeg

    return simplejpeg.decode_jpeg(image)


def in_threads(images: Sequence[bytes]) -> int:
    """Decode a batch of images in as many threads as there are cores; returns how many they are."""
    global pool
    if pool is None:
        pool = ThreadPoolExecutor(os.cpu_count())
    return len(np.stack(list(pool.map(decoded, images))))


pool: ThreadPoolExecutor | None = None


def of_arrow(kind: str, batches: Iterable[Any]) -> Iterator[int]:
    for batch in batches:
        column = batch.column("x")
        yield (
            in_threads(column.to_pylist())
            if kind == "images"
            else len(column.flatten().to_numpy().reshape(-1, WIDTH))
        )


def urls(place: str, ending: str) -> list[str]:
    """Signed addresses of the objects below a prefix, for libraries that read HTTP."""
    import boto3
    from botocore.config import Config

    bucket, _, prefix = place.partition("/")
    client = boto3.client("s3", endpoint_url=ENDPOINT, config=Config(signature_version="s3v4"))
    found = client.list_objects_v2(Bucket=bucket, Prefix=prefix + "/")["Contents"]
    return [
        client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": each["Key"]})
        for each in found
        if each["Key"].endswith(ending)
    ]


# Arrow, over the files of others


def read_arrow(kind: str, place: str, cache: str) -> Iterator[int]:
    import pyarrow.dataset
    import pyarrow.fs

    store = pyarrow.fs.S3FileSystem(endpoint_override=ENDPOINT.removeprefix("http://"), scheme="http")
    pyarrow.set_io_thread_count(32)
    data = pyarrow.dataset.dataset(place, format="parquet", filesystem=store)
    yield from of_arrow(kind, data.to_batches(batch_size=BATCH, batch_readahead=32, fragment_readahead=8))


def read_fsspec(kind: str, place: str, cache: str) -> Iterator[int]:
    import pyarrow.dataset
    from obstore.fsspec import FsspecStore

    store = FsspecStore("s3", client_options={"allow_http": True})
    data = pyarrow.dataset.dataset(place, format="parquet", filesystem=store)
    yield from of_arrow(kind, data.to_batches(batch_size=BATCH, batch_readahead=32, fragment_readahead=8))


def read_datasets(kind: str, place: str, cache: str) -> Iterator[int]:
    import datasets

    data = datasets.load_dataset(
        "parquet", data_files=urls(place, ".parquet"), split="train", streaming=True, cache_dir=cache
    )
    if kind == "floats":
        data = data.with_format("numpy")
    for batch in data.iter(batch_size=BATCH):
        yield in_threads(batch["x"]) if kind == "images" else len(batch["x"])


# Formats of their own


def make_litdata(kind: str, folder: Path, parquet: str) -> None:
    import litdata
    import torch

    values, labels = samples(kind, parquet)

    def sample(row: int) -> dict[str, Any]:
        value = values[row]
        return {
            "x": value if kind == "images" else torch.from_numpy(value.copy()),
            "label": int(labels[row]),
        }

    litdata.optimize(
        sample, list(range(len(labels))), str(folder), chunk_bytes="16MB", num_workers=1, start_method="fork",
        verbose=False,
    )  # fmt: skip


def read_litdata(kind: str, place: str, cache: str) -> Iterator[int]:
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server is on this machine

    class Decoded(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return {**sample, "x": decoded(sample["x"])}

    data = (Decoded if kind == "images" else litdata.StreamingDataset)(
        f"s3://{place}",
        cache_dir=cache,
        shuffle=True,
        max_pre_download=8,
        storage_options={"endpoint_url": ENDPOINT},
    )
    for batch in litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=2):
        yield len(batch["label"])


def _streaming() -> Any:
    package = types.ModuleType("streaming")  # its __init__ imports torchvision, which none of this needs
    package.__path__ = list(importlib.util.find_spec("streaming").submodule_search_locations)  # type: ignore
    sys.modules["streaming"] = package
    import streaming.base

    return streaming.base


def make_mosaic(kind: str, folder: Path, parquet: str) -> None:
    values, labels = samples(kind, parquet)
    columns = {"x": "bytes" if kind == "images" else f"ndarray:float32:{WIDTH}", "label": "int"}
    with _streaming().MDSWriter(out=str(folder), columns=columns, size_limit="16mb") as writer:
        for value, label in zip(values, labels, strict=True):
            writer.write({"x": value, "label": int(label)})


def read_mosaic(kind: str, place: str, cache: str) -> Iterator[int]:
    os.environ["S3_ENDPOINT_URL"] = ENDPOINT
    base = _streaming()
    data = base.StreamingDataset(
        remote=f"s3://{place}", local=cache, shuffle=True, batch_size=BATCH, predownload=16 * BATCH
    )

    def in_batch(samples: list[dict[str, Any]]) -> list[range]:
        return [range(in_threads([sample["x"] for sample in samples]))]  # the loader asks for its length

    # Two workers read shards that are not whole.
    loader = base.StreamingDataLoader(
        data, batch_size=BATCH, **({"collate_fn": in_batch} if kind == "images" else {})
    )
    for batch in loader:
        yield len(batch[0] if kind == "images" else batch["label"])


def make_webdataset(kind: str, folder: Path, parquet: str) -> None:
    import webdataset

    values, labels = samples(kind, parquet)
    bounds = np.linspace(0, len(labels), SHARDS + 1).astype(int)
    for shard, (start, stop) in enumerate(itertools.pairwise(bounds)):
        with webdataset.TarWriter(str(folder / f"{shard:03}.tar"), encoder=False) as writer:
            for index in range(start, stop):
                record = {"x.bin": bytes(values[index]), "label.bin": labels[index].tobytes()}
                writer.write({"__key__": f"{index:08}", **record})


def read_webdataset(kind: str, place: str, cache: str) -> Iterator[int]:
    import webdataset

    addresses = [f"pipe:curl -s {shlex.quote(url)}" for url in urls(place, ".tar")]

    def stack(records: list[dict[str, Any]]) -> np.ndarray:
        if kind == "images":
            return np.stack([decoded(record["x.bin"]) for record in records])
        data = bytearray().join(record["x.bin"] for record in records)
        return np.frombuffer(data, np.float32).reshape(len(records), -1)

    data = webdataset.WebDataset(
        addresses, shardshuffle=SHARDS, workersplitter=webdataset.split_by_worker, empty_check=False
    )
    for batch in webdataset.WebLoader(
        data.shuffle(10_000).batched(BATCH, collation_fn=stack), batch_size=None, num_workers=8
    ):
        yield len(batch)


def make_lance(kind: str, folder: Path, parquet: str) -> None:
    import lance
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(parquet).to_table()
    lance.write_dataset(table, str(folder), max_rows_per_file=-(-len(table) // 4))


def read_lance(kind: str, place: str, cache: str) -> Iterator[int]:
    import lance

    data = lance.dataset(f"s3://{place}", storage_options={"aws_endpoint": ENDPOINT, "allow_http": "true"})
    yield from of_arrow(
        kind,
        data.to_batches(batch_size=BATCH, batch_readahead=64, fragment_readahead=4, scan_in_order=False),
    )


def make_lancedb(kind: str, folder: Path, parquet: str) -> None:
    import lancedb
    import pyarrow.dataset

    lancedb.connect(str(folder)).create_table("data", pyarrow.dataset.dataset(parquet).to_table())


def read_lancedb(kind: str, place: str, cache: str) -> Iterator[int]:
    import lancedb
    from lancedb.streaming import StreamingDataset
    from torch.utils.data import DataLoader

    def rows_of(batch: Any) -> Sequence[Any]:
        column = batch.column("x")
        return [decoded(each.as_py()) for each in column] if kind == "images" else vectors(column)

    options = {"aws_endpoint": ENDPOINT, "allow_http": "true"}
    table = lancedb.connect(f"s3://{place}", storage_options=options).open_table("data")
    data = StreamingDataset(
        table,
        columns=["x", "label"],
        read_batch_size=4 * BATCH,
        io_queue_depth=8,
        shuffle_clump_size=BATCH,
        transform=rows_of,
    )
    for batch in DataLoader(data, batch_size=BATCH):
        yield len(batch)


MAKE: dict[str, Callable[[str, Path, str], None]] = {
    "LitData": make_litdata,
    "Mosaic Streaming": make_mosaic,
    "WebDataset": make_webdataset,
    "Lance": make_lance,
    "LanceDB": make_lancedb,
}
READ: dict[str, Callable[[str, str, str], Iterable[int]]] = {
    "Arrow": read_arrow,
    "fsspec and Arrow": read_fsspec,
    "datasets": read_datasets,
    "LitData": read_litdata,
    "Mosaic Streaming": read_mosaic,
    "WebDataset": read_webdataset,
    "Lance": read_lance,
    "LanceDB": read_lancedb,
}
ENVIRONMENTS = {"Arrow": None, "fsspec and Arrow": None, "Mosaic Streaming": "mosaic"}
"""Environments of the peers (``benchmarks/peers``); of the others it is ``modern``."""


def main() -> None:
    global BATCH
    todo, name, kind, place, last = sys.argv[1:]
    BATCH = BATCHES[kind]
    if todo == "make":
        MAKE[name](kind, Path(place), last)
        return
    started = time.perf_counter()
    rows = sum(READ[name](kind, place, last))
    print(json.dumps({"seconds": time.perf_counter() - started, "rows": rows}), flush=True)
    os._exit(0)  # some leave threads that do not end


if __name__ == "__main__":
    main()
