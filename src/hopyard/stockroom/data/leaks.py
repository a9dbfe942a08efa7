"""Leaks: samples that stand in two places, such as a training and a validation set.

Samples of one dtype are equal if their bytes are. Numbers of two dtypes are equal if their values are, exactly: an
image as uint8 is found among float32 ones if nobody scaled it, and 2**53 + 1 is no float64. Nothing is "nearly" equal.

Every sample of both is hashed (64 bits, keyed anew in each process), and hashes are all that is held of them; samples
whose hashes agree are read again and compared. So nothing is reported that is not equal, and nothing equal is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hopyard.data.base import BaseDataset
from hopyard.data.ragged import Ragged
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.data.rows import plain
from hopyard.stockroom.data.samples import raw_array
from hopyard.wording import are, counted

CommonDtype: TypeAlias = np.dtype[Any] | None
"""The dtype in which numbers of two dtypes are compared; None: bytes are."""

HashableSamples: TypeAlias = list[Any]
"""Of each sample what can be hashed, and is equal if samples are: its bytes or text, or a tuple with them."""

_BYTES_AT_ONCE = 16 << 20
_ROWS_AT_ONCE = 1 << 16
_UNKNOWN_SIZE = 4 << 10  # bytes of a sample, where they differ


@dataclass(frozen=True)
class Leaks:
    """The samples that stand in both.

    Attributes:
        pairs: for each sample of the first that the second has too, in order: its key in the first, and the key of
            the first equal sample in the second. Of datasets, numbers of rows.
        compared: samples of the first, and of the second.
    """

    pairs: tuple[tuple[Any, Any], ...]
    compared: tuple[int, int]

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        first, second = self.compared
        found = len(self.pairs)
        return f"{found} of {counted(first, 'sample')} {are(found)} among the {counted(second, 'other')} too"


@dataclass(frozen=True)
class ComparedSamples:
    """Samples by position, and what to call them."""

    count: int
    at_once: int
    read: Callable[[npt.NDArray[np.int64]], HashableSamples]
    keys: Callable[[npt.NDArray[np.int64]], Sequence[Any]]

    def blocks(self) -> Iterator[npt.NDArray[np.int64]]:
        for first in range(0, self.count, self.at_once):
            yield np.arange(first, min(first + self.at_once, self.count))

    def hashes(self) -> npt.NDArray[np.int64]:
        """(count,) of every sample."""
        found = np.empty(self.count, np.int64)
        for rows in self.blocks():
            found[rows] = np.fromiter(map(hash, self.read(rows)), np.int64, len(rows))
        return found


def leaks(
    first: SampleColumn | ColumnDraft | BaseDataset,
    second: SampleColumn | ColumnDraft | BaseDataset,
    columns: Sequence[str] | None = None,
) -> Leaks:
    """The samples of ``first`` that are in ``second`` too, whatever their keys: equal in every byte, or where dtypes of
    numbers differ in every value.

    Args:
        first, second: both columns, or both datasets.
        columns: of datasets, those in which rows must be equal; None: all that both have. An image under two labels
            is found with ``columns=["image"]``.

    Raises:
        UsageError: a column and a dataset, or neither.
        DataError: no sample can be equal, since they are of other kinds, dtypes or shapes.
        ColumnError: a dataset has no such column.
    """
    mine, its = _sides(first, second, columns)
    pairs = equal_rows(mine, its)
    return Leaks(tuple(zip(mine.keys(pairs[0]), its.keys(pairs[1]), strict=True)), (mine.count, its.count))


def leaks_among(
    given: Mapping[str, SampleColumn | ColumnDraft | BaseDataset], columns: Sequence[str] | None = None
) -> dict[tuple[str, str], Leaks]:
    """Compare each with each other by :func:`leaks`, such as ``{"train": ..., "val": ..., "test": ...}``.

    Returns:
        for each pair of names in the order given what it found.

    Raises:
        UsageError: fewer than two; else as :func:`leaks`.
    """
    if len(given) < 2:
        raise UsageError(
            f"leaks_among() was given {counted(len(given), 'column or dataset')}, but compares at least two. Give "
            "others under names of their own."
        )
    return {(one, two): leaks(given[one], given[two], columns) for one, two in combinations(given, 2)}


def equal_rows(mine: ComparedSamples, its: ComparedSamples) -> npt.NDArray[np.int64]:
    """(2, n) the positions of samples that the other side has too, in order, and of the first equal ones there."""
    hashes, others = mine.hashes(), its.hashes()
    order = np.argsort(others, kind="stable")  # equal ones stay in the order of their positions
    ordered = others[order]
    rows = np.arange(mine.count)
    at = np.searchsorted(ordered, hashes)
    found = [np.empty((2, 0), np.int64)]
    while True:
        # Where hashes agree; samples that differ may have one hash: then the next one there, as long as it agrees.
        agree = at < len(ordered)
        rows, at = rows[agree], at[agree]
        agree = ordered[at] == hashes[rows]
        rows, at = rows[agree], at[agree]
        if not len(rows):
            break
        equal = _equal(mine, rows, its, order[at])
        found.append(np.stack([rows[equal], order[at[equal]]]))
        rows, at = rows[~equal], at[~equal] + 1
    pairs = np.concatenate(found, axis=1)
    return pairs[:, np.argsort(pairs[0], kind="stable")]


def _equal(
    mine: ComparedSamples, rows: npt.NDArray[np.int64], its: ComparedSamples, others: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """(n,) which samples of one side are those of the other."""
    equal = np.empty(len(rows), bool)
    step = min(mine.at_once, its.at_once)
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        # Each is read once, though many may be compared with it.
        wanted, back = np.unique(others[some], return_inverse=True)
        content = its.read(wanted)
        pairs = zip(mine.read(rows[some]), back.tolist(), strict=True)
        equal[some] = [sample == content[place] for sample, place in pairs]
    return equal


def _sides(first: Any, second: Any, names: Sequence[str] | None) -> tuple[ComparedSamples, ComparedSamples]:
    given: list[Any] = [
        each.snapshot() if isinstance(each, ColumnDraft) else each for each in (first, second)
    ]
    if all(isinstance(each, SampleColumn) for each in given):
        if names is not None:
            raise UsageError(
                "leaks() was given columns= with two columns. It chooses among those of datasets: leave it out."
            )
        a, b = given
        common = _common(a.dtype, b.dtype) if a.kind == b.kind == "tensor" and a.dtype != b.dtype else None
        if a.record.settings != b.record.settings and not _may_be_equal(a, b, common):
            raise _never_equal(f"{a!r} and {b!r}")
        varying = None in a.shape + b.shape
        return _of_column(a, varying, common), _of_column(b, varying, common)
    if not all(isinstance(each, BaseDataset) for each in given):
        raise UsageError(
            f"leaks() was given a {type(first).__name__} and a {type(second).__name__}. Give two columns, as "
            "stock.data['image'] is, or two datasets; stock.data[['image', 'label']] is one too."
        )
    return _of_datasets(given[0], given[1], names)


def _may_be_equal(a: SampleColumn, b: SampleColumn, common: CommonDtype) -> bool:
    if (a.kind, len(a.shape)) != (b.kind, len(b.shape)) or (a.dtype != b.dtype and common is None):
        return False
    return all(None in lengths or lengths[0] == lengths[1] for lengths in zip(a.shape, b.shape, strict=True))


def _never_equal(what: str) -> DataError:
    return DataError(
        f"{what} have no sample that could be equal: they differ in kind or shape, or are complex and real. Compare "
        "what was stored alike."
    )


def _of_column(column: SampleColumn, varying: bool, common: CommonDtype) -> ComparedSamples:
    def read(rows: npt.NDArray[np.int64]) -> HashableSamples:
        content = _content(column.take(rows), common)
        return [(column.shape, data) for data in content] if varying and None not in column.shape else content

    size = column.nbytes // max(len(column), 1)
    return ComparedSamples(len(column), _at_once(size), read, lambda rows: plain(column.codes()[rows]))


def _of_datasets(
    a: BaseDataset, b: BaseDataset, names: Sequence[str] | None
) -> tuple[ComparedSamples, ComparedSamples]:
    wanted = [name for name in a.schema.names if name in b.schema] if names is None else list(names)
    if not wanted:
        raise ColumnError(
            f"the datasets have no column in common: {', '.join(a.schema.names)}; {', '.join(b.schema.names)}. Open "
            "them with columns of equal names."
        )
    common: dict[str, CommonDtype] = {}
    for one, other in zip(a.schema.select(wanted), b.schema.select(wanted), strict=True):
        numeric = one.kind in ("tensor", "ragged") and one.dtype != other.dtype
        common[one.name] = _common(one.dtype, other.dtype) if numeric else None
        alike = (one.kind, one.shape) == (other.kind, other.shape)
        if not alike or (one.dtype != other.dtype and common[one.name] is None):
            raise _never_equal(f"{one} and {other}")
    return _of_dataset(a, common), _of_dataset(b, common)


def _of_dataset(dataset: BaseDataset, names: Mapping[str, CommonDtype]) -> ComparedSamples:
    chosen = {name: name for name in names}

    def read(rows: npt.NDArray[np.int64]) -> HashableSamples:
        taken = dataset.take(rows, chosen)
        columns = [_content(taken[name], common) for name, common in names.items()]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def keys(rows: npt.NDArray[np.int64]) -> Sequence[Any]:
        if isinstance(dataset, JoinedSamples):
            return dataset.part(rows).keys()
        return list(rows.tolist())

    size = sum(dataset.schema[name].width or _UNKNOWN_SIZE for name in names)
    return ComparedSamples(len(dataset), _at_once(size), read, keys)


def _at_once(size: int) -> int:
    return max(1, min(_BYTES_AT_ONCE // max(size, 1), _ROWS_AT_ONCE))


def _content(values: Any, common: CommonDtype) -> HashableSamples:
    """Rows of a column, as columns and datasets give them."""
    if isinstance(values, Ragged):
        return [_element(row, common) for row in values]
    if isinstance(values, list):
        return [value if isinstance(value, str | bytes) else _of_tensor(value, common) for value in values]
    if common is not None and len(values):
        array, exact = _valued(values, common)
        content = _bytes_of_rows(array)
        for row in np.flatnonzero(~exact.reshape(len(exact), -1).all(1)):
            content[row] = object()
        return content
    array = _raw(values)
    return list(array) if array.dtype == object else _bytes_of_rows(array)


def _bytes_of_rows(array: npt.NDArray[Any]) -> HashableSamples:
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    if not width:
        return [b""] * len(array)
    return list(np.ascontiguousarray(array).reshape(-1).view(np.dtype((np.void, width))).tolist())


def _of_tensor(value: Any, common: CommonDtype) -> tuple[tuple[int, ...], Any]:
    return tuple(value.shape), _element(value, common)


def _element(value: Any, common: CommonDtype) -> Any:
    if common is None:
        return _raw(value).tobytes()
    array, exact = _valued(value, common)
    return array.tobytes() if exact.all() else object()


def _common(one: str, other: str) -> CommonDtype:
    """The dtype in which numbers of both are compared; None: they never are."""
    a, b = _known(one), _known(other)
    if a is None or b is None or (a.kind == "c") != (b.kind == "c"):
        return None
    if {a.kind, b.kind} == {"u", "i"}:
        return np.dtype(np.int64)
    return np.result_type(a, b)


def _known(name: str) -> np.dtype[Any] | None:
    """NumPy's dtype of this name; float64 for those floats of PyTorch that NumPy lacks, all of which it holds."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(np.void)
    if dtype.kind in "biufc":
        return dtype
    # Other packages may have given NumPy a dtype of this name, which it cannot compare with its own.
    return np.dtype(np.float64) if "float" in name else None


def _valued(values: Any, common: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Numbers in a dtype where equal ones have equal bytes, and which of them it holds exactly: no other equals what is
    in a dtype that holds it."""
    array = values if isinstance(values, np.ndarray) else values.double().numpy()
    exact = np.ones(array.shape, bool)
    with np.errstate(invalid="ignore"):
        wide = np.asarray(array).astype(common)
        if array.dtype.kind == "u" and common.kind == "i":
            exact = array <= np.uint64(np.iinfo(np.int64).max)
        elif array.dtype.kind in "iu" and common.kind in "fc":
            bits = np.iinfo(array.dtype).bits - (array.dtype.kind == "i")
            exact = (wide.real < 2.0**bits) & (wide.real.astype(array.dtype) == array)
    if common.kind in "fc":
        wide = wide + common.type(0)  # 0 for -0
        wide[np.isnan(wide)] = np.nan
    return wide, exact


def _raw(values: Any) -> npt.NDArray[Any]:
    """An array; of a PyTorch tensor, for which NumPy has no dtype, as ints of equal width."""
    return values if isinstance(values, np.ndarray) else raw_array(values)[1]
