"""Windows against a model in plain Python: every layout, series, gap, step, length, order and window of memory."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import Windows, open_dataset, prepare
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.preparing.parquet import FileWriter
from hopyard.data.schema import Column, Schema
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.storage import LocalStore

PINNED_WHOLE = [[9, 11], [12, 14], [3, 5], [0, 2], [6, 8]]
PINNED_RUNS = [8, 7, 6, 10, 11, 9, 13, 12, 14, 1, 0, 2, 5, 4, 3]
LAYOUTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), min_size=1, max_size=3)


def windows_in_plain_python(time, series, offsets, step, max_gap):
    """The rows of each window, in order."""
    stretches = [[0]]
    for row in range(1, len(time)):
        apart = series[row] != series[row - 1] or (
            max_gap is not None and time[row] - time[row - 1] > max_gap
        )
        stretches.append([row]) if apart else stretches[-1].append(row)
    span = offsets[-1] - offsets[0] + 1
    return [
        [start + offset - offsets[0] for offset in offsets]
        for stretch in stretches
        for start in range(stretch[0], stretch[-1] + 2 - span, step)
    ]


@pytest.fixture
def write(tmp_path):
    """``write(layout, columns, prepared)``: columns of all rows as files of row groups, mapped or to be decoded."""
    made = []

    def foreign(directory, layout, table):
        start, files = 0, []
        for number, groups in enumerate(layout):
            files.append(directory / f"{number:03}.parquet")
            with pq.ParquetWriter(files[-1], table.schema, compression="snappy") as writer:
                for rows in groups:
                    writer.write_table(table.slice(start, rows))
                    start += rows
        return open_dataset(files, cache=False)

    def mapped(directory, layout, columns):
        schema = Schema(
            Column(name, "tensor", values.dtype.name, values.shape[1:]) for name, values in columns.items()
        )
        entries, start = [], 0
        for groups in layout:
            writer = FileWriter(directory / "temporary", schema)
            for rows in groups:
                writer.write({name: values[start : start + rows] for name, values in columns.items()})
                start += rows
            entries.append(writer.close())
            (directory / "temporary").rename(directory / entries[-1].name)
        return Dataset(LocalStore(directory), Manifest("train", "of a test", schema, tuple(entries)))

    def write(layout, columns, prepared=False):
        directory = tmp_path / f"data-{len(made)}"
        directory.mkdir()
        made.append(directory)
        if prepared:
            return mapped(directory, layout, columns)
        return foreign(
            directory, layout, pa.table({name: _arrow(values) for name, values in columns.items()})
        )

    return write


def _arrow(values):
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values)


@st.composite
def recordings(draw):
    """A layout, and of each of its rows a series and a time."""
    layout = draw(LAYOUTS)
    rows = sum(map(sum, layout))
    changes = draw(st.lists(st.integers(1, max(rows - 1, 1)), max_size=3, unique=True))
    series = np.searchsorted(sorted(changes), np.arange(rows), side="right")
    jumps = draw(st.lists(st.sampled_from([0, 1, 1, 1, 5]), min_size=rows, max_size=rows))
    time = np.cumsum(jumps) - 1000 * series
    return layout, series.astype(np.int32), time.astype(np.int64)


def lengths():
    offsets = st.lists(st.integers(-3, 9), min_size=1, max_size=4, unique=True).map(sorted)
    return st.integers(1, 9) | offsets


def ids(batches):
    return [window for batch in batches for window in batch["id"].tolist()]


def with_reach(loader, reach):
    loader.load_state_dict({**loader.state_dict(), "window": reach})
    return loader


@given(
    recordings(), lengths(), st.integers(1, 4), st.none() | st.integers(0, 5), st.booleans(), st.booleans(),
    st.none() | st.integers(1, 80), st.integers(1, 9), st.integers(0, 2**40),
)  # fmt: skip
def test_each_window_of_the_model_comes_exactly_once_an_epoch(
    write, recording, length, step, max_gap, prepared, shuffle, reach, size, seed
):
    layout, series, time = recording
    rows = len(time)
    image = np.random.default_rng(0).random((rows, 2)).astype(np.float32)
    columns = {"id": np.arange(rows), "time": time, "series": series, "image": image}
    dataset = write(layout, columns, prepared)
    offsets = list(range(length)) if isinstance(length, int) else length
    expected = windows_in_plain_python(time.tolist(), series.tolist(), offsets, step, max_gap)
    if not expected:
        with pytest.raises(DataError, match=f"No window of {offsets[-1] - offsets[0] + 1} consecutive rows"):
            dataset.windows(length, step=step, time="time", max_gap=max_gap, series="series")
        return
    windows = dataset.windows(length, step=step, time="time", max_gap=max_gap, series="series")
    assert len(windows) == len(expected)
    for _ in range(2):
        batches = list(with_reach(windows.loader(size, shuffle, seed), reach))
        got = ids(batches)
        assert (sorted(got) if shuffle else got) == expected
        for batch in batches:
            assert batch["image"].shape == (len(batch["id"]), len(offsets), 2)
            assert np.array_equal(batch["image"], image[batch["id"]])
    taken = windows[::-1]
    assert taken["id"].tolist() == expected[::-1]
    assert np.array_equal(taken["image"], image[np.array(expected[::-1])])


@given(
    LAYOUTS, st.integers(1, 6), st.booleans(), st.none() | st.integers(1, 60), st.integers(1, 9),
    st.integers(1, 9), st.integers(1, 3), st.data(),
)  # fmt: skip
def test_a_restored_loader_yields_the_same_tail_on_any_ranks(
    write, layout, length, prepared, reach, size, other_size, ranks, data
):
    rows = sum(map(sum, layout))
    if rows < length:
        return
    columns = {"id": np.arange(rows)}
    windows = write(layout, columns, prepared).windows(length, time="id")
    loader = with_reach(windows.loader(size, True, 3, epoch=1), reach)
    taken = data.draw(st.integers(0, len(loader)))
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest, following = ids(batches), ids(loader)
    restored = windows.loader(other_size)
    restored.load_state_dict(state)
    assert ids(restored) == rest
    assert ids(restored) == following
    if len(windows) < ranks:
        return
    shares = []
    for rank in range(ranks):
        share = windows.loader(other_size, rank=rank, world_size=ranks)
        share.load_state_dict(state)
        shares.append(list(share))
    together = [window for step in zip(*shares, strict=True) for window in ids(step)]
    assert together == rest[: len(rest) - len(rest) % ranks]


def test_strings_and_stacked_columns_have_the_rows_of_a_window_second(write):
    table = {
        "a": np.arange(10.0),
        "b": -np.arange(10.0),
        "name": [f"row {row}" for row in range(10)],
        "blob": [str(row).encode() for row in range(10)],
    }
    windows = write([[4, 3], [3]], table).windows(3, step=2)
    assert str(windows.schema) == "a: float64[3], b: float64[3], name: string[3], blob: bytes[3]"
    (batch,) = windows.loader(10, columns={"both": ["a", "b"], "name": "name", "blob": "blob"})
    assert batch["both"].shape == (4, 3, 2)
    assert batch["both"][1].tolist() == [[2, -2], [3, -3], [4, -4]]
    assert batch["name"].dtype == object
    assert batch["name"][3].tolist() == ["row 6", "row 7", "row 8"]
    assert batch["blob"].tolist() == windows[:]["blob"].tolist()


def test_only_the_row_groups_of_a_few_runs_are_decoded_at_once(write, monkeypatch):
    windows = write([[10] * 20, [10] * 20], {"id": np.arange(400)}).windows(5)
    every = windows[:]["id"].tolist()
    reader = windows.base.reader()
    view, opened = reader.view, []

    def spy(wanted, groups, stopped):
        opened.append(groups)
        return view(wanted, groups, stopped)

    monkeypatch.setattr(reader, "view", spy)
    assert sorted(ids(with_reach(windows.loader(16, True, 1), 100))) == every
    assert len(opened) >= 5
    assert max(len(groups) for groups in opened) <= 10
    assert any(np.diff(groups).max() > 1 for groups in opened)  # from several places


def test_the_streams_are_fixed_forever(write):
    whole = write([[6, 6], [4]], {"id": np.arange(16)}, prepared=True).windows([0, 2], step=3, time="id")
    assert ids(whole.loader(8, True, 1)) == PINNED_WHOLE
    runs = write([[3, 3, 3], [3, 3, 1]], {"id": np.arange(16)}).windows(2)
    assert [window[0] for window in ids(with_reach(runs.loader(8, True, 1), 9))] == PINNED_RUNS


def test_a_series_that_comes_again_is_another_stretch(write):
    columns = {"id": np.arange(8), "time": np.array([1, 2, 1, 2, 0, 1, 0, 1]), "of": list("aabbaabb")}
    windows = write([[3, 5]], columns).windows(2, time="time", series=["of"])
    assert windows[:]["id"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", "float32"])
def test_gaps_are_measured_without_overflow(write, dtype):
    whole = np.dtype(dtype).kind in "iu"
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if whole else (-100, 100)
    columns = {"time": np.array([low, low + 1, high - 1, high], dtype), "id": np.arange(4)}
    dataset = write([[1, 2, 1]], columns)
    assert dataset.windows(2, time="time", max_gap=1)[:]["id"].tolist() == [[0, 1], [2, 3]]
    assert len(dataset.windows(2, time="time", max_gap=int(high) - int(low))) == 3


def test_timestamps_are_nanoseconds(write):
    at = np.array(["2024-01-01T00:00", "2024-01-01T00:01", "2024-01-01T00:05"], "datetime64[us]")
    windows = write([[2], [1]], {"at": at}).windows(2, time="at", max_gap=60 * 10**9)
    assert windows[:]["at"].tolist() == [at[:2].astype("datetime64[ns]").astype(int).tolist()]


def test_rows_out_of_order_are_refused_with_the_first_of_them(write):
    columns = {"time": np.array([1, 2, 3, 9, 5, 4]), "of": ["a", "a", "b", "b", "b", "b"]}
    dataset = write([[2, 2], [2]], columns)
    message = (
        r"Row 4 has time=5, of=b, but the row before it has time=9\. Windows need rows in order of time within each "
        r"series: sort the files by series and time\. The rows of prepared datasets are shuffled: open the files "
        r"themselves, open_dataset\(files\)\.windows\(\.\.\.\), and prepare\(dataset\.windows\(\.\.\.\)\)"
    )
    with pytest.raises(DataError, match=message):
        dataset.windows(2, time="time", series="of")
    nan = write([[3]], {"time": np.array([1.0, np.nan, 2.0])})
    with pytest.raises(DataError, match=r"Row 1 has time=nan, but the row before it has time=1\.0"):
        nan.windows(2, time="time")


def test_a_prepared_dataset_is_refused_without_a_column_of_time(tmp_path):
    dataset = prepare({"id": np.arange(50)}, LocalStore(tmp_path / "store")).train
    with pytest.raises(
        UsageError, match=r"prepared dataset, whose rows are shuffled. Open the files themselves"
    ):
        dataset.windows(3)
    with pytest.raises(DataError, match=r"Row \d+ has id=\d+, but the row before it has id=\d+"):
        dataset.windows(3, time="id")


def test_windows_are_prepared_like_any_data(write, tmp_path):
    columns = {"id": np.arange(40), "image": np.arange(80, dtype=np.float32).reshape(40, 2)}
    windows = write([[9, 9], [22]], columns).windows([0, 1, 4], step=2)
    prepared = prepare(windows, LocalStore(tmp_path / "store"), validation=None)
    assert str(prepared.train.schema) == "id: int64[3], image: float32[3, 2]"
    stored = prepared.train[:]
    assert sorted(stored["id"].tolist()) == windows[:]["id"].tolist()
    assert stored["id"].tolist() != windows[:]["id"].tolist()
    assert np.array_equal(stored["image"], columns["image"][stored["id"]])


@pytest.mark.parametrize(("step", "validation", "warns"), [(1, 0.5, True), (3, 0.5, False), (1, None, False)])
def test_a_random_share_of_windows_that_overlap_is_warned_of(
    write, tmp_path, caplog, step, validation, warns
):
    windows = write([[20]], {"id": np.arange(20)}).windows(3, step=step)
    prepare(windows, LocalStore(tmp_path / "store"), validation=validation)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warns
    assert not warns or said[0].startswith(
        "validation=0.5 draws at random from windows that overlap, so that rows of the validation set are trained on "
        "too, and its metrics say little about new data. Give windows of other rows as val=, "
    )


def test_partitions_are_consecutive_and_windows_do_not_cross_them(write):
    windows = write([[5, 9, 4], [12, 1, 1]], {"id": np.arange(32)}).windows(3)
    parts = windows.partitions(3)
    rows = [np.unique(part[:]["id"]) for part in parts]
    assert np.concatenate(rows).tolist() == list(range(32))
    assert sum(map(len, parts)) == len(windows) - 2 * 2
    assert len({part.fingerprint for part in (windows, *parts)}) == 4
    assert [len(part) for part in write([[9, 1, 1]], {"id": np.arange(11)}).windows(1).partitions(3)] == [
        9,
        1,
        1,
    ]
    with pytest.raises(UsageError, match="7 partitions were asked for, but there are 6 row groups"):
        windows.partitions(7)


def test_windows_of_rows_that_a_filter_kept(write):
    dataset = write([[5, 5], [10]], {"id": np.arange(20), "good": np.arange(20) % 3 > 0})
    kept = open_dataset(dataset, filters=[("good", "==", True)])
    assert kept.windows(2, step=2, time="id", max_gap=1)[:]["id"].tolist() == [
        [row, row + 1] for row in range(1, 20, 3) if row + 1 < 20
    ]


def test_pickled_and_described(write):
    dataset = write([[5, 5]], {"id": np.arange(10)})
    windows = dataset.windows(3, time="id", max_gap=2)
    again = pickle.loads(pickle.dumps(windows))
    assert isinstance(again, Windows)
    assert again.fingerprint == windows.fingerprint
    assert ids(again.loader(4, True, 5)) == ids(windows.loader(4, True, 5))
    assert repr(windows) == "Windows(8 windows of 3 rows; id: int64[3])"
    assert windows.split == "train"
    others = [
        dataset,
        dataset.windows(4, time="id", max_gap=2),
        dataset.windows([0, 1, 3], time="id", max_gap=2),
        dataset.windows(3, time="id", max_gap=1),
        dataset.windows(3, time="id", max_gap=2, step=2),
        dataset.windows(3),
    ]
    assert len({each.fingerprint for each in (windows, *others)}) == 7
    state = windows.loader(4).state_dict()
    with pytest.raises(UsageError, match=r"what differs: .*windows \{'length': 3, 'step': 1, .*'max_gap': 2"):
        others[2].loader(4).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"length": 0}, UsageError, "length=0, but it must be an integer of at least 1"),
        ({"length": 2.5}, UsageError, "length=2.5, but it must be an integer of at least 1"),
        ({"length": []}, UsageError, r"length=\[\], but the offsets of a window's rows must be increasing"),
        (
            {"length": [0, 2, 2]},
            UsageError,
            r"length=\[0, 2, 2\], but the offsets .* must be increasing integers",
        ),
        ({"length": "ab"}, UsageError, "length='ab', but the offsets .* Give such as"),
        ({"length": 2, "step": 0}, UsageError, "step=0, but it must be an integer of at least 1"),
        ({"length": 2, "max_gap": 1}, UsageError, "max_gap=1 was given without time"),
        (
            {"length": 2, "time": "id", "max_gap": "1h"},
            UsageError,
            r"max_gap='1h', but it must be a number of at least 0, in the units of 'id' \(nanoseconds for timestamps\)",
        ),
        ({"length": 2, "time": "id", "max_gap": float("nan")}, UsageError, "max_gap=nan, but it must be"),
        ({"length": 2, "time": "idd"}, ColumnError, "did you mean 'id'"),
        (
            {"length": 2, "time": "name"},
            ColumnError,
            "time='name' is the column name: string, but time must be one",
        ),
        (
            {"length": 2, "series": ["image"]},
            ColumnError,
            r"series='image' is the column image: float32\[2\], but",
        ),
        (
            {"length": 9},
            DataError,
            "No window of 9 consecutive rows fits into these 4 rows: the longest of their 1 stretches .* has 4. Make",
        ),
    ],
)
def test_impossible_arguments_are_refused(write, arguments, error, message):
    columns = {"id": np.arange(4), "name": list("abcd"), "image": np.ones((4, 2), np.float32)}
    with pytest.raises(error, match=message):
        write([[4]], columns).windows(**arguments)


def test_ragged_columns_are_refused(write):
    dataset = write([[3]], {"id": np.arange(3), "list": [[1], [2, 3], []]})
    with pytest.raises(ColumnError, match=r"The rows of list: int64\[\*\] differ in length, .* ragged='pad'"):
        dataset.windows(2)
    padded = open_dataset(dataset, ragged="pad").windows(2)
    assert padded[0]["list"].tolist() == [[1, 0], [2, 3]]
    assert open_dataset(dataset, columns=["id"]).windows(2)[:]["id"].tolist() == [[0, 1], [1, 2]]
