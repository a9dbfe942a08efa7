"""Datasets of any layout, written as ``prepare`` writes them, for the tests of reading; small data to prepare."""

import contextlib
import subprocess

import numpy as np
import pytest

from hopyard.data.cache.durability import durability
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.storage import LocalStore

ALL_KINDS = Schema(
    [
        Column("id", "tensor", "int64"),
        Column("image", "tensor", "float32", (3, 5)),
        Column("small", "tensor", "int8"),
        Column("half", "tensor", "float16"),
        Column("flag", "tensor", "bool"),
        Column("flags", "tensor", "bool", (7,)),
        Column("unsigned", "tensor", "uint32"),
        Column("text", "string"),
        Column("blob", "bytes"),
        Column("list", "ragged", "int32"),
    ]
)


def rows_of_all_kinds(rows):
    """Columns of ``ALL_KINDS`` as they are written; ``id`` counts the rows. Fewer rows: the first of these."""

    def draw(column):
        return np.random.default_rng(column)

    texts = [np.frombuffer(f"row {i} é".encode(), np.uint8) for i in range(rows)]
    return {
        "id": np.arange(rows),
        "image": draw(1).random((rows, 3, 5)).astype(np.float32),
        "small": draw(2).integers(-128, 128, rows).astype(np.int8),
        "half": draw(3).random(rows).astype(np.float16),
        "flag": draw(4).random(rows) > 0.5,
        "flags": draw(5).random((rows, 7)) > 0.5,
        "unsigned": (draw(6).random(rows) * 2**32).astype(np.uint32),
        "text": Ragged.from_rows(texts, np.uint8),
        "blob": Ragged.from_rows([text[::-1] for text in texts], np.uint8),
        "list": Ragged.from_rows([np.arange(i % 4) + i for i in range(rows)], np.int32),
    }


@pytest.fixture
def make_dataset(tmp_path):
    """``make_dataset(layout, columns)``: one file for each list of rows of row groups in ``layout``."""
    made = []

    def make(layout, columns=("id",), store=None, fingerprint="of a test"):
        schema = ALL_KINDS.select(columns)
        values = rows_of_all_kinds(sum(map(sum, layout)))
        directory = tmp_path / f"dataset-{len(made)}"
        directory.mkdir()
        made.append(directory)
        entries, start = [], 0
        for groups in layout:
            writer = FileWriter(directory / "temporary", schema)
            for rows in groups:
                writer.write({name: values[name][start : start + rows] for name in columns})
                start += rows
            entries.append(writer.close())
            (directory / "temporary").rename(directory / entries[-1].name)
        manifest = Manifest("train", fingerprint, schema, tuple(entries))
        if store is not None:
            for entry in entries:
                store.put(entry.name, (directory / entry.name).read_bytes())
        return Dataset(LocalStore(directory) if store is None else store, manifest)

    return make


@pytest.fixture
def expect_rows():
    """``expect_rows(batch, ids)``: the batch holds the rows of these ids in every column it has."""

    def check(batch, ids):
        written = rows_of_all_kinds(int(max(ids, default=-1)) + 1)
        for name, values in batch.items():
            rows = written[name][np.asarray(ids, np.int64)]
            if name in ("text", "blob"):
                decoded = [row.tobytes() if name == "blob" else row.tobytes().decode() for row in rows]
                assert values.dtype == object
                assert values.tolist() == decoded
            elif isinstance(rows, Ragged):
                assert values == rows
            else:
                assert values.dtype == rows.dtype
                assert np.array_equal(values, rows), name

    return check


def rows_to_prepare(rows=200):
    rng = np.random.default_rng(0)
    return {
        "features": rng.random((rows, 5), np.float32),
        "label": rng.integers(0, 3, rows),
        "id": np.arange(rows),
        "text": [f"row {i}" for i in range(rows)],
    }


@pytest.fixture
def data():
    """``data(rows=200)``: columns ``features``, ``label``, ``id`` and ``text``; the same each time."""
    return rows_to_prepare


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


@pytest.fixture
def files_of():
    """``files_of(store)``: the content of each Parquet file by its name."""

    def read(store):
        return {e.name: store.get(e.name) for e in store.list() if e.name.endswith(".parquet")}

    return read


@pytest.fixture
def mounted():
    """``with mounted(folder, "1m")``: the folder, which is made, is a file system of this size."""

    @contextlib.contextmanager
    def mount(folder, size):
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("mounting a file system needs root")
        try:
            yield
        finally:
            durability.join()
            subprocess.run(["umount", "--lazy", folder], check=True)

    return mount
