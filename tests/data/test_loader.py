import json
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.dataset import Dataset
from hopyard.data.reading.buffers import ALIGNMENT
from hopyard.errors import ColumnError, CorruptError, UsageError

LAYOUTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=3)
EQUAL_LAYOUTS = st.builds(
    lambda groups, rows, last: [[rows] * groups, [rows] * groups + [min(last, rows)]],
    st.integers(1, 4), st.integers(1, 30), st.integers(1, 30),
)  # fmt: skip


def ids(batches):
    return [row for batch in batches for row in batch["id"].tolist()]


@given(
    LAYOUTS | EQUAL_LAYOUTS, st.integers(1, 40), st.integers(0, 2**40), st.booleans(),
    st.sampled_from(["short", "join"]), st.none() | st.integers(1, 60),
)  # fmt: skip
def test_each_row_comes_exactly_once_an_epoch(
    make_dataset, expect_rows, layout, size, seed, shuffle, tail, window
):
    dataset = make_dataset(layout, ("id", "image", "small"))
    loader = dataset.loader(size, shuffle, seed, tail=tail)
    loader.load_state_dict({**loader.state_dict(), "window": window})
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader)
        assert sorted(ids(batches)) == list(range(len(dataset)))
        for batch in batches:
            expect_rows(batch, batch["id"])


def test_every_kind_of_column_is_read_as_it_was_written(make_dataset, expect_rows):
    columns = ("id", "image", "small", "half", "flag", "flags", "unsigned", "text", "blob", "list")
    dataset = make_dataset([[30, 30, 7], [30, 11]], columns)
    for window in (None, 40):
        loader = dataset.loader(16, shuffle=True, seed=3)
        loader.load_state_dict({**loader.state_dict(), "window": window})
        for batch in loader:
            assert list(batch) == list(columns)
            expect_rows(batch, batch["id"])


def test_without_shuffle_rows_come_in_their_order(make_dataset):
    dataset = make_dataset([[5, 5], [5, 2]])
    assert ids(dataset.loader(4)) == list(range(17))


