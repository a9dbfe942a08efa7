"""The numbered segments of a journal, and the archives into which they are merged.

A segment is ``journal/<number>``: JSON lines and a line with their digest. Taking the next number
(put-if-absent) is the append and the fence in one. An archive is ``journal/<first>-<last>``: the segments of these
numbers, compressed. It counts for its numbers from the moment it is there; then its segments are deleted.

The last segment is never merged. So a driver that was overtaken, and finds a number free that was deleted,
misses the segment before it; and a reader whose listing shows no last segment knows that it must look again.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from hopyard.errors import CorruptError, NotFoundError, RunHeldError, StorageError, UnreachableError
from hopyard.objects import digest
from hopyard.storage import Store
from hopyard.storage.format import check_format, format_header

FOLDER = "journal"
CUT = "cut"
_DOMAIN = "hopyard.journal"
_DIGITS = 12
_PIECE = 1 << 21
"""Bytes of segments in one compressed piece, which readers hold in memory one at a time; one segment may be larger."""
_BEGINNING = 1 << 16
"""Bytes of an archive that are read at first, where only its beginning is looked at."""
_LARGEST = 1 << 24
"""Archives are merged into larger ones up to this many bytes."""

_Seen = TypeVar("_Seen")


@dataclass(frozen=True, order=True)
class _Archive:
    last: int
    first: int
    size: int

    @property
    def name(self) -> str:
        return f"{FOLDER}/{_digits(self.first)}-{_digits(self.last)}"


@dataclass(frozen=True)
class _Listing:
    archives: tuple[_Archive, ...]
    numbers: frozenset[int]

    @property
    def highest(self) -> int:
        return max(*self.numbers, *(archive.last for archive in self.archives), 0, 0)


class _MissingError(Exception):
    """A segment is not where a listing has it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Segments:
    """The segments of one run, for one thread; any number of processes may read while one appends and merges.

    Attributes:
        last: the number that was read or appended last; ``read`` and ``append`` go on after it.
        archived: the highest number in an archive, as far as this object knows.
        highest: the highest number in the last listing.
        torn: number and size of the last segment if it is damaged: power failed while it was written.

    Args:
        store: the run's folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last: int = 0
        self.archived: int = 0
        self.highest: int = 0
        self.torn: tuple[int, int] | None = None
        self._is_from_archive = False
        """Whether the segment ``last`` was read from an archive: a torn one came behind it, and was cut off."""
        self._own: dict[int, bytes] = {}
        self._unanswered: tuple[int, bytes] | None = None
        """Number and content of an append that ended without an answer."""
        self._merged: deque[str] = deque()
        """Names of objects whose segments an archive holds, to be deleted."""

    # Reading --------------------------------------------------------------------------------

    def read(self) -> Iterator[bytes]:
        """The records of every segment after ``last``, as lines. Nothing new costs one listing.

        Raises:
            CorruptError: a segment is missing, or is not what was written and not the last.
        """
        before = None
        while True:
            listing = self._list()
            yield from self._read(listing)
            if self.torn is not None:
                return
            if self.last >= listing.highest and (self.last in listing.numbers or self.last == 0):
                return
            # A missing segment was merged since the listing, unless a second listing shows the same.
            if listing == before:
                if self.last < listing.highest:
                    self._raise_torn(listing, self.last + 1)
                return
            before = listing

    def ends(self) -> tuple[bytes, bytes]:
        """The records of the first and of the last segment that has any, as lines; nothing in between is read.

        Raises:
            CorruptError: one of them is not what was written.
        """
        return self._seen(lambda listing: (self._nearest(listing, 1, 1), self._last_of(listing)))

    def end(self) -> bytes:
        """The records of the last segment that has any, as lines; of the others nothing is read.

        Raises:
            CorruptError: it is not what was written.
        """
        return self._seen(self._last_of)

    def first_line(self) -> bytes:
        """The first record, as a line, by which runs are told from each other; of the rest little is read, and whether
        that is what was written is not looked at.

        Raises:
            CorruptError: there is none where others are.
        """
        return self._seen(self._first_line)

    def _seen(self, look: Callable[[_Listing], _Seen]) -> _Seen:
        """What ``look`` finds by a listing that holds."""
        listing, before = self._list(), None
        while True:
            try:
                return look(listing)
            except (
                _MissingError
            ) as missing:  # it was merged since the listing, unless a second one shows the same
                if listing == before:
                    self._raise_torn(listing, missing.number)
                listing, before = self._list(), listing

    def _last_of(self, listing: _Listing) -> bytes:
        return self._nearest(listing, listing.highest, -1)

    def _first_line(self, listing: _Listing) -> bytes:
        archive = max((each for each in listing.archives if each.first == 1), default=None)
        if archive is not None:
            # NotFoundError: it was merged since; zlib.error: it is damaged, which is told below.
            with contextlib.suppress(NotFoundError, CorruptError, zlib.error):
                _, _, data = self._store.get(archive.name, 0, min(archive.size, _BEGINNING)).partition(b"\n")
                line, end, _ = (
                    zlib.decompressobj().decompress(data, _BEGINNING).lstrip(b"\n").partition(b"\n")
                )
                if end:
                    return line
        return self._nearest(listing, 1, 1).partition(b"\n")[0]

    def _nearest(self, listing: _Listing, number: int, step: int) -> bytes:
        """The records of the nearest segment from a number on that has any; of a damaged last one there are none."""
        piece: dict[int, bytes | None] = {}
        while 0 < number <= listing.highest:
            if number not in piece:
                piece = self._piece_with(listing, number)
            if number not in piece:
                raise _MissingError(number)
            if body := piece[number]:
                return body
            number += step
        return b""

    def _piece_with(self, listing: _Listing, number: int) -> dict[int, bytes | None]:
        """The records of a segment, and of those that are compressed together with it, by number."""
        archive = max((each for each in listing.archives if each.first <= number <= each.last), default=None)
        try:
            if archive is None:
                return {number: self._get(number, listing.highest)} if number in listing.numbers else {}
            data = self._first_piece(archive) if number == archive.first else self._store.get(archive.name)
        except NotFoundError:
            return {}
        return dict(_segments_of(data, f"{self._store.url}/{archive.name}", number))

    def _first_piece(self, archive: _Archive) -> bytes:
        """The first piece of an archive; all of the archive where its header does not tell the size of that."""
        data = self._store.get(archive.name, 0, min(archive.size, _BEGINNING))
        header, _, piece = data.partition(b"\n")
        try:
            rest = json.loads(header)["nbytes"] - len(piece)
        except (ValueError, KeyError, TypeError):
            return self._store.get(archive.name)
        if rest <= 0:
            return data[: len(data) + rest]
        return data + self._store.get(archive.name, len(data), min(rest, archive.size - len(data)))

    def seek_end(self) -> None:
        """Go behind the last segment; only that one is read."""
        self.last = max(self._list().highest - 1, 0)
        for _ in self.read():
            pass

    def _read(self, listing: _Listing) -> Iterator[bytes]:
        while True:
            number = self.last + 1
            archives = [archive for archive in listing.archives if archive.first <= number <= archive.last]
            try:
                if archives:
                    name = max(archives).name
                    segments = _segments_of(self._store.get(name), f"{self._store.url}/{name}")
                elif number in listing.numbers:
                    body = self._get(number, listing.highest)
                    if body is None:
                        return
                    segments = iter([(number, body)])
                else:
                    return
            except NotFoundError:
                return
            for number, body in segments:
                if number == self.last + 1:
                    self.last, self._is_from_archive = number, bool(archives)
                    yield body

    def _get(self, number: int, highest: int) -> bytes | None:
        """The records of a segment; None if it is the last and damaged."""
        data = self._store.get(_name(number))
        body = data[:-_MARK]
        if data[-_MARK:] == _mark(body):
            return body
        if number < highest:
            raise CorruptError(
                f"segment {number} of the journal in {self._store.url} is not what was written: its {len(data)} bytes "
                "do not have their digest, and later ones are there. Restore it from a copy, or start the run "
                "anew with fresh=True."
            )
        self.torn = number, len(data)
        return None

    def _list(self) -> _Listing:
        self.torn = None
        archives, numbers = [], []
        for entry in self._store.list(FOLDER):
            first, dash, last = entry.name.removeprefix(f"{FOLDER}/").partition("-")
            if dash:
                archives.append(_Archive(self._number(last), self._number(first), entry.size))
            else:
                numbers.append(self._number(first))
        self.archived = max((archive.last for archive in archives), default=0)
        listing = _Listing(tuple(sorted(archives)), frozenset(numbers))
        self.highest = listing.highest
        return listing

    def _number(self, digits: str) -> int:
        if len(digits) != _DIGITS or not digits.isdigit():
            raise CorruptError(
                f"the journal in {self._store.url} holds {digits!r}, but only numbers of {_DIGITS} digits belong "
                "there. Move that file elsewhere."
            )
        return int(digits)

    def _raise_torn(self, listing: _Listing, number: int) -> NoReturn:
        raise CorruptError(
            f"the journal in {self._store.url} lacks {_digits(number)}, but has {_digits(listing.highest)}: its "
            "history is torn. Restore the missing file from a copy, or begin anew in another place."
        )

    # Writing --------------------------------------------------------------------------------

    def append(self, body: bytes) -> int:
        """Store records durably, under the number after ``last``; returns that number.

        Raises:
            RunHeldError: another process has taken the number.
            UnreachableError: the store did not answer. The same records may be appended again.
            StorageError: a segment without records was appended again, and one is there.
        """
        number, data = self.last + 1, body + _mark(body)
        try:
            taken = not self._store.put_new(_name(number), data)
            if taken and self._unanswered == (number, data) and self._store.get(_name(number)) == data:
                if not body:  # all empty segments are alike, whoever writes them
                    raise StorageError(
                        f"writing {_name(number)!r} in {self._store.url} got no answer at first; now it is there, and "
                        "nothing tells whether another driver wrote it. The run ended there; start it again, and it "
                        "goes on."
                    )
                taken = False  # by the attempt without an answer
            if not taken and self._is_overtaken():
                self._store.delete(_name(number))
                taken = True
        except UnreachableError:
            self._unanswered = (number, data)  # which may be there by now, whatever got no answer
            raise
        if taken:
            raise RunHeldError(
                f"{self._store.url}/{_name(number)} was written by another process, so this one has lost "
                "what it held and wrote nothing more. Look whether another driver continues the run; "
                "if not, run again: it goes on from what is stored."
            )
        self.last, self._is_from_archive = number, False
        self._own[number] = body
        return number

    def fence(self) -> None:
        """Append an empty segment, also if others append: no other driver can append from here on."""
        while self.last:
            try:
                self.append(b"")
                return
            except RunHeldError:
                self.seek_end()
                if self.torn is not None:
                    self.cut()

    def cut(self) -> str:
        """Put the damaged last segment aside, so that its number is free. Returns a text that says so."""
        assert self.torn is not None
        number, size = self.torn
        data = self._store.get(_name(number))
        kept = f"{CUT}/{_digits(number)}-{digest(data, _DOMAIN)[:8]}"
        self._store.put(kept, data)
        self._store.delete(_name(number))
        self.torn = None
        return (
            f"the journal in {self._store.url} ends with a damaged segment, as after a power failure: the {size} "
            f"bytes of segment {number} are left out and kept in {kept}. "
            "The units in it are done again; nothing else is lost."
        )

    def _is_overtaken(self) -> bool:
        """Whether the segment before the one just put is gone: another driver has merged it."""
        return self.last > 0 and not self._is_from_archive and not self._store.exists(_name(self.last))

    # Merging --------------------------------------------------------------------------------

    def merge(self) -> None:
        """Merge all segments but the last. Only for the driver that holds the run, and after ``seek_end``.

        The merged ones are deleted by ``tidy``.
        """
        if self.last - self.archived < 2:
            return
        # What was appended is settled; that nothing is merged is no harm, and it is tried again.
        with contextlib.suppress(StorageError):
            self._archive()

    def _archive(self) -> None:
        archives = self._list().archives
        first, last = self.archived + 1, self.last - 1
        if first > last:
            return
        merged = [_name(number) for number in range(first, last + 1)]
        data, bodies, nbytes = [], list[bytes](), 0
        for number in range(first, last + 1):
            bodies.append(self._body(number))
            nbytes += len(bodies[-1])
            if number == last or nbytes >= _PIECE:
                data.append(_compressed(number - len(bodies) + 1, bodies))
                bodies, nbytes = [], 0
        size = sum(map(len, data))
        for archive in reversed(
            archives
        ):  # a binary counter: few archives, and each byte is written few times
            if archive.last != first - 1 or archive.size > size or archive.size + size > _LARGEST:
                break
            data.insert(0, self._store.get(archive.name))
            size, first = size + archive.size, archive.first
            merged.append(archive.name)
        self._store.put_new(f"{FOLDER}/{_digits(first)}-{_digits(last)}", b"".join(data))
        self.archived = last
        self._own = {number: body for number, body in self._own.items() if number > last}
        self._merged += merged

    def tidy(self, at_most: int | None = None) -> bool:
        """Delete some of the merged objects; True if there are more."""
        for _ in range(len(self._merged) if at_most is None else min(at_most, len(self._merged))):
            self._store.delete(self._merged[0])
            self._merged.popleft()
        return bool(self._merged)

    def find_merged(self) -> None:
        """Have ``tidy`` delete segments and archives left by a driver that was killed while it merged, or overtaken."""
        listing = self._list()
        self._merged += [_name(number) for number in sorted(listing.numbers) if number <= self.archived]
        for archive in listing.archives:
            if any(
                o != archive and o.first <= archive.first and archive.last <= o.last for o in listing.archives
            ):
                self._merged.append(archive.name)

    def _body(self, number: int) -> bytes:
        body = self._own.get(number)
        if body is None:
            body = self._get(number, self.last)
        assert body is not None, "this driver holds the journal"
        return body


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _digits(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _name(number: int) -> str:
    return f"{FOLDER}/{_digits(number)}"


def _mark(body: bytes) -> bytes:
    return f"{digest(body, _DOMAIN)}\n".encode()


_MARK = len(_mark(b""))


def _compressed(first: int, bodies: list[bytes]) -> bytes:
    """A header line and the compressed segments, an empty line after each."""
    content = b"".join(body + b"\n" for body in bodies)
    data = zlib.compress(content)
    header = {
        "segments": [first, first + len(bodies) - 1],
        "nbytes": len(data),
        "digest": digest(content, _DOMAIN),
    }
    return _line(format_header("journal") | header) + data


def _segments_of(data: bytes, where: str, only: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Number and records of each segment in an archive; ``only``: of those in the same piece as that number."""
    start = 0
    while start < len(data):
        try:
            end = data.index(b"\n", start) + 1
            header = json.loads(data[start:end])
            check_format(header, "journal", where=where)
            number, last, nbytes = *map(int, header["segments"]), int(header["nbytes"])
            if only is not None and not number <= only <= last:
                start = end + nbytes
                continue
            content = zlib.decompress(data[end : end + nbytes])
            intact = end + nbytes <= len(data) and digest(content, _DOMAIN) == header["digest"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, zlib.error):
            intact = False
        if not intact:
            raise CorruptError(
                f"{where} is not what was written: the part from byte {start} on does not have its digest. Restore it "
                "from a copy, or start the run anew with fresh=True."
            )
        at = 0
        while at < len(content):  # no line of a record is empty
            stop = at if content.startswith(b"\n", at) else content.index(b"\n\n", at) + 1
            yield number, content[at:stop]
            at, number = stop + 1, number + 1
        start = end + nbytes
