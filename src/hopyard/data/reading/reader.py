"""Row groups as columns that any rows can be gathered from: mapped where they lie, else decoded into flat files."""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.cache.node import NodeCache
from hopyard.data.columns.structs import flat_columns
from hopyard.data.files.listed import ChecksumCheck, check_content, open_entry
from hopyard.data.files.parallel import of_each
from hopyard.data.files.stored import StoredFile
from hopyard.data.layout import stored_dtype
from hopyard.data.manifest import ForeignEntry, Manifest
from hopyard.data.order import Rows
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.decoded import DecodedColumn, RowGroupPlace
from hopyard.data.reading.decoder import Flat, RowGroupDecoder
from hopyard.data.reading.flat import Block, Packs, pack
from hopyard.data.reading.mapped import (
    Bodies,
    MappedColumn,
    MappedRagged,
    find_body,
    first_rows_of,
    stored_as,
)
from hopyard.data.reading.pieces import Group
from hopyard.data.reading.region import Region, region_of
from hopyard.data.reading.strings import LARGE, VIEW, Lying, MappedStrings, side_by_side
from hopyard.data.reading.views import Batch, GatherSource, RowGroupView, Wanted, columns_of, join, reorder
from hopyard.data.recipe.arrow_columns import leaves_of
from hopyard.data.recipe.recipe import Recipe
from hopyard.data.schema import Column, Schema
from hopyard.errors import CorruptError, NotFoundError
from hopyard.objects.digests import digest
from hopyard.storage.base import Store

Bitmap = npt.NDArray[np.uint8]
"""Bits of the rows of a row group, set where a row belongs to a dataset, as ``numpy.packbits`` packs them."""

_MANY_SCALARS = 8
_PACKED_AT_MOST = 1 << 30  # bytes; the first batch waits for them
_ATTEMPTS = 3  # to map flat files that the cache may move or throw out at any moment


