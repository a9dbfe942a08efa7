"""Rows of Parquet files that a filter keeps, by statistics where they tell, else by the filter's columns."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.columns.convert_arrow import decimals_as_floats
from hopyard.data.columns.structs import field_of, flat_columns
from hopyard.data.files.hive import constant_column, constant_type
from hopyard.data.files.stored import StoredFile
from hopyard.data.opening.survey import Scan, Selection
from hopyard.data.schema import unknown_columns
from hopyard.errors import DataError

_NESTED = "\0"  # before the name of a field that a filter names through its struct
_MOST_NANS = 4  # columns for which all ways of being NaN are looked at: 2 ** 4 of them
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


def matching_rows(scan: Scan, filters: Any, constants: Mapping[str, Sequence[Any]]) -> None:
    """Narrow the rows that ``scan`` has selected to those for which the filter is true.

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
    schemas = [file.footer.schema.to_arrow_schema() for file in scan.files]
    every = _types_of(schemas)
    looked_at = sum(scan.rows(number, group) for number, group in scan.groups())
    bound: _Filter | None = None
    absent: dict[str, pa.DataType] = {}
    for number, file in enumerate(scan.files):
        arrow = schemas[number]
        if bound is None or not arrow.equals(bound.arrow):
            its = _types_of([arrow])
            absent = {name: kind for name, kind in every.items() if name not in its}
            bound = _Filter.bind(expression, arrow, {**kinds, **absent}, file.name)
        known = {name: pa.scalar(values[number], kinds[name]) for name, values in constants.items()}
        known.update({name: pa.scalar(None, kind) for name, kind in absent.items()})
        bound.apply(scan, number, known)
    if not any(scan.rows(number, group) for number, group in scan.groups()):
        raise DataError(
            f"No row matches the filter {expression}: {looked_at} rows in {len(scan.files)} files were looked at. "
            "Change the filter, or leave it out."
        )


def _types_of(schemas: Sequence[pa.Schema]) -> dict[str, pa.DataType]:
    """The types of the columns of files and of the fields of their structs, by name; of several, the first file's."""
    types: dict[str, pa.DataType] = {}
    known: list[pa.Schema] = []
    for schema in schemas:
        if not any(schema.equals(each) for each in known):
            known.append(schema)
            for name, flat in flat_columns(schema).items():
                types.setdefault(name, flat.type)
            for field in schema:
                types.setdefault(field.name, field.type)
    return types


def as_expression(filters: Any) -> Any:
    """A pyarrow expression.

    Raises:
        DataError: it is no filter, nor makes one.
    """
    import pyarrow.compute as pc

    if isinstance(filters, pc.Expression):
        return filters
    try:
        pq.filters_to_expression(filters)  # knows what is wrong
        conjunctions = [filters] if isinstance(filters[0][0], str) else filters
        return reduce(or_, [reduce(and_, map(_comparison, each)) for each in conjunctions])
    except (ValueError, TypeError, IndexError, AttributeError, *_ARROW_ERRORS) as error:
        raise DataError(
            f"filters={filters!r} is no filter ({error}). Give a pyarrow expression, as pyarrow.compute.field('x') > "
            "0, or a list of tuples (column, operator, value), all of which must hold, or a list of such lists."
        ) from error


def _comparison(comparison: Sequence[Any]) -> Any:
    """One comparison. Unlike Arrow's ``isin``, ``in`` takes 0.0 and -0.0 as one number, and no null is ``not in``."""
    from pyarrow import dataset  # loads pandas

    name, operator, values = comparison
    if operator not in ("in", "not in"):
        return pq.filters_to_expression([comparison])
    column = dataset.field(name)
    among = column.isin(list(values))
    if any(
        isinstance(value, (int, float)) and value == 0 and not isinstance(value, bool) for value in values
    ):
        among = among | (column == 0)
    return among if operator == "in" else ~among & column.is_valid()


