"""Assembles a dataset of files and what was asked of them: filters, policies, decoders, the cached transform."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.checks import choice, flag
from hopyard.data.cache.node import NodeCache
from hopyard.data.columns.convert_arrow import is_list
from hopyard.data.columns.policies import Policies, checked_schema, nothing_but_empty, ragged_rows
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Fingerprint
from hopyard.data.opening.filters import matching_rows
from hopyard.data.opening.foreign import Differences, ForeignFiles, sample
from hopyard.data.opening.survey import Facts, Scan, counted_nulls, survey
from hopyard.data.ragged import Ragged
from hopyard.data.recipe.arrow_columns import read_column
from hopyard.data.recipe.decoding import Decoder, decode_rows, digest_or_random
from hopyard.data.recipe.recipe import CachedTransform, Recipe, as_batch, transformed
from hopyard.data.schema import Column, Schema, unknown_columns
from hopyard.errors import CorruptError, DataError, NotFoundError, NullsError, UsageError
from hopyard.objects.digests import Hasher, digest, digest_json
from hopyard.objects.identity import identity
from hopyard.storage.oserrors import read_error
from hopyard.wording import some_names

Cache = NodeCache | str | os.PathLike[str] | Literal[False] | None

_ROWS_OF_A_SAMPLE = 64
_READ_AT_ONCE = 16 << 20
_log = logging.getLogger("hopyard")


@dataclass(frozen=True)
class OpeningOptions:
    """Arguments of ``open_dataset`` about the rows; see there."""

    columns: Sequence[str] | None = None
    filters: Any = None
    nulls: str = "error"
    ragged: str = "keep"
    decode: Mapping[str, Any] = field(default_factory=dict)
    cached_transform: CachedTransform | None = None
    cache: Cache = None
    corrupt: str = "error"
    missing: str = "error"
    widen: bool = False
    depends_on: Sequence[Any] = ()

    def __post_init__(self) -> None:
        choice("nulls", self.nulls, ("error", "fill", "mask"))
        choice("ragged", self.ragged, ("error", "keep", "pad"))
        choice("corrupt", self.corrupt, ("error", "skip"))
        choice("missing", self.missing, ("error", "null"))
        flag("widen", self.widen)
        names = self.columns
        if names is not None and (isinstance(names, str) or not names or len(set(names)) < len(names)):
            raise UsageError(
                f"columns={names!r}, but it must be a list of at least one name, none of them twice; None for all."
            )
        if not isinstance(self.decode, Mapping):
            raise UsageError(
                f"decode={self.decode!r}, but it must be a dict of column to decoder, as {{'photo': 'image'}}."
            )

        if not isinstance(self.depends_on, (list, tuple)):
            raise UsageError(
                f"depends_on={self.depends_on!r}, but it must be a list of paths (pathlib.Path) and values."
            )
        if self.depends_on and self.cached_transform is None and not self.decode:
            raise UsageError(
                "depends_on= was given, but neither cached_transform= nor decode=, whose results it is about. Leave "
                "it out."
            )

    @property
    def change_nothing(self) -> bool:
        """Whether the options leave the dataset of the files as it is."""
        return (
            self.columns is None
            and self.filters is None
            and (self.nulls, self.ragged, self.corrupt) == ("error", "keep", "error")
            and not self.decode
            and self.cached_transform is None
        )

    @property
    def differences(self) -> Differences:
        return Differences(self.missing, self.widen)

    @property
    def skip(self) -> bool:
        return self.corrupt == "skip"

    @property
    def stored(self) -> list[str] | None:
        """The columns wanted of the files; None: all, for what a transform needs is its secret."""
        return None if self.columns is None or self.cached_transform else [*self.columns, *self.decode]


def as_cache(cache: Cache) -> NodeCache | Literal[False] | None:
    """The argument as datasets hold it."""
    if cache is False or cache is None:
        return cache
    if isinstance(cache, (str, os.PathLike)):
        return NodeCache(cache)
    if not isinstance(cache, NodeCache):
        raise UsageError(
            f"cache={cache!r}, but it must be a NodeCache, a path, None (the default one) or False (none)."
        )
    return cache


def assemble(files: ForeignFiles, options: OpeningOptions) -> Dataset:
    """The dataset of these files.

    Raises:
        DataError: nulls or ragged rows without a policy, no row that the filter keeps, a transform that breaks
            its rules.
        ColumnError: unknown columns.
        CorruptError: a file or row group cannot be read.
    """
    cache = as_cache(options.cache)
    if options.filters is not None:
        matching_rows(files.scan, options.filters, files.constants)
    recipe = _recipe(files, options)
    names = recipe.schema.names if options.columns is None else list(options.columns)
    dataset = _dataset(files, recipe, names, options, cache)
    if options.skip:
        _leave_out_undecodable(dataset, files)
        dataset = _dataset(files, recipe, names, options, cache)
        _say_skipped(dataset)
    return dataset


def _dataset(
    files: ForeignFiles,
    recipe: Recipe,
    names: Sequence[str],
    options: OpeningOptions,
    cache: NodeCache | Literal[False] | None,
) -> Dataset:
    schema = recipe.schema.select(names)
    groups, selected = _kept_groups(files)
    manifest = files.manifest
    kept = {
        name: its
        for name, its in manifest.statistics.items()
        if options.filters is None and name in schema and recipe.is_plain(name)
    }
    manifest = replace(manifest, schema=schema, statistics=kept)
    fingerprint = _fingerprint(files, recipe, schema, groups, selected)
    if isinstance(fingerprint, str):
        manifest = replace(manifest, fingerprint=fingerprint)
    return Dataset(
        files.store,
        manifest,
        groups,
        fingerprint,
        prepared=files.prepared,
        recipe=recipe,
        selected=selected,
        cache=cache,
        skipped=files.scan.skipped,
    )


def _kept_groups(files: ForeignFiles) -> tuple[list[int], list[npt.NDArray[np.uint8] | None]]:
    """Row groups that have rows of the dataset (also row groups without rows), and the rows' bits; None: all rows."""
    groups: list[int] = []
    selected: list[npt.NDArray[np.uint8] | None] = []
    for place, (number, group) in enumerate(_places(files)):
        selection = files.scan.selections[number][group]
        if not files.scan.is_left_out(number, group) and (selection is None or selection.count):
            groups.append(place)
            selected.append(None if selection is None else selection.bits)
    if not groups:
        raise DataError(
            f"No row group can be decoded; the first of {len(files.scan.skipped)}: {files.scan.skipped[0].reason}"
        )
    return groups, selected


