"""Batches of a frame, as engines hand them to their workers, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.data.columns.columns import ColumnData
from hopyard.data.columns.convert import convert_columns
from hopyard.data.columns.convert_arrow import from_arrow, is_list, is_unknown
from hopyard.data.columns.structs import flat_columns, flatten_structs
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.schema import Column
from hopyard.data.sources.collect import pick
from hopyard.data.sparse import pairs_of, sparse_rows
from hopyard.errors import DataError, UnsupportedTypeError


@dataclass(frozen=True)
class FrameReading:
    """The columns of a frame to read, and how to read them. Pickles.

    Attributes:
        names: the columns; fields of structs dotted.
        roots: the frame's own columns in which they are, which batches have in this order.
        vectors: the columns that are vectors of Spark ML.
        sparse: whether these stay sparse.
    """

    names: tuple[str, ...]
    roots: tuple[str, ...]
    vectors: frozenset[str] = frozenset()
    sparse: bool = False

    def columns(
        self, batch: pa.RecordBatch | pa.Table, expected: Mapping[str, Column] = MappingProxyType({})
    ) -> dict[str, ColumnData]:
        """The rows of a batch as columns; the batch's own names for them do not count.

        Args:
            expected: see ``Source``.

        Raises:
            DataError: a column holds values that a dataset cannot.
        """
        raw = dict(zip(self.roots, batch.columns, strict=True))
        vectors = {name: raw[name] for name in self.names if name in self.vectors}
        if self.sparse:
            plain = [name for name in self.names if name not in vectors]
            others = {name: array for name, array in raw.items() if name not in vectors}
            columns = (
                convert_columns(pick(flatten_structs(others), plain), _column, expected) if plain else {}
            )
            columns |= {name: sparse_vectors(name, array) for name, array in vectors.items()}
            return {name: columns[name] for name in self.names}
        dense = {name: dense_vectors(array) for name, array in vectors.items()}
        return convert_columns(pick(flatten_structs(raw | dense), self.names), _column, expected)


def columns_of_types(
    types: Mapping[str, pa.DataType | str],
    names: Sequence[str],
    expected: Mapping[str, Column] = MappingProxyType({}),
) -> dict[str, Column]:
    """The columns of these names of a frame; of lists, the columns tell the elements.

    Args:
        types: of the frame's own columns; a text for a type that Arrow does not have.
        expected: see ``Source``.

    Raises:
        DataError: names all columns that a dataset cannot hold, and why.
    """
    known = {name: kind for name, kind in types.items() if not isinstance(kind, str)}
    flat = {column.name: column.type for column in flat_columns(pa.schema(list(known.items()))).values()}
    unknown = {name: kind for name, kind in types.items() if isinstance(kind, str)}
    chosen = pick(flat | unknown, names)
    return {name: data.column for name, data in convert_columns(chosen, column_of_type, expected).items()}


def flat_paths(types: Mapping[str, pa.DataType | str]) -> dict[str, tuple[str, ...]]:
    """Paths of all columns, with the fields of structs in place of the structs."""
    fields = [(name, pa.null() if isinstance(kind, str) else kind) for name, kind in types.items()]
    return {name: column.path for name, column in flat_columns(pa.schema(fields)).items()}


def column_of_type(name: str, kind: pa.DataType | str) -> ColumnData:
    """No rows of a column of a frame, by its type; of lists, what their elements are."""
    if isinstance(kind, str):
        raise UnsupportedTypeError(f"{name} ({kind})")
    if pa.types.is_null(kind):
        raise UnsupportedTypeError(
            f"{name} (nothing but nulls in the rows that say its type: cast it)", unknown=[]
        )
    element = kind
    while is_list(element) or pa.types.is_fixed_size_list(element):
        element = element.value_type
    if hasattr(element, "shape") and isinstance(element, pa.BaseExtensionType):
        element = element.value_type
    data = from_arrow(name, pa.array([], element))
    if element is kind or element == kind:
        return data
    if data.kind != "tensor":
        what = f"lists of {data.kind}s: join them to one text, or give every value a number"
        raise UnsupportedTypeError(f"{name} ({what})")
    return _empty_lists(name, data.column.dtype, 0)


def _column(name: str, array: pa.Array | pa.ChunkedArray) -> ColumnData:
    kind = array.type
    if (
        is_list(kind)
        and not is_unknown(kind)
        and not len(array.flatten() if isinstance(array, pa.Array) else pc.list_flatten(array))
    ):
        empty = column_of_type(name, kind)  # what is in the lists cannot be seen in this batch
        missing = np.array(array.is_null().to_pylist(), bool)
        return ColumnData(name, "ragged", _empty_lists(name, empty.column.dtype, len(array)).values, missing)
    return from_arrow(name, array)


def _empty_lists(name: str, dtype: str, rows: int) -> ColumnData:
    return ColumnData(name, "ragged", Ragged(np.empty(0, dtype), np.zeros(rows + 1, np.int64)))


def dense_vectors(array: pa.StructArray | pa.ChunkedArray) -> pa.Array:
    """Vectors of Spark ML as lists of float64, sparse ones filled up with zeros.

    They come as structs of ``type`` (0: sparse, 1: dense), ``size``, ``indices`` and ``values``.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    present = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    kinds, sizes, indices, values = (array.field(name) for name in ("type", "size", "indices", "values"))
    valid = array.is_valid()
    sparse = pc.and_(valid, pc.equal(kinds, 0)).fill_null(False)
    if not pc.any(sparse).as_py():
        return pc.if_else(valid, values, None) if array.null_count else values
    lengths = np.zeros(len(array), np.int64)
    dense = ~sparse.to_numpy(zero_copy_only=False)
    stored = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
    lengths[dense] = stored[dense]
    lengths[~dense] = sizes.fill_null(0).to_numpy()[~dense]
    lengths[np.setdiff1d(np.arange(len(array)), present)] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    filled = np.zeros(offsets[-1])
    filled[_places(offsets, dense & (lengths > 0), lengths)] = _values_of(values, dense & (lengths > 0))
    starts = np.repeat(offsets[:-1][~dense], stored[~dense])
    filled[starts + _values_of(indices, ~dense)] = _values_of(values, ~dense)
    mask = None if not array.null_count else pc.invert(valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(filled), mask=mask)


