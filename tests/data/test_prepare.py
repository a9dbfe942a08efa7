"""Preparation: complete, seeded, found again, refused with reasons, and never half-believed."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.data.order import permutation
from hopyard.data.prepare import peek, prepare
from hopyard.data.ragged import Ragged
from hopyard.data.schema import TENSOR_DTYPES
from hopyard.data.sources import as_source
from hopyard.errors import ColumnError, DataError, FormatError, SettingsError, StorageFullError, UsageError
from hopyard.storage import LocalStore, MemoryStore
from hopyard.storage.faults import Fault, FaultyStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store")


def data(rows=200):
    rng = np.random.default_rng(0)
    return {
        "features": rng.random((rows, 5), np.float32),
        "label": rng.integers(0, 3, rows),
        "id": np.arange(rows),
        "text": [f"row {i}" for i in range(rows)],
    }


def files_of(store):
    return {e.name: store.get(e.name) for e in store.list() if e.name.endswith(".parquet")}


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


@settings(max_examples=40)
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
    order = permutation(rows, seed)
    count = round(rows * share)
    for dataset, expected in ((prepared.val, order[:count]), (prepared.train, order[count:])):
        batch = dataset[:]
        for name, values in arrays.items():
            np.testing.assert_array_equal(batch[name], values[expected])
            assert batch[name].dtype == values.dtype
    assert len(prepared.train) + len(prepared.val) == rows


@pytest.mark.parametrize("form", ["rows", "reader", "parquet", "pandas"])
def test_the_files_do_not_depend_on_the_form_of_the_data_or_on_memory(form, tmp_path, monkeypatch):
    given_data = data()
    frame = pd.DataFrame({**given_data, "features": list(given_data["features"])})
    expected = LocalStore(tmp_path / "expected")
    fingerprint = prepare(given_data, expected).fingerprint
    monkeypatch.setattr("hopyard.data.collect.MEMORY", 500)
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


def test_the_same_data_and_arguments_are_found_again(store):
    first = prepare(data(), store)
    again = prepare(data(), store)
    assert (first.reused, again.reused) == (False, True)
    assert again.fingerprint == first.fingerprint == again.train.fingerprint
    assert again.train.manifest == first.train.manifest
    for change in ({"seed": 1}, {"validation": 0.5}, {"validation": None}, {"label_columns": "label"}):
        assert not prepare(data(), store, **change).reused
        assert prepare(data(), store, **change).reused


def test_a_one_shot_source_is_found_again_once_it_is_read(store):
    prepare(data(), store)
    rows = ({name: values[i] for name, values in data().items()} for i in range(200))
    assert prepare(rows, store).reused


def test_a_memory_store_holds_datasets_too():
    store = MemoryStore()
    prepared = prepare(data(), store)
    assert sorted(np.concatenate([prepared.train[:]["id"], prepared.val[:]["id"]]).tolist()) == list(
        range(200)
    )


def test_a_column_splits_and_is_dropped(store):
    flags = np.arange(200) % 5 == 0
    for column in (flags, flags.astype(np.int64) * 7, np.where(flags, 1, -1)):
        prepared = prepare({**data(), "split": column}, store, "split")
        assert sorted(prepared.val[:]["id"].tolist()) == list(range(0, 200, 5))
        assert "split" not in prepared.train.schema
        assert len(prepared.train) == 160


def test_an_explicit_validation_set_keeps_to_itself(store):
    for prepared in (prepare(data(), store, val=data(40)), prepare(data(), store, data(40))):
        assert sorted(prepared.train[:]["id"].tolist()) == list(range(200))
        assert sorted(prepared.val[:]["id"].tolist()) == list(range(40))


def test_only_named_columns_are_kept_in_the_order_of_the_data(store):
    prepared = prepare(data(), store, feature_columns=["label", "features"], label_columns="id")
    assert prepared.train.schema.names == ["features", "label", "id"]
    assert prepared.train.manifest.settings["label_columns"] == ["id"]


def test_no_validation_set(store):
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


def with_nulls():
    return pd.DataFrame(
        {
            "i": pd.array([1, None, 3, None], "Int64"),
            "x": [0.5, 1.5, np.nan, 2.0],
            "s": ["a", None, "c", "d"],
        }
    )


def test_nulls_are_an_error_without_a_policy(store):
    text = (
        r"column 'i' has 2 \(the first in row 1\); column 'x' has 1 \(the first in row 2\); column 's' has 1"
    )
    with pytest.raises(DataError, match=text):
        prepare(with_nulls(), store)
    assert not list(store.list())


def test_nulls_are_filled_and_counted(store):
    manifest = prepare(with_nulls(), store, None, nulls="fill").train
    batch = manifest[:]
    rows = np.argsort(permutation(4, 0))
    assert batch["i"][rows].tolist() == [1, 0, 3, 0]
    assert batch["x"][rows].tolist() == [0.5, 1.5, 0.0, 2.0]
    assert batch["s"][rows].tolist() == ["a", "", "c", "d"]
    assert {name: s.missing for name, s in manifest.manifest.statistics.items()} == {"i": 2, "x": 1, "s": 1}


def test_nulls_are_masked(store):
    batch = prepare(with_nulls(), store, None, nulls="mask").train[:]
    rows = np.argsort(permutation(4, 0))
    assert list(batch) == ["i", "i_mask", "x", "x_mask", "s", "s_mask"]
    assert batch["i_mask"][rows].tolist() == [False, True, False, True]
    assert batch["x_mask"][rows].tolist() == [False, False, True, False]


def test_a_mask_is_there_in_both_splits_if_either_has_nulls(store):
    prepared = prepare({"x": [1, 2]}, store, val={"x": [1, None]}, nulls="mask")
    assert prepared.train.schema == prepared.val.schema
    assert not prepared.train[:]["x_mask"].any()


def test_ragged_rows_are_an_error_kept_or_padded(store):
    lists = {"x": [[1, 2, 3], [], [4], [5, 6]]}
    order = permutation(4, 0)
    with pytest.raises(
        DataError, match=r"Column 'x' is ragged: its rows have 0 to 3 values. Pass ragged='pad'"
    ):
        prepare(lists, store, None)
    kept = prepare(lists, store, None, ragged="keep").train[:]["x"]
    assert kept == Ragged.from_rows([lists["x"][i] for i in order], np.int64)
    padded = prepare(lists, store, None, ragged="pad").train[:]
    expected = np.array([[1, 2, 3], [0, 0, 0], [4, 0, 0], [5, 6, 0]])
    np.testing.assert_array_equal(padded["x"], expected[order])
    np.testing.assert_array_equal(padded["x_length"], np.array([3, 0, 1, 2])[order])


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
        ({"nulls": "drop"}, UsageError, "nulls='drop' is unknown; it must be one of 'error', 'fill', 'mask'"),
        ({"ragged": "cut"}, UsageError, "ragged='cut' is unknown"),
        ({"val": {"label": [1]}}, ColumnError, "Unknown validation columns: 'features', 'id', 'text'"),
        (
            {"val": {**data(), "features": np.zeros((200, 5))}},
            DataError,
            r"'features' is features: float32\[5\] in the training data but features: float64\[5\] in the valid",
        ),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused_before_anything_is_written(arguments, kind, text, store):
    with pytest.raises(kind, match=text):
        prepare(data(), store, **arguments)
    assert not list(store.list())


def test_a_split_column_with_nulls_or_one_value_is_refused(store):
    with pytest.raises(DataError, match=r"is null in 1 rows \(the first is row 1\)"):
        prepare({"x": [1, 2, 3], "s": [True, None, False]}, store, "s")
    with pytest.raises(DataError, match="leaves the validation set empty"):
        prepare({"x": [1, 2, 3], "s": [False] * 3}, store, "s")


def test_rows_of_no_size_and_names_that_collide_are_refused(store):
    with pytest.raises(DataError, match="has rows of 0 bytes"):
        prepare({"x": np.zeros((3, 0))}, store, None)
    with pytest.raises(DataError, match="columns named x_mask, which"):
        prepare({"x": [1, None], "x_mask": [1, 2]}, store, None, nulls="mask")


def test_an_explicit_path_holds_one_dataset(tmp_path):
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


def test_a_manifest_of_a_newer_format_is_refused(store):
    fingerprint = prepare(data(), store).fingerprint
    name = f"train_data/{fingerprint}/manifest.json"
    fields = json.loads(store.get(name))
    fields["format"].update(version=99, hopyard="9.9.9")
    store.put(name, json.dumps(fields).encode())
    with pytest.raises(FormatError, match=r"pip install 'hopyard>=9.9.9'"):
        prepare(data(), store)


def test_progress_is_told(store):
    told = []
    prepare(data(), store, progress=lambda done, total: told.append((done, total)))
    assert told == [(50, 200), (200, 200)]


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


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_prepare import data
from hopyard.data.prepare import prepare
from hopyard.storage import LocalStore
from hopyard.storage.faults import Fault, FaultyStore
prepare(data(), FaultyStore(LocalStore({path!r}), Fault({action!r}, at={at})))
"""