def _places(files: ForeignFiles) -> list[tuple[int, int]]:
    """(number of the file, number of the row group) of all row groups."""
    return [
        (number, group)
        for number, entry in enumerate(files.manifest.files)
        for group in range(len(entry.group_rows))
    ]


def _fingerprint(
    files: ForeignFiles,
    recipe: Recipe,
    schema: Schema,
    groups: Sequence[int],
    selected: Sequence[npt.NDArray[np.uint8] | None],
) -> str | Fingerprint:
    """Fingerprint of the dataset: that of the files, unless something was asked of them."""
    changes: dict[str, Any] = {}
    if recipe.digest:
        changes["recipe"] = recipe.digest
    if schema != files.manifest.schema:
        changes["columns"] = schema.to_json()
    if len(groups) < files.manifest.num_row_groups or any(bits is not None for bits in selected):
        changes["rows"] = [
            (group, None if bits is None else digest(bits.tobytes(), "hopyard.selected-rows"))
            for group, bits in zip(groups, selected, strict=True)
        ]
    before = files.fingerprint
    if not changes:
        return before
    if isinstance(before, Fingerprint):
        return Fingerprint(lambda: digest_json([before.value(), changes], "hopyard.opened-dataset"))
    return digest_json([before, changes], "hopyard.opened-dataset")


def _leave_out_undecodable(dataset: Dataset, files: ForeignFiles) -> None:
    """Decode a row of each row group, and with it the row group, which is kept in the cache; of images all rows."""
    every = dataset.decodes({name: name for name in dataset.schema.names})
    groups, _ = _kept_groups(files)
    places, first = _places(files), 0
    for group, rows in zip(groups, dataset.group_rows, strict=True):
        if rows:
            last = first + rows if every else first + 1
            try:
                for start in range(first, last, _ROWS_OF_A_SAMPLE):
                    dataset[start : min(start + _ROWS_OF_A_SAMPLE, last)]
            except (CorruptError, NotFoundError) as error:  # a file that a row of images names may be gone
                number, within = places[group]
                files.scan.leave_out(number, within, dataset.recipe.needs(dataset.schema.names), error)
        first += rows


def _say_skipped(dataset: Dataset) -> None:
    if not dataset.skipped:
        return
    rows = sum(each.rows or 0 for each in dataset.skipped)
    files = sum(each.row_group is None for each in dataset.skipped)
    _log.warning(
        "%d files and %d row groups of %d rows are left out, because they cannot be read (dataset.skipped lists "
        "them). The first: %s",
        files,
        len(dataset.skipped) - files,
        rows,
        dataset.skipped[0].reason,
    )


