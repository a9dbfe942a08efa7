"""Purges that somebody else made: what a remote says was purged is a claim, which is taken only on the owner's word.

A claim is a tombstone at the remote of a fragment that history here names. Who can write there can write any, so:

* Nothing here changes because of a claim. It is told, and whoever owns this repository accepts it, or does not.
* What is here as history names it, or was purged here before, is the proof: what stands in for it is made from it, and
  a claim that says something else is refused. No byte of the remote's is taken.
* Only where the fragment is nowhere any more is the remote's stand-in taken, on the owner's word, if it is such as the
  claim and history say: the same keys and kind of samples, the same record in it, the named samples empty.
* What was accepted is pinned by its digests: later claims can only name further samples. That it rests on a remote's
  word is remembered, until a remote that has the fragment itself is fetched from: that proves it, or shows that it was
  a lie, and then what is read is made anew from the fragment.
* Only a claim that is proved false is refused. One about fragments that no commit here has concerns nothing here, and
  is passed over: an honest colleague may have purged a branch that was never pushed. One that lacks something which it
  takes to compare is left open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hopyard.errors import BusyError, CorruptError, FormatError, NotFoundError
from hopyard.objects.digests import digest
from hopyard.stockroom.data.cutting import FragmentEntry
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.purging import is_stand_in, redact
from hopyard.stockroom.data.repacking import bury, bury_samples
from hopyard.stockroom.data.rows import encoded, plain
from hopyard.stockroom.history.commits import ancestors, read_commit
from hopyard.stockroom.history.locks import WAIT, alone, read_commits
from hopyard.stockroom.history.operations import WriteOperation
from hopyard.stockroom.history.references import logs
from hopyard.stockroom.history.stage import stages
from hopyard.stockroom.maps import Key, encode
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.packfiles.tombstones import (
    FOLDER,
    Purged,
    Tombstone,
    Tombstones,
    forget_unproven,
    key_of,
    note_unproven,
    unproven,
)
from hopyard.stockroom.records import ColumnRecord, parse
from hopyard.stockroom.remotes.closure import Need, changed_pages
from hopyard.stockroom.remotes.repository import Repository
from hopyard.stockroom.remotes.returning import Returned
from hopyard.stockroom.views.view import place_of
from hopyard.wording import counted, one_line

_SHOWN = 10


@dataclass(frozen=True)
class Purges:
    """Claims of a remote that samples were purged, and what became of them here.

    Attributes:
        claimed: what was not accepted, and is as it was. accepted: now.
        refused: by the name of a tombstone there, why it is not believed, whoever asks for it.
        undecided: by the name of a tombstone there, why nobody can say now whether it is so.
        unproven: of those claimed or accepted now, where the fragment is neither here nor there, so that the samples
            beside the purged ones rest on the remote's word.
        proved: what had been accepted on a remote's word, and is so: this remote has the fragment.
        disproved: by the name of a tombstone that was accepted on a remote's word, what of it was a lie. What is
            read is now what the commit says.
        returned: samples that were purged here, and that commits which came have under their keys again.
        unseen: the number of fragments of such commits in which there may be more. They are only at the remote.
        kept: why bytes that nothing leads to any more, and that may be of what was accepted now, are still here.
    """

    claimed: list[Tombstone] = field(default_factory=list)
    accepted: list[Tombstone] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    unproven: list[Tombstone] = field(default_factory=list)
    proved: list[Tombstone] = field(default_factory=list)
    disproved: dict[str, str] = field(default_factory=dict)
    returned: list[Returned] = field(default_factory=list)
    unseen: int = 0
    kept: str = ""

    @property
    def waiting(self) -> int:
        """The number of claims that can be accepted later."""
        return len(self.claimed) + len(self.undecided)

    def lines(self) -> list[str]:
        """Lines that tell a user which purges were found, and what to do."""
        told = [f"the remote says that {line}" for line in _described(self.claimed)]
        if told:
            told.append("nothing was purged here; to do that: hopyard stock fetch --accept-purges")
        told += [f"purged here too: {line}" for line in _described(self.accepted)]
        if self.kept:
            told.append(
                "copies of these samples that no commit has any more, as of what a block replaced, may still be in the "
                f"stockroom's files: {self.kept.rstrip('.')}. When that is mended: hopyard stock gc"
            )
        told += [str(one) for one in self.returned[:_SHOWN]]
        if len(self.returned) > _SHOWN:
            told.append(
                f"and so are those of {len(self.returned) - _SHOWN} more purges: hopyard stock verify"
            )
        if self.unseen:
            told.append(
                f"whether purged samples are also in {counted(self.unseen, 'fragment')} of the commits that came was "
                "not looked at: they are only at the remote. Bring them (hopyard stock fetch --data NAME), then run "
                "hopyard stock verify"
            )
        if self.unproven:
            rest = "rest" if self.accepted else "would then rest"
            told.append(
                f"the samples beside those, in {counted(len(self.unproven), 'fragment')}, {rest} on the remote's word: "
                "neither it nor this stockroom has the fragments as they were, which would prove that nothing else "
                "changed. Fetch from somebody who has them (hopyard stock fetch FOLDER_OR_URL), and they are compared"
            )
        told += [f"proved by this remote, which has the fragment: {line}" for line in _described(self.proved)]
        told += list(self.disproved.values())
        told += [f"not purged here yet: {reason}" for reason in self.undecided.values()]
        return told + [f"not believed: {reason}" for reason in self.refused.values()]

    def __str__(self) -> str:
        return "\n".join(map(one_line, self.lines())) or "no purges"

    __repr__ = __str__


class _Lie(Exception):
    """A claim is proved false; says why."""


class Claims:
    """The claims of a remote that are not purged here yet. Made by who holds ``writing`` of the repository here.

    Args:
        commits: of which all metadata is here; they say which fragments there are.
    """

    def __init__(self, local: Repository, remote: Repository, commits: Iterable[str]) -> None:
        self._local, self._remote = local, remote
        there, self._own = Tombstones(remote.store), Tombstones(local.store).all()
        claims = [one for several in there.all().values() for one in several]
        self._claims = [one for one in claims if not one.keys <= self._gone().get(one.object, set())]
        self._refused, (self._proved, self._disproved) = there.refused, prove(local, remote)
        self._named = _named(local.objects, commits, self._claims) if self._claims else {}

    def examined(self) -> Purges:
        """Purges that are known, before anything is purged because of them. For holders of ``writing``."""
        return self._each(None)

    def accepted(self, named: Iterable[str] = ()) -> Purges:
        """Purge here what they say, where that can be so, also where the same samples were copied to with their
        neighbours. For who holds ``collecting``: a writer that has read a sample before would store it again.

        Args:
            named: commits that git's history names.
        """
        self._own = Tombstones(self._local.store).all()  # somebody may have purged meanwhile
        found = self._each(_Copies(self._local, self._claims, named))
        if found.accepted:
            bury(self._local.objects)
        return found

    def _gone(self) -> dict[str, set[Key]]:
        return {name: set().union(*(one.keys for one in several)) for name, several in self._own.items()}

    def _each(self, copies: _Copies | None) -> Purges:
        found = Purges(refused=dict(self._refused), proved=self._proved, disproved=self._disproved)
        local, remote, gone = self._local, self._remote, self._gone()
        objects = {one.object for one in self._claims}
        here = local.objects.packed(objects) if objects else {}
        known = here.keys() | self._own.keys() | (remote.objects.packed(objects).keys() if objects else set())
        for claim in self._claims:
            # The claim with the most samples of a fragment comes first, and then there is nothing new in the others.
            if claim.keys <= gone.get(claim.object, set()):
                if any(
                    one[:2] == claim[:2] for one in found.accepted
                ):  # of another column that shares the samples
                    local.store.put_new(claim.name, claim.encode())
                    found.accepted.append(claim)
                continue
            named = self._named.get((claim.column, claim.object))
            if named is None:
                continue
            told = f"{remote.store.url}/{claim.name} says that {_described([claim])[0]}"
            try:
                if claim.object in here:
                    _check_stand_in(local.objects.read(claim.object), claim)
                if copies is not None:
                    copies.bury(claim)  # first: a claim that was accepted is not looked at again
                    _accept(local, remote, claim, named, self._own.get(claim.object, []))
                    gone[claim.object] = gone.get(claim.object, set()) | claim.keys
            except _Lie as lie:
                found.refused[claim.name] = (
                    f"{told}; but {lie}. Nothing changed here because of it. Ask who can write there, and delete that "
                    "file."
                )
            except (CorruptError, FormatError, NotFoundError) as error:
                found.undecided[claim.name] = (
                    f"{told}. That cannot be compared now: {str(error).rstrip('.')}. Nothing changed here because of "
                    "it. When that is mended, fetch again."
                )
            else:
                (found.claimed if copies is None else found.accepted).append(claim)
                if claim.object not in known:
                    found.unproven.append(claim)
        return found


def prove(local: Repository, remote: Repository) -> tuple[list[Tombstone], dict[str, str]]:
    """Compare what was accepted here on a remote's word with the fragments, of those that this remote has. For who
    holds ``writing`` of the repository here.

    Nobody's word is needed for that: the fragment has the digest that commits name. Where what was accepted is not the
    fragment without the purged samples, it is made anew from the fragment; the samples stay purged.

    Returns:
        What is proved; and by the name of a tombstone that is gone, what of it was a lie.
    """
    marked = unproven(local.store)
    proved: list[Tombstone] = []
    disproved: dict[str, str] = {}
    if not marked:
        return proved, disproved
    own = Tombstones(local.store).all()
    for name in sorted(remote.objects.packed(marked)):
        with suppress(CorruptError, FormatError, NotFoundError):  # it proves nothing
            data = remote.objects.read(name)
            if digest(data, "hopyard.fragment") != name:
                continue
            several = own.get(name, [])
            lies = [one for one in several if not is_stand_in(data, one)]
            if lies:
                _make_anew(local.objects.alone(), data, several)
                disproved |= {
                    one.name: f"{marked[name]} said that {_described([one])[0]}, which was accepted here on its word; "
                    f"but {remote.store.url} has the fragment, and what was read instead was not that without these "
                    "samples. The other samples are read as they were committed from now on. Ask who can write to "
                    f"{marked[name]}."
                    for one in lies
                }
            else:
                proved += several[:1]
            forget_unproven(local.store, name)
    return proved, disproved


def _make_anew(objects: Objects, data: npt.NDArray[np.uint8], several: list[Tombstone]) -> None:
    """Let a fragment without the samples that tombstones name stand in for it, and delete those that say otherwise."""
    keys = set(plain(Fragment(data).keys))
    first = several[0]
    purged = {key_of(one.key): one for each in several for one in each.purged if key_of(one.key) in keys}
    kept = ""
    if purged:
        kept = bury_samples(objects, first.object, first.column, tuple(purged.values()), data=data).name
    else:  # it has none of these samples
        content, width, body = redact(data, ())
        with objects.writing() as writer:
            writer.add("fragment", content, width, body)
    for each in several:
        if each.name != kept:
            objects.store.delete(each.name)
    objects.refresh()


class _Named(NamedTuple):
    """A fragment in history: the column's record, and the entry that names it."""

    record: ColumnRecord
    entry: FragmentEntry


