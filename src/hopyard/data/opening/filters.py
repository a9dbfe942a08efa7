"""Which rows of Parquet files a filter keeps, from statistics where they tell, else from the filter's columns."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.opening.hive import constant_column, constant_type
from hopyard.data.opening.survey import Scan, Selection
from hopyard.data.reading.stored import StoredFile
from hopyard.data.recipe.structs import field_of, flat_columns
from hopyard.data.schema import unknown_columns
from hopyard.errors import DataError

_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


def matching_rows(scan: Scan, filters: Any, constants: Mapping[str, Sequence[Any]]) -> None:
    """Select the rows for which the filter is true, of those that ``scan`` has selected.

    A comparison with a null is not true. Struct fields have the names of the dataset, ``a.b``.

    Args:
        filters: a pyarrow expression, or lists of tuples as ``pyarrow.parquet.filters_to_expression`` takes them.
        constants: of columns of hive partitions, the value in each file.

    Raises:
        ColumnError: the filter names a column that there is not.
        DataError: no row matches, or the filter does not fit the columns' types.
    """
    expression = as_expression(filters)
    kinds = {name: constant_type(constant_column(name, values)) for name, values in constants.items()}
    looked_at = sum(scan.rows(number, group) for number, group in scan.groups())
    bound: _Filter | None = None
    for number, file in enumerate(scan.files):
        arrow = file.footer.schema.to_arrow_schema()
        if bound is None or not arrow.equals(bound.arrow):
            bound = _Filter.bind(expression, arrow, kinds, file.name)
        known = {name: pa.scalar(values[number], kinds[name]) for name, values in constants.items()}
        bound.apply(scan, number, known)
    if not any(scan.rows(number, group) for number, group in scan.groups()):
        raise DataError(
            f"No row matches the filter {expression}: {looked_at} rows in {len(scan.files)} files were looked at. "
            "Change the filter, or leave it out."
        )


def as_expression(filters: Any) -> Any:
    """A pyarrow expression.

    Raises:
        DataError: it is none, nor what makes one.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except (ValueError, TypeError, IndexError, AttributeError, *_ARROW_ERRORS) as error:
        raise DataError(
            f"filters={filters!r} is no filter ({error}). Give a pyarrow expression, as pyarrow.compute.field('x') > "
            "0, or a list of tuples (column, operator, value), all of which must hold, or a list of such lists."
        ) from error


@dataclass(frozen=True)
class _Filter:
    """A filter over files of one Arrow schema: ``schema`` is what it may name, ``names`` what it does."""

    expression: Any
    arrow: pa.Schema
    schema: pa.Schema
    names: list[str]

    @classmethod
    def bind(
        cls, expression: Any, arrow: pa.Schema, constants: Mapping[str, pa.DataType], where: str
    ) -> _Filter:
        fields = {name: arrow.field(name).type for name in arrow.names}
        inside = {flat.name: flat.type for flat in flat_columns(arrow).values() if len(flat.path) > 1}
        schema = pa.schema({**constants, **fields, **inside}.items())
        return cls(expression, arrow, schema, _columns_of(expression, schema, where))

    def apply(self, scan: Scan, number: int, known: Mapping[str, pa.Scalar]) -> None:
        """Select the rows of one file."""
        file, selections = scan.files[number], scan.selections[number]
        possible = _possible_groups(file, self.expression, self.schema, known)
        for group in range(len(selections)):
            rows = file.footer.row_group(group).num_rows
            mask = np.zeros(rows, bool)
            if group in possible and scan.rows(number, group):
                mask = self._evaluate(scan, number, group, known, mask)
            if (before := selections[group]) is not None:
                mask &= before.mask(rows)
            selections[group] = Selection.of(mask)

    def _evaluate(
        self,
        scan: Scan,
        number: int,
        group: int,
        known: Mapping[str, pa.Scalar],
        nothing: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        flat = flat_columns(self.arrow)
        own = [name for name in self.names if name not in known or name in self.arrow.names]
        table = scan.read_whole(number, group, own)
        if table is None:
            return nothing
        columns = {name: field_of(table, flat[name].path if name in flat else (name,)) for name in own}
        columns.update(
            {name: pa.repeat(known[name], table.num_rows) for name in self.names if name not in own}
        )
        kept = _project(self.expression, pa.table(columns)).fill_null(False)
        return np.array(kept.to_numpy(), bool)


def _columns_of(expression: Any, schema: pa.Schema, where: str) -> list[str]:
    """The columns that an expression is about: those named in its text without which it means nothing."""
    text = str(expression)
    if "FieldPath(" in text:
        raise DataError(f"The filter {text} names columns by number. Name them: pyarrow.compute.field('x').")
    names = [name for name in schema.names if name in text]
    _bind(expression, schema, names, schema.names, where)
    for name in list(names):
        others = [other for other in names if other != name]
        try:
            _bind(expression, schema, others, schema.names, where)
        except DataError:
            continue
        names = others
    return names


def _bind(expression: Any, schema: pa.Schema, names: Sequence[str], known: Sequence[str], where: str) -> None:
    """Look whether the expression can be computed from these columns.

    Raises:
        ColumnError: it names another column.
        DataError: it cannot for another reason, or gives no truth values.
    """
    empty = pa.schema([schema.field(name) for name in names]).empty_table()
    try:
        kind = _project(expression, empty).type
    except _ARROW_ERRORS as error:
        text = str(error).splitlines()[0]
        if (missing := re.match(r"No match for FieldRef\.Name\((.*?)\) in ", text)) is not None:
            raise unknown_columns([missing[1]], known) from error
        raise DataError(
            f"{where}: the filter {expression} does not fit the columns ({text}). Compare with values of the "
            f"columns' types, which are: {', '.join(map(_typed, empty.schema))}."
        ) from error
    if not pa.types.is_boolean(kind):
        raise DataError(
            f"The filter {expression} gives {kind} values, but must be true or false for each row. Compare it with "
            "a value."
        )


def _typed(field: pa.Field) -> str:
    """A column and its type, and what to compare it with if the type's name does not say."""
    kind, hint = field.type, ""
    if pa.types.is_decimal(kind):
        hint = " (compare with a float or a decimal.Decimal)"
    elif pa.types.is_timestamp(kind):
        hint = " (compare with a datetime.datetime)"
    elif pa.types.is_date(kind):
        hint = " (compare with a datetime.date)"
    return f"{field.name}: {kind}{hint}"


def _project(expression: Any, table: pa.Table) -> pa.ChunkedArray:
    from pyarrow import dataset

    return dataset.InMemoryDataset(table).to_table(columns={"kept": expression}, use_threads=False)["kept"]


def _possible_groups(
    file: StoredFile, expression: Any, schema: pa.Schema, known: Mapping[str, pa.Scalar]
) -> set[int]:
    """Row groups that may have matching rows, as far as statistics and the file's partition tell."""
    from pyarrow import dataset

    footer = io.BytesIO()
    file.footer.write_metadata_file(footer)  # all that is looked at, wherever the file is
    holds = dataset.scalar(True)
    for name, value in known.items():
        its = dataset.field(name)
        holds = holds & (its == value if value.is_valid else its.is_null())
    fragment = dataset.ParquetFileFormat().make_fragment(
        pa.BufferReader(footer.getvalue()), partition_expression=holds
    )
    parts = fragment.split_by_row_group(expression, schema=schema)
    return {group.id for part in parts for group in part.row_groups}
