"""Goes through all that commits need, page by page, and on where something is missing or damaged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from hopyard.errors import CorruptError, FormatError, NotFoundError, StorageError
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.maps import decode
from hopyard.stockroom.maps.pages import Page
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.packfiles.layout import META_KINDS
from hopyard.stockroom.records import ColumnRecord, DatasetRecord, ModelRecord, Record, RunRecord, parse
from hopyard.stockroom.remotes.closure import needs_of_thing, read_pages
from hopyard.stockroom.views.view import place_of

_AT_ONCE = 256  # pages that are read together

Of = Literal["root", "column", "dataset"]


class Named(NamedTuple):
    """An object that something needs.

    Attributes:
        kind: ``commit``, ``page``, ``json``, ``fragment``, ``tensor`` or ``file``.
        thing: ``data/image``, ``model/resnet`` and so on; "" of commits and of pages of root maps.
        key: of samples in a fragment the first and the last one, in words; "" of others.
        by: digest of the object that names it, or of a commit what leads to it.
    """

    kind: str
    thing: str
    key: str
    by: str

    @property
    def is_metadata(self) -> bool:
        """Whether every clone has it."""
        return self.kind in META_KINDS


class Walk:
    """The objects that are reached so far.

    Attributes:
        found: by digest, in the order in which they were reached; what reached it first.
        columns: by thing, the pages of each version of a column.
        fragments: by digest, what a column and its map say of each.
        models: by digest of their trees, thing and record of each model.
        failures: by digest, why an object could not be read or understood. What it leads to is not reached by it.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.found: dict[str, Named] = {}
        self.columns: dict[str, set[str]] = {}
        self.failures: dict[str, StorageError] = {}
        self.fragments: dict[str, tuple[ColumnRecord, FragmentEntry]] = {}
        self.models: dict[str, tuple[str, ModelRecord]] = {}
        self._records: dict[str, ColumnRecord] = {}  # by page of a column's map
        self._pages: deque[tuple[str, str, Of]] = deque()

    def commits(self, commits: Mapping[str, str]) -> None:
        """Go through these, and all that they follow. By digest what leads to each."""
        waiting = [*reversed([*commits.items()])]
        while waiting:
            digest, by = waiting.pop()
            if self._reach(digest, Named("commit", "", "", by)):
                try:
                    commit = read_commit(self._objects, digest)
                except StorageError as error:
                    self.failures[digest] = error
                    continue
                waiting += [(parent, digest) for parent in reversed(commit.parents)]
                self.root(commit.root, digest)

    def root(self, root: str | None, by: str) -> None:
        """Go through a root map."""
        self._page(root, "", "root", by)
        self._go_on()

    def record(self, thing: str, record: Record, by: str) -> None:
        """Go through what one record needs."""
        self._record(thing, record, by)
        self._go_on()

    def needed_by(self, digest: str) -> str:
        """The thing that needs an object that was reached, in words."""
        named = self.found.get(digest)
        if named is None:
            return ""
        what = f"{named.thing}{named.key}"
        while named is not None and named.kind != "commit":
            digest, named = named.by, self.found.get(named.by)
            what = what or (named.thing if named is not None else "")
        of = digest if named is None else f"the commit {digest[:12]}"
        leads = (
            f", to which {named.by if '/' in named.by else named.by[:12]} leads" if named is not None else ""
        )
        return f"{what} of {of}" if what else f"{of}{leads}"

    def _reach(self, digest: str, named: Named) -> bool:
        if digest in self.found:
            return False
        self.found[digest] = named
        return True

    def _page(self, digest: str | None, thing: str, of: Of, by: str) -> None:
        if digest is not None and self._reach(digest, Named("page", thing, "", by)):
            self._pages.append((digest, thing, of))

    def _go_on(self) -> None:
        while self._pages:
            some = [self._pages.popleft() for _ in range(min(_AT_ONCE, len(self._pages)))]
            for (digest, thing, of), page in zip(some, self._read([one[0] for one in some]), strict=True):
                if page is None:
                    continue
                if page.level:
                    for child in page.values:
                        if of == "column":
                            self._records.setdefault(child.digest, self._records[digest])
                        self._page(child.digest, thing, of, digest)
                else:
                    self._leaf(digest, thing, of, page)

    def _read(self, digests: list[str]) -> Iterable[Page | None]:
        try:
            return [page for _, page in read_pages(self._objects, digests)]
        except StorageError:
            return [self._read_one(digest) for digest in digests]

    def _read_one(self, digest: str) -> Page | None:
        try:
            ((_, page),) = read_pages(self._objects, [digest])
        except StorageError as error:
            self.failures[digest] = error
            return None
        return page

    def _leaf(self, digest: str, thing: str, of: Of, page: Page) -> None:
        try:
            for key, value in zip(page.keys, page.values, strict=True):
                if of == "root":
                    name = "/".join(place_of(key))
                    self._record(name, parse(value, name), digest)
                elif of == "column":
                    entry = FragmentEntry.of(key, value)
                    self.fragments[entry.digest] = self._records[digest], entry
                    self._reach(
                        entry.digest,
                        Named("fragment", thing, f"[{decode(key)!r}..{_key(value[1])!r}]", digest),
                    )
                else:
                    self._reach(value["digest"], Named("file", thing, "", digest))
        except (CorruptError, FormatError) as error:
            self.failures[digest] = error
        except (TypeError, KeyError, IndexError, ValueError) as error:
            self.failures[digest] = CorruptError(
                f"its entries cannot be read ({type(error).__name__}: {error})"
            )

    def _record(self, thing: str, record: Record, by: str) -> None:
        if isinstance(record, ColumnRecord):
            if record.pages is not None:
                self.columns.setdefault(thing, set()).add(record.pages)
                self._records.setdefault(record.pages, record)
            self._page(record.pages, thing, "column", by)
        elif isinstance(record, DatasetRecord):
            self._reach(record.manifest, Named("json", thing, "", by))
            self._page(record.files, thing, "dataset", by)
        else:
            if isinstance(record, ModelRecord):
                self.models.setdefault(record.tree, (thing, record))
            self._thing(thing, record, by)

    def _thing(self, thing: str, record: Record, by: str) -> None:
        """A model, a run or a value: the first objects that it needs lead to all others."""
        first: list[str] = []
        if isinstance(record, ModelRecord):
            first = [record.tree] if record.about is None else [record.tree, record.about]
        elif isinstance(record, RunRecord):
            first = [record.content]
        if first and all(digest in self.found for digest in first):
            return
        last = first[0] if first else ""
        try:
            for need in needs_of_thing(_Noting(self._objects), thing, record):
                last = need.digest
                self._reach(need.digest, Named(need.kind, thing, "", by))
        except _FailedError as failed:
            self._reach(failed.digest, Named("json", thing, "", by))
            self.failures[failed.digest] = failed.error
        except (StorageError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.failures[last] = CorruptError(f"it cannot be understood ({error})")


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _FailedError(Exception):
    """An object could not be read: which, and why."""

    def __init__(self, digest: str, error: StorageError) -> None:
        super().__init__(digest)
        self.digest, self.error = digest, error


class _Noting:
    """Objects; what could not be read is said with its digest."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.read_many, self.tensors, self.file = objects.read_many, objects.tensors, objects.file

    def read(self, digest: str) -> Any:
        try:
            return self._objects.read(digest)
        except StorageError as error:
            raise _FailedError(digest, error) from error

    def json(self, digest: str) -> Any:
        try:
            return self._objects.json(digest)
        except StorageError as error:
            raise _FailedError(digest, error) from error


def is_missing(error: StorageError) -> bool:
    """Whether an object was not read because it is not here."""
    return isinstance(error, NotFoundError)
