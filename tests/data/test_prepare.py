"""Preparation: complete, seeded, found again, refused with reasons, and never half-believed."""

import json
import re
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import open_dataset
from hopyard.data.manifest import MANIFEST_DOMAIN
from hopyard.data.preparing.files import group_size
from hopyard.data.preparing.prepare import peek, prepare
from hopyard.data.schema import TENSOR_DTYPES
from hopyard.data.sources.sources import as_source
from hopyard.errors import DataError, FormatError, SettingsError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.storage import LocalStore, MemoryStore


def as_rows(arrays):
    return ({name: values[i] for name, values in arrays.items()} for i in range(len(arrays["id"])))


def as_table(arrays):
    return pa.table({name: nested(values) for name, values in arrays.items()})


def nested(values):
    """An Arrow array of fixed-size lists of lists."""
    array = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


@given(
    form=st.sampled_from(
        [dict, as_table, lambda arrays: as_table(arrays).to_reader(max_chunksize=7), as_rows]
    ),
    rows=st.integers(2, 60),
    columns=st.lists(
        st.tuples(st.sampled_from(TENSOR_DTYPES), st.lists(st.integers(1, 3), max_size=3)), max_size=4
    ),
    share=st.floats(0.3, 0.7),
    seed=st.integers(0, 2**70),
)
def test_every_row_is_in_one_split_once_and_whole(form, rows, columns, share, seed, tmp_path_factory):
    rng = np.random.default_rng(0)
    arrays = {"id": np.arange(rows)}
    for i, (dtype, shape) in enumerate(columns):
        arrays[f"c{i}"] = rng.integers(0, 2, (rows, *shape)).astype(dtype)
    prepared = prepare(form(arrays), LocalStore(tmp_path_factory.mktemp("s")), share, seed=seed)
    assert len(prepared.val) == round(rows * share)
    batches = [prepared.val[:], prepared.train[:]]
    assert sorted(np.concatenate([batch["id"] for batch in batches])) == list(range(rows))
    for batch in batches:
        for name, values in arrays.items():
            np.testing.assert_array_equal(batch[name], values[batch["id"]])
            assert batch[name].dtype == values.dtype


@pytest.mark.long
@given(few=st.integers(2, 30), copies=st.integers(1, 6), share=st.floats(0.1, 0.9), seed=st.integers(0, 99))
def test_equal_rows_are_on_one_side_of_a_share(few, copies, share, seed, tmp_path_factory):
    rows = {"x": np.arange(few) * 0.5, "word": np.array([f"w{i % 3}" for i in range(few)], object)}
    if not 0 < round(few * copies * share) < few * copies:
        return
    data = {name: np.tile(values, copies) for name, values in rows.items()}
    prepared = prepare(data, LocalStore(tmp_path_factory.mktemp("s")), share, seed=seed)
    train, val = prepared.train[:]["x"], prepared.val[:]["x"]
    assert not set(train) & set(val)
    assert sorted([*train, *val]) == sorted(data["x"])
    assert abs(len(val) - few * copies * share) <= max(copies, 1)


@pytest.mark.parametrize("form", ["rows", "reader", "parquet", "pandas"])
def test_the_files_do_not_depend_on_the_form_of_the_data_or_on_memory(
    form, tmp_path, monkeypatch, data, files_of
):
    given_data = data()
    frame = pd.DataFrame({**given_data, "features": list(given_data["features"])})
    expected = LocalStore(tmp_path / "expected")
    fingerprint = prepare(given_data, expected).fingerprint
    monkeypatch.setattr("hopyard.data.sources.collect.MEMORY", 500)
    if form == "rows":
        given_data = ({name: values[i] for name, values in data().items()} for i in range(200))
    elif form == "reader":
        given_data = pa.Table.from_pandas(frame, preserve_index=False).to_reader(max_chunksize=7)
    elif form == "parquet":
        frame.to_parquet(tmp_path / "t.parquet", index=False)
        given_data = tmp_path / "t.parquet"
    else:
        given_data = frame
    store = LocalStore(tmp_path / "store")
    assert prepare(given_data, store).fingerprint == fingerprint
    assert files_of(store) == files_of(expected)
    left = [
        p for p in (tmp_path / "store").rglob("*") if p.is_file() and p.suffix not in (".parquet", ".json")
    ]
    assert not left


