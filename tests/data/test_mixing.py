"""Mixtures against a model in plain Python."""

import json
import pickle
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import Mix, mix, open_dataset, prepare
from hopyard.data.combining.shares import BLOCK, Shares, fractions_of
from hopyard.data.order import permutation
from hopyard.errors import ColumnError, DataError, UsageError
from hopyard.objects.digests import derive_seed
from hopyard.storage import LocalStore

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=4)
WEIGHTS = st.floats(0.01, 100) | st.integers(1, 9)
PINNED_PICKS = [1, 0, 2, 0, 2, 0, 1, 2, 1, 0, 0, 2, 0, 0, 2, 0, 0, 0, 2, 2, 1, 0, 0, 2]
PINNED_STREAM = [1001, 1, 1003, 5, 4, 1000, 1002, 2, 3, 0]


@pytest.fixture
def write(tmp_path):
    """``write(rows, name, number)``: rows ``number * 1000 + i``, in row groups of 7, to be decoded."""
    made = []

    def write(rows, number=0, **more):
        path = tmp_path / f"{len(made)}.parquet"
        made.append(path)
        table = pa.table({"id": 1000 * number + np.arange(rows), **more})
        pq.write_table(table, path, row_group_size=7)
        return open_dataset([path], cache=False)

    return write


@pytest.fixture
def write_each(write, make_dataset):
    """``write_each(sizes)``: datasets by turns to be decoded and mapped; their ``id`` says which."""

    def write_each(sizes):
        return [write(rows, number) for number, rows in enumerate(sizes)]

    return write_each


def ids(batches):
    return [row for batch in batches for row in batch["id"].tolist()]


