"""Data by name: which objects hold what somebody asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.data.cutting import FragmentEntry, neighbours
from hopyard.stockroom.history.commits import read_commit
from hopyard.stockroom.maps import SortedMap, check_key, decode, encode
from hopyard.stockroom.maps.typed_keys import TypedKey, split_at_commas
from hopyard.stockroom.records import ColumnRecord, parse
from hopyard.stockroom.records.quoting import check_texts
from hopyard.stockroom.remotes.closure import Need, needs, needs_of_thing
from hopyard.stockroom.views.view import ObjectReader, place_of
from hopyard.wording import nearest, shown

Names = Sequence[str] | Literal[True]
"""Names of things of one shelf; True: all that there are."""


@dataclass(frozen=True)
class FetchSelection:
    """A selection of things to bring.

    Attributes:
        data: columns and datasets.
        keys: only samples under these keys: a range of ints, or a sequence, also of ``TypedKey``; of a nested column a
            sample's key means all its parts. None: all. Whole fragments come, about half a megabyte each.
        models, runs: likewise by name.
        history: of all commits that lead to the given ones too.
    """

    data: Names = ()
    keys: range | Sequence[Any] | None = None
    models: Names = ()
    runs: Names = ()
    history: bool = False

    def __post_init__(self) -> None:
        for argument, given in (("data", self.data), ("models", self.models), ("runs", self.runs)):
            if isinstance(given, bool):
                continue
            is_one = isinstance(given, str | bytes) or not isinstance(given, Iterable)
            one = shown(given)
            if one == "'*'" or (not is_one and check_texts(given, f"the names in {argument}=") == ["*"]):
                raise UsageError(f"{argument}={one} was given, but all that there are is {argument}=True.")
            if is_one:
                raise UsageError(
                    f"{argument}={one} was given, but names are a list: {argument}=[{one}]; all that there are is "
                    f"{argument}=True."
                )
        if self.keys is not None and (isinstance(self.keys, str) or not isinstance(self.keys, Iterable)):
            raise UsageError(
                f"keys={shown(self.keys)} was given, but keys are a list or a range: keys=[{shown(self.keys)}]."
            )
        if self.keys is not None and not self.data:
            raise UsageError(
                "keys= was given without data=. Name the columns: data=['image'], keys=range(100)."
            )


ALL = FetchSelection(data=True, models=True, runs=True)


def select(objects: ObjectReader, commits: Iterable[str], wanted: FetchSelection) -> Iterator[Need]:
    """The data that these commits have of what is wanted, each object once: thing by thing as they are named, in the
    order of keys. Reads metadata only.

    Raises:
        NotFoundError: no commit has something of that name, or a sample of that key.
        UsageError: what is no key.
    """
    commits = list(commits)
    chosen = _Chosen(wanted)
    found: Iterator[Need]
    if wanted.history and wanted.keys is None:
        found = filter(lambda need: chosen.has(need.thing), needs(objects, commits))
    elif wanted.history:
        past = [need.digest for need in needs(objects, commits) if need.kind == "commit"]
        found = _of_commits(objects, past, wanted, chosen)
    else:
        found = _of_commits(objects, commits, wanted, chosen)
    seen = set()
    for need in found:
        if not need.is_metadata and need.digest not in seen:
            seen.add(need.digest)
            yield need
    chosen.check(objects, commits)


class _Chosen:
    """Things that are wanted, and those of them that were met."""

    def __init__(self, wanted: FetchSelection) -> None:
        self._names: dict[str, Names] = {"data": wanted.data, "model": wanted.models, "run": wanted.runs}
        self._met: set[str] = set()
        self._keys: dict[tuple[str, str], NotFoundError | None] = {}
        """Of a thing (of all where names are True) and a key, why it was not found; None: it was."""

    def has(self, thing: str) -> bool:
        self._met.add(thing)
        shelf, _, name = thing.partition("/")
        names = self._names.get(shelf, ())
        return names is True or name in names

    def things(self, root: SortedMap) -> Iterator[tuple[str, Any]]:
        """Each thing of one revision with its record's JSON, as they were named."""
        for shelf, names in self._names.items():
            if names is True:
                first = encode((shelf, ""))
                entries = root.items(first, first[:-1] + b"\xff")
            else:
                keys = (encode((shelf, name)) for name in names)
                entries = ((key, value) for key in keys if (value := root.get(key)) is not None)
            for key, value in entries:
                thing = "/".join(place_of(key))
                self._met.add(thing)
                yield thing, value

    def looked_up(self, thing: str, key: str, error: NotFoundError | None) -> None:
        """Note whether a column has samples near a key. One of the commits has to, and one of all columns."""
        place = ("" if self._names["data"] is True else thing, key)
        if error is None or place not in self._keys:
            self._keys[place] = error

    def check(self, objects: ObjectReader, commits: Sequence[str]) -> None:
        for error in self._keys.values():
            if error is not None:
                raise error
        for shelf, names in self._names.items():
            for name in () if names is True else names:
                if f"{shelf}/{name}" not in self._met:
                    known = _names(objects, commits, shelf)
                    called = {"data": "column or dataset", "model": "model", "run": "run"}[shelf]
                    shown = ", ".join(commit[:12] for commit in commits[:3])
                    raise NotFoundError(
                        f"there is no {called} {name!r} in "
                        f"{shown or 'a repository without commits'}{nearest(name, known, '.')} It has "
                        f"{', '.join(map(repr, known[:10])) or 'none'}."
                    )


