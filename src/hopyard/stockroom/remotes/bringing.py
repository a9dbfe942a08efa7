"""Data from remotes: all that was asked for, or what is read and is not here."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hopyard.errors import NotFoundError, UsageError
from hopyard.stockroom.history.locks import writing
from hopyard.stockroom.packfiles.layout import Location, read_packfile
from hopyard.stockroom.remotes.closure import Need
from hopyard.stockroom.remotes.closure import needs as needs_of
from hopyard.stockroom.remotes.purges import as_purged, unaccepted
from hopyard.stockroom.remotes.repository import Repository, unreadable
from hopyard.stockroom.remotes.returning import Returned
from hopyard.stockroom.remotes.selecting import call_for
from hopyard.stockroom.remotes.transfer import LocatedObject, TransferReport, copy
from hopyard.storage.format import FORMAT_NAME
from hopyard.wording import are, counted, describe_bytes, one_line, shown

# Bytes that are read beyond what was asked for. The least come in the time that a request takes until it is answered.
_LEAST_AHEAD = 1 << 20
_MOST_AHEAD = 16 << 20
_SHOWN = 10  # purges


class Left(NamedTuple):
    """The part of a thing that did not fit into the bytes that were allowed."""

    objects: int
    nbytes: int


@dataclass(frozen=True)
class Brought:
    """Data that came.

    Attributes:
        objects: how many, and ``nbytes`` of them; what was here already does not count.
        left: by thing, what did not fit into ``max_bytes``.
        returned: samples that were purged here, and that are in the columns which came under their keys again.
    """

    objects: int = 0
    nbytes: int = 0
    left: dict[str, Left] = field(default_factory=dict)
    returned: list[Returned] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Lines that tell a user what came."""
        return [
            f"{counted(self.objects, 'object')}, {describe_bytes(self.nbytes)}",
            *(
                f"left: {counted(left.objects, 'object')} of {thing}, {describe_bytes(left.nbytes)}"
                for thing, left in self.left.items()
            ),
            *map(str, self.returned[:_SHOWN]),
        ]

    def __str__(self) -> str:
        return "\n".join(map(one_line, self.lines()))

    __repr__ = __str__


def bring(
    local: Repository,
    remotes: Sequence[Repository],
    needs: Iterable[Need],
    max_bytes: int | None = None,
    report: TransferReport | None = None,
) -> Brought:
    """Bring objects here, in the order given, from the first remote that has each. What came before a failure stays.

    Args:
        needs: as ``select`` gives them.
        max_bytes: at most so many; the first object that does not fit, and all that follow, are left.

    Raises:
        NotFoundError: no remote has some of them; nothing came. UsageError: ``max_bytes`` is negative.
        StorageFullError, CorruptError and others: as the stores.
    """
    if max_bytes is not None and not (isinstance(max_bytes, int | float) and max_bytes >= 0):
        raise UsageError(
            f"max_bytes={shown(max_bytes)}, but it must be a number of at least 0. Leave it out to bring all."
        )
    with writing(local.store):
        wanted = as_purged(local, local, needs)
        present = local.find(wanted)
        rest = [need for need in wanted if need.digest not in present]
        found = _located(remotes, rest, local)
        room = sum(one.size for one in found.values()) if max_bytes is None else max_bytes
        left: dict[str, Left] = {}
        fitting: dict[str, LocatedObject] = {}
        for need in rest:
            one = found[need.digest]
            if left or one.size > room:
                before = left.get(need.thing, Left(0, 0))
                left[need.thing] = Left(before.objects + 1, before.nbytes + one.size)
            elif need.digest not in fitting:
                fitting[need.digest] = one
                room -= one.size
        nbytes = copy(fitting, local, report) if fitting else 0
    return Brought(len(fitting), nbytes, left)


def _located(remotes: Sequence[Repository], needs: list[Need], local: Repository) -> dict[str, LocatedObject]:
    found: dict[str, LocatedObject] = {}
    rest = needs
    for remote in remotes:
        if not rest:
            break
        found |= {digest: LocatedObject(remote, place) for digest, place in remote.find(rest).items()}
        rest = [need for need in rest if need.digest not in found]
    if rest:
        things = ", ".join(sorted({need.thing for need in rest})[:10])
        if not remotes:
            raise NotFoundError(
                f"{counted(len(rest), 'object')} of {things} {are(len(rest))} not in {local.store.url}, and no remote "
                "is known here from which they could come. Fetch from where they are by its address: "
                "stock.fetch('FOLDER_OR_URL', ...), or hopyard stock fetch FOLDER_OR_URL."
            )
        asked = " or ".join(remote.store.url for remote in remotes)
        raise NotFoundError(
            f"{counted(len(rest), 'object')} of {things} {are(len(rest))} neither in {local.store.url} nor at {asked}. "
            "Nothing was fetched. "
            "Fetch from a remote that has them: stock.fetch(remote='NAME', ...); or push them from where they are."
            f"{unaccepted(remotes, {need.digest for need in rest})}{unreadable(remotes)}"
        )
    return found


