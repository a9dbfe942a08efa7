"""Parquet files without a manifest: it is made in memory, from their footers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from hopyard.data.convert import convert_columns
from hopyard.data.convert_arrow import from_arrow
from hopyard.data.dataset import Dataset
from hopyard.data.decoded import leaves_of, read_as
from hopyard.data.layout import stored_schema
from hopyard.data.manifest import FileEntry, Manifest
from hopyard.data.schema import Column, Schema
from hopyard.data.stored import StoredFile
from hopyard.errors import DataError
from hopyard.objects.digests import digest, digest_json
from hopyard.storage.base import Store


def open_foreign(store: Store | None, names: Sequence[str]) -> Dataset:
    """The dataset that these Parquet files are, one after another.

    Nothing but footers is read (and one row group of columns that hold lists). The fingerprint is
    of the footers and the sizes of the files, wherever they are.

    Args:
        store: holds the files, or None if their names are paths.
        names: of the files, in order.

    Raises:
        DataError: there are no rows, columns differ between files, or there are nulls.
        CorruptError: a file is not a whole Parquet file.
    """
    files = [StoredFile.open(store, name) for name in names]
    if not files:
        raise DataError("A dataset was asked for of an empty list of files. Name at least one Parquet file.")
    entries = [_entry(name, file) for name, file in zip(names, files, strict=True)]
    schema = _schema_of(files)
    fingerprint = digest_json([[entry.digest, entry.size] for entry in entries], "hopyard.parquet-files")
    manifest = Manifest("train", fingerprint, schema, tuple(entries))
    if not manifest.rows:
        raise DataError(f"{_listed(files)}: there are no rows. Give at least one file with rows.")
    return Dataset(store, manifest, prepared=False)


def _entry(name: str, file: StoredFile) -> FileEntry:
    footer = file.footer
    rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    return FileEntry(name, file.size, digest(file.footer_bytes(), "hopyard.parquet-footer"), rows)


def _schema_of(files: Sequence[StoredFile]) -> Schema:
    """The columns that all files have.

    Raises:
        DataError: a file's differ from the first one's; names both and the column.
    """
    first = _columns_of(files[0])
    for file in files[1:]:
        other = _columns_of(file)
        for name in dict.fromkeys([*first, *other]):
            here, there = other.get(name), first.get(name)
            if here is not None and there is not None and _are_lists_of_one_kind(here, there):
                first[name] = replace(here, kind="ragged", shape=_element_shape(here))
            elif here != there:
                raise DataError(
                    f"{file.name}: column {name!r} is {here or 'missing'}, but in {files[0].name} it is "
                    f"{there or 'missing'}. All files of a dataset must have the same columns: leave the file "
                    "out, or write it again."
                )
        if list(other) != list(first):
            raise DataError(
                f"{file.name} has its columns in the order {', '.join(other)}, but {files[0].name} in the order "
                f"{', '.join(first)}. Write the file again."
            )
    return Schema(first.values())


def _are_lists_of_one_kind(here: Column, there: Column) -> bool:
    """Whether rows that are ragged in one file may happen to have one length in the other."""
    return (
        "ragged" in (here.kind, there.kind)
        and here.dtype == there.dtype
        and all(column.kind == "ragged" or column.shape for column in (here, there))
        and _element_shape(here) == _element_shape(there)
    )


def _element_shape(column: Column) -> tuple[int, ...]:
    return column.shape if column.kind == "ragged" else column.shape[1:]


def _columns_of(file: StoredFile) -> dict[str, Column]:
    footer = file.footer
    arrow = footer.schema.to_arrow_schema()
    stored = stored_schema(footer.metadata)
    if stored is not None:
        return {column.name: column for column in stored}
    _refuse_nulls(file, arrow)
    empty = {field.name: pa.array([], field.type) for field in arrow}
    columns = {name: data.column for name, data in convert_columns(empty, from_arrow).items()}
    for name, column in columns.items():
        if column.kind == "ragged":
            columns[name] = _settled(file, column, leaves_of(arrow)[name])
    return columns


def _refuse_nulls(file: StoredFile, arrow: pa.Schema) -> None:
    """The early word on nulls, where the footer counts them; decoding has the last."""
    footer = file.footer
    for name, leaf in leaves_of(arrow).items():
        if pa.types.is_nested(arrow.field(name).type):
            continue
        counted = [footer.row_group(group).column(leaf).statistics for group in range(footer.num_row_groups)]
        nulls = sum(each.null_count for each in counted if each is not None and each.has_null_count)
        if nulls:
            raise DataError(
                f"{file.name}: column {name!r} has {nulls} nulls, which training cannot use. Drop or fill them, or "
                "prepare the data with nulls='fill' or nulls='mask'."
            )


def _settled(file: StoredFile, column: Column, leaf: int) -> Column:
    """A column of lists as a tensor if all lists of the file have one length.

    The footer's counts of values say whether they may; the first row group, whether its lists do.
    """
    footer = file.footer
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    groups = [group for group in groups if group.num_rows]
    lengths = {group.column(leaf).num_values / group.num_rows for group in groups}
    if len(lengths) != 1 or not (length := lengths.pop()).is_integer():
        return column
    tensor = Column(column.name, "tensor", column.dtype, (int(length), *column.shape))
    array = file.parquet().read_row_group(0, columns=[column.name], use_threads=False)[column.name]
    try:
        read_as(tensor, array, file.name)
    except DataError:
        return column
    return tensor


def _listed(files: Sequence[StoredFile]) -> str:
    return ", ".join(file.name for file in files[:3]) + (", ..." if len(files) > 3 else "")
