"""Documents of tokens in rows of one length.

Best fit decreasing: the longest piece first, each into the row where the least room is left behind it (Johnson,
Demers, Ullman, Garey, Graham: *Worst-case performance bounds for simple one-dimensional packing algorithms*, SIAM
Journal on Computing 1974). Rows are made of a window of documents at a time, so that memory is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hopyard.data.ragged import Ragged, offsets_of

NOT_LEARNED = -100
"""The label of a token that is not learned, which losses of PyTorch ignore."""

_WINDOW = 1 << 22
_WINDOW_ROWS = 64

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """Documents as tokens.

    Attributes:
        ids: of each document, int32.
        learned: (total,) bool, for each token of all documents.
    """

    ids: Ragged
    learned: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, documents: slice) -> Tokens:
        """Documents that follow each other."""
        start, stop, _ = documents.indices(len(self))
        bounds = self.ids.offsets[[start, stop]]
        return Tokens(self.ids[documents], self.learned[bounds[0] : bounds[1]])

    @staticmethod
    def concatenate(parts: list[Tokens]) -> Tokens:
        learned = np.concatenate([part.learned for part in parts])
        return Tokens(Ragged.concatenate([part.ids for part in parts]), learned)


@dataclass(frozen=True)
class Rows:
    """Columns of rows of one length, (n, length) int32 each."""

    input_ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]


def windows(batches: Iterable[Tokens], length: int) -> Iterator[Tokens]:
    """The documents, so many at a time as make rows together. Where a window ends depends on the documents alone, not
    on the batches that they come in."""
    most = max(_WINDOW, _WINDOW_ROWS * length)
    waiting: list[Tokens] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch.learned)
        if count < most:
            continue
        whole = Tokens.concatenate(waiting)
        start = 0
        while int(whole.ids.offsets[-1] - whole.ids.offsets[start]) >= most:
            stop = int(np.searchsorted(whole.ids.offsets, whole.ids.offsets[start] + most))
            yield whole[start:stop]
            start = stop
        waiting = [whole[start:]]
        count = len(waiting[0].learned)
    if count:
        yield Tokens.concatenate(waiting)


def in_rows(documents: Tokens, length: int, pad: int, pack: bool) -> Rows:
    """The documents in rows of ``length`` tokens, filled at their end with ``pad``, which is not learned.

    A document that is longer is cut into pieces, each a document of its own from then on. Positions count from 0 in
    every document, and in the filling. A document's first token is not learned: nothing stands before it that could
    predict it.

    Args:
        pack: as many documents in a row as fit, in their order; else each has its own.
    """
    pieces = _pieces(documents.ids.lengths, length)
    rows = fitted(pieces, length) if pack else np.arange(len(pieces))
    by_row = np.argsort(rows, kind="stable")
    ends = np.cumsum(pieces[by_row])
    counts = np.bincount(rows, pieces).astype(np.int64)
    starts = np.empty_like(pieces)  # of pieces, among the tokens of all rows
    starts[by_row] = ends - pieces[by_row] - np.repeat(offsets_of(counts)[:-1], np.bincount(rows))
    starts += rows * length

    within = np.arange(len(documents.learned)) - np.repeat(offsets_of(pieces)[:-1], pieces)
    places = np.repeat(starts, pieces) + within
    shape = len(counts), length
    positions = np.arange(length, dtype=np.int32) - counts[:, None].astype(np.int32)
    ids, labels = np.full(shape, pad, np.int32), np.full(shape, NOT_LEARNED, np.int32)
    ids.reshape(-1)[places] = documents.ids.values
    labels.reshape(-1)[places] = np.where(documents.learned & (within > 0), documents.ids.values, NOT_LEARNED)
    positions.reshape(-1)[places] = within
    return Rows(ids, labels, positions)


def _pieces(lengths: Counts, most: int) -> Counts:
    """The lengths of the pieces, in order, that documents are cut into."""
    counts = -(-lengths // most)
    pieces = np.full(int(counts.sum()), most, np.int64)
    pieces[np.cumsum(counts) - 1] = lengths - (counts - 1) * most
    return pieces


def fitted(lengths: Counts, room: int) -> Counts:
    """(n,) the row of each piece, rows numbered from 0: never more rows than first fit makes of the same pieces."""
    rows = best_fit(lengths, room)
    count = int(rows.max(initial=-1)) + 1
    fewest = max(-(-int(lengths.sum()) // room), int((lengths * 2 > room).sum()))
    if count == fewest:
        return rows
    first = first_fit(lengths, room)
    return first if int(first.max()) + 1 < count else rows


def best_fit(lengths: Counts, room: int) -> Counts:
    """(n,) the row of each piece, by best fit decreasing."""
    rows = np.empty(len(lengths), np.int64)
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms = 0  # bit r is set where a row has room r left
    count = 0
    order = np.argsort(-lengths, kind="stable")
    for piece, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if fitting := rooms >> length:
            left = length + (fitting & -fitting).bit_length() - 1
            row = by_room[left].pop()
            if not by_room[left]:
                rooms ^= 1 << left
        else:
            left, row = room, count
            count += 1
        rows[piece] = row
        left -= length
        by_room[left].append(row)
        rooms |= 1 << left
    return rows


def first_fit(lengths: Counts, room: int) -> Counts:
    """(n,) the row of each piece, by first fit in their order."""
    rows = np.empty(len(lengths), np.int64)
    left = np.full(len(lengths), room)
    count = 0
    for piece, length in enumerate(lengths.tolist()):
        rows[piece] = row = int(np.argmax(left[: count + 1] >= length))
        left[row] -= length
        count = max(count, row + 1)
    return rows