def _names(objects: ObjectReader, commits: Sequence[str], shelf: str) -> list[str]:
    found = set()
    for commit in commits:
        for key in SortedMap(objects, read_commit(objects, commit).root).keys():  # noqa: SIM118 - no dict
            place = place_of(key)
            found.update([place[1]] if place[0] == shelf else [])
    return sorted(found)


def _of_commits(
    objects: ObjectReader, commits: Sequence[str], wanted: FetchSelection, chosen: _Chosen
) -> Iterator[Need]:
    looked_at = set()
    for commit in commits:
        for thing, value in chosen.things(SortedMap(objects, read_commit(objects, commit).root)):
            record = parse(value, thing)
            if (thing, record) in looked_at:
                continue
            looked_at.add((thing, record))
            if wanted.keys is not None and isinstance(record, ColumnRecord):
                for asked, bounds in _asked(record, wanted.keys):
                    column = SortedMap(objects, record.pages)
                    found = [digest for start, stop in bounds for digest in _between(column, start, stop)]
                    error = None if found else _nothing(column, thing, asked, bounds[-1][0])
                    chosen.looked_up(thing, asked, error)
                    yield from (Need(digest, "fragment", thing) for digest in found)
            else:
                yield from needs_of_thing(objects, thing, record)


_Bounds = tuple[bytes, bytes]


def _asked(record: ColumnRecord, keys: range | Sequence[Any]) -> Iterator[tuple[str, list[_Bounds]]]:
    """Each part of a request: its name for messages, and the bytes between which its keys are."""
    if isinstance(keys, range) and keys.step == 1:
        if keys:
            bounds = _bounds(record, keys[0])[0], _bounds(record, keys[-1])[1]
            yield f"{keys[0]!r}, nor near one up to {keys[-1]!r}", [bounds]
        return
    for key in keys:
        for options in _options(key, record.nested):
            # Which of them the column has is written in its fragments, which may be at a remote: those of all come.
            yield shown(options[0]), [_bounds(record, each) for each in options]


def _options(key: Any, nested: bool) -> list[list[Any]]:
    """For each key that is meant, those that it may be."""
    if not isinstance(key, TypedKey):
        return [[key]]
    if nested:
        return [key.keys(nested)]
    return [TypedKey(part).keys(nested) for part in split_at_commas(key.text)]


def _nothing(column: SortedMap, thing: str, asked: str, start: bytes) -> NotFoundError:
    near = [decode(code) for code in neighbours(column, start)]
    told = f"The nearest keys are {' and '.join(map(repr, near))}" if near else "The column is empty"
    return NotFoundError(
        f"{thing} has no sample near the key {asked}, so none under it. Nothing was fetched. {told}. Name other keys, "
        "or a range, of which come those that there are."
    )


def _bounds(record: ColumnRecord, key: Any) -> tuple[bytes, bytes]:
    """Bytes between which the encoded keys are: not before the first, and before the second."""
    key = check_key(key)
    if record.nested and not isinstance(key, tuple):
        prefix = encode((key, 0))[:-9]  # without the part
        return prefix, prefix + b"\xff"
    code = encode(key)
    return code, code + b"\0"


def _between(column: SortedMap, start: bytes, stop: bytes) -> Iterator[str]:
    """The fragments that keys from ``start`` to before ``stop`` may be in."""
    before = column.floor(start)
    if before is not None and before[0] < start and FragmentEntry.of(*before).last >= start:
        yield FragmentEntry.of(*before).digest
    for first, value in column.items(start, stop):
        yield FragmentEntry.of(first, value).digest


def call_for(things: Sequence[str], history: bool = False) -> str:
    """The call that brings these things, for messages."""
    given = []
    for shelf, argument in (("data", "data"), ("model", "models"), ("run", "runs")):
        names = [thing.partition("/")[2] for thing in things if thing.startswith(f"{shelf}/")]
        if names:
            given.append(f"{argument}={names}")
    return f"stock.fetch({', '.join([*given, *(['history=True'] if history else [])])})"
