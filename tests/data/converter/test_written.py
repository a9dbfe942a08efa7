"""The job of one executor: the rows of a partition as files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.data.converter.written import Job, stored_type
from hopyard.data.manifest import FileEntry
from hopyard.data.preparing.files import heard
from hopyard.errors import CorruptError, DataError

LISTS = pa.schema([("id", pa.int64()), ("a", pa.list_(pa.float32()))])


def job_of(folder: Path, schema: pa.Schema, group_bytes: int = 1 << 10) -> Job:
    return Job(f"file://{folder}", "part-0", schema, frozenset(), group_bytes, None)


def batches(rows: int, lengths: list[int]) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows each, with lists of these lengths, as Spark names and types them."""
    for number, length in enumerate(lengths):
        ids = np.arange(rows * number, rows * (number + 1))
        yield pa.record_batch([pa.array(ids), pa.array([[row / 4] * length for row in ids])], ["c0", "c1"])


def run(job: Job, given: Iterator[pa.RecordBatch]) -> list[FileEntry]:
    (files,) = heard(job(given))
    return list(files)


def paths(folder: Path, files: list[FileEntry]) -> list[str]:
    return [str(folder / file.name) for file in files]


def test_rows_keep_their_order_in_row_groups_of_the_size_that_is_asked_for(tmp_path: Path) -> None:
    files = run(job_of(tmp_path, LISTS), batches(70, [2] * 5))
    assert len(files) == 1
    sizes = files[0].group_rows
    assert sum(sizes) == 350
    assert len(set(sizes[:-1])) == 1
    assert 32 < sizes[0] <= 70
    assert sorted(tmp_path.iterdir()) == [tmp_path / files[0].name]  # nothing is left of the staging
    dataset = open_dataset(paths(tmp_path, files))
    assert all(dataset.reader().is_mapped(column) for column in dataset.schema)
    batch = dataset[:]
    assert batch["id"].tolist() == list(range(350))
    assert np.array_equal(batch["a"], np.arange(350, dtype=np.float32)[:, None].repeat(2, 1) / 4)


def test_lists_of_several_lengths_are_lists_from_the_first_that_differs(tmp_path: Path) -> None:
    files = run(job_of(tmp_path, LISTS, 1), batches(1, [2, 2, 3, 2, 2, 3, 2]))
    assert [file.rows for file in files] == [2, 5]
    batch = open_dataset(paths(tmp_path, files))[:]
    assert [row.tolist() for row in batch["a"]] == [
        [row / 4] * length for row, length in enumerate([2, 2, 3, 2, 2, 3, 2])
    ]


def test_lists_of_lists_may_differ_in_their_number(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.list_(pa.list_(pa.float32())))])
    rows = [[[1, 2]] * 2, [[3, 4]] * 3, [[5, 6]]]
    given = (pa.record_batch([pa.array([row], schema.field(0).type)], ["c0"]) for row in rows)
    files = run(job_of(tmp_path, schema, 1), given)
    assert [row.tolist() for row in open_dataset(paths(tmp_path, files))[:]["a"]] == rows


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("nulls", [False, True])
def test_every_file_carries_checksums(tmp_path: Path, codec: str | None, nulls: bool) -> None:
    rows = pa.record_batch(
        [pa.array([None if nulls and row == 7 else row / 4 for row in range(100)])], ["c0"]
    )
    job = replace(job_of(tmp_path, pa.schema([("x", pa.float32())])), codec=codec)
    files = run(job, iter([rows]))
    chunk = pq.read_metadata(tmp_path / files[0].name).row_group(0).column(0)
    assert chunk.compression == ("ZSTD" if codec else "UNCOMPRESSED")
    names = paths(tmp_path, files)
    assert open_dataset(names, nulls="fill")[:]["x"].tolist() == [
        0 if nulls and row == 7 else row / 4 for row in range(100)
    ]
    content = bytearray(Path(names[0]).read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    Path(names[0]).write_bytes(content)
    with pytest.raises(CorruptError, match="the bytes are not what was written"):
        open_dataset(names, nulls="fill")[:]


def test_rows_that_cannot_be_stored_are_told_and_leave_nothing(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.list_(pa.list_(pa.float32())))])
    given = [
        pa.record_batch([pa.array([row], schema.field(0).type)], ["c0"]) for row in ([[1]], [[1], [1, 2]])
    ]
    with pytest.raises(DataError, match=r"a \(lists that are ragged in more than one dimension"):
        run(job_of(tmp_path, schema, 1 << 20), iter(given))
    assert not list(tmp_path.iterdir())


def test_all_floating_numbers_get_the_dtype() -> None:
    nested = pa.struct([("f", pa.large_list(pa.float64())), ("i", pa.int32())])
    assert stored_type(nested, "float32") == pa.struct([("f", pa.list_(pa.float32())), ("i", pa.int32())])
    assert stored_type(pa.float32(), None) == pa.float32()
    assert stored_type(pa.float32(), "float64") == pa.float64()
