"""Tries a store as Hopyard uses it, and measures it: what works, how fast, and what a unit of a search costs there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from hopyard.errors import HopyardError, StorageError
from hopyard.storage.base import Store
from hopyard.storage.temporary import writer_name
from hopyard.wording import describe_seconds

_FOLDER = "hopyard-check"
_RACERS = 8
_REPEATS = 5
_FARTHEST_CLOCK = 60.0  # seconds; S3 refuses requests that are signed 15 minutes off


@dataclass(frozen=True)
class StoreCheck:
    """A check of a store: its name, whether it went well, and the finding or the error."""

    name: str
    ok: bool
    found: str


@dataclass
class StoreReport:
    """The checks of a store, in order.

    Attributes:
        url: of the store.
        checks: each with its finding.
        seconds: medians of single requests by name: ``write``, ``read``, ``list``, ``delete``.
    """

    url: str
    checks: list[StoreCheck] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all went well."""
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = (
            f"  {check.name:{width}}  {'' if check.ok else 'NO: '}{check.found}" for check in self.checks
        )
        return "\n".join([self.url, *lines])


def check_store(store: Store, megabytes: int = 16) -> StoreReport:
    """Try a store with small objects and one of that size, in a folder of its own, which is removed.

    Nothing is raised for a store that cannot do something: the report says so.
    """
    report = StoreReport(store.url)
    with _folder(store) as part:
        if not _tried(report, "list", lambda: _listed(store)):
            return report
        if not _tried(report, "write, read, delete", lambda: _round_trip(part)):
            return report
        _tried(report, "write only if the name is free", lambda: _raced(part))
        _tried(report, "replace and read at once", lambda: _replaced(part))
        _tried(report, "read ranges", lambda: _ranges(part))
        _tried(report, "clock", lambda: _clock(part))
        _tried(report, f"{megabytes} MB", lambda: _speed(part, megabytes))
        if _tried(report, "a request", lambda: _requests(part, report)):
            _tried(report, "a unit of a search", lambda: _unit(report))
    return report


def _tried(report: StoreReport, name: str, action: Callable[[], str]) -> bool:
    try:
        report.checks.append(StoreCheck(name, True, action()))
    except HopyardError as error:
        report.checks.append(StoreCheck(name, False, str(error)))
    return report.checks[-1].ok


@contextmanager
def _folder(store: Store) -> Iterator[Store]:
    part = store.at(f"{_FOLDER}/{writer_name()}")
    try:
        yield part
    finally:
        with suppress(HopyardError):
            for name in part.names():
                part.delete(name)


def _listed(store: Store) -> str:
    folders = store.folders()
    return (
        f"folders: {', '.join(folders[:5])}{', ...' if len(folders) > 5 else ''}" if folders else "no folders"
    )


def _round_trip(store: Store) -> str:
    content = bytes(range(256))
    store.put("small", content)
    if store.get("small") != content or store.names() != {"small"}:
        raise StorageError(
            "what was written is not what is read or listed. Look at caches between here and the store."
        )
    store.delete("small")
    if store.exists("small"):
        raise StorageError(
            "an object that was deleted is still there. Look at caches between here and the store."
        )
    return "what is written is read and listed, and gone once it is deleted"


def _raced(store: Store) -> str:
    with ThreadPoolExecutor(_RACERS) as pool:
        won = list(pool.map(lambda racer: store.put_new("raced", bytes([racer])), range(_RACERS)))
    if won.count(True) != 1 or store.get("raced") != bytes([won.index(True)]):
        raise StorageError(
            f"of {_RACERS} writers at once {won.count(True)} were told that they had the name: the store does not "
            "honour conditional writes, so two drivers could hold one run. Use a server that does (for S3, "
            "If-None-Match)."
        )
    return f"of {_RACERS} writers at once one won"


def _replaced(store: Store) -> str:
    for number in range(_REPEATS):
        store.put("replaced", bytes([number]) * 1000)
        if store.get("replaced") != bytes([number]) * 1000:
            raise StorageError(
                "an object that was replaced was read as it was before. Look at caches between here and the store."
            )
    return "the new object is read"


def _ranges(store: Store) -> str:
    store.put("ranged", bytes(range(256)))
    if store.get("ranged", 100, 50) != bytes(range(100, 150)):
        raise StorageError(
            "a range of an object is not that part of it. Look at what is between here and the store."
        )
    return "as asked for"


def _clock(store: Store) -> str:
    store.put("timed", b"")
    here, there = time.time(), store.written_at("timed")
    if there is None:
        return "the store does not say when something was written"
    apart = there - here
    if abs(apart) > _FARTHEST_CLOCK:
        raise StorageError(
            f"the store's clock is {describe_seconds(abs(apart))} {'ahead of' if apart > 0 else 'behind'} this "
            "machine's. Set the clocks by NTP: servers refuse requests that are signed at another time, and what dead "
            "writers left is recognised by its age."
        )
    return f"less than {_FARTHEST_CLOCK:.0f} s from this machine's"


def _requests(store: Store, report: StoreReport) -> str:
    actions: dict[str, Callable[[int], object]] = {
        "write": lambda number: store.put(f"request/{number}", bytes(1000)),
        "read": lambda number: store.get(f"request/{number}"),
        "list": lambda number: store.names("request"),
        "delete": lambda number: store.delete(f"request/{number}"),
    }
    for name, action in actions.items():
        report.seconds[name] = statistics.median(_seconds(action, number) for number in range(_REPEATS))
    return ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in report.seconds.items())


def _seconds(action: Callable[[int], object], number: int) -> float:
    began = time.perf_counter()
    action(number)
    return time.perf_counter() - began


def _speed(store: Store, megabytes: int) -> str:
    size = megabytes * 1_000_000
    written = _seconds(lambda number: store.put("large", bytes(size)), 0)
    read = _seconds(lambda number: store.get("large"), 0)
    share = -(-size // _RACERS)

    def in_ranges(number: int) -> None:
        with ThreadPoolExecutor(_RACERS) as pool:
            starts = range(0, size, share)
            list(pool.map(lambda start: store.get("large", start, min(share, size - start)), starts))

    parallel = _seconds(in_ranges, 0)
    speeds = {"written": written, "read": read, f"read in {_RACERS} ranges at once": parallel}
    return ", ".join(f"{name} {megabytes / seconds:,.0f} MB/s" for name, seconds in speeds.items())


def _unit(report: StoreReport) -> str:
    seconds = 2 * report.seconds["write"] + report.seconds["read"]
    return (
        "2 objects written (its state and its record), 1 read if another worker trained the model before: "
        f"{1000 * seconds:.1f} ms beside the bytes"
    )
