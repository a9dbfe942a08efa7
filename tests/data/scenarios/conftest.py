"""Rows of every kind of column, each a function of its id, in files of any layout, local and remote."""

import logging
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data.cache.durability import durability
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.ragged import Ragged
from hopyard.data.schema import Column, Schema
from hopyard.storage import LocalStore, Store

SCHEMA = Schema(
    [
        Column("id", "tensor", "int64"),
        Column("twice", "tensor", "int64"),
        Column("x", "tensor", "float32"),
        Column("y", "tensor", "float32"),
        Column("vector", "tensor", "float32", (3,)),
        Column("text", "string"),
        Column("blob", "bytes"),
        Column("list", "ragged", "int32"),
    ]
)


def values_of(ids):
    """The columns of these rows, as ``FileWriter`` takes them."""
    ids = np.asarray(ids, np.int64)
    texts = [f"row {row} é".encode() for row in ids]
    return {
        "id": ids,
        "twice": 2 * ids,
        "x": (ids / 2).astype(np.float32),
        "y": (-ids).astype(np.float32),
        "vector": np.stack([ids, ids + 0.25, ids + 0.5], axis=1).astype(np.float32),
        "text": Ragged.from_rows([np.frombuffer(text, np.uint8) for text in texts], np.uint8),
        "blob": Ragged.from_rows([np.frombuffer(text[::-1], np.uint8) for text in texts], np.uint8),
        "list": Ragged.from_rows([np.full(row % 4, row) for row in ids], np.int32),
    }


def table_of(ids, columns=None):
    """The same as Arrow has it."""
    ids = np.asarray(ids, np.int64)
    texts = [f"row {row} é" for row in ids]
    vectors = values_of(ids)["vector"]
    table = pa.table(
        {
            "id": ids,
            "twice": 2 * ids,
            "x": (ids / 2).astype(np.float32),
            "y": (-ids).astype(np.float32),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3),
            "text": texts,
            "blob": [text.encode()[::-1] for text in texts],
            "list": pa.array([[row] * (row % 4) for row in ids.tolist()], pa.list_(pa.int32())),
        }
    )
    return table if columns is None else table.select(columns)


class RemoteStore(LocalStore):
    """A directory as if it were far away: nothing can be mapped, everything is fetched and counted."""

    def __init__(self, path):
        super().__init__(path)
        self.fetched = 0

    def path(self, name):
        return None

    def get(self, name, start=0, length=None):
        data = super().get(name, start, length)
        self.fetched += len(data)
        return data

    def read(self, name, start=0, length=None):
        return Store.read(self, name, start, length)  # by get()


@pytest.fixture
def write(tmp_path):
    """``write(layout)``: a new directory of a file for each list of rows of row groups; ids count on.

    Columns that are ``required``, uncompressed and without dictionaries are mapped.
    """
    made = []

    def make(layout, first=0, columns=None, required=False, **options):
        directory = tmp_path / f"files-{len(made)}"
        directory.mkdir()
        made.append(directory)
        for number, groups in enumerate(layout):
            path = directory / f"{number:03}.parquet"
            table = table_of(range(first, first + sum(groups)), columns)
            if required:
                table = table.cast(pa.schema([field.with_nullable(False) for field in table.schema]))
            with pq.ParquetWriter(path, table.schema, **{"compression": "snappy", **options}) as writer:
                start = 0
                for rows in groups:
                    writer.write_table(table.slice(start, rows), row_group_size=rows)
                    start += rows
            first += sum(groups)
        return directory

    return make


@pytest.fixture
def write_prepared(tmp_path):
    """``write_prepared(layout)``: the same as ``prepare`` writes it; the directory and its manifest."""
    made = []

    def make(layout):
        directory = tmp_path / f"prepared-{len(made)}"
        directory.mkdir()
        made.append(directory)
        entries, first = [], 0
        for groups in layout:
            writer = FileWriter(directory / "temporary", SCHEMA)
            for rows in groups:
                writer.write(values_of(range(first, first + rows)))
                first += rows
            entries.append(writer.close())
            (directory / "temporary").rename(directory / entries[-1].name)
        return directory, Manifest("train", "of a test", SCHEMA, tuple(entries))

    return make


@pytest.fixture
def mapped(write_prepared):
    """``mapped(layout)``: a prepared dataset, read where it lies."""

    def make(layout, cache=None):
        directory, manifest = write_prepared(layout)
        return Dataset(LocalStore(directory), manifest, cache=cache)

    return make


@pytest.fixture
def rows():
    """What tests of rows need: how they are made, checked and kept far away."""
    return SimpleNamespace(
        values=values_of, table=table_of, check=check, ids=ids_of, store=RemoteStore, names=SCHEMA.names
    )


def ids_of(batches):
    return [row for batch in batches for row in batch["id"].tolist()]


def check(batch, ids=None):
    """The batch holds the rows of these ids (None: those it says) in every column that it has."""
    ids = np.asarray(batch["id"] if ids is None else ids, np.int64)
    expected = values_of(ids)
    for name, found in batch.items():
        values = expected[name]
        if name in ("text", "blob"):
            assert found.dtype == object
            decode = bytes.decode if name == "text" else bytes
            assert found.tolist() == [decode(row.tobytes()) for row in values], name
        elif name == "list":
            assert found == values, name
        else:
            assert found.dtype == values.dtype
            assert np.array_equal(found, values), name


@pytest.fixture
def quiet_cache():
    """What the node cache writes in the background is done before and after."""
    durability.join()
    yield
    durability.join()


@pytest.fixture
def warnings_of(caplog):
    """``warnings_of()``: what Hopyard warned of so far."""
    caplog.set_level(logging.WARNING, "hopyard")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "hopyard"]
