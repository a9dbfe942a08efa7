"""What ``hopyard data inspect`` shows."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from hopyard.data import inspect, prepare
from hopyard.data.summary import size
from hopyard.storage import LocalStore


def shown(summary):
    console = Console(width=200, file=io.StringIO())
    console.print(summary)
    return console.file.getvalue()


def test_both_splits_of_a_store_are_shown(tmp_path):
    rows = {"x": np.ones((96, 3), np.float32), "y": np.arange(96) % 3, "s": ["a[b]"] * 96}
    prepared = prepare(rows, LocalStore(tmp_path))
    summary = inspect(tmp_path)
    assert [(split.split, split.rows, split.row_groups) for split in summary.splits] == [
        ("train", 72, 24),
        ("val", 24, 24),
    ]
    train = summary.splits[0]
    assert train.mapped == {"x": True, "y": True, "s": False}
    assert train.nbytes == sum(entry.size for entry in prepared.train.manifest.files)
    assert train.prepared
    text = shown(summary)
    assert "train: 72 rows in 24 row groups, 1 file," in text
    assert "float32[3]" in text
    assert "3: 0, 1, 2" in text
    assert "a[b]" in text, "not taken for markup"
    assert f"fingerprint {prepared.fingerprint[:12]}" in text
    assert "validation=0.25, seed=0" in text


def test_parquet_of_others_is_shown_as_such(tmp_path):
    pq.write_table(pa.table({"x": [1.5, 2.5]}), tmp_path / "t.parquet", compression="zstd")
    summary = inspect(tmp_path / "t.parquet")
    (split,) = summary.splits
    assert (split.rows, split.prepared, split.mapped) == (2, False, {"x": False})
    assert "Parquet files as they are, without a manifest" in shown(summary)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12.3 kB"), (5e13, "50 TB")]
)
def test_sizes_are_readable(nbytes, text):
    assert size(nbytes) == text