class Reader:
    """The files of a dataset, open on this machine. Threads may share it.

    Args:
        store: holds the files, or None if their names are paths.
        manifest: of the dataset.
        groups: numbers of the row groups to read; the reader's own numbers count these.
        prepared: columns of fixed width must be flat arrays; otherwise columns that are not are decoded.
        recipe: how rows of the files become the manifest's columns.
        selected: of each of the groups, the rows that belong to the dataset; None: all.
        cache: where decoded row groups are kept; None: in memory only.

    Raises:
        CorruptError: a file is not what the manifest promises; names it.
        NotFoundError: a file is missing.
    """

    def __init__(
        self,
        store: Store | None,
        manifest: Manifest,
        groups: Sequence[int],
        prepared: bool,
        recipe: Recipe,
        selected: Sequence[Bitmap | None],
        cache: NodeCache | None,
    ) -> None:
        self.manifest = manifest
        places = [
            (number, within)
            for number, entry in enumerate(manifest.files)
            for within in range(len(entry.group_rows))
        ]
        self._places = [places[group] for group in groups]
        self._whole_rows = [manifest.files[file].group_rows[within] for file, within in self._places]
        self._selected = selected
        self.group_rows: list[int] = [
            rows if bitmap is None else count_selected(bitmap)
            for rows, bitmap in zip(self._whole_rows, selected, strict=True)
        ]
        self.first_rows: Rows = first_rows_of(self.group_rows)
        numbers = sorted({file for file, _ in self._places})
        names = [manifest.files[number].name for number in numbers]
        opened = of_each(store, names, numbers, lambda number: self._open(store, number, prepared))
        self._files = dict(zip(numbers, opened, strict=True))
        self._at_paths = all(file.path is not None for file in self._files.values())
        self._prepared = prepared and self._at_paths
        self._recipe = recipe.kept
        self._per_batch = recipe.per_batch
        self._schema = Schema(  # as columns are kept
            recipe.stored[column.name] if column.name in recipe.per_batch else column
            for column in manifest.schema
        )
        self._region: Region | None = None
        self._schemas: dict[int, pa.Schema] = {}
        self._leaves: dict[int, dict[str, int]] = {}
        self._bodies: dict[str, tuple[np.dtype[Any], Rows] | None] = {}
        self._every = tuple(range(len(self._places)))
        self._views: dict[tuple[Any, ...], RowGroupView] = {}  # of all row groups
        self._kept: dict[Packs, tuple[Region, list[Flat]]] = {}  # flat files of all row groups
        self._packs_of: dict[tuple[Any, ...], Packs] = {}
        self._needed_packs_of: dict[tuple[Any, ...], Packs] = {}
        self._decoder = RowGroupDecoder(
            [self._group(number) for number in range(len(self._places))],
            self._schema, self._recipe, cache, self._sizes(),
        )  # fmt: skip

    def _open(self, store: Store | None, number: int, prepared: bool) -> StoredFile:
        entry = self.manifest.files[number]
        file = open_entry(store, entry)
        footer = file.footer
        if isinstance(entry, ForeignEntry) and file.identity != entry.identity:
            check_content(file, entry)
        rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        if rows != entry.group_rows:
            raise CorruptError(
                f"{file.name} has row groups of {_shortened(rows)} rows, but the dataset's manifest says "
                f"{_shortened(entry.group_rows)}: the file was changed. Restore it, or delete it and "
                "prepare the data again."
            )
        return file

    def _group(self, number: int) -> Group:
        (file, within), bitmap = self._places[number], self._selected[number]
        whole = self._whole_rows[number]
        return Group(
            self._files[file], file, within, self.group_rows[number], self.manifest.files[file].digest,
            bool(self.manifest.files[file].seal),
            None if bitmap is None else lambda: pa.array(unpack(bitmap, whole)),
            "" if bitmap is None else digest(bitmap.tobytes(), "hopyard.selected-rows"),
        )  # fmt: skip

    def identities(self) -> list[list[Any]]:
        """Identity of each file, which differs if the file was replaced or written to."""
        return [list(file.identity) for file in self._files.values()]

    def check_not_written(self) -> None:
        """Raise CorruptError if a file was written to since it was opened; names it."""
        for file in self._files.values():
            file.check_not_written()

    def check_unchanged(self) -> None:
        """Raise CorruptError if a file is no longer as it was opened; names it. Reading from an object in a store
        without paths shows it by itself."""
        for file in self._files.values():
            if file.path is not None:
                file.check_unchanged()

    def window_rows(self, window: int) -> int | None:
        """Number of rows of a window whose columns, decoded, all stay within ``window`` bytes together.

        None if all rows fit. Of columns whose rows differ in size, bytes are as in the files, before compression.
        Neither where the files lie counts, nor which columns are mapped, nor the node cache.
        """
        rows, size = sum(self.group_rows), sum(self._decoded_sizes(self.manifest.schema))
        return None if size <= window else max(rows * window // size, 1)

    def sortedness(self, name: str) -> float | None:
        """The share of pairs of row groups whose values of a scalar column do not overlap, as the files' statistics
        say: 0 where each row group has values from everywhere, almost 1 where the rows are sorted by many values.

        None with fewer than two row groups, without statistics, and for columns that are not in the files.
        """
        column = self.manifest.schema[name]
        if column.shape or not self._recipe.is_plain(name) or len(self._places) < 2:
            return None
        bounds = []
        for file, within in self._places:
            chunk = self._files[file].footer.row_group(within).column(self._leaf(file, name))
            statistics = chunk.statistics
            if statistics is None or not statistics.has_min_max:
                return None
            bounds.append((statistics.min, statistics.max))
        lowest = sorted(low for low, _ in bounds)
        apart = sum(len(bounds) - bisect_right(lowest, high) for _, high in bounds)
        return apart / math.comb(len(bounds), 2)

    def _decoded_sizes(self, columns: Iterable[Column]) -> list[int]:
        """Bytes of each row group's columns once they are decoded, estimated where rows differ in size."""
        fixed = 0
        # With the bytes of a row beside its values: a view, or an offset.
        others: list[tuple[Column, int]] = []
        for column in columns:
            if (width := column.stored_width) is not None:
                fixed += width
            else:
                others.append((column, VIEW.itemsize if column.kind in LARGE else 8))
        sizes = [fixed * rows for rows in self.group_rows]
        for group, rows in enumerate(self.group_rows if others else ()):
            whole = max(self._whole_rows[group], 1)
            for column, beside in others:
                sizes[group] += self._stored_size(column, group) * rows // whole + beside * rows
        return sizes

    def _sizes(self) -> Callable[[Sequence[Column]], list[int]]:
        """``_decoded_sizes``, without a circle of references, in which memory and descriptors would stay."""
        reader = weakref.proxy(self)
        return lambda columns: list(reader._decoded_sizes(columns))

    def _stored_size(self, column: Column, group: int) -> int:
        file, within = self._places[group]
        described = self._files[file].footer.row_group(within)
        there = self._files[file].leaves_of(self._recipe.needs([column.name]))
        leaves = [self._leaf(file, name) for name in self._recipe.needs([column.name])] if there else []
        if column.sparse:
            leaves.append(leaves[0] + 1)  # the elements, behind their indices
        return sum(described.column(leaf).total_uncompressed_size for leaf in leaves)

    def is_mapped(self, column: Column) -> bool:
        """Whether the column's rows are gathered from the files themselves."""
        if not self._recipe.is_plain(column.name):
            return False
        if self._prepared:
            return stored_dtype(column) is not None
        return self._find_bodies(column) is not None

    def view(
        self, wanted: Wanted, groups: Sequence[int] | None = None, stopped: threading.Event | None = None
    ) -> RowGroupView | None:
        """View of the wanted columns of all row groups, or of some in the order given; decodes what must be decoded.

        None if ``stopped`` was set before it was complete.
        """
        return self._view(wanted, self._packs(wanted), groups, stopped)

    def _view(
        self,
        wanted: Wanted,
        packs: Packs,
        groups: Sequence[int] | None = None,
        stopped: threading.Event | None = None,
    ) -> RowGroupView | None:
        in_flats = {name for pack in packs for name in pack}
        mapped = [name for name in columns_of(wanted) if name not in in_flats]
        chosen = self._every if groups is None else tuple(groups)
        key = tuple(wanted.items()), packs
        if chosen == self._every and key in self._views:
            return self._views[key]
        sources: list[GatherSource] = [self._mapped(self._schema[name], chosen) for name in mapped]
        if packs:
            found = self._decoded(packs, chosen, stopped)
            if found is None:
                return None
            sources += found
        view = RowGroupView(
            wanted, [self.group_rows[group] for group in chosen], sources, self._selected_rows(chosen),
            self._guard(mapped, chosen),
        )  # fmt: skip
        if chosen == self._every and (not packs or packs in self._kept):
            self._views[key] = view
        return view

    def fetches(self, wanted: Wanted) -> bool:
        """Whether rows of these columns come from objects, and the node cache keeps them."""
        return not self._at_paths and self._decoder.keeps(self._packs(wanted))

    def gather(self, rows: Rows, wanted: Wanted) -> Batch:
        """Any rows, in any order. Columns that must be decoded are, a row group at a time."""
        buffers = Buffers()
        packs = self._packs(wanted)
        if packs not in self._kept:  # for a few rows, nothing is decoded that can be mapped
            packs = self._needed_packs(wanted)
        if not len(rows):
            return self._present(wanted, packs, [int(np.argmax(self.group_rows))]).gather(rows, buffers)
        groups = np.searchsorted(self.first_rows, rows, side="right") - 1
        by_group = np.argsort(groups, kind="stable")
        present, starts = np.unique(groups[by_group], return_index=True)
        if not packs or (len(present) > 1 and self._all_kept(packs) is not None):
            return self._present(wanted, packs, None).gather(rows, buffers)
        parts = [
            self._present(wanted, packs, [group]).gather(rows[where] - self.first_rows[group], buffers)
            for group, where in zip(present.tolist(), np.split(by_group, starts[1:]), strict=True)
        ]
        back = np.empty_like(by_group)
        back[by_group] = np.arange(len(rows))
        return reorder(join(parts, buffers), back, buffers)

    def _packs(self, wanted: Wanted) -> Packs:
        """The columns that are gathered from flat files, by the blocks that they form.

        Columns that cannot be mapped, and mapped scalars if there are many and their rows can be packed within
        seconds: a take for each of forty columns costs ten times what one of forty side by side does.
        """
        key = tuple(wanted.items())
        if key not in self._packs_of:
            packs = self._needed_packs(wanted)
            needed = {name for pack in packs for name in pack}
            columns = [self._schema[name] for name in columns_of(wanted)]
            mapped = [column for column in columns if column.name not in needed]
            scalars = [column for column in mapped if not column.shape]
            if len(scalars) >= _MANY_SCALARS and sum(self._decoded_sizes(scalars)) <= _PACKED_AT_MOST:
                wider = pack(
                    [column for column in columns if column.name in needed or not column.shape],
                    _stacked(wanted),
                )
                packs = wider if self._decoder.can_hold(wider) else packs
            self._packs_of[key] = packs
        return self._packs_of[key]

    def _needed_packs(self, wanted: Wanted) -> Packs:
        """The columns that cannot be mapped."""
        key = tuple(wanted.items())
        if key not in self._needed_packs_of:
            columns = [self._schema[name] for name in columns_of(wanted)]
            nullable = self._nullable()
            needed = [each for each in columns if each.name in nullable or not self.is_mapped(each)]
            self._needed_packs_of[key] = pack(needed, _stacked(wanted))
        return self._needed_packs_of[key]

    def _nullable(self) -> set[str]:
        """Columns that are not mapped, as the first file that others wrote tells at once: it has levels before their
        values, for they may be null. Of a wide frame that spares a look at each column's chunks."""
        if self._prepared or not self._files:
            return set()
        flats = flat_columns(self._arrow_schema(next(iter(self._files)))).values()
        return {column.name for column in flats if column.nullable}

    def _present(self, wanted: Wanted, packs: Packs, groups: Sequence[int] | None) -> RowGroupView:
        view = self._view(wanted, packs, groups)
        assert view is not None
        return view

    def _selected_rows(self, groups: Sequence[int]) -> Rows | None:
        """Numbers, among all rows of these groups, of the rows that belong to the dataset; None: all belong to it."""
        if all(self._selected[group] is None for group in groups):
            return None
        firsts = first_rows_of([self._whole_rows[group] for group in groups])
        parts = []
        for group, first in zip(groups, firsts.tolist(), strict=True):
            bitmap, whole = self._selected[group], self._whole_rows[group]
            rows = np.arange(whole) if bitmap is None else np.flatnonzero(unpack(bitmap, whole))
            parts.append(rows + first)
        return np.concatenate(parts)

    def _mapped(self, column: Column, groups: tuple[int, ...]) -> GatherSource:
        found = self._find_bodies(column)
        if found is None or self._region is None:
            for number, within in self._places:  # says better what is wrong, where checksums tell
                self._files[number].check_columns(within, self._recipe.needs([column.name]))
            raise CorruptError(self._not_flat(column))
        stored, starts = found
        rows = [self._whole_rows[group] for group in groups]
        bodies = Bodies(
            self._region.bytes,
            starts[np.array(groups, np.int64)],
            first_rows_of(rows),
            np.array(rows, np.int64),
        )
        return MappedColumn((column.name,), np.dtype(column.dtype), column.shape, stored, bodies, True)

    def _guard(self, names: Sequence[str], groups: tuple[int, ...]) -> ChecksumCheck | None:
        """Compares mapped columns of row groups with their checksums before rows of them are gathered."""
        if not names or not any(file.checks is not None for file in self._files.values()):
            return None
        region = self._region
        assert region is not None
        files = {
            number: (file, region.bytes[start : start + file.size], file.leaves_of(self._recipe.needs(names)))
            for (number, file), start in zip(self._files.items(), region.starts, strict=True)
        }
        return ChecksumCheck(files, [self._places[group] for group in groups])

    def _decoded(
        self, packs: Packs, groups: tuple[int, ...], stopped: threading.Event | None
    ) -> list[GatherSource] | None:
        if packs in self._kept:
            region, flats = self._kept[packs]
            return self._sources_of(region, flats, groups)
        filled = [group for group in groups if self.group_rows[group]] or groups[:1]
        for attempt in range(_ATTEMPTS):
            # If they throw each other out of the node cache, it is too small for them.
            flats = self._decoder.flats(packs, filled, stopped, cached=attempt < _ATTEMPTS - 1)
            if stopped is not None and stopped.is_set():
                return None
            try:
                region, flats = self._all_kept(packs) or (self._region_of(flats, remembered=False), flats)
            except NotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            return self._sources_of(region, flats, groups)
        raise AssertionError

    def _all_kept(self, packs: Packs) -> tuple[Region, list[Flat]] | None:
        """The flat files of all row groups in one region, once the node cache holds them all."""
        if packs not in self._kept:
            flats = self._decoder.all_kept(packs)
            if flats is None:
                return None
            try:
                self._kept[packs] = self._region_of(flats, remembered=True), flats
            except NotFoundError:
                return None
        return self._kept[packs]

    def _region_of(self, flats: Sequence[Flat], remembered: bool) -> Region:
        widths = [block.width for block in flats[0].blocks if block.width]
        return region_of([flat.file for flat in flats], widths, remembered)

    def _sources_of(
        self, region: Region, flats: Sequence[Flat], groups: tuple[int, ...]
    ) -> list[GatherSource]:
        places = {}  # of each row group: flat file, and its first row there
        for number, flat in enumerate(flats):
            first = 0
            for group in flat.groups:
                places[group] = number, first
                first += self.group_rows[group]
        rows = np.array([self.group_rows[group] for group in groups], np.int64)
        firsts = first_rows_of(rows.tolist())

        # Nothing is read where there are no rows, but it is a place like the others.
        spare = next(iter(places.values()))
        at = [places.get(group, spare) for group in groups]

        def blocks_of(part: str, name: str) -> list[Block | None]:
            found = [
                next((block for block in flat.blocks if block.part == part and name in block.columns), None)
                for flat in flats
            ]
            return [found[number] for number, _ in at]

        def starts(blocks: Sequence[Block | None], width: int | Rows) -> Rows:
            begins = [
                0 if block is None else region.starts[number] + block.offset
                for (number, _), block in zip(at, blocks, strict=True)
            ]
            return np.array(begins, np.int64) + np.array([first for _, first in at], np.int64) * width

        def strings(name: str) -> Lying:
            codes, views, values = (blocks_of(part, name) for part in ("codes", "views", "values"))
            is_coded = np.array([block is not None for block in codes])
            rows = [view if code is None else code for code, view in zip(codes, views, strict=True)]
            steps = np.array([0 if block is None else block.width for block in rows], np.int64)
            sizes = np.array([0 if block is None else block.count for block in views], np.int64)
            kinds = [VIEW if block is None else np.dtype(block.dtype) for block in views]
            widths = np.array([kind.itemsize for kind in kinds], np.int64)
            places = [0 if block is None else block.columns.index(name) for block in views]
            numbers = np.array(places, np.int64)
            firsts = starts(rows, steps) + np.where(is_coded, 0, numbers * widths)
            return Lying(firsts, steps, is_coded, starts(views, 0), sizes, starts(values, 0), widths)

        sources: list[GatherSource] = []
        schema = self._schema
        for block in flats[0].blocks:
            columns = block.columns
            if block.part == "rows":
                dtype = np.dtype(block.dtype)
                plain = len(columns) == 1 and not block.shape
                stored = dtype if plain else np.dtype((np.void, block.width))
                begins = starts(blocks_of("rows", columns[0]), block.width)
                bodies = Bodies(region.bytes, begins, firsts, rows)
                sources.append(MappedColumn(columns, dtype, block.shape, stored, bodies, False))
            elif block.part == "offsets":
                offsets = starts(blocks_of("offsets", columns[0]), 8)
                values = starts(blocks_of("values", columns[0]), 0)
                sources.append(MappedRagged(schema[columns[0]], region.bytes, offsets, values, firsts))
        texts = [name for block in flats[0].blocks if block.part == "views" for name in block.columns]
        for names, lying in side_by_side({name: strings(name) for name in texts}, schema, self._per_batch):
            found = MappedStrings([schema[name] for name in names], region.bytes, lying, firsts)
            sources.append(self._decoded_source(found, groups) if names[0] in self._per_batch else found)
        return sources

    def _decoded_source(self, stored: MappedStrings, groups: tuple[int, ...]) -> DecodedColumn:
        """A column that lies there as it is stored, and is decoded for every batch."""
        (name,) = stored.names
        places = [self._place_of(group) for group in groups]
        return DecodedColumn(stored, self.manifest.schema[name], self._per_batch[name], places)

    def _place_of(self, group: int) -> RowGroupPlace:
        (file, within), bitmap, rows = self._places[group], self._selected[group], self._whole_rows[group]
        numbers = None if bitmap is None else lambda: np.flatnonzero(unpack(bitmap, rows))
        return RowGroupPlace(self._files[file].name, within, numbers)

    def _not_flat(self, column: Column) -> str:
        names = ", ".join(file.name for file in self._files.values())
        return (
            f"Column {column.name!r} is not stored as prepared data is (plain, uncompressed, one page a row "
            f"group) in at least one row group of {names}. The files were changed: restore them, delete them "
            "and prepare the data again, or open the files themselves instead of the prepared dataset."
        )

    def _find_bodies(self, column: Column) -> tuple[np.dtype[Any], Rows] | None:
        if column.name not in self._bodies:
            self._bodies[column.name] = self._search_bodies(column)
        return self._bodies[column.name]

    def _search_bodies(self, column: Column) -> tuple[np.dtype[Any], Rows] | None:
        if not column.stored_width or not self._at_paths:
            return None
        dtype = None
        for number, file in self._files.items():
            described = file.footer.schema.column(self._leaf(number, column.name))
            found = stored_as(column, described, self._arrow_schema(number).field(column.name).type)
            if found is None or found != (dtype or found):
                return None
            dtype = found
        if dtype is None:
            return None
        region = self._map()
        numbers = {file: place for place, file in enumerate(self._files)}
        bodies = np.full(len(self._places), -1, np.int64)
        for group, (number, within) in enumerate(self._places):
            if not self._whole_rows[group]:
                continue  # it has no page
            file, start = self._files[number], region.starts[numbers[number]]
            content = region.bytes[start : start + file.size]
            body = find_body(file, content, within, self._leaf(number, column.name), dtype.itemsize)
            if body is None:
                return None
            bodies[group] = start + body
        bodies[bodies < 0] = bodies.max(initial=0)  # nothing is read there, but it is a place like the others
        return dtype, bodies

    def _map(self) -> Region:
        if self._region is None:
            widths = [column.stored_width for column in self._schema if column.stored_width]
            self._region = region_of(list(self._files.values()), widths)
        return self._region

    def _leaf(self, file: int, name: str) -> int:
        """Number of a column's (first) chunk in the row groups of a file."""
        if file not in self._leaves:
            self._leaves[file] = leaves_of(self._arrow_schema(file))
        return self._leaves[file][name]

    def _arrow_schema(self, file: int) -> pa.Schema:
        if file not in self._schemas:
            self._schemas[file] = self._files[file].footer.schema.to_arrow_schema()
        return self._schemas[file]


def _stacked(wanted: Wanted) -> list[tuple[str, ...]]:
    return [columns for columns in wanted.values() if not isinstance(columns, str)]


def unpack(bitmap: Bitmap, rows: int) -> npt.NDArray[np.bool_]:
    """Mask of the rows whose bits are set, (rows,) bool."""
    return np.unpackbits(bitmap, count=rows).view(np.bool_)


def count_selected(bitmap: Bitmap) -> int:
    return int(np.bitwise_count(bitmap).sum())


def _shortened(rows: Sequence[int]) -> str:
    listed = ", ".join(map(str, rows[:4]))
    return f"{listed}, ... ({len(rows)} groups)" if len(rows) > 4 else listed or "no"
