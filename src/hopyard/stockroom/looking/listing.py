"""What stands on the shelves, a line for each thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hopyard.stockroom.data.samples import dtype_name
from hopyard.stockroom.records import (
    SHELVES,
    ColumnRecord,
    DatasetRecord,
    ModelRecord,
    RunRecord,
    Shelf,
    ValueRecord,
)
from hopyard.stockroom.shelves import Shelves

_LONGEST = 60


@dataclass(frozen=True)
class Listed:
    """One thing of a shelf.

    Attributes:
        path: shelf and name.
        what: what it is, in words.
        count: samples, or rows; None: it has none.
        nbytes: of its values; None: they lie in the metadata.
    """

    path: str
    what: str
    count: int | None = None
    nbytes: int | None = None


def list_shelves(shelves: Shelves, shelf: Shelf | None = None) -> Iterator[Listed]:
    """Everything on the shelves, or on one of them: runs as they were begun, all else by name. Reads metadata only."""
    for each in SHELVES if shelf is None else (shelf,):
        names: Iterable[str] = shelves.view.names(each)
        if each == "run":
            names = (run.id for run in reversed(shelves.experiment.runs()))
        for name in names:
            yield _listed(shelves, each, name)


def _listed(shelves: Shelves, shelf: Shelf, name: str) -> Listed:
    path, record = f"{shelf}/{name}", shelves.view.record(shelf, name)
    if isinstance(record, ColumnRecord):
        return Listed(path, describe_column(record), len(shelves.data[name]), record.nbytes)
    if isinstance(record, DatasetRecord):
        return Listed(path, "dataset", record.rows, record.nbytes)
    if isinstance(record, ModelRecord):
        return Listed(path, "model", None, record.nbytes)
    if isinstance(record, RunRecord):
        return Listed(path, f"run, {record.status}, begun {record.started[:16].replace('T', ' ')}")
    assert isinstance(record, ValueRecord)
    text = repr(shelves.experiment[name])
    return Listed(path, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")


def describe_column(record: ColumnRecord) -> str:
    """What its samples are: ``uint8 (3, 32, 32)``, ``string``; None stands for lengths that differ."""
    if record.kind != "tensor":
        what: str = record.kind
    else:
        shape = ", ".join("?" if length is None else str(length) for length in record.shape)
        name = dtype_name(record.dtype)
        what = f"{name} ({shape})" if record.shape else f"{name} scalar"
    return f"{what}, nested" if record.nested else what
