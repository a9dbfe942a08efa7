"""Parquet files as they are: which columns they hold, from their footers."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.convert import convert_columns
from hopyard.data.columns.convert_arrow import from_arrow, is_list, is_unknown
from hopyard.data.columns.structs import FlatColumn, field_of, flat_columns
from hopyard.data.dataset import Dataset, Skipped
from hopyard.data.files.hive import check_own, constant_column, hive_columns
from hopyard.data.files.listed import open_entry
from hopyard.data.files.parallel import of_each, on_all_cores
from hopyard.data.files.stored import StoredFile
from hopyard.data.layout import METADATA_KEY, stored_schema
from hopyard.data.manifest import Fingerprint, ForeignEntry, Manifest
from hopyard.data.opening.survey import Scan, Selection, is_any_list
from hopyard.data.reading.reader import unpack
from hopyard.data.recipe.arrow_columns import read_column, wider
from hopyard.data.schema import Column, Schema, unknown_columns
from hopyard.errors import CorruptError, DataError, UnsupportedTypeError
from hopyard.objects.digests import digest_json
from hopyard.storage.base import Store
from hopyard.wording import some_names

_ROWS_OF_A_SAMPLE = 1024
_ENCODED_ROWS_OF_A_SAMPLE = 16


@dataclass(frozen=True)
class ForeignFiles:
    """The Parquet files of one dataset and their columns.

    Attributes:
        store: holds the files, or None if their names are paths.
        manifest: of them; its schema is that of the files, with partitions' columns and fields of structs.
        scan: of the files, for facts that footers do not tell.
        flats: of each file, its columns as Arrow has them.
        fingerprint: of all rows; the manifest's, where it has one.
        constants: of columns of partitions, the value in each file.
        prepared: whether ``prepare`` wrote them.
        varied: columns that some files lack, or hold with a narrower dtype.
    """

    store: Store | None
    manifest: Manifest
    scan: Scan
    flats: Sequence[Mapping[str, FlatColumn]]
    fingerprint: str | Fingerprint
    constants: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    prepared: bool = False
    varied: frozenset[str] = frozenset()

    @property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """Paths of the columns that are fields of structs: the names that lead to them."""
        return {column.name: column.path for column in self.flats[0].values() if len(column.path) > 1}


@dataclass(frozen=True)
class Differences:
    """Differences that are allowed between files.

    Attributes:
        missing: ``"error"``: no file may lack a column of another; ``"null"``: it is null there.
        widen: numbers of a narrower dtype become those of the wider one.
    """

    missing: str = "error"
    widen: bool = False


def foreign_files(
    store: Store | None,
    names: Sequence[str],
    relative: Sequence[str],
    skip: bool = False,
    columns: Sequence[str] | None = None,
    differences: Differences = Differences(),
) -> ForeignFiles:
    """Parquet files without a manifest: it is made here, one file after another.

    Nothing but footers is read (and some rows of columns that hold lists). The fingerprint is of the content of the
    files, wherever they are, and of the names of their partitions: files of this machine are read when it is first
    asked for, once as long as nobody touches them.

    Args:
        store: holds the files, or None if their names are paths.
        names: of the files, in order.
        relative: their names relative to the dataset's directory, for partitions.
        skip: leave out files and row groups that cannot be read.
        columns: the wanted columns of the dataset; None: all. Other columns are not looked at.
        differences: allowed between the files.

    Raises:
        DataError: there are no rows, or columns differ between files.
        CorruptError: a file is not a whole Parquet file.
    """
    files, kept, broken = _opened(store, names, skip)
    if not files:
        raise DataError(
            "A dataset was asked for of an empty list of files. Name at least one Parquet file."
            if not broken
            else f"None of the {len(broken)} files is a whole Parquet file; the first: {broken[0].reason}"
        )
    scan = Scan(files, skip)
    scan.skipped += broken
    if not sum(file.footer.num_rows for file in files):
        raise DataError(f"{_listed(files)}: there are no rows. Give at least one file with rows.")
    constants = hive_columns([relative[number] for number in kept])
    described = _described(scan, columns, constants, differences.missing == "null")
    own = {name for name in constants for each in described if name in each.flats}
    for name in own:
        check_own(
            name, files, [relative[number] for number in kept], [each.flats for each in described],
            scan.read_whole,
        )  # fmt: skip
    common = _common(files, [each.columns for each in described], differences, own)
    _check_dtypes(files, described, common)
    flats = _completed([each.flats for each in described], common)
    varied = frozenset(
        name
        for each in {id(each.columns): each for each in described}.values()
        for name, column in common.items()
        if _varies(column, each.columns.get(name))
    )
    for name in own:
        del constants[name]
    for name, values in constants.items():
        if columns is None or name in _origins(columns):
            common[name] = constant_column(name, values)
    chosen = None if {*flats[0], *constants} == common.keys() else sorted(common)
    found = [(names[number], file) for number, file in zip(kept, files, strict=True)]
    entries = of_each(store, names, found, lambda pair: _entry(*pair))
    manifest = Manifest("train", "", Schema(common.values()), tuple(entries))
    fingerprint = Fingerprint(partial(_fingerprint, entries, dict(constants), chosen))
    return ForeignFiles(store, manifest, scan, flats, fingerprint, constants, varied=varied)


def _check_dtypes(
    files: Sequence[StoredFile], described: Sequence[_Described], common: Mapping[str, Column]
) -> None:
    """Raise DataError if a file holds arrays as bytes of a narrower dtype than the dataset's."""
    different = {id(each.columns): (file, each) for file, each in zip(files, described, strict=True)}
    for file, each in different.values():
        for name, its in each.columns.items():
            if its is not None and its.dtype != common[name].dtype and _is_binary(each.flats[name].type):
                raise DataError(
                    f"{file.name}: column {name!r} is {its}, but {common[name].dtype} in other files, and widen=True "
                    "is not for arrays that Hopyard has stored as bytes. Leave the column out with columns=[...], or "
                    "write the file again."
                )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _varies(column: Column, its: Column | None) -> bool:
    return its is None or its.dtype != column.dtype


