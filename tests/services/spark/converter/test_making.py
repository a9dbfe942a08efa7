"""DataFrames become files: types, vectors, nulls, codecs, and what cannot be converted."""

from __future__ import annotations

import datetime
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data.converter import making
from hopyard.data.converter.kept import MARKER
from hopyard.errors import CorruptError, DataError, NotFoundError, UsageError
from hopyard.spark import SparkDatasetConverter, make_spark_converter, register_delete_dir_handler

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PRIMITIVE = (
    "flag boolean, tiny byte, small short, whole int, big long, single float, double double, "
    "text string, blob binary"
)
ROWS = [
    (
        row % 2 == 0,
        row,
        row * 100,
        row * 10_000,
        row * 10**12,
        row / 4,
        row / 8,
        f"row {row}",
        bytes([row]) * row,
    )
    for row in range(7)
]


def rows_of(spark: Any, count: int = 40) -> Any:
    return spark.range(0, count, 1, 2).selectExpr("id", "cast(id as double) / 4 as x")


def files(converter: SparkDatasetConverter) -> list[str]:
    return [url.removeprefix("file://") for url in converter.file_urls]


def test_every_primitive_type_comes_back_and_doubles_become_floats(spark: Any, cache: Path) -> None:
    converter = make_spark_converter(spark.createDataFrame(ROWS, PRIMITIVE))
    assert len(converter) == converter.dataset_size == 7
    batch = converter.dataset()[:]
    dtypes = {name: str(values.dtype) for name, values in batch.items()}
    assert dtypes == {
        "flag": "bool", "tiny": "int8", "small": "int16", "whole": "int32", "big": "int64", "single": "float32",
        "double": "float32", "text": "object", "blob": "object",
    }  # fmt: skip
    assert list(zip(*(values.tolist() for values in batch.values()), strict=True)) == ROWS


@pytest.mark.parametrize("dtype", ["float32", "float64", None])
def test_floats_are_cast_also_in_arrays_and_vectors(spark: Any, cache: Path, dtype: str | None) -> None:
    from pyspark.ml.linalg import Vectors
    from pyspark.mllib.linalg import Vectors as OldVectors

    rows = [
        (
            0.5 + i,
            1.5,
            [0.1 * i] * 3,
            [[1.0, 2.0]] * 2,
            Vectors.sparse(4, {i: 1.5}),
            OldVectors.dense([i, 2.0]),
        )
        for i in range(4)
    ]
    frame = spark.createDataFrame(rows, ["double", "single", "array", "nested", "ml", "mllib"])
    frame = frame.withColumn("single", frame["single"].cast("float"))
    batch = make_spark_converter(frame, dtype=dtype).dataset()[:]
    assert {name: str(values.dtype) for name, values in batch.items()} == {
        name: dtype or ("float32" if name == "single" else "float64") for name in batch
    }
    assert {name: values.shape[1:] for name, values in batch.items()} == {
        "double": (), "single": (), "array": (3,), "nested": (2, 2), "ml": (4,), "mllib": (2,),
    }  # fmt: skip
    assert np.array_equal(batch["ml"], 1.5 * np.eye(4))
    expected = (0.1 * np.arange(4)).astype(dtype or "float64")
    assert np.array_equal(batch["array"], expected[:, None].repeat(3, 1))


def test_numbers_and_arrays_of_one_length_are_mapped(spark: Any, cache: Path) -> None:
    frame = rows_of(spark).selectExpr("id", "x", "array(x, x, x) as a")
    dataset = make_spark_converter(frame).dataset()
    assert all(dataset.reader().is_mapped(column) for column in dataset.schema)
    assert dataset[:]["id"].tolist() == list(range(40))


def test_row_groups_have_the_size_that_is_asked_for(spark: Any, cache: Path) -> None:
    converter = make_spark_converter(rows_of(spark, 4000), parquet_row_group_size_bytes=1 << 10)
    metadata = pq.read_metadata(files(converter)[0])
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert len(set(sizes[:-1])) == 1
    assert sizes[-1] <= sizes[0]
    assert 500 < metadata.row_group(0).total_byte_size < 2000


