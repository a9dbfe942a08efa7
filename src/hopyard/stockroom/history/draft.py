"""Drafts: a revision with changes on top, which can be read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import itemgetter
from typing import Any, Literal

from hopyard.errors import UsageError
from hopyard.stockroom.data.conflicts import diff_columns
from hopyard.stockroom.data.drafts import ColumnDraft, Edit
from hopyard.stockroom.history.locks import Mark, writing
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.maps import SortedMap, encode
from hopyard.stockroom.maps.diff import same
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import ColumnRecord, Json, Record, Shelf, parse
from hopyard.stockroom.views.guard import Guard, guarded
from hopyard.stockroom.views.view import names_in, place_of

_ABSENT: Any = object()

Told = Callable[[WriteOperation], None]


class Draft:
    """Changes since a commit. Threads may share a draft, under its guard.

    From the first object that it adds until :meth:`release` it keeps the collector out (``history.locks``).

    Args:
        objects: of the repository.
        root: digest of the root map that it begins from; None: nothing is in it.
        told: is called with each write when it is made, to keep it; what it raises undoes the write. What the write
            needs is published first. None: nothing is published before :meth:`flush`.
        in_order: what a write that is told of happens in, from before anything of it is read: where others tell of
            writes too, it keeps them waiting, and applies what they told of until then.
        guard: says who may write; None: whoever has it.

    Attributes:
        base: the root map that it is compared with, and was begun from.
        revision: what messages call it.
        writer: where objects are added.
    """

    revision = "the working tree"

    def __init__(
        self, objects: Objects, root: str | None, told: Told | None = None,
        in_order: Callable[[], AbstractContextManager[None]] = nullcontext, guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.guard: Guard = guard or Guard()
        self.writer: PackfileWriter = objects.writing(before=self._begin, lock=self.guard)
        self.base = root
        self._objects, self._told, self._in_order = objects, told, in_order
        self._root = root  # what is published; on top of it are:
        self._records: dict[bytes, Any] = {}  # by key of the root map; None: it is gone
        self._columns: dict[str, ColumnDraft] = {}
        self._dirty: set[str] = set()  # columns with changes of their own
        self._locks = ExitStack()
        self._mark: Mark  # while it is locked
        self._is_locked = self._is_fresh = self._is_writing = self._is_closed = False
        self._has_added = False  # what is not published
        self._is_loose = False  # stands on objects that no write which was told of leads to
        self._last_map: SortedMap | None = None
        self._saved: list[str | None] = []  # root maps that errors lead back to

    # Reading

    @property
    def objects(self) -> PackfileWriter:
        """The objects that are read, also those that were added."""
        return self.writer

    @guarded
    def record(self, shelf: Shelf, name: str) -> Record | None:
        """The record of a thing; None if there is none of this name. The record of a column that was written to is made
        in memory, to be looked at: only :attr:`objects` of the column's snapshot have its pages. See :meth:`noted`."""
        if shelf == "data" and name in self._dirty:
            column = self._columns[name]
            return column.snapshot().record if column.is_there else None
        key = encode((shelf, name))
        value = self._records[key] if key in self._records else self._map.get(key)
        return None if value is None else parse(value, f"{shelf}/{name}")

    @guarded
    def has(self, shelf: Shelf, name: str) -> bool:
        """Whether there is a thing of this name; nothing is written for it, as may be for :meth:`record`."""
        if shelf == "data" and name in self._dirty:
            return self._columns[name].is_there
        return self.record(shelf, name) is not None

    @guarded
    def names(self, shelf: Shelf) -> list[str]:
        """All names on a shelf, sorted."""
        found = set(names_in(self._map, shelf))
        for key, value in self._records.items():
            where, name = place_of(key)
            if where == shelf:
                (found.discard if value is None else found.add)(name)
        if shelf == "data":
            found |= {name for name in self._dirty if self._columns[name].is_there}
        return sorted(found)

    # Writing

    @guarded
    def column(self, name: str) -> ColumnDraft:
        """The column of this name, also if there is none yet. It is one as long as the column is not removed.

        Raises:
            UsageError: what has this name is a dataset.
        """
        if name not in self._columns:
            record = self.record("data", name)
            if record is not None and not isinstance(record, ColumnRecord):
                raise UsageError(
                    f"{name!r} is a prepared dataset, stored by reference to its files, which are never changed. "
                    "Prepare it anew, or give the column another name."
                )

            def changed(edit: Edit | None) -> None:
                self._column_changed(column, edit)

            @contextmanager
            def writing() -> Iterator[None]:
                with self.writing():
                    # Before anything is read: where the column was removed, its objects may be gone by now.
                    self._check_taken(column)
                    yield

            column = ColumnDraft(self.writer, self.writer, name, record, changed, self.guard, writing)
            self._columns[name] = column
        return self._columns[name]

    @guarded
    def written(self, name: str) -> ColumnDraft | None:
        """The column of this name, if it was written to since it was stored or told of."""
        return self._columns[name] if name in self._dirty and self._columns[name].is_there else None

    @property
    def begun(self) -> str | None:
        """The root map that the outermost ``held`` leads back to."""
        return self._saved[0]

    @guarded
    def noted(self, shelf: Shelf, name: str) -> Record | None:
        """The record of a thing, to be noted elsewhere: what it needs is added, also of a column that was written to.

        Raises:
            UsageError: the draft is closed.
        """
        if shelf != "data" or name not in self._dirty:
            return self.record(shelf, name)
        with self.writing():
            column = self.written(name)
            if column is None or not column.is_changed:
                return self.record(shelf, name)
            if self._told is None:
                return self._flushed(name)
            record = column.flush()
            self._tell([(shelf, name, None if record is None else record.to_json())])
            return record

    def set(self, shelf: Shelf, name: str, record: Record | None) -> None:
        """Say this of a thing; None: there is none of this name any more. What it needs was added before.

        Raises:
            UsageError: the draft is closed.
        """
        self._check_open()
        value = None if record is None else record.to_json()
        with self.guard.write(f"a write to {shelf}/{name}"), self.writing():
            key = encode((shelf, name))
            was, column = self._records.get(key, _ABSENT), self._columns.get(name)
            is_dirty = shelf == "data" and name in self._dirty
            self._set(key, shelf, name, value)
            try:
                self._tell([(shelf, name, value)])
            except BaseException:
                self._records[key] = was
                if was is _ABSENT:
                    del self._records[key]
                if shelf == "data" and column is not None:
                    self._columns[name] = column
                if is_dirty:
                    self._dirty.add(name)
                raise

    @property
    def is_writing(self) -> bool:
        """Whether a write that is told of is under way, in whatever thread."""
        return self._is_writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One write, from before anything that it depends on is read. May be nested.

        Raises:
            UsageError: the draft is closed.
        """
        self._check_open()
        if self._told is None or self._is_writing:
            yield
            return
        self._lock()  # before what others who write wait for, as the collector does
        with self._in_order():
            self._is_writing = True
            had_added = self._has_added
            try:
                yield
            except BaseException:
                if not had_added:  # else the next write would store what this one could not
                    self.discard()
                raise
            finally:
                self._is_writing = False
                self._let_in()

    def apply(self, operations: Iterable[WriteOperation]) -> None:
        """Make the writes that ``told`` was told of, in another process or life, without telling it again.

        Raises:
            CorruptError: they cannot be read.
        """
        told, self._told = self._told, None
        try:
            for operation in operations:
                self._apply(operation)
        finally:
            self._told = told

    @guarded
    def write(self) -> str | None:
        """The root map as it is now, which may not be published yet."""
        for name in sorted(self._dirty):
            record = self._flushed(name)
            if record is not None:
                self._records[encode(("data", name))] = record.to_json()
        if self._records:
            self._is_loose = True
            self._root = SortedMap(self.writer, self._root).update(self.writer, self._records).root
        self._records, self._dirty = {}, set()
        return self._root

    @guarded
    def flush(self) -> str | None:
        """The root map as it is now; all that it needs is published."""
        root = self.write()
        self.publish()
        return root

    def publish(self) -> None:
        """Store durably what was added; see ``PackfileWriter.publish``."""
        if self._has_added:
            self.writer.publish()
            self._has_added = False

    def rebase(self, root: str | None) -> None:
        """Go on from this root map, which is stored. Columns that were taken before are those that it has of their
        names, or such as have no samples yet."""
        self._go_on(root, root, [root] * len(self._saved))

    def carry(self, base: str | None, carried: Callable[[str | None], str | None]) -> None:
        """Go on from another base, with the changes of before. What ``carried`` raises leaves all as it was.

        Args:
            carried: makes of a root map, the present one or one that errors lead back to, the one to have instead.
        """
        now = self.write()
        self._begin()
        roots = {root: carried(root) for root in (now, *self._saved)}
        self._go_on(base, roots[now], [roots[root] for root in self._saved])

    def _go_on(self, base: str | None, root: str | None, saved: list[str | None]) -> None:
        self.base, self._root, self._saved = base, root, saved
        self._records, self._dirty, self._is_loose = {}, set(), root != base
        for name, column in list(self._columns.items()):
            record = self.record("data", name)
            if record is not None and not isinstance(record, ColumnRecord):
                del self._columns[name]
            elif column.is_changed or column.flush() != record:
                column.stand_on(record)
            else:
                column.look_anew()

    def back(self, root: str | None) -> None:
        """Have what this root map has, instead of all that was changed. Columns that were taken before are closed."""
        self._root, self._is_loose = root, root != self.base
        self._records, self._columns, self._dirty = {}, {}, set()

    @contextmanager
    def held(self, things: Iterable[tuple[Shelf, str]] = ()) -> Iterator[None]:
        """Tell nobody of the writes inside; an exception undoes all of them.

        Args:
            things: are told of at the end, as one write; those that it gives then.
        """
        place, told = len(self._saved), self._told
        self._saved.append(self.write())
        self._told = None
        try:
            yield
            self._told = told
            told_of: list[tuple[Shelf, str, Json | None]] = []
            for shelf, name in things:
                is_written = shelf == "data" and name in self._dirty
                record = self._flushed(name) if is_written else self.record(shelf, name)
                told_of.append((shelf, name, None if record is None else record.to_json()))
            if told_of:
                self._tell(told_of)
        except BaseException:
            self.back(self._saved[place])
            raise
        finally:
            self._told = told
            del self._saved[place:]

    def close(self) -> None:
        """Refuse all further writes, also those of columns that were taken before."""
        self._is_closed = True
        self.release()

    @property
    def is_holding(self) -> bool:
        """Whether it keeps the collector out now."""
        return self._is_locked

    def discard(self) -> None:
        """Forget what was added and is not published, before :meth:`rebase`, as nothing is to lead to it."""
        self.writer.discard()
        self._has_added = False

    def release(self) -> None:
        """Let the collector in: something leads to all that was published."""
        self._is_locked = self._is_fresh = False
        self._locks.close()

    # What has changed

    @property
    def changed(self) -> bool:
        """Whether anything differs from the base."""
        return bool(self.changes())

    @guarded
    def changes(self) -> list[tuple[str, Literal["added", "removed", "changed"]]]:
        """Differences from the base, as ``(shelf/name, how)``, in order."""
        base = SortedMap(self._objects, self.base)
        now = {key: new for key, _, new in base.diff(self._map)} | self._records
        for name in self._dirty:
            key = encode(("data", name))
            now[key] = {} if self._differs(name, base.get(key)) else base.get(key)
        found: list[tuple[str, Literal["added", "removed", "changed"]]] = []
        for key, new in sorted(now.items(), key=itemgetter(0)):
            before = base.get(key)
            if not same(before, new):
                how: Any = "added" if before is None else "removed" if new is None else "changed"
                found.append(("/".join(place_of(key)), how))
        return found

    # How

    def _differs(self, name: str, base: Json | None) -> bool:
        """Whether a column that was written to differs from its record in the base: it may be as it was again."""
        before = None if base is None else parse(base, f"data/{name}")
        if not isinstance(before, ColumnRecord):
            return True
        now = self._columns[name].snapshot()
        if (before.settings, before.bits) != (now.record.settings, now.record.bits):
            return True
        return any(True for _ in diff_columns(now.objects, before, now.record))

    @property
    def _map(self) -> SortedMap:
        if self._last_map is None or self._last_map.root != self._root:  # it keeps pages that were read
            self._last_map = SortedMap(self.writer, self._root)
        return self._last_map

    def _lock(self) -> None:
        if not self._is_locked:
            self._mark = self._locks.enter_context(writing(self._objects.store))
            self._is_locked = True

    def _begin(self) -> None:
        """Before an object is added: from now on what is here stays."""
        self._has_added = True
        self._lock()
        if not self._is_fresh:
            self._objects.refresh_at(self._mark())
            self.writer.look_anew()
            self._is_fresh = True

    def _let_in(self) -> None:
        """Let the collector in, if what was told of leads to all that was added."""
        if not (self._has_added or self._is_loose or self._is_writing):
            self.release()

    def _flushed(self, name: str) -> ColumnRecord | None:
        """The record of a column that was written to."""
        column = self._columns[name]
        self._is_loose = self._is_loose or column.is_changed
        return column.flush()

    def _column_changed(self, column: ColumnDraft, edit: Edit | None) -> None:
        self._check_open()
        self._check_taken(column)
        name = column.name
        is_new = name not in self._dirty
        self._dirty.add(name)
        try:
            if self._told is None:
                return
            if edit is not None:
                self._told(WriteOperation(name, edit))
            else:
                record = column.flush()
                self._tell([("data", name, None if record is None else record.to_json())])
        except BaseException:
            if is_new:
                self._dirty.discard(name)
            raise

    def _tell(self, things: list[tuple[Shelf, str, Json | None]]) -> None:
        """Tell what things are now; all that they need is published first."""
        if self._told is not None:
            self.publish()
            self._told(WriteOperation(things=tuple(things)))

    def _apply(self, operation: WriteOperation) -> None:
        if operation.edit is not None:
            self.column(operation.column).apply(operation.edit)
        for shelf, name, value in operation.things:
            self._set(encode((shelf, name)), shelf, name, value, in_place=True)

    def _set(self, key: bytes, shelf: str, name: str, value: Json | None, in_place: bool = False) -> None:
        """Say this of a thing. ``in_place``: a column that was taken before is this one."""
        if shelf == "data":
            column = self._columns.get(name)
            record = None if value is None else parse(value, f"data/{name}")
            if column is not None and in_place and isinstance(record, ColumnRecord):
                column.stand_on(record)
            else:
                self._columns.pop(name, None)
            self._dirty.discard(name)
        self._records[key] = value

    def _check_taken(self, column: ColumnDraft) -> None:
        """See that the draft has this column, and no other one of its name."""
        if self._columns.get(column.name) is not column:
            raise UsageError(
                f"the column {column.name!r} was removed or replaced since it was taken, so nothing is written to it. "
                f"Take it anew: stock.data[{column.name!r}]."
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                "this was opened for writing before, and its writing has ended, so nothing is written to it. Take it "
                "anew: `with stock.enable_write(): stock.data[...]`."
            )