def sparse_vectors(name: str, array: pa.StructArray | pa.ChunkedArray) -> ColumnData:
    """Vectors of Spark ML, sparse or dense, as sparse rows of float64; null ones as zeros.

    Raises:
        DataError: they differ in length.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    valid = array.is_valid()
    missing = ~valid.to_numpy(zero_copy_only=False)
    kinds, sizes, indices, values = (array.field(field) for field in ("type", "size", "indices", "values"))
    is_sparse = pc.and_(valid, pc.equal(kinds, 0)).fill_null(False).to_numpy(zero_copy_only=False)
    is_dense = ~(is_sparse | missing)
    stored = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
    lengths = np.where(is_sparse, sizes.fill_null(0).to_numpy(), stored)[~missing]
    length = int(lengths.max(initial=0))
    if (lengths != length).any():
        raise unequal_vectors(name, int(lengths.min()), length)
    elements = _values_of(values, is_dense).reshape(int(is_dense.sum()), length)
    pairs = pairs_of(_values_of(indices, is_sparse), _values_of(values, is_sparse))
    nulls = pairs_of(np.empty(0, np.int32), np.empty(0))
    rows = Ragged.concatenate(
        [
            sparse_rows(elements),
            Ragged(pairs, offsets_of(stored[is_sparse])),
            Ragged(nulls, np.zeros(int(missing.sum()) + 1, np.int64)),
        ]
    )
    order = np.concatenate([np.flatnonzero(chosen) for chosen in (is_dense, is_sparse, missing)])
    return ColumnData(name, "tensor", rows.take(np.argsort(order)), missing, length)


def unequal_vectors(name: str, shortest: int, longest: int) -> DataError:
    return DataError(
        f"Column {name!r} has vectors of {shortest} to {longest} elements, but compress_sparse=True is for vectors of "
        "one length. Give all of them one length, or leave compress_sparse=True out."
    )


def _places(offsets: np.ndarray, chosen: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    counts = lengths[chosen]
    firsts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    return np.asarray(np.repeat(offsets[:-1][chosen] - firsts, counts) + np.arange(counts.sum()))


def _values_of(lists: pa.Array, chosen: np.ndarray) -> np.ndarray:
    return np.asarray(lists.filter(pa.array(chosen)).flatten().to_numpy(zero_copy_only=False))
