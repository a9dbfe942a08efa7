"""What becomes of nulls and ragged rows, and that arguments which cannot be are refused."""

import numpy as np
import pandas as pd
import pytest

from hopyard.data.opening.opening import open_dataset
from hopyard.data.preparing.prepare import prepare
from hopyard.errors import ColumnError, DataError, NullsError, UsageError
from hopyard.storage import LocalStore, MemoryStore


def with_nulls():
    return pd.DataFrame(
        {
            "i": pd.array([1, None, 3, None], "Int64"),
            "x": [0.5, 1.5, np.nan, 2.0],
            "s": ["a", None, "c", "d"],
        }
    )


def test_nulls_are_an_error_without_a_policy(store):
    text = r"column 'i' in 2 rows \(the first are rows 1, 3\); column 'x' in 1 row \(row 2\); column 's' in 1 row"
    with pytest.raises(DataError, match=text):
        prepare(with_nulls(), store)
    assert not list(store.list())


def test_nulls_are_filled_and_counted(store):
    manifest = prepare(with_nulls(), store, None, nulls="fill").train
    batch = manifest[:]
    rows = zip(batch["i"].tolist(), batch["x"].tolist(), batch["s"].tolist(), strict=True)
    assert sorted(rows) == [(0, 1.5, ""), (0, 2.0, "d"), (1, 0.5, "a"), (3, 0.0, "c")]
    assert {name: s.missing for name, s in manifest.manifest.statistics.items()} == {"i": 2, "x": 1, "s": 1}


def test_nulls_are_masked(store):
    batch = prepare(with_nulls(), store, None, nulls="mask").train[:]
    assert list(batch) == ["i", "i_mask", "x", "x_mask", "s", "s_mask"]
    assert np.array_equal(batch["i_mask"], batch["i"] == 0)
    assert np.array_equal(batch["x_mask"], batch["s"] == "c")
    assert batch["x_mask"].sum() == 1


def test_a_mask_is_there_in_both_splits_if_either_has_nulls(store):
    prepared = prepare({"x": [1, 2]}, store, val={"x": [1, None]}, nulls="mask")
    assert prepared.train.schema == prepared.val.schema
    assert not prepared.train[:]["x_mask"].any()


def test_ragged_rows_are_an_error_kept_or_padded(store):
    lists = {"x": [[1, 2, 3], [], [4], [5, 6]]}
    with pytest.raises(
        DataError, match=r"Column 'x' is ragged: its rows have 0 to 3 values. Pass ragged='pad'"
    ):
        prepare(lists, store, None)
    kept = prepare(lists, store, None, ragged="keep").train[:]["x"]
    assert kept.dtype == np.int64
    assert sorted(row.tolist() for row in kept) == sorted(lists["x"])
    padded = prepare(lists, store, None, ragged="pad").train[:]
    rows = zip(padded["x"].tolist(), padded["x_length"].tolist(), strict=True)
    assert sorted(rows) == [([0, 0, 0], 0), ([1, 2, 3], 3), ([4, 0, 0], 1), ([5, 6, 0], 2)]


def test_splits_are_padded_to_one_length(store):
    prepared = prepare({"x": [[1, 2], [3, 4]]}, store, val={"x": [[1, 2, 3], [4]]}, ragged="pad")
    assert prepared.train[:]["x"].shape == (2, 3)
    assert prepared.train[:]["x_length"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"validation": 0}, DataError, "validation=0 is not a share: it must be greater than 0 and less than 1"),
        ({"validation": 1.0}, DataError, "validation=1.0 is not a share"),
        ({"validation": True}, DataError, "validation=True is not a share"),
        ({"validation": float("nan")}, DataError, "validation=nan is not a share"),
        ({"validation": 0.001}, DataError, "validation=0.001 leaves the validation set empty \\(200 rows in all\\)"),
        ({"validation": 0.999}, DataError, "leaves the training set empty"),
        ({"validation": "lable"}, ColumnError, "Unknown validation column: 'lable'; did you mean 'label'"),
        ({"validation": "features"}, DataError, r"'features' cannot split the data: it is features: float32\[5\]"),
        ({"validation": "label", "feature_columns": "label"}, DataError, "cannot be a feature or label as well"),
        ({"feature_columns": ["feature"]}, ColumnError, "'feature'; did you mean 'features'.*are: features, label"),
        ({"nulls": "drop"}, UsageError, "nulls='drop', but it must be one of 'error', 'fill', 'mask'"),
        ({"ragged": "cut"}, UsageError, "ragged='cut', but it must be one of"),
        ({"val": {"label": [1]}}, ColumnError, "Unknown validation columns: 'features', 'id', 'text'"),
        (
            {"val": {"features": np.zeros((1, 5)), "label": [1], "id": [0], "text": ["row"]}},
            DataError,
            r"'features' is features: float32\[5\] in the training data but features: float64\[5\] in the valid",
        ),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused_before_anything_is_written(arguments, kind, text, store, data):
    with pytest.raises(kind, match=text):
        prepare(data(), store, **arguments)
    assert not list(store.list())


