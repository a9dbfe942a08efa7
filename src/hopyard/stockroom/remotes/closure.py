"""Needs of commits: the one definition of reachable objects, for transfers, verify and gc."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.stockroom.experiments import RunView, reached_of_value
from hopyard.stockroom.history.commits import ancestors, read_commit
from hopyard.stockroom.maps.diff import same
from hopyard.stockroom.maps.pages import Page, Pages
from hopyard.stockroom.models import reached
from hopyard.stockroom.models.versions import read_note
from hopyard.stockroom.packfiles.layout import META_KINDS
from hopyard.stockroom.records import (
    ColumnRecord,
    DatasetRecord,
    ModelRecord,
    Record,
    RunRecord,
    parse,
)
from hopyard.stockroom.views.view import ObjectReader, place_of

_AT_ONCE = 256  # pages that are read together

_Bytes = npt.NDArray[np.uint8]
_Entry = tuple[bytes, Any, Any | None]


class Need(NamedTuple):
    """An object that is needed.

    Attributes:
        digest: its name.
        kind: ``commit``, ``page``, ``json``; ``fragment``, ``tensor`` or ``file``.
        thing: what needs it: ``data/image``, ``model/resnet``...; of commits and of pages of root maps ``""``.
    """

    digest: str
    kind: str
    thing: str

    @property
    def is_metadata(self) -> bool:
        """Whether every clone has it. If not it is data, which may be elsewhere."""
        return self.kind in META_KINDS


def needs(objects: ObjectReader, commits: Iterable[str], without: Iterable[str] = ()) -> Iterator[Need]:
    """Objects that ``commits`` and all that they follow need, less most of the objects that ``without`` and all they
    follow need.

    Reads metadata only: of each commit its differences from its first parent, the oldest commit first. So each commit
    is looked at for any shape of history. Each object is named once.

    Args:
        objects: has all metadata of ``commits``.
        without: commits whose needs are met, wherever that matters to the caller.

    Raises:
        NotFoundError: metadata is missing; CorruptError: some is damaged.
    """
    new = [read_commit(objects, digest) for digest in ancestors(objects, commits, without)]
    walk = _Walk(objects)
    for commit in sorted(new, key=lambda commit: (commit.generation, commit.digest)):
        yield Need(commit.digest, "commit", "")
        before = read_commit(objects, commit.parents[0]).root if commit.parents else None
        yield from walk.root(commit.root, before)


def needs_of_root(objects: ObjectReader, root: str | None, before: str | None = None) -> Iterator[Need]:
    """The objects that a root map needs, less (most of) those that the root map ``before`` needs."""
    return _Walk(objects).root(root, before)


def needs_of_thing(objects: ObjectReader, thing: str, record: Record) -> Iterator[Need]:
    """The objects that one record needs, in the order of keys, tensors or files."""
    return _Walk(objects).record(thing, record, None)


def changed_pages(
    objects: ObjectReader, root: str | None, before: str | None = None
) -> Iterator[tuple[str, list[_Entry]]]:
    """The pages of a sorted map that the map ``before`` lacks, higher ones first.

    Leaves come with those of their entries that are others in ``before``: key, value, and value there or None. Of
    what both maps have only the highest page is looked at.
    """
    new = [] if root is None or root == before else [root]
    old = [] if before is None or not new else [before]
    new_level, old_level = _level(objects, new), _level(objects, old)
    for level in range(max(new_level, old_level), -1, -1):
        if level <= new_level and level <= old_level:
            # A page of both stands at the same place in both: what is below it is nowhere else.
            common = set(new).intersection(old)
            new, old = ([digest for digest in side if digest not in common] for side in (new, old))
        if level <= new_level and not new:
            return
        known: dict[bytes, Any] = {}
        if level <= old_level:
            pages, old = read_pages(objects, old), []
            for _, page in pages:
                known.update(() if level else zip(page.keys, page.values, strict=True))
                old += _children(page)
        if level <= new_level:
            pages, new = read_pages(objects, new), []
            for digest, page in pages:
                yield digest, [] if level else _entries(page, known)
                new += _children(page)


class _Walk:
    """Names each object once, in however many revisions it is."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._seen: set[str] = set()

    def root(self, root: str | None, before: str | None) -> Iterator[Need]:
        for page, entries in changed_pages(self._objects, root, before):
            yield from self._once(page, "page", "")
            for key, value, old in entries:
                thing = "/".join(place_of(key))
                yield from self.record(thing, parse(value, thing), None if old is None else parse(old, thing))

    def record(self, thing: str, record: Record, before: Record | None) -> Iterator[Need]:
        if isinstance(record, ColumnRecord):
            old = before.pages if isinstance(before, ColumnRecord) else None
            for page, entries in changed_pages(self._objects, record.pages, old):
                yield from self._once(page, "page", thing)
                for _, value, _ in entries:
                    yield from self._once(value[0], "fragment", thing)
        elif isinstance(record, DatasetRecord):
            yield from self._once(record.manifest, "json", thing)
            old = before.files if isinstance(before, DatasetRecord) else None
            for page, entries in changed_pages(self._objects, record.files, old):
                yield from self._once(page, "page", thing)
                for _, value, _ in entries:
                    yield from self._once(value["digest"], "file", thing)
        elif isinstance(record, ModelRecord):
            for digest in reached(self._objects, record):
                yield from self._once(digest, "json" if digest == record.tree else "tensor", thing)
            if record.about is not None:
                yield from self._once(record.about, "json", thing)
                for digest, _ in read_note(self._objects, record, thing).files.values():
                    yield from self._once(digest, "file", thing)
        elif isinstance(record, RunRecord):
            yield from self._run(thing, record)
        else:
            for digest in reached_of_value(record):
                yield from self._once(digest, "json", thing)

    def _run(self, thing: str, record: RunRecord) -> Iterator[Need]:
        digests = list(RunView(self._objects, thing, record).reached())
        files = {digest for digest, _ in self._objects.json(record.content)["artifacts"].values()}
        for digest in digests:
            kind = "json" if digest == record.content else "file" if digest in files else "tensor"
            yield from self._once(digest, kind, thing)

    def _once(self, digest: str, kind: str, thing: str) -> Iterator[Need]:
        if digest not in self._seen:
            self._seen.add(digest)
            yield Need(digest, kind, thing)


def _level(objects: ObjectReader, root: Sequence[str]) -> int:
    return next((page.level for _, page in read_pages(objects, root)), -1)


def _children(page: Page) -> list[str]:
    return [child.digest for child in page.values] if page.level else []


def _entries(page: Page, known: dict[bytes, Any]) -> list[_Entry]:
    entries = ((key, value, known.get(key)) for key, value in zip(page.keys, page.values, strict=True))
    return [entry for entry in entries if entry[2] is None or not same(entry[1], entry[2])]


def read_pages(objects: ObjectReader, digests: Sequence[str]) -> Iterator[tuple[str, Page]]:
    """Pages in order, many with one request."""
    waiting = iter(digests)
    while some := list(islice(waiting, _AT_ONCE)):
        pages = Pages(_Known(objects.read_many(some)))
        for digest in some:
            yield digest, pages.read(digest)


class _Known(dict[str, _Bytes]):
    """Objects that were read."""

    def read(self, digest: str) -> _Bytes:
        return self[digest]
