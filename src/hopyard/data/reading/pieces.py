"""Row groups decoded, some rows at a time: lists of one length from their pages, everything else by Arrow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.files.parallel import on_all_cores
from hopyard.data.files.stored import StoredFile
from hopyard.data.reading.flat import Packs, Piece
from hopyard.data.reading.pages import Chunk, find_chunk, may_be_paged, read_rows
from hopyard.data.recipe.arrow_columns import present, undecodable
from hopyard.data.recipe.recipe import Recipe

_COLUMNS_OF_A_THREAD = 64  # at least
_JOINED = 1 << 20  # bytes

Selected = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Group:
    """One row group of a dataset.

    Attributes:
        file: the file that it is in; number: of the file in the manifest.
        within: its number in the file.
        rows: number of its rows that belong to the dataset.
        content: digest of the file's content, or of its footer; tells files apart whose identities are equal.
        sealed: ``content`` is a digest of the file's content, not of the footer: its rows are these under any name.
        selected: (all rows,) of the row group, which belong to it; None: all.
        selection: digest of them.
    """

    file: StoredFile
    number: int
    within: int
    rows: int
    content: str
    sealed: bool = False
    selected: Callable[[], pa.Array] | None = None
    selection: str = ""


def pieces_of(group: Group, recipe: Recipe, packs: Packs, at_once: int, threads: int = 1) -> Iterator[Piece]:
    """The rows of a row group that belong to the dataset, as the columns of these packs; rows may come again.

    Args:
        at_once: rows that Arrow decodes before they are taken.
        threads: among which many columns are dealt.

    Raises:
        CorruptError: the row group cannot be decoded, or its file changed; names file, row group and column.
        DataError: its rows are not what the schema says.
    """
    group.file.check_columns(group.within, recipe.needs(name for pack in packs for name in pack))
    selected = None if group.selected is None else group.selected()
    left: list[tuple[str, ...]] = []
    for pack in packs:
        chunk = _paged(group, recipe, pack[0]) if len(pack) == 1 else None
        try:
            if chunk is None:
                left.append(pack)
            else:
                yield from _from_pages(group, pack[0], chunk, selected)
        except (ValueError, OSError, pa.ArrowException):
            left.append(pack)  # from the start
    if left:
        yield from _by_arrow(group, recipe, tuple(left), at_once, selected, threads)
    group.file.check_unchanged()


def _paged(group: Group, recipe: Recipe, name: str) -> Chunk | None:
    if not recipe.is_plain(name) or not may_be_paged(recipe.schema[name]):
        return None
    return find_chunk(group.file, group.within, recipe.schema[name])


def _from_pages(group: Group, name: str, chunk: Chunk, selected: pa.Array | None) -> Iterator[Piece]:
    """The column, where it lies in pages of lists of one length.

    Raises:
        ValueError, OSError: it does not, or cannot be read.
    """
    keep = None if selected is None else selected.to_numpy(zero_copy_only=False)
    start = first = 0
    assert group.file.path is not None
    with group.file.path.open("rb", buffering=0) as file:
        for rows in read_rows(file, chunk):
            wanted = rows if keep is None else rows[keep[start : start + len(rows)]]
            start += len(rows)
            if len(wanted):
                yield Piece(first, {name: wanted})
                first += len(wanted)


def _by_arrow(
    group: Group, recipe: Recipe, packs: Packs, at_once: int, selected: pa.Array | None, threads: int
) -> Iterator[Piece]:
    file = group.file
    needed = present(file, recipe.needs(name for pack in packs for name in pack))
    where = f"{file.name}, row group {group.within}"
    start = first = 0
    try:
        threads = min(threads, len(needed) // _COLUMNS_OF_A_THREAD)
        if threads > 1 and not _are_scalars(recipe, needed):
            threads = 1
        for batch in _decoded(group, needed, at_once, threads):
            wanted = batch if selected is None else batch.filter(selected.slice(start, len(batch)))
            start += len(batch)
            # By rows: what a thread packs is written as it is.
            parts = [wanted[part] for part in _dealt(len(wanted), threads, 1)]
            for part, packed in zip(
                parts, on_all_cores(lambda part: _packed_all(part, recipe, packs), parts), strict=True
            ):
                if not len(part):
                    continue
                names = [name for pack in packs if packed[pack[0]] is None for name in pack]
                table = pa.Table.from_batches([part]) if names else None
                columns = recipe.apply(table, names, group.number, where) if names else {}
                yield Piece(first, columns, {name: rows for name, rows in packed.items() if rows is not None})
                first += len(part)
        promised = file.footer.row_group(group.within).num_rows
        if start != promised:
            raise pa.ArrowInvalid(f"{start} rows came of {promised}")
    except (pa.ArrowInvalid, OSError) as error:
        file.check_unchanged()
        raise undecodable(file, group.within, needed, error) from error


def _are_scalars(recipe: Recipe, needed: Iterable[str]) -> bool:
    """Whether batches of some of the columns have as many rows as batches of the others."""
    return all(recipe.is_plain(name) and recipe.schema[name].is_scalar for name in needed)


def _decoded(group: Group, needed: Sequence[str], at_once: int, threads: int) -> Iterator[pa.RecordBatch]:
    """The rows of the row group, some at a time; the columns are dealt among threads if there are many."""
    file = group.file

    def batches_of(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        opened = file.parquet(group.within, columns)
        return iter(opened.iter_batches(at_once, [group.within], columns, use_threads=False))

    parts = [batches_of(needed[part]) for part in _dealt(len(needed), threads, _COLUMNS_OF_A_THREAD)]
    if len(parts) == 1:
        yield from parts[0]
        return
    while True:
        batches = [each for each in on_all_cores(lambda part: next(part, None), parts) if each is not None]
        if len(batches) < len(parts):
            return
        arrays = [array for batch in batches for array in batch.columns]
        yield pa.RecordBatch.from_arrays(arrays, [name for batch in batches for name in batch.schema.names])


def _dealt(count: int, threads: int, least: int) -> list[slice]:
    """Deal ``count`` columns, or rows, into a part for each thread; fewer parts where these had less than ``least``."""
    parts = max(min(threads, count // least), 1)
    bounds = [count * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def _packed_all(batch: pa.RecordBatch, recipe: Recipe, packs: Packs) -> dict[str, npt.NDArray[Any] | None]:
    return {pack[0]: _packed(batch, recipe, pack) for pack in packs}


def _packed(batch: pa.RecordBatch, recipe: Recipe, pack: tuple[str, ...]) -> npt.NDArray[Any] | None:
    """The (rows, columns) of a pack that lies in the file as it is wanted and holds no null; else None."""
    dtype = recipe.schema[pack[0]].dtype
    if dtype in ("bool", "object") or not all(map(recipe.is_plain, pack)):
        return None
    kind = pa.from_numpy_dtype(dtype)
    columns = batch if batch.schema.names == list(pack) else batch.select(pack)
    if any(its != kind for its in columns.schema.types):
        return None
    if len(pack) == 1:
        only = columns.column(0)
        return None if only.null_count else only.to_numpy().reshape(-1, 1)
    try:
        rows: npt.NDArray[Any] = columns.to_tensor(row_major=True).to_numpy()
    except pa.ArrowTypeError:  # some are null
        return None
    return rows


def one_ahead(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pieces, decoded ahead: while one is used (written to a file), the next one is decoded in a thread."""
    with ThreadPoolExecutor(1, "hopyard-ahead") as pool:
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)
            yield piece


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same rows in fewer pieces: small packed ones that follow each other are one, to be written by one call."""
    waiting: list[Piece] = []
    stop = size = 0  # the row behind them, and their bytes
    for piece in pieces:
        is_packed = bool(piece.packed) and not piece.columns
        is_next = is_packed and piece.first == stop
        if waiting and not (is_next and piece.packed.keys() == waiting[0].packed.keys()):
            yield _as_one(waiting)
            waiting, size = [], 0
        if not is_packed:
            yield piece
            continue
        waiting.append(piece)
        stop = piece.first + len(next(iter(piece.packed.values())))
        size += sum(rows.nbytes for rows in piece.packed.values())
        if size >= _JOINED:
            yield _as_one(waiting)
            waiting, size = [], 0
    if waiting:
        yield _as_one(waiting)


def _as_one(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    packed = {name: np.concatenate([piece.packed[name] for piece in pieces]) for name in pieces[0].packed}
    return Piece(pieces[0].first, {}, packed)
