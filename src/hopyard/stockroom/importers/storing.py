"""Importing: what an importer reads becomes columns, staged as it goes, so that it can go on after a kill.

Beside the stage lies ``stage/<worktree>.importing``: which importer and source it is. What is staged of a column says
how far it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.errors import DataError, UsageError
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.importers.base import ColumnSource, Importer, Samples
from hopyard.stockroom.importers.parts import listed
from hopyard.stockroom.importers.registry import open_importer
from hopyard.stockroom.importers.run import ImportProgress, check_columns, read_columns
from hopyard.stockroom.maps import SortedMap, decode, encode
from hopyard.stockroom.records import ColumnRecord, Shelf, check_name
from hopyard.stockroom.session.moving import reset
from hopyard.stockroom.session.session import StockSession
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import Store
from hopyard.storage.oserrors import read_error
from hopyard.wording import counted

_AT_ONCE = 64 << 20  # bytes after which what came is staged: what a kill costs at most


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        commit: its digest.
        columns: their names, and how many samples each has.
        resumed: samples of all columns that an interrupted import had brought before.
        is_new: False: all of it was there already, so nothing was committed.
        notes: what may be meant otherwise: rows that have other keys than before, or a column that is left from an
            earlier import.
    """

    commit: str
    columns: dict[str, int]
    resumed: int
    is_new: bool = True
    notes: tuple[str, ...] = ()


def import_from(
    session: StockSession,
    name: str,
    source: str | os.PathLike[str] | None,
    options: Mapping[str, str | bool | int] | None,
    processes: int,
    message: str | None,
    watch: Callable[[ImportProgress], None] | None,
    watch_download: Callable[[str, int, int | None], None] | None,
) -> Imported:
    """Import columns, and commit them; see ``StockRoom.import_from``."""
    session.check_open()
    with session.guard.write("stock.import_from()"):
        session.check_no_block("import")
    with open_importer(name, source, options) as importer:
        importer.watch_download = watch_download
        writer = StockSession(session.place.root, enable_write=True)
        try:
            imported = import_columns(writer, name, importer, processes, message, watch)
        finally:
            writer.close()
    with session.guard.write("stock.import_from()"):
        session.renew()
    return imported


def import_columns(
    session: StockSession,
    name: str,
    importer: Importer,
    processes: int = 0,
    message: str | None = None,
    watch: Callable[[ImportProgress], None] | None = None,
) -> Imported:
    """Import all columns of an open importer into a session that is open for writing, and commit them.

    Columns of the same names that are there are replaced.

    Raises:
        UsageError: something else is staged; a column is called what no column can be. Nothing was written.
        DataError: columns of a split have different counts; the source is a folder where a file is needed. Nothing was
            written.
    """
    draft = session.view
    assert isinstance(draft, Draft)
    with _opening(name, importer):
        columns = importer.columns()
        for column in columns:
            check_name(column.name, f"A column of the import {name!r}")
        check_columns(columns)
        identity = importer.identity()
    begun = _Begun(session, name, identity, columns)
    done = begun.samples(draft) if begun.is_this else {}
    if not begun.is_this:
        if draft.changed:
            raise UsageError(
                f"something is staged, which the commit of the import {name!r} would have as well. Commit it (hopyard "
                "stock commit), or discard it (hopyard stock reset)."
            )
        begun.write()
    notes = _notes(Snapshot(session.local.objects, draft.base, "the last commit"), importer, columns)
    _write(draft, columns, done, processes, watch)
    text = _title(name, importer) if message is None else message
    is_new = draft.changed
    if is_new:
        replaced = [path.removeprefix("data/") for path, how in draft.changes() if how == "changed"]
        if replaced:
            text += f"\n\nReplaces {listed(replaced)}."
        session.commit(f"{text}\n\n{json.dumps(identity, sort_keys=True, ensure_ascii=False)}")
    else:
        reset(session)
    begun.remove()
    commit = session.stand().commit
    assert commit is not None
    counts = {column.name: column.count for column in columns}
    return Imported(commit, counts, sum(done.values()), is_new, notes)


