"""The data of a revision by name: columns, and prepared datasets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, cast, overload

from hopyard.data import Dataset, Prepared
from hopyard.errors import MissingKeyError, UsageError
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.datasets import open_stored, store_dataset
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.data.joining import MissingPolicy
from hopyard.stockroom.data.samples import in_short
from hopyard.stockroom.maps import Key
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import ColumnRecord, DatasetRecord, Record
from hopyard.stockroom.views.shelf import ListedThing, NamedThings
from hopyard.stockroom.views.view import Snapshot, WritableView, writable

ShelfItem: TypeAlias = SampleColumn | ColumnDraft | Dataset


class WritableColumns(WritableView, Protocol):
    """A view whose columns can be written to."""

    def written(self, name: str) -> ColumnDraft | None:
        """The column of this name, if it was written to."""

    def column(self, name: str) -> ColumnDraft:
        """The column of this name, also if there is none yet."""


class DataShelf(NamedThings):
    """Columns and datasets by name.

    ``shelf["image"]`` is a column, or a dataset; ``shelf[["image", "label"]]`` are the samples of several columns, as
    rows of a dataset. ``shelf["image"] = images`` has these samples instead of what was there: an array (n, ...) or a
    list under the keys 0 to n - 1, a dict by key, or another column; or a prepared dataset, which is stored by
    reference to its files.
    """

    _shelf, _what = "data", "column or dataset"

    # Reading

    @overload
    def __getitem__(self, name: str) -> Any: ...

    @overload
    def __getitem__(self, name: Sequence[str]) -> JoinedSamples: ...

    def __getitem__(self, name: str | Sequence[str]) -> Any:
        """A column or dataset; of a list of names, their samples (see :meth:`samples`).

        Raises:
            MissingKeyError: there is none of this name.
        """
        if not isinstance(name, str) and isinstance(name, list | tuple):
            return self.samples(name)
        checked = self._checked(name)
        draft = None if isinstance(self._view, Snapshot) else self._draft()
        written = None if draft is None else draft.written(checked)
        if written is not None:  # its record would be made for this
            return written
        record = self.record(checked)
        if isinstance(record, ColumnRecord):
            if draft is not None:
                return draft.column(checked)
            return SampleColumn(self._view.objects, checked, record)
        assert isinstance(record, DatasetRecord)
        objects = self._view.objects
        assert isinstance(objects, Objects | PackfileWriter)
        return open_stored(objects, record, f"dataset {checked!r} of {self._view.revision}")

    def record(self, name: str) -> Record:
        """The record of a column or dataset in the view.

        Raises:
            MissingKeyError: there is none of this name; says how one is made, where this can be written to.
        """
        try:
            return super().record(name)
        except MissingKeyError as error:
            if isinstance(self._view, Snapshot):
                raise
            raise MissingKeyError(
                f"{error} To make it, give it its first samples (stock.data[{name!r}] = {{key: sample}}, or an array), "
                f"or say what it will hold: stock.data.create({name!r}, dtype='float32', shape=(3,))."
            ) from None

    def samples(
        self, names: Sequence[str], keys: Iterable[Key] | None = None, missing: MissingPolicy = "error"
    ) -> JoinedSamples:
        """Several columns joined by their keys; see :class:`hopyard.stockroom.data.joined.JoinedSamples`."""
        columns = {}
        for name in names:
            item = self[self._checked(name)]
            if isinstance(item, Dataset):
                raise UsageError(
                    f"{name!r} is a dataset, whose columns stand side by side already, and cannot be joined with "
                    f"columns by keys. Use it alone: stock.data[{name!r}]."
                )
            if name in columns:
                raise UsageError(
                    f"{name!r} was asked for twice in stock.data[{list(names)!r}]. Name it once."
                )
            columns[name] = item
        where = f"the samples of {', '.join(map(repr, columns))} of {self._view.revision}"
        return JoinedSamples(columns, keys, missing, where)

    # Writing

    def __setitem__(self, name: str, value: Any) -> None:
        """Have this under the name, instead of what is there. If it cannot be stored, the shelf stays as it was.

        Raises:
            DataError: samples that cannot be stored; a dataset that is not whole.
            UsageError: the name cannot be one, or this is not open for writing.
        """
        self._checked(name)
        draft = self._draft()
        if isinstance(value, Prepared):
            raise UsageError(
                f"stock.data[{name!r}] was given the result of prepare(), which is two datasets. Store each: "
                f"stock.data['train'] = prepared.train; stock.data['val'] = prepared.val."
            )
        if isinstance(value, Dataset):
            with draft.guard.write(f"a write to data/{name}"):
                draft.set("data", name, store_dataset(draft.writer, value))
            return
        if isinstance(value, ColumnDraft):
            value = value.snapshot()  # it may be the one that is replaced
        here: object = draft.writer.stored
        if isinstance(value, SampleColumn) and value.objects is here:
            draft.set("data", name, value.record)
        elif draft.written(name) is None and isinstance(self._view.record("data", name), DatasetRecord):
            column = ColumnDraft(draft.writer, draft.writer, name, guard=draft.guard)
            column.replace(value)
            draft.set("data", name, column.flush())
        else:
            draft.column(name).replace(value)

    def create(
        self,
        name: str,
        *,
        dtype: Any = None,
        shape: Iterable[int | None] = (),
        kind: str = "tensor",
        nested: bool = False,
    ) -> ColumnDraft:
        """A new column without samples; see :meth:`hopyard.stockroom.data.drafts.ColumnDraft.create`.

        Raises:
            UsageError: the name is taken, or the arguments are impossible.
        """
        self._checked(name)
        draft = self._draft()
        with draft.guard.write(f"a write to data/{name}"):
            record = self._view.record("data", name)
            if record is not None:
                what = "dataset" if isinstance(record, DatasetRecord) else "column"
                raise UsageError(
                    f"there is a {what} {name!r} already. Delete it first (del stock.data[{name!r}]), or use another "
                    "name."
                )
            column = draft.column(name)
            column.create(dtype=dtype, shape=shape, kind=kind, nested=nested)
            return column

    # How

    def _line(self, name: str) -> ListedThing:
        record = self.record(name)
        if isinstance(record, ColumnRecord):
            return ListedThing(f"data/{name}", in_short(record), len(self[name]), record.nbytes)
        assert isinstance(record, DatasetRecord)
        return ListedThing(f"data/{name}", "dataset", record.rows, record.nbytes)

    def _draft(self) -> WritableColumns:
        return cast(WritableColumns, writable(self._view))
