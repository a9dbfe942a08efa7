"""CSV files, read as a whole: types that are found out change no value, and row n is row n of the file.

A column is of numbers only if every text of it is the usual writing of the number it becomes. So names in digits (007,
+49170, 0x1F), whole numbers of more digits than their type holds, and times of day stay texts, in all files.

Where nothing stands between two delimiters a value is missing, in columns of any type. Two quotes in a column of
texts are the empty text. Numbers, bools and times are also missing where ``NA``, ``null`` or the like stands, which are
texts in a column of texts.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from hopyard.data.columns.columns import check_names
from hopyard.data.files.found import FoundFile
from hopyard.data.schema import TENSOR_DTYPES
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.storage.oserrors import read_error
from hopyard.wording import nearest

_OTHERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_BLOCK = 1 << 20  # bytes
_EXACT = 1 << 53  # whole numbers up to this are the same as float64
_WHOLE = r"^\s*(0|-?[1-9][0-9]*)\s*$"
_FLOAT = (
    r"^\s*-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
    r"|^\s*-?(?i:inf|infinity|nan)\s*$"
)
_TYPES = {"text": pa.string()} | {
    name: pa.type_for_alias(name)
    for name in TENSOR_DTYPES
    if name != "float16"  # Arrow reads none from CSV
}
_IN_COLUMN = re.compile(r"In CSV column #(\d+): (.*)", re.DOTALL)  # what Arrow says of a value
_BOOL = r"^(true|True|TRUE|false|False|FALSE)$"


def types_in(given: str) -> dict[str, pa.DataType]:
    """Arrow's types of columns from a text such as ``id=text,n=float32``."""
    types = {}
    for each in filter(None, given.split(",")):
        name, sign, kind = each.rpartition("=")
        if not sign or kind.strip() not in _TYPES:
            raise UsageError(
                f"types={given!r} has the part {each!r}, but each is COLUMN=TYPE with one of the types "
                f"{', '.join(_TYPES)}: types=id=text,weight=float32"
            )
        types[name.strip()] = _TYPES[kind.strip()]
    return types