@contextmanager
def _opening(name: str, importer: Importer) -> Iterator[None]:
    """Turn what the file system raises while an importer opens its source into errors with the next step."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError) as error:
        at = error.filename or importer.source
        given, needed = ("folder", "file") if isinstance(error, IsADirectoryError) else ("file", "folder")
        raise DataError(
            f"the importer {name!r} was given {importer.source}, and {at} is a {given}, where it reads a {needed}. "
            "Give another path; `hopyard stock import` without arguments says what each importer takes."
        ) from error
    except OSError as error:
        raise read_error(str(error.filename or importer.source), error) from error


def _notes(before: Snapshot, importer: Importer, columns: list[ColumnSource]) -> tuple[str, ...]:
    """Lines on keys that are others than before this import.

    Args:
        before: the commit upon which it is.
    """
    notes = []
    known = {column.name: before.record("data", column.name) for column in columns}
    shifted = [
        (column.name, record.count, column.count)
        for column in columns
        if column.keys is None
        and isinstance(record := known[column.name], ColumnRecord)
        and record.count != column.count
        and _is_numbered(before, record)
    ]
    if shifted:
        name, old, new = shifted[0]
        also = f" (and {counted(len(shifted) - 1, 'other column')})" if len(shifted) > 1 else ""
        notes.append(
            f"{name!r}{also} had {counted(old, 'row')} and has {new:,} now; keys are the numbers of rows, so from the "
            "first row that came or went each key means another row, also in merges. A column of ids keeps them: key=ID"
        )
    settings = importer.settings
    key = f"{settings.get('prefix', '')}{settings['key']}" if settings.get("key") else ""
    left = before.record("data", key) if key and key not in known else None
    if isinstance(left, ColumnRecord) and _is_numbered(before, left):
        notes.append(
            f"the column {key!r}, which has the keys now, is still there from an import without key=, under the "
            f"numbers of its rows. If nothing needs it: del stock.data[{key!r}]"
        )
    return tuple(notes)


def _is_numbered(before: Snapshot, record: ColumnRecord) -> bool:
    """Whether the keys of a column are 0, 1, 2, ..."""
    entries = SortedMap(before.objects, record.pages)
    if not len(entries):
        return False
    (first, _), (begin, value) = entries.at(0), entries.at(len(entries) - 1)
    return decode(first) == 0 and FragmentEntry.of(begin, value).last == encode(record.count - 1)


def _title(name: str, importer: Importer) -> str:
    if importer.source is None:
        return f"Import {name}"
    file = importer.source.name.encode(errors="replace").decode()  # a name may be no UTF-8
    return f"Import {' '.join(file.split())} as {name}"


def _write(
    draft: Draft,
    columns: list[ColumnSource],
    done: dict[str, int],
    processes: int,
    watch: Callable[[ImportProgress], None] | None,
) -> None:
    sources = {column.name: column for column in columns}
    chunks = read_columns(columns, processes=processes, start=done, watch=watch)
    chunk = next(chunks, None)
    while chunk is not None:
        nbytes = 0
        written: dict[tuple[Shelf, str], None] = {}
        with draft.writing(), draft.held(written):
            while chunk is not None and nbytes < _AT_ONCE:
                column, first, samples = chunk
                written["data", column] = None
                _add(draft, sources[column], first, samples)
                nbytes += _size(samples)
                chunk = next(chunks, None)


def _add(draft: Draft, source: ColumnSource, first: int, samples: Samples) -> None:
    if first == 0:
        draft.set("data", source.name, None)
    column = draft.column(source.name)
    if source.keys is None:
        column.extend(samples)
        return
    keys = source.keys(first, first + len(samples))
    if isinstance(samples, np.ndarray):
        column.update_rows(keys, samples)
    else:
        column.update(dict(zip(keys, samples, strict=True)))


def _size(samples: Samples) -> int:
    if isinstance(samples, list):
        return sum(len(each) if isinstance(each, str | bytes) else each.nbytes for each in samples)
    return samples.nbytes


class _Begun:
    """Mark of an import that is under way upon a commit."""

    def __init__(
        self, session: StockSession, name: str, identity: Mapping[str, Any], columns: list[ColumnSource]
    ) -> None:
        self._store: Store = session.local.store
        self._object = f"stage/{session.place.worktree}.importing"
        self._columns = columns
        self._value = json.dumps(
            {
                "base": session.stand().commit, "columns": [[each.name, each.count] for each in columns],
                "identity": identity, "importer": name,
            },
            sort_keys=True,
        ).encode()  # fmt: skip

    @property
    def is_this(self) -> bool:
        """Whether the same import was begun before."""
        return (
            self._store.size(self._object) == len(self._value)
            and self._store.get(self._object) == self._value
        )

    def samples(self, draft: Draft) -> dict[str, int]:
        """By column, how many came before."""
        there = {path for path, _ in draft.changes()}
        return {
            column.name: len(draft.column(column.name))
            for column in self._columns
            if f"data/{column.name}" in there
        }

    def write(self) -> None:
        self._store.put(self._object, self._value)

    def remove(self) -> None:
        self._store.delete(self._object)