def _completed(
    flats: Sequence[Mapping[str, FlatColumn]], names: Iterable[str]
) -> list[Mapping[str, FlatColumn]]:
    """The columns of each file, completed by columns of nothing but nulls for columns that only others have."""
    different = {id(each): each for each in flats}
    known = {name: flat for each in reversed(different.values()) for name, flat in each.items()}
    completed = {
        number: each
        if all(name in each for name in names)
        else {
            **each,
            **{
                name: replace(known[name], type=pa.null(), leaf=-1, nullable=True)
                for name in names
                if name in known and name not in each
            },
        }
        for number, each in different.items()
    }
    return [completed[id(each)] for each in flats]


def _fingerprint(
    entries: Sequence[ForeignEntry], constants: Mapping[str, Any], chosen: Sequence[str] | None
) -> str:
    contents = on_all_cores(lambda entry: entry.content.value(), entries)
    identity: list[Any] = [[content, entry.size] for content, entry in zip(contents, entries, strict=True)]
    more = [*([constants] if constants else []), *([] if chosen is None else [{"columns": list(chosen)}])]
    return digest_json([*identity, *more], "hopyard.parquet-files")


def files_of(dataset: Dataset, skip: bool = False, columns: Sequence[str] | None = None) -> ForeignFiles:
    """The files of a dataset whose recipe changes nothing, with only its rows and columns selected."""
    manifest, recipe = dataset.manifest, dataset.recipe
    files = [open_entry(dataset.store, entry) for entry in manifest.files]
    scan = Scan(files, skip)
    scan.skipped += dataset.skipped
    nothing = {
        (number, group): np.zeros(rows, bool)
        for number, entry in enumerate(manifest.files)
        for group, rows in enumerate(entry.group_rows)
    }
    for group, bits in zip(dataset._groups, dataset.selected, strict=True):
        place = manifest.locate(group)
        rows = len(nothing.pop(place))
        scan.selections[place[0]][place[1]] = None if bits is None else Selection.of(unpack(bits, rows))
    for (number, group), mask in nothing.items():
        scan.selections[number][group] = Selection.of(mask)
    _check_known(columns or (), manifest.schema.names)
    schema = manifest.schema.select(_wanted(columns, manifest.schema.names))
    flats = [flat_columns(file.footer.schema.to_arrow_schema()) for file in files]
    return ForeignFiles(
        dataset.store, replace(manifest, schema=schema), scan, _completed(flats, recipe.varied),
        dataset.lazy_fingerprint, recipe.constants, dataset.prepared, recipe.varied,
    )  # fmt: skip