def types_of(given: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Arrow's types of columns from ``{"id": "text", "n": np.float32}``: names, or types of Python, NumPy or Arrow."""
    if not isinstance(given, Mapping):
        raise UsageError(
            f"types={given!r} must be a dict of columns: types={{'id': 'text', 'weight': 'float32'}}."
        )
    return {name: _type_of(name, kind) for name, kind in given.items()}


def _type_of(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType) and not pa.types.is_nested(kind):
        return kind
    if kind is str or kind in ("string", "str"):
        return pa.string()
    with contextlib.suppress(TypeError):
        known = kind if isinstance(kind, str) and kind in _TYPES else np.dtype(kind).name
        if kind is not None and known in _TYPES:
            return _TYPES[known]
    raise UsageError(
        f"types={{{name!r}: {kind!r}}} is no type of a column of CSV{nearest(str(kind), _TYPES, '.')} Types are "
        f"{', '.join(_TYPES)}; str, int, float and bool; and those of Arrow that are not nested: "
        "types={'id': 'text', 'weight': 'float32'}."
    )


def delimiter_in(given: str) -> str:
    """The character between columns; '' if none is given."""
    found = "\t" if given.lower() in ("tab", "\\t") else given
    if found and (len(found) > 1 or not found.isascii() or found in '"\r\n'):
        raise UsageError(
            f"delimiter={given!r} must be one character of ASCII that is no quote and ends no line, or the word tab: "
            "delimiter=;"
        )
    return found


def read_csv_files(
    files: Sequence[FoundFile], types: Mapping[str, pa.DataType] = {}, delimiter: str = ""
) -> pa.Table:
    """The rows of CSV files, one after another.

    Args:
        files: with the same columns.
        types: of columns that are not to be found out.
        delimiter: between columns; '': a tab in files .tsv, else a comma.

    Raises:
        DataError: a file cannot be read, holds other columns than the first, or a line that is no row.
        ColumnError: ``types`` names a column that is not there.
    """
    opened = [_CsvFile(file, delimiter) for file in files]
    for each in opened:
        if unknown := [name for name in types if name not in each.names]:
            raise ColumnError(
                f"{each.file} has no column {unknown[0]!r}{nearest(unknown[0], each.names, '.')} Its columns are "
                f"{', '.join(each.names)}."
            )
    check_same_columns(files, [each.names for each in opened])
    tables = [each.table(types) for each in opened]
    texts = {
        name for each, table in zip(opened, tables, strict=True) for name in each.changed(table, types)
    } | _mixed(tables)
    if texts:  # in all files, so that a column is one thing
        types = {**types, **dict.fromkeys(texts, pa.string())}
        tables = [each.table(types) for each in opened]
    for each, table in zip(opened, tables, strict=True):
        each.check(table)
    tables = [each.with_missing_texts(table) for each, table in zip(opened, tables, strict=True)]
    table = pa.concat_tables(tables, promote_options="permissive")
    if not len(table):
        names = ", ".join(map(str, files))
        raise DataError(
            f"{names}: there are names of columns, but no rows. Give at least one file with rows."
        )
    return table


def check_same_columns(files: Sequence[object], names: Sequence[Sequence[str]]) -> None:
    """Raise DataError unless all files have the columns of the first."""
    for file, its in zip(files, names, strict=True):
        if list(its) != list(names[0]):
            raise DataError(
                f"{file} has the columns {', '.join(its)}, but {files[0]} has {', '.join(names[0])}. "
                "Give files with the same columns in the same order."
            )


def _mixed(tables: Sequence[pa.Table]) -> set[str]:
    """Columns that would be of one type in one file and of another in the next, which changes values."""
    mixed = set()
    for name in tables[0].schema.names:
        columns = [table.column(name) for table in tables]
        kinds = {column.type for column in columns if not pa.types.is_null(column.type)}
        if len(kinds) < 2:
            continue
        is_exact = kinds <= {pa.int64(), pa.float64()} and all(
            _is_exact(column) for column in columns if pa.types.is_int64(column.type)
        )
        if not is_exact and not all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in kinds):
            mixed.add(name)
    return mixed


def _is_exact(column: pa.ChunkedArray) -> bool:
    """Whether float64 holds these whole numbers exactly."""
    ends = pc.min_max(column)
    return ends["min"].as_py() is None or max(-ends["min"].as_py(), ends["max"].as_py()) <= _EXACT


