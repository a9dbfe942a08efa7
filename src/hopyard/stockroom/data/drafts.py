"""Columns as they are written: a column with changes on top, which can be read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, DataError, UsageError
from hopyard.stockroom.data import given
from hopyard.stockroom.data.column import SampleColumn, samples_html
from hopyard.stockroom.data.cutting import Writer, rewrite
from hopyard.stockroom.data.frames import without_frame
from hopyard.stockroom.data.gathering import FragmentReader, Positions, buried_in
from hopyard.stockroom.data.given import Settings
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes, encoded, following, keys_of
from hopyard.stockroom.data.samples import (
    describe,
    empty_record,
    is_array,
    stored_dtype,
    stored_sample,
    to_user,
)
from hopyard.stockroom.data.scratch import Scratch
from hopyard.stockroom.maps import Key, check_key, decode, encode
from hopyard.stockroom.records import ColumnRecord
from hopyard.stockroom.views.guard import Guard, guarded

SMALL_BYTES = 1 << 20
SMALL_COUNT = 1024
_HELD_BYTES = 32 << 20
_HELD_COUNT = 1 << 16


class Edit(NamedTuple):
    """A change of a column.

    Attributes:
        record: of an empty column that holds the same.
        gone: encoded keys whose samples go.
        new: samples that are there afterwards; None: there are none.
    """

    record: ColumnRecord
    gone: Sequence[bytes]
    new: KeyedSamples | None = None


Changed = Callable[[Edit | None], None]
"""Told of every change when it is made: the edit, if its samples are at most 1,024 and 1 MiB; None for anything else,
also new settings, and when what is held becomes much: ``flush`` says what the column is now. What it raises undoes the
change."""

_Held = tuple[SampleBytes, int]  # a sample: its place among others that came with it


class ColumnDraft(MutableMapping[Any, Any]):
    """Reads as a ``SampleColumn`` with its changes, which are held until ``flush``; large ones go to packfiles at once.

    Args:
        objects: where the column is read.
        writer: where it is written.
        name: for messages.
        record: of the column; None: there is none yet. The first samples say what it holds.
        changed: see ``Changed``.
        guard: says who may write; None: whoever has it.
        in_order: what each change happens in, from before anything of the column is read for it.
    """

    def __init__(
        self, objects: FragmentReader, writer: Writer, name: str, record: ColumnRecord | None = None,
        changed: Changed | None = None, guard: Guard | None = None,
        in_order: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self.guard: Guard = guard or Guard()
        self.name = name
        self._writer, self._changed, self._in_order = writer, changed, in_order
        self._record = record
        self._column = SampleColumn(objects, name, record or _NOTHING)
        self._pending: dict[bytes, _Held | None] = {}
        self._pending_bytes = 0
        self._groups: dict[
            Key, set[bytes]
        ] = {}  # keys of pending parts by nested sample, also of some that are not
        self._more = 0  # samples than in the column below
        self._buried: Mapping[str, str] = {}  # when they were last counted
        self._next: int | None = None
        self._told = 0  # writes
        self._seen: SampleColumn | None = None

    def __repr__(self) -> str:
        return f"<draft of {self._view()!r}>"

    def _repr_html_(self) -> str:
        """A table of the first samples, for notebooks."""
        return samples_html(self)

    def _ipython_key_completions_(self) -> list[Any]:
        """The first thousand keys, which IPython and notebooks offer within brackets."""
        return list(islice(self, 1000))

    def __eq__(self, other: object) -> bool:
        # Not that of mappings, which would read all of both.
        return object.__eq__(self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    # Reading

    @property
    def kind(self) -> str:
        return self._view_of_settings().kind

    @property
    def dtype(self) -> str:
        return self._view_of_settings().dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self._view_of_settings().shape

    @property
    def is_nested(self) -> bool:
        return self._view_of_settings().is_nested

    @property
    def nbytes(self) -> int:
        return self._view().nbytes

    @guarded
    def __len__(self) -> int:
        buried = buried_in(self._writer)
        if buried != self._buried:  # keys pass over what was purged since it was counted
            self._buried = buried
            self.look_anew()
            self._seen = None
            there = len(self._column.has(sorted(self._pending)))
            self._more = sum(value is not None for value in self._pending.values()) - there
        return len(self._column) + self._more

    def __iter__(self) -> Iterator[Any]:
        return iter(self._view())

    @guarded
    def __contains__(self, key: object) -> bool:
        code = self._held(key)
        if code is None:
            return key in self._view()
        return self._pending[code] is not None if code in self._pending else key in self._column

    def __getitem__(self, key: Any) -> Any:
        with self.guard:
            code = self._held(key)
            found = None if code is None else self._pending.get(code)
            # Building a view takes as long as all that is pending.
            is_below = code is not None and code not in self._pending
            record = self._column.record
        if found is not None:
            return to_user(stored_sample(*found, record))
        if not is_below:
            return self._view()[key]
        try:
            return self._column[key]
        except KeyError:
            raise self._view().missing(check_key(key)) from None

    def _held(self, key: Any) -> bytes | None:
        """The encoding of a key, under which what is pending can be looked up; None: it names no single sample, or
        nothing is pending."""
        is_one = isinstance(key, tuple if self._column.record.nested else int | str | np.integer)
        return encode(key) if is_one and self._pending else None

    def positions(self, keys: Any) -> Positions:
        """As ``SampleColumn.positions``."""
        return self._view().positions(keys)

    def take(self, positions: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> Any:
        """As ``SampleColumn.take``."""
        return self._view().take(positions, out)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self._view().__array__(dtype, copy)

    @property
    def is_there(self) -> bool:
        """Whether anything says what the column holds."""
        return self._record is not None

    @property
    def is_changed(self) -> bool:
        """Whether :meth:`flush` has something to write."""
        return bool(self._pending)

    @property
    def settings(self) -> ColumnRecord:
        """The record of an empty column that holds the same."""
        record = self._view_of_settings().record
        return empty_record(record.kind, record.dtype, record.shape, record.nested)

    def snapshot(self) -> SampleColumn:
        """The column as it is now; later changes do not show in it. It reads from the writer."""
        return self._view()

    @guarded
    def _view(self) -> SampleColumn:
        """The column with its changes, whose fragments are in memory only."""
        if not self._pending or self._record is None:
            return self._column
        if self._seen is None:
            scratch = Scratch(self._writer)
            self._seen = SampleColumn(scratch, self.name, self._rewritten(scratch, self._record))
        return self._seen

    def _view_of_settings(self) -> SampleColumn:
        if self._record is None:
            raise UsageError(
                f"column {self.name!r} has no samples yet, which would say what it holds. Add some, or call "
                ".create(dtype=..., shape=...)."
            )
        return self._column

    # Writing

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update({check_key(key): value})

    def __delitem__(self, key: Any) -> None:
        with self._writing():
            self._delete(check_key(key))

    def _delete(self, checked: Key) -> None:
        if self._column.record.nested and not isinstance(checked, tuple):
            codes = self._group(checked)
        else:
            code = encode(checked)
            is_left = code not in self._pending and self._column.was_purged(code)
            codes = [code] if checked in self or is_left else []
        if not codes:
            raise self._view().missing(checked)
        self._hold(Edit(self.settings, codes))

    def update(self, values: Mapping[Any, Any] = {}, /, **more: Any) -> None:  # type: ignore[override]
        """Set the samples of a mapping from keys. In a nested column a sample is a dict of parts, and replaces all.

        Raises:
            DataError: one of them does not fit the column; none was written.
        """
        values = without_frame(self.name, values, "update")
        given.check_samples(self.name, values)
        with self._writing(values):
            self._update(values, **more)

    def _update(self, values: Mapping[Any, Any], **more: Any) -> None:
        if more or not isinstance(values, Mapping):
            raise UsageError(
                f"update of column {self.name!r} was given {'keywords' if more else type(values).__name__}. Give it "
                "one dict of keys and samples; extend() takes samples without keys."
            )
        settings, told = Settings(self.name, self._record), self._told
        gone: list[bytes] = []
        if self._record is not None and self._record.nested:
            for key in values:
                checked = check_key(key)
                if not isinstance(checked, tuple):
                    gone += self._group(checked)
        together = given.rows_by_key(values, settings)
        if together is not None:
            batches = given.batches_of_rows(*together, settings)
        else:
            items = given.keyed(values, settings)
            batches = given.batches_of_items(items, settings, isinstance(values, dict))
        self._write(batches, settings, sorted(gone), told)

    def update_rows(self, keys: Sequence[Key], rows: npt.NDArray[Any]) -> None:
        """Set the samples under keys, all different and none a pair, to the rows of an array (n, ...) of numbers."""
        with self._writing(rows):
            settings, told = Settings(self.name, self._record), self._told
            self._write(given.batches_of_rows(keys, rows, settings), settings, [], told)

    def apply(self, edit: Edit) -> None:
        """Make an edit that another draft of the column was told of.

        Raises:
            CorruptError: this column holds something else.
        """
        with self._writing():
            if self._record is None:
                self._stand_on(edit.record)
            elif self._record.settings != edit.record.settings:
                raise CorruptError(
                    f"a staged write to the column {self.name!r} is of {describe(edit.record)}, but the column "
                    f"holds {describe(self._record)}. Restore the repository's folder stage/ from a copy, or discard "
                    "what is staged: hopyard stock reset."
                )
            self._hold(edit)

    def append(self, value: Any) -> int:
        """Add one sample under the int that follows the largest one among the keys, which is returned.

        Raises:
            DataError: it does not fit the column; it was not written.
        """
        with self._writing():
            key = self._following_key()
            self.extend([value])
            return key

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The sample; ``default``, which is written first, if there is none."""
        with self._writing():
            return super().setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """The sample, which is deleted."""
        with self._writing():
            return super().pop(key, *default)

    def extend(self, values: Any) -> None:
        """Add samples under the ints that follow the largest one among the keys, from 0 on.

        Args:
            values: an array (n, ...) of n samples, or samples. What an iterator gives is not held in memory; its
                first samples say what a new column holds.

        Raises:
            DataError: one of them does not fit the column; none was written.
        """
        values = without_frame(self.name, values, "extend")
        given.check_samples(self.name, values)
        with self._writing(values):
            self._extend(values)

    def _extend(self, values: Any) -> None:
        settings, told = Settings(self.name, self._record), self._told
        if isinstance(values, Mapping | str | bytes | bytearray) or not (
            is_array(values) or isinstance(values, Iterable)
        ):
            raise DataError(
                f"column {self.name!r} is extended with {type(values).__name__}. Give an array (n, ...) or a list of "
                "samples; update() takes a dict of keys and samples."
            )
        first = self._following_key()
        together = given.uniform(values, settings) if isinstance(values, list | tuple) else None
        array = values if together is None else together
        if is_array(array):
            if not getattr(array, "shape", (0,)):
                raise DataError(
                    f"column {self.name!r} is extended with one value, of shape (). Give an array (n, ...) of n "
                    "samples, or a list with it."
                )
            batches = given.batches_of_array(array, first, settings)
        else:
            items = given.numbered(values, first, settings)
            batches = given.batches_of_items(items, settings, isinstance(values, list | tuple))
        self._write(batches, settings, [], told)

    def replace(self, values: Any) -> None:
        """Have these samples instead of all there are: an array or iterable as for ``extend``, or a mapping.

        What the column holds (dtype, shape) is said by them anew.
        """
        values = without_frame(self.name, values, "replace")
        with self._writing(values):
            fresh = ColumnDraft(self._writer, self._writer, self.name, guard=self.guard)
            if isinstance(values, Mapping):
                fresh.update(values)
            else:
                fresh.extend(values)
            if fresh._record is None and isinstance(values, SampleColumn) and values.record is not _NOTHING:
                held = values.record
                fresh._start_anew(empty_record(held.kind, held.dtype, held.shape, held.nested))
            if fresh._record is None:
                raise DataError(
                    f"column {self.name!r} was given no samples, so nothing says what it holds. Give some, or call "
                    "create(dtype=..., shape=...)."
                )
            with self.guard, self._undone_on_errors():
                vars(self).update(vars(fresh) | {"_changed": self._changed, "_in_order": self._in_order})
                self._tell(None)

    def clear(self) -> None:
        """Delete all samples. What the column holds stays as it is."""
        with self._writing(), self._undone_on_errors():
            self._start_anew(None if self._record is None else self.settings)
            self._tell(None)

    def create(
        self,
        *,
        dtype: Any = None,
        shape: Iterable[int | None] = (),
        kind: str = "tensor",
        nested: bool = False,
    ) -> None:
        """Say what the column will hold before it has samples.

        Args:
            dtype: of tensors: NumPy's or PyTorch's, or its name.
            shape: of a tensor; None for lengths that differ from sample to sample.
            kind: ``"tensor"``, ``"string"`` or ``"bytes"``.
            nested: its keys are pairs.
        """
        if kind not in ("tensor", "string", "bytes"):
            raise UsageError(f"kind={kind!r} of column {self.name!r} must be 'tensor', 'string' or 'bytes'.")
        lengths = tuple(shape)
        if kind == "tensor" and dtype is None:
            raise UsageError(f"column {self.name!r} of tensors needs a dtype, for example dtype='uint8'.")
        if kind != "tensor" and (dtype is not None or lengths):
            raise UsageError(
                f"column {self.name!r} of kind {kind!r} has no dtype and no shape. Leave them out."
            )
        for length in lengths:
            if length is not None and (not isinstance(length, int | np.integer) or length < 0):
                raise UsageError(
                    f"shape={lengths!r} of column {self.name!r} must hold lengths of at least 0, or None."
                )
        plain = tuple(None if length is None else int(length) for length in lengths)
        record = empty_record(kind, "U8" if dtype is None else stored_dtype(dtype), plain, nested)
        with self._writing(), self._undone_on_errors():
            if self._record is not None:
                raise UsageError(
                    f"column {self.name!r} is there already. Delete it first, or use another name."
                )
            self._start_anew(record)
            self._tell(None)

    @guarded
    def flush(self) -> ColumnRecord | None:
        """Write the changes to the writer, and stand on them; None: there is no column yet.

        Only fragments that changes fall into are rewritten, and pages above them.
        """
        if self._record is not None and self._pending:
            self._stand_on(self._rewritten(self._writer, self._record))
        return self._record

    def stand_on(self, record: ColumnRecord | None) -> None:
        """Be this column from now on; None: one that nothing is known of yet."""
        self._stand_on(record)
        self._next = None

    def look_anew(self) -> None:
        """Keep no sample in memory that was read: it may have been purged."""
        self._column = SampleColumn(self._writer, self.name, self._record or _NOTHING)

    # How

    @contextmanager
    def _writing(self, values: Any = ()) -> Iterator[None]:
        """One write. Samples that an iterator or another mapping gives may be waited for, and the lock is free
        meanwhile."""
        what = f"a write to data/{self.name}"
        guard: AbstractContextManager[None] = self.guard.write(what)
        if not (isinstance(values, list | tuple | dict) or is_array(values)):
            guard = self.guard.alone(what, f"writes what an iterator gives to data/{self.name}")
        with guard, self._in_order():
            yield

    def _write(
        self, batches: Iterator[KeyedSamples], settings: Settings, gone: list[bytes], told: int
    ) -> None:
        """Hold these samples, or write them if they are many. ``told``: writes before this one."""
        first = next(batches, None)
        if first is None:
            if self._record is None and settings.record is not None:
                with self.guard, self._undone_on_errors():
                    self._stand_on(settings.record)
                    self._tell(None)
            return
        second = next(batches, None)
        if second is None and len(first.keys) <= SMALL_COUNT and first.rows.nbytes <= SMALL_BYTES:
            assert settings.record is not None
            with self.guard:
                self._check_not_written(told)
                self._hold_given(first, settings.record, gone)
            return
        last = first

        def all_batches() -> Iterator[KeyedSamples]:
            nonlocal last
            for batch in chain((first,), () if second is None else (second,), batches):
                last = batch
                yield batch

        assert settings.record is not None
        self.flush()
        below = self._record
        after = rewrite(self._writer, below or settings.record, all_batches(), gone)
        with self.guard, self._undone_on_errors():
            self._check_not_written(told)
            self._stand_on(after)
            self._go_on_behind(gone, last)
            self._tell(None)

    def _check_not_written(self, told: int) -> None:
        if self._told != told:
            raise UsageError(
                f"column {self.name!r} was written to by the iterator whose samples it was given, so nothing of these "
                "was written. Write to another column in it, or give a list."
            )

    def _hold_given(self, batch: KeyedSamples, record: ColumnRecord, gone: list[bytes]) -> None:
        """Hold samples of a user, who may change them afterwards; they may be the column's first ones."""
        was = self._record, self._column
        if self._record is None:
            self._stand_on(record)
        try:
            self._hold(Edit(self.settings, gone, batch.part(np.arange(len(batch.keys)))))
        except BaseException:
            self._record, self._column = was
            raise

    def _hold(self, edit: Edit) -> None:
        """Have this change on top; not, if telling of it fails."""
        changes: dict[bytes, _Held | None] = dict.fromkeys(edit.gone)
        if edit.new is not None:
            rows = edit.new.rows
            changes.update(zip(encoded(edit.new.keys), zip(repeat(rows), range(len(rows))), strict=True))
        pending, state = self._pending, dict(vars(self))
        before = {code: pending.get(code, _ABSENT) for code in changes}
        there = self._column.has([code for code, value in before.items() if value is _ABSENT])
        self._more += sum(value is not None for value in changes.values()) - len(there)
        self._more -= sum(value is not _ABSENT and value is not None for value in before.values())
        self._pending_bytes += edit.new.rows.nbytes if edit.new is not None else 0
        self._seen = None
        pending.update(changes)
        if self._column.record.nested:
            for code in changes:
                self._groups.setdefault(_first(code), set()).add(code)
        self._go_on_behind(edit.gone, edit.new)
        try:
            if self._pending_bytes > _HELD_BYTES or len(self._pending) > _HELD_COUNT:
                self.flush()
                self._tell(None)
            else:
                self._tell(edit)
        except BaseException:
            for code, value in before.items():
                if value is _ABSENT:
                    del pending[code]
                else:
                    pending[code] = value
            vars(self).update(state)
            raise

    def _rewritten(self, writer: Writer, record: ColumnRecord) -> ColumnRecord:
        changes = sorted(self._pending.items(), key=itemgetter(0))
        gone = [code for code, held in changes if held is None]
        new = [(code, held) for code, held in changes if held is not None]
        batches = []
        if new:
            batches = [
                KeyedSamples(
                    keys_of([code for code, _ in new]), SampleBytes.collect([held for _, held in new])
                )
            ]
        return rewrite(writer, record, batches, gone)

    def _group(self, first: int | str) -> list[bytes]:
        """The encoded keys of a nested sample's parts."""
        below = [encode(key) for key in self._column.group(first)]
        above = self._groups.get(first, set()) & self._pending.keys()
        return [code for code in sorted({*below, *above}) if self._pending.get(code, _ABSENT) is not None]

    def _following_key(self) -> int:
        if self._next is None:
            self._next = self._view().following_key()
        return self._next

    def _go_on_behind(self, gone: Sequence[bytes], new: KeyedSamples | None) -> None:
        """Let what is appended next follow all keys that are there after an edit."""
        if self._column.record.nested or self._next is None or encode(self._next - 1) in gone:
            self._next = None  # looked up when it is needed
        elif new is not None:
            self._next = max(self._next, following(new.keys))

    def _stand_on(self, record: ColumnRecord | None) -> None:
        self._record = record
        self._column = SampleColumn(self._writer, self.name, record or _NOTHING)
        self._pending, self._pending_bytes, self._more, self._seen, self._groups = {}, 0, 0, None, {}

    def _start_anew(self, record: ColumnRecord | None) -> None:
        self._stand_on(record)
        self._next = 0

    @contextmanager
    def _undone_on_errors(self) -> Iterator[None]:
        """Leave the column as it was, whatever fails inside. Pending samples are replaced inside, never changed."""
        state = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).update(state)
            raise

    def _tell(self, edit: Edit | None) -> None:
        self._told += 1
        if self._changed is not None:
            self._changed(edit)


_NOTHING = empty_record("bytes", "U8", (), nested=False)
_ABSENT: Any = object()


def _first(code: bytes) -> int | str:
    """The sample that a part belongs to."""
    key = decode(code)
    assert isinstance(key, tuple)
    return key[0]
