"""Columns that a function makes of all rows of a dataset: computed once a machine, kept in its node cache, mapped.

Where the node cache cannot keep them (it is too small, the disk is full, nobody may write there, the dataset has none),
they are held in memory: those used last, as long as they fit in the bytes of a window. Larger ones are held alone.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.base import Partitioned
from hopyard.data.cache.node import CacheHit, Claim, NodeCache
from hopyard.data.order import HELD_BYTES
from hopyard.data.reading.flat import Block, Piece, write_flat
from hopyard.data.schema import Column, Schema
from hopyard.errors import NotWritableError
from hopyard.objects.digests import digest_json

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Compute: TypeAlias = Callable[[], Iterator[Arrays]]
"""Gives the columns of all rows in their order, some rows at a time: arrays (n, *shape), for each column of one
dtype and ``shape``."""

_log = logging.getLogger("hopyard")

_ATTEMPTS = 3  # to map an entry that the cache may throw out at any moment
_held: OrderedDict[str, Arrays] = OrderedDict()
_holding = threading.Lock()  # of _held
_computing = threading.Lock()  # one thread at a time computes what is held, so that no two compute the same
_warned: set[str] = set()


def computed_columns(dataset: Partitioned, key: str, compute: Compute, what: str) -> Arrays:
    """The columns that ``compute`` makes of all rows of ``dataset``, each (rows, *shape); not to be written to.

    Threads and processes of a machine that ask for the same ones at once compute them once.

    Args:
        key: a digest of all that decides the columns, besides the rows.
        compute: an error that it raises is raised here, and nothing is kept.
        what: description of the columns, for the list of the cache's content.
    """
    whole = digest_json([dataset.content(), key], "hopyard.computed-columns")
    held = _found(whole)
    if held is not None:
        return held
    own: set[int] = set()  # ids of errors that are none of the cache's

    def noting() -> Iterator[Arrays]:
        try:
            yield from compute()
        except Exception as error:
            own.add(id(error))
            raise

    cache = dataset.node_cache()
    if cache is not None:
        try:
            arrays = _from_cache(cache, whole, dataset, noting, what)
        except (NotWritableError, OSError) as error:
            if id(error) in own:
                raise
            _warn(cache, f"{what} are held in memory if they are not in the cache yet: {error}")
        else:
            if arrays is not None:
                return arrays
    with _computing:
        held = _found(whole)
        return _in_memory(whole, len(dataset), compute) if held is None else held


def _from_cache(
    cache: NodeCache, key: str, dataset: Partitioned, compute: Compute, what: str
) -> Arrays | None:
    """None: the cache has no room for them."""
    for _ in range(_ATTEMPTS):
        found = cache.find(key)
        if found is None:
            claim = cache.claim(key, wait=True)
            assert claim is not None
            with claim:
                found = cache.find(key) or _make(cache, claim, dataset, compute, what)
        if found is None:
            return None
        try:
            return _mapped(found)
        except FileNotFoundError:  # thrown out since it was found
            continue
    return None


def _make(
    cache: NodeCache, claim: Claim, dataset: Partitioned, compute: Compute, what: str
) -> CacheHit | None:
    pieces = compute()
    head = next(pieces)
    schema = Schema(Column(name, "tensor", each.dtype.name, each.shape[1:]) for name, each in head.items())
    rows = len(dataset)
    size = _size_of_all(head, rows)
    if not cache.admits(size):
        if cache.limit:  # with none, nobody wants it to keep anything
            _warn(
                cache,
                f"{what} take {size:,} bytes for {rows} rows, for which the node cache {cache.path} has no room, so "
                f"that every process holds some in memory. Allow it more than {cache.limit:,} bytes "
                "(HOPYARD_CACHE_BYTES), or free its disk.",
            )
        return None
    packs = tuple((name,) for name in schema.names)
    blocks = write_flat(claim.file.fileno(), schema, packs, rows, _placed(chain([head], pieces)))
    return claim.publish(
        {
            "row_groups": {what: [dataset.fingerprint]},
            "rows": rows,
            "columns": [str(column) for column in schema],
            "blocks": [block.to_json() for block in blocks],
        }
    )


def _placed(pieces: Iterator[Arrays]) -> Iterator[Piece]:
    first = 0
    for piece in pieces:
        yield Piece(first, piece)
        first += len(next(iter(piece.values())))


def _mapped(found: CacheHit) -> Arrays:
    blocks = [Block.from_json(fields) for fields in found.description["blocks"]]
    return {
        block.columns[0]: np.memmap(found.path, block.dtype, "r", block.offset, (block.count, *block.shape))
        for block in blocks
    }


def _in_memory(key: str, rows: int, compute: Compute) -> Arrays:
    pieces = compute()
    head = next(pieces)
    _make_room(_size_of_all(head, rows))
    arrays = {name: np.empty((rows, *values.shape[1:]), values.dtype) for name, values in head.items()}
    for first, columns, _ in _placed(chain([head], pieces)):
        for name, values in columns.items():
            arrays[name][first : first + len(values)] = values
    with _holding:
        _held[key] = arrays
    return arrays


def _found(key: str) -> Arrays | None:
    with _holding:
        if key in _held:
            _held.move_to_end(key)
        return _held.get(key)


def _make_room(nbytes: int) -> None:
    """Let go of columns that were not used for longest, to make room for ``nbytes`` more."""
    with _holding:
        while _held and nbytes + sum(map(_size, _held.values())) > HELD_BYTES:
            _held.popitem(last=False)


def _size(arrays: Arrays) -> int:
    return sum(values.nbytes for values in arrays.values())


def _size_of_all(head: Arrays, rows: int) -> int:
    """Bytes of all rows, by the first ones."""
    return sum(rows * math.prod(each.shape[1:]) * each.itemsize for each in head.values())


def _warn(cache: NodeCache, message: str) -> None:
    """Log a warning, once a process and cache."""
    if str(cache.path) not in _warned:
        _warned.add(str(cache.path))
        _log.warning(message)
