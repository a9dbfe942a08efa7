"""Predictions in the Python workers of Spark's executors, by ``mapInArrow``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopyard.data.frames.spark_tasks import OnExecutors
from hopyard.errors import UnsupportedTypeError, UsageError
from hopyard.tune.predicting.predictor import Packed, Predictor

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}


def transform(frame: Any, packed: Packed, columns: Sequence[str], fields: Sequence[pa.Field]) -> Any:
    """A Spark DataFrame with a model's outputs. All other columns keep their types, metadata and values.

    Raises:
        UnsupportedTypeError: a column cannot travel to Python and back; names all of them.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    if not hasattr(frame, "mapInArrow"):
        raise UsageError(
            f"transform was given a {type(frame).__module__}.{type(frame).__name__}; of Spark it takes a DataFrame of "
            "pyspark.sql. Convert pandas on Spark with .to_spark()."
        )
    _check_types(frame.schema)
    fields = [pa.field(field.name, _spark_type(field.type)) for field in fields]
    added = [StructField(field.name, from_arrow_type(field.type)) for field in fields]
    vectors = [field.name for field in frame.schema.fields if field.dataType.simpleString() == "vector"]
    predictor = Predictor(packed.digest, _sent(frame.sparkSession, packed), columns, fields, _device, vectors)
    # PySpark refuses ``mapInArrow`` where a name has a dot.
    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    task = OnExecutors(_Predicting(predictor, tuple(frame.columns)))
    return plain.mapInArrow(task, StructType([*frame.schema.fields, *added]))


@dataclass(frozen=True)
class _Predicting:
    """A task of ``mapInArrow``.

    Attributes:
        names: of the columns, as the model knows them.
    """

    predictor: Predictor
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([batch]).rename_columns(self.names)
            yield from self.predictor(rows).combine_chunks().to_batches()


def _sent(session: Any, packed: Packed) -> Callable[[], bytes]:
    """Send a model to the executors, once; returns a function that gives it to a process there."""
    if not type(session).__module__.startswith("pyspark.sql.connect"):
        broadcast = session.sparkContext.broadcast(packed.data)
        return partial(_value, broadcast)
    name = f"hopyard-{packed.digest}.model"
    with tempfile.TemporaryDirectory() as folder:  # over Connect, files are what is sent once and of any size
        path = Path(folder) / name
        path.write_bytes(packed.data)
        session.addArtifacts(str(path), file=True)
    return partial(_file, name)


def _value(broadcast: Any) -> bytes:
    value: bytes = broadcast.value
    return value


def _file(name: str) -> bytes:
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name)).read_bytes()


def _device() -> str:
    """The GPU that Spark gave to this task; else the first one there is."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpu = None if context is None else context.resources().get("gpu")
    return "auto" if gpu is None else f"cuda:{gpu.addresses[0]}"


def _spark_type(type_: pa.DataType) -> pa.DataType:
    """The type of an output's column, as one that Spark has: no unsigned, no half, no lists of a fixed size."""
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_spark_type(type_.value_type))
    return pa.float32() if pa.types.is_float16(type_) else _SIGNED.get(type_, type_)


def _check_types(schema: Any) -> None:
    from pyspark.sql.types import CalendarIntervalType, YearMonthIntervalType

    unsupported = [
        f"{field.name!r} ({field.dataType.simpleString()})"
        for field in schema.fields
        if isinstance(field.dataType, CalendarIntervalType | YearMonthIntervalType)
    ]
    if unsupported:
        raise UnsupportedTypeError(
            "transform passes all columns of the DataFrame through Arrow, which Spark cannot do with "
            f"{', '.join(unsupported)}. Cast or drop these first."
        )
