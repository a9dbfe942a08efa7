"""Row groups decoded into flat files: found in the node cache, or made, or held in memory.

A row group goes once per machine through Arrow and the dataset's recipe into a flat file (``flat.py``), small ones
together with their neighbours. If the node cache admits it, the file stays there for other processes and later days,
and one process makes it while the others turn to other row groups or wait. Otherwise it lies in memory as long as it
is used.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from hopyard.data.cache.node import CacheHit, Claim, NodeCache
from hopyard.data.files.fetching import Ahead, Fetch, Requests, fetched_ahead, memory_file
from hopyard.data.files.parallel import on_all_cores
from hopyard.data.files.stored import StoredFile
from hopyard.data.order import HELD_BYTES, WINDOW_BYTES
from hopyard.data.reading.flat import Block, Packs, Piece, write_flat
from hopyard.data.reading.pieces import Group, one_ahead, pieces_of
from hopyard.data.recipe.arrow_columns import present
from hopyard.data.recipe.decoding import usable_cores
from hopyard.data.recipe.recipe import Recipe
from hopyard.data.schema import Column, Schema
from hopyard.errors import CorruptError, DataError, NotFoundError, NotWritableError
from hopyard.objects.digests import digest_json

T = TypeVar("T")

_log = logging.getLogger("hopyard")

_PIECE_BYTES = 2 << 20  # decoded at once
_COLUMN_BYTES = 32 << 10  # of each column at least: every call of Arrow costs some microseconds for each
_WORTH_A_THREAD = 256 << 10  # of a row group: handing over smaller ones takes as long as writing them
_FEWEST_ROWS, _MOST_ROWS = 256, 1 << 16
_MOST_THREADS = 4
# Of so many row groups, neighbours share flat files of so many bytes: making and finding one costs what decoding a
# megabyte does.
_MANY_GROUPS, _TOGETHER_BYTES = 64, 4 << 20
_HELD_AT_MOST = 32  # flat files in memory, of each dataset; each is a descriptor of 1,024 in a process


@dataclass(frozen=True, eq=False)
class Flat:
    """A flat file of consecutive row groups.

    Attributes:
        file: as it can be mapped.
        blocks: the arrays in it.
        groups: of the dataset, in the order in which their rows are there.
        kept: it is in the node cache.
    """

    file: StoredFile
    blocks: tuple[Block, ...]
    groups: tuple[int, ...]
    kept: bool


class RowGroupRun(NamedTuple):
    """Row groups that share a flat file, and the key under which the node cache has it."""

    groups: tuple[int, ...]
    key: str


class RowGroupDecoder:
    """Row groups of one dataset as flat files. Threads may share it.

    Args:
        groups: of the dataset.
        schema: of the dataset's columns.
        recipe: that makes them.
        cache: where flat files are kept, or None: nowhere.
        sizes: decoded bytes of each row group's columns, estimated.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        schema: Schema,
        recipe: Recipe,
        cache: NodeCache | None,
        sizes: Callable[[Sequence[Column]], list[int]],
    ) -> None:
        self._groups, self._schema, self._recipe, self._cache, self._sizes = (
            groups,
            schema,
            recipe,
            cache,
            sizes,
        )
        self._sizes_of: dict[Packs, list[int]] = {}
        self._runs: dict[Packs, list[RowGroupRun]] = {}
        self._kept: dict[Packs, list[bool]] = {}  # of the runs
        # Runs that were not in the node cache, to look there first.
        self._missing: dict[Packs, RowGroupRun] = {}
        self._held: OrderedDict[tuple[Packs, tuple[int, ...]], Flat] = OrderedDict()
        self._warned = False
        self._lock = threading.Lock()
        _decoders.add(self)

    def flats(
        self,
        packs: Packs,
        groups: Sequence[int],
        stopped: threading.Event | None = None,
        cached: bool = True,
    ) -> list[Flat]:
        """Flat files that hold these columns of these row groups; files that are not there yet are made.

        Args:
            stopped: once it is set, nothing more is begun, and nothing comes back.
            cached: use the node cache.

        Raises:
            CorruptError: a row group cannot be decoded, or its file changed; names file, row group and column.
            DataError: its rows are not what the schema says.
        """
        wanted = set(groups)
        keep = zip(self._runs_of(packs), self._may_be_kept(packs), strict=True)
        try:
            runs = [run for run, may_be in keep if cached and may_be and not wanted.isdisjoint(run.groups)]
            kept = self._from_cache(packs, runs, stopped)
            there = {group for flat in kept for group in flat.groups}
            rest = tuple(group for group in groups if group not in there)
            return [*kept, *([self._in_memory(packs, rest, stopped)] if rest else [])]
        except _StoppedError:
            return []

    def all_kept(self, packs: Packs) -> list[Flat] | None:
        """The flat files of all row groups, if all are in the node cache."""
        missing = self._missing.get(packs)
        if missing is not None and self._find(missing) is None:
            return None
        runs = self._runs_of(packs)
        if self._cache is not None:
            absent = next((run for run in runs if not self._cache.holds(run.key)), None)
            if absent is not None:  # what is there is looked at when it is needed
                self._missing[packs] = absent
                return None
        flats: list[Flat] = []
        for run, flat in zip(runs, on_all_cores(self._find, runs), strict=True):
            if flat is None:
                self._missing[packs] = run
                return None
            flats.append(flat)
        return flats or None

    def can_hold(self, packs: Packs) -> bool:
        """Whether the flat files of all row groups can be there at once: in the node cache, or in memory."""
        if self.keeps(packs):
            return True
        return self._size(packs, range(len(self._groups))) <= HELD_BYTES

    def keeps(self, packs: Packs) -> bool:
        """Whether the node cache takes all row groups."""
        return all(self._may_be_kept(packs))

    def _runs_of(self, packs: Packs) -> list[RowGroupRun]:
        """All row groups that have rows, in runs that share a flat file."""
        if packs not in self._runs:
            sizes = self._all_sizes(packs)
            # Of more data than is permuted as a whole, windows want row groups from anywhere.
            is_dust = len(sizes) >= _MANY_GROUPS and sum(sizes) <= WINDOW_BYTES
            together = _TOGETHER_BYTES if is_dust else 0
            runs: list[list[int]] = []
            run_bytes = 0
            for group, size in enumerate(sizes):
                if not self._groups[group].rows:
                    continue
                if not runs or run_bytes + size > together:
                    runs.append([])
                    run_bytes = 0
                runs[-1].append(group)
                run_bytes += size
            columns = [[str(self._schema[name]) for name in pack] for pack in packs]
            self._runs[packs] = [RowGroupRun(tuple(groups), self._key(columns, groups)) for groups in runs]
        return self._runs[packs]

    def _may_be_kept(self, packs: Packs) -> list[bool]:
        """Whether the node cache takes each run: all if they fit, else the first ones that do.

        With the others it would throw out the runs that the next epoch begins with. Runs in it need no room any more.
        """
        if packs not in self._kept:
            runs = self._runs_of(packs)
            kept = [False] * len(runs)
            total = present = 0
            for number, run in enumerate(runs if self._cache is not None else ()):
                assert self._cache is not None
                size = self._size(packs, run.groups)
                total += size
                present += size if self._cache.holds(run.key) else 0
                if not self._cache.admits(total, present):
                    break
                kept[number] = True
            self._kept[packs] = kept
        return self._kept[packs]

    def _key(self, columns: Sequence[Sequence[str]], groups: Sequence[int]) -> str:
        given = None if self._recipe.given is None else str(self._recipe.given)
        contents = [
            [None if each.sealed else list(each.file.identity), each.content, each.within, each.selection]
            for each in map(self._groups.__getitem__, groups)
        ]
        return digest_json([contents, columns, self._recipe.digest, given], "hopyard.flat")

    def _find(self, run: RowGroupRun) -> Flat | None:
        if self._cache is None:
            return None
        found = self._cache.find(run.key)
        return None if found is None else _flat_of(found, run)

    def _from_cache(
        self, packs: Packs, runs: Sequence[RowGroupRun], stopped: threading.Event | None
    ) -> list[Flat]:
        # Where entries are compared with their checksums, several are at once.
        there = on_all_cores(self._find, runs) if runs else []
        flats = [flat for flat in there if flat is not None]
        missing = [run for run, flat in zip(runs, there, strict=True) if flat is None]
        cache = self._cache
        if not missing or cache is None:
            return flats
        start = os.getpid() % len(missing)  # processes that begin together begin at different ones
        missing = missing[start:] + missing[:start]
        threads = min(_MOST_THREADS, usable_cores(), len(missing))
        try:
            flats += self._make_all(cache, packs, missing, stopped, threads)
        except NotWritableError as error:
            self._warn("decoded data is held in memory only: %s", error)
            self._cache = None
            self._kept.clear()
        return flats

    def _make_all(
        self,
        cache: NodeCache,
        packs: Packs,
        runs: Sequence[RowGroupRun],
        stopped: threading.Event | None,
        threads: int,
    ) -> list[Flat]:
        """Flat files of the runs, as far as they can be made and kept. Runs that another process is making come
        last."""
        flats: list[Flat] = []
        waiting = list(runs)
        wait = False
        while waiting:
            left: list[RowGroupRun] = []
            with ExitStack() as held:
                claims = self._claims(cache, packs, waiting, left, wait, flats, held)
                ahead = Ahead(
                    claims, lambda claimed, requests: self._fetches(packs, claimed[0].groups, requests)
                )
                held.callback(ahead.close)
                last = len(waiting) % threads or threads  # runs of the last round, maybe fewer than threads
                most = itertools.repeat(usable_cores() // threads, len(waiting) - last)
                cores = itertools.chain(most, itertools.repeat(usable_cores() // last))
                if threads == 1:
                    flats += self._make_each(ahead, packs, stopped, cores)
                else:
                    with ThreadPoolExecutor(threads, "hopyard-decode") as pool:
                        making = [
                            pool.submit(self._make_each, ahead, packs, stopped, cores) for _ in range(threads)
                        ]
                    for made in making:
                        flats += made.result()
            wait = len(left) == len(waiting)
            waiting = left
        return flats

    def _make_each(
        self,
        ahead: Ahead[tuple[RowGroupRun, Claim]],
        packs: Packs,
        stopped: threading.Event | None,
        cores: Iterator[int],
    ) -> list[Flat]:
        """Flat files of runs that are taken one after another, each with the next number of cores; after an error
        nobody takes one."""
        flats: list[Flat] = []
        try:
            while True:
                with ahead.taken() as taken:
                    if taken is None:
                        return flats
                    (run, claim), fetches = taken
                    _check(stopped)
                    try:
                        with claim:
                            flats.append(self._make(claim, packs, run, fetches, stopped, next(cores)))
                    except FileNotFoundError:  # someone removed the cache; the next claim makes it again
                        continue
                    except OSError as error:  # the disk is full, or there is more than was estimated
                        self._leave_out(packs, run, error)
                    except (CorruptError, DataError, NotFoundError):
                        if len(run.groups) == 1:
                            raise
                        self._leave_out(packs, run)  # the row groups that are wanted may be others
        except BaseException:
            ahead.close()
            raise

    def _claims(
        self,
        cache: NodeCache,
        packs: Packs,
        runs: Sequence[RowGroupRun],
        left: list[RowGroupRun],
        wait: bool,
        flats: list[Flat],
        held: ExitStack,
    ) -> Iterator[tuple[RowGroupRun, Claim]]:
        """The runs that are to be made here, with their claims, which ``held`` closes in the end. Runs that another
        process is making go to ``left``, the flat files of those that are there to ``flats``.

        Args:
            wait: for the first claim, since this thread has no other: with one, two threads could wait for each other.
        """
        for run in runs:
            try:
                claim = cache.claim(run.key, wait=wait)
            except FileNotFoundError:  # someone removed the cache; the next claim makes it again
                continue
            except OSError as error:  # the disk is full
                self._leave_out(packs, run, error)
                continue
            if claim is None:
                left.append(run)
                continue
            held.enter_context(claim)
            flat = self._find(run)  # another process was faster
            if flat is not None:
                claim.close()
                flats.append(flat)
                continue
            wait = False
            yield run, claim

    def _leave_out(self, packs: Packs, run: RowGroupRun, error: OSError | None = None) -> None:
        """Decode the row groups of the run into memory from now on."""
        self._may_be_kept(packs)[self._runs_of(packs).index(run)] = False
        if error is not None:
            self._warn("decoded data is held in memory if it is not in the cache yet: %s", error)

    def _make(
        self,
        claim: Claim,
        packs: Packs,
        run: RowGroupRun,
        fetches: Sequence[Fetch],
        stopped: threading.Event | None,
        cores: int,
    ) -> Flat:
        """The run in the node cache."""
        groups = self._arrived(run.groups, fetches)
        rows = sum(each.rows for each in groups)
        pieces = self._pieces(packs, run.groups, groups, stopped, cores)
        blocks = write_flat(claim.file.fileno(), self._schema, packs, rows, pieces)
        row_groups: dict[str, list[int]] = {}
        for each in groups:
            row_groups.setdefault(each.file.name, []).append(each.within)
        described = {
            "row_groups": row_groups,
            "rows": rows,
            "columns": [str(column) for column in self._columns(packs)],
            "blocks": [block.to_json() for block in blocks],
        }
        return _flat_of(claim.publish(described), run)

    def _fetches(self, packs: Packs, groups: Sequence[int], requests: Requests) -> list[Fetch]:
        """The columns of these row groups on their way, by files, as far as they lie in stores without paths."""
        far: dict[StoredFile, list[int]] = {}
        for group in map(self._groups.__getitem__, groups):
            if group.file.path is None:
                far.setdefault(group.file, []).append(group.within)
        needs = self._recipe.needs(name for pack in packs for name in pack)
        fetches: list[Fetch] = []
        try:
            for file, withins in far.items():
                fetches.append(Fetch(requests, file, withins, present(file, needs)))
        except BaseException:
            for fetch in fetches:
                fetch.close()
            raise
        return fetches

    def _arrived(self, groups: Sequence[int], fetches: Sequence[Fetch]) -> list[Group]:
        """The row groups, whose files are in memory if they lie far."""
        near: dict[StoredFile, StoredFile] = {}
        for fetch in fetches:
            file = fetch.result()
            near[file] = file  # equal to the one that it is of
        chosen = [self._groups[group] for group in groups]
        return [replace(each, file=near.get(each.file, each.file)) for each in chosen] if near else chosen

    def _warn(self, text: str, error: Exception) -> None:
        """Log a warning, once."""
        if not self._warned:
            self._warned = True
            _log.warning(text, error)

    def _in_memory(self, packs: Packs, groups: tuple[int, ...], stopped: threading.Event | None) -> Flat:
        with self._lock:
            held = self._held.pop((packs, groups), None)
            if held is None:
                self._make_room(self._size(packs, groups))
                held = self._decode_to_memory(packs, groups, stopped)
            self._held[packs, groups] = held
            return held

    def _make_room(self, needed: int) -> None:
        """Let go of the oldest decoded data until ``needed`` bytes fit: two windows are never held at once."""
        held = sum(flat.file.size for flat in self._held.values())
        while self._held and (held + needed > WINDOW_BYTES or len(self._held) >= _HELD_AT_MOST):
            _, flat = self._held.popitem(last=False)
            held -= flat.file.size

    def _columns(self, packs: Packs) -> list[Column]:
        return [self._schema[name] for pack in packs for name in pack]

    def _size(self, packs: Packs, groups: Iterable[int]) -> int:
        """Decoded bytes of these row groups, estimated."""
        sizes = self._all_sizes(packs)
        return sum(sizes[group] for group in groups)

    def _all_sizes(self, packs: Packs) -> list[int]:
        if packs not in self._sizes_of:
            self._sizes_of[packs] = self._sizes(self._columns(packs))
        return self._sizes_of[packs]

    def _decode_to_memory(
        self, packs: Packs, groups: tuple[int, ...], stopped: threading.Event | None
    ) -> Flat:
        rows = sum(self._groups[group].rows for group in groups)
        pieces = self._pieces(packs, groups, self._near(packs, groups), stopped, usable_cores())
        descriptor = memory_file()
        try:
            blocks = write_flat(descriptor, self._schema, packs, rows, pieces)
        except BaseException:
            os.close(descriptor)
            raise
        file = StoredFile("memory", os.fstat(descriptor).st_size, (object(),), Path(f"/dev/fd/{descriptor}"))
        flat = Flat(file, tuple(blocks), groups, False)
        weakref.finalize(flat, os.close, descriptor)
        return flat

    def _near(self, packs: Packs, groups: Sequence[int]) -> Iterator[Group]:
        """The row groups one after another; files that lie far are in memory, and the next ones on their way."""
        for group, fetches in fetched_ahead(
            groups, lambda group, requests: self._fetches(packs, [group], requests)
        ):
            yield from self._arrived([group], fetches)

    def _pieces(
        self,
        packs: Packs,
        numbers: Sequence[int],
        groups: Iterable[Group],
        stopped: threading.Event | None,
        cores: int,
    ) -> Iterator[Piece]:
        """The rows of the row groups with these numbers, some at a time."""
        size = self._size(packs, numbers)
        rows = sum(self._groups[number].rows for number in numbers)
        piece = max(_PIECE_BYTES, _COLUMN_BYTES * sum(map(len, packs)))
        at_once = min(max(piece * max(rows, 1) // max(size, 1), _FEWEST_ROWS), _MOST_ROWS)
        pieces = _checked(pieces_of(_checked(groups, stopped), self._recipe, packs, at_once, cores), stopped)
        is_worth = cores > 1 and size >= _WORTH_A_THREAD * len(numbers)
        return one_ahead(pieces) if is_worth else pieces

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


_decoders: weakref.WeakSet[RowGroupDecoder] = weakref.WeakSet()


def _renew_locks() -> None:
    """Renew the locks in a fork: a thread that holds one is only in the parent."""
    for decoder in _decoders:
        decoder._renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class _StoppedError(Exception):
    """Raised to end a decoding that nobody wants any more."""


def _check(stopped: threading.Event | None) -> None:
    if stopped is not None and stopped.is_set():
        raise _StoppedError


def _checked(items: Iterable[T], stopped: threading.Event | None) -> Iterator[T]:
    """The items, until nobody wants them any more."""
    for item in items:
        _check(stopped)
        yield item


def _flat_of(found: CacheHit, run: RowGroupRun) -> Flat:
    blocks = tuple(Block.from_json(fields) for fields in found.description["blocks"])
    identity = "flat", found.path.name, found.size, found.inode
    file = StoredFile(str(found.path), found.size, identity, found.path)
    return Flat(file, blocks, run.groups, True)