def _accept(
    local: Repository, remote: Repository, claim: Tombstone, named: _Named, own: list[Tombstone]
) -> None:
    """Raises _Lie; CorruptError, FormatError, NotFoundError: what it takes to compare is damaged, or is nowhere."""
    objects = local.objects.alone()
    if not objects.missing([claim.object]):  # or what stands in for it here
        objects.read(claim.object)
        known = tuple(one for each in own for one in each.purged)
        try:
            bury_samples(objects, claim.object, claim.column, known, claim.purged)
        except CorruptError as error:
            raise _Lie(str(error)) from error
        return
    # Looked up anew: whoever purged deleted packfiles there that are remembered here.
    there = remote.objects.packed([claim.object, claim.instead])
    if not there:
        raise NotFoundError(f"what is left of the fragment is neither here nor at {remote.store.url}")
    data = remote.objects.read(claim.object if claim.object in there else claim.instead)
    _check_stand_in(data, claim)
    content, width, body = redact(data, claim.purged)
    _check_fits(Fragment(np.frombuffer(content, np.uint8)), named)
    if claim.object not in there:
        note_unproven(local.store, claim.object, remote.store.url)
    with objects.writing() as writer:
        writer.add("fragment", content, width, body)
    local.store.put_new(claim.name, claim.encode())


