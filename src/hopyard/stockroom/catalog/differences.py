"""Differences between two revisions: things, and inside of them samples, tensors, values and files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from hopyard.errors import NotFoundError
from hopyard.markup import table
from hopyard.stockroom.data.conflicts import diff_columns
from hopyard.stockroom.data.dataset_changes import DatasetDiff, diff_datasets
from hopyard.stockroom.data.samples import in_short
from hopyard.stockroom.experiments import values
from hopyard.stockroom.maps import Key, SortedMap
from hopyard.stockroom.models.content import read
from hopyard.stockroom.models.describe import compare
from hopyard.stockroom.models.versions import read_note
from hopyard.stockroom.packfiles import Objects, PackfileWriter
from hopyard.stockroom.records import (
    ColumnRecord,
    DatasetRecord,
    ModelRecord,
    Record,
    RunRecord,
    ValueRecord,
    parse,
)
from hopyard.stockroom.views.view import place_of
from hopyard.wording import counted, describe_bytes, nearest, one_line, some_names

How = Literal["added", "removed", "changed"]

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_MOST = 8  # samples, or tensors, that are listed of one thing
_SHOWN = 30  # things that a console or notebook shows unasked
_NOTHING = "nothing differs"


@dataclass(frozen=True)
class MovedTensor:
    """A tensor of a model that differs.

    Attributes:
        path: keys that lead to it, joined by ``/``.
        how: ``"added"``, ``"removed"``, ``"changed"``, or ``"other shape"``.
        moved: Euclidean norm of the difference, if both have this shape.
        relative: that as a share of the norm before.
    """

    path: str
    how: str
    moved: float | None = None
    relative: float | None = None

    def __str__(self) -> str:
        if self.moved is None:
            return f"{self.path}: {self.how}"
        share = (
            ""
            if self.relative is None or not math.isfinite(self.relative)
            else f", {self.relative:.3g} of its norm"
        )
        return f"{self.path}: moved by {self.moved:.4g}{share}"


class Difference:
    """One thing that differs.

    Attributes:
        path: shelf and name: ``data/image``.
        how: ``"added"``, ``"removed"`` or ``"changed"``.
        before, after: its records; None: there is none.
    """

    def __init__(
        self, objects: Objects | PackfileWriter, path: str, before: Record | None, after: Record | None
    ) -> None:
        self.path = path
        self.before = before
        self.after = after
        self.how: How = "added" if before is None else "removed" if after is None else "changed"
        self._objects = objects

    def __repr__(self) -> str:
        return one_line(f"<{self.path} {self.how}>")

    def samples(self) -> Iterator[tuple[Key, How]]:
        """Of a column: keys whose samples differ, in order. Reads only the fragments that differ."""
        before, after = self._both(ColumnRecord)
        if before is not None or after is not None:
            yield from diff_columns(self._objects, before, after)

    def tensors(self) -> Iterator[MovedTensor]:
        """Of a model: its tensors that differ, and how far they moved. Reads these."""
        before, after = self._both(ModelRecord)
        name = self.path.partition("/")[2]
        old = {} if before is None else read(self._objects, before, name).tensors()
        new = {} if after is None else read(self._objects, after, name).tensors()
        for path, tensor in new.items():
            how, moved, relative = compare(tensor, old.get(path))
            if how != "unchanged":
                yield MovedTensor(path, how, moved, relative)
        for path in old:
            if path not in new:
                yield MovedTensor(path, "removed")

    @property
    def values(self) -> tuple[Any, Any]:
        """Of a value of the experiment shelf: what it was and what it is; None: there is none."""
        found = [
            None if record is None else values.read(self._objects, record)
            for record in self._both(ValueRecord)
        ]
        return found[0], found[1]

    @property
    def files(self) -> DatasetDiff | None:
        """Of a dataset: files that differ; None: it was none before, or is none any more."""
        before, after = self._both(DatasetRecord)
        return None if before is None or after is None else diff_datasets(self._objects, before, after)

    def describe(self, record: Record | None) -> str:
        """In a few words, what one of the two records says; nothing if there is none."""
        if isinstance(record, ColumnRecord):
            return f"{in_short(record)}, {counted(record.count, 'sample')}"
        if isinstance(record, DatasetRecord):
            return counted(record.rows, "row")
        if isinstance(record, ModelRecord):
            return describe_bytes(record.nbytes)
        if isinstance(record, RunRecord):
            return f"{record.status}, begun {record.started[:16].replace('T', ' ')}"
        return "" if record is None else repr(values.read(self._objects, record))

    def _both(self, kind: type[Any]) -> list[Any]:
        return [record if isinstance(record, kind) else None for record in (self.before, self.after)]

    def lines(self) -> Iterator[str]:
        """Differences inside of the thing, in words."""
        if any(self._both(ColumnRecord)):
            yield from self._lines_of_samples()
        elif any(self._both(ModelRecord)) and self.how == "changed":
            yield from _some(list(map(str, self.tensors())), "tensors")
            yield from self._lines_of_version()
        elif any(self._both(ValueRecord)):
            was, now = self.values
            yield {"added": f"{now!r}", "removed": f"was {was!r}", "changed": f"{was!r} -> {now!r}"}[self.how]
        elif self.files is not None:
            yield str(self.files)
        else:
            record = self.after or self.before
            if isinstance(record, DatasetRecord | RunRecord):
                yield self.describe(record)

    def _lines_of_version(self) -> Iterator[str]:
        """Differences in what is noted of a registered version."""
        before, after = (
            None if record is None or record.about is None else read_note(self._objects, record, self.path)
            for record in self._both(ModelRecord)
        )
        if before is None or after is None:
            return
        for name in ("description", "labels"):
            was, now = getattr(before, name), getattr(after, name)
            if was != now:
                yield f"{name}: {was!r} -> {now!r}"

    def _lines_of_samples(self) -> Iterator[str]:
        if self.how != "changed":
            record = self.after or self.before
            assert isinstance(record, ColumnRecord)
            yield counted(record.count, "sample")
            return
        counts: Counter[str] = Counter()
        shown: list[str] = []
        for key, how in self.samples():
            counts[how] += 1
            if len(shown) < _MOST:
                shown.append(f"{_SIGNS[how]} [{key!r}]")
        yield (
            ", ".join(f"{counted(count, 'sample')} {how}" for how, count in counts.items())
            or "other settings"
        )
        more = counts.total() - len(shown)
        if shown:
            yield "  ".join([*shown, *([f"and {more:,} more"] if more else [])])


class Diff:
    """Differences from one revision to another. ``print(diff)`` tells it in words; it is a sequence of differences. A
    console or notebook shows the first of the things that differ.

    What differs inside of a thing is read when it is asked for.
    """

    def __init__(self, objects: Objects | PackfileWriter, before: str | None, after: str | None) -> None:
        self._objects, self._before, self._after = objects, before, after

    @cached_property
    def things(self) -> list[Difference]:
        """Differences, in order."""
        found = []
        changes = SortedMap(self._objects, self._before).diff(SortedMap(self._objects, self._after))
        for key, old, new in changes:
            path = "/".join(place_of(key))
            records = [None if json is None else parse(json, path) for json in (old, new)]
            found.append(Difference(self._objects, path, *records))
        return found

    def __len__(self) -> int:
        return len(self.things)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.things)

    def __getitem__(self, path: str) -> Difference:
        """The difference of one thing: ``diff["data/image"]``.

        Raises:
            NotFoundError: it is the same in both, or in neither.
        """
        paths = {thing.path: thing for thing in self.things}
        if path not in paths:
            raise NotFoundError(
                f"{path!r} does not differ{nearest(path, paths, '.')} What differs: "
                f"{some_names(list(paths)) if paths else 'nothing'}."
            )
        return paths[path]

    def __repr__(self) -> str:
        lines = [one_line(f"{_SIGNS[thing.how]} {thing.path}") for thing in self.things[:_SHOWN]]
        if len(self) > _SHOWN:
            lines.append(f"and {len(self) - _SHOWN:,} more")
        if lines:
            lines.append("print(...) tells what differs inside")
        return "\n".join(lines) or _NOTHING

    def _repr_html_(self) -> str:
        """A table of what differs, for notebooks. Reads metadata only."""
        rows = (
            (_SIGNS[thing.how], thing.path, *map(thing.describe, (thing.before, thing.after)))
            for thing in self.things
        )
        title = (
            f"{counted(len(self), 'thing')} {'differs' if len(self) == 1 else 'differ'}"
            if self.things
            else _NOTHING
        )
        return table(title, ("", "", "before", "after"), rows, _SHOWN)

    def __str__(self) -> str:
        lines = []
        for thing in self.things:
            lines.append(f"{_SIGNS[thing.how]} {thing.path}")
            lines += [f"    {line}" for line in thing.lines()]
        return "\n".join(map(one_line, lines)) or _NOTHING


def _some(lines: Sequence[str], what: str) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"and {len(lines) - _MOST} more {what}"
