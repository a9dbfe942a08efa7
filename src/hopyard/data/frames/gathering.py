"""A worker's part with engines that hand over whole blocks: Ray Data and Dask."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hopyard.data.columns.convert_arrow import is_unknown
from hopyard.data.preparing.files import Writing, told
from hopyard.data.preparing.packing import FIXED, ORDER, PART, SURVEY, Packing
from hopyard.data.preparing.survey import Survey
from hopyard.errors import DataError

FILE, RESULT = "hopyard_file", "hopyard_result"


def pack_block(read: Callable[[], pa.Table], packing: Packing, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The packed rows of the block that ``read`` gives, and its survey."""
    packed = list(packing.pack(_typed(read, types)))
    return pa.Table.from_batches(packed, packing.layout.arrow)


def _typed(read: Callable[[], pa.Table], types: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """The block, if it has rows; columns in which it has nothing but nulls or empty lists get the type of others."""
    block = read()
    if not block.num_rows:
        return
    missing = [name for name in types if name not in block.column_names]
    if missing:
        raise DataError(
            f"Some rows have the columns {', '.join(block.column_names)}, but others {', '.join(types)} "
            f"({', '.join(missing)} missing). Give every row the same columns."
        )
    for name, kind in types.items():
        column = block[name]
        if is_unknown(column.type) and not is_unknown(kind):
            block = block.set_column(block.column_names.index(name), name, column.cast(kind))
    yield block.select(list(types))


def surveys_of(block: pa.Table) -> pa.Table:
    """The surveys among packed rows."""
    return block.filter(pc.equal(block[ORDER], SURVEY)).select([FIXED])


def loaded(values: Iterable[bytes]) -> list[Survey]:
    return [pickle.loads(value) for value in values]


def numbered(block: pa.Table, writing: Writing) -> pa.Table:
    """Packed rows with the number of the file of each, without surveys."""
    rows = block.filter(pc.greater_equal(block[ORDER], 0))
    numbers = writing.numbers(rows[ORDER].to_numpy(), rows[PART].to_numpy())
    return rows.append_column(FILE, pa.array(numbers, pa.int64()))


def write_block(block: pa.Table, writing: Writing) -> pa.Table:
    """Write the files whose rows, all of them, are in this block."""
    results = [
        told(partial(writing.write, number, block.filter(pc.equal(block[FILE], number))))
        for number in sorted(pc.unique(block[FILE]).to_pylist())
    ]
    return pa.table({RESULT: pa.array(results, pa.binary())})
