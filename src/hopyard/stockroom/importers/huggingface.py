"""Datasets as Hugging Face's ``datasets`` saves them (``save_to_disk``), read by pyarrow alone.

A folder holds ``state.json`` (which files), ``dataset_info.json`` (features) and ``data-*.arrow`` (Arrow streams); a
``DatasetDict`` is a folder with ``dataset_dict.json`` and such a folder for each split. Files are mapped; columns are
found out from types, lists also by their lengths.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc

from hopyard.data.columns.columns import as_ragged
from hopyard.data.columns.convert import convert_columns
from hopyard.data.columns.convert_arrow import from_arrow
from hopyard.data.columns.structs import FlatColumn, field_of, flat_columns
from hopyard.data.ragged import Ragged
from hopyard.data.recipe.images import pillow
from hopyard.data.schema import Column
from hopyard.errors import CorruptError, DataError
from hopyard.stockroom.importers.base import ColumnSource, Importer, Option, Samples
from hopyard.stockroom.importers.mapped import refuse_nulls, samples_of
from hopyard.stockroom.importers.parts import describe_files, listed
from hopyard.stockroom.importers.pictures import DECODE, mode_option, picture
from hopyard.stockroom.importers.tables import DECIMALS, refuse_decimals

_LOOKED_AT = 1 << 16  # rows of lists at once


@functools.lru_cache(maxsize=8)
def _tables(files: tuple[str, ...]) -> tuple[list[pa.Table], list[int]]:
    """The mapped tables, and how many rows are before each."""
    tables = [_table(Path(file)) for file in files]
    return tables, list(itertools.accumulate((table.num_rows for table in tables), initial=0))


def _table(path: Path) -> pa.Table:
    try:
        return ipc.open_stream(pa.memory_map(str(path))).read_all()
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there, though state.json names it. Restore it.") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptError(
            f"{path} is no whole Arrow stream: it was truncated or changed ({error}). Restore it."
        ) from error


def _pieces(files: tuple[str, ...], start: int, stop: int) -> Iterator[tuple[pa.Table, str]]:
    """Rows [start, stop), a piece of each file that has some, and the file."""
    tables, before = _tables(files)
    for number in range(max(bisect.bisect_right(before, start) - 1, 0), len(tables)):
        low, high = max(start - before[number], 0), min(stop - before[number], tables[number].num_rows)
        if low < high:
            yield tables[number].slice(low, high - low), files[number]


@dataclass(frozen=True)
class _ArrowColumn:
    """Reads a column, or a field of structs."""

    files: tuple[str, ...]
    path: tuple[str, ...]
    column: Column

    def __call__(self, start: int, stop: int) -> Samples:
        column, first = self.column, start
        rows: list[Any] = []
        arrays: list[npt.NDArray[Any]] = []
        for table, _ in _pieces(self.files, start, stop):
            data = from_arrow(column.name, field_of(table, self.path))
            refuse_nulls(data, first)
            first += table.num_rows
            if column.kind == "tensor":
                assert isinstance(data.values, np.ndarray) or column.shape
                values = data.values.values if isinstance(data.values, Ragged) else data.values
                arrays.append(np.asarray(values).reshape(table.num_rows, *column.shape))
            elif column.kind == "ragged":
                rows += samples_of("tensor", as_ragged(data).values)
            else:
                rows += samples_of(column.kind, data.values)
        if column.kind != "tensor":
            return rows
        return np.concatenate(arrays) if arrays else np.empty((0, *column.shape), column.dtype)


@dataclass(frozen=True)
class _ImageColumn:
    """Reads a feature ``Image``: structs of the bytes of a file, or of its path; ``mode`` None: the bytes."""

    files: tuple[str, ...]
    name: str
    mode: str | None

    def __call__(self, start: int, stop: int) -> Samples:
        encoded: list[bytes] = []
        for table, file in _pieces(self.files, start, stop):
            for row in table[self.name].to_pylist():
                encoded.append(self._encoded(row, file, start + len(encoded)))
        if self.mode is None:
            return encoded
        return [self._decoded(data, start + number) for number, data in enumerate(encoded)]

    def _encoded(self, row: Any, file: str, number: int) -> bytes:
        data, path = (row or {}).get("bytes"), (row or {}).get("path")
        if data is not None:
            return bytes(data)
        if path and Path(path).is_file():
            return Path(path).read_bytes()
        raise DataError(
            f"{file}: row {number} of the image column {self.name!r} has neither bytes nor a file that is there "
            f"(path {path!r}). Restore the file, or save the dataset again with its bytes."
        )

    def _decoded(self, data: bytes, number: int) -> npt.NDArray[Any]:
        try:
            return picture(data, self.mode or "keep")
        except (DataError, CorruptError) as error:
            raise type(error)(f"row {number} of the image column {self.name!r}: {error}") from error


class HuggingFace(Importer):
    """A dataset, or a DatasetDict, that Hugging Face's datasets saved to disk (save_to_disk).

    A column for each, fields of structs under dotted names; images are uint8 height x width x channels, or with
    decode=false the bytes of the files. The split train has plain names, the others theirs before them
    (test-image). The names of classes are in the metadata of the import.
    """

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        return DECODE, mode_option("keep"), DECIMALS

    @functools.cached_property
    def _splits(self) -> dict[str, Path]:
        """Prefix of columns -> folder."""
        assert self.source is not None
        if (self.source / "state.json").is_file():
            return {"": self.source}
        if (self.source / "dataset_dict.json").is_file():
            splits = _json(self.source / "dataset_dict.json").get("splits", [])
            return {"" if split == "train" else f"{split}-": self.source / split for split in splits}
        there = sorted(path.name for path in self.source.iterdir()) if self.source.is_dir() else ["one file"]
        raise DataError(
            f"{self.source} is no dataset that was saved to disk: expected is state.json or dataset_dict.json, but "
            f"there {'is ' + listed(there) if there else 'is nothing'}. Give the folder that save_to_disk wrote."
        )

    @staticmethod
    def _files(folder: Path) -> tuple[str, ...]:
        state = _json(folder / "state.json")
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise DataError(
                f"{folder} is a selection of rows of its files. Write them out with dataset.flatten_indices() and "
                "save_to_disk again."
            )
        files = tuple(str(folder / str(entry["filename"])) for entry in state.get("_data_files", []))
        if not files or not _tables(files)[1][-1]:
            raise DataError(f"{folder} has no rows. Leave the split out, or give one with rows.")
        return files

    @staticmethod
    def _features(folder: Path) -> dict[str, Any]:
        features = _json(folder / "dataset_info.json").get("features")
        return features if isinstance(features, dict) else {}

    def columns(self) -> list[ColumnSource]:
        return [
            replace(column, split=prefix[:-1])
            for prefix, folder in self._splits.items()
            for column in self._columns_of(prefix, folder)
        ]

    def _columns_of(self, prefix: str, folder: Path) -> list[ColumnSource]:
        files, features = self._files(folder), self._features(folder)
        tables, before = _tables(files)
        schema, count = tables[0].schema, before[-1]
        for table, file in zip(tables, files, strict=True):
            if not table.schema.equals(schema):
                raise DataError(f"{file} has other columns than {files[0]}. Save the dataset again.")
        images = [name for name in schema.names if _is_image(features.get(name), schema.field(name).type)]
        columns = {name: self._image_column(prefix + name, name, files, count) for name in images}
        plain = pa.schema([field for field in schema if field.name not in columns])
        flats = flat_columns(plain)
        refuse_decimals({name: flat.type for name, flat in flats.items()}, self.settings["decimals"])
        for flat in flats.values():
            column = _column_of(flat, tables)
            kind = "tensor" if column.kind == "ragged" else column.kind
            shape = None if column.kind == "ragged" else column.shape
            read = _ArrowColumn(files, flat.path, column)
            columns[flat.name] = ColumnSource(prefix + flat.name, count, kind, column.dtype, shape, read)
        order = {name: number for number, name in enumerate(schema.names)}
        return [
            columns[name]
            for name in sorted(columns, key=lambda n: order.get(n, order.get(n.split(".")[0], 0)))
        ]

    def _image_column(self, name: str, stored: str, files: tuple[str, ...], count: int) -> ColumnSource:
        if not self.settings["decode"]:
            return ColumnSource(name, count, "bytes", "object", (), _ImageColumn(files, stored, None))
        pillow()
        read = _ImageColumn(files, stored, self.settings["mode"])
        return ColumnSource(name, count, "tensor", "uint8", None, read)

    def identity(self) -> Mapping[str, Any]:
        splits = []
        for prefix, folder in self._splits.items():
            classes = {
                prefix + name: feature["names"]
                for name, feature in self._features(folder).items()
                if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
            }
            files = describe_files([Path(file) for file in self._files(folder)])
            splits.append({"files": files, "classes": classes})
        return {"splits": splits, **self.settings}


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"There is no {path}. Give the whole folder that save_to_disk wrote.") from error
    except ValueError as error:
        raise CorruptError(f"{path} is no JSON: {error}. Restore it.") from error
    if not isinstance(value, dict):
        raise CorruptError(f"{path} must hold a JSON object. Restore it.")
    return value


def _is_image(feature: Any, kind: pa.DataType) -> bool:
    is_struct = pa.types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} == {
        "bytes",
        "path",
    }
    return isinstance(feature, dict) and feature.get("_type") == "Image" and is_struct


def _column_of(flat: FlatColumn, tables: Sequence[pa.Table]) -> Column:
    """Record of a column, for which no more of the column is read than the lengths of lists and a row.

    Raises:
        DataError: it has nulls, or values that no column can hold.
    """
    first = _described(flat, tables[0].slice(0, 1))
    if not (pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type)):
        return first
    shapes = {
        _described(flat, table.slice(start, _LOOKED_AT))
        for table in tables
        for start in range(0, table.num_rows, _LOOKED_AT)
    }
    if len(shapes) == 1:
        return shapes.pop()
    inner = {c.shape if c.kind == "ragged" else c.shape[1:] for c in shapes if c.kind == "ragged" or c.shape}
    inner -= {()} if len(inner) > 1 else set()  # lists that are all empty say nothing of what is in them
    if len(inner) > 1:
        raise DataError(
            f"Column {flat.name!r} holds lists whose elements differ in shape: {sorted(inner)}. Pad the inner lists."
        )
    return Column(flat.name, "ragged", first.dtype, inner.pop())


def _described(flat: FlatColumn, table: pa.Table) -> Column:
    return convert_columns({flat.name: field_of(table, flat.path)}, from_arrow)[flat.name].column