def _opened(
    store: Store | None, names: Sequence[str], skip: bool
) -> tuple[list[StoredFile], list[int], list[Skipped]]:
    """The files whose footers can be read, their places in ``names``, and the others."""

    def opened(name: str) -> StoredFile | Skipped:
        file = StoredFile.open(store, name)
        try:
            file.footer  # noqa: B018, to read it
        except CorruptError as error:
            if not skip:
                raise
            return Skipped(file.name, None, None, None, str(error))
        return file

    files: list[StoredFile] = []
    kept: list[int] = []
    broken: list[Skipped] = []
    for number, file in enumerate(of_each(store, names, names, opened)):
        if isinstance(file, Skipped):
            broken.append(file)
        else:
            files.append(file)
            kept.append(number)
    return files, kept, broken


def _entry(name: str, file: StoredFile) -> ForeignEntry:
    footer = file.footer
    rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    content = Fingerprint(lambda: file.content)
    return ForeignEntry(name, file.size, file.footer_digest, "", rows, file.identity, content)


@dataclass(frozen=True)
class _Described:
    """The columns of one file; None: nothing but nulls, so of the type that other files give."""

    flats: Mapping[str, FlatColumn]
    columns: Mapping[str, Column | None]


def _check_known(columns: Iterable[str], known: Sequence[str]) -> None:
    """Look whether columns of a dataset are in the files, or are made of columns there.

    Raises:
        ColumnError: some are not.
    """
    if unknown := [name for name in columns if not _origins([name]).intersection(known)]:
        raise unknown_columns(unknown, known)


