"""Makes a converter of a DataFrame, or of Parquet files."""

from __future__ import annotations

import atexit
import os
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from hopyard.checks import choice, integer
from hopyard.data.converter.converter import SparkDatasetConverter
from hopyard.data.converter.kept import Marker, abandon, finish, new_attempt, usable_marker
from hopyard.data.converter.places import parent_url, plain_path
from hopyard.data.converter.written import Job, stored_type
from hopyard.data.frames.spark_frame import SparkFrame
from hopyard.data.frames.spark_plan import plan_digest, process_key
from hopyard.data.opening.opening import open_dataset
from hopyard.data.preparing.exchange import FrameSource
from hopyard.data.preparing.files import heard
from hopyard.errors import DataError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.storage import open_store

_FORMAT = 1  # of the written files; part of the directories' names
_CODECS = ("uncompressed", "snappy", "gzip", "lz4", "zstd", "brotli")


def make_spark_converter(
    df: Any,
    parquet_row_group_size_bytes: int = 32 << 20,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    delete_at_exit: bool | None = None,
) -> SparkDatasetConverter:
    """Write a DataFrame as Parquet below the parent cache directory, or find the files that were written before.

    The executors write the files themselves; the driver sees no rows. The same plan with the same parameters has
    the same files, also in another process, as long as the files that the plan reads have not changed. Plans over
    rows in memory, with functions in Python or Scala, or over Spark Connect mean nothing to other processes: their
    files are used again within the process.

    Args:
        df: a DataFrame; or the path or URL of Parquet files (a str), which are read as they are, without Spark.
        parquet_row_group_size_bytes: of a row group, before compression.
        compression_codec: ``"snappy"``, ``"gzip"``, ``"lz4"``, ``"zstd"``, ``"brotli"``, or None (``"uncompressed"``):
            only uncompressed files are mapped and need no second, decoded copy on the machines that read them.
        dtype: ``"float32"`` or ``"float64"`` for all floating numbers, also in arrays and vectors; None: as they are.
        delete_at_exit: whether this process deletes the files when it ends. None: only files that no other
            process could find again.

    Raises:
        UsageError: the parent directory is not set or its URL is impossible; an unknown codec or dtype.
        DataError: there are no rows, or columns that no dataset can hold; names them all.
        WorkerMismatchError: an executor lacks a package, or has another version of it.
        WorkerLostError: executors were lost, again and again.
        StorageError: this machine does not see the files that the executors wrote.
    """
    codec = _checked_codec(compression_codec)
    size = integer("parquet_row_group_size_bytes", parquet_row_group_size_bytes, 1)
    if dtype is not None:
        choice("dtype", dtype, ("float32", "float64"))
    if isinstance(df, (str, os.PathLike)):
        return _of_files(os.fspath(df))
    if not hasattr(df, "mapInArrow"):
        raise UsageError(
            f"make_spark_converter was given {type(df).__module__}.{type(df).__qualname__}, but it converts a Spark "
            "DataFrame, or takes the path of Parquet files. For rows in memory there is prepare(data, store)."
        )
    parent = parent_url(df.sparkSession)
    parameters = {"row_group_bytes": size, "codec": codec, "dtype": dtype, "format": _FORMAT}
    plan = plan_digest(df)
    digest = digest_json([plan or process_key(df), parameters], "hopyard.converter")[:32]
    url = f"{parent}/converter-{digest}"
    store = open_store(url)  # it may not be there yet
    marker = usable_marker(store) or _written(df, url, parameters)
    rows = sum(file.rows for file in marker.files)
    converter = SparkDatasetConverter(url, [f"{store.url}/{file.name}" for file in marker.files], rows, True)
    if delete_at_exit if delete_at_exit is not None else plan is None:
        atexit.register(_delete_of, os.getpid(), converter)
    return converter


def _delete_of(pid: int, converter: SparkDatasetConverter) -> None:
    if os.getpid() == pid:  # not a process that this one has forked
        converter.delete_quietly()


def _checked_codec(codec: Any) -> str | None:
    if codec is None:
        return None
    if not isinstance(codec, str) or codec.lower() not in _CODECS:
        raise UsageError(
            f"compression_codec={codec!r}, but it must be None or one of {', '.join(map(repr, _CODECS))}. Parquet "
            "has no others that every reader knows."
        )
    return None if codec.lower() == "uncompressed" else codec.lower()


def _of_files(path: str) -> SparkDatasetConverter:
    """A converter of files that are there already."""
    place = plain_path(path)
    dataset = open_dataset(place, nulls="fill")  # what becomes of nulls is for loaders to say
    store = dataset.store
    names = [entry.name if store is None else f"{store.url}/{entry.name}" for entry in dataset.manifest.files]
    url = place if "://" in place else f"file://{quote(os.path.abspath(place))}"  # noqa: PTH100
    return SparkDatasetConverter(url, names, len(dataset), False)


def _written(df: Any, url: str, parameters: dict[str, Any]) -> Marker:
    """Have the executors write the rows into the directory at ``url``."""
    frame = SparkFrame(df)
    source = FrameSource(frame)
    if not source.columns:
        raise DataError("The DataFrame has no columns. Give at least one.")
    source.layout()  # raises for columns that no dataset can hold
    fields = [(name, stored_type(kind, parameters["dtype"])) for name, kind in source.types.items()]
    store, attempt = open_store(url), new_attempt()
    job = Job(
        url, attempt, pa.schema(fields), frame.vectors, parameters["row_group_bytes"], parameters["codec"]
    )
    try:
        answers = frame.rows(source.types).answers(job, "writing a converter's files", lambda share: None)
        files = tuple(file for each in heard(answers) for file in each)
        if not files:
            raise DataError("The DataFrame has no rows. Give one that has.")
        return finish(store, attempt, Marker(url.rpartition("/")[2], parameters, files))
    except BaseException:
        abandon(store, attempt)
        raise
