"""Drafts: a revision with changes on top, which can be read at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from operator import itemgetter
from typing import Any, Literal

from hopyard.errors import UsageError
from hopyard.stockroom.data.conflicts import diff_columns
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.samples import Stored
from hopyard.stockroom.guard import Guard, guarded
from hopyard.stockroom.history.locks import writing
from hopyard.stockroom.history.merge import merge_roots
from hopyard.stockroom.maps import Key, SortedMap, encode
from hopyard.stockroom.maps.diff import same
from hopyard.stockroom.operations import Operation
from hopyard.stockroom.packs import Objects, PackWriter
from hopyard.stockroom.records import ColumnRecord, Json, Record, Shelf, parse
from hopyard.stockroom.view import names_in, place_of

_INLINE = 1 << 20  # bytes of an operation

Told = Callable[[Operation], None]


class Draft:
    """What is changed since a commit. Threads may share it, under its guard.

    From the first object that it adds until :meth:`release` it keeps the collector out (``history.locks``).

    Args:
        objects: of the repository.
        root: digest of the root map that it begins from; None: nothing is in it.
        told: is called with each write when it is made, to keep it; what it raises undoes the write. Writes that are
            large are published first. None: nothing is published before :meth:`flush`.
        guard: says who may write; None: whoever has it.

    Attributes:
        base: the root map that it is compared with, and was begun from.
        revision: what messages call it.
        writer: where objects are added.
    """

    revision = "the working tree"

    def __init__(
        self, objects: Objects, root: str | None, told: Told | None = None, guard: Guard | None = None
    ) -> None:
        self.guard = guard or Guard()
        self.writer: PackWriter = objects.writing(before=self._begin, lock=self.guard)
        self.base = root
        self._objects, self._told = objects, told
        self._root = root  # what is published; on top of it are:
        self._records: dict[bytes, Any] = {}  # by key of the root map; None: it is gone
        self._columns: dict[str, ColumnDraft] = {}
        self._dirty: set[str] = set()  # columns with changes of their own
        self._locks = ExitStack()
        self._is_locked = self._has_added = self._is_closed = False
        self._last_map: SortedMap | None = None
        self._saved: list[str | None] = []  # root maps that errors lead back to

    # Reading

    @property
    def objects(self) -> PackWriter:
        """Where objects are read; those that were added too."""
        return self.writer

    @guarded
    def record(self, shelf: Shelf, name: str) -> Record | None:
        """What the draft says of a thing; None if there is none of this name."""
        if shelf == "data" and name in self._dirty:
            return self._columns[name].flush()
        key = encode((shelf, name))
        value = self._records[key] if key in self._records else self._map.get(key)
        return None if value is None else parse(value, f"{shelf}/{name}")

    @guarded
    def names(self, shelf: Shelf) -> list[str]:
        """All names on a shelf, sorted."""
        found = set(names_in(self._map, shelf))
        for key, value in self._records.items():
            where, name = place_of(key)
            if where == shelf:
                (found.discard if value is None else found.add)(name)
        return sorted(found | self._dirty if shelf == "data" else found)

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

            def changed(
                do: Literal["set", "delete", "bulk"], keys: list[Key], samples: list[Stored] | None
            ) -> None:
                self._column_changed(column, do, keys, samples)

            column = ColumnDraft(self.writer, self.writer, name, record, changed, self.guard)
            self._columns[name] = column
        return self._columns[name]

    @property
    def begun(self) -> str | None:
        """The root map that the outermost ``held`` leads back to."""
        return self._saved[0]

    def set(self, shelf: Shelf, name: str, record: Record | None) -> None:
        """Say this of a thing; None: there is none of this name any more. What it needs was added before.

        Raises:
            UsageError: the draft is closed.
        """
        self._check_open()
        with self.guard.write(f"a write to {shelf}/{name}"), self._undone_on_errors():
            if shelf == "data":
                self._columns.pop(name, None)
                self._dirty.discard(name)
            value = None if record is None else record.to_json()
            self._records[encode((shelf, name))] = value
            self._tell(Operation("record", shelf, name, value=value))

    def apply(self, operations: Iterable[bytes]) -> None:
        """Make the writes that ``told`` was told of, in another process or life, without telling it again.

        Raises:
            CorruptError, FormatError: they cannot be read.
        """
        told, self._told = self._told, None
        try:
            for data in operations:
                self._apply(Operation.decode(data))
        finally:
            self._told = told

    @guarded
    def write(self) -> str | None:
        """The root map as it is now, which may not be published yet."""
        for name in sorted(self._dirty):
            record = self._columns[name].flush()
            if record is not None:
                self._records[encode(("data", name))] = record.to_json()
        if self._records:
            self._root = SortedMap(self.writer, self._root).update(self.writer, self._records).root
        self._records, self._dirty = {}, set()
        return self._root

    @guarded
    def flush(self) -> str | None:
        """The root map as it is now; all that it needs is published."""
        with self._undone_on_errors():
            root = self.write()
            self.publish()
        return root

    def publish(self) -> None:
        """Store durably what was added; see ``PackWriter.publish``."""
        if self._has_added:
            self.writer.publish()
            self._has_added = False

    def rebase(self, root: str | None) -> None:
        """Go on from this root map, which has all changes that were made. Columns that were taken before are closed if
        it has others of their names."""
        self.base = self._root = root
        self._saved = [root] * len(self._saved)
        self._records, self._dirty = {}, set()
        for name, column in list(self._columns.items()):
            if column.flush() != self.record("data", name):
                del self._columns[name]

    def back(self, root: str | None) -> None:
        """Have what this root map has, instead of all that was changed. Columns that were taken before are closed."""
        self._root = root
        self._records, self._columns, self._dirty = {}, {}, set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is written inside is told to nobody; an exception undoes all of it."""
        place, told = len(self._saved), self._told
        self._saved.append(self.write())
        self._told = None
        try:
            yield
        except BaseException:
            self.back(self._saved[place])
            raise
        finally:
            self._told = told
            del self._saved[place:]

    def tell(self) -> None:
        """Publish what was written, and tell of it as one write: what ``held`` did not."""
        self._tell(None)

    def close(self) -> None:
        """Refuse all further writes, also those of columns that were taken before."""
        self._is_closed = True
        self.release()

    def release(self) -> None:
        """Let the collector in: something leads to all that was published."""
        self._is_locked = False
        self._locks.close()

    # What has changed

    @property
    def changed(self) -> bool:
        """Whether anything differs from the base."""
        return bool(self.changes())

    @guarded
    def changes(self) -> list[tuple[str, Literal["added", "removed", "changed"]]]:
        """What differs from the base, as ``(shelf/name, how)``, in order."""
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

    def _begin(self) -> None:
        """Before an object is added: from now on what is here stays."""
        self._has_added = True
        if not self._is_locked:
            self._locks.enter_context(writing(self._objects.store))
            self._is_locked = True
            self._objects.refresh()

    def _column_changed(
        self, column: ColumnDraft, do: Literal["set", "delete", "bulk"], keys: list[Key],
        samples: list[Stored] | None,
    ) -> None:  # fmt: skip
        self._check_open()
        name = column.name
        if self._columns.get(name) is not column:
            raise UsageError(
                f"the column {name!r} was removed or replaced since it was taken, so nothing is written to it. "
                f"Take it anew: stock.data[{name!r}]."
            )
        with self._undone_on_errors():
            self._dirty.add(name)
            if do == "bulk":
                self._tell(None)
            else:
                self._tell(Operation(do, "data", name, tuple(keys), tuple(samples or ())))

    def _tell(self, operation: Operation | None) -> None:
        """Tell of a write. If it is large (None), or needs objects that wait, all is published, and the root told."""
        if self._told is None:
            return
        if operation is None or self._has_added or _is_large(operation):
            before = self._root
            operation = Operation("root", value=[before, self.flush()])
        self._told(operation)
        if operation.do == "root":
            self.release()

    def _apply(self, operation: Operation) -> None:
        if operation.do == "set":
            self.column(operation.name).update(dict(zip(operation.keys, operation.samples, strict=True)))
        elif operation.do == "delete":
            column = self.column(operation.name)
            for key in operation.keys:
                with suppress(KeyError):  # another process may have deleted it, too
                    del column[key]
        elif operation.do == "record":
            shelf, name = place_of(encode((operation.shelf, operation.name)))
            value = operation.value
            self.set(shelf, name, None if value is None else parse(value, f"{shelf}/{name}"))
        else:
            before, after = operation.value
            now = self.write()
            if now not in (before, after):  # small writes, or those of another process
                after = merge_roots(self.writer, before, now, after, "theirs").root
            self.back(after)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                "this was opened for writing before, and its writing has ended, so nothing is written to it. Take it "
                "anew: `with stock.enable_write(): stock.data[...]`."
            )

    @contextmanager
    def _undone_on_errors(self) -> Iterator[None]:
        state = self._root, dict(self._records), dict(self._columns), set(self._dirty)
        try:
            yield
        except BaseException:
            self._root, self._records, self._columns, self._dirty = state
            raise


def _is_large(operation: Operation) -> bool:
    return operation.do == "record" and len(json.dumps(operation.value)) > _INLINE