def test_the_same_data_and_arguments_are_found_again(store, data):
    first = prepare(data(), store)
    again = prepare(data(), store)
    assert (first.reused, again.reused) == (False, True)
    assert again.fingerprint == first.fingerprint == again.train.fingerprint
    assert again.train.manifest == first.train.manifest
    for change in ({"seed": 1}, {"validation": 0.5}, {"validation": None}, {"label_columns": "label"}):
        assert not prepare(data(), store, **change).reused
        assert prepare(data(), store, **change).reused


def test_a_one_shot_source_is_found_again_once_it_is_read(store, data):
    prepare(data(), store)
    rows = ({name: values[i] for name, values in data().items()} for i in range(200))
    assert prepare(rows, store).reused


def test_a_memory_store_holds_datasets_too(data):
    store = MemoryStore()
    prepared = prepare(data(), store)
    assert sorted(np.concatenate([prepared.train[:]["id"], prepared.val[:]["id"]]).tolist()) == list(
        range(200)
    )


def test_a_column_splits_and_is_dropped(store, data):
    flags = np.arange(200) % 5 == 0
    for column in (flags, flags.astype(np.int64) * 7, np.where(flags, 1, -1)):
        prepared = prepare({**data(), "split": column}, store, "split")
        assert sorted(prepared.val[:]["id"].tolist()) == list(range(0, 200, 5))
        assert "split" not in prepared.train.schema
        assert len(prepared.train) == 160


def test_an_explicit_validation_set_keeps_to_itself(store, data):
    for prepared in (prepare(data(), store, val=data(40)), prepare(data(), store, data(40))):
        assert sorted(prepared.train[:]["id"].tolist()) == list(range(200))
        assert sorted(prepared.val[:]["id"].tolist()) == list(range(40))


def test_only_named_columns_are_kept_in_the_order_of_the_data(store, data):
    prepared = prepare(data(), store, feature_columns=["label", "features"], label_columns="id")
    assert prepared.train.schema.names == ["features", "label", "id"]
    assert prepared.train.manifest.settings["label_columns"] == ["id"]


def test_no_validation_set(store, data):
    prepared = prepare(data(), store, None)
    assert prepared.val is None
    assert len(prepared.train) == 200


def test_statistics_are_those_of_the_split(store):
    x = np.array([1.0, 3.0, np.nan, np.inf, -2.0])
    manifest = prepare({"x": x, "k": [3, 1, 3, 1, 1], "s": list("aabba")}, store, None).train.manifest
    found = manifest.statistics["x"]
    assert (found.min, found.max, found.not_finite) == (-2.0, 3.0, 2)
    finite = np.array([1.0, 3.0, -2.0])
    assert found.mean == pytest.approx(finite.mean())
    assert found.std == pytest.approx(finite.std())
    assert manifest.statistics["k"].distinct == (1, 3)
    assert manifest.statistics["s"].distinct == ("a", "b")


def test_statistics_of_many_groups_are_those_of_all_rows(store):
    rng = np.random.default_rng(0)
    x = (rng.random((5000, 40)) * 1e-3 + 1e3).astype(np.float32)
    found = prepare({"x": x}, store, None).train.manifest.statistics["x"]
    wide = x.astype(np.float64)
    assert found.mean == pytest.approx(wide.mean(), rel=1e-12)
    assert found.std == pytest.approx(wide.std(), rel=1e-9)


def test_an_explicit_path_holds_one_dataset(tmp_path, data):
    store = LocalStore(tmp_path / "store", train_path=str(tmp_path / "train"))
    prepare(data(), store)
    assert (tmp_path / "train" / "manifest.json").is_file()
    assert prepare(data(), store).reused
    with pytest.raises(
        SettingsError, match=r"holds another train dataset \(150 rows.*seed 0 there, 1 asked.*prefix"
    ):
        prepare(data(), store, seed=1)
    with pytest.raises(SettingsError, match="what differs: the rows themselves"):
        prepare(data(160), store)


