"""Ragged rows of arrays: each row so many vectors of one width, whichever way they come and go."""

import json

import dask
import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard import make_torch_dataset
from hopyard.data import NodeCache, Ragged, as_source, inspect, mix, open_dataset, prepare, verify
from hopyard.data.reading.buffers import Buffers
from hopyard.data.reading.mapped import MappedRagged
from hopyard.data.reports.columns import describe_columns
from hopyard.data.schema import Column
from hopyard.errors import DataError
from hopyard.storage import LocalStore

SHAPES = [(1,), (2,), (3,), (7,), (2, 3)]
DTYPES = ["float32", "float64", "int16", "uint8", "bool"]


@st.composite
def rows_of_vectors(draw):
    """A list of arrays (k, *shape), k from 0, and which rows are null."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    lengths = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 9, 80]), min_size=1, max_size=30))
    random = np.random.default_rng(draw(st.integers(0, 100)))
    rows = [
        random.integers(0, 2 if dtype == "bool" else 250, (length, *shape)).astype(dtype)
        for length in lengths
    ]
    missing = np.array(draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    if not any(len(row) for row, null in zip(rows, missing, strict=True) if not null):
        rows[0], missing[0] = np.ones((2, *shape), dtype), False
    return rows, missing & draw(st.booleans())


def lists(rows, missing, fixed):
    """As Arrow's lists of fixed-size lists, or of lists."""
    dtype, shape = pa.from_numpy_dtype(rows[0].dtype), rows[0].shape[1:]
    for size in reversed(shape):
        dtype = pa.list_(dtype, size) if fixed else pa.list_(dtype)
    values = [None if null else row.tolist() for row, null in zip(rows, missing, strict=True)]
    return pa.array(values, pa.list_(dtype))


def given_as(form, rows, missing):
    if form == "arrays":
        return [None if null else row for row, null in zip(rows, missing, strict=True)]
    if form == "empty arrays":  # as people write them
        return [
            None if null else row if len(row) else np.array([])
            for row, null in zip(rows, missing, strict=True)
        ]
    if form == "Ragged":
        return Ragged.from_rows(rows)
    return lists(rows, missing, form == "fixed")


def equal(batch, rows, expected, name="v"):
    assert len(batch[name]) == len(rows)
    for made, row in zip(batch[name], rows, strict=True):
        assert made.dtype == expected[row].dtype
        assert made.shape == expected[row].shape
        assert np.array_equal(made, expected[row])


@given(
    rows_of_vectors(), st.sampled_from(["arrays", "empty arrays", "Ragged", "fixed", "lists"]), st.integers(1, 7),
    st.sampled_from(["fill", "mask"]), st.integers(0, 20),
)  # fmt: skip
def test_prepared_rows_are_the_arrays_given(tmp_path_factory, drawn, form, batch, nulls, stop):
    rows, missing = drawn
    missing = missing & (form != "Ragged")
    folder = tmp_path_factory.mktemp("vectors")
    values = given_as(form, rows, missing)
    data = {"v": values, "row": np.arange(len(rows))}
    train = prepare(data, LocalStore(folder / "store"), validation=None, nulls=nulls, ragged="keep").train
    expected = [row[:0] if null else row for row, null in zip(rows, missing, strict=True)]
    if len({len(row) for row, null in zip(rows, missing, strict=True) if not null}) == 1:
        assert train.schema["v"].kind == "tensor"  # all of one length
        return
    assert (train.schema["v"].kind, train.schema["v"].shape) == ("ragged", rows[0].shape[1:])
    assert train.manifest.to_json()["format"]["flags"] == ["ragged-arrays"]
    assert verify(LocalStore(folder / "store")).ok
    seen = []
    for made in train.loader(batch, shuffle=True):
        equal(made, made["row"], expected)
        seen += made["row"].tolist()
        if nulls == "mask" and missing.any():
            assert made["v_mask"].tolist() == missing[made["row"]].tolist()
    assert sorted(seen) == list(range(len(rows)))
    for made in train.loader(batch, output="torch"):
        assert isinstance(made["v"].values, torch.Tensor)
        assert tuple(made["v"].values.shape[1:]) == rows[0].shape[1:]
        assert np.array_equal(
            made["v"].values.numpy(), np.concatenate([expected[row] for row in made["row"]])
        )
    loader = train.loader(batch, shuffle=True, seed=3)
    whole = list(loader)
    behind = min(stop, len(whole) - 1)
    first = train.loader(batch, shuffle=True, seed=3)
    iterator = iter(first)
    for _ in range(behind):
        next(iterator)
    resumed = train.loader(batch, shuffle=True, seed=3)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for made, other in zip(resumed, whole[behind:], strict=True):
        assert made["v"] == other["v"]
    again = prepare(train, LocalStore(folder / "again"), validation=None, ragged="keep").train
    assert again.schema == train.schema
    made = again[:]
    equal(made, made["row"], expected)


