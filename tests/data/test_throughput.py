"""What ``hopyard data throughput`` measures, and that its limits and qualities are what they are said to be."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import mix, open_dataset, prepare, throughput
from hopyard.data.order import epoch_windows
from hopyard.data.reports.throughput import shuffle_quality
from hopyard.errors import ColumnError, UsageError
from hopyard.storage import LocalStore


@pytest.fixture
def parquet(tmp_path):
    rows = 20_000
    table = pa.table({"x": np.arange(rows, dtype=np.float32), "y": np.arange(rows), "s": ["four"] * rows})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000, compression="snappy")
    return tmp_path / "t.parquet"


def test_every_epoch_is_measured(parquet):
    measured = throughput(parquet, batch_size=512, columns=["x", "y"], epochs=2)
    assert [(epoch.rows, epoch.batches, epoch.nbytes) for epoch in measured.epochs] == [
        (20_000, 40, 20_000 * 12)
    ] * 2
    for epoch in measured.epochs:
        assert 0 < epoch.first_batch <= epoch.seconds
        assert epoch.rows_per_second == epoch.rows / epoch.seconds
        assert epoch.bytes_per_second == pytest.approx(12 * epoch.rows_per_second)
        assert epoch.cpu_seconds_per_gigabyte == pytest.approx(epoch.cpu_seconds / 240_000 * 1e9)
    assert measured.decoded == ("x", "y")
    assert measured.gather_limit > 0
    assert measured.decode_limit > 0
    assert measured.gather_rows == len(open_dataset(parquet))


def test_memory_is_that_of_the_process(parquet):
    with open("/proc/self/status") as status:  # noqa: PTH123
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    measured = throughput(parquet, batch_size=512, columns=["x"], epochs=1)
    assert measured.anonymous_before == pytest.approx(kilobytes * 1024, rel=0.5)
    assert measured.epochs[0].peak_anonymous >= measured.anonymous_before * 0.9


def test_rows_that_differ_in_size_have_no_gather_limit_and_are_counted_as_their_bytes(parquet):
    measured = throughput(parquet, batch_size=512, columns=["s"], epochs=1, shuffle=False)
    assert measured.gather_limit is None
    assert measured.epochs[0].nbytes == 4 * 20_000


def test_a_pass_may_be_cut_short(parquet):
    told = []
    measured = throughput(parquet, batch_size=512, epochs=1, batches=3, progress=lambda *at: told.append(at))
    assert (measured.epochs[0].batches, measured.epochs[0].rows) == (3, 1536)
    assert all(phase == "epoch 1" and total == 1536 for phase, _, total in told)


def test_mapped_data_has_no_decoding_to_compare_with(tmp_path):
    train = prepare({"x": np.arange(2000, dtype=np.float32).reshape(500, 4)}, LocalStore(tmp_path)).train
    measured = throughput(train, batch_size=64, epochs=2)
    assert measured.decoded == ()
    assert measured.decode_limit is None
    text = str(measured)
    assert "375 rows, batches of 64, shuffled, as numpy: x: float32[4]" in text
    assert "take: bare numpy.take from memory in the same batches, the limit of the others" in text
    assert "all rows are permuted together" in text


def test_bad_arguments_are_refused(parquet):
    with pytest.raises(UsageError, match="epochs=0, but it must be an integer of at least 1"):
        throughput(parquet, epochs=0)
    with pytest.raises(UsageError, match="batches=0, but"):
        throughput(parquet, batches=0)
    with pytest.raises(ColumnError, match="Unknown column: 'z'"):
        throughput(parquet, columns=["z"])


def test_a_true_permutation_is_as_good_as_independent_draws(parquet):
    quality = shuffle_quality(open_dataset(parquet), 64, window=None)
    assert 0.9 < quality < 1.1


def test_the_natural_order_is_as_bad_as_can_be(parquet):
    quality = shuffle_quality(open_dataset(parquet), 64, shuffle=False)
    assert quality == pytest.approx(math.sqrt(64), rel=0.01)


def test_windows_are_in_between(parquet):
    """A window of k of many row groups in random order: its mean varies sqrt(batch / k) times as much."""
    dataset = open_dataset(parquet)
    window = 4 * 1000 * (4 + 8 + 4 + 8)  # bytes of four row groups
    rows = dataset.reach(window)
    assert 3000 < rows <= 5000
    quality = shuffle_quality(dataset, 512, window=window)
    groups = [len(each.groups) for each in epoch_windows([1000] * 20, 0, 0, rows)]
    squares = [count * (1 + 512 / count * (1 - count / 20)) for count in groups]
    assert quality == pytest.approx(math.sqrt(sum(squares) / 20), rel=0.25)


def test_quality_is_measured_on_the_rows_that_the_loader_gives(parquet):
    """The same number from the loader's own batches."""
    dataset, batch_size = open_dataset(parquet), 2000
    loader = dataset.loader(batch_size, shuffle=True, seed=3, columns=["y"])
    means = [batch["y"].mean() for _ in range(20) for batch in loader]
    drawn = math.sqrt((20_000**2 - 1) / 12 / batch_size)
    expected = math.sqrt(np.mean((np.array(means) - 9999.5) ** 2)) / drawn
    assert shuffle_quality(dataset, batch_size, seed=3) == pytest.approx(expected)


def test_one_batch_has_no_quality(parquet):
    assert shuffle_quality(open_dataset(parquet), 15_000) is None


def test_windows_and_mixtures_are_measured_too(parquet):
    dataset = open_dataset(parquet)
    for made in (dataset.windows(4), mix([dataset, dataset], [1, 2])):
        measured = throughput(made, batch_size=512, columns=["x"], epochs=1, batches=2)
        assert measured.epochs[0].batches == 2
        assert measured.quality is None
        assert measured.decode_limit is None
        assert "epoch" in str(measured)