class OnDemand:
    """``absent`` of ``Objects``: brings what is read and is not here, and what follows it in the remote's packfiles,
    more the longer reading goes on in that order. Picklable; a copy works in another process.

    Args:
        local: the repository whose objects are read.
        remotes: where they are looked for, in this order.
    """

    def __init__(self, local: Repository, remotes: Sequence[Repository]) -> None:
        self._local, self._remotes = local, list(remotes)
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._ends: dict[str, int] = {}  # by packfile, where the last bytes that came end
        self._ahead: dict[str, int] = {}  # bytes to be read ahead there
        self._orders: dict[str, list[tuple[str, Location]]] = {}

    def __reduce__(self) -> tuple[type[OnDemand], tuple[Repository, list[Repository]]]:
        return OnDemand, (self._local, self._remotes)

    def __call__(self, digests: Sequence[str]) -> None:
        """Bring these objects. What no remote has is left: whoever wanted it says so.

        Raises:
            NotFoundError: there is no stockroom at a remote any more, and no other has them.
            StorageError and its kinds: a remote cannot be reached, or the disk here is full.
        """
        if self._pid != os.getpid():  # forked, maybe while another thread held the lock
            self._lock, self._pid = threading.Lock(), os.getpid()
        # One after the other: what another thread has just brought need not come again.
        with self._lock, writing(self._local.store):
            rest = sorted(self._local.objects.missing(digests))
            for remote in self._remotes:
                missing = remote.objects.missing(rest)  # asks the remote only for what it did not have before
                found = {digest: remote.objects.locate(digest) for digest in rest if digest not in missing}
                rest = sorted(missing)
                if found:
                    wanted = {digest: LocatedObject(remote, place) for digest, place in found.items()}
                    try:
                        copy(wanted | self._following(remote, found), self._local)
                    except NotFoundError:
                        self._check_there()
                        # What is remembered of it is old: something, or what follows, was purged or packed anew.
                        again = remote.objects.packed(found)
                        if again:
                            copy(
                                {name: LocatedObject(remote, place) for name, place in again.items()},
                                self._local,
                            )
                        rest = sorted({*rest, *found} - again.keys())
            if rest:
                self._check_there()
                if why := unaccepted(self._remotes, rest) + unreadable(self._remotes):
                    raise NotFoundError(
                        f"{counted(len(rest), 'object')} that {are(len(rest))} read {are(len(rest))} "
                        f"neither in {self._local.store.url} nor at a remote.{why}"
                    )

    def _check_there(self) -> None:
        for remote in self._remotes:
            if not remote.store.exists(FORMAT_NAME):
                raise NotFoundError(
                    f"what is read is not here, and there is no stockroom at the remote {remote.store.url} any more. "
                    "See that it can be reached, as that its disk is mounted; or bring it from another: "
                    "stock.fetch(URL, data=..., models=...)."
                )

    def _following(self, remote: Repository, found: dict[str, Location]) -> dict[str, LocatedObject]:
        """The objects that are probably read next, and are not here."""
        more: dict[str, LocatedObject] = {}
        last: dict[str, Location] = {}
        for place in found.values():
            if place.kind == "fragment" and place.stop > last.get(place.packfile, place).start:
                last[place.packfile] = place
        for packfile, place in last.items():
            first = min(one.start for one in found.values() if one.packfile == packfile)
            size = place.stop - first
            goes_on = packfile in self._ends and first - size < self._ends[packfile] <= first
            ahead = (
                min(_MOST_AHEAD, max(2 * self._ahead.get(packfile, 0), size, _LEAST_AHEAD)) if goes_on else 0
            )
            stop = place.stop
            for digest, one in self._order(remote, packfile) if ahead else ():
                if one.start >= place.stop and one.stop <= place.stop + ahead and one.kind == "fragment":
                    more[digest] = LocatedObject(remote, one)
                    stop = max(stop, one.stop)
            self._ends[packfile], self._ahead[packfile] = stop, ahead
        here = more.keys() - self._local.objects.missing(more) if more else ()
        return {digest: one for digest, one in more.items() if digest not in here}

    def _order(self, remote: Repository, packfile: str) -> list[tuple[str, Location]]:
        if packfile not in self._orders:
            objects = read_packfile(remote.store, packfile, remote.store.size(packfile) or 0).objects
            self._orders[packfile] = sorted(objects.items(), key=lambda item: item[1].start)
        return self._orders[packfile]


class Never:
    """``absent`` of ``Objects`` where nothing is to be fetched: says which call would bring it. Picklable.

    Args:
        local: the repository whose objects are read.
        remotes: addresses.
    """

    def __init__(self, local: Repository, remotes: Sequence[str]) -> None:
        self._local, self._remotes = local, list(remotes)

    def __call__(self, digests: Sequence[str]) -> None:
        """Raises NotFoundError."""
        wanted = set(digests)
        references = self._local.references
        commits = {tip for kind in ("heads", "tags", "remotes") for tip in references.names(kind).values()}
        things = {need.thing for need in needs_of(self._local.objects, commits) if need.digest in wanted}
        where = " or ".join(self._remotes) or "a remote (none is known: hopyard stock fetch URL)"
        raise NotFoundError(
            f"{counted(len(wanted), 'object')} of {', '.join(sorted(things)) or 'no commit'} {are(len(wanted))} "
            f"read, but not here, and fetch='never' was given. Bring them from {where}: "
            f"{call_for(sorted(things))}; or open the stockroom without fetch='never'."
        )
