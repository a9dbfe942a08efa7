"""Peers of ``stream.py``: a process each, in the peer's environment. ``make`` writes the rows in the peer's own format
into a folder that is a prefix of the bucket; ``read`` reads one epoch of it from there, and prints seconds and rows.

    python _stream_peers.py make NAME FOLDER ROWS
    python _stream_peers.py read NAME BUCKET/PREFIX CACHE

Each is set as its documentation says is fastest for one pass over data that is not here yet.
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, BATCH, SHARDS = 768, 256, 8
ENDPOINT = os.environ.get("AWS_ENDPOINT_URL", "")


def arrays(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((rows, WIDTH), np.float32), generator.integers(0, 10, rows)


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


def read_arrow(place: str, cache: str) -> Iterator[int]:
    import pyarrow.dataset
    import pyarrow.fs

    store = pyarrow.fs.S3FileSystem(endpoint_override=ENDPOINT.removeprefix("http://"), scheme="http")
    pyarrow.set_io_thread_count(32)
    data = pyarrow.dataset.dataset(place, format="parquet", filesystem=store)
    for batch in data.to_batches(batch_size=BATCH, batch_readahead=32, fragment_readahead=8):
        yield len(batch.column("x").flatten().to_numpy().reshape(-1, WIDTH))


def read_fsspec(place: str, cache: str) -> Iterator[int]:
    import pyarrow.dataset
    from obstore.fsspec import FsspecStore

    store = FsspecStore("s3", client_options={"allow_http": True})
    data = pyarrow.dataset.dataset(place, format="parquet", filesystem=store)
    for batch in data.to_batches(batch_size=BATCH, batch_readahead=32, fragment_readahead=8):
        yield len(batch.column("x").flatten().to_numpy().reshape(-1, WIDTH))


def read_datasets(place: str, cache: str) -> Iterator[int]:
    import datasets

    data = datasets.load_dataset(
        "parquet", data_files=urls(place, ".parquet"), split="train", streaming=True, cache_dir=cache
    )
    for batch in data.with_format("numpy").iter(batch_size=BATCH):
        yield len(batch["x"])


# Formats of their own


def make_litdata(folder: Path, rows: int) -> None:
    import litdata
    import torch

    values, labels = arrays(rows)
    litdata.optimize(
        lambda index: {"x": torch.from_numpy(values[index].copy()), "label": int(labels[index])},
        list(range(rows)), str(folder), chunk_bytes="16MB", num_workers=1, start_method="fork", verbose=False,
    )  # fmt: skip


def read_litdata(place: str, cache: str) -> Iterator[int]:
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server is on this machine
    data = litdata.StreamingDataset(
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


def make_mosaic(folder: Path, rows: int) -> None:
    values, labels = arrays(rows)
    columns = {"x": f"ndarray:float32:{WIDTH}", "label": "int"}
    with _streaming().MDSWriter(out=str(folder), columns=columns, size_limit="16mb") as writer:
        for index in range(rows):
            writer.write({"x": values[index], "label": int(labels[index])})


def read_mosaic(place: str, cache: str) -> Iterator[int]:
    os.environ["S3_ENDPOINT_URL"] = ENDPOINT
    base = _streaming()
    data = base.StreamingDataset(
        remote=f"s3://{place}", local=cache, shuffle=True, batch_size=BATCH, predownload=16 * BATCH
    )
    for batch in base.StreamingDataLoader(
        data, batch_size=BATCH
    ):  # two workers read shards that are not whole
        yield len(batch["label"])


def make_webdataset(folder: Path, rows: int) -> None:
    import webdataset

    values, labels = arrays(rows)
    bounds = np.linspace(0, rows, SHARDS + 1).astype(int)
    for shard, (start, stop) in enumerate(itertools.pairwise(bounds)):
        with webdataset.TarWriter(str(folder / f"{shard:03}.tar"), encoder=False) as writer:
            for index in range(start, stop):
                record = {"x.bin": values[index].tobytes(), "label.bin": labels[index].tobytes()}
                writer.write({"__key__": f"{index:08}", **record})


def read_webdataset(place: str, cache: str) -> Iterator[int]:
    import webdataset

    addresses = [f"pipe:curl -s {shlex.quote(url)}" for url in urls(place, ".tar")]

    def stack(records: list[dict[str, Any]]) -> np.ndarray:
        data = bytearray().join(record["x.bin"] for record in records)
        return np.frombuffer(data, np.float32).reshape(len(records), -1)

    data = webdataset.WebDataset(
        addresses, shardshuffle=SHARDS, workersplitter=webdataset.split_by_worker, empty_check=False
    )
    for batch in webdataset.WebLoader(
        data.shuffle(10_000).batched(BATCH, collation_fn=stack), batch_size=None, num_workers=8
    ):
        yield len(batch)


def make_lance(folder: Path, rows: int) -> None:
    import lance
    import pyarrow as pa

    values, labels = arrays(rows)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(values.reshape(-1), WIDTH), "label": labels})
    lance.write_dataset(table, str(folder), max_rows_per_file=-(-rows // 4))


def read_lance(place: str, cache: str) -> Iterator[int]:
    import lance

    data = lance.dataset(f"s3://{place}", storage_options={"aws_endpoint": ENDPOINT, "allow_http": "true"})
    for batch in data.to_batches(
        batch_size=BATCH, batch_readahead=64, fragment_readahead=4, scan_in_order=False
    ):
        yield len(batch.column("x").flatten().to_numpy().reshape(-1, WIDTH))


MAKE: dict[str, Callable[[Path, int], None]] = {
    "LitData": make_litdata,
    "Mosaic Streaming": make_mosaic,
    "WebDataset": make_webdataset,
    "Lance": make_lance,
}
READ: dict[str, Callable[[str, str], Iterable[int]]] = {
    "Arrow": read_arrow,
    "fsspec and Arrow": read_fsspec,
    "datasets": read_datasets,
    "LitData": read_litdata,
    "Mosaic Streaming": read_mosaic,
    "WebDataset": read_webdataset,
    "Lance": read_lance,
}
ENVIRONMENTS = {"Arrow": None, "fsspec and Arrow": None, "Mosaic Streaming": "mosaic"}
"""Environments of the peers (``benchmarks/peers``); of the others it is ``modern``."""


def main() -> None:
    todo, name, place, last = sys.argv[1:]
    if todo == "make":
        MAKE[name](Path(place), int(last))
        return
    started = time.perf_counter()
    rows = sum(READ[name](place, last))
    print(json.dumps({"seconds": time.perf_counter() - started, "rows": rows}), flush=True)
    os._exit(0)  # some leave threads that do not end


if __name__ == "__main__":
    main()
