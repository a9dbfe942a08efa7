"""Three-way merge of root maps: thing by thing, in columns sample by sample, in datasets file by file.

What only one side changed since their base is taken from it, and what both changed alike is so. Everything else is a
conflict; none is ever decided silently.

The base of two commits is the last one that both follow. After criss-cross merges there are several: then these are
merged first, as git's "recursive" strategy does, and this is the base. What *they* have in conflict is in it
as ``disputed``: different from whatever the sides have, so that they conflict too unless they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from hopyard.errors import NotFoundError
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.conflicts import merge_columns
from hopyard.stockroom.data.dataset_changes import merge_datasets
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.samples import to_user
from hopyard.stockroom.experiments import values
from hopyard.stockroom.history.commits import is_ancestor, merge_bases, read_commit
from hopyard.stockroom.history.conflicts import (
    BOTH_ADDED,
    BOTH_CHANGED,
    BOTH_REGISTERED,
    COLUMN_REMOVED_HERE,
    COLUMN_REMOVED_THERE,
    OTHER_SETTINGS,
    REMOVED_HERE,
    REMOVED_THERE,
    Conflict,
    Resolve,
    check_resolve,
    chosen,
    chosen_side,
)
from hopyard.stockroom.maps import SortedMap, encode, merge
from hopyard.stockroom.packfiles import PackfileWriter
from hopyard.stockroom.records import (
    ColumnRecord,
    DatasetRecord,
    Json,
    ModelRecord,
    Record,
    ValueRecord,
    parse,
)
from hopyard.stockroom.views.view import ObjectReader, place_of

_DISPUTED = "disputed"


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge.

    Attributes:
        root: digest of the merged root map; where conflicts remain it has ours.
        conflicts: what nothing resolved.
        how: ``"up to date"``: ours follows theirs already. ``"fast-forward"``: theirs follows ours, so the branch need
            only move. Otherwise ``"merged"``.
    """

    root: str | None
    conflicts: list[Conflict]
    how: Literal["up to date", "fast-forward", "merged"] = "merged"


def merge_roots(
    writer: PackfileWriter,
    base: str | None,
    ours: str | None,
    theirs: str | None,
    resolve: Resolve = None,
) -> MergeResult:
    """Ours with what theirs changed since base. Nothing is published: that is for the writer's owner to do.

    Args:
        base, ours, theirs: digests of root maps.
        resolve: who decides conflicts.

    Raises:
        UsageError: a conflict was resolved with something that does not fit.
    """
    check_resolve(resolve)
    writer.begin()
    work = _Merge(writer, resolve)
    return MergeResult(work.roots(base, ours, theirs), work.conflicts)


def merge_commits(writer: PackfileWriter, ours: str, theirs: str, resolve: Resolve = None) -> MergeResult:
    """The merge of two commits' root maps, with the base that their history gives; see ``merge_roots``."""
    check_resolve(resolve)
    bases = merge_bases(writer, ours, theirs)
    mine, others = (read_commit(writer, digest).root for digest in (ours, theirs))
    if bases == [theirs]:
        return MergeResult(mine, [], "up to date")
    if bases == [ours]:
        return MergeResult(others, [], "fast-forward")
    return merge_roots(writer, _common(writer, bases), mine, others, resolve)


def merge_since(
    writer: PackfileWriter, base: str | None, ours: str | None, theirs: str | None, resolve: Resolve = None
) -> tuple[MergeResult, list[str]]:
    """Ours with what has changed from ``base`` to ``theirs``, whatever their histories say; and which commits the
    result follows: theirs too only if everything of theirs is then in it, as ``base`` comes before both.

    Args:
        base, ours, theirs: commits; None: nothing.
    """
    check_resolve(resolve)
    roots = [None if each is None else read_commit(writer, each).root for each in (base, ours, theirs)]
    result = merge_roots(writer, roots[0], roots[1], roots[2], resolve)
    parents = [] if ours is None else [ours]
    if theirs is None:
        is_whole = is_old = False
    else:
        is_whole = base is None or all(
            each is None or is_ancestor(writer, base, each) for each in (ours, theirs)
        )
        is_old = ours is not None and is_ancestor(writer, theirs, ours)
    if not result.conflicts:
        if is_whole and result.root == roots[2] and (ours is None or is_ancestor(writer, ours, str(theirs))):
            return MergeResult(result.root, [], "fast-forward"), parents
        if result.root == roots[1] and (is_old or not is_whole):
            return MergeResult(result.root, [], "up to date"), parents
    if is_whole and not is_old and theirs is not None:
        parents.append(theirs)
    return result, parents