def counts_in_plain_python(weights, positions):
    """How many of the first positions each dataset has: of what is left to it and those behind it, its share."""
    counts = []
    for number, weight in enumerate(weights):
        counts.append((positions - sum(counts)) * weight / sum(weights[number:]) // 1)
    return counts


def picks_in_plain_python(weights, positions, seed, epoch):
    """The dataset of each position."""
    picks = []
    for block in range(-(-positions // BLOCK)):
        first, last = block * BLOCK, min((block + 1) * BLOCK, positions)
        before, after = (counts_in_plain_python(weights, x) for x in (first, last))
        ordered = [k for k in range(len(weights)) for _ in range(int(after[k] - before[k]))]
        order = permutation(last - first, derive_seed("order of a mixture", seed, epoch, block))
        picks += [ordered[place] for place in order.tolist()]
    return picks


def stream_in_plain_python(datasets, weights, stop, seed, epoch, shuffle, reaches):
    """The ids of an epoch."""
    weights = [Fraction(weight) for weight in weights]
    sizes = [len(dataset) for dataset in datasets]
    positions = 0
    if stop == "first":
        while all(c <= n for c, n in zip(counts_in_plain_python(weights, positions + 1), sizes, strict=True)):
            positions += 1
    else:
        while any(c < n for c, n in zip(counts_in_plain_python(weights, positions), sizes, strict=True)):
            positions += 1
    counts = [int(count) for count in counts_in_plain_python(weights, positions)]
    rows = []
    for number, (dataset, count, size) in enumerate(zip(datasets, counts, sizes, strict=True)):
        turns = -(-count // size)
        own = dataset.loader(
            5, shuffle, derive_seed("dataset of a mixture", seed, number), epoch=epoch * turns
        )
        own.load_state_dict({**own.state_dict(), "window": reaches[number]})
        rows.append(iter([row for _ in range(turns) for row in ids(own)]))
    return [
        next(rows[pick])
        for pick in picks_in_plain_python(weights, positions, *((seed, epoch) if shuffle else (0, 0)))
    ]


@given(
    SIZES, st.data(), st.sampled_from(["first", "last"]), st.booleans(), st.integers(0, 2**40),
    st.integers(1, 30), st.none() | st.integers(1, 30),
)  # fmt: skip
def test_the_stream_is_that_of_the_model(write_each, sizes, data, stop, shuffle, seed, size, reach):
    datasets = write_each(sizes)
    weights = data.draw(st.none() | st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    mixture = mix(datasets, weights, stop=stop)
    loader = mixture.loader(size, shuffle, seed, epoch=1)
    loader.load_state_dict({**loader.state_dict(), "window": [reach] * len(sizes)})
    for epoch in (1, 2):
        expected = stream_in_plain_python(
            datasets, weights or sizes, stop, seed, epoch, shuffle, [reach] * len(sizes)
        )
        assert ids(loader) == expected
        assert len(mixture) == len(expected)
    if not shuffle:
        assert mixture[:]["id"].tolist() == expected
        assert mixture[::-3]["id"].tolist() == expected[::-3]


@pytest.mark.long
@given(SIZES, st.data(), st.booleans())
def test_each_row_comes_at_most_once_or_at_least_once(write_each, sizes, data, shuffle):
    datasets = write_each(sizes)
    weights = data.draw(st.lists(WEIGHTS.filter(lambda w: w > 0.5), min_size=len(sizes), max_size=len(sizes)))
    first, last = (mix(datasets, weights, stop=stop) for stop in ("first", "last"))
    every = {row for dataset in datasets for row in dataset[:]["id"].tolist()}
    once = ids(first.loader(7, shuffle))
    assert len(set(once)) == len(once) == len(first) == sum(first.counts)
    assert any(count == size for count, size in zip(first.counts, sizes, strict=True))
    often = ids(last.loader(7, shuffle))
    assert set(often) == every
    times = np.unique_counts(often).counts
    assert min(times) == 1 or len(last) == 1
    for count, size, number in zip(last.counts, sizes, range(len(sizes)), strict=True):
        own = [row for row in often if row // 1000 == number]
        assert len(own) == count >= size
        assert max(Counter(own).values()) == -(-count // size)
    by_rows = mix(datasets)
    assert sorted(ids(by_rows.loader(4, shuffle))) == sorted(every)


@given(st.lists(WEIGHTS, min_size=1, max_size=6), st.integers(0, 10**9))
def test_shares_are_exact_to_within_the_number_of_datasets(weights, positions):
    shares = Shares(fractions_of(weights))
    counts, following = shares.counts(positions), shares.counts(positions + 1)
    assert sum(counts) == positions
    assert sorted(after - before for before, after in zip(counts, following, strict=True))[:-1] == [0] * (
        len(weights) - 1
    )
    for count, weight in zip(counts, fractions_of(weights), strict=True):
        assert abs(count - weight * positions) < max(len(weights), 2) - 1 or count == positions


def test_any_stretch_of_ten_thousand_rows_has_its_shares():
    weights = [0.7, 0.25, 0.05]
    shares = Shares(fractions_of(weights))
    picks = np.concatenate([shares.draw(block, 10**6, 3, 1) for block in range(10**6 // BLOCK)])
    for number, weight in enumerate(weights):
        before = np.concatenate([[0], np.cumsum(picks == number)])
        share = (before[10_000:] - before[:-10_000]) / 10_000
        # Whole blocks are exact; of each of two cut ones, m of BLOCK picks are drawn without replacement:
        # a hypergeometric variance of weight * (1 - weight) * m * (BLOCK - m) / (BLOCK - 1) at most.
        deviation = np.sqrt(2 * weight * (1 - weight) * BLOCK / 4) / 10_000
        assert np.abs(share - weight).max() < 5 * deviation + 3 / 10_000
        assert np.abs(share / weight - 1).max() < 0.1 or weight < 0.1
    # Within a block neighbours are independent but for the block's exact shares.
    same = np.mean([early == late for early, late in pairwise(picks[:200_000].tolist())])
    assert abs(same - sum(weight**2 for weight in weights)) < 0.01


@given(
    SIZES, st.sampled_from(["first", "last"]), st.integers(1, 20), st.integers(1, 20), st.integers(1, 3),
    st.sampled_from(["drop", "repeat"]), st.data(),
)  # fmt: skip
def test_a_restored_loader_yields_the_same_tail_on_any_ranks(
    write_each, sizes, stop, size, other_size, ranks, remainder, data
):
    mixture = mix(write_each(sizes), [3, 1, 2, 1][: len(sizes)], stop=stop)
    loader = mixture.loader(size, True, 3, epoch=1)
    taken = data.draw(st.integers(0, len(loader)))
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest, following = ids(batches), ids(loader)
    restored = mixture.loader(other_size)
    restored.load_state_dict(state)
    assert ids(restored) == rest
    assert ids(restored) == following
    if len(mixture) < ranks:
        return
    whole = ids(mixture.loader(size, True, 3, epoch=1))
    shares = []
    for rank in range(ranks):
        share = mixture.loader(other_size, True, 0, rank, ranks, remainder=remainder)
        share.load_state_dict(state)
        shares.append(list(share))
    together = [row for step in zip(*shares, strict=True) for row in ids(step)]
    left = len(rest) % ranks
    expected = rest + whole[: (ranks - left) % ranks] if remainder == "repeat" else rest[: len(rest) - left]
    assert together == expected


def test_a_long_mixture_is_read_across_blocks_and_from_any_of_them(make_dataset):
    datasets = [make_dataset([[3000, 3000]], ("id", "image")), make_dataset([[9000]], ("image", "id"))]
    mixture = mix(datasets, [1, 2])
    assert len(mixture) == 13_500
    loader = mixture.loader(1000, True, 1)
    whole = ids(loader)
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "rows": 12_345})
    assert ids(loader) == whole[12_345:]
    rows = np.array([13_499, 0, 4096, 4095, 8192, 0])
    assert mixture[rows]["id"].tolist() == np.array(ids(mixture.loader(999)))[rows].tolist()


def test_every_kind_of_column_keeps_its_rows_together(make_dataset, expect_rows):
    columns = ("id", "image", "half", "flags", "text", "blob", "list")
    mixture = mix([make_dataset([[40, 2]], columns), make_dataset([[9], [8]], columns[::-1])], [2, 1])
    assert mixture.schema.names == list(columns)
    for batch in mixture.loader(8, True, 1):
        assert list(batch) == list(columns)
        expect_rows(batch, batch["id"])
    expect_rows(mixture[10:30], mixture[10:30]["id"])
    assert len(mixture[:0]["id"]) == 0


def test_batches_are_owned_writable_aligned_and_reused(make_dataset, expect_rows):
    mixture = mix([make_dataset([[64] * 4], ("id", "image")) for _ in range(2)])
    held = []
    for batch in mixture.loader(16, True):
        held.append((batch["id"].copy(), batch["image"]))
        assert batch["image"].ctypes.data % 64 == 0
    for rows, image in held:
        expect_rows({"image": image}, rows)
        image[...] = 0
    loader = mixture.loader(16, columns=["image"])
    addresses = {batch["image"].ctypes.data for _ in range(5) for batch in loader}
    assert len(addresses) <= 3 * len(loader)


def test_mixtures_of_windows_and_of_mixtures(write, tmp_path):
    one, two = write(30), write(20, 1)
    windows = mix([one.windows(3), two.windows([0, 1, 4], step=2)], [1, 1])
    batch = next(iter(windows.loader(16, True, columns={"x": ["id", "id"]})))
    assert batch["x"].shape == (16, 3, 2)
    assert set(np.diff(batch["x"][..., 0]).ravel().tolist()) == {1, 3}
    nested = mix([mix([one, two]), write(50, 2)], [1, 1])
    got = ids(nested.loader(7, True))
    assert len(set(got)) == len(got) == 100
    prepared = prepare(nested, LocalStore(tmp_path / "store"), validation=None).train
    assert sorted(prepared[:]["id"].tolist()) == sorted(got)


def test_order_is_fixed_forever(write_each):
    shares = Shares(fractions_of([3, 1, 2]))
    assert shares.draw(0, 24, 1, 0).tolist() == PINNED_PICKS
    assert ids(mix(write_each([6, 4])).loader(4, True, 7)) == PINNED_STREAM


def test_epochs_and_seeds_differ_but_have_equal_shares(write_each):
    mixture = mix(write_each([50, 50]), [1, 1])
    loader = mixture.loader(10, True, 0)
    orders = [ids(loader), ids(loader), ids(mixture.loader(10, True, 1))]
    assert len({tuple(order) for order in orders}) == 3
    sources = [tuple(row // 1000 for row in order) for order in orders]
    assert len(set(sources)) == 3
    assert {sources[0].count(0), sources[1].count(0), sources[2].count(0)} == {50}
    # Datasets of equal layout come in orders of their own.
    assert [row for row in orders[0] if row < 1000] != [row - 1000 for row in orders[0] if row >= 1000]


def test_pickled_and_described(write_each):
    datasets = write_each([20, 10])
    mixture = mix(datasets, [1, 3])
    again = pickle.loads(pickle.dumps(mixture))
    assert isinstance(again, Mix)
    assert again.fingerprint == mixture.fingerprint == mix(datasets, [0.5, 1.5]).fingerprint
    assert ids(again.loader(4, True, 5)) == ids(mixture.loader(4, True, 5))
    assert repr(mixture) == "Mix(13 rows: 3 of 20, 10 of 10; id: int64)"
    assert mixture.split == "train"
    others = [mix(datasets), mix(datasets, [1, 3], stop="last"), mix(datasets[::-1], [1, 3]), datasets[0]]
    assert len({each.fingerprint for each in (mixture, *others)}) == 5
    with pytest.raises(UsageError, match=r"what differs: fingerprint .*rows 13 there, 30 here"):
        others[0].loader(4).load_state_dict(mixture.loader(4).state_dict())


@pytest.mark.parametrize(
    ("weights", "stop", "message"),
    [
        ([1], "first", r"weights=\[1\], but it must be 2 positive numbers, one for each dataset"),
        ([1, 0], "first", r"weights=\[1, 0\], but it must be 2 positive numbers"),
        ([1, float("nan")], "first", r"weights=\[1, nan\], but it must be 2 positive numbers"),
        ([1, float("inf")], "first", r"weights=\[1, inf\], but it must be 2 positive numbers"),
        ([1, "a"], "first", r"weights=\[1, 'a'\], but it must be 2 positive numbers"),
        (0.5, "first", r"weights=0\.5, but it must be 2 positive numbers"),
        ([1, 1], "frist", "stop='frist', but it must be 'first' or 'last'; did you mean 'first'"),
        (
            [1, 1e-30],
            "last",
            "rows: the weights .* differ too much for datasets of .* rows. Give weights nearer",
        ),
    ],
)
def test_impossible_arguments_are_refused(write_each, weights, stop, message):
    with pytest.raises(UsageError, match=message):
        mix(write_each([3, 4]), weights, stop=stop)


def test_what_is_no_list_of_datasets_is_refused(write):
    with pytest.raises(
        UsageError, match=r"mix\(\) was given \[\], but it takes a list of datasets, at least one"
    ):
        mix([])
    with pytest.raises(UsageError, match=r"mix\(\) was given str, but it takes a list"):
        mix([write(3), "path"])
    with pytest.raises(DataError, match=r"Dataset 1 of the mixture has no rows\. Leave it out"):
        mix([write(3), write(3).part([])])


def test_datasets_that_differ_in_columns_are_refused(write):
    base = write(4, x=np.ones(4, np.float32), y=["a"] * 4)
    other = write(4, y=np.ones(4), x=np.ones(4), z=np.ones(4))
    message = (
        "Datasets 0 and 1 of a mixture differ in their columns: 'z' is only in dataset 1; x: float32 in dataset 0, but "
        "x: float64 in dataset 1; y: string in dataset 0, but y: float64 in dataset 1. Open them with the same columns="
    )
    with pytest.raises(ColumnError) as caught:
        mix([base, other])
    assert str(caught.value).startswith(message)
    with pytest.raises(ColumnError, match="'x' is only in dataset 0; 'y' is only in dataset 0"):
        mix([base, base, write(4)])
    pairs = write(4, v=pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8)), 2))
    windows = open_dataset(write(4, v=np.arange(4))).windows(2)
    alike = open_dataset(pairs, columns=["v"]), open_dataset(windows.base, columns=["v"]).windows(2)
    with pytest.raises(ColumnError, match="rows of windows"):
        mix(alike)