def _check_stand_in(data: npt.NDArray[np.uint8], claim: Tombstone) -> None:
    """Raises _Lie: what stands in, as the claim says, is not these bytes without the samples that it names."""
    if not is_stand_in(data, claim):
        raise _Lie("what stands in is not the fragment without the samples that it names")


def _check_fits(fragment: Fragment, named: _Named) -> None:
    record, entry = named
    header, keys = fragment.described, encoded(fragment.keys)
    shape = list(record.shape) if record.kind == "tensor" else None
    if [header["kind"], header["dtype"], header["shape"]] != [record.kind, record.dtype, shape]:
        raise _Lie("what stands in has samples of another kind, dtype or shape than the column")
    if [len(keys), keys[0], keys[-1]] != [entry.count, entry.first, entry.last] or keys != sorted(set(keys)):
        raise _Lie("what stands in has other keys than the column")


def _named(
    objects: Objects, commits: Iterable[str], claims: Collection[Tombstone]
) -> dict[tuple[str, str], _Named]:
    """By column and digest, what history says of the fragments that claims are about."""
    wanted = {one.object for one in claims}
    return {
        (column, row[0]): _Named(record, FragmentEntry.of(first, row))
        for column, record, first, row in _entries(objects, commits, {one.column for one in claims})
        if row[0] in wanted
    }