def test_lists_that_differ_between_executors_stay_lists(spark: Any, cache: Path) -> None:
    lengths = (
        "array_repeat(x, if(id < 20, 2, 3)) as between",
        "array_repeat(x, cast(id % 3 as int)) as within",
    )
    dataset = make_spark_converter(rows_of(spark).selectExpr("id", *lengths)).dataset()
    assert {column.name: column.kind for column in dataset.schema} == {
        "id": "tensor", "between": "ragged", "within": "ragged",
    }  # fmt: skip
    batch = dataset[:]
    assert batch["between"].lengths.tolist() == [2] * 20 + [3] * 20
    assert batch["within"][5].tolist() == [1.25, 1.25]
    padded = make_spark_converter(rows_of(spark).selectExpr("id", *lengths)).dataset(ragged="pad")
    assert padded[:]["between"].shape == (40, 3)


def test_lists_that_differ_within_a_partition_are_in_two_files(spark: Any, cache: Path) -> None:
    rows = spark.range(0, 4000, 1, 1).selectExpr("id", "array_repeat(id, if(id div 500 % 2 = 0, 2, 3)) as a")
    converter = make_spark_converter(rows, parquet_row_group_size_bytes=1 << 10)
    assert len(converter.file_urls) == 2
    batch = converter.dataset()[:]
    assert batch["id"].tolist() == list(range(4000))
    assert batch["a"].lengths.tolist() == [2 + row // 500 % 2 for row in range(4000)]


def test_rows_are_computed_once(spark: Any, cache: Path, tmp_path: Path) -> None:
    computed = tmp_path / "computed"

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with computed.open("a") as file:
            file.write("a partition\n")
        yield from batches

    rows = rows_of(spark).selectExpr("id", "array_repeat(x, if(id < 20, 2, 3)) as lists")
    converter = make_spark_converter(rows.mapInArrow(noted, "id long, lists array<double>"))
    assert converter.dataset()[:]["lists"].lengths.tolist() == [2] * 20 + [3] * 20
    assert computed.read_text().splitlines() == ["a partition"] * 2


def test_rows_of_plain_parquet_files_have_the_order_of_the_files_names(
    spark: Any, cache: Path, tmp_path: Path
) -> None:
    for name, rows in (("b", 3000), ("a", 10), ("c", 200)):
        pq.write_table(pa.table({"x": [f"{name}{row}" for row in range(rows)]}), tmp_path / f"{name}.parquet")
    converter = make_spark_converter(spark.read.parquet(f"{tmp_path}/*.parquet"))
    expected = [f"{name}{row}" for name, rows in (("a", 10), ("b", 3000), ("c", 200)) for row in range(rows)]
    assert converter.dataset()[:]["x"].tolist() == expected


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("column", ["x", "if(id = 3, null, x) as x"])
def test_files_carry_checksums(spark: Any, cache: Path, codec: str | None, column: str) -> None:
    converter = make_spark_converter(rows_of(spark).selectExpr(column), compression_codec=codec)
    file = Path(files(converter)[0])
    content = bytearray(file.read_bytes())
    content[pq.read_metadata(file).row_group(0).column(0).data_page_offset + 20] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptError, match="the bytes are not what was written"):
        converter.dataset(nulls="fill")[:]
    again = make_spark_converter(rows_of(spark).selectExpr(column), compression_codec=codec)
    assert len(again.dataset(nulls="fill")[:]["x"]) == 40


def test_nulls_and_structs_are_kept_for_the_loader_to_decide(spark: Any, cache: Path) -> None:
    columns = "if(id = 30, null, x) as x", "array(x, x) as a", "struct(id as i, x as f) as s"
    converter = make_spark_converter(rows_of(spark).selectExpr("id", *columns))
    with pytest.raises(DataError, match=r"column 'x' has 1 nulls.*nulls='fill'"):
        converter.dataset()
    batch = converter.dataset(nulls="mask")[:]
    assert np.flatnonzero(batch["x_mask"]).tolist() == [30]
    assert batch["a"].shape == (40, 2)
    assert batch["s.f"].dtype == np.float32
    with converter.make_torch_dataloader(batch_size=40, nulls="fill", shuffle=False) as loader:
        assert next(iter(loader))["x"][29:32].tolist() == [7.25, 0, 7.75]


