"""The recipe by which rows of files become rows of a dataset: everything between Arrow's decoding and a batch.

In this order: struct fields under flat names, constants of hive partitions, policies for nulls and ragged
rows, decoding of bytes, the cached transform. The results are as the dataset's schema says, or an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, as_ragged, check_names, settle
from hopyard.data.columns.convert import from_values
from hopyard.data.columns.policies import Policies
from hopyard.data.columns.structs import field_of
from hopyard.data.files.hive import constant_array
from hopyard.data.layout import Values
from hopyard.data.ragged import Ragged
from hopyard.data.recipe.arrow_columns import read_column
from hopyard.data.recipe.decoding import Decoder, decode_rows
from hopyard.data.schema import Column, Schema
from hopyard.errors import CorruptError, DataError, HopyardError

Arrays = dict[str, Any]
CachedTransform = Callable[[Arrays], Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """The steps from rows of files to rows of a dataset. Picklable; equal recipes have equal digests.

    Attributes:
        stored: the files' columns, structs as their fields, and the columns of hive partitions.
        schema: the columns that come out; a dataset may have fewer.
        digest: part of cache keys and fingerprints, "" if nothing is changed. It does not cover ``schema``
            (of the same file a column may be lists in one dataset and an array in another) nor constants.
        paths: of columns that are fields of structs, the names that lead to them.
        constants: of columns of hive partitions, the value in each file; None is null.
        filled: columns that may hold nulls, which are filled; nulls in others are errors.
        varied: columns that some files lack, or hold with a narrower dtype.
        policies: masks and padding.
        decoders: of columns of bytes.
        given: the columns that ``transform`` is given; None: ``schema``, as there is no transform.
        transform: of a dict of arrays into one of as many rows.
        kept_digest: as ``digest``, of the recipe without decoders that run for every batch.
        undecoded: columns that come out as they are stored, and their decoders.
    """

    stored: Schema
    schema: Schema
    digest: str = ""
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()
    varied: frozenset[str] = frozenset()
    policies: Policies | None = None
    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    given: Schema | None = None
    transform: CachedTransform | None = None
    kept_digest: str = ""
    undecoded: Mapping[str, Decoder] = field(default_factory=dict)

    @classmethod
    def plain(cls, schema: Schema) -> Recipe:
        """The recipe that changes nothing."""
        return cls(schema, schema)

    def of_files(self, numbers: Sequence[int]) -> Recipe:
        """The recipe for a manifest of only these of the files."""
        if not self.constants:
            return self
        kept = {name: tuple(values[number] for number in numbers) for name, values in self.constants.items()}
        return replace(self, constants=kept)

    def is_plain(self, name: str) -> bool:
        """Whether the dataset's column is the file's column of that name, untouched."""
        return name in self._plain

    @cached_property
    def per_batch(self) -> Mapping[str, Decoder]:
        """Decoders of columns that are kept as they are stored, and decoded for every batch."""
        if self.transform is not None:  # it needs the arrays, and what it makes is cached
            return {}
        return {name: decoder for name, decoder in self.decoders.items() if not decoder.is_cached}

    @cached_property
    def kept(self) -> Recipe:
        """The recipe of the rows as they are kept, in the node cache or in memory: all but what is done for every
        batch."""
        left = self.per_batch
        if not left:
            return self
        schema = Schema(self.stored[each.name] if each.name in left else each for each in self.schema)
        decoders = {name: decoder for name, decoder in self.decoders.items() if name not in left}
        return replace(self, schema=schema, decoders=decoders, digest=self.kept_digest, undecoded=left)

    @cached_property
    def _plain(self) -> frozenset[str]:
        if self.transform is not None:
            return frozenset()
        changed = {*self.paths, *self.constants, *self.filled, *self.varied, *self.decoders}
        stored = {column.name: column for column in self.stored if column.name not in changed}
        return frozenset(
            column.name
            for column in self.schema
            if (its := stored.get(column.name)) is column or its == column
        )

    def needs(self, names: Iterable[str]) -> list[str]:
        """Columns of the file that these columns of the dataset are made of, as ``columns=`` of pyarrow takes
        them: of structs only the fields, dotted."""
        return [name for name in self._origins(names) if name not in self.constants]

    def apply(self, table: pa.Table, names: Sequence[str], file: int, where: str) -> dict[str, Values]:
        """Rows of one row group as these columns of the dataset.

        Args:
            table: the rows wanted, with at least the columns that ``needs(names)`` lists.
            names: of the columns to make.
            file: number of the file in the manifest.
            where: file and row group, for errors.

        Raises:
            DataError: rows are not what the schema says; names the column, what it holds and what was expected.
        """
        origins = self._origins(names)
        columns = {name: self._read(name, table, file, where) for name in origins}
        for name in columns.keys() & self.undecoded.keys():
            _check_not_empty(columns[name], where)
        made = self._settled(columns, where)
        for name in columns.keys() & self.decoders.keys():
            made[name] = self._decode(columns[name], where)
        if self.transform is not None:
            made = self._transform(made, table.num_rows, where)
        return {name: made[name] for name in names}

    def _origins(self, names: Iterable[str]) -> list[str]:
        """The stored columns that these are made of."""
        if self.transform is not None:
            return self.stored.names
        added = self._added
        if not added:
            return list(dict.fromkeys(names))
        return list(dict.fromkeys(name if name in self.stored else added[name] for name in names))

    @property
    def _added(self) -> dict[str, str]:
        """Columns that policies add, and which stored column they come from."""
        return {} if self.policies is None else self.policies.added

    def _read(self, name: str, table: pa.Table, file: int, where: str) -> ColumnData:
        column = self.stored[name]
        if name in self.constants:
            array = constant_array(column, self.constants[name][file], table.num_rows)
        else:
            array = field_of(table, self.paths.get(name, (name,)))
        return read_column(column, array, where, name in self.filled)

    def _settled(self, columns: Mapping[str, ColumnData], where: str) -> dict[str, Values]:
        if self.policies is None:
            return {name: data.values for name, data in columns.items()}
        for name in columns.keys() & self.policies.padded.keys():
            _check_longest(columns[name], self.policies.padded[name], where)
        return self.policies.apply(columns)

    def _decode(self, data: ColumnData, where: str) -> Values:
        assert isinstance(data.values, Ragged)
        column = (self.given or self.schema)[data.name]
        place = f"{where}, column {data.name!r}"
        return decode_rows(data.values, self.decoders[data.name], column, place, data.missing)

    def _transform(self, made: Mapping[str, Values], rows: int, where: str) -> dict[str, Values]:
        assert self.transform is not None
        assert self.given is not None
        given = {column.name: as_batch(column, made[column.name]) for column in self.given}
        after = transformed(self.transform, given, self.schema, rows, where)
        return {name: data.values for name, data in after.items()}


def _check_not_empty(data: ColumnData, where: str) -> None:
    """Refuse rows without a byte, which stand for nulls where decoding is left for later."""
    assert isinstance(data.values, Ragged)
    is_empty = data.values.lengths == 0
    if data.missing is not None:
        is_empty &= ~data.missing
    if is_empty.any():
        raise CorruptError(
            f"{where}, column {data.name!r}, row {int(np.argmax(is_empty))} is empty, which is no image. Remove the "
            "row, or make it null and say nulls='fill' or nulls='mask'."
        )


def _check_longest(data: ColumnData, length: int, where: str) -> None:
    rows = as_ragged(data).values
    longest = int(rows.lengths.max(initial=0)) if isinstance(rows, Ragged) else 0
    if longest > length:
        raise DataError(
            f"{where}: column {data.name!r} holds a row of {longest} values, but the longest had {length} when the "
            "dataset was opened: the file was changed. Open the dataset again."
        )


def as_batch(column: Column, values: Values) -> Any:
    """A column as a batch holds it."""
    return ColumnData(column.name, column.kind, values).as_batch()


def transformed(
    transform: CachedTransform, given: Arrays, schema: Schema | None, rows: int, where: str
) -> dict[str, ColumnData]:
    """Columns that the cached transform makes of some rows, checked; against ``schema`` if that is known already.

    Raises:
        DataError: the transform does not give arrays of as many rows, or gives other columns than before.
    """
    try:
        result = transform(given)
    except HopyardError:
        raise
    except Exception as error:  # the user's
        raise DataError(
            f"{where}: cached_transform failed: {type(error).__name__}: {error}. Mend it, or leave such rows "
            "out with filters=."
        ) from error
    if not isinstance(result, Mapping):
        raise DataError(
            f"{where}: cached_transform gave {type(result).__name__}, but must give a dict of arrays, one a column."
        )
    if schema is not None and list(result) != schema.names:
        raise DataError(
            f"{where}: cached_transform gave the columns {', '.join(map(str, result))}, but before it gave "
            f"{', '.join(schema.names)}. It must always give the same columns in the same order."
        )
    made = {}
    for name in check_names(result):
        try:
            data = from_values(name, result[name])
        except DataError as error:
            raise type(error)(
                f"{where}: cached_transform gave what a dataset cannot hold: {error}"
            ) from error
        if len(data) != rows:
            raise DataError(
                f"{where}: cached_transform gave {len(data)} rows of column {name!r} for {rows} rows. It must work "
                "row by row: filter rows with filters= instead."
            )
        made[name] = _as_before(data, None if schema is None else schema[name], where)
    return made


def _as_before(data: ColumnData, column: Column | None, where: str) -> ColumnData:
    if data.missing is not None:
        raise DataError(
            f"{where}: cached_transform gave {int(data.missing.sum())} nulls in column {data.name!r}. Fill them there."
        )
    if column is None:
        return data
    if column.kind == "ragged" and data.kind == "tensor" and data.column.shape:
        data = as_ragged(data)
    elif column.kind == "tensor" and data.kind == "ragged":
        data = settle(data)
    if data.column != column:
        raise DataError(
            f"{where}: cached_transform gave {data.column}, but for the first rows it gave {column}. It must give "
            "the same dtypes and shapes for all rows."
        )
    return data