@given(
    rows_of_vectors(), st.booleans(), st.integers(1, 9), st.integers(1, 7), st.booleans(),
    st.lists(st.integers(0, 29), max_size=6),
)  # fmt: skip
def test_parquet_as_it_is_gives_the_arrays(tmp_path_factory, drawn, fixed, group, batch, cached, some):
    rows, missing = drawn
    folder = tmp_path_factory.mktemp("vectors")
    table = pa.table(
        {"v": lists(rows, missing, fixed), "odd": lists(rows, missing, fixed), "row": np.arange(len(rows))}
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=group)
    cache = NodeCache(folder / "cache") if cached else False
    expected = [row[:0] if null else row for row, null in zip(rows, missing, strict=True)]
    for _ in range(2):
        dataset = open_dataset(folder / "a.parquet", nulls="mask", cache=cache)
        if dataset.schema["v"].kind == "tensor":
            assert len({len(row) for row, null in zip(rows, missing, strict=True) if not null}) == 1
            return
        for shuffle in (False, True):
            for made in dataset.loader(batch, shuffle=shuffle, output="numpy", window=group * 500):
                equal(made, made["row"], expected)
                equal(made, made["row"], expected, "odd")
        taken = [row for row in some if row < len(rows)]
        equal(dataset[taken], taken, expected)
    padded = open_dataset(folder / "a.parquet", nulls="fill", ragged="pad", cache=cache)[:]
    for row, length in enumerate(padded["v_length"]):
        assert np.array_equal(padded["v"][row, :length], expected[row])
        assert not padded["v"][row, length:].any()


BOXES = [np.arange(8 * (row % 4), dtype=np.float32).reshape(-1, 4) * 2 + row for row in range(96)]


@pytest.fixture
def boxes(tmp_path):
    """Row groups of which one has only empty rows, which do not tell how wide the others are."""
    values = [*BOXES[:40], *([BOXES[0]] * 8), *BOXES[48:]]
    table = pa.table({"boxes": lists(values, np.zeros(96, bool), False), "row": np.arange(96)})
    pq.write_table(table.slice(40, 8), tmp_path / "b.parquet")
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=8)
    return tmp_path, values


def test_files_and_row_groups_of_empty_rows_follow_the_others(boxes):
    folder, values = boxes
    dataset = open_dataset([folder / "b.parquet", folder / "c.parquet"], cache=NodeCache(folder / "cache"))
    assert str(dataset.schema["boxes"]) == "boxes: float32[*, 4]"
    for made in dataset.loader(7, shuffle=True):
        equal(made, made["row"], values, "boxes")
    source = as_source(pa.table({"boxes": lists(values, np.zeros(96, bool), False)}).to_reader(8))
    assert source.collect().columns["boxes"].column.shape == (4,)
    first = pa.table({"boxes": lists(values[40:48] + values, np.zeros(104, bool), False)}).to_reader(8)
    assert as_source(first).collect().columns["boxes"].column.shape == (4,)


