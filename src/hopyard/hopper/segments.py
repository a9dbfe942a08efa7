"""The numbered segments of a journal, and the packs into which they are merged.

A segment is ``journal/<number>``: JSON lines and a line with their digest. Taking the next number
(put-if-absent) is the append and the fence in one. Merging moves the journal to ``packed/``: ``packed/<first>-<last>``
holds the segments of these numbers, compressed, and ``packed/<number>`` are the segments after them. Its steps,
each of which may be the last before a crash:

1. The header in segment 1 is flagged, so that older versions refuse the run instead of reading half of it.
2. A segment ``moved`` takes the next number: from here on everybody appends in ``packed/``.
3. A pack is put. It is what counts for its numbers from now on.
4. What it holds is deleted, lowest number first; ``journal/000000000001`` stays for the older versions.

The last segment is never merged. So a driver that was overtaken, and finds a number free that was deleted,
misses the segment before it; and a reader whose listing shows no last segment knows that it must look again.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from hopyard.errors import CorruptError, NotFoundError, RunHeldError, StorageError
from hopyard.objects import digest
from hopyard.storage import Store
from hopyard.storage.format import check_format, format_header

FOLDER = "journal"
PACKED = "packed"
CUT = "cut"
_DOMAIN = "hopyard.journal"
_FLAG = "packed-journal"
_MOVED = b'{"r":"moved"}\n'
_DIGITS = 12
_BATCH = 1024
"""Segments in one compressed piece."""
_LARGEST = 1 << 26
"""Packs are merged into larger ones up to this many bytes."""


@dataclass(frozen=True, order=True)
class _Pack:
    last: int
    first: int
    size: int

    @property
    def name(self) -> str:
        return f"{PACKED}/{_digits(self.first)}-{_digits(self.last)}"


@dataclass(frozen=True)
class _Listing:
    packs: tuple[_Pack, ...]
    numbers: frozenset[int]

    @property
    def highest(self) -> int:
        return max(*self.numbers, *(pack.last for pack in self.packs), 0, 0)


class Segments:
    """The segments of one run, for one thread; any number of processes may read while one appends and merges.

    Attributes:
        last: the number that was read or appended last; ``read`` and ``append`` go on after it.
        packed: the highest number in a pack, as far as this object knows.
        torn: number and size of the last segment if it is damaged: power failed while it was written.

    Args:
        store: the run's folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last = 0
        self.packed = 0
        self.torn: tuple[int, int] | None = None
        self._boundary: int | None = None
        """The last number that is in ``journal/``; 0 if packs hold it, None as long as all are."""
        self._from_pack = False
        """Whether the segment ``last`` was read from a pack."""
        self._own: dict[int, bytes] = {}
        self._rubbish: deque[str] = deque()

    # Reading --------------------------------------------------------------------------------

    def read(self) -> Iterator[bytes]:
        """The records of every segment after ``last``, as lines. Nothing new costs one listing.

        Raises:
            CorruptError: a segment is missing, or is not what was written and not the last.
        """
        before = None
        while True:
            listing = self._list()
            moved = self._has_moved()
            yield from self._read(listing)
            if self.torn is not None:
                return
            if self._has_moved() != moved:
                continue
            if self.last >= listing.highest and (self.last in listing.numbers or self.last == 0):
                return
            # What is missing was merged while we looked, unless a second look shows the same.
            if listing == before:
                if self.last < listing.highest:
                    self._raise_torn(listing)
                return
            before = listing

    def seek_end(self) -> None:
        """Go behind the last segment, of which only that one is read."""
        self.last = max(self._list().highest - 1, 0)
        for _ in self.read():
            pass

    def _read(self, listing: _Listing) -> Iterator[bytes]:
        moved = self._has_moved()
        while self._has_moved() == moved:
            number = self.last + 1
            packs = [pack for pack in listing.packs if pack.first <= number <= pack.last]
            try:
                if packs:
                    found = _unpack(self._store.get(max(packs).name), f"{self._store.url}/{max(packs).name}")
                elif number in listing.numbers:
                    body = self._get(number, listing.highest)
                    if body is None:
                        return
                    found = iter([(number, body)])
                else:
                    return
            except NotFoundError:
                return
            for name, body in found:
                if name == self.last + 1:
                    self.last, self._from_pack = name, bool(packs)
                    if body != _MOVED:
                        yield body
                    elif self._boundary is None:
                        self._boundary = name

    def _has_moved(self) -> bool:
        return self._boundary is not None

    def _get(self, number: int, highest: int) -> bytes | None:
        """The records of a segment; None if it is not there as it seems, or is the last and damaged."""
        data = self._store.get(self._name(number))
        body = data[:-_MARK]
        if data[-_MARK:] == _mark(body):
            if number > 1:
                return body
            original = _unflagged(body)
            if original != body and self._boundary is None and self._are_merged():
                self._boundary = 0
                return None
            return original
        if number < highest or (self._boundary is None and any(True for _ in self._store.list(PACKED))):
            raise CorruptError(
                f"segment {number} of the journal in {self._store.url} is not what was written: its {len(data)} bytes "
                "do not have their digest, and later ones are there. Restore it from a copy, or start the run "
                "anew with fresh=True."
            )
        self.torn = number, len(data)
        return None

    def _are_merged(self) -> bool:
        """Whether there are packs, where segment 1 says so: it is flagged before the first is made, and what is in it
        is deleted after that."""
        if self._list_packed().packs:
            return True
        if self._store.exists(self._name(2)):
            return False
        if self._list_packed().packs:  # made, and its segments deleted, since we looked
            return True
        raise CorruptError(
            f"the journal in {self._store.url} lacks {PACKED}/{_digits(1)}-..., into which its first segments were "
            "merged. Restore the missing file from a copy, or start the run anew with fresh=True."
        )

    def _list(self) -> _Listing:
        self.torn = None
        if self._boundary is not None:
            return self._list_packed()
        numbers = frozenset(self._number(entry.name) for entry in self._store.list(FOLDER))
        # Merged segments are deleted from 2 on.
        if numbers and (len(numbers) != max(numbers) or numbers == {1}):
            found = self._list_packed()
            if found.packs:
                self._boundary = 0
                return found
        return _Listing((), numbers)

    def _list_packed(self) -> _Listing:
        packs, numbers = [], []
        for entry in self._store.list(PACKED):
            first, dash, last = entry.name.removeprefix(f"{PACKED}/").partition("-")
            if dash:
                packs.append(_Pack(self._number(last), self._number(first), entry.size))
            else:
                numbers.append(self._number(first))
        self.packed = max((pack.last for pack in packs), default=0)
        return _Listing(tuple(sorted(packs)), frozenset(numbers))

    def _number(self, name: str) -> int:
        digits = name.rpartition("/")[2]
        if len(digits) != _DIGITS or not digits.isdigit():
            raise CorruptError(
                f"the journal in {self._store.url} holds {name!r}, but only numbers of {_DIGITS} digits belong there. "
                "Move that file elsewhere."
            )
        return int(digits)

    def _raise_torn(self, listing: _Listing) -> NoReturn:
        raise CorruptError(
            f"the journal in {self._store.url} lacks {_digits(self.last + 1)}, but has {_digits(listing.highest)}: its "
            "history is torn. Restore the missing file from a copy, or begin anew in another place."
        )

    # Writing --------------------------------------------------------------------------------

    def append(self, body: bytes) -> int:
        """Store records durably, under the number after ``last``; returns that number.

        Raises:
            RunHeldError: another process has taken the number.
        """
        number = self.last + 1
        taken = not self._store.put_new(self._name(number), body + _mark(body))
        if not taken and self._is_overtaken():
            self._store.delete(self._name(number))
            taken = True
        if taken:
            raise RunHeldError(
                f"{self._store.url}/{self._name(number)} was written by another process, so this one has lost "
                "what it held and wrote nothing more. Look whether another driver continues the run; "
                "if not, run again: it goes on from what is stored."
            )
        self.last, self._from_pack = number, False
        self._own[number] = body
        return number

    def fence(self) -> None:
        """Append an empty segment whoever else appends: no other driver can append from here on."""
        while self.last:
            try:
                self.append(b"")
                return
            except RunHeldError:
                try:
                    body = self._get(self.last + 1, self.last + 2)
                except NotFoundError:
                    body = None
                if body is None:
                    self.seek_end()
                    continue
                self.last, self._from_pack = self.last + 1, False
                if body == _MOVED:
                    self._boundary = self.last

    def cut(self) -> str:
        """Put the damaged last segment aside, so that its number is free. Returns what was done."""
        assert self.torn is not None
        number, size = self.torn
        data = self._store.get(self._name(number))
        kept = f"{CUT}/{_digits(number)}-{digest(data, _DOMAIN)[:8]}"
        self._store.put(kept, data)
        self._store.delete(self._name(number))
        self.torn = None
        return (
            f"the journal in {self._store.url} ends with a damaged segment, as after a power failure: the {size} "
            f"bytes of segment {number} are left out and kept in {kept}. "
            "The units in it are done again; nothing else is lost."
        )

    def _is_overtaken(self) -> bool:
        """Whether the segment before the one just put is gone: another driver has merged it."""
        if self.last == 0 or self._from_pack:
            return False
        if self.last == 1 and self._boundary is None:  # this one stays
            return bool(self._list_packed().packs)
        return not self._store.exists(self._name(self.last))

    def _name(self, number: int) -> str:
        in_journal = self._boundary is None or number <= self._boundary
        return f"{FOLDER if in_journal else PACKED}/{_digits(number)}"

    # Merging --------------------------------------------------------------------------------

    def merge(self) -> None:
        """Merge all segments but the last. Only for the driver that holds the run, and after ``seek_end``.

        The merged ones are deleted by ``tidy``.
        """
        if self.last - self.packed < 2:
            return
        if self._boundary is None:
            self._flag()
            self.append(_MOVED)
            self._boundary = self.last
        if self.last == self._boundary:  # which must not be the last one
            self.append(b"")
        # What was appended is settled; that nothing is merged is no harm, and it is tried again.
        with contextlib.suppress(StorageError):
            self._pack()

    def _pack(self) -> None:
        packs = self._list_packed().packs
        first, last = self.packed + 1, self.last - 1
        if first > last:
            return
        rubbish = [self._name(number) for number in range(first, last + 1)]
        data = [
            _packed(start, [self._body(n) for n in range(start, min(start + _BATCH, last + 1))])
            for start in range(first, last + 1, _BATCH)
        ]
        size = sum(map(len, data))
        for pack in reversed(packs):  # as a binary counter: few packs, and each byte is written few times
            if pack.last != first - 1 or pack.size > size or pack.size + size > _LARGEST:
                break
            data.insert(0, self._store.get(pack.name))
            size, first = size + pack.size, pack.first
            rubbish.append(pack.name)
        self._store.put_new(f"{PACKED}/{_digits(first)}-{_digits(last)}", b"".join(data))
        self.packed = last
        self._own = {number: body for number, body in self._own.items() if number > last}
        self._rubbish += [name for name in rubbish if name != f"{FOLDER}/{_digits(1)}"]

    def tidy(self, at_most: int | None = None) -> bool:
        """Delete some of what was merged; True if there is more."""
        for _ in range(len(self._rubbish) if at_most is None else min(at_most, len(self._rubbish))):
            self._store.delete(self._rubbish[0])
            self._rubbish.popleft()
        return bool(self._rubbish)

    def find_rubbish(self) -> None:
        """Have ``tidy`` delete what a driver left that was killed while it merged, or that was overtaken."""
        if self._boundary is None or not (listing := self._list_packed()).packs:
            return
        numbers = sorted(self._number(entry.name) for entry in self._store.list(FOLDER))
        self._rubbish += [f"{FOLDER}/{_digits(n)}" for n in numbers if 1 < n <= self.packed]
        self._rubbish += [f"{PACKED}/{_digits(n)}" for n in sorted(listing.numbers) if n <= self.packed]
        for pack in listing.packs:
            if any(o != pack and o.first <= pack.first and pack.last <= o.last for o in listing.packs):
                self._rubbish.append(pack.name)

    def _body(self, number: int) -> bytes:
        body = self._own.get(number)
        if body is None:
            body = self._get(number, self.last)
        assert body is not None, "this driver holds the journal"
        return body

    def _flag(self) -> None:
        body = self._body(1)
        line, _, rest = body.partition(b"\n")
        header = json.loads(line or b"{}")
        found = header.get("format")
        if isinstance(found, dict):  # else no version takes it for a run
            flagged = format_header(
                found.get("kind", ""), found.get("version", 1), [*found.get("flags", ()), _FLAG]
            )
            header["format"] = flagged | {"before": found}
            body = _line(header) + rest
            self._store.put(self._name(1), body + _mark(body))


