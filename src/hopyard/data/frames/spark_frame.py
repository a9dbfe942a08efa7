"""DataFrames of Spark, classic or over Spark Connect.

Executors read, pack and write in ``mapInArrow``. No job of ours needs more of Spark than its DataFrame interface;
where a plan can be seen and is that of plain Parquet files, executors read those without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopyard.data.frames.spark_exchange import KeptExchange, SpilledExchange
from hopyard.data.frames.spark_parquet import parquet_scan
from hopyard.data.frames.spark_plan import plan_digest
from hopyard.data.frames.spark_rows import SparkRows
from hopyard.data.preparing.exchange import Exchange, Frame, FrameSource, Types
from hopyard.data.preparing.packing import Packing
from hopyard.errors import DataError


def source_of(data: Any) -> FrameSource:
    """The rows of a frame as a source."""
    return FrameSource(SparkFrame(data))


class SparkFrame(Frame):
    """A ``pyspark.sql.DataFrame``, or a frame of pandas on Spark."""

    engine = "Spark"

    def __init__(self, data: Any) -> None:
        self.data: Any = data.to_spark() if type(data).__module__.startswith("pyspark.pandas") else data
        fields = self.data.schema.fields
        _check_names([field.name for field in fields], self.data.sparkSession)
        self.vectors: frozenset[str] = frozenset(field.name for field in fields if _is_vector(field.dataType))

    def types(self) -> Types:
        return {field.name: _arrow_type(field.dataType) for field in self.data.schema.fields}

    def head(self, names: Sequence[str], rows: int) -> pa.Table:
        return self._select(names).limit(rows).toArrow()

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table]:
        yield self._select(names).toArrow()

    def exchange(self, packings: Sequence[tuple[Frame, Types, Packing]], folder: Path | None) -> Exchange:
        rows = []
        for frame, types, packing in packings:
            assert isinstance(frame, SparkFrame)
            rows.append((frame.rows(types), packing))
        return KeptExchange(rows) if folder is None else SpilledExchange(rows, folder)

    def plan_key(self) -> str | None:
        return plan_digest(self.data, deterministic=True)

    def rows(self, types: Types) -> SparkRows:
        """The rows of columns of these types, as executors read them: vectors as the structs that they are."""
        # PySpark refuses ``mapInArrow`` where a name has a dot; those of batches do not count.
        plain = self._select(list(types)).toDF(*(f"c{number}" for number in range(len(types))))
        scan = parquet_scan(plain, list(types.values()))
        if scan is None:
            return SparkRows(plain)
        tasks = len(scan.parts)
        return SparkRows(self.data.sparkSession.range(0, tasks, 1, tasks), scan)

    def _select(self, names: Sequence[str]) -> Any:
        """The frame with these columns; vectors as the structs that they are, which any client can read."""
        return self.data.select(*("`" + name.replace("`", "``") + "`" for name in names))


def _check_names(names: Sequence[str], session: Any) -> None:
    minds_case = session.conf.get("spark.sql.caseSensitive", "false") == "true"
    seen: dict[str, str] = {}
    for name in names:
        key = name if minds_case else name.lower()
        if key in seen:
            raise DataError(
                f"The DataFrame has the columns {seen[key]!r} and {name!r}, which Spark cannot tell apart. Rename or "
                "drop one of them."
            )
        seen[key] = name


def _is_vector(kind: Any) -> bool:
    return type(kind).__name__ == "VectorUDT"


def _arrow_type(kind: Any) -> pa.DataType | str:
    """The Arrow type in which Python workers get values of a Spark type."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import TimestampType, UserDefinedType

    if _is_vector(kind):
        return pa.list_(pa.float64())
    if isinstance(kind, UserDefinedType):
        return f"{kind.simpleString()}: make it numbers or an array before"
    if isinstance(kind, TimestampType):  # how PySpark wants to be told the time zone differs by version
        return pa.timestamp("us", "UTC")
    try:
        return to_arrow_type(kind)
    except Exception as error:  # what PySpark raises for types that it cannot hand over differs by version
        return f"{kind.simpleString()}: {(str(error).splitlines() or [type(error).__name__])[0]}"