def test_a_split_column_with_nulls_or_one_value_is_refused(store):
    with pytest.raises(DataError, match=r"is null in 1 row \(row 1\)"):
        prepare({"x": [1, 2, 3], "s": [True, None, False]}, store, "s")
    with pytest.raises(DataError, match="leaves the validation set empty"):
        prepare({"x": [1, 2, 3], "s": [False] * 3}, store, "s")


def test_rows_of_no_size_and_names_that_collide_are_refused(store):
    with pytest.raises(DataError, match="has rows of 0 bytes"):
        prepare({"x": np.zeros((3, 0))}, store, None)
    with pytest.raises(DataError, match="columns named x_mask, which"):
        prepare({"x": [1, None], "x_mask": [1, 2]}, store, None, nulls="mask")


@pytest.mark.parametrize("nulls", ["fill", "mask"])
def test_a_policy_for_nulls_changes_nothing_of_prepared_rows_that_happen_to_have_one_length(tmp_path, nulls):
    store = LocalStore(tmp_path)
    lists = {"x": [[1], [1, 2], [3], [4, 5]], "fold": [0, 1, 0, 1]}
    prepared = prepare(lists, store, "fold", ragged="keep").train
    opened = open_dataset(store, nulls=nulls)
    assert opened.schema == prepared.schema
    assert opened.fingerprint == prepared.fingerprint
    assert opened[:]["x"].values.tolist() == prepared[:]["x"].values.tolist()


@pytest.mark.parametrize("null", [None, float("nan"), pd.NA, pd.NaT], ids=str)
@pytest.mark.parametrize("rows", [list, np.array], ids=["lists", "arrays"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_missing_list_is_null_wherever_it_stands(null, rows, place):
    values = [rows([1, 2]), rows([3]), rows([4, 5, 6])]
    values.insert(place, null)
    for data in ({"tokens": values, "id": np.arange(4)}, pd.DataFrame({"tokens": values, "id": range(4)})):
        batch = prepare(data, MemoryStore(), nulls="mask", ragged="pad", validation=None).train[:]
        assert batch["tokens"].dtype == np.int64
        found = zip(batch["id"].tolist(), batch["tokens_mask"].tolist(), batch["tokens"], strict=True)
        for number, is_null, row in found:
            assert is_null == (number == place)
            assert row[row > 0].tolist() == ([] if is_null else list(values[number]))


@pytest.mark.parametrize("rows", [list, np.array], ids=["lists", "arrays"])
def test_nan_within_lists_of_floats_is_a_number_in_every_container(rows):
    values = [rows([0.5, float("nan")]), rows([1.5])]
    for data in ({"x": values}, pd.DataFrame({"x": values}), [{"x": value} for value in values]):
        batch = prepare(data, MemoryStore(), ragged="pad", validation=None).train[:]
        found = batch["x"][np.argsort(batch["x"][:, 0])]
        np.testing.assert_array_equal(found, [[0.5, np.nan], [1.5, 0]])


def test_nan_within_lists_of_integers_is_a_null():
    with pytest.raises(DataError, match="Column 'x' has 1 null inside its lists"):
        prepare({"x": [[1, float("nan")], [2]]}, MemoryStore(), ragged="pad", validation=None)


def objects(rows):
    array = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        array[number] = row
    return array


@pytest.mark.parametrize("lengths", [(2, 2, 2, 2), (2, 3, 1, 4)], ids=["equal", "ragged"])
@pytest.mark.parametrize("container", [list, objects], ids=["list", "objects"])
def test_an_array_with_a_masked_value_is_a_null_row(store, lengths, container):
    rows = [np.ma.masked_array(np.arange(n) + 1.0, np.arange(n) == 1) for n in lengths]
    rows[2:] = (np.ma.masked_array(row.data, np.zeros(len(row), bool)) for row in rows[2:])
    masked = [np.ma.is_masked(row) for row in rows]
    assert masked == [True, True, False, False]
    with pytest.raises(NullsError, match=r"column 'x' in 2 rows \(the first are rows 0, 1\)"):
        prepare({"x": container(rows)}, store, None, ragged="keep")
    batch = prepare(
        {"x": container(rows), "id": [0, 1, 2, 3]}, store, None, ragged="keep", nulls="mask"
    ).train[:]
    assert dict(zip(batch["id"].tolist(), batch["x_mask"].tolist(), strict=True)) == dict(enumerate(masked))
    by_id = {
        int(number): np.asarray(row).tolist() for number, row in zip(batch["id"], batch["x"], strict=True)
    }
    null = [0.0, 0.0] if len(set(lengths)) == 1 else []
    assert by_id == {0: null, 1: null, 2: rows[2].tolist(), 3: rows[3].tolist()}
    nothing_else = np.ma.masked_array([1.0, 2.0], [True, True])
    empty = prepare({"x": [nothing_else, nothing_else]}, store, None, nulls="mask").train[:]
    assert empty["x_mask"].all()


@pytest.mark.parametrize("rows", [9, 40, 41])
def test_a_share_that_is_rounded_to_whole_rows_is_no_surprise(store, rows, caplog):
    prepare({"x": np.arange(rows)}, store, validation=0.25)
    assert "was asked for, but" not in caplog.text