def _unflagged(body: bytes) -> bytes:
    """Segment 1 as it was before it was flagged."""
    line, _, rest = body.partition(b"\n")
    header = json.loads(line or b"{}")
    found = header.get("format") if isinstance(header, dict) else None
    if not isinstance(found, dict) or "before" not in found:
        return body
    return _line(header | {"format": found["before"]}) + rest


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _digits(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _mark(body: bytes) -> bytes:
    return f"{digest(body, _DOMAIN)}\n".encode()


_MARK = len(_mark(b""))


def _packed(first: int, bodies: list[bytes]) -> bytes:
    """A header line and the compressed segments, an empty line after each."""
    content = b"".join(body + b"\n" for body in bodies)
    data = zlib.compress(content)
    header = {
        "segments": [first, first + len(bodies) - 1],
        "nbytes": len(data),
        "digest": digest(content, _DOMAIN),
    }
    return _line(format_header("journal") | header) + data


def _unpack(data: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    """Number and records of each segment in a pack."""
    start = 0
    while start < len(data):
        try:
            end = data.index(b"\n", start) + 1
            header = json.loads(data[start:end])
            check_format(header, "journal", where=where)
            number, nbytes = int(header["segments"][0]), int(header["nbytes"])
            content = zlib.decompress(data[end : end + nbytes])
            intact = end + nbytes <= len(data) and digest(content, _DOMAIN) == header["digest"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, zlib.error):
            intact = False
        if not intact:
            raise CorruptError(
                f"{where} is not what was written: the part from byte {start} on does not have its digest. Restore it "
                "from a copy, or start the run anew with fresh=True."
            )
        lines: list[bytes] = []
        for line in content.split(b"\n")[:-1]:
            if line:
                lines.append(line + b"\n")
            else:
                yield number, b"".join(lines)
                lines, number = [], number + 1
        start = end + nbytes
