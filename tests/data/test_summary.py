"""What ``hopyard data inspect`` shows."""

import html
import io
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from hopyard.data import inspect, open_dataset, prepare
from hopyard.storage import LocalStore


def shown(summary):
    console = Console(width=200, file=io.StringIO())
    console.print(summary)
    return console.file.getvalue()


def test_both_splits_of_a_store_are_shown(tmp_path):
    rows = {"x": np.arange(288, dtype=np.float32).reshape(96, 3), "y": np.arange(96) % 3, "s": ["a[b]"] * 96}
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


def test_files_that_need_a_policy_are_shown_with_what_would_be_refused(tmp_path):
    pq.write_table(pa.table({"x": [1.5, None]}), tmp_path / "t.parquet")
    (split,) = inspect(tmp_path / "t.parquet").splits
    assert split.schema.names == ["x", "x_mask"]
    (note,) = split.notes
    assert "column 'x' has 1 nulls" in note
    assert "without more arguments: " in shown(inspect(tmp_path / "t.parquet"))


def test_partitions_and_what_is_cached_are_shown(tmp_path):
    for part in ("a", "b"):
        (tmp_path / "d" / f"part={part}").mkdir(parents=True)
        table = pa.table({"s": ["x", "y"] * 10})
        pq.write_table(table, tmp_path / "d" / f"part={part}" / "t.parquet", row_group_size=10)
    dataset = open_dataset(tmp_path / "d", cache=tmp_path / "cache")
    (before,) = inspect(dataset).splits
    assert (before.partitions, before.cached) == ({"part": 2}, 0)
    dataset[0]
    (after,) = inspect(dataset).splits
    assert after.cached == 1
    assert "the node cache holds decoded data of 1 of 4 row groups" in shown(inspect(dataset))
    (never,) = inspect(open_dataset(tmp_path / "d", cache=False)).splits
    assert never.cached == 0


def test_notebooks_show_the_same_table_as_a_terminal(tmp_path):
    prepare({"<b>x</b>": np.arange(96.0), "s\x1b": ["a"] * 96}, LocalStore(tmp_path))
    summary = inspect(tmp_path)
    page = summary._repr_html_()
    lines = re.sub("<[^>]*>", "", page).splitlines()
    assert [html.unescape(line).rstrip() for line in lines] == str(summary).splitlines()
    assert page.startswith('<pre style="white-space:pre;overflow-x:auto;')
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "\x1b" not in page
