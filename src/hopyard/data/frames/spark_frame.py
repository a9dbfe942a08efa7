"""DataFrames of Spark, classic or over Spark Connect.

Rows go through ``mapInArrow`` twice: packed into bytes, which Spark keeps and shuffles, and written by the task
that has all rows of a file. No job of ours needs more of Spark than its DataFrame interface.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from hopyard.data.frames.base import Exchange, Frame, Report
from hopyard.data.frames.packing import FIXED, ORDER, PART, Packing
from hopyard.data.frames.spark_plan import plan_key
from hopyard.data.frames.spark_progress import run_watched
from hopyard.data.frames.survey import Survey
from hopyard.data.frames.writing import HALF, Writing, Written

_FILE, _RESULT = "hopyard_file", "hopyard_result"


class SparkFrame(Frame):
    """A ``pyspark.sql.DataFrame``, or a frame of pandas on Spark."""

    engine = "Spark"

    def __init__(self, data: Any) -> None:
        self.data = data.to_spark() if type(data).__module__.startswith("pyspark.pandas") else data
        fields = self.data.schema.fields
        self.vectors = frozenset(field.name for field in fields if _is_vector(field.dataType))

    def types(self) -> Mapping[str, pa.DataType | str]:
        return {field.name: _arrow_type(field.dataType) for field in self.data.schema.fields}

    def head(self, names: Sequence[str], rows: int) -> pa.Table:
        return self._select(names).limit(rows).toArrow()

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        yield self._select(names).toArrow()

    def exchange(self, packings: Sequence[tuple[Frame, Sequence[str], Packing]]) -> Exchange:
        packed = []
        for frame, names, packing in packings:
            assert isinstance(frame, SparkFrame)
            # PySpark refuses ``mapInArrow`` where a name has a dot; those of batches do not count.
            plain = frame._select(names).toDF(*(f"c{number}" for number in range(len(names))))
            packed.append(plain.mapInArrow(packing.pack, _ddl(packing.layout.arrow)))
        return _SparkExchange(packed)

    def plan_key(self) -> str | None:
        return plan_key(self.data)

    def _select(self, names: Sequence[str]) -> Any:
        """The frame with these columns; vectors as the structs that they are, which any client can read."""
        return self.data.select(*("`" + name.replace("`", "``") + "`" for name in names))


class _SparkExchange(Exchange):
    """Packed rows that Spark keeps in memory, and on disk what does not fit."""

    def __init__(self, packed: list[Any]) -> None:
        from pyspark.storagelevel import StorageLevel

        self._packed = [frame.persist(StorageLevel.MEMORY_AND_DISK) for frame in packed]

    def survey(self, report: Report) -> list[list[Survey]]:
        found = []
        for frame in self._packed:
            rows = run_watched(frame.sparkSession, "reading rows", report, _collected(frame))
            found.append([pickle.loads(row[FIXED]) for row in rows])
        return found

    def write(self, writing: Writing, report: Report) -> list[Written]:
        rows = self._packed[0]
        for other in self._packed[1:]:
            rows = rows.unionAll(other)
        numbered = rows.where(f"{ORDER} >= 0").selectExpr("*", f"{_file_number(writing)} as {_FILE}")
        if hasattr(numbered, "repartitionById"):  # Spark 4.1: task i has the rows of file i, and no others
            grouped = numbered.repartitionById(writing.count, _FILE)
        else:
            grouped = numbered.repartition(writing.count, _FILE).sortWithinPartitions(_FILE)
        results = grouped.mapInArrow(_Writer(writing), f"{_RESULT} binary")
        done = run_watched(results.sparkSession, "writing files", report, results.collect)
        return [pickle.loads(row[_RESULT]) for row in done]

    def close(self) -> None:
        for frame in self._packed:
            frame.unpersist()


def _collected(frame: Any) -> Callable[[], list[Any]]:
    return lambda: list(frame.where(f"{ORDER} < 0").select(FIXED).collect())


class _Writer:
    """A task: rows of one file after those of another."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number, held = -1, list[pa.RecordBatch]()
        for batch in batches:
            for part in _parts(batch):
                following = part[_FILE][0].as_py()
                if held and following != number:
                    yield self._write(number, held)
                    held = []
                number = following
                held.append(part)
        if held:
            yield self._write(number, held)

    def _write(self, number: int, held: list[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.Table.from_batches(held)
        held.clear()
        written = pickle.dumps(self._writing.write(number, rows))
        return pa.RecordBatch.from_pydict({_RESULT: [written]}, pa.schema([(_RESULT, pa.binary())]))


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of rows of one file."""
    numbers = batch[_FILE].to_numpy()
    start = 0
    while start < len(numbers):
        stop = start + int((numbers[start:] == numbers[start]).argmin() or len(numbers) - start)
        yield batch.slice(start, stop - start)
        start = stop


def _file_number(writing: Writing) -> str:
    """``Writing.numbers`` in SQL."""
    train, val = writing.files
    place = f"shiftright({ORDER}, {HALF})"
    in_train = f"shiftright({place} * {train.count}L, {HALF})"
    in_val = f"{train.count}L + shiftright({place} * {val.count}L, {HALF})"
    return f"cast(if({PART} < {writing.cut}, {in_val}, {in_train}) as int)"


def _ddl(schema: pa.Schema) -> str:
    kinds = {pa.int64(): "bigint", pa.int32(): "int", pa.binary(): "binary"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in schema)


def _is_vector(kind: Any) -> bool:
    return type(kind).__name__ == "VectorUDT"


def _arrow_type(kind: Any) -> pa.DataType | str:
    """The Arrow type in which Python workers get values of a Spark type."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import UserDefinedType

    if _is_vector(kind):
        return pa.list_(pa.float64())
    if isinstance(kind, UserDefinedType):
        return f"{kind.simpleString()}: make it numbers or an array before"
    try:
        return to_arrow_type(kind)
    except Exception as error:  # what PySpark raises for types that it cannot hand over differs by version
        return f"{kind.simpleString()}: {str(error).splitlines()[0]}"