class _CsvFile:
    """One file.

    Attributes:
        file: where it is.
        names: of the columns, without blanks around them.
        delimiter: between columns.

    Raises:
        DataError: its first line does not name columns.
    """

    def __init__(self, file: FoundFile, delimiter: str) -> None:
        self.file = file
        self.delimiter = delimiter or ("\t" if file.name.lower().endswith((".tsv", ".tsv.gz")) else ",")
        with self._stream() as stream:
            begin = self._block(stream)
        text = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode(begin)
        lines = text.lstrip("\r\n")
        self._blank = len(text[: len(text) - len(lines)].replace("\r\n", "\n"))
        try:
            header = next(csv.reader(io.StringIO(lines, newline=""), delimiter=self.delimiter), None)
        except csv.Error as error:
            raise self._unreadable(error) from error
        if not header:
            raise self._unreadable("Empty CSV file")
        self.names = [name.strip() for name in header]
        try:
            "".join(self.names).encode()
        except UnicodeEncodeError as error:
            raise self._not_utf8("the first line, which names the columns") from error
        try:
            check_names(self.names)
        except DataError as error:
            raise DataError(f"{file}, whose first line names the columns: {error}") from error
        if len(self.names) == 1 and not delimiter:
            self._check_delimiter()

    def _check_delimiter(self) -> None:
        for other, called in _OTHERS.items():
            if other != self.delimiter and other in self.names[0]:
                raise DataError(
                    f"{self.file} was read with a {_OTHERS[self.delimiter]} between columns, and so has one, "
                    f"{self.names[0]!r}, whose name has a {called} in it. If {called}s are between the columns, say so "
                    f"(--option delimiter={'tab' if other == chr(9) else repr(other)} of an import; otherwise give "
                    f"as_source(path, delimiter={other!r}) instead of the path). If it is one column, rename it, or "
                    "give the delimiter that it was read with."
                )

    def _stream(self) -> pa.NativeFile:
        file = self.file
        source = file.name if file.store is None else pa.BufferReader(file.store.get(file.name))
        try:
            return pa.input_stream(source, compression="gzip" if file.name.lower().endswith(".gz") else None)
        except OSError as error:
            raise read_error(str(file), error) from error

    def _block(self, stream: pa.NativeFile) -> bytes:
        try:
            return stream.read(_BLOCK)  # type: ignore[no-any-return]
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, why: object) -> DataError:
        return DataError(f"{self.file} cannot be read as CSV: {why}. Correct the file.")

    def _not_utf8(self, where: str) -> DataError:
        return DataError(
            f"{self.file}, {where}: its text is not UTF-8. Save the file as UTF-8, or read it with pandas "
            "(encoding=...) and give the frame."
        )

    def table(
        self,
        types: Mapping[str, pa.DataType],
        columns: Sequence[str] | None = None,
        missing_texts: Sequence[str] = (),
    ) -> pa.Table:
        """The rows of the file, or some of its columns.

        Args:
            missing_texts: texts that stand, without quotes, for a missing value in all columns, also in columns of
                texts; none: in columns of texts nothing is missing.

        Raises:
            DataError: it cannot be read; names the line, if a blank line is the cause.
        """
        parse = pyarrow.csv.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=len(self.names) > 1,  # else a blank line is a row whose value is missing
        )
        read = pyarrow.csv.ReadOptions(
            column_names=self.names, skip_rows=self._blank, skip_rows_after_names=1
        )
        convert = pyarrow.csv.ConvertOptions(column_types=dict(types), include_columns=columns)
        if missing_texts:
            convert.null_values, convert.strings_can_be_null = list(missing_texts), True
            convert.quoted_strings_can_be_null = False
        try:
            with self._stream() as stream:
                return pyarrow.csv.read_csv(
                    stream, read_options=read, parse_options=parse, convert_options=convert
                )
        except (pa.ArrowInvalid, OSError) as error:
            if found := _IN_COLUMN.match(str(error)):
                name = list(columns or self.names)[int(found[1])]
                kind = types.get(name)
                given = "" if kind is None else f", as which types={name}={kind} reads it"
                raise DataError(
                    f"{self.file}, column {name!r}: {found[2].strip()}{given}. Correct the file, or read the column "
                    f"as text: as_source(path, types={{{name!r}: 'text'}}) instead of the path, or, of an import, "
                    f"types={name}=text"
                ) from error
            raise self._unreadable(error) from error

    def with_missing_texts(self, table: pa.Table) -> pa.Table:
        """The table with null instead of "" where nothing stands in a column of texts."""
        texts = [field.name for field in table.schema if _is_text(field.type)]
        texts = [name for name in texts if pc.any(pc.equal(table.column(name), "")).as_py()]
        if not texts:
            return table
        types = {name: table.schema.field(name).type for name in texts}
        found = self.table(types, texts, [""])
        for name in texts:
            table = table.set_column(table.schema.get_field_index(name), name, found.column(name))
        return table

    def check(self, table: pa.Table) -> None:
        """Raise DataError if the table that was read has not the texts, or not the rows, of the file."""
        if other := [field.name for field in table.schema if pa.types.is_binary(field.type)]:
            raise self._not_utf8(f"column {other[0]!r}")
        if len(self.names) > 1 and self._contains(_has_blank_line):
            self._check_lines()

    def _check_lines(self) -> None:
        """Raise DataError if a line between others is blank: all rows behind it would be shifted."""
        blank = 0
        limit = csv.field_size_limit(1 << 62)
        try:
            with self._stream() as stream:
                lines = io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="")
                rows = csv.reader(lines, delimiter=self.delimiter)
                for number, row in enumerate(rows):
                    if not row and number >= self._blank:
                        blank = blank or rows.line_num
                    elif blank:
                        raise DataError(
                            f"{self.file}: line {blank} is blank, and rows follow it. A row of {len(self.names)} "
                            f"columns that lacks all values is {self.delimiter * (len(self.names) - 1)!r}. Write it "
                            "so, or delete the line."
                        )
        finally:
            csv.field_size_limit(limit)

    def changed(self, table: pa.Table, types: Mapping[str, pa.DataType]) -> list[str]:
        """Columns whose type was found out, but whose values are other than the texts of the file."""
        found = [field for field in table.schema if field.name not in types]
        changed = [field.name for field in found if pa.types.is_time(field.type)]
        doubted = [field.name for field in found if pa.types.is_boolean(field.type)]
        numbers = [
            field.name for field in found if pa.types.is_int64(field.type) or pa.types.is_float64(field.type)
        ]
        if numbers and self._contains(_odd_numbers(self.delimiter).search):
            doubted += numbers
        else:
            doubted += [name for name in numbers if _has_infinite(table.column(name))]
        if not doubted:
            return changed
        usual = pyarrow.csv.ConvertOptions().null_values
        texts = self.table(dict.fromkeys(doubted, pa.string()), doubted, usual)
        for name in doubted:
            kind, text = table.schema.field(name).type, texts.column(name)
            if pa.types.is_float64(kind):
                kept = _are_kept(text, _FLOAT) and _keeps_digits(text, table.column(name))
            else:
                kept = _are_kept(text, _BOOL if pa.types.is_boolean(kind) else _WHOLE)
            if not kept:
                changed.append(name)
        return changed

    def _contains(self, search: Callable[[bytes], object]) -> bool:
        """Whether the search finds something in the file's bytes: much faster than reading columns again."""
        end = b"\n"
        with self._stream() as stream:
            while block := self._block(stream):
                if search(end + block):
                    return True
                end = (end + block)[-24:]
        return False


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _has_blank_line(block: bytes) -> bool:
    return b"\n\n" in block or b"\n\r\n" in block or b"\r\r" in block