@pytest.mark.parametrize(
    ("action", "at"), [("kill_before", 1), ("kill_after", 1), ("kill_after", 2), ("kill_after", 3)]
)
def test_a_killed_preparation_is_done_again_with_the_same_files(action, at, tmp_path):
    expected = LocalStore(tmp_path / "expected")
    fingerprint = prepare(data(), expected).fingerprint
    path = tmp_path / "killed"
    program = KILLED.format(tests=str(Path(__file__).parent), path=str(path), action=action, at=at)
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    store = LocalStore(path)
    again = prepare(data(), store)
    assert not again.reused, "the training manifest is the last write"
    assert again.fingerprint == fingerprint
    assert files_of(store) == files_of(expected)
    assert prepare(data(), store).reused


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_full_store_is_said_and_leaves_nothing_believed(at, tmp_path):
    store = FaultyStore(LocalStore(tmp_path / "s"), Fault("full", at=at))
    with pytest.raises(StorageFullError, match="injected"):
        prepare(data(), store)
    again = prepare(data(), store)
    assert not again.reused
    assert len(again.train) == 150


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_full_store_pauses_the_preparation_if_it_may_wait(at, tmp_path):
    expected = LocalStore(tmp_path / "expected")
    prepare(data(), expected)
    room = tmp_path / "room"
    inner = LocalStore(tmp_path / "s")
    store = FaultyStore(inner, Fault("full", at=at, times=100, until=room))
    said = []

    def make_room(seconds):
        room.touch()
        return False

    prepare(data(), store, wait=make_room, announce=said.append)
    assert len(said) == 1
    assert "paused" in said[0]
    assert files_of(inner) == files_of(expected)


