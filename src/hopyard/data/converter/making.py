"""Makes a converter of a DataFrame, or of Parquet files."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from hopyard.checks import choice, integer
from hopyard.data.converter.converter import SparkDatasetConverter
from hopyard.data.converter.kept import KeptFile, Marker, abandon, finish, new_attempt, usable_marker
from hopyard.data.converter.places import parent_url, plain_path
from hopyard.data.converter.plans import inputs, is_same_plan
from hopyard.data.converter.written import RESULT_SCHEMA, Job, check_types, uneven_lists
from hopyard.data.frames.spark_plan import plan_digest
from hopyard.data.frames.spark_progress import run_watched
from hopyard.data.frames.spark_tasks import OnExecutors
from hopyard.data.opening.opening import open_dataset
from hopyard.errors import DataError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.storage import open_store
from hopyard.storage.base import Store

_FORMAT = 1  # of the written files; part of the directories' names
_CODECS = ("uncompressed", "snappy", "gzip", "lz4", "zstd", "brotli")
_made: list[tuple[Any, list[Any], str]] = []
"""DataFrames of this process whose plans tell nothing to others, their inputs, and the directories of their rows."""


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
    url = _directory(df, plan, parent, parameters)
    store = open_store(url)
    marker = usable_marker(store)
    if marker is None:
        with _quiet_about_pandas():
            marker = _written(
                df, store, Job(url, new_attempt(), tuple(df.columns), dtype, size, codec), parameters
            )
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


def _directory(df: Any, plan: str | None, parent: str, parameters: dict[str, Any]) -> str:
    """URL of the directory of the rows of this plan, converted with these parameters; it may not be there yet."""
    below = parent + "/converter-"
    if plan is not None:
        return below + digest_json([plan, parameters], "hopyard.converter")[:32]
    suffix = digest_json(parameters, "hopyard.converter")[:8]
    read = inputs(df)
    for other, its, url in _made:
        if url.startswith(below) and url.endswith(suffix) and its == read and is_same_plan(df, other):
            return url
    url = f"{below}{uuid.uuid4().hex[:24]}{suffix}"
    _made.append((df, read, url))
    return url


def _written(df: Any, store: Store, job: Job, parameters: dict[str, Any]) -> Marker:
    frame = _without_vectors(df, job.dtype)
    check_types(_arrow_schema(frame))
    try:
        found = _run(frame, job)
        if lists := uneven_lists(columns for _, columns in found):
            abandon(store, job.attempt)
            found = _run(frame, replace(job, lists=lists))
        if not found:
            raise DataError("The DataFrame has no rows. Give one that has.")
        name = job.url.rpartition("/")[2]
        return finish(store, job.attempt, Marker(name, parameters, tuple(file for file, _ in found)))
    except BaseException:
        abandon(store, job.attempt)
        raise


def _run(frame: Any, job: Job) -> list[tuple[KeptFile, str]]:
    """Write on the executors; returns the files in the order of their rows, and the columns of each."""
    # PySpark refuses ``mapInArrow`` where a name has a dot.
    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    written = plain.mapInArrow(OnExecutors(job.run), RESULT_SCHEMA)
    answers = run_watched(
        written.sparkSession, "writing a converter's files", lambda _: None, written.collect
    )
    for answer in answers:
        if answer.error:
            raise DataError(answer.error)
    return [(KeptFile(answer.name, answer.size, answer.rows), answer.columns) for answer in answers]


@contextlib.contextmanager
def _quiet_about_pandas() -> Iterator[None]:
    """PySpark warns of newer releases of pandas; rows do not pass through pandas here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield


def _without_vectors(df: Any, dtype: str | None) -> Any:
    """The DataFrame with vectors of Spark's machine learning as arrays."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql.functions import col

    vectors = [field.name for field in df.schema if type(field.dataType).__name__ == "VectorUDT"]
    if not vectors:
        return df
    to = dtype or "float64"
    quoted = {name: "`" + name.replace("`", "``") + "`" for name in df.columns}
    return df.select(
        *(
            vector_to_array(col(quoted[name]), to).alias(name) if name in vectors else col(quoted[name])
            for name in df.columns
        )
    )


def _arrow_schema(frame: Any) -> pa.Schema:
    """Arrow schema of the columns as Spark hands them over.

    Raises:
        DataError: columns have no Arrow type; names them all.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import UserDefinedType

    parameters = inspect.signature(to_arrow_type).parameters
    how: dict[str, Any] = {"timezone": "UTC"} if "timezone" in parameters else {}  # since Spark 4.1
    fields, bad = [], []
    for field in frame.schema:
        kind = field.dataType
        try:
            if isinstance(kind, UserDefinedType):
                raise UsageError("a type of its own")
            fields.append(pa.field(field.name, to_arrow_type(kind, **how)))
        except (PySparkException, UsageError):
            bad.append(f"{field.name} ({kind.simpleString()})")
    if bad:
        raise DataError(
            f"These columns are of types that Arrow does not have: {', '.join(bad)}. Make them numbers, text, bytes or "
            "arrays of numbers in Spark, or drop them."
        )
    return pa.schema(fields)
