"""The law of preparation: the same rows and arguments give the same dataset, bit for bit, whatever kind of source,
order of arrival and number of partitions they come from."""

import hashlib
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import as_source
from hopyard.data.preparing import here, packing, survey
from hopyard.data.preparing.prepare import prepare
from hopyard.data.preparing.survey import SPLIT_BITS, SplitCounts
from hopyard.errors import HopyardError
from hopyard.storage import LocalStore

dask = pytest.importorskip("dask")
dataframe = pytest.importorskip("dask.dataframe")

TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("half", pa.float32()),
        ("text", pa.string()),
        ("maybe", pa.int64()),
        ("pair", pa.list_(pa.float32())),
        ("list", pa.list_(pa.int64())),
        ("flag", pa.bool_()),
    ]
)
PLAIN = ["id", "half", "text", "maybe", "flag"]
"""Columns that any kind of source can hold, CSV too."""

ROWS = st.lists(
    st.tuples(
        st.integers(-5, 5),
        st.integers(-9, 9).map(lambda number: number / 2),
        st.sampled_from(["a", "b c", "é", "long enough to be of several words"]),
        st.one_of(st.none(), st.integers(0, 3)),
        st.tuples(st.sampled_from([0.0, -0.0, 1.5]), st.just(2.0)).map(list),
        st.lists(st.integers(0, 2), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


FIRST = (0, 0.5, "a", 0, [1.5, 2.0], [0], True)
"""A row without nulls and empty lists, from which sources of Python objects know what the others are."""


def as_dict(table, tmp_path, parts):
    """Arrays of NumPy where they can be, else of Arrow."""
    arrays = {"half": np.float32, "pair": np.float32, "id": np.int64, "flag": bool}
    return {
        name: np.array(table[name].to_pylist(), arrays[name]) if name in arrays else table[name]
        for name in table.column_names
    }


def as_rows(table, tmp_path, parts):
    kinds = {"half": np.float32, "pair": np.float32, "list": np.int64}
    for row in table.to_pylist():
        yield {name: np.array(value, kinds[name]) if name in kinds else value for name, value in row.items()}


def as_arrow(table, tmp_path, parts):
    return table


def as_reader(table, tmp_path, parts):
    return table.to_reader(max_chunksize=-(-len(table) // parts))


def as_polars(table, tmp_path, parts):
    return pl.from_arrow(table)


def as_pandas(table, tmp_path, parts):
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def as_parquet(table, tmp_path, parts):
    for number, (start, rows) in enumerate(pieces(table, parts)):
        pq.write_table(
            table.slice(start, rows), tmp_path / f"{number}.parquet", row_group_size=max(rows // 2, 1)
        )
    return str(tmp_path)


def as_csv(table, tmp_path, parts):
    for number, (start, rows) in enumerate(pieces(table, parts)):
        part = table.slice(start, rows)
        texts = [field.with_type(pa.string()) if field.name == "flag" else field for field in part.schema]
        part = part.cast(pa.schema(texts))
        pyarrow.csv.write_csv(part, tmp_path / f"{number}.csv")
    types = {"id": "int64", "half": "float32", "text": "text", "maybe": "int64", "flag": "bool"}
    return as_source(str(tmp_path), types={name: types[name] for name in table.column_names})


def as_dask(table, tmp_path, parts):
    return dataframe.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=parts)


def pieces(table, parts):
    step = -(-len(table) // parts)
    return [(start, min(step, len(table) - start)) for start in range(0, len(table), step)]


KINDS = [as_dict, as_rows, as_arrow, as_reader, as_polars, as_pandas, as_parquet, as_csv, as_dask]


def outcome(source, store, **arguments):
    """All that there is to compare: the error's text, or the files and what their manifests say."""
    try:
        prepared = prepare(source, store, **arguments)
    except HopyardError as error:
        return type(error), str(error).split(" in ")[0]  # where rows are null is known of some sources only
    found = [prepared.fingerprint]
    for dataset in (prepared.train, prepared.val):
        if dataset is not None:
            manifest = dataset.manifest
            files = [hashlib.sha256(dataset.store.get(entry.name)).hexdigest() for entry in manifest.files]
            found.append((manifest.files, files, manifest.statistics, manifest.schema, manifest.settings))
    return found


@given(
    rows=ROWS,
    columns=st.sampled_from([PLAIN, TYPES.names, ["list", "text"], ["pair", "half"], ["id"]]),
    kind=st.sampled_from(KINDS),
    parts=st.integers(1, 5),
    order=st.randoms(use_true_random=False),
    validation=st.one_of(st.none(), st.floats(0.05, 0.95), st.just("flag")),
    seed=st.integers(0, 9),
    nulls=st.sampled_from(["mask", "fill", "error"]),
    ragged=st.sampled_from(["keep", "pad", "error"]),
    file_bytes=st.sampled_from([40, 96 << 20]),
    memory=st.sampled_from([100, 1 << 20]),
)
def test_the_same_rows_give_the_same_dataset(
    rows, columns, kind, parts, order, validation, seed, nulls, ragged, file_bytes, memory, tmp_path_factory
):
    tmp_path = tmp_path_factory.mktemp("law")
    if kind is as_csv:
        columns = [name for name in columns if name in PLAIN] or PLAIN
    if validation == "flag" and "flag" not in columns:
        columns = [*columns, "flag"]
    schema = pa.schema([TYPES.field(name) for name in columns])
    rows = [FIRST, *rows]
    whole = pa.Table.from_pylist([dict(zip(TYPES.names, row, strict=True)) for row in rows], TYPES)
    table, shuffled = whole.select(columns).cast(schema), list(range(len(rows)))
    order.shuffle(shuffled)
    arguments = {"validation": validation, "seed": seed, "nulls": nulls, "ragged": ragged}
    (tmp_path / "source").mkdir()
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"dataframe.convert-string": False, "scheduler": "synchronous"}))
        stack.enter_context(patch("hopyard.data.preparing.files.FILE_BYTES", file_bytes))
        expected = outcome(table, LocalStore(tmp_path / "expected"), **arguments)
        stack.enter_context(patch("hopyard.data.sources.collect.MEMORY", memory))
        source = kind(table.take(shuffled), tmp_path / "source", parts)
        assert outcome(source, LocalStore(tmp_path / "store"), **arguments) == expected


@pytest.mark.long
@given(rows=ROWS, parts=st.integers(1, 5), order=st.randoms(use_true_random=False), bits=st.integers(0, 2))
def test_rows_in_one_place_are_in_the_order_of_their_bytes(rows, parts, order, bits, tmp_path_factory):
    """Where hashes of different rows collide, which they hardly ever do."""
    tmp_path = tmp_path_factory.mktemp("law")
    table = pa.Table.from_pylist([dict(zip(TYPES.names, row, strict=True)) for row in rows], TYPES)
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)

    def few(hashes, seed):
        return survey.places(hashes, seed) >> (62 - bits) << (62 - bits)

    arguments = {"validation": None, "nulls": "mask", "ragged": "keep"}
    with dask.config.set({"scheduler": "synchronous"}), patch.object(packing, "places", few):
        expected = outcome(as_dask(table, None, parts), LocalStore(tmp_path / "dask"), **arguments)
        assert outcome(table.take(shuffled), LocalStore(tmp_path / "arrow"), **arguments) == expected


def test_places_alike_in_their_first_bits_are_in_order(monkeypatch, tmp_path, files_of):
    """Sorting by 32 bits first, as it is done for speed, is sorting by all."""
    monkeypatch.setattr(packing, "places", lambda hashes, seed: survey.places(hashes, seed) >> 40)
    rows = {"id": np.arange(3000)}
    train = prepare(rows, LocalStore(tmp_path), None).train[:]["id"]
    places = survey.places(here.row_sums(as_source(rows).collect().columns)[0], 0) >> 40
    assert np.all(np.diff(places[train]) >= 0)


@given(
    distinct=st.integers(1, 3000),
    copies=st.integers(1, 40),
    share=st.floats(0.01, 0.99),
    parts=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_a_share_is_exact_where_rows_differ_whatever_the_partitions(distinct, copies, share, parts, seed):
    rng = np.random.default_rng(seed)
    numbers = np.repeat(
        rng.integers(0, 1 << SPLIT_BITS, distinct).astype(np.int32), rng.integers(1, copies + 1, distinct)
    )
    rng.shuffle(numbers)
    whole, merged = SplitCounts(share), SplitCounts(share)
    whole.add(numbers)
    for some in np.array_split(numbers, parts):
        part = SplitCounts(share)
        for piece in np.array_split(some, 2):
            part.add(piece)
        merged.merge(part)
    cut, below = whole.cut(explicit=False)
    assert merged.cut(explicit=False) == (cut, below)
    assert below == (numbers < cut).sum()
    wanted = round(len(numbers) * share)
    if copies == 1 and len(np.unique(numbers)) == distinct:
        assert below == wanted
    if 0 < wanted < len(numbers) and distinct > 1:
        assert 0 < below < len(numbers)


def test_few_numbers_are_kept_of_many_rows():
    counts = SplitCounts(0.25)
    for number in range(20):
        counts.add(np.random.default_rng(number).integers(0, 1 << SPLIT_BITS, 100_000).astype(np.int32))
    assert len(counts._near) < 20_000
    assert counts.cut(explicit=False)[1] == 500_000
