"""URLs of buckets where paths can stand: files, lists, patterns, directories that others wrote, CSV."""

from __future__ import annotations

import gzip
import io
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset, prepare
from hopyard.errors import DataError, NotFoundError, StorageError
from hopyard.storage import MemoryStore, ObjectStore

Put = Any


@pytest.fixture
def put(s3: Any, s3_url: str) -> Put:
    """``put(name, content)`` below the prefix, under any name; a number is a Parquet file of ten rows from there."""
    from obstore.store import S3Store

    client = S3Store.from_url(s3_url, client_options={"allow_http": True})

    def write(name: str, content: bytes | int) -> None:
        if isinstance(content, int):
            sink = io.BytesIO()
            pq.write_table(pa.table({"x": np.arange(content, content + 10)}), sink, row_group_size=5)
            content = sink.getvalue()
        client.put(name, content)

    return write


def values(dataset: Any) -> list[int]:
    return [int(x) for x in dataset[:]["x"]]


def test_urls_stand_where_paths_do(s3_url: str, put: Put, tmp_path: Any) -> None:
    for number in range(3):
        put(f"data/day={number}/part.parquet", 10 * number)
    put("data/_SUCCESS", b"")
    put("data/notes.txt", b"-")
    one = f"{s3_url}/data/day=1/part.parquet"
    assert values(open_dataset(one)) == [*range(10, 20)]
    assert open_dataset(one).schema.names == ["x"]
    assert values(open_dataset([f"{s3_url}/data/day=2/part.parquet", one])) == [
        *range(20, 30),
        *range(10, 20),
    ]
    assert values(open_dataset([f"{s3_url}/data/day=2", one])) == [*range(20, 30), *range(10, 20)]
    for pattern in ("data/day=[12]/*.parquet", "data/**/day=[12]/part*", "**/day=[!0]/p?rt.parquet"):
        assert values(open_dataset(f"{s3_url}/{pattern}")) == [*range(10, 30)]
    whole = open_dataset(f"{s3_url}/data", filters=[("day", ">", 0)])
    assert values(whole) == [*range(10, 30)]
    assert whole[:]["day"].tolist() == [1] * 10 + [2] * 10
    assert values(pickle.loads(pickle.dumps(open_dataset(one, cache=False)))) == [*range(10, 20)]
    prepared = prepare(f"{s3_url}/data", MemoryStore(), validation=None).train
    assert sorted(zip(prepared[:]["x"], prepared[:]["day"], strict=True)) == [(x, x // 10) for x in range(30)]


def test_names_that_no_store_would_give_are_read(s3_url: str, put: Put) -> None:
    put("my data/at=10%3A30/größe 1.parquet", 0)
    for url in (f"{s3_url}/my data", f"{s3_url}/my data/at=10%3A30/größe 1.parquet"):
        assert values(open_dataset(url)) == [*range(10)]
    dataset = open_dataset(ObjectStore(s3_url), cache=False)
    assert set(dataset[:]["at"]) == {"10:30"}
    assert set(prepare(f"{s3_url}/my data", MemoryStore(), validation=None).train[:]["at"]) == {"10:30"}


def test_prepared_data_is_found_by_its_url(s3_url: str) -> None:
    prepare({"x": np.arange(20)}, ObjectStore(s3_url), validation=None)
    (manifest,) = [e.name for e in ObjectStore(s3_url).list() if e.name.endswith("manifest.json")]
    directory = f"{s3_url}/{manifest.rpartition('/')[0]}"
    for dataset in (open_dataset(s3_url), open_dataset(directory), open_dataset([directory])):
        assert sorted(values(dataset)) == [*range(20)]


def test_csv_is_prepared_from_a_bucket(s3_url: str, put: Put) -> None:
    put("a.csv.gz", gzip.compress(b"x,y\n1,2\n3,4\n"))
    put("b/c.tsv", b"x\ty\n5\t6\n")
    for url, expected in ((f"{s3_url}/*.csv.gz", [1, 3]), (s3_url, [1, 3, 5])):
        assert sorted(values(prepare(url, MemoryStore(), validation=None).train)) == expected
    with pytest.raises(DataError, match=r"some/prefix/a\.csv\.gz is not a Parquet file, .* Prepare it"):
        open_dataset(f"{s3_url}/a.csv.gz")


def test_what_is_missing_or_somewhere_else_is_said(s3: Any, s3_url: str, put: Put, tmp_path: Any) -> None:
    put("a.parquet", 0)
    for url in (f"{s3_url}/b.parquet", f"{s3_url}/a*.pq", f"{s3_url}/some thing"):
        with pytest.raises(NotFoundError, match=r"There is no object s3://.*, and no \.parquet or .* Check"):
            open_dataset(url)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "here.parquet")
    with pytest.raises(DataError, match=r"in several places: s3://bucket-\w+, this machine\. .* one bucket"):
        open_dataset([f"{s3_url}/a.parquet", tmp_path / "here.parquet"])


def test_a_server_that_fails_is_no_damaged_file(s3: Any, s3_url: str, put: Put) -> None:
    put("a.parquet", 0)
    options = {"retry_config": {"max_retries": 0}}
    dataset = open_dataset(ObjectStore(s3_url, **options), cache=False)
    s3.fail("GET.*a.parquet 99 500")
    with pytest.raises(StorageError, match=r"a\.parquet cannot be read: 500") as caught:
        dataset[:]
    assert type(caught.value) is StorageError