def _entries(
    objects: Objects,
    commits: Iterable[str],
    columns: Collection[str],
    operations: Iterable[WriteOperation] = (),
) -> Iterator[tuple[str, ColumnRecord, bytes, Any]]:
    """The entries of fragments in these columns, in all history of commits and in staged writes, some more than once:
    column and its record, the first key, and what the column's map says of the fragment."""
    for each in ancestors(objects, commits):
        commit = read_commit(objects, each)
        before = read_commit(objects, commit.parents[0]).root if commit.parents else None
        for _, entries in changed_pages(objects, commit.root, before):
            for key, value, old in entries:
                shelf, name = place_of(key)[0], "/".join(place_of(key)[1:])
                record = parse(value, name) if shelf == "data" and name in columns else None
                if isinstance(record, ColumnRecord):
                    last = None if old is None else parse(old, name)
                    pages = last.pages if isinstance(last, ColumnRecord) else None
                    yield from _rows(objects, name, record, pages)
    for operation in operations:
        for shelf, name, value in operation.things:
            record = parse(value, name) if shelf == "data" and name in columns and value is not None else None
            if isinstance(record, ColumnRecord):
                yield from _rows(objects, name, record, None)


def _rows(
    objects: Objects, column: str, record: ColumnRecord, before: str | None
) -> Iterator[tuple[str, ColumnRecord, bytes, Any]]:
    for _, rows in changed_pages(objects, record.pages, before):
        for first, row, _ in rows:
            yield column, record, first, row


class _Copies:
    """Fragments here, of whatever history or staged write, that may have samples of claims again: whoever changed a
    neighbour has written them anew, under another digest than a claim names.

    Args:
        commits: that nothing but git names, as far as they are here.
    """

    def __init__(self, local: Repository, claims: Collection[Tombstone], commits: Iterable[str]) -> None:
        self._objects, self._store = local.objects, local.store
        wanted: dict[str, dict[bytes, None]] = {}
        for claim in claims:
            wanted.setdefault(claim.column, {}).update(dict.fromkeys(map(encode, claim.keys)))
        self._found: dict[tuple[str, bytes], dict[str, None]] = {}
        begun = {*commits, *read_commits(local.store)}
        for log in logs(local.store)[0]:
            moves = list(log.entries.values())
            # Of a working tree all commits at which it ever was: no branch may have them.
            begun |= {
                move.commit
                for move in (moves if log.name.startswith("worktrees/") else moves[-1:])
                if move.commit is not None
            }
        operations: list[WriteOperation] = []
        for stage in stages(local.store):
            begun |= set() if stage.base is None else {stage.base}
            operations += map(WriteOperation.decode, stage.operations())
        here = begun - self._objects.missing(begun)
        for column, _, first, row in _entries(self._objects, here, wanted, operations):
            last = FragmentEntry.of(first, row).last
            for code in wanted[column]:
                if first <= code <= last:
                    self._found.setdefault((column, code), {})[row[0]] = None

    def bury(self, claim: Tombstone) -> None:
        """Make tombstones of the fragments that have a sample as it is in the fragment that the claim is about. Other
        samples under the same key were never purged by anybody."""
        if self._objects.missing([claim.object]):  # with which they would be compared
            return
        original = Fragment(self._objects.read(claim.object))
        copies: dict[str, list[Purged]] = {}
        for one in claim.purged:
            code = encode(key_of(one.key))
            sample = _sample(original, code)
            for name in self._found.get((claim.column, code), ()) if sample is not None else ():
                is_here = name != claim.object and not self._objects.missing([name])
                if is_here and _sample(Fragment(self._objects.read(name)), code) == sample:
                    copies.setdefault(name, []).append(one)
        own = Tombstones(self._store).all() if copies else {}
        for name, purged in copies.items():
            known = tuple(one for each in own.get(name, ()) for one in each.purged)
            bury_samples(self._objects, name, claim.column, tuple(purged), known)


