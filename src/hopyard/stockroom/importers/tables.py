"""Tables: Parquet and CSV, read by the data layer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData, gather, settle
from hopyard.data.columns.convert import from_rows
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.columns.structs import flat_columns
from hopyard.data.dataset import Dataset
from hopyard.data.files.found import CSV, find_data, find_files, is_any
from hopyard.data.files.listed import open_entry
from hopyard.data.opening.opening import open_dataset
from hopyard.data.ragged import Ragged
from hopyard.data.sources.csv_files import delimiter_in, read_csv_files, types_in
from hopyard.errors import DataError, NullsError, UnsupportedTypeError, UsageError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Option, Samples
from hopyard.stockroom.importers.mapped import samples_of, save_column
from hopyard.stockroom.importers.parts import describe_files, listed
from hopyard.stockroom.maps import check_key
from hopyard.wording import counted, nearest

_KEY = Option(
    "key",
    "",
    "the column whose values are the keys of all others, and which is no column itself; none: rows count",
)
_COLUMNS = Option("columns", "", "names of those to import, as image,label; none: all")
_PREFIX = Option("prefix", "", "put before the names of columns, as test- for those of a test set")


DECIMALS = Option(
    "decimals",
    "error",
    "of columns of decimals: error, as columns store none; float: the float64 nearest to each",
    ("error", "float"),
)


def refuse_decimals(types: Mapping[str, pa.DataType], policy: str) -> None:
    """See that no value is changed unless the option ``decimals`` says so.

    Args:
        types: of the columns that are imported, by name.
        policy: the option's value.

    Raises:
        UnsupportedTypeError: some are of decimals; names them.
    """
    found = [f"{name!r} ({kind})" for name, kind in types.items() if _has_decimals(kind)]
    if found and policy == "error":
        raise UnsupportedTypeError(
            f"columns store no decimals, but these hold some: {', '.join(found[:5])}"
            f"{f' and {len(found) - 5} more' if len(found) > 5 else ''}. Import the float64 nearest to each: --option "
            "decimals=float on the command line, options={'decimals': 'float'} in Python; or cast them in the source: "
            "to text, which keeps each digit, or to whole numbers of the smallest unit (cents)."
        )


def _has_decimals(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        inner.append(kind.value_type)
    return pa.types.is_decimal(kind) or any(map(_has_decimals, inner))


@dataclass(frozen=True)
class _DatasetColumn:
    """Reads a column of a dataset; it has the files open and a row group decoded, once in a process."""

    dataset: Dataset
    name: str

    def __call__(self, start: int, stop: int) -> Samples:
        kind = self.dataset.schema[self.name].kind
        try:
            rows = self.dataset.take(np.arange(start, stop), {self.name: self.name})[self.name]
        except NullsError as error:
            raise _without_policy(error) from error
        return samples_of("tensor" if kind == "ragged" else kind, rows)


class Parquet(Importer):
    """Parquet: a file, or a folder of files (also with folders key=value, and as Hopyard prepared it).

    A column for each, fields of structs under dotted names, as the data layer reads them: tensors that Hopyard wrote,
    numbers, texts, bytes; lists are arrays, of one shape or of different lengths; times are int64 nanoseconds.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        text = "of rows that are null: error; fill: 0, '' or no values; mask: filled, and a bool column <name>_mask"
        return (Option("nulls", "error", text, ("error", "fill", "mask")), DECIMALS, _KEY, _COLUMNS, _PREFIX)

    @functools.cached_property
    def _dataset(self) -> Dataset:
        assert self.source is not None
        try:
            return open_dataset(self.source, nulls=self.settings["nulls"], cache=False)
        except NullsError as error:
            raise _without_policy(error) from error

    def columns(self) -> list[ColumnSource]:
        columns = []
        for column in self._dataset.schema:
            kind = "tensor" if column.kind == "ragged" else column.kind
            shape = None if column.kind == "ragged" else column.shape
            read = _DatasetColumn(self._dataset, column.name)
            columns.append(ColumnSource(column.name, len(self._dataset), kind, column.dtype, shape, read))
        key, prefix = self.settings["key"], self.settings["prefix"]
        names = [column.name for column in columns]
        chosen = _chosen(names, self.settings["columns"], key)
        refuse_decimals(
            {name: kind for name, kind in self._stored_types().items() if name in [*chosen, key]},
            self.settings["decimals"],
        )
        keys = self._keys(key, names) if key else None
        return [
            replace(column, name=prefix + column.name, keys=keys)
            for column in columns
            if column.name in chosen or column.name.removesuffix("_mask") in chosen
        ]

    def _stored_types(self) -> dict[str, pa.DataType]:
        """The types that the files say, which the dataset may convert."""
        types: dict[str, pa.DataType] = {}
        for entry in self._dataset.manifest.files:
            footer = open_entry(self._dataset.store, entry).footer
            for name, flat in flat_columns(footer.schema.to_arrow_schema()).items():
                if name not in types or not _has_decimals(types[name]):
                    types[name] = flat.type
        return types

    def _keys(self, name: str, names: list[str]) -> _Keys:
        """The keys of all columns; none is filled, whatever the policy for nulls."""
        assert self.source is not None
        _check_key_name(name, names)
        try:
            dataset = open_dataset(self.source, columns=[name], cache=False)
            read = _DatasetColumn(dataset, name)(0, len(dataset))
        except NullsError as error:
            raise DataError(
                f"the column {name!r}, which shall have the keys, lacks some: {error.found}. Fill them in the file, or "
                f"import without key={name}."
            ) from error
        data = from_rows(name, read) if isinstance(read, list) else ColumnData(name, "tensor", read)
        _check_keys(data)
        return _Keys(save_column(data, self.scratch, 0))

    def identity(self) -> Mapping[str, Any]:
        files = self._dataset.manifest.files
        return {
            "fingerprint": self._dataset.fingerprint,
            "files": [
                {"name": f.name.rpartition("/")[2], "bytes": f.size, "digest": f.digest} for f in files
            ],
            **self.settings,
        }