def test_a_store_may_have_places_for_data_and_nothing_else(tmp_path, data):
    store = LocalStore(train_path=str(tmp_path / "train"), val_path=str(tmp_path / "val"))
    found = prepare(data(), store)
    assert {each.name for each in tmp_path.iterdir()} == {"train", "val"}
    assert prepare(data(), store).fingerprint == found.fingerprint
    assert prepare(data(), store).reused


def test_a_manifest_of_a_newer_format_is_refused(store, data):
    fingerprint = prepare(data(), store).fingerprint
    name = f"train_data/{fingerprint}/manifest.json"
    fields = json.loads(store.get(name))
    fields["format"].update(version=99, hopyard="9.9.9")
    del fields["digest"]
    fields["digest"] = digest_json(fields, MANIFEST_DOMAIN)
    store.put(name, json.dumps(fields).encode())
    with pytest.raises(FormatError, match=r"pip install 'hopyard>=9.9.9'"):
        prepare(data(), store)


def test_progress_is_told(store, data):
    told = []
    prepare(data(), store, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 200)
    assert told[-1] == (200, 200)
    assert told == sorted(told)


def test_both_passes_are_watched(store, tmp_path):
    pd.DataFrame({"x": np.arange(70_000)}).to_parquet(tmp_path / "x.parquet", row_group_size=30_000)
    told = []
    source = as_source(tmp_path / "x.parquet")
    prepare(source, store, 0.3, watch=lambda *state: told.append(state))
    reading = [(done, total) for phase, done, total in told if phase == "reading"]
    assert reading == [(30_000, 70_000), (60_000, 70_000), (70_000, 70_000)]
    written = [done for phase, done, _ in told if phase == "writing"]
    assert written == sorted(set(written))
    assert {total for *_, total in told} == {70_000}
    assert len(written) == 49, "the begin, and row groups of both splits"
    assert written[-1] == 70_000
    assert source.watch is None


def test_the_number_of_rows_to_read_may_be_unknown(store):
    told = []
    prepare(({"x": i} for i in range(10)), store, watch=lambda *state: told.append(state))
    assert told[0] == ("reading", 10, None)
    assert told[-1] == ("writing", 10, 10)


def test_peeked_rows_are_as_prepared_and_go_on_into_preparation(store):
    rows = as_source({"x": [i, i], "y": None if i == 1 else i, "s": i % 2} for i in range(10))
    batch = peek(rows, 3, validation="s", nulls="mask")
    assert {name: values.tolist() for name, values in batch.items()} == {
        "x": [[0, 0], [1, 1], [2, 2]],
        "y": [0, 0, 2],
        "y_mask": [False, True, False],
    }
    prepared = prepare(rows, store, "s", nulls="mask")
    assert len(prepared.train) == len(prepared.val) == 5


def test_two_preparations_at_once_agree(tmp_path, data):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(prepare(data(), LocalStore(tmp_path))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.fingerprint for result in results}) == 1
    assert results[0].train.manifest == results[1].train.manifest
    assert len(list(LocalStore(tmp_path).list())) == 4


def test_row_groups_are_sized_by_padded_rows_not_by_those_of_the_source(store, monkeypatch):
    monkeypatch.setattr(
        "hopyard.data.preparing.files.group_size", lambda rows, width: group_size(rows, width, 16 << 10)
    )
    lists = [[1]] * 999 + [[1] * 200]
    prepared = prepare({"x": lists}, store, None, ragged="pad")
    assert max(prepared.train.group_rows) * 200 * 8 <= 16 << 10
    assert prepared.train[:]["x"].sum() == 1199


@pytest.mark.parametrize("form", [dict, lambda arrays: pa.table(arrays).to_pylist()], ids=["arrays", "rows"])
def test_peeked_rows_have_the_columns_and_widths_that_later_rows_ask_for(form, store):
    source = as_source(form({"x": [[1, 2]] * 10 + [[1, 2, 3, 4]] * 10, "y": [1] * 19 + [None]}))
    source.fingerprint()
    batch = peek(source, 4, nulls="mask", ragged="pad")
    whole = prepare(source, store, None, nulls="mask", ragged="pad").train
    assert {name: (v.dtype, v.shape[1:]) for name, v in batch.items()} == {
        name: (v.dtype, v.shape[1:]) for name, v in whole[:].items()
    }
    assert batch["x"].tolist() == [[1, 2, 0, 0]] * 4


