"""Spark DataFrames that are columns of Parquet files and nothing else, which workers can read themselves.

Spark hands rows to Python through the JVM, list by list and row by row, which takes longer than all that is
done with them afterwards. If a frame's plan is a scan of Parquet files, with columns at most chosen and renamed,
then Arrow reads the same values from the same files. That is known only for few types and settings; all
others are read by Spark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.columns.convert_arrow import is_list

_RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_PROJECT = "org.apache.spark.sql.catalyst.plans.logical.Project"
_ATTRIBUTE = "org.apache.spark.sql.catalyst.expressions.AttributeReference"
_ALIAS = "org.apache.spark.sql.catalyst.expressions.Alias"
_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"  # not those that extend it
_OPTIONS = {"path", "paths", "mergeschema"}
_CODECS = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"}
_SET_OTHERWISE = (  # settings by which Spark reads other values, or other files, than a plain reader
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
)
_ENCRYPTION = "parquet.crypto.factory.class"
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 10_000  # at most, as Spark's own: a file's sizes are encoded, and may be far more when decoded
_THREADS = 8


@dataclass(frozen=True)
class _Group:
    """A row group of a file, and the number of rows of about ``_BATCH_BYTES``."""

    path: str
    number: int
    batch_rows: int


@dataclass(frozen=True)
class ParquetScan:
    """Columns of Parquet files, read in parts. Pickles.

    Attributes:
        columns: their names in the files; one may occur twice.
        parts: row groups that each task reads.
    """

    columns: tuple[str, ...]
    parts: tuple[tuple[_Group, ...], ...]

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        wanted = list(dict.fromkeys(self.columns))
        for group in self.parts[part]:
            with pq.ParquetFile(group.path) as file:
                for batch in file.iter_batches(group.batch_rows, [group.number], wanted):
                    columns = [batch.column(name) for name in self.columns]
                    yield pa.RecordBatch.from_arrays(columns, [f"c{place}" for place in range(len(columns))])


def parquet_scan(frame: Any, types: Sequence[pa.DataType | str]) -> ParquetScan | None:
    """A scan that reads the rows of a classic DataFrame from its Parquet files; None: only Spark can read them.

    Args:
        types: of its columns, as Spark hands them over.
    """
    if not hasattr(frame, "_jdf") or frame.isStreaming:
        return None
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        # After the optimizer, to which extensions may have added rules, such as filters that say who sees which rows.
        plan = frame._jdf.queryExecution().optimizedPlan()
        columns = _columns(json.loads(plan.toJSON()))
        if columns is None or any(
            "." in name for name in columns
        ):  # Arrow takes a dot for a field of a struct
            return None
        paths = _paths(frame.sparkSession, plan.collectLeaves().apply(0))
        state = frame.sparkSession._jsparkSession.sessionState()
        most = state.conf().filesMaxPartitionBytes()
    except Py4JError:  # another version of Spark, or a file that is gone
        return None
    if not paths:
        return None
    try:
        with ThreadPoolExecutor(_THREADS, "hopyard-footers") as pool:
            footers = list(pool.map(pq.read_metadata, paths))
    except (OSError, pa.ArrowException):  # what Spark says of such files is better known
        return None
    expected = dict(zip(columns, types, strict=True))
    if not all(_is_readable(footer, expected) for footer in footers):
        return None
    parts = _parts(paths, footers, most, frame.sparkSession.sparkContext.defaultParallelism)
    return ParquetScan(tuple(columns), parts) if parts else None


def _columns(nodes: list[dict[str, Any]]) -> list[str] | None:
    """Names in the files of a plan's columns; None if the plan does more than to choose and rename them.

    Args:
        nodes: of the plan, from the root down.
    """
    if nodes[-1]["class"] != _RELATION or any(node["num-children"] != 1 for node in nodes[:-1]):
        return None
    names = {_id(each[0]): each[0]["name"] for each in nodes[-1]["output"]}
    for node in reversed(nodes[:-1]):
        if node["class"] != _PROJECT:
            return None
        chosen = [_chosen(expression, names) for expression in node["projectList"]]
        if None in chosen:
            return None
        names = dict(each for each in chosen if each is not None)
        if len(names) < len(chosen):
            return None
    return list(names.values())


def _chosen(expression: list[dict[str, Any]], names: Mapping[str, str]) -> tuple[str, str] | None:
    """(id, name in the files) of a column that is one of those below, maybe under another name."""
    kinds = [node["class"] for node in expression]
    if kinds not in ([_ATTRIBUTE], [_ALIAS, _ATTRIBUTE]) or _id(expression[-1]) not in names:
        return None
    return _id(expression[0]), names[_id(expression[-1])]


def _id(node: Mapping[str, Any]) -> str:
    return f"{node['exprId']['id']} {node['exprId']['jvmId']}"


def _paths(session: Any, leaf: Any) -> list[str] | None:
    """The local files of a relation, by name, if they are plain Parquet files; else None."""
    relation = leaf.relation()
    if relation.getClass().getName() != _FILES or relation.fileFormat().getClass().getName() != _FORMAT:
        return None
    options = relation.options().keysIterator()
    while options.hasNext():
        if options.next().lower() not in _OPTIONS:
            return None
    if relation.partitionSchema().length() or relation.bucketSpec().isDefined():
        return None
    if any(session.conf.get(name, "false") != "false" for name in _SET_OTHERWISE):
        return None
    if session._jsparkSession.sessionState().newHadoopConf().get(_ENCRYPTION) is not None:
        return None
    urls = [urlsplit(url) for url in relation.inputFiles()]
    if any(url.scheme != "file" or url.netloc or url.query or url.fragment for url in urls):
        return None
    return sorted(unquote(url.path) for url in urls)


def _is_readable(footer: pq.FileMetaData, expected: Mapping[str, pa.DataType | str]) -> bool:
    """Whether Arrow reads the same values from a file as Spark."""
    schema = footer.schema.to_arrow_schema()
    if len({name.lower() for name in schema.names}) < len(schema.names):  # Spark does not mind the case
        return False
    if any(
        name not in schema.names or not _is_same(kind, schema.field(name).type)
        for name, kind in expected.items()
    ):
        return False
    first = footer.row_group(0) if footer.num_row_groups else None
    return first is None or all(
        first.column(place).compression in _CODECS for place in range(first.num_columns)
    )


def _is_same(spark: pa.DataType | str, file: pa.DataType) -> bool:
    """Whether values of a type of Spark equal values of a file's type, by a short list of known types."""
    types = pa.types
    if isinstance(spark, str):
        return False
    if is_list(spark):
        return (types.is_list(file) or types.is_large_list(file)) and _is_same(
            spark.value_type, file.value_type
        )
    if types.is_string(spark):
        return bool(types.is_string(file) or types.is_large_string(file))
    if types.is_binary(spark):
        return bool(types.is_binary(file) or types.is_large_binary(file))
    plain = types.is_signed_integer(spark) or types.is_floating(spark) or types.is_boolean(spark)
    return bool(plain and spark == file)


def _parts(
    paths: Sequence[str], footers: Iterable[pq.FileMetaData], most: int, slots: int
) -> tuple[tuple[_Group, ...], ...]:
    """Row groups for tasks: of about ``most`` bytes, and as many as keep all slots busy to the end."""
    found = []
    for path, footer in zip(paths, footers, strict=True):
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            if group.num_rows:
                found.append((path, number, max(group.total_byte_size, 1), group.num_rows))
    total = sum(size for _, _, size, _ in found)
    count = math.ceil(math.ceil(total / most) / slots) * slots
    parts: list[list[_Group]] = [[] for _ in range(count)]
    before = 0
    for path, number, size, rows in found:
        batch_rows = min(max(1, _BATCH_BYTES * rows // size), _BATCH_ROWS)
        parts[(2 * before + size) * count // (2 * total)].append(_Group(path, number, batch_rows))
        before += size
    return tuple(tuple(part) for part in parts if part)