def test_a_lost_file_is_written_again(store):
    first = prepare(data(), store)
    files = files_of(store)
    store.delete(f"train_data/{first.fingerprint}/{first.train.manifest.files[0].name}")
    again = prepare(data(), store)
    assert not again.reused
    assert again.train.manifest == first.train.manifest
    assert files_of(store) == files


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_is_full_while_a_file_is_written_pauses_the_preparation(tmp_path, monkeypatch):
    staging = tmp_path / "staging"

    def with_a_full_device(**arguments):
        staging.mkdir()
        (staging / "0.parquet").symlink_to("/dev/full")  # the first attempt writes here, and removes it
        return str(staging)

    monkeypatch.setattr("hopyard.data.write.tempfile.mkdtemp", with_a_full_device)
    with pytest.raises(
        StorageFullError, match=r"No space is left in .*staging to write rows 0 and following"
    ):
        prepare(data(), MemoryStore(), None)
    assert not staging.exists()
    said = []
    prepared = prepare(data(), MemoryStore(), None, wait=lambda seconds: False, announce=said.append)
    assert len(said) == 1
    assert len(prepared.train) == 200


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_is_full_while_rows_are_spooled_is_said(store, monkeypatch):
    monkeypatch.setattr("hopyard.data.collect.MEMORY", 100)
    monkeypatch.setattr(
        "hopyard.data.collect.tempfile.TemporaryFile",
        lambda **arguments: Path("/dev/full").open("r+b", buffering=0),  # noqa: SIM115
    )
    with pytest.raises(StorageFullError, match="for the rows of a source that is read once"):
        prepare(({"x": i} for i in range(200)), store)
    assert not list(store.list())


def test_two_preparations_at_once_agree(tmp_path):
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
