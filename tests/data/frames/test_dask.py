"""Frames of Dask, on which the rules that all engines share are tested; the other engines write the same files."""

import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import by_level

from hopyard.backend import InlineBackend
from hopyard.data import Ragged, as_source, prepare
from hopyard.data.preparing.files import SplitFiles
from hopyard.data.preparing.prepare import peek
from hopyard.data.sources.clusters import is_frame
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.storage import LocalStore, MemoryStore

dask = pytest.importorskip("dask")
dataframe = pytest.importorskip("dask.dataframe")


@pytest.fixture(autouse=True)
def _lists_stay_lists():
    with dask.config.set({"dataframe.convert-string": False, "scheduler": "synchronous"}):
        yield


def frame(rows=200):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "features": list(rng.random((rows, 5), np.float32)),
            "label": rng.integers(0, 3, rows),
            "id": np.arange(rows),
            "text": [f"row {i}" for i in range(rows)],
        }
    )


def of(data, partitions=3):
    return dataframe.from_pandas(data, npartitions=partitions)


def ids(prepared):
    val = [] if prepared.val is None else prepared.val[:]["id"].tolist()
    return prepared.train[:]["id"].tolist(), val


@pytest.mark.long
@given(
    rows=st.integers(2, 80),
    partitions=st.integers(1, by_level(4, 4, 7)),
    share=st.floats(0.3, 0.7),
    seed=st.integers(0, 2**70),
)
def test_every_row_is_in_one_split_once_and_whole(rows, partitions, share, seed, tmp_path_factory):
    data = frame(rows)
    prepared = prepare(of(data, partitions), LocalStore(tmp_path_factory.mktemp("s")), share, seed=seed)
    train, val = ids(prepared)
    assert sorted(train + val) == list(range(rows))
    assert abs(len(val) - rows * share) <= 1
    for dataset in (prepared.train, prepared.val):
        batch = dataset[:]
        expected = data.iloc[batch["id"]]
        np.testing.assert_array_equal(batch["features"], np.stack(expected["features"]))
        assert batch["features"].dtype == np.float32
        assert batch["text"].tolist() == expected["text"].tolist()


def test_files_do_not_depend_on_partitions_or_the_order_of_rows(tmp_path, files_of):
    stores = [LocalStore(tmp_path / str(number)) for number in range(3)]
    shuffled = frame().sample(frac=1, random_state=1)
    given_frames = [of(frame(), 1), of(frame(), 7), of(shuffled, 4)]
    prints = {prepare(data, store).fingerprint for data, store in zip(given_frames, stores, strict=True)}
    assert len(prints) == 1
    assert files_of(stores[0]) == files_of(stores[1]) == files_of(stores[2])


@pytest.mark.long
def test_the_same_rows_and_arguments_are_found_again(store):
    assert [prepare(of(frame(), n), store).reused for n in (3, 4)] == [False, True]
    for change in ({"seed": 1}, {"validation": 0.5}, {"validation": None}, {"feature_columns": "id"}):
        assert not prepare(of(frame()), store, **change).reused
        assert prepare(of(frame()), store, **change).reused


def test_another_seed_gives_another_order_and_split(tmp_path):
    one, two = (ids(prepare(of(frame()), LocalStore(tmp_path / str(seed)), seed=seed)) for seed in (0, 1))
    assert sorted(one[1]) != sorted(two[1])
    assert one[0] != sorted(one[0])


def test_a_column_splits_and_is_dropped(store):
    data = frame().assign(split=lambda rows: rows["id"] % 5 == 0)
    prepared = prepare(of(data), store, "split")
    assert sorted(ids(prepared)[1]) == list(range(0, 200, 5))
    assert prepared.train.schema.names == ["features", "label", "id", "text"]
    other = frame().assign(split=lambda rows: rows["id"] % 5 == 1)
    assert prepare(of(other), store, "split").fingerprint != prepared.fingerprint


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (lambda rows: rows["text"], "Column 'split' cannot split the data: it is split: string"),
        (lambda rows: rows["id"] * 0, "validation='split' leaves the validation set empty"),
        (
            lambda rows: pd.array([None, *rows["id"][1:]], "Int64"),
            "Column 'split' splits the data but is null in 1 row. Say for every row",
        ),
    ],
)
def test_a_column_that_cannot_split_is_refused(column, text, store):
    with pytest.raises(DataError, match=text):
        prepare(of(frame().assign(split=column)), store, "split")
    assert not list(store.list())


def test_a_second_frame_is_the_validation_set(store):
    prepared = prepare(of(frame()), store, of(frame(40)))
    assert [sorted(each) for each in ids(prepared)] == [list(range(200)), list(range(40))]
    with pytest.raises(
        UsageError, match="a frame of Dask, the validation data of this process; both must be"
    ):
        prepare(of(frame()), store, val=frame(40))
    wide = frame(40).assign(label=lambda rows: rows["label"] * 0.5)
    with pytest.raises(DataError, match="'label' is label: int64 in the training data but label: float64"):
        prepare(of(frame()), store, val=of(wide))
    with pytest.raises(ColumnError, match="Unknown validation column: 'text'"):
        prepare(of(frame()), store, val=of(frame(40).drop(columns="text")))