def _without_policy(error: NullsError) -> DataError:
    """An error about nulls that advises the options of an import."""
    return DataError(
        f"{error.found}; samples cannot be null. Import with the option nulls=fill (0, False or an empty text "
        "instead) or nulls=mask (filled, and a column <name>_mask that is True there): --option nulls=fill on the "
        "command line, options={'nulls': 'fill'} in Python; or drop those rows or the column."
    )


@dataclass(frozen=True)
class _Keys:
    """Reads a column as the keys of others."""

    source: ColumnSource

    def __call__(self, start: int, stop: int) -> list[int | str]:
        read = self.source.read(start, stop)
        return read.tolist() if isinstance(read, np.ndarray) else list(read)  # type: ignore[arg-type]


class Csv(Importer):
    """CSV or TSV, also .gz: a file, or a folder of files with the same columns. The first line names the columns.

    Numbers are int64 or float64, true and false bool, dates and timestamps int64 nanoseconds, all else texts. A column
    is of numbers only if each of its texts is the usual writing of that number: columns with leading zeros (007), a
    plus, hexadecimals, times of day, or whole numbers that int64, or float64 beside fractions, does not hold stay
    texts. A value is missing where nothing stands; of texts "" in quotes is the empty one. It is read as a whole; row n
    is sample n, from 0, unless ``key`` names the column that has the keys: whole numbers or texts, each once.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        text = "of columns, as id=text,n=float32; others are found out. Types: text, bool, and NumPy's of numbers"
        nulls = (
            "of missing values: error; nan: NaN, which makes whole numbers float64, and empty texts; fill: 0, "
            "false or an empty text; mask: filled, and a bool column <name>_mask"
        )
        delimiter = "one character between columns, or tab; none: a tab in files .tsv, else a comma"
        return (
            Option("types", "", text),
            Option("nulls", "error", nulls, ("error", "nan", "fill", "mask")),
            Option("delimiter", "", delimiter),
            _KEY,
            _COLUMNS,
            _PREFIX,
        )

    def columns(self) -> list[ColumnSource]:
        assert self.source is not None
        other = [path for path in find_files(self.source) if not is_any(path, CSV)]
        if other:
            raise DataError(
                f"{listed([str(path) for path in other])} is no {' or '.join(CSV)} file. Use another importer "
                "(parquet), or rename the file."
            )
        key, prefix = self.settings["key"], self.settings["prefix"]
        table = read_csv_files(
            find_data(self.source), types_in(self.settings["types"]), delimiter_in(self.settings["delimiter"])
        )
        if key:
            _check_key_name(key, table.schema.names)
        chosen = _chosen(table.schema.names, self.settings["columns"], key)
        found = _converted(table, [*chosen, key] if key else chosen)
        keys = found.pop(key) if key else None
        filled = _without_nulls(list(found.values()), self.settings["nulls"])
        source = None
        if keys is not None:  # in the order of the keys, as samples are stored
            order = _check_keys(keys)
            source = _Keys(save_column(_reordered(keys, order), self.scratch, len(filled)))
            filled = [_reordered(data, order) for data in filled]
        saved = [save_column(data, self.scratch, number) for number, data in enumerate(filled)]
        return [replace(column, name=prefix + column.name, keys=source) for column in saved]

    def identity(self) -> Mapping[str, Any]:
        assert self.source is not None
        return {"files": describe_files(find_files(self.source)), **self.settings}


def _converted(table: pa.Table, names: list[str]) -> dict[str, ColumnData]:
    """Some columns of the table of a CSV file."""
    found, refused = {}, []
    for name in names:
        try:
            found[name] = settle(from_arrow(name, table.column(name)))
        except UnsupportedTypeError as error:
            refused.append(str(error))
    if refused:
        raise DataError(
            f"These columns hold what a column of a stockroom cannot: {'; '.join(refused)}. Import them as texts "
            "(types=NAME=text, or types=NAME=float32 for a column that lacks all values, with nulls=nan), or name the "
            "others (columns=NAME,NAME)."
        )
    return found


def _reordered(data: ColumnData, order: npt.NDArray[np.int64]) -> ColumnData:
    return replace(data, values=gather(data.values, order))


def _chosen(names: list[str], given: str, key: str) -> list[str]:
    """The columns that are imported, without that of the keys.

    Raises:
        UsageError: one that was named is not there, or none is left.
    """
    wanted = [name.strip() for name in given.split(",") if name.strip()] or names
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"columns={given!r} names {name!r}, which is no column{nearest(name, names, '.')} The columns are "
                f"{', '.join(names)}."
            )
    chosen = [name for name in names if name in wanted and name != key]
    if not chosen:
        raise UsageError(f"columns={given!r} leaves no column beside that of the keys. Name another.")
    return chosen


def _check_key_name(name: str, names: list[str]) -> None:
    if name not in names or len(names) == 1:
        wrong = "is the only one" if name in names else f"is none of them{nearest(name, names, '.')}"
        raise UsageError(
            f"key={name!r} shall name the column that has the keys of the others, but {wrong}. The columns are "
            f"{', '.join(names)}."
        )


def _check_keys(data: ColumnData) -> npt.NDArray[np.int64]:
    """The order of the rows by their keys.

    Raises:
        UsageError, DataError: they cannot be keys.
    """
    name = data.name
    is_text = data.kind == "string"
    kinds = data.values.dtype.kind if isinstance(data.values, np.ndarray) and data.values.ndim == 1 else ""
    if not is_text and kinds not in ("i", "u"):
        raise DataError(
            f"the column {name!r}, which shall have the keys, is {data.column.dtype}, but keys are whole numbers or "
            f"texts. Read it as text, types={name}=text, or name another column."
        )
    missing = data.missing
    if isinstance(data.values, Ragged):  # an empty text is what a file has where a key is missing
        empty = data.values.lengths == 0
        missing = empty if missing is None else missing | empty
    if missing is not None and missing.any():
        rows = np.flatnonzero(missing)
        raise DataError(
            f"the column {name!r}, which shall have the keys, lacks {counted(len(rows), 'value')}, the first in row "
            f"{rows[0]}. Fill them in the file, or import without key={name}."
        )
    every = data.as_batch()
    assert isinstance(every, np.ndarray)
    order = np.argsort(every, kind="stable")
    ordered = every[order]
    for key in ordered[-1:]:
        check_key(key)  # the largest
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(same):
        at = same[np.argmin(order[same + 1])]
        raise DataError(
            f"the column {name!r}, which shall have the keys, has {counted(len(same), 'key')} more than once, the "
            f"first is {ordered[at : at + 1].tolist()[0]!r} in the rows {order[at]} and {order[at + 1]}. Name a column "
            f"whose values differ, or import without key={name}: rows are then numbered from 0."
        )
    return order.astype(np.int64, copy=False)


def _without_nulls(columns: list[ColumnData], policy: str) -> list[ColumnData]:
    """The columns as a policy for missing values has them.

    Raises:
        DataError: the policy does not apply to some, all of which are named.
    """
    filled, refused = [], []
    names = {data.name for data in columns}
    for data in columns:
        if data.missing is None:
            filled.append(data)
        elif policy == "nan" and _holds_nan(data):
            assert isinstance(data.values, np.ndarray)
            values = data.values.astype(data.values.dtype if data.values.dtype.kind == "f" else np.float64)
            values[data.missing] = np.nan
            filled.append(replace(data, values=values, missing=None))
        elif (
            policy == "fill"
            or (policy == "nan" and data.kind == "string")
            or (policy == "mask" and f"{data.name}_mask" not in names)
        ):
            filled.append(replace(data, missing=None))
            filled += [ColumnData(f"{data.name}_mask", "tensor", data.missing)] if policy == "mask" else []
        else:
            rows = np.flatnonzero(data.missing)
            refused.append(f"{data.name!r} ({counted(len(rows), 'value')}, the first in row {rows[0]})")
    if refused:
        why = {
            "nan": ", and nulls=nan does not serve bools, nor whole numbers beyond 2**53, which float64 changes",
            "mask": ", and nulls=mask needs a name <name>_mask that no other column has",
        }
        ways = {
            "nan": "nulls=nan (NaN, and empty texts; whole numbers become float64; not for bools, nor beyond 2**53)",
            "fill": "nulls=fill (0, false or an empty text)",
            "mask": "nulls=mask (filled, and a column <name>_mask that is True there)",
        }
        others = [text for name, text in ways.items() if name != policy]
        first = next(name for name in ways if name != policy)
        raise DataError(
            f"values are missing in {counted(len(refused), 'column')}: {', '.join(refused)}; samples cannot be "
            f"null{why.get(policy, '')}. Import with {', '.join(others[:-1])} or {others[-1]}: --option nulls={first} "
            f"on the command line, options={{'nulls': {first!r}}} in Python."
        )
    return filled


def _holds_nan(data: ColumnData) -> bool:
    """Whether the numbers of a column are the same as floats."""
    values = data.values
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
        return False
    return values.dtype.kind == "f" or not bool(((values > 1 << 53) | (values < -(1 << 53))).any())