@dataclass(frozen=True)
class _Filter:
    """A filter over files of one Arrow schema.

    Attributes:
        expression: the filter.
        arrow: schema of the files.
        schema: the columns that the filter may name, of the types it sees.
        names: of the columns that it names.
        as_floats: the columns of decimals that it compares with floats.
        nans: sets of columns of floats for which the filter may hold in a row where just these are NaN, which
            statistics do not tell; None: statistics are of no use.
    """

    expression: Any
    arrow: pa.Schema
    schema: pa.Schema
    names: list[str]
    as_floats: frozenset[str]
    nans: list[tuple[str, ...]] | None

    @classmethod
    def bind(
        cls, expression: Any, arrow: pa.Schema, constants: Mapping[str, pa.DataType], where: str
    ) -> _Filter:
        fields = {name: arrow.field(name).type for name in arrow.names}
        inside = {flat.name: flat.type for flat in flat_columns(arrow).values() if len(flat.path) > 1}
        types = {**constants, **fields, **inside}
        as_floats = _decimals_among_floats(expression, types)
        schema = pa.schema({**types, **dict.fromkeys(as_floats, pa.float64())}.items())
        names = _columns_of(expression, schema, where)
        nans = None if as_floats else _possible_nans(expression, schema, names)
        return cls(expression, arrow, schema, names, as_floats, nans)

    def apply(self, scan: Scan, number: int, known: Mapping[str, pa.Scalar]) -> None:
        """Select the rows of one file."""
        file, selections = scan.files[number], scan.selections[number]
        possible = self._possible_groups(file, known)
        for group in range(len(selections)):
            rows = file.footer.row_group(group).num_rows
            mask = np.zeros(rows, bool)
            if group in possible and scan.rows(number, group):
                mask = self._evaluate(scan, number, group, known, mask)
            if (before := selections[group]) is not None:
                mask &= before.mask(rows)
            selections[group] = Selection.of(mask)

    def _possible_groups(self, file: StoredFile, known: Mapping[str, pa.Scalar]) -> set[int]:
        """Row groups that may have matching rows, as far as statistics and the file's partition tell."""
        from pyarrow import dataset  # loads pandas

        if self.nans is None:
            return set(range(file.footer.num_row_groups))
        footer = io.BytesIO()
        file.footer.write_metadata_file(footer)  # all that is looked at, wherever the file is
        holds = dataset.scalar(True)
        for name, value in known.items():
            its = dataset.field(name)
            holds = holds & (its == value if value.is_valid else its.is_null())
        return set().union(
            *(
                _kept_groups(footer, self.expression, self.schema, holds & _are_nan(some, self.schema))
                for some in self.nans
            )
        )

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
        columns.update({name: decimals_as_floats(columns[name]) for name in self.as_floats})
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
    """A column and its type, with a hint at values to compare it with where the type's name does not tell."""
    kind, hint = field.type, ""
    if pa.types.is_decimal(kind):
        hint = " (compare with a float or a decimal.Decimal)"
    elif pa.types.is_timestamp(kind):
        hint = " (compare with a datetime.datetime)"
    elif pa.types.is_date(kind):
        hint = " (compare with a datetime.date)"
    return f"{field.name}: {kind}{hint}"


def _project(expression: Any, table: pa.Table) -> pa.ChunkedArray:
    from pyarrow import dataset  # loads pandas

    return dataset.InMemoryDataset(table).to_table(columns={"kept": expression}, use_threads=False)["kept"]