def test_names_may_have_dots(spark: Any, cache: Path) -> None:
    frame = rows_of(spark).selectExpr(
        "id",
        "x as `a.b`",
        "array(x, x) as `a.c`",
        "struct(id as i, x as f) as a",
        "if(id = 30, null, x) as `b.`",
    )
    plain = make_spark_converter(frame.select("id", "`a.b`", "`a.c`")).dataset()
    assert plain.schema.names == ["id", "a.b", "a.c"]
    mixed = make_spark_converter(frame)
    for dataset in (plain, mixed.dataset(nulls="fill")):
        batch = dataset[:]
        assert batch["id"].tolist() == list(range(40))
        assert np.array_equal(batch["a.b"], batch["id"] / 4)
        assert np.array_equal(batch["a.c"][:, 1], batch["id"] / 4)
    assert np.array_equal(batch["a.f"], batch["id"] / 4)
    with mixed.make_torch_dataloader(
        batch_size=40, nulls="fill", shuffle=False, columns=["a.b", "b."]
    ) as loader:
        assert next(iter(loader))["b."][29:32].tolist() == [7.25, 0, 7.75]
    with pytest.raises(DataError, match=r"would both be the column 'a\.f'"):
        make_spark_converter(frame.selectExpr("a", "id as `a.f`"))


def test_times_and_decimals_become_numbers(spark: Any, cache: Path) -> None:
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    frame = spark.createDataFrame([(moment, moment.date())], "moment timestamp, day date")
    batch = make_spark_converter(frame.selectExpr("*", "cast(1.25 as decimal(10, 2)) as price")).dataset()[:]
    assert batch["moment"].tolist() == [int(moment.timestamp()) * 10**9]
    assert batch["day"].dtype == np.int64
    assert batch["price"].tolist() == [1.25]


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (None, "UNCOMPRESSED"),
        ("uncompressed", "UNCOMPRESSED"),
        ("Snappy", "SNAPPY"),
        ("zstd", "ZSTD"),
        ("gzip", "GZIP"),
    ],
)
def test_codecs_are_honoured_and_read(spark: Any, cache: Path, codec: str | None, stored: str) -> None:
    converter = make_spark_converter(
        rows_of(spark).selectExpr("id", "array(x, x) as a"), compression_codec=codec
    )
    chunk = pq.read_metadata(files(converter)[0]).row_group(0).column(0)
    assert chunk.compression == stored
    assert converter.dataset()[:]["a"][:, 0].tolist() == [row / 4 for row in range(40)]


def test_impossible_arguments_are_named(spark: Any, cache: Path) -> None:
    frame = rows_of(spark)
    for codec in ("bzip2", "deflate", 3):
        text = (
            rf"compression_codec={codec!r}, but it must be None or one of 'uncompressed', 'snappy', .*'zstd'"
        )
        with pytest.raises(UsageError, match=text):
            make_spark_converter(frame, compression_codec=codec)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"dtype='float16', but it must be one of 'float32', 'float64'"):
        make_spark_converter(frame, dtype="float16")
    with pytest.raises(
        UsageError, match=r"parquet_row_group_size_bytes=0, but it must be an integer of at least 1"
    ):
        make_spark_converter(frame, parquet_row_group_size_bytes=0)
    with pytest.raises(UsageError, match=r"was given builtins\.dict, but it converts a Spark DataFrame"):
        make_spark_converter({"x": [1]})
    assert not cache.exists()


def test_columns_that_no_dataset_holds_are_all_named_before_anything_is_written(
    spark: Any, cache: Path
) -> None:
    frame = rows_of(spark).selectExpr("id", "map(id, x) as pairs", "array('a') as words", "null as nothing")
    text = r"pairs \(map.*words \(lists of strings.*nothing \(nothing but nulls"
    with pytest.raises(DataError, match=text):
        make_spark_converter(frame)
    with pytest.raises(DataError, match=r"These columns hold what a dataset cannot: gap \(interval"):
        make_spark_converter(rows_of(spark).selectExpr("id", "make_interval(1, 2) as gap"))
    assert not list(cache.glob("*/*"))


def test_rows_that_cannot_be_stored_are_an_error_that_leaves_nothing(spark: Any, cache: Path) -> None:
    nested = rows_of(spark).selectExpr("array(array(x), array_repeat(x, cast(id as int))) as deep")
    with pytest.raises(DataError, match=r"deep \(lists that are ragged in more than one dimension"):
        make_spark_converter(nested)
    with pytest.raises(DataError, match=r"The DataFrame has no rows"):
        make_spark_converter(rows_of(spark).where("id < 0"))
    assert not [name for name in cache.rglob("*") if name.is_file()]