def test_each_iteration_is_the_next_epoch(make_dataset):
    dataset = make_dataset([[20, 20]])
    loader = dataset.loader(7, shuffle=True, seed=1)
    epochs = [ids(loader) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert ids(dataset.loader(7, shuffle=True, seed=1, epoch=2)) == epochs[2]
    loader = dataset.loader(7, shuffle=True, seed=1)
    next(iter(loader))
    assert ids(loader) == epochs[1]


def test_an_iteration_keeps_its_epoch_whatever_begins_before_its_first_batch(make_dataset):
    loader, reference = (make_dataset([[10]]).loader(4, shuffle=True, seed=1) for _ in range(2))
    first, second = iter(loader), iter(loader)
    loader.load_state_dict({**loader.state_dict(), "seed": 2, "epoch": 9})
    for iteration in (first, second):
        got, expected = (np.concatenate([batch["id"] for batch in each]) for each in (iteration, reference))
        assert got.tolist() == expected.tolist()


def test_the_stream_does_not_depend_on_batch_size_columns_or_layout_of_files(make_dataset):
    one = make_dataset([[10, 10, 10]], ("id", "image"))
    other = make_dataset([[10], [10, 10]], ("id", "text"))
    assert (
        ids(one.loader(4, True, 9))
        == ids(other.loader(7, True, 9))
        == ids(one.loader(30, True, 9, columns=["id"]))
    )


@given(LAYOUTS, st.integers(1, 20), st.integers(1, 5), st.sampled_from(["short", "join"]), st.booleans())
def test_ranks_together_take_the_steps_of_one_stream(make_dataset, layout, size, ranks, tail, repeat):
    dataset = make_dataset(layout)
    if len(dataset) < ranks:
        return
    whole = ids(dataset.loader(len(dataset), True, 5))
    policy = "repeat" if repeat else "drop"
    shares = [
        list(dataset.loader(size, True, 5, rank, ranks, remainder=policy, tail=tail)) for rank in range(ranks)
    ]
    assert len({len(share) for share in shares}) == 1
    together = []
    for step in zip(*shares, strict=True):
        assert len({len(batch["id"]) for batch in step}) == 1
        together += ids(step)
    left = len(dataset) % ranks
    expected = whole + whole[: (ranks - left) % ranks] if repeat else whole[: len(whole) - left]
    assert together == expected


def test_a_remainder_is_an_error_if_asked_for(make_dataset):
    dataset = make_dataset([[11]])
    with pytest.raises(UsageError, match="11 rows do not divide into 4 ranks"):
        dataset.loader(2, world_size=4, remainder="error")
    assert len(dataset.loader(2, remainder="error")) == 6


@given(LAYOUTS, st.data())
def test_a_restored_loader_yields_the_same_tail(make_dataset, layout, data):
    dataset = make_dataset(layout)
    size, other_size = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    window = data.draw(st.none() | st.integers(1, 60))
    loader = dataset.loader(size, True, 3, epoch=1)
    loader.load_state_dict({**loader.state_dict(), "window": window})
    taken = data.draw(st.integers(0, len(loader)))
    batches = iter(loader)
    before = ids(next(batches) for _ in range(taken))
    state = json.loads(json.dumps(loader.state_dict()))
    rest, following = ids(batches), ids(loader)
    assert len(before) + len(rest) == len(dataset)

    restored = dataset.loader(other_size, False, 0)
    restored.load_state_dict(state)
    assert ids(restored) == rest
    assert ids(restored) == following

    ranks = data.draw(st.integers(1, 3))
    shares = []
    for rank in range(ranks):
        share = dataset.loader(other_size, True, 3, rank, ranks) if len(dataset) >= ranks else None
        if share is None:
            return
        share.load_state_dict(state)
        shares.append(list(share))
    together = [row for step in zip(*shares, strict=True) for row in ids(step)]
    assert together == rest[: len(rest) - len(rest) % ranks]


def test_the_same_batches_come_after_a_restore_at_any_step(make_dataset):
    dataset = make_dataset([[25, 25, 25, 3]])
    whole = [batch["id"].tolist() for batch in dataset.loader(8, True, 2, tail="join")]
    for step in range(len(whole) + 1):
        loader = dataset.loader(8, True, 2, tail="join")
        batches = iter(loader)
        for _ in range(step):
            next(batches)
        restored = dataset.loader(8, tail="join")
        restored.load_state_dict(loader.state_dict())
        assert [batch["id"].tolist() for batch in restored] == whole[step:]


def test_state_counts_rows_yielded_by_the_latest_iteration(make_dataset):
    loader = make_dataset([[10]]).loader(4, True)
    first, second = iter(loader), iter(loader)
    next(second)
    next(first)
    assert (loader.state_dict()["epoch"], loader.state_dict()["rows"]) == (1, 4)


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("step", range(5))
def test_a_batch_that_could_not_be_made_is_in_the_rest(make_dataset, step, output):
    dataset = make_dataset([[10, 7], [3]])
    whole = [batch["id"].tolist() for batch in dataset.loader(4, True, 2)]
    fails = True

    def once(batch, rng):
        nonlocal fails
        if fails and batch["id"].tolist() == whole[step]:
            fails = False
            raise OSError("once")
        return batch

    loader, given = dataset.loader(4, True, 2, transform=once, output=output), []
    with pytest.raises(OSError, match="once"):  # noqa: PT012
        for batch in loader:
            given.append(batch["id"].tolist())
    loader.load_state_dict(loader.state_dict())
    assert given + [batch["id"].tolist() for batch in loader] == whole


def test_a_state_of_another_dataset_is_refused(make_dataset):
    one, other = make_dataset([[10, 10]], fingerprint="one"), make_dataset([[10, 10]], fingerprint="two")
    with pytest.raises(
        UsageError, match=r"another dataset .*; what differs: fingerprint 'one' there, 'two' here"
    ):
        other.loader(4).load_state_dict(one.loader(4).state_dict())
    val = Dataset(one.store, replace(one.manifest, split="val"))
    with pytest.raises(UsageError, match="what differs: split 'train' there, 'val' here"):
        val.loader(4).load_state_dict(one.loader(4).state_dict())
    part = one.partitions(2)[1]
    with pytest.raises(UsageError, match=r"rows 20 there, 10 here. Open the dataset \(or the partition\)"):
        part.loader(4).load_state_dict(one.loader(4).state_dict())
    with pytest.raises(UsageError, match="without epoch, rows"):
        one.loader(4).load_state_dict({"seed": 0, "shuffle": True, "window": None, "dataset": "one"})
    for name, value in {"seed": None, "shuffle": "yes", "window": 0, "epoch": "a", "rows": -1}.items():
        loader = one.loader(4)
        with pytest.raises(UsageError, match=f"{name}={value!r}"):
            loader.load_state_dict(loader.state_dict() | {name: value})


def test_batches_are_owned_writable_and_aligned(make_dataset, expect_rows):
    dataset = make_dataset([[50, 50], [50, 50]], ("id", "image", "small"))
    for batch in dataset.loader(32, True):
        rows = batch["id"].copy()
        for values in batch.values():
            assert values.ctypes.data % 64 == 0
            values[...] = 0
        expect_rows(dataset[rows], rows)


@given(st.integers(0, 1000), st.sampled_from(["numpy", "torch"]))
def test_memory_is_never_used_again_while_somebody_holds_it(make_dataset, expect_rows, seed, output):
    if output == "torch":
        pytest.importorskip("torch")
    dataset = make_dataset([[40, 40, 40]], ("id", "image"))
    draw = random.Random(seed)
    held = []

    def check(numbers, image):
        expect_rows({"image": image if output == "numpy" else image.numpy()}, numbers)

    for _ in range(3):
        for batch in dataset.loader(11, True, seed, output=output):
            what = draw.choice(["nothing", "batch", "column", "view of a view"])
            rows = np.array(batch["id"].tolist())
            if what == "batch":
                held.append((rows, batch["image"]))
            elif what == "column":
                held.append((rows, batch["image"][:]))
            elif what == "view of a view":
                held.append((rows[1:2], batch["image"][1:][:1]))
            while len(held) > 6:
                check(*held.pop(draw.randrange(len(held))))
    for numbers, image in held:
        check(numbers, image)


def test_memory_is_used_again_once_nobody_holds_it(make_dataset):
    loader = make_dataset([[64] * 4], ("image",)).loader(16)
    addresses = {batch["image"].ctypes.data for _ in range(10) for batch in loader}
    assert len(addresses) <= 2 * len(loader)


def test_memory_of_the_parts_of_batches_is_not_kept(make_dataset):
    """Parts of batches that lie in two windows are of another number of rows each time."""
    loader = make_dataset([[61] * 8, [67] * 8], ("image",)).loader(50, True, window=61 * 3 * 60)
    tracemalloc.start()
    try:
        for _ in range(3):
            sizes = {batch["image"].nbytes for batch in loader}
        pool = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/reading/buffers.py")])
    finally:
        tracemalloc.stop()
    arrays = [trace.size for trace in pool.traces if trace.size > max(sizes) // 20]
    assert sum(arrays) < 4 * (max(sizes) + ALIGNMENT)


@pytest.mark.parametrize("batch_size", [16, 10_000])
def test_batches_never_share_memory(make_dataset, batch_size):
    batches = list(make_dataset([[64] * 4], ("image", "id")).loader(batch_size, shuffle=True))
    for number, batch in enumerate(batches):
        batch["image"][...] = number
    assert all((batch["image"] == number).all() for number, batch in enumerate(batches))


def test_a_file_that_changes_under_a_loader_is_noticed_by_the_end_of_the_epoch(make_dataset):
    dataset = make_dataset([[20, 20]])
    file = dataset.store.path(dataset.manifest.files[0].name)
    batches = iter(dataset.loader(8))
    next(batches)
    with file.open("ab") as opened:
        opened.write(b"more")
    with pytest.raises(CorruptError, match=f"{file} was changed while it was being read"):
        list(batches)


def test_torch_output_shares_memory_and_keeps_kinds(make_dataset):
    torch = pytest.importorskip("torch")
    dataset = make_dataset([[10]], ("id", "image", "flag", "text", "list"))
    batch = next(iter(dataset.loader(4, output="torch")))
    assert batch["image"].dtype == torch.float32
    assert batch["image"].shape == (4, 3, 5)
    assert batch["image"].data_ptr() % 64 == 0
    assert batch["flag"].dtype == torch.bool
    assert batch["text"].tolist() == ["row 0 é", "row 1 é", "row 2 é", "row 3 é"]
    assert batch["list"].values.tolist() == [1, 2, 3, 3, 4, 5]
    batch["id"][0] = 7
    assert batch["id"].numpy()[0] == 7


def test_decoded_rows_are_permuted_in_windows_of_stated_bytes(make_dataset, expect_rows):
    dataset = make_dataset([[20, 20], [20, 20]], ("id", "text"))
    assert dataset.loader(8).state_dict()["window"] is None
    loader = dataset.loader(8, True, window=1000)
    assert 20 <= loader.state_dict()["window"] < 80
    batches = list(loader)
    assert sorted(ids(batches)) == list(range(80))
    for batch in batches:
        expect_rows(batch, batch["id"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0, but it must be an integer of at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5, but it must be an integer"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank=2 of world_size=2: ranks are 0 to 1"),
        (
            {"batch_size": 4, "remainder": "dorp"},
            "must be one of 'drop', 'repeat', 'error'; did you mean 'drop'",
        ),
        ({"batch_size": 4, "output": "tensorflow"}, "output='tensorflow', but it must be one of"),
        (
            {"batch_size": 11, "drop_last": True},
            "drop_last=True leaves no batch: 10 rows a rank are fewer than",
        ),
        (
            {"batch_size": 4, "num_workers": 2},
            r"num_workers was given to loader\(output='numpy'\), which has no",
        ),
        ({"batch_size": 4, "views": True, "shuffle": True}, "shuffled rows do not lie side by side"),
        ({"batch_size": 4, "views": True, "output": "torch"}, "would write to a file's mapping and kill the"),
        ({"batch_size": 4, "tail": "long"}, "tail='long', but it must be one of 'short', 'join'"),
        ({"batch_size": 4, "world_size": 11}, "10 rows are not enough for one on each of 11 ranks"),
        ({"batch_size": 4, "seed": "a"}, "seed='a', but it must be an integer"),
    ],
)
def test_impossible_arguments_are_refused(make_dataset, arguments, message):
    with pytest.raises(UsageError, match=message):
        make_dataset([[10]]).loader(**arguments)


def test_unknown_columns_are_named(make_dataset):
    with pytest.raises(ColumnError, match="Unknown column: 'imgae'; did you mean 'image'"):
        make_dataset([[10]], ("id", "image")).loader(4, columns=["imgae"])


def test_an_epoch_can_be_named(make_dataset):
    dataset = make_dataset([[10, 10]])
    loader = dataset.loader(4, shuffle=True, seed=1)
    next(iter(loader))
    loader.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3
    assert loader.state_dict()["rows"] == 0
    expected = [batch["id"].tolist() for batch in dataset.loader(4, shuffle=True, seed=1, epoch=3)]
    assert [batch["id"].tolist() for batch in loader] == expected
    with pytest.raises(UsageError, match="epoch=-1, but it must be an integer of at least 0"):
        loader.set_epoch(-1)