def is_merged(objects: ObjectReader, base: str | None, ours: str, theirs: str) -> bool:
    """Whether ours has what changed from ``base`` to theirs, as it follows theirs: a base behind theirs undoes."""
    try:
        return is_ancestor(objects, theirs, ours) and (base is None or is_ancestor(objects, base, theirs))
    except NotFoundError:
        return False


def merge_message(
    objects: ObjectReader, name: str, base: str | None, theirs: str | None, is_whole: bool
) -> str:
    """The message of a commit that has the changes from ``base`` to ``theirs``.

    Args:
        name: of theirs, for a merge.
        is_whole: the commit follows theirs.
    """
    return f"Merge {name}" if base is None or is_whole else change_message(objects, base, theirs)


def change_message(objects: ObjectReader, base: str | None, theirs: str | None) -> str:
    """The message of a commit that has the changes from ``base`` to ``theirs``, and is no merge."""
    undone = base is not None and (theirs is None or (theirs != base and is_ancestor(objects, theirs, base)))
    subject = read_commit(objects, str(base if undone else theirs)).message.partition("\n")[0]
    return (
        f"{f'Revert {subject!r}' if undone else subject}\n\n"
        f"This has what changed from {base or 'no commit'} to {theirs or 'no commit'}."
    )


def _common(writer: PackfileWriter, bases: Sequence[str]) -> str | None:
    """The root map of one commit; of several, of which none follows another, of their merge."""
    root = None
    for count, digest in enumerate(bases):
        new = read_commit(writer, digest).root
        if count:
            below = {base for merged in bases[:count] for base in merge_bases(writer, merged, digest)}
            root = _Merge(writer, None, is_base=True).roots(_common(writer, _last(writer, below)), root, new)
        else:
            root = new
    return root


def _last(writer: PackfileWriter, commits: set[str]) -> list[str]:
    """The commits that no other one follows, in an order that is always the same."""
    return sorted(
        one
        for one in commits
        if not any(one != other and is_ancestor(writer, one, other) for other in commits)
    )


