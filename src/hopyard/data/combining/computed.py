"""Columns that a function makes of all rows of a dataset: computed once a machine, kept in its node cache, mapped.

Where the node cache cannot keep them (it is too small, the disk is full, nobody may write there, the dataset has none),
they are held in memory: those used last, as long as they fit in the bytes of a window.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.base import Partitioned
from hopyard.data.cache.node import Claim, Found, NodeCache
from hopyard.data.order import WINDOW_BYTES
from hopyard.data.reading.flat import Block, Piece, write_flat
from hopyard.data.schema import Column, Schema
from hopyard.errors import NotWritableError
from hopyard.objects.digests import digest_json

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Compute: TypeAlias = Callable[[], Iterator[Arrays]]
"""Gives the columns of all rows in their order, some rows at a time: arrays (n, *shape), whose dtypes and shapes are
those of the first rows."""

_log = logging.getLogger("hopyard")

_ATTEMPTS = 3  # to map what the cache may throw out at any moment
_held: OrderedDict[str, Arrays] = OrderedDict()
_warned: set[str] = set()


def computed_columns(dataset: Partitioned, key: str, compute: Compute, what: str) -> Arrays:
    """The columns that ``compute`` makes of all rows of ``dataset``, each (rows, *shape); not to be written to.

    Threads and processes of a machine that ask for the same ones at once compute them once.

    Args:
        key: a digest of all that decides what is computed, besides the rows.
        what: what they are, for the list of what the cache holds.
    """
    whole = digest_json([dataset.content(), key], "hopyard.computed-columns")
    if whole in _held:
        _held.move_to_end(whole)
        return _held[whole]
    cache = dataset.node_cache()
    if cache is not None:
        try:
            arrays = _from_cache(cache, whole, dataset, compute, what)
        except (NotWritableError, OSError) as error:
            _warn(str(cache.path), error)
        else:
            if arrays is not None:
                return arrays
    return _in_memory(whole, len(dataset), compute)


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


def _make(cache: NodeCache, claim: Claim, dataset: Partitioned, compute: Compute, what: str) -> Found | None:
    pieces = compute()
    head = next(pieces)
    schema = Schema(Column(name, "tensor", each.dtype.name, each.shape[1:]) for name, each in head.items())
    rows = len(dataset)
    if not cache.admits(sum(rows * math.prod(each.shape[1:]) * each.itemsize for each in head.values())):
        return None
    packs = tuple((name,) for name in schema.names)
    blocks = write_flat(claim.file.fileno(), schema, packs, rows, _placed(chain([head], pieces)))
    return claim.publish(
        {
            "file": what,
            "row_group": dataset.fingerprint,
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


def _mapped(found: Found) -> Arrays:
    blocks = [Block.from_json(fields) for fields in found.description["blocks"]]
    return {
        block.columns[0]: np.memmap(found.path, block.dtype, "r", block.offset, (block.count, *block.shape))
        for block in blocks
    }


def _in_memory(key: str, rows: int, compute: Compute) -> Arrays:
    arrays: dict[str, npt.NDArray[Any]] = {}
    first = stop = 0
    for piece in compute():
        for name, values in piece.items():
            if name not in arrays:
                arrays[name] = np.empty((rows, *values.shape[1:]), values.dtype)
            stop = first + len(values)
            arrays[name][first:stop] = values
        first = stop
    _held[key] = arrays
    while len(_held) > 1 and sum(map(_size, _held.values())) > WINDOW_BYTES:
        _held.popitem(last=False)
    return arrays


def _size(arrays: Arrays) -> int:
    return sum(values.nbytes for values in arrays.values())


def _warn(folder: str, error: Exception) -> None:
    """Once a process and cache."""
    if folder not in _warned:
        _warned.add(folder)
        _log.warning("computed columns are held in memory if they are not in the cache yet: %s", error)