def _recipe(files: ForeignFiles, options: OpeningOptions) -> Recipe:
    stored = files.manifest.schema
    _check_known([*options.decode], stored)
    facts = _facts(files, options)
    policies, stored, filled = _policies(files, options, facts)
    recipe = Recipe(stored, policies.schema, "", files.paths, files.constants, filled, files.varied)
    if policies.masked or policies.padded or policies.times:
        recipe = replace(recipe, policies=policies)
    recipe = _with_decoders(recipe, files, options)
    recipe = _with_transform(recipe, files, options)
    kept = {name: decoder for name, decoder in recipe.decoders.items() if name not in recipe.per_batch}
    digest = _digest(recipe, recipe.decoders, options)
    kept_digest = _digest(recipe, kept, options) if recipe.per_batch else digest
    return replace(recipe, digest=digest, kept_digest=kept_digest)


def _digest(recipe: Recipe, decoders: Mapping[str, Decoder], options: OpeningOptions) -> str:
    changes: dict[str, Any] = {
        "filled": sorted(recipe.filled),
        "masked": sorted(recipe.policies.masked) if recipe.policies else [],
        "padded": dict(recipe.policies.padded) if recipe.policies else {},
        "decoders": {name: decoder.digest for name, decoder in decoders.items()},
    }
    if options.cached_transform is not None:
        changes["transform"] = digest_or_random(
            options.cached_transform, "hopyard.cached-transform", "cached_transform"
        )
    if options.depends_on:
        changes["depends_on"] = [_digest_of(each, number) for number, each in enumerate(options.depends_on)]
    return digest_json(changes, "hopyard.recipe") if any(changes.values()) else ""


def _digest_of(given: Any, number: int) -> str:
    """Digest of a dependency of a function: of the content of a file, or of all files below a folder; or of a value.

    Raises:
        NotFoundError: there is no such file.
        UsageError: the value has no digest that is the same in every process.
    """
    if isinstance(given, os.PathLike):
        return _digest_of_path(Path(given))
    found = identity(given, f"depends_on[{number}]")
    if found.digest is None:
        raise UsageError(
            f"depends_on[{number}] is {type(given).__name__}, which has no digest ({found.undigestible[0]}). "
            "Give a pathlib.Path of a file, or values such as numbers, texts and arrays."
        )
    return found.digest


def _digest_of_path(path: Path) -> str:
    if not path.exists():
        raise NotFoundError(f"depends_on names {path}, which is not there. Check the path.")
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = []
    try:
        for file in files:
            hasher = Hasher("hopyard.depends-on", threads=None)
            with file.open("rb") as opened:
                while block := opened.read(_READ_AT_ONCE):
                    hasher.update(block)
            found.append([file.relative_to(path).as_posix() if path.is_dir() else "", hasher.hexdigest()])
    except OSError as error:
        raise read_error(str(file), error) from error
    return digest_json(found, "hopyard.depends-on")


def _check_known(names: Sequence[str], schema: Schema) -> None:
    if unknown := [name for name in names if name not in schema]:
        raise unknown_columns(unknown, schema.names)


def _facts(files: ForeignFiles, options: OpeningOptions) -> dict[str, Facts]:
    """Facts about columns that may have nulls (and about lists to be padded), read where footers do not tell."""
    facts: dict[str, Facts] = {}
    stored = [column for column in files.manifest.schema if column.name not in files.constants]
    for name, values in files.constants.items():
        if name in files.manifest.schema:
            facts[name] = Facts()
            for value, entry in zip(values, files.manifest.files, strict=True):
                facts[name].add_nulls(entry.rows if value is None else 0, entry.name)
    facts |= counted_nulls(files.scan, files.flats, [column.name for column in stored])
    if options.nulls == "error" and options.ragged == "keep":  # rows are read for neither
        return facts
    differing = list({id(its): its for its in files.flats}.values())
    unknown = []
    for column in stored:
        of_lists = not column.sparse and any(is_list(its[column.name].type) for its in differing)
        lists = of_lists or column.kind == "ragged"
        if _must_be_read(column, facts.get(column.name), lists, options):
            unknown.append(column.name)
    return {**facts, **survey(files.scan, files.flats, unknown)}


def _must_be_read(column: Column, counted: Facts | None, lists: bool, options: OpeningOptions) -> bool:
    if lists and (options.ragged == "pad" or (options.ragged == "error" and column.kind == "ragged")):
        return True
    return counted is None and options.nulls != "error"