def _wanted(columns: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Columns of the files that these columns of a dataset are, or are made of."""
    return [name for name in known if columns is None or name in _origins(columns)]


def _origins(columns: Iterable[str]) -> set[str]:
    return {
        origin
        for name in columns
        for origin in (name, name.removesuffix("_mask"), name.removesuffix("_length"))
    }


def _described(
    scan: Scan, columns: Sequence[str] | None, constants: Iterable[str], may_miss: bool
) -> list[_Described]:
    found: list[_Described] = []
    known: list[tuple[Any, Any, _Described]] = []
    looked_at: dict[str, Column] = {}
    for number, file in enumerate(scan.files):
        footer = file.footer
        all_metadata = footer.metadata or {}
        metadata = {key: all_metadata.get(key) for key in (METADATA_KEY, b"ARROW:schema")}
        described = next(
            (each for schema, its, each in known if its == metadata and schema.equals(footer.schema)), None
        )
        if described is None:
            try:
                flats = flat_columns(footer.schema.to_arrow_schema())
            except DataError as error:
                raise DataError(f"{file.name}: {error}") from error
            if not known and not may_miss:
                _check_known(columns or (), [*flats, *constants])
            chosen = {name: flats[name] for name in _wanted(columns, flats)}
            described = _Described(flats, _columns_of(scan, number, chosen))
            if not any(map(_is_open, described.columns.values())):
                known.append((footer.schema, metadata, described))
        settled = {
            name: _settled(scan, number, described.flats[name], column, looked_at)
            for name, column in described.columns.items()
            if column is not None and column.kind == "ragged"
        }
        found.append(replace(described, columns={**described.columns, **settled}) if settled else described)
    different = {id(each.flats): each.flats for each in found}.values()
    _check_known(columns or (), [*dict.fromkeys(name for flats in different for name in flats), *constants])
    return found


def _columns_of(scan: Scan, number: int, flats: Mapping[str, FlatColumn]) -> dict[str, Column | None]:
    """The columns of a file, by their types alone: lists of any length are ragged."""
    file = scan.files[number]
    stored = stored_schema(file.footer.metadata)
    if stored is not None:
        return {column.name: column for column in stored if column.name in flats}

    def converted(name: str, flat: FlatColumn) -> ColumnData:
        nested = _is_nested_list(flat.type)
        return from_arrow(name, _sample(scan, number, flat) if nested else pa.chunked_array([], flat.type))

    # The columns of a wide frame are of a few types: one column of each tells what the others are.
    firsts: dict[pa.DataType, str] = {}
    typed = {name: flat for name, flat in flats.items() if not is_unknown(flat.type)}
    alike = {
        name: name if _is_nested_list(flat.type) else firsts.setdefault(flat.type, name)
        for name, flat in typed.items()
    }
    try:
        try:
            found = convert_columns({name: typed[name] for name in dict.fromkeys(alike.values())}, converted)
        except DataError:
            found = convert_columns(typed, converted)  # names all columns that cannot be converted
    except DataError as error:
        raise DataError(f"{file.name}: {error}") from error
    like = {name: _of_any_length(data.column, typed[name]) for name, data in found.items()}
    return {name: like[alike[name]].named(name) if name in alike else None for name in flats}


def _of_any_length(column: Column, flat: FlatColumn) -> Column:
    if column.kind == "tensor" and is_list(flat.type):
        return Column(column.name, "ragged", column.dtype, column.shape[1:])
    return column


def _is_nested_list(kind: pa.DataType) -> bool:
    """Whether rows are lists of lists of any length, whose shape types alone do not tell."""
    inner = kind.value_type if is_any_list(kind) else None
    return inner is not None and (is_list(inner) or _is_nested_list(inner))


def _sample(scan: Scan, number: int, flat: FlatColumn, rows: int = _ROWS_OF_A_SAMPLE) -> pa.ChunkedArray:
    """Some rows of a column of a file, among them one that is not null, and, of nested lists, one that is not empty,
    if there is."""
    for group in range(scan.files[number].footer.num_row_groups):
        if not scan.rows(number, group):
            continue
        for first in (rows, None):
            table = scan.read(number, group, [flat.name], first)
            if table is None:
                break
            array = field_of(table, flat.path)
            if array.null_count < len(array) and (not _is_nested_list(flat.type) or _has_values(array)):
                return array
    return pa.chunked_array([], flat.type)


def _has_values(array: pa.ChunkedArray) -> bool:
    """Whether any of the lists has elements."""
    return any(len(chunk.flatten()) for chunk in array.chunks)


def sample(scan: Scan, flats: Sequence[Mapping[str, FlatColumn]], name: str) -> tuple[int, pa.ChunkedArray]:
    """Some rows of a column, among them one that is not null, and the number of the file.

    Raises:
        DataError: all are null.
    """
    for number, its in enumerate(flats):
        array = _sample(scan, number, its[name], _ENCODED_ROWS_OF_A_SAMPLE)
        if array.null_count < len(array):
            return number, array
    raise DataError(
        f"Column {name!r} holds nothing but nulls, so there is nothing to decode. Leave it out of decode=."
    )


def _settled(
    scan: Scan, number: int, flat: FlatColumn, column: Column, looked_at: dict[str, Column]
) -> Column:
    """A column of lists as a tensor if all lists of the file have one length.

    The footer's counts of values say whether they may; some rows, whether these do; decoding has the last word.
    """
    footer = scan.files[number].footer
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    lengths = {group.column(flat.leaf).num_values / group.num_rows for group in groups if group.num_rows}
    if len(lengths) != 1:
        return column
    length = lengths.pop() / max(math.prod(column.shape), 1)
    if not length.is_integer():
        return column
    tensor = Column(column.name, "tensor", column.dtype, (int(length), *column.shape))
    if looked_at.get(column.name) != tensor:
        rows = _sample(scan, number, flat)
        if rows.null_count == len(rows):
            return column
        try:
            read_column(tensor, rows, scan.files[number].name, nullable=True)
        except DataError:
            return column
        looked_at[column.name] = tensor
    return tensor


def _common(
    files: Sequence[StoredFile],
    described: Sequence[Mapping[str, Column | None]],
    differences: Differences,
    own: Container[str],
) -> dict[str, Column]:
    """The columns of all files, in the order in which they come first.

    Args:
        own: columns that directories name too, so that none may be missing.

    Raises:
        DataError: a file's columns differ from those of files before it, as they may not; names both and the column.
    """
    common: dict[str, tuple[Column | None, str]] = {
        name: (column, files[0].name) for name, column in described[0].items()
    }
    seen = {id(described[0])}
    for file, columns in zip(files[1:], described[1:], strict=True):
        if id(columns) in seen:  # what joined them before has nothing to add
            continue
        seen.add(id(columns))
        for name in dict.fromkeys([*common, *columns]):
            here, (there, where) = columns.get(name), common.get(name, (None, files[0].name))
            if (name not in columns or name not in common) and (
                differences.missing == "error" or name in own
            ):
                raise _drift(file.name, name, here or "missing", where, there or "missing")
            if there is None:
                common[name] = here, file.name
            elif here is not None and here != there:
                common[name] = _joined(here, there, differences.widen, file.name, where), where
    for name, (column, _) in common.items():
        if column is None:
            raise UnsupportedTypeError(
                f"{_listed(files)}: column {name!r} holds nothing but nulls or empty lists, so its type is unknown. "
                "Drop the column, or write it with a type."
            )
    return {name: column for name, (column, _) in common.items() if column is not None}


def _joined(here: Column, there: Column, widen: bool, file: str, first: str) -> Column:
    """The column that two files hold differently.

    Raises:
        DataError: one cannot be made the other.
    """
    both = here.dtype
    if here.dtype != there.dtype:
        wide = None if "object" in (here.dtype, there.dtype) else wider(here.dtype, there.dtype)
        if wide is None or not widen or here.sparse or there.sparse:
            raise _drift(file, here.name, here, first, there, wide)
        both = wide
    mine, its = replace(here, dtype=both), replace(there, dtype=both)
    mine, its = _told_by(mine, its), _told_by(its, mine)
    if mine == its:
        return mine
    if not _are_lists_of_one_kind(mine, its):
        raise _drift(file, here.name, here, first, there)
    return replace(mine, kind="ragged", shape=_element_shape(mine))


def _drift(
    file: str, name: str, here: object, first: str, there: object, wide: str | None = None
) -> DataError:
    choice = ""
    if "missing" in (here, there):
        choice = "open them with missing='null' and nulls='fill' or 'mask', "
    elif wide is not None:
        choice = f"open them with widen=True, which makes all {wide}, "
    return DataError(
        f"{file}: column {name!r} is {here}, but in {first} it is {there}. All files of a dataset must have the same "
        f"columns: {choice}leave the column out with columns=[...], leave the file out, or write it again."
    )


def _are_lists_of_one_kind(here: Column, there: Column) -> bool:
    """Whether rows that are ragged in one file may happen to have one length in the other."""
    return (
        here.dtype == there.dtype
        and not (here.sparse or there.sparse)
        and all(
            column.kind == "ragged" or (column.kind == "tensor" and column.shape) for column in (here, there)
        )
        and _element_shape(here) == _element_shape(there)
    )


def _told_by(column: Column, other: Column) -> Column:
    """Lists of lists that are all empty, whose inner length the other may tell."""
    return replace(column, shape=_element_shape(other)) if _is_open(column) else column


def _is_open(column: Column | None) -> bool:
    """Whether the length of the inner lists is not known yet."""
    return column is not None and column.kind == "ragged" and 0 in column.shape


def _element_shape(column: Column) -> tuple[int, ...]:
    return column.shape if column.kind == "ragged" else column.shape[1:]


def _listed(files: Sequence[StoredFile]) -> str:
    return some_names([file.name for file in files], 3)
