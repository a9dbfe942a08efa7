"""The data of the benchmarks W1 to W4: arrays, drawn from a seed, and the Parquet that holds them.

Everything lies below ``build/bench/<workload>-<rows>``, is made once and found again: ``raw/`` has the
arrays as ``.npy``, ``parquet/`` what pandas or Spark would write, and each loader's own format has a folder.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Workload:
    """Rows of a kind, and how they are read: ``columns`` is what a loader of ours is asked for."""

    name: str
    rows: int
    batch: int
    draw: Callable[[int], Arrays]
    columns: dict[str, str | list[str]]
    files: int

    def directory(self, root: Path, rows: int) -> Path:
        return root / f"{self.name}-{rows}"


def draw_tabular(rows: int) -> Arrays:
    rng = np.random.default_rng(1)
    distinct = [rows, 10, 100, 1000, 10_000, 100_000]  # of an id column: from unique to a handful
    ids = np.stack([rng.integers(0, distinct[k % 6], rows) for k in range(26)], axis=1)
    return {"dense": rng.random((rows, 13), np.float32), "ids": ids, "label": rng.integers(0, 2, rows)}


def draw_embeddings(rows: int) -> Arrays:
    rng = np.random.default_rng(2)
    label = rng.integers(0, 10, rows).astype(np.int32)
    return {"id": np.arange(rows), "label": label, "emb": rng.random((rows, 768), np.float32)}


def draw_images(rows: int) -> Arrays:
    rng = np.random.default_rng(3)
    image = np.frombuffer(rng.bytes(rows * 3072), np.uint8).reshape(rows, 3, 32, 32)
    return {"image": image, "label": rng.integers(0, 10, rows)}


def draw_tokens(rows: int) -> Arrays:
    return {"tokens": np.random.default_rng(4).integers(0, 50_000, (rows, 2048), dtype=np.int32)}


TABULAR_COLUMNS: dict[str, str | list[str]] = {
    "dense": [f"f{number}" for number in range(13)],
    "ids": [f"c{number}" for number in range(26)],
    "label": "label",
}
WORKLOADS = {
    workload.name: workload
    for workload in [
        Workload("W1", 1_000_000, 8192, draw_tabular, TABULAR_COLUMNS, 4),
        Workload("W2", 200_000, 1024, draw_embeddings, {"id": "id", "label": "label", "emb": "emb"}, 12),
        Workload("W3", 200_000, 256, draw_images, {"image": "image", "label": "label"}, 4),
        Workload("W4", 50_000, 16, draw_tokens, {"tokens": "tokens"}, 4),
    ]
}


def made_once(directory: Path, make: Callable[[Path], None]) -> Path:
    """``directory``, filled by ``make`` if it is not there; one whose making was interrupted is not."""
    if not directory.exists():
        temporary = directory.with_name(directory.name + ".part")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        make(temporary)
        temporary.rename(directory)
    return directory


def raw_arrays(workload: Workload, root: Path, rows: int, mmap: bool = True) -> Arrays:
    """The arrays of ``rows`` rows, in memory or mapped."""

    def make(directory: Path) -> None:
        for name, array in workload.draw(rows).items():
            np.save(directory / f"{name}.npy", array)

    directory = made_once(workload.directory(root, rows) / "raw", make)
    mode = "r" if mmap else None
    return {path.stem: np.load(path, mmap_mode=mode) for path in sorted(directory.glob("*.npy"))}


def parquet_files(workload: Workload, root: Path, rows: int) -> Path:
    """The folder of the Parquet files: W1 by pandas' ``to_parquet``, the others as Spark writes them."""

    def make(directory: Path) -> None:
        arrays = raw_arrays(workload, root, rows)
        bounds = np.linspace(0, rows, workload.files + 1).astype(int)
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            part = {name: array[start:stop] for name, array in arrays.items()}
            write = _as_pandas if workload.name == "W1" else _as_spark
            write(part, directory / f"part-{number:05}.snappy.parquet")

    return made_once(workload.directory(root, rows) / "parquet", make)


def _as_pandas(arrays: Arrays, path: Path) -> None:
    import pandas as pd

    dense = {f"f{number}": column for number, column in enumerate(arrays["dense"].T)}
    ids = {f"c{number}": column for number, column in enumerate(arrays["ids"].T)}
    pd.DataFrame({**dense, **ids, "label": arrays["label"]}).to_parquet(path, engine="pyarrow", index=False)


def _as_spark(arrays: Arrays, path: Path) -> None:
    """Snappy, pages of 1 MB, ``list<element>``, one row group for a file of less than 128 MB.

    Tensors have no dictionary: Spark gives it up at the first page of values that hardly repeat.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name, array in arrays.items():
        flat = pa.array(np.ascontiguousarray(array).reshape(-1))
        if array.ndim > 1:
            width = len(flat) // len(array)
            offsets = np.arange(0, len(flat) + 1, width, dtype=np.int32)
            flat = pa.ListArray.from_arrays(
                offsets, flat, type=pa.list_(pa.field("element", flat.type, nullable=False))
            )
        columns[name] = flat
    scalars = [name for name, array in arrays.items() if array.ndim == 1]
    pq.write_table(
        pa.table(columns),
        path,
        compression="snappy",
        use_dictionary=scalars or False,
        data_page_size=1 << 20,
        row_group_size=1 << 30,
    )