def _possible_nans(expression: Any, schema: pa.Schema, names: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Sets of these columns, the empty one among them, that may be NaN together in a row that the filter keeps.

    NaN is in no statistics, and compares as none of the numbers in them does: it is ``!=`` to all, and not ``<=``
    any. A filter that is false where a column is NaN, for any values of the others, needs no look at that column.
    """
    types = [schema.field(name).type for name in names]
    if any(pa.types.is_nested(kind) or pa.types.is_dictionary(kind) for kind in types):
        return None
    floats = [name for name, kind in zip(names, types, strict=True) if pa.types.is_floating(kind)]
    unknown = io.BytesIO()
    pq.write_table(pa.table({"": [0]}), unknown, write_statistics=False)
    possible = [
        name for name in floats if _kept_groups(unknown, expression, schema, _are_nan([name], schema))
    ]
    if len(possible) > _MOST_NANS:
        return None
    return [some for count in range(len(possible) + 1) for some in combinations(possible, count)]


def _are_nan(names: Iterable[str], schema: pa.Schema) -> Any:
    from pyarrow import dataset  # loads pandas

    holds = dataset.scalar(True)
    for name in names:
        holds = holds & (dataset.field(name) == pa.scalar(math.nan, schema.field(name).type))
    return holds


def _kept_groups(file: io.BytesIO, expression: Any, schema: pa.Schema, holds: Any) -> set[int]:
    """The row groups of a Parquet file, or of a footer alone, for which the filter may be true where ``holds`` is."""
    from pyarrow import dataset  # loads pandas

    fragment = dataset.ParquetFileFormat().make_fragment(
        pa.BufferReader(file.getvalue()), partition_expression=holds
    )
    try:
        parts = fragment.split_by_row_group(expression, schema=schema)
    except _ARROW_ERRORS:  # it cannot be computed for such values: that is said where rows have them
        return {group.id for group in fragment.row_groups}
    return {group.id for part in parts for group in part.row_groups}


def _decimals_among_floats(expression: Any, types: Mapping[str, pa.DataType]) -> frozenset[str]:
    """The columns of decimals that the filter compares with floats: Arrow's own conversion may be one unit in the
    last place off, so that nothing is equal.

    Raises:
        DataError: it compares one both with floats and with decimals, or names it as a field of a struct.
    """
    decimals = {name for name, kind in types.items() if pa.types.is_decimal(kind)}
    if not any(name.rpartition(".")[2] in str(expression) for name in decimals):
        return frozenset()
    floats: set[str] = set()
    exact: set[str] = set()
    for names, kinds in _operands(expression, types):
        if any(map(pa.types.is_floating, kinds)):
            floats.update(names)
        elif sum(map(pa.types.is_decimal, kinds)) > 1:
            exact.update(names)
    floats &= decimals | {f"{_NESTED}{name}" for name in decimals}
    if both := sorted(floats & exact):
        raise DataError(
            f"The filter {expression} compares the decimals of {both[0]!r} with floats and with decimals. Compare them "
            "with one kind: all floats, or all decimal.Decimal."
        )
    if nested := sorted(name for name in floats if name.startswith(_NESTED)):
        name = nested[0].removeprefix(_NESTED)
        raise DataError(
            f"The filter {expression} compares decimals inside a struct with floats. Name them by the name of the "
            f"dataset's column: pyarrow.compute.field({name!r})."
        )
    return frozenset(floats)


def _operands(expression: Any, types: Mapping[str, pa.DataType]) -> list[tuple[list[str], list[pa.DataType]]]:
    """The columns, and the types of all values, that each function that the filter calls is given directly.

    An expression pickles as a batch of its values, whose schema's metadata lists calls, columns and values.
    """
    batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    # Keys come more than once there, which ``schema.metadata`` hides.
    listed = re.findall(r"^(\w+): '(.*)'$", batch.schema.to_string(truncate_metadata=False), re.MULTILINE)
    calls: list[tuple[list[str], list[pa.DataType]]] = []
    around: list[tuple[list[str], list[pa.DataType]]] = [([], [])]
    path: list[str] = []
    inside = 0
    for key, value in listed:
        names, kinds = around[-1]
        if key == "call":
            around.append(([], []))
        elif key == "end" and len(around) > 1:
            calls.append(around.pop())
        elif key == "nested_field_ref":
            path, inside = [], int(value)
        elif key == "field_ref":
            path = [*path, value] if inside else [value]
            inside = max(inside - 1, 0)
            if not inside and ".".join(path) in types:
                names.append(".".join(path) if len(path) == 1 else _NESTED + ".".join(path))
                kinds.append(types[".".join(path)])
        elif key in ("literal", "options"):
            kinds.append(_value_type(batch.column(int(value)).type))
    return calls


def _value_type(kind: pa.DataType) -> pa.DataType:
    """The type of a value, or of the values of a set."""
    if not pa.types.is_struct(kind):
        return kind
    return next((field.type.value_type for field in kind if field.name == "value_set"), pa.null())