def test_nulls_by_policy(tmp_path):
    data = frame()
    data["x"] = np.where(data["id"] % 10 == 0, np.nan, data["id"])
    data["text"] = data["text"].where(data["id"] % 50 != 1, None)
    with pytest.raises(
        DataError, match=r"There are null values: column 'text' in 4 rows; column 'x' in 20 rows. Remove"
    ):
        prepare(of(data), LocalStore(tmp_path))
    filled = prepare(of(data), LocalStore(tmp_path / "fill"), None, nulls="fill").train
    assert filled.manifest.statistics["x"].missing == 20
    masked = prepare(of(data), LocalStore(tmp_path / "mask"), None, nulls="mask").train
    assert masked.schema.names == ["features", "label", "id", "text", "text_mask", "x", "x_mask"]
    batch = masked[:]
    assert np.array_equal(batch["x_mask"], batch["id"] % 10 == 0)
    assert np.array_equal(batch["x"], np.where(batch["x_mask"], 0, batch["id"]))
    assert (batch["text"][batch["text_mask"]] == "").all()


def test_ragged_lists_by_policy(tmp_path):
    data = frame(60)
    data["list"] = [list(range(i % 4)) for i in range(60)]
    with pytest.raises(
        DataError, match=r"Column 'list' is ragged: its rows have 0 to 3 values. Pass ragged='pad'"
    ):
        prepare(of(data), LocalStore(tmp_path))
    kept = prepare(of(data, 4), LocalStore(tmp_path / "keep"), None, ragged="keep").train[:]
    assert isinstance(kept["list"], Ragged)
    assert [row.tolist() for row in kept["list"]] == [list(range(i % 4)) for i in kept["id"]]
    padded = prepare(of(data, 4), LocalStore(tmp_path / "pad"), None, ragged="pad").train[:]
    assert padded["list"].shape == (60, 3)
    assert np.array_equal(padded["list_length"], padded["id"] % 4)


def test_rows_of_several_shapes_are_refused_with_both(tmp_path):
    data = frame(40)
    data["image"] = [np.zeros((2, 3) if i < 20 else (2, 4)).tolist() for i in range(40)]
    with pytest.raises(
        DataError, match=r"Column 'image' has rows of shape \[2, 3\] and rows of shape \[2, 4\]"
    ):
        prepare(of(data, 2), LocalStore(tmp_path), None)


def test_a_column_of_several_types_is_refused(tmp_path):
    data = frame(80)
    data["mixed"] = [i if i < 70 else str(i) for i in range(80)]
    mixed = dataframe.concat([of(data[:70].astype({"mixed": int}), 1), of(data[70:], 1)])
    with pytest.raises(
        DataError, match=r"Column 'mixed' holds what Arrow cannot: .*tried to convert to int64"
    ):
        prepare(of(data, 1), LocalStore(tmp_path), None)
    with pytest.raises(
        DataError, match="Column 'mixed' holds mixed: string in some rows, but the frame says"
    ):
        prepare(mixed, LocalStore(tmp_path), None)


def test_null_lists_keep_the_shape_of_the_others(tmp_path):
    data = frame(30)
    data["image"] = [None if i < 10 else [[i, 1], [2, 3]] for i in range(30)]
    train = prepare(of(data, 3), LocalStore(tmp_path), None, nulls="mask").train
    assert train.schema["image"].shape == (2, 2)
    batch = train[:]
    assert np.array_equal(batch["image"][:, 0, 0], np.where(batch["id"] < 10, 0, batch["id"]))


def test_equal_rows_stay_on_one_side_and_a_share_that_is_off_is_said(tmp_path, caplog):
    data = pd.DataFrame({"id": np.repeat(np.arange(4), 100)})
    with caplog.at_level(logging.WARNING, "hopyard"):
        train, val = ids(prepare(of(data), LocalStore(tmp_path), 0.3))
    assert not set(train) & set(val)
    assert len(train) + len(val) == 400
    assert "validation=0.3 was asked for, but" in caplog.text
    with pytest.raises(DataError, match="rows that are equal stay together"):
        prepare(of(data[:100]), LocalStore(tmp_path), 0.3)


def test_empty_frames_and_unknown_columns_are_refused(store):
    with pytest.raises(DataError, match="The data is empty"):
        prepare(of(frame()).query("id < 0"), store)
    with pytest.raises(ColumnError, match="Unknown column: 'labels'; did you mean 'label'"):
        prepare(of(frame()), store, feature_columns="features", label_columns="labels")


def test_a_store_that_workers_cannot_reach_is_refused():
    with pytest.raises(UsageError, match="is a store of this process alone, but the workers of Dask write"):
        prepare(of(frame()), MemoryStore())