def _sample(fragment: Fragment, code: bytes) -> tuple[bytes, tuple[int, ...] | None] | None:
    """A sample's bytes and shape; None: it is not there, or was purged."""
    at = fragment.position(code)
    if at is None or at in fragment.purged:
        return None
    data, shape = fragment.rows.sample(at)
    return data.tobytes(), shape


def _described(claims: Collection[Tombstone]) -> list[str]:
    """A line for each purge: who purged what, when and why."""
    purges: dict[tuple[str, str, str, str], list[str]] = {}
    for claim in claims:
        for one in claim.purged:
            keys = purges.setdefault((claim.column, one.by, one.time, one.why), [])
            if repr(one.key) not in keys:
                keys.append(repr(one.key))
    return [
        f"{counted(len(keys), 'sample')} of {column!r} {'was' if len(keys) == 1 else 'were'} purged by "
        f"{by or 'somebody'} on {time} ({why}): {', '.join(keys[:_SHOWN])}{' and others' if len(keys) > _SHOWN else ''}"
        for (column, by, time, why), keys in purges.items()
    ]


def carry(local: Repository, remote: Repository) -> list[str]:
    """Bring the tombstones here to a remote, and delete there what they say was purged, while nobody writes there: who
    has read a sample before would store it again. For who pushes, and holds no lock there.

    Returns:
        A line for each purge that the remote did not know.

    Raises:
        BusyError: somebody writes there all the time. Nothing was brought there.
    """
    own = {one.name: one for several in Tombstones(local.store).all().values() for one in several}
    if not own:
        return []
    present = {entry.name for entry in remote.store.list(FOLDER)}
    new = sorted(own.keys() - present)
    # Without new ones there is something to bury only after a push that was killed, and that can wait.
    try:
        with alone(remote.store, WAIT if new else 0):
            for name in new:
                remote.store.put_new(name, own[name].encode())
            bury(remote.objects)
    except BusyError as error:
        if new:
            raise BusyError(
                f"{error} Purges are brought there before all else, so nothing was sent: push again then."
            ) from None
    return _described([own[name] for name in new])


def as_purged(local: Repository, there: Repository, needs: Iterable[Need]) -> list[Need]:
    """The needs of commits, with what stands in for fragments that were purged, as the tombstones of ``there`` say,
    unless what is here says that they lie."""
    every = Tombstones(there.store).all()
    wanted = list(needs)
    if not every:
        return wanted
    here = local.objects.packed(need.digest for need in wanted if need.digest in every)

    def instead(need: Need) -> str:
        for one in every.get(need.digest, ()) if need.kind == "fragment" else ():
            if need.digest not in here or is_stand_in(local.objects.read(need.digest), one):
                return one.instead
        return need.digest

    return [need._replace(digest=instead(need)) for need in wanted]


def unaccepted(remotes: Iterable[Repository], digests: Collection[str]) -> str:
    """Text on the claims of remotes that objects, which none of them has, were purged; empty without claims."""
    for remote in remotes:
        every = Tombstones(remote.store).all()
        claims = [every[digest][0] for digest in digests if digest in every]
        if claims:
            named = remote.name or remote.store.url
            return (
                f" {remote.store.url} says that {'; '.join(_described(claims)[:3])}. That was not accepted here. If it "
                f"is so, accept it, and what is left is read: stock.fetch({named!r}, accept_purges=True), or hopyard "
                f"stock fetch {named} --accept-purges. That the other samples are unchanged is then that remote's word,"
                " unless it, or another one that is fetched from, has the fragments as they were."
            )
    return ""
