"""Row groups decoded, some rows at a time: lists of one length from their pages, everything else by Arrow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hopyard.data.columns.convert_arrow import numbers
from hopyard.data.files.parallel import on_all_cores
from hopyard.data.files.stored import StoredFile
from hopyard.data.reading.flat import Packs, Piece
from hopyard.data.reading.pages import Chunk, find_chunk, may_be_paged, read_rows
from hopyard.data.recipe.arrow_columns import present, undecodable
from hopyard.data.recipe.recipe import Recipe

_COLUMNS_OF_A_THREAD = 32  # at least
_AT_ONCE_TOGETHER = 4  # of small row groups, a quarter of the rows: they are still in the processor's cache

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


def pieces_of(
    groups: Iterable[Group], recipe: Recipe, packs: Packs, at_once: int, threads: int = 1
) -> Iterator[Piece]:
    """The rows of row groups that belong to the dataset, one group after another, as the columns of these packs; rows
    may come again.

    Args:
        at_once: rows that Arrow decodes before they are taken; of small row groups, so many are taken together.
        threads: among which many columns are dealt.

    Raises:
        CorruptError: a row group cannot be decoded, or its file changed; names file, row group and column.
        DataError: its rows are not what the schema says.
    """
    together = at_once // _AT_ONCE_TOGETHER
    waiting: list[_Decoded] = []  # of the same packs, their rows one after another
    for each in _decoded(groups, recipe, packs, at_once, threads):
        if isinstance(each, Piece):
            yield each
            continue
        if waiting and (each.packs != waiting[0].packs or each.end - waiting[0].first > together):
            yield from _taken(waiting, recipe, threads)
            waiting.clear()
        waiting.append(each)
        if each.end - waiting[0].first >= together:
            yield from _taken(waiting, recipe, threads)
            waiting.clear()
    if waiting:
        yield from _taken(waiting, recipe, threads)


def _decoded(
    groups: Iterable[Group], recipe: Recipe, packs: Packs, at_once: int, threads: int
) -> Iterator[Piece | _Decoded]:
    needs = recipe.needs(name for pack in packs for name in pack)
    before = 0
    for group in groups:
        group.file.check_columns(group.within, needs)
        selected = None if group.selected is None else group.selected()
        left: list[tuple[str, ...]] = []
        for pack in packs:
            chunk = _paged(group, recipe, pack)
            try:
                if chunk is None:
                    left.append(pack)
                else:
                    for piece in _from_pages(group, pack[0], chunk, selected):
                        yield piece._replace(first=before + piece.first)
            except (ValueError, OSError, pa.ArrowException):
                left.append(pack)  # from the start
        if len(left) == len(packs):
            yield from _by_arrow(group, recipe, packs, needs, before, at_once, selected, threads)
        else:
            if left:
                wanted = recipe.needs(name for pack in left for name in pack)
                yield from _by_arrow(group, recipe, tuple(left), wanted, before, at_once, selected, threads)
            group.file.check_unchanged()
        before += group.rows


def _paged(group: Group, recipe: Recipe, pack: tuple[str, ...]) -> Chunk | None:
    if len(pack) > 1 or not recipe.is_plain(pack[0]) or not may_be_paged(recipe.schema[pack[0]]):
        return None
    return find_chunk(group.file, group.within, recipe.schema[pack[0]])


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


@dataclass(frozen=True)
class _Decoded:
    """Rows that Arrow decoded of one row group, for these packs, and the number of the first among all rows."""

    group: Group
    needed: Sequence[str]
    packs: Packs
    first: int
    batch: pa.RecordBatch

    @property
    def end(self) -> int:
        return self.first + len(self.batch)


def _by_arrow(
    group: Group,
    recipe: Recipe,
    packs: Packs,
    needs: Sequence[str],
    first: int,
    at_once: int,
    selected: pa.Array | None,
    threads: int,
) -> Iterator[_Decoded]:
    needed = present(group.file, needs)
    threads = min(threads, len(needed) // _COLUMNS_OF_A_THREAD)
    if threads > 1 and not _are_scalars(recipe, needed):
        threads = 1
    start = 0
    with _undecodable(group, needed):
        for batch in _batches(group, needed, at_once, threads):
            wanted = batch if selected is None else batch.filter(selected.slice(start, len(batch)))
            start += len(batch)
            if len(wanted):
                yield _Decoded(group, needed, packs, first, wanted)
                first += len(wanted)
        promised = group.file.footer.row_group(group.within).num_rows
        if start != promised:
            raise pa.ArrowInvalid(f"{start} rows came of {promised}")


@contextmanager
def _undecodable(group: Group, needed: Sequence[str]) -> Iterator[None]:
    """Name row group and column in an error of Arrow."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        group.file.check_unchanged()
        raise undecodable(group.file, group.within, needed, error) from error


def _taken(decoded: Sequence[_Decoded], recipe: Recipe, threads: int) -> Iterator[Piece]:
    """Batches of rows that follow each other, as pieces: what can be packed for all rows together, the rest for each
    batch."""
    if len(decoded) == 1:
        # By rows: what a thread packs is written as it is.
        (only,) = decoded
        threads = min(threads, only.batch.num_columns // _COLUMNS_OF_A_THREAD)
        parts = [only.batch[part] for part in _dealt(len(only.batch), threads, 1)]
    else:
        parts = [each.batch for each in decoded]
        with suppress(pa.ArrowInvalid):  # files may differ in types that are the same column
            parts = [pa.concat_batches(parts)]
    packs, first = decoded[0].packs, decoded[0].first
    apart: set[tuple[str, ...]] = set()
    for part, packed in zip(
        parts, on_all_cores(lambda part: _packed_all(part, recipe, packs), parts), strict=True
    ):
        apart.update(pack for pack in packs if packed[pack[0]] is None)
        together = {name: rows for name, rows in packed.items() if rows is not None}
        if together:
            yield Piece(first, {}, together)
        first += len(part)
    names = [name for pack in packs if pack in apart for name in pack]
    if not names:
        return
    for each in decoded:
        where = f"{each.group.file.name}, row group {each.group.within}"
        with _undecodable(each.group, each.needed):
            columns = recipe.apply(pa.Table.from_batches([each.batch]), names, each.group.number, where)
        yield Piece(each.first, columns)


def _are_scalars(recipe: Recipe, needed: Iterable[str]) -> bool:
    """Whether batches of some of the columns have as many rows as batches of the others."""
    return all(recipe.is_plain(name) and recipe.schema[name].is_scalar for name in needed)


def _batches(group: Group, needed: Sequence[str], at_once: int, threads: int) -> Iterator[pa.RecordBatch]:
    """The rows of the row group, some at a time; the columns are dealt among threads if there are many."""
    dealt = [needed[part] for part in _dealt(len(needed), threads, _COLUMNS_OF_A_THREAD)]
    parts = [group.file.batches(group.within, columns, at_once) for columns in dealt]
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
        return None if only.null_count else numbers(only).reshape(-1, 1)
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