def test_a_job_that_fails_leaves_nothing(spark: Any, cache: Path) -> None:
    failing = rows_of(spark).selectExpr("id", "if(id = 39, raise_error('broken row'), x) as x")
    with pytest.raises(Exception, match="broken row"):
        make_spark_converter(failing)
    assert not [name for name in cache.rglob("*") if name.is_file()]


def test_the_same_plan_and_parameters_have_the_same_files(spark: Any, cache: Path) -> None:
    first = make_spark_converter(rows_of(spark))
    written = {file: Path(file).stat().st_ino for file in files(first)}
    assert make_spark_converter(rows_of(spark)).file_urls == first.file_urls
    assert {file: Path(file).stat().st_ino for file in files(first)} == written
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{cache}//")
    assert make_spark_converter(rows_of(spark)).cache_dir_url == first.cache_dir_url
    others = [
        make_spark_converter(rows_of(spark, 41)),
        make_spark_converter(rows_of(spark).withColumnRenamed("x", "y")),
        make_spark_converter(rows_of(spark), parquet_row_group_size_bytes=1 << 20),
        make_spark_converter(rows_of(spark), compression_codec="snappy"),
        make_spark_converter(rows_of(spark), dtype="float64"),
    ]
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{cache}/below")
    others.append(make_spark_converter(rows_of(spark)))
    assert others[-1].cache_dir_url.startswith(f"file://{cache}/below/converter-")
    assert len({each.cache_dir_url for each in (first, *others)}) == 7


def test_rows_in_memory_have_the_same_files_within_the_process(spark: Any, cache: Path) -> None:
    frame = spark.createDataFrame(ROWS, PRIMITIVE)
    first = make_spark_converter(frame)
    assert make_spark_converter(frame.select("*")).cache_dir_url == first.cache_dir_url
    assert make_spark_converter(spark.createDataFrame(ROWS, PRIMITIVE)).cache_dir_url != first.cache_dir_url
    assert make_spark_converter(frame, dtype="float64").cache_dir_url != first.cache_dir_url
    assert make_spark_converter(frame.withColumnRenamed("text", "t")).cache_dir_url != first.cache_dir_url


def test_deleted_files_are_gone_and_are_made_again(spark: Any, cache: Path) -> None:
    converter = make_spark_converter(rows_of(spark))
    converter.delete()
    converter.delete()
    assert list(cache.iterdir()) == []
    with pytest.raises(NotFoundError, match=r"They were deleted.*Call make_spark_converter again"):
        converter.dataset()
    assert make_spark_converter(rows_of(spark)).dataset()[:]["id"].tolist() == list(range(40))


def test_a_handler_deletes_instead(spark: Any, cache: Path) -> None:
    converter = make_spark_converter(rows_of(spark))
    deleted: list[str] = []
    register_delete_dir_handler(deleted.append)
    converter.delete()
    assert deleted == [converter.cache_dir_url]
    assert len(converter.dataset()) == 40
    register_delete_dir_handler(None)
    converter.delete()
    assert list(cache.iterdir()) == []
    with pytest.raises(UsageError, match="a handler is a function of a directory's URL"):
        register_delete_dir_handler("rm")  # type: ignore[arg-type]


def test_a_deletion_that_fails_at_exit_is_logged(
    spark: Any, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    converter = make_spark_converter(rows_of(spark))
    (cache / Path(converter.cache_dir_url).name / MARKER).unlink()
    making._delete_of(os.getpid() + 1, converter)
    assert not caplog.text
    making._delete_of(os.getpid(), converter)
    assert "could not be deleted" in caplog.text
    assert len(converter.dataset()) == 40


def test_parquet_files_are_converted_as_they_are_and_never_deleted(spark: Any, tmp_path: Path) -> None:
    rows_of(spark).write.parquet(f"{tmp_path}/there")
    for path in (f"{tmp_path}/there", f"file://{tmp_path}/there", f"file:{tmp_path}/there/"):
        converter = make_spark_converter(path)  # needs no parent directory
        assert len(converter) == 40
        assert converter.cache_dir_url == f"file://{tmp_path}/there"
        assert sorted(converter.dataset()[:]["id"].tolist()) == list(range(40))
    with pytest.raises(
        UsageError, match=r"reads Parquet files that it has not written, so delete\(\) leaves"
    ):
        converter.delete()
    assert len(pickle.loads(pickle.dumps(converter)).dataset()) == 40
    with pytest.raises(NotFoundError, match="no file or directory"):
        make_spark_converter(f"{tmp_path}/thare")
