"""A log of numbered objects: the next number is the compare-and-swap, the append and the fence in one.

The journal, references, stages and heartbeats number objects too, and are logs of their own, since their numbers mean
something else. A taken number ends a driver, but makes who moves a reference look again; a stage is written under a
lock, passes over numbers whose write failed, and is read by its chain of seals; beats and journals delete old numbers.
The last one is found by listing here, by doubling steps for references, and in the lock's file for stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from hopyard.errors import CorruptError, RunHeldError
from hopyard.storage import Store
from hopyard.storage.base import Buffer

_DIGITS = 12


class NumberedLog:
    """Immutable objects ``<prefix>/000000000001``, ``...2``, and so on without gaps.

    An append says implicitly which number its caller has seen last. If somebody else has taken the next
    one, the append fails and stays failed: a driver that lost its run cannot write by accident.
    One log object is for one thread; any number of processes may have logs over the same objects.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store.at(prefix)
        self._last: int | None = None

    @property
    def last(self) -> int:
        """The highest number that this object has seen, 0 if there is none; looked up at first use."""
        if self._last is None:
            self.refresh()
        return self._last or 0

    def refresh(self) -> int:
        """Look up the highest number anew, and return it: the next append comes after it."""
        self._last = max(self._numbers(), default=0)
        return self._last

    def append(self, data: Buffer) -> int:
        """Store ``data`` durably under the number after ``last``, and return that number.

        Raises:
            RunHeldError: another process has taken the number.
        """
        number = self.last + 1
        if not self._store.put_new(_segment(number), data):
            raise RunHeldError(
                f"{self._store.url}/{_segment(number)} was written by another process, so this one has lost "
                "what it held and wrote nothing more. Look whether another driver continues the run; "
                "if not, run again: it goes on from what is stored."
            )
        self._last = number
        return number

    def read(self, start: int = 1) -> Iterator[tuple[int, bytes]]:
        """Number and content of every object from ``start`` on.

        When all are read, the next append follows the last of them: what others append in between
        makes it fail.

        Raises:
            CorruptError: a number is missing before a later one.
        """
        expected = start
        for number in self._numbers():
            if number < start:
                continue
            while expected < number:
                # A listing may miss what is written meanwhile, so the object itself is asked for.
                yield self._read(expected, number)
                expected += 1
            yield self._read(number, number)
            expected += 1
        if start == 1 or expected > start:
            self._last = expected - 1

    def _read(self, number: int, later: int) -> tuple[int, bytes]:
        if number != later and not self._store.exists(_segment(number)):
            raise CorruptError(
                f"{self._store.url} lacks {_segment(number)}, but has {_segment(later)}: its history is torn. "
                "Restore the missing file from a copy, or begin anew in another place."
            )
        return number, self._store.get(_segment(number))

    def _numbers(self) -> Iterator[int]:
        for entry in self._store.list():
            if len(entry.name) != _DIGITS or not entry.name.isdigit():
                raise CorruptError(
                    f"{self._store.url} holds {entry.name!r}, but only numbers of {_DIGITS} digits belong there. "
                    "Move that file elsewhere."
                )
            yield int(entry.name)


def _segment(number: int) -> str:
    return f"{number:0{_DIGITS}d}"