def test_rows_of_nothing_but_empty_lists_of_lists(tmp_path):
    table = pa.table({"v": pa.array([[], []], pa.list_(pa.list_(pa.float32())))})
    pq.write_table(table, tmp_path / "a.parquet")
    refusal = r"'v' has rows of arrays \[0\], which hold nothing\. Leave it out"
    with pytest.raises(DataError, match=refusal):
        open_dataset(tmp_path / "a.parquet")
    # No row tells how long arrays are, so they are prepared as empty lists, from every kind of source.
    prepared = prepare(table, LocalStore(tmp_path / "s"), None, ragged="keep").train
    assert str(prepared.schema["v"]) == "v: float32[*]"
    (batch,) = prepared.loader(2)
    assert batch["v"].lengths.tolist() == [0, 0]


def test_arrays_of_other_widths_are_refused(tmp_path):
    wide = [[[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0, 3.0]]]
    with pytest.raises(DataError, match="ragged in more than one dimension: pad the inner ones"):
        prepare({"v": pa.array(wide)}, LocalStore(tmp_path / "s"), None, ragged="keep")
    pq.write_table(pa.table({"v": pa.array(wide)}), tmp_path / "a.parquet", row_group_size=1)
    with pytest.raises(DataError, match="row group 2: column 'v' holds v: float64"):
        list(open_dataset(tmp_path / "a.parquet", cache=False).loader(1))


def test_they_are_in_partitions_mixtures_descriptions_and_torch_datasets(boxes):
    folder, values = boxes
    train = prepare(folder / "c.parquet", LocalStore(folder / "s"), validation=None, ragged="keep").train
    parts = train.partitions(3)
    made = [batch for part in parts for batch in part.loader(5)]
    assert sum(len(batch["row"]) for batch in made) == 96
    for batch in made:
        equal(batch, batch["row"], values, "boxes")
    for batch in mix([train, parts[0]], weights=[1, 1]).loader(9, shuffle=True):
        equal(batch, batch["row"], values, "boxes")
    assert "float32[*, 4]" in str(inspect(LocalStore(folder / "s")))
    assert {report.column.name for report in describe_columns(LocalStore(folder / "s"))} >= {"boxes", "row"}
    item = make_torch_dataset(train)[3]
    assert np.array_equal(item["boxes"], values[int(item["row"])])


def test_pandas_frames_hold_them_as_arrays_of_arrays(tmp_path):
    frame = pd.DataFrame({"boxes": BOXES, "row": np.arange(96)})
    train = prepare(frame, LocalStore(tmp_path / "s"), validation=None, ragged="keep").train
    batch = train[:]
    equal(batch, batch["row"], BOXES, "boxes")


def test_frames_of_clusters_are_prepared_to_the_same_arrays(tmp_path):
    with dask.config.set({"dataframe.convert-string": False}):
        frame = pd.DataFrame({"boxes": [box.tolist() for box in BOXES], "row": np.arange(96)})
        cluster = dask.dataframe.from_pandas(frame, npartitions=3)
        train = prepare(cluster, LocalStore(tmp_path / "s"), validation=None, ragged="keep").train
    assert str(train.schema["boxes"]) == "boxes: float64[*, 4]"
    batch = train[:]
    equal(batch, batch["row"], [box.astype("float64") for box in BOXES], "boxes")


def test_values_that_lie_at_no_multiples_of_their_width_are_gathered_all_the_same():
    values = np.arange(60, dtype=np.float32).reshape(-1, 3)
    content = np.zeros(1024, np.uint8)
    offsets, begins = np.array([0, 64]), np.array([128, 516])  # 12 bytes: 128 % 12 is 8, 516 % 12 is 0
    for number, ends in enumerate(([0, 2, 2, 10], [0, 1, 9, 10])):
        content[offsets[number] : offsets[number] + 32] = np.array(ends, np.int64).view(np.uint8)
        content[begins[number] : begins[number] + 120] = values[10 * number :][:10].reshape(-1).view(np.uint8)
    column = MappedRagged(Column("v", "ragged", "float32", (3,)), content, offsets, begins, np.array([0, 3]))
    rows, groups = np.array([5, 0, 1, 2, 4]), np.array([1, 0, 0, 0, 1])
    made = column.gather(rows + column.shift[groups], groups, Buffers())
    expected = Ragged.from_rows([values[19:20], values[:2], values[:0], values[2:10], values[11:19]])
    assert made == expected