def test_a_validation_frame_may_have_its_columns_in_another_order(store):
    rows = pd.DataFrame({"x": np.arange(60.0), "y": -np.arange(60.0), "text": [str(i) for i in range(60)]})
    other = rows[["text", "y", "x"]].assign(more=1)
    for number, val in enumerate((other[["text", "y", "x"]], other)):
        prepared = prepare(of(rows), LocalStore(store.path(f"{number}")), val=of(val))
        assert prepared.val.schema.names == ["x", "y", "text"]
        batch = prepared.val[:]
        assert sorted(batch["x"].tolist()) == list(range(60))
        assert np.array_equal(batch["y"], -batch["x"])
        assert batch["text"].tolist() == [str(int(x)) for x in batch["x"]]


def test_statistics_and_settings_are_those_of_other_data(tmp_path):
    ours = prepare(of(frame()), LocalStore(tmp_path / "a"), None, label_columns="label").train.manifest
    theirs = prepare(frame(), LocalStore(tmp_path / "b"), None, label_columns="label").train.manifest
    assert ours.statistics["label"].distinct == theirs.statistics["label"].distinct == (0, 1, 2)
    assert ours.statistics["label"].mean == pytest.approx(theirs.statistics["label"].mean)
    assert ours.settings["label_columns"] == ["label"]
    assert ours.schema == theirs.schema


def test_progress_is_told(store):
    told, watched = [], []
    prepare(
        of(frame()), store, progress=lambda *done: told.append(done), watch=lambda *at: watched.append(at)
    )
    assert told[-1] == (200, 200)
    shares = [done for phase, done, rows in watched if (phase, rows) == ("reading", None)]
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert len(set(shares)) > 3
    assert all(isinstance(share, float) for share in shares)  # so that none is taken for a number of rows
    written = [done for phase, done, rows in watched if (phase, rows) == ("writing", 200)]
    assert written == sorted(written)
    assert (written[0], written[-1]) == (0, 200)
    assert len(shares) + len(written) == len(watched)


def test_backends_show_on_a_terminal_how_far_they_are(store, monkeypatch, capsys):
    InlineBackend().prepare_data(store, of(frame(100)))
    assert capsys.readouterr() == ("", "")  # a file gets a line twice a minute
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    InlineBackend().prepare_data(store, of(frame()))
    out, err = capsys.readouterr()
    assert out == ""
    assert all(text in err for text in ("reading", "100%", "writing", "200 of 200 rows"))
    InlineBackend().prepare_data(store, of(frame(50)), progress=False)
    assert capsys.readouterr() == ("", "")


def test_the_number_of_row_groups_is_said_before_anything_is_written(store):
    groups = []
    train = prepare(of(frame()), store, accept=groups.append).train
    assert groups == [train.num_row_groups]


def test_a_frame_is_a_source_whose_first_rows_can_be_seen(store):
    assert is_frame(of(frame()))
    assert not is_frame(frame())
    source = as_source(of(frame()))
    assert source.columns == ["features", "label", "id", "text"]
    assert source.fingerprint() is None
    assert source.head(3)["id"].tolist() == [0, 1, 2]
    batch = peek(of(frame()), 4, None, "features", "label")
    assert {name: values.shape for name, values in batch.items()} == {"features": (4, 5), "label": (4,)}
    assert source.collect().rows == 200


def test_files_are_of_equal_size_and_few():
    assert SplitFiles.of(100, 8) == SplitFiles(1, 25)
    assert SplitFiles.of(240, 8) == SplitFiles(1, 24)
    assert SplitFiles.of(100_000, 3084) == SplitFiles(4, 6)
    assert SplitFiles.of(10**9, 3084) == SplitFiles(30_648, 3)
    assert SplitFiles.of(0, 8) == SplitFiles(0, 0)


def test_null_labels_are_never_filled(tmp_path):
    data = frame(40).assign(label=[None if i in (3, 9) else float(i) for i in range(40)])
    for nulls in ("error", "fill", "mask"):
        with pytest.raises(DataError, match=r"label column .label. is null in 2 rows"):
            prepare(of(data), LocalStore(tmp_path), label_columns=["label"], nulls=nulls)
    prepare(of(data), LocalStore(tmp_path), nulls="fill")
    with pytest.raises(DataError, match="label column 'label' is null in"):
        prepare(
            of(data), LocalStore(tmp_path), feature_columns=["features", "id", "text"], label_columns=["label"],
            nulls="fill",
        )  # fmt: skip


def test_a_length_that_is_asked_for_is_there_also_if_all_rows_have_one(tmp_path):
    prepared = prepare(
        of(frame(40)), LocalStore(tmp_path), feature_columns=["features", "features_length"], label_columns=["label"],
        ragged="pad",
    )  # fmt: skip
    assert prepared.train[:]["features_length"].tolist() == [5] * len(prepared.train)