def _policies(
    files: ForeignFiles, options: OpeningOptions, facts: Mapping[str, Facts]
) -> tuple[Policies, Schema, frozenset[str]]:
    """The policies, the schema of the stored columns as settled by the facts, and the columns that may hold nulls."""
    stored: list[Column] = []
    result: list[Column] = []
    masked, padded, filled = set(), {}, set()
    for column in files.manifest.schema:
        name, its = column.name, facts.get(column.name)
        if its is not None and its.nulls and options.nulls == "error":
            found = f"{its.where}: column {name!r} has {its.nulls} nulls"
            raise NullsError(
                f"{found}, which training cannot use. Drop or fill them (drop them where they are labels or weights), "
                "or open or prepare the data with nulls='fill' (0, False or an empty string instead) or nulls='mask' "
                "(filled, and a column <name>_mask that is True there); or leave the column out with columns=[...].",
                found,
            )
        if options.nulls != "error" and (its is None or its.nulls):
            filled.add(name)
        if not files.prepared:  # prepared files are mapped by the types that their manifest says
            column = _settled(column, its)
        stored.append(column)
        if column.kind != "ragged" or options.ragged == "keep":
            result.append(column)
        elif its is not None and (its.longest == 0 or (its.longest is None and options.ragged == "pad")):
            raise nothing_but_empty(name)
        elif options.ragged == "error" or its is None or its.longest is None:
            raise ragged_rows(name, its.shortest or 0 if its else 0, its.longest or 0 if its else 0)
        else:
            padded[name] = its.longest
            result += [
                Column(name, "tensor", column.dtype, (its.longest, *column.shape)),
                Column(f"{name}_length", "tensor", "int64"),
            ]
        if options.nulls == "mask" and its is not None and its.nulls:
            masked.add(name)
            result.append(Column(f"{name}_mask", "tensor", "bool"))
    return (
        Policies(checked_schema(result), frozenset(masked), padded, options.nulls, _times(files)),
        Schema(stored),
        frozenset(filled),
    )


def _times(files: ForeignFiles) -> frozenset[str]:
    """Columns that the files hold as dates, times or durations."""
    return frozenset(name for name, flat in files.flats[0].items() if pa.types.is_temporal(flat.type))


def _settled(column: Column, facts: Facts | None) -> Column:
    """A column of lists as an array, or not, now that their lengths are known."""
    if facts is None or not facts.longest:
        return column
    element = column.shape if column.kind == "ragged" else column.shape[1:]
    if facts.shortest == facts.longest:
        return Column(column.name, "tensor", column.dtype, (facts.longest, *element))
    return Column(column.name, "ragged", column.dtype, element)


def _listed(files: ForeignFiles) -> str:
    return some_names([file.name for file in files.scan.files], 3)


def _with_decoders(recipe: Recipe, files: ForeignFiles, options: OpeningOptions) -> Recipe:
    if not options.decode:
        return recipe
    decoders: dict[str, Decoder] = {}
    columns = {column.name: column for column in recipe.schema}
    for name, given in options.decode.items():
        column = recipe.stored[name]
        decoders[name] = decoder = Decoder.of(given).for_column(column)
        number, array = sample(files.scan, files.flats, name)
        data = read_column(column, array.drop_null(), files.scan.files[number].name)
        where = f"{files.scan.files[number].name}, column {name!r}"
        assert isinstance(data.values, Ragged)
        rows = decode_rows(data.values[:1], decoder, None, where)
        columns[name] = Column(name, "tensor", rows.dtype.name, rows.shape[1:])
    return replace(recipe, decoders=decoders, schema=checked_schema(list(columns.values())))


def _with_transform(recipe: Recipe, files: ForeignFiles, options: OpeningOptions) -> Recipe:
    """The recipe with the transform; its columns are as the transform makes them of the first rows."""
    if options.cached_transform is None:
        return recipe
    names = recipe.schema.names
    for number, group in list(files.scan.groups()):
        rows = _first_rows(files.scan, number, group, recipe.needs(names))
        if rows is None:
            continue
        where = files.scan.name(number, group)
        made = recipe.apply(rows, names, number, where)
        given = {name: as_batch(recipe.schema[name], values) for name, values in made.items()}
        after = transformed(options.cached_transform, given, None, rows.num_rows, where)
        schema = checked_schema([data.column for data in after.values()])
        return replace(recipe, given=recipe.schema, schema=schema, transform=options.cached_transform)
    raise DataError(f"{_listed(files)}: no row can be decoded. Restore the files.")


def _first_rows(scan: Scan, number: int, group: int, columns: Sequence[str]) -> pa.Table | None:
    """At least one and at most 64 rows of the dataset from a row group; None if it cannot be decoded."""
    table = scan.read(number, group, columns, _ROWS_OF_A_SAMPLE)
    if table is not None and not table.num_rows:
        table = scan.read(number, group, columns)
    return None if table is None else table.slice(0, _ROWS_OF_A_SAMPLE)