class _Merge:
    """One merge of three root maps.

    Args:
        is_base: it makes a base: conflicts go into it, and are not listed.
    """

    def __init__(self, writer: PackfileWriter, resolve: Resolve, is_base: bool = False) -> None:
        self._writer, self._resolve, self._is_base = writer, resolve, is_base
        self.conflicts: list[Conflict] = []

    def roots(self, base: str | None, ours: str | None, theirs: str | None) -> str | None:
        maps = [SortedMap(self._writer, root) for root in (base, ours, theirs)]
        return maps[1].update(self._writer, merge(maps[0], maps[1], maps[2], self._merged)).root

    def _merged(self, key: bytes, *entries: Json | None) -> Json | None:
        """The record of a thing that both sides changed differently."""
        path = "/".join(place_of(key))
        disputed: list[Any] | None = []  # keys of samples; None: the whole
        if any(entry is not None and _DISPUTED in entry for entry in entries[1:]):
            return _dispute(None, None)
        base = entries[0]
        if base is not None and _DISPUTED in base:
            base, disputed = base[_DISPUTED]["record"], base[_DISPUTED]["keys"]
        records = [None if entry is None else parse(entry, path) for entry in (base, *entries[1:])]
        before, here, there = records
        columns = isinstance(here, ColumnRecord) and isinstance(there, ColumnRecord)
        if disputed is not None and columns and here.settings == there.settings:  # type: ignore[union-attr]
            keys = [tuple(key) if isinstance(key, list) else key for key in disputed]
            return self._column(path, keys, cast("list[ColumnRecord]", records))
        if disputed is not None and isinstance(here, DatasetRecord) and isinstance(there, DatasetRecord):
            base_set = before if isinstance(before, DatasetRecord) else None
            merged = merge_datasets(self._writer, base_set, here, there)
            if merged is not None:
                return merged.to_json()
        return self._whole(path, records, list(entries))

    def _whole(self, path: str, records: list[Record | None], entries: list[Json | None]) -> Json | None:
        if self._is_base:
            return _dispute(None, None)
        kind = _kind(*records)
        conflict = Conflict(path, None, kind, *map(self._shown, records))
        if self._resolve is None:
            self.conflicts.append(conflict)
            return entries[1]
        if callable(self._resolve) and any(isinstance(record, ValueRecord) for record in records):
            side, answer = chosen(self._resolve, conflict)
            if side is None:
                return values.write(self._writer, values.plain(answer, path)).to_json()
            return entries[1 if side == "ours" else 2]
        return entries[1 if chosen_side(self._resolve, conflict) == "ours" else 2]

    def _shown(self, record: Record | None) -> Any:
        return values.read(self._writer, record) if isinstance(record, ValueRecord) else record

    def _column(self, path: str, disputed: list[Any], records: list[ColumnRecord]) -> Json:
        """A column that both sides have, sample by sample."""
        base = records[0] if isinstance(records[0], ColumnRecord) else None
        found: dict[Any, None] = {}

        def decided(key: Any, kind: str, *samples: Any) -> Any:
            found[key] = None
            return samples[1] if self._is_base else self._sample(Conflict(path, key, kind, *samples))

        merged, _ = merge_columns(self._writer, self._writer, base, records[1], records[2], decided)
        if disputed:
            merged = self._disputed(
                path, [key for key in disputed if key not in found], merged, records, found
            )
        if found and self._is_base:
            return _dispute(merged.to_json(), list(found))
        return merged.to_json()

    def _disputed(
        self, path: str, keys: list[Any], merged: ColumnRecord, records: list[ColumnRecord], found: dict[Any, None]
    ) -> ColumnRecord:  # fmt: skip
        """Samples about which the bases do not agree: whatever one base has, it says nothing of who changed them."""
        name = path.partition("/")[2]
        draft = ColumnDraft(self._writer, self._writer, name, merged)
        sides = [SampleColumn(self._writer, name, record) for record in records[1:]]
        for key in keys:
            code = encode(key)
            stored = [None if side.was_purged(code) else side.stored(code) for side in sides]
            if stored[0] == stored[1]:
                continue
            found[key] = None
            if self._is_base:
                continue
            here, there = (None if sample is None else to_user(sample) for sample in stored)
            kind = REMOVED_HERE if here is None else REMOVED_THERE if there is None else BOTH_CHANGED
            chosen = self._sample(Conflict(path, key, kind, None, here, there))
            if chosen is not None:
                draft[key] = chosen
            elif key in draft:
                del draft[key]
        return cast(ColumnRecord, draft.flush())

    def _sample(self, conflict: Conflict) -> Any:
        """The sample to have."""
        if self._resolve is None:
            self.conflicts.append(conflict)
            return conflict.ours
        side, answer = chosen(self._resolve, conflict) if callable(self._resolve) else (self._resolve, None)
        if side is None:
            return answer
        return conflict.ours if side == "ours" else conflict.theirs


def _dispute(record: Json | None, keys: list[Any] | None) -> Json:
    """The stand-in, in a base, of a thing about which several bases do not agree.

    Args:
        record: of a column that has all that they agree about.
        keys: of the samples about which they do not; None: they disagree about the whole.
    """
    return {_DISPUTED: {"record": record, "keys": keys}}


def _kind(before: Any, here: Any, there: Any) -> str:
    if here is None:
        return COLUMN_REMOVED_HERE if isinstance(there, ColumnRecord) else REMOVED_HERE
    if there is None:
        return COLUMN_REMOVED_THERE if isinstance(here, ColumnRecord) else REMOVED_THERE
    if isinstance(here, ColumnRecord) and isinstance(there, ColumnRecord) and here.settings != there.settings:
        return OTHER_SETTINGS
    if before is None and all(isinstance(side, ModelRecord) and side.about for side in (here, there)):
        return BOTH_REGISTERED
    return BOTH_ADDED if before is None else BOTH_CHANGED