def _odd_numbers(delimiter: str) -> re.Pattern[bytes]:
    """Matches the bytes of every text that is read as a number, but may not be the usual writing of that number."""
    before = re.escape(f'\n\r\t" {delimiter}'.encode())
    return re.compile(rb"[" + before + rb"](?:\+|-?(?:0[0-9xX]|[0-9]{16})|-0(?![0-9.eE]))")


def _are_kept(texts: pa.ChunkedArray, usual: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, usual)).as_py() is not False


def _has_infinite(numbers: pa.ChunkedArray) -> bool:
    return pa.types.is_float64(numbers.type) and pc.any(pc.is_inf(numbers)).as_py() is True


def _keeps_digits(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> bool:
    """Whether float64 holds all whole numbers exactly, and no number has become infinite."""
    values = numbers.to_numpy()
    large = np.flatnonzero(np.abs(values) >= _EXACT)
    if not len(large):
        return True
    some = texts.take(pa.array(large))
    infinite = np.isinf(values[large])
    is_whole = pc.match_substring_regex(some, r"^\s*-?[0-9]+\s*$").to_numpy(zero_copy_only=False)
    has_digits = pc.match_substring_regex(some, "[0-9]").to_numpy(zero_copy_only=False)
    if (infinite & has_digits).any():
        return False
    return all(abs(int(text)) <= _EXACT for text in some.filter(pa.array(is_whole)).to_pylist())
