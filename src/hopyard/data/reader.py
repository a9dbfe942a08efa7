"""Row groups as columns that any rows can be gathered from: mapped where possible, else decoded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.buffers import Buffers
from hopyard.data.decoded import leaves_of, read_as
from hopyard.data.layout import Values, stored_dtype
from hopyard.data.manifest import Manifest
from hopyard.data.mapped import MappedColumn, find_body, first_rows_of, stored_as
from hopyard.data.order import Rows
from hopyard.data.ragged import Ragged
from hopyard.data.region import Region, region_of
from hopyard.data.schema import Column
from hopyard.data.stored import StoredFile
from hopyard.data.views import Batch, HeldColumn, Source, View, join
from hopyard.errors import CorruptError
from hopyard.storage.base import Store

WINDOW_BYTES = 256 << 20
"""Decoded bytes that a dataset keeps in memory at most, and a window of its loaders."""


class Reader:
    """The files of a dataset, open on this machine.

    Args:
        store: holds the files, or None if their names are paths.
        manifest: of the dataset.
        groups: numbers of the row groups to read; the reader's own numbers count these.
        prepared: columns of fixed width must be flat arrays; otherwise what is not is decoded.

    Raises:
        CorruptError: a file is not what the manifest promises; names it.
        NotFoundError: a file is missing.
    """

    def __init__(
        self, store: Store | None, manifest: Manifest, groups: Sequence[int], prepared: bool = True
    ) -> None:
        self.manifest = manifest
        places = [
            (number, within)
            for number, entry in enumerate(manifest.files)
            for within in range(len(entry.group_rows))
        ]
        self._places = [places[group] for group in groups]
        self.group_rows = [manifest.files[file].group_rows[within] for file, within in self._places]
        self.first_rows = first_rows_of(self.group_rows)
        self._files = {
            number: self._open(store, number) for number in sorted({file for file, _ in self._places})
        }
        self._prepared = prepared
        self._region: Region | None = None
        self._schemas: dict[int, pa.Schema] = {}
        self._leaves: dict[int, dict[str, int]] = {}
        self._bodies: dict[str, tuple[np.dtype[Any], Rows] | None] = {}
        self._mapped_views: dict[tuple[str, ...], View] = {}
        self._lock = threading.Lock()  # threads may share a dataset; guards what is held
        self._held: OrderedDict[tuple[str, tuple[int, ...]], tuple[Source, int]] = OrderedDict()

    def _open(self, store: Store | None, number: int) -> StoredFile:
        entry = self.manifest.files[number]
        file = StoredFile.open(store, entry.name)
        if file.size != entry.size:
            raise CorruptError(
                f"{file.name} has {file.size} bytes, but had {entry.size} when the dataset was made: it was "
                "truncated or changed. Restore it, or prepare the data again."
            )
        footer = file.footer
        rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        if rows != entry.group_rows:
            raise CorruptError(
                f"{file.name} has row groups of {_shortened(rows)} rows, but the dataset's manifest says "
                f"{_shortened(entry.group_rows)}: the file was changed. Restore it, or delete it and "
                "prepare the data again."
            )
        return file

    def window_rows(self) -> int | None:
        """How many rows a window may have so that what is decoded of it stays within WINDOW_BYTES.

        None if everything that is not mapped fits. Of columns whose rows differ in size, bytes are
        as in the files, before compression.
        """
        decoded = [column for column in self.manifest.schema if not self.is_mapped(column)]
        size = sum(self._decoded_bytes(column, range(len(self.group_rows))) for column in decoded)
        rows = sum(self.group_rows)
        return None if size <= WINDOW_BYTES else max(rows * WINDOW_BYTES // size, 1)

    def _decoded_bytes(self, column: Column, groups: Iterable[int]) -> int:
        size = 0
        for group in groups:
            if column.width is not None:
                size += column.width * self.group_rows[group]
                continue
            file, within = self._places[group]
            footer = self._files[file].footer
            size += footer.row_group(within).column(self._leaf(file, column.name)).total_uncompressed_size
            size += 8 * self.group_rows[group]
        return size

    def is_mapped(self, column: Column) -> bool:
        if self._prepared:
            return stored_dtype(column) is not None
        return self._find_bodies(column) is not None

    def view(self, names: Sequence[str], groups: Sequence[int] | None = None) -> View:
        """The columns of these names of all row groups, or of some in the order given."""
        chosen = tuple(range(len(self.group_rows))) if groups is None else tuple(groups)
        columns = [self.manifest.schema[name] for name in names]
        missing = [column for column in columns if not self.is_mapped(column)]
        with self._lock:
            held = self._hold(missing, chosen)
        sources = {
            column.name: held[column.name] if column.name in held else self._mapped(column, chosen)
            for column in columns
        }
        return View([self.group_rows[group] for group in chosen], sources)

    def gather(self, rows: Rows, names: Sequence[str]) -> Batch:
        """Any rows, in any order. What must be decoded is, a row group at a time."""
        buffers = Buffers()
        if all(self.is_mapped(self.manifest.schema[name]) for name in names):
            key = tuple(names)
            if key not in self._mapped_views:
                self._mapped_views[key] = self.view(names)
            return self._mapped_views[key].gather(rows, buffers)
        if not len(rows):
            return self.view(names, [0]).gather(rows, buffers)
        groups = np.searchsorted(self.first_rows, rows, side="right") - 1
        by_group = np.argsort(groups, kind="stable")
        present, starts = np.unique(groups[by_group], return_index=True)
        parts = [
            self.view(names, [group]).gather(rows[where] - self.first_rows[group], buffers)
            for group, where in zip(present.tolist(), np.split(by_group, starts[1:]), strict=True)
        ]
        back = np.empty_like(by_group)
        back[by_group] = np.arange(len(rows))
        return {name: _take(values, back, buffers) for name, values in join(parts, buffers).items()}

    def _mapped(self, column: Column, groups: tuple[int, ...]) -> Source:
        found = self._find_bodies(column)
        if found is None or self._region is None:
            raise CorruptError(self._not_flat(column))
        stored, bodies = found
        chosen = np.array(groups, np.int64)
        rows = np.array(self.group_rows, np.int64)[chosen]
        return MappedColumn(
            column, stored, self._region.bytes, bodies[chosen], first_rows_of(rows.tolist()), rows
        )

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
        if column.width is None or not column.width:
            return None
        region = self._map()
        numbers = {file: place for place, file in enumerate(self._files)}
        stored = {
            stored_as(
                column,
                file.footer.schema.column(self._leaf(number, column.name)),
                self._arrow_schema(number).field(column.name).type,
            )
            for number, file in self._files.items()
        }
        if len(stored) != 1 or (dtype := stored.pop()) is None:
            return None
        bodies = np.full(len(self._places), -1, np.int64)
        for group, (number, within) in enumerate(self._places):
            if not self.group_rows[group]:
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
            widths = [column.width for column in self.manifest.schema if column.width]
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

    def _hold(self, columns: Sequence[Column], groups: tuple[int, ...]) -> dict[str, Source]:
        """The columns decoded, and kept for the next time as long as WINDOW_BYTES suffice."""
        held = {column.name: self._held.pop((column.name, groups), None) for column in columns}
        wanted = [column for column in columns if held[column.name] is None]
        if wanted:
            # What was decoded before goes first: two windows never are in memory at once.
            sizes = {column.name: self._decoded_bytes(column, groups) for column in wanted}
            kept = sum(size for _, size in self._held.values())
            while self._held and kept + sum(sizes.values()) > WINDOW_BYTES:
                _, (_, size) = self._held.popitem(last=False)
                kept -= size
            for name, values in self._decode(wanted, groups).items():
                held[name] = HeldColumn(self.manifest.schema[name], values), sizes[name]
        sources: dict[str, Source] = {}
        for name, entry in held.items():
            assert entry is not None
            self._held[name, groups] = entry
            sources[name] = entry[0]
        return sources

    def _decode(self, columns: Sequence[Column], groups: Sequence[int]) -> dict[str, Values]:
        rows = sum(self.group_rows[group] for group in groups)
        dense = {
            column.name: np.empty((rows, *column.shape), column.dtype)
            for column in columns
            if column.kind == "tensor"
        }
        ragged: dict[str, list[Ragged]] = {column.name: [] for column in columns if column.kind != "tensor"}
        start = 0
        for group in groups:
            stop = start + self.group_rows[group]
            for column, values in self._decode_group(columns, group):
                if isinstance(values, Ragged):
                    ragged[column.name].append(values)
                else:
                    dense[column.name][start:stop] = values
            start = stop
        return {**dense, **{name: Ragged.concatenate(parts) for name, parts in ragged.items()}}

    def _decode_group(self, columns: Sequence[Column], group: int) -> Iterator[tuple[Column, Values]]:
        number, within = self._places[group]
        file = self._files[number]
        try:
            table = file.parquet().read_row_group(
                within, columns=[column.name for column in columns], use_threads=False
            )
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptError(
                f"{file.name}, row group {within}, columns {', '.join(column.name for column in columns)}: "
                f"{error} The file was truncated or changed: restore it, or delete it and prepare the data again."
            ) from error
        for column in columns:
            yield column, read_as(column, table[column.name], f"{file.name}, row group {within}")


def _take(values: Any, rows: npt.NDArray[np.intp], buffers: Buffers) -> Any:
    if isinstance(values, Ragged) or values.dtype == object:
        return values[rows]
    out = buffers.empty(len(rows), values.dtype, values.shape[1:])
    return np.take(values, rows, axis=0, out=out, mode="clip")


def _shortened(rows: Sequence[int]) -> str:
    listed = ", ".join(map(str, rows[:4]))
    return f"{listed}, ... ({len(rows)} groups)" if len(rows) > 4 else listed or "no"
