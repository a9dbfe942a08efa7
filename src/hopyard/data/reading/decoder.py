"""Row groups decoded into flat files: found in the node cache, or made, or held in memory.

A row group goes once per machine through Arrow and the dataset's recipe into a flat file (``flat.py``). If the
node cache admits it, the file stays there for other processes and later days, and one process makes it
while the others turn to other row groups or wait. Otherwise it lies in memory as long as it is used.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hopyard.data.cache.node import Claim, Found, NodeCache
from hopyard.data.order import HELD_BYTES, WINDOW_BYTES
from hopyard.data.reading.flat import Block, Packs, Piece, write_flat
from hopyard.data.reading.parallel import on_all_cores
from hopyard.data.reading.pieces import Group, one_ahead, pieces_of
from hopyard.data.reading.stored import StoredFile
from hopyard.data.recipe.decoding import usable_cores
from hopyard.data.recipe.recipe import Recipe
from hopyard.data.schema import Column, Schema
from hopyard.errors import NotWritableError
from hopyard.objects.digests import digest_json

_log = logging.getLogger("hopyard")

_PIECE_BYTES = 2 << 20  # decoded at once
_COLUMN_BYTES = 16 << 10  # of each column at least: every call of Arrow costs some microseconds for each
_FEWEST_ROWS, _MOST_ROWS = 256, 1 << 16
_MOST_THREADS = 4
_MANY_GROUPS, _DUST_BYTES = 1000, 16 << 10
_HELD_AT_MOST = 32  # flat files in memory, of each dataset; each is a descriptor of 1,024 in a process


@dataclass(frozen=True, eq=False)
class Flat:
    """A flat file of consecutive row groups.

    Attributes:
        file: as it can be mapped.
        blocks: what is in it.
        groups: of the dataset, in the order in which their rows are there.
        kept: it is in the node cache.
    """

    file: StoredFile
    blocks: tuple[Block, ...]
    groups: tuple[int, ...]
    kept: bool


class Decoder:
    """Row groups of one dataset as flat files. Threads may share it.

    Args:
        groups: of the dataset.
        schema: of the dataset's columns.
        recipe: that makes them.
        cache: where flat files are kept, or None: nowhere.
        sizes: decoded bytes of a row group's columns, estimated.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        schema: Schema,
        recipe: Recipe,
        cache: NodeCache | None,
        sizes: Callable[[Sequence[Column], int], int],
    ) -> None:
        self._groups, self._schema, self._recipe, self._cache, self._sizes = (
            groups,
            schema,
            recipe,
            cache,
            sizes,
        )
        self._keys: dict[Packs, list[str]] = {}
        self._kept: dict[Packs, list[bool]] = {}
        self._missing: dict[
            Packs, int
        ] = {}  # a row group that was not in the node cache, to look there first
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
        """Flat files that hold these columns of these row groups; what is not there yet is made.

        Args:
            stopped: once it is set, nothing more is begun, and nothing comes back.
            cached: use the node cache.

        Raises:
            CorruptError: a row group cannot be decoded, or its file changed; names file, row group and column.
            DataError: its rows are not what the schema says.
        """
        keep = self._may_be_kept(packs)
        try:
            kept = self._from_cache(packs, [group for group in groups if cached and keep[group]], stopped)
            rest = tuple(group for group in groups if group not in kept)
            return [*kept.values(), *([self._in_memory(packs, rest, stopped)] if rest else [])]
        except _StoppedError:
            return []

    def all_kept(self, packs: Packs) -> list[Flat] | None:
        """The flat files of all row groups, if all are in the node cache."""
        missing = self._missing.get(packs)
        if missing is not None and self._find(packs, missing) is None:
            return None
        filled = [group for group, each in enumerate(self._groups) if each.rows]
        if self._cache is not None:
            absent = next((g for g in filled if not self._cache.holds(self._key(packs, g))), None)
            if absent is not None:  # what is there is looked at when it is needed
                self._missing[packs] = absent
                return None
        flats: list[Flat] = []
        for group, flat in zip(filled, on_all_cores(lambda g: self._find(packs, g), filled), strict=True):
            if flat is None:
                self._missing[packs] = group
                return None
            flats.append(flat)
        return flats or None

    def can_hold(self, packs: Packs) -> bool:
        """Whether the flat files of all row groups can be there at once: in the node cache, or in memory."""
        if all(
            kept or not group.rows for kept, group in zip(self._may_be_kept(packs), self._groups, strict=True)
        ):
            return True
        return sum(self._size(packs, group) for group in range(len(self._groups))) <= HELD_BYTES

    def _may_be_kept(self, packs: Packs) -> list[bool]:
        """Of each row group, whether the node cache takes it: all if they fit, else the first ones that do.

        With the others it would throw out what the next epoch begins with. What it has needs no room any more.
        """
        if packs not in self._kept:
            cache = None if self._is_dust(packs) else self._cache
            kept = [False] * len(self._groups)
            total = present = 0
            for number, group in enumerate(self._groups if cache is not None else ()):
                assert cache is not None
                size = self._size(packs, number)
                total += size
                present += size if cache.holds(self._key(packs, number)) else 0
                if not cache.admits(total, present):
                    break
                kept[number] = group.rows > 0
            self._kept[packs] = kept
        return self._kept[packs]

    def _is_dust(self, packs: Packs) -> bool:
        """Whether the row groups are so many and small that files for them cost more than to decode them again."""
        count, recipe = len(self._groups), self._recipe
        if count < _MANY_GROUPS or recipe.decoders or recipe.transform is not None:
            return False
        size = sum(self._size(packs, group) for group in range(count))
        return size <= min(count * _DUST_BYTES, HELD_BYTES)

    def _key(self, packs: Packs, group: int) -> str:
        if packs not in self._keys:
            columns = [[str(self._schema[name]) for name in pack] for pack in packs]
            given = None if self._recipe.given is None else str(self._recipe.given)
            self._keys[packs] = [
                digest_json(
                    [
                        None if each.sealed else list(each.file.identity),
                        each.content,
                        each.within,
                        each.selection,
                        columns,
                        self._recipe.digest,
                        given,
                    ],
                    "hopyard.flat",
                )
                for each in self._groups
            ]
        return self._keys[packs][group]

    def _find(self, packs: Packs, group: int) -> Flat | None:
        if self._cache is None:
            return None
        found = self._cache.find(self._key(packs, group))
        return None if found is None else _flat_of(found, group)

    def _from_cache(
        self, packs: Packs, groups: Sequence[int], stopped: threading.Event | None
    ) -> dict[int, Flat]:
        # Where entries are compared with their checksums, several are at once.
        there = on_all_cores(lambda group: self._find(packs, group), groups) if groups else []
        flats = {group: flat for group, flat in zip(groups, there, strict=True) if flat is not None}
        missing = [group for group in groups if group not in flats]
        cache = self._cache
        if not missing or cache is None:
            return flats
        start = os.getpid() % len(missing)  # processes that begin together begin at different row groups
        missing = missing[start:] + missing[:start]
        threads = min(_MOST_THREADS, usable_cores(), len(missing))
        try:
            if threads == 1:
                flats.update(self._make_each(cache, packs, missing, stopped))
            else:
                with ThreadPoolExecutor(threads, "hopyard-decode") as pool:
                    for part in pool.map(
                        lambda part: self._make_each(cache, packs, part, stopped),
                        [missing[number::threads] for number in range(threads)],
                    ):
                        flats.update(part)
        except NotWritableError as error:
            self._warn("decoded data is held in memory only: %s", error)
            self._cache = None
            self._kept.clear()
        return flats

    def _make_each(
        self, cache: NodeCache, packs: Packs, groups: Sequence[int], stopped: threading.Event | None
    ) -> dict[int, Flat]:
        """What could be made and kept. Row groups that another process is making come last."""
        flats: dict[int, Flat] = {}
        waiting = list(groups)
        wait = False
        while waiting:
            left: list[int] = []
            for group in waiting:
                _check(stopped)
                try:
                    claim = cache.claim(self._key(packs, group), wait=wait)
                    flat = None if claim is None else self._make(claim, packs, group, stopped)
                except FileNotFoundError:  # someone removed the cache; the next claim makes it again
                    continue
                except OSError as error:  # the disk is full, or there is more than was estimated
                    self._may_be_kept(packs)[group] = False
                    self._warn("decoded data is held in memory if it is not in the cache yet: %s", error)
                    continue
                if flat is None:
                    left.append(group)
                    continue
                wait = False
                flats[group] = flat
            wait = len(left) == len(waiting)
            waiting = left
        return flats

    def _make(self, claim: Claim, packs: Packs, group: int, stopped: threading.Event | None) -> Flat:
        """The row group in the node cache."""
        with claim:
            flat = self._find(packs, group)  # another process was faster
            if flat is not None:
                return flat
            each = self._groups[group]
            pieces = self._pieces(packs, [group], stopped)
            blocks = write_flat(claim.file.fileno(), self._schema, packs, each.rows, pieces)
            described = {
                "file": each.file.name,
                "row_group": each.within,
                "rows": each.rows,
                "columns": [str(column) for column in self._columns(packs)],
                "blocks": [block.to_json() for block in blocks],
            }
            return _flat_of(claim.publish(described), group)

    def _warn(self, text: str, error: Exception) -> None:
        """Once."""
        if not self._warned:
            self._warned = True
            _log.warning(text, error)

    def _in_memory(self, packs: Packs, groups: tuple[int, ...], stopped: threading.Event | None) -> Flat:
        with self._lock:
            held = self._held.pop((packs, groups), None)
            if held is None:
                self._make_room(sum(self._size(packs, group) for group in groups))
                held = self._decode_to_memory(packs, groups, stopped)
            self._held[packs, groups] = held
            return held

    def _make_room(self, needed: int) -> None:
        """What was decoded before goes first: two windows never are held at once."""
        held = sum(flat.file.size for flat in self._held.values())
        while self._held and (held + needed > WINDOW_BYTES or len(self._held) >= _HELD_AT_MOST):
            _, flat = self._held.popitem(last=False)
            held -= flat.file.size

    def _columns(self, packs: Packs) -> list[Column]:
        return [self._schema[name] for pack in packs for name in pack]

    def _size(self, packs: Packs, group: int) -> int:
        return self._sizes(self._columns(packs), group)

    def _decode_to_memory(
        self, packs: Packs, groups: tuple[int, ...], stopped: threading.Event | None
    ) -> Flat:
        rows = sum(self._groups[group].rows for group in groups)
        pieces = self._pieces(packs, groups, stopped)
        if usable_cores() > 1:
            pieces = one_ahead(pieces)
        descriptor = _memory_file()
        try:
            blocks = write_flat(descriptor, self._schema, packs, rows, pieces)
        except BaseException:
            os.close(descriptor)
            raise
        file = StoredFile("memory", os.fstat(descriptor).st_size, (object(),), Path(f"/dev/fd/{descriptor}"))
        flat = Flat(file, tuple(blocks), groups, False)
        weakref.finalize(flat, os.close, descriptor)
        return flat

    def _pieces(
        self, packs: Packs, groups: Sequence[int], stopped: threading.Event | None
    ) -> Iterator[Piece]:
        """The rows of the row groups, some at a time."""
        width = max(sum(self._size(packs, group) for group in groups), 1)
        rows = max(sum(self._groups[group].rows for group in groups), 1)
        size = max(_PIECE_BYTES, _COLUMN_BYTES * sum(map(len, packs)))
        at_once = min(max(size * rows // width, _FEWEST_ROWS), _MOST_ROWS)
        before = 0
        for number in groups:
            group = self._groups[number]
            _check(stopped)
            for piece in pieces_of(group, self._recipe, packs, at_once):
                yield piece._replace(first=before + piece.first)
                _check(stopped)
            before += group.rows

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


_decoders: weakref.WeakSet[Decoder] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a fork: a thread that holds a lock is only in the parent."""
    for decoder in _decoders:
        decoder._renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class _StoppedError(Exception):
    """Nobody wants what is being decoded any more."""


def _check(stopped: threading.Event | None) -> None:
    if stopped is not None and stopped.is_set():
        raise _StoppedError


def _flat_of(found: Found, group: int) -> Flat:
    blocks = tuple(Block.from_json(fields) for fields in found.description["blocks"])
    identity = "flat", found.path.name, found.size, found.inode
    file = StoredFile(str(found.path), found.size, identity, found.path)
    return Flat(file, blocks, (group,), True)


def _memory_file() -> int:
    """Descriptor of a file without a name, which is gone when it is closed: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hopyard", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