def frame_of(numbers):
    return {
        "x": np.asarray(numbers, float),
        "label": np.asarray(numbers) % 2,
        "name": [f"n{n}" for n in numbers],
    }


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pa.table])
def test_rows_that_both_frames_have_are_counted(tmp_path, caplog, kind):
    train, val = frame_of(range(40)), frame_of([50, 3, 51, 39, 3])
    val = {name: val[name] for name in ("name", "label", "x")}  # in whatever order
    prepare(kind(train), LocalStore(tmp_path), val=kind(val))
    assert (
        "3 of the 5 rows of the validation set are equal to rows for training in all columns" in caplog.text
    )
    caplog.clear()
    prepare(kind(train), LocalStore(tmp_path), val=kind(frame_of([40, 41])))
    assert "equal to rows for training" not in caplog.text


def test_files_that_both_sets_have_rows_of_are_counted(tmp_path, caplog):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(frame_of(range(40))), path, row_group_size=7)
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    every, copied = open_dataset(path), open_dataset(tmp_path / "copy.parquet")
    assert every.common_rows(every) == copied.common_rows(every) == 40
    low, high = (open_dataset(path, filters=[("x", *rule)]) for rule in (("<", 25), (">=", 20)))
    assert low.common_rows(high) == high.common_rows(low) == 5
    assert low.common_rows(open_dataset(path, filters=[("x", ">=", 25)])) == 0
    first, second = every.partitions(2)
    assert first.common_rows(second) == 0
    assert first.common_rows(low) == sum(first[:]["x"] < 25)


def test_a_dataset_of_some_rows(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(frame_of(range(40))), path, row_group_size=7)
    rng = np.random.default_rng(0)
    for dataset in (open_dataset(path), open_dataset(path, filters=[("x", ">", 9)])):
        mask = rng.random(len(dataset)) < 0.3
        some = dataset.rows_where(mask)
        assert some[:]["name"].tolist() == dataset[:]["name"][mask].tolist()
        rest = dataset.rows_where(~mask)
        assert (some.common_rows(rest), len(some) + len(rest)) == (0, len(dataset))
        assert len({each.fingerprint for each in (dataset, some, rest)}) == 3
        again = some.rows_where(np.arange(len(some)) > 2)
        assert again[:]["x"].tolist() == some[:]["x"][3:].tolist()


@pytest.mark.parametrize("seed", [1.5, None, True, "7"])
def test_a_seed_that_is_no_integer_is_refused_before_data_is_read(seed, tmp_path):
    with pytest.raises(UsageError, match=re.escape(f"seed={seed!r}, but it must be an integer.")):
        prepare({"a": np.arange(8.0)}, tmp_path, seed=seed)
    assert not list(tmp_path.iterdir())


def test_a_seed_of_numpy_is_the_same_seed(tmp_path):
    data = {"a": np.arange(8.0)}
    assert (
        prepare(data, tmp_path / "a", seed=np.int64(3)).fingerprint
        == prepare(data, tmp_path / "b", seed=3).fingerprint
    )


def test_times_and_numbers_are_not_mixed(tmp_path):
    """Neither between the sets nor between files; columns of nothing but nulls are of either kind."""
    times = pa.table({"at": pa.array([1_700_000_000_000_000 + row for row in range(9)], pa.timestamp("us"))})
    numbers = pa.table({"at": np.arange(1_700_000_000, 1_700_000_005)})
    nulls = pa.table({"at": pa.array([None] * 3, pa.int64())})
    text = r"'at' holds dates, times or durations in some rows and numbers in others, .* Give all as one kind; pandas"
    with pytest.raises(DataError, match=text):
        prepare(times, LocalStore(tmp_path / "s"), val=numbers)
    for name, table in (("a", times), ("b", numbers)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=text):
        prepare([tmp_path / "b.parquet", tmp_path / "a.parquet"], LocalStore(tmp_path / "s"), None)
    for table in (times, numbers):
        prepared = prepare(table, LocalStore(tmp_path / "t"), val=nulls, nulls="fill")
        assert (prepared.train.policies.times == {"at"}) == (table is times)
