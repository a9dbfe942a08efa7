"""Several columns joined by their keys: rows of a dataset for loaders, searches and frameworks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopyard import make_torch_dataset
from hopyard.backend import InlineBackend
from hopyard.data import Ragged, prepare
from hopyard.data.order import permutation
from hopyard.errors import ColumnError, DataError, UnsupportedTypeError, UsageError
from hopyard.objects.digests import derive_seed
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.datasets import open_stored, store_dataset
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, RandomSearch, hp_choice

N = 100
IMAGES = np.random.default_rng(0).integers(0, 255, (N, 4, 3), np.uint8)
Write = Callable[..., list[SampleColumn]]


def write(objects: Objects, **columns: Any) -> list[SampleColumn]:
    """Columns of these samples, published."""
    with objects.writing() as writer:
        records = []
        for name, values in columns.items():
            draft = ColumnDraft(objects, writer, name)
            draft.replace(values)
            records.append((name, draft.flush()))
    return [SampleColumn(objects, name, record) for name, record in records if record is not None]


@pytest.fixture
def local(tmp_path: Path) -> Objects:
    return Objects(LocalStore(tmp_path / "repository"))


@pytest.fixture
def samples(objects: Objects) -> JoinedSamples:
    names = [f"row {n}" for n in range(N)]
    lists = [np.arange(n % 4, dtype=np.int32) for n in range(N)]
    return JoinedSamples(write(objects, image=IMAGES, label=np.arange(N), name=names, tokens=lists))


# Joining


def test_the_order_is_that_of_the_rows_that_come(samples: JoinedSamples) -> None:
    for shuffle in (True, False):
        batches = samples.loader(32, shuffle, 5, columns=["label"], epoch=3)
        came = np.concatenate([batch["label"] for batch in batches])
        assert (samples[samples.order(5, 3, shuffle, None)]["label"] == came).all()


def test_rows_are_the_samples_in_the_order_of_the_keys(objects: Objects) -> None:
    image, label = write(
        objects, image={f"k{n:02}": IMAGES[n] for n in range(N)}, label={f"k{n:02}": n for n in range(N)}
    )
    samples = JoinedSamples([image, label])
    assert len(samples) == N
    assert samples.keys()[:2] == ["k00", "k01"]
    assert samples[:]["label"].tolist() == list(range(N))
    assert np.array_equal(samples[:]["image"], IMAGES)
    assert samples[7]["image"].tolist() == IMAGES[7].tolist()


def test_ints_are_in_the_order_of_their_values(objects: Objects) -> None:
    (label,) = write(objects, label={n: n for n in (10, 2, 1, 100)})
    dataset = make_torch_dataset([label])
    assert [int(dataset[row][0]) for row in range(4)] == [1, 2, 10, 100]


def test_parts_of_nested_samples_are_joined_by_their_pairs(objects: Objects) -> None:
    boxes, names = write(
        objects,
        box={7: {"a": [0.5, 1], "b": [2, 3]}, "x": {0: [4, 5]}},
        name={7: {"a": "cat", "b": "dog"}, "x": {0: "cow"}},
    )
    samples = JoinedSamples([boxes, names])
    assert samples.keys() == [(7, "a"), (7, "b"), ("x", 0)]
    assert samples[1]["name"] == "dog"
    assert samples[1]["box"].tolist() == [2, 3]


def test_samples_that_are_missing_somewhere_are_an_error_that_counts_them(objects: Objects) -> None:
    image, label = write(objects, image=dict(enumerate(IMAGES)), label={n: n for n in range(3, N + 5)})
    with pytest.raises(DataError) as error:
        JoinedSamples([image, label])
    assert str(error.value) == (
        "not all samples are in all columns: 'image' has 100; 'label' has 102; 3 of 'image' are not in 'label' "
        "(the first: 0); 97 are in all. To leave out the others: stock.data.samples(['image', 'label'], "
        "missing='drop'); or add what is missing."
    )
    left = JoinedSamples([image, label], missing="drop")
    assert left.keys() == list(range(3, N))
    assert left[:]["label"].tolist() == list(range(3, N))
    assert np.array_equal(left[:]["image"], IMAGES[3:])


def test_chosen_keys_come_in_their_order(objects: Objects) -> None:
    image, label = write(objects, image=IMAGES, label=np.arange(N))
    chosen = JoinedSamples([image, label], keys=[9, 3, 9])
    assert chosen[:]["label"].tolist() == [9, 3, 9]
    assert chosen.keys() == [9, 3, 9]
    with pytest.raises(DataError, match=r"1 of 2 keys are not in 'image' \(the first: 'cat'\)"):
        JoinedSamples([image, label], keys=[1, "cat"])
    assert JoinedSamples([image, label], keys=[1, "cat"], missing="drop").keys() == [1]
    with pytest.raises(DataError, match="no sample is in all of 'image' and 'label'"):
        JoinedSamples([image, label], keys=["cat"], missing="drop")


def test_columns_without_common_keys_say_so(objects: Objects) -> None:
    a, b = write(objects, a={"x": 1}, b={"y": 1})
    with pytest.raises(DataError, match="no sample is in all of 'a' and 'b': they have no key in common"):
        JoinedSamples([a, b], missing="drop")


@pytest.mark.parametrize(
    ("columns", "text"),
    [([], "no columns"), ([3], "a int"), ({"a": "b"}, "a str")],
)
def test_anything_but_columns_is_refused(columns: Any, text: str) -> None:
    with pytest.raises(UsageError, match=f"Samples were asked of {text}"):
        JoinedSamples(columns)


def test_arguments_are_checked(objects: Objects) -> None:
    (image,) = write(objects, image=IMAGES)
    with pytest.raises(
        UsageError, match="missing='dorp', but it must be 'error' or 'drop'; did you mean 'drop'"
    ):
        JoinedSamples([image], missing="dorp")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="columns of equal names: image, image"):
        JoinedSamples([image, image])
    assert list(JoinedSamples({"a": image, "b": image}).columns) == ["a", "b"]


@given(
    st.lists(
        st.sets(st.one_of(st.integers(-5, 5), st.sampled_from("abcd")), min_size=1), min_size=1, max_size=3
    )
)
def test_the_join_is_the_intersection_in_the_order_of_keys(sets: list[set[int | str]]) -> None:
    objects = Objects(MemoryStore())
    columns = write(objects, **{f"c{n}": {key: str(key) for key in keys} for n, keys in enumerate(sets)})
    common = set.intersection(*sets)
    if not common:
        with pytest.raises(DataError, match="no sample is in all of"):
            JoinedSamples(columns, missing="drop")
        return
    found = JoinedSamples(columns, missing="drop")
    assert found.keys() == sorted(common, key=lambda key: (isinstance(key, str), key))
    for column in columns:
        assert found[:][column.name].tolist() == list(map(str, found.keys()))


# As a dataset


def test_every_kind_of_column_has_its_place_in_a_batch(samples: JoinedSamples) -> None:
    assert str(samples.schema) == "image: uint8[4, 3], label: int64, name: string, tokens: int32[*]"
    batch = samples[[5, 2]]
    assert batch["name"].tolist() == ["row 5", "row 2"]
    assert batch["tokens"] == Ragged.from_rows([[0], [0, 1]], np.int32)
    assert samples[-1]["label"] == N - 1
    with pytest.raises(IndexError, match="row 100 of a dataset of 100 rows"):
        samples[N]


def test_what_batches_have_no_place_for_says_so_only_when_it_is_asked_for(objects: Objects) -> None:
    varying, half, label = write(
        objects,
        varying=[np.zeros((2, 3)), np.zeros((1, 4))],
        half=torch.zeros(2, 3, dtype=torch.bfloat16),
        label=[1, 2],
    )
    for column, text in ((varying, "whose lengths vary"), (half, "holds bfloat16")):
        samples = JoinedSamples([column, label])
        with pytest.raises(
            UnsupportedTypeError, match=f"column '{column.name}' .*{text}.*make_torch_dataset"
        ):
            samples.loader(1)
    first, second = make_torch_dataset([varying, half])[1]
    assert (first.shape, second.dtype) == ((1, 4), torch.bfloat16)


def test_a_shuffled_epoch_is_a_permutation_and_the_next_another(samples: JoinedSamples) -> None:
    loader = samples.loader(16, shuffle=True, seed=5)
    for epoch in range(2):
        batches = list(loader)
        labels = np.concatenate([batch["label"] for batch in batches])
        assert labels.tolist() == permutation(N, derive_seed("order", 5, epoch)).tolist()
        assert np.array_equal(np.concatenate([batch["image"] for batch in batches]), IMAGES[labels])
        assert [name for batch in batches for name in batch["name"]] == [f"row {label}" for label in labels]


def test_a_loader_goes_on_where_its_state_says(samples: JoinedSamples) -> None:
    def labels(loader: Any) -> list[list[int]]:
        return [batch["label"].tolist() for batch in loader]

    expected = labels(samples.loader(16, shuffle=True, seed=1))
    loader = samples.loader(16, shuffle=True, seed=1)
    begun = iter(loader)
    next(begun)
    next(begun)
    again = pickle.loads(pickle.dumps(samples)) if samples.columns["image"].objects.shared else samples  # type: ignore[attr-defined]
    resumed = again.loader(16, shuffle=True, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert labels(resumed) == expected[2:]
    with pytest.raises(UsageError, match="The state is of another dataset"):
        samples.part(range(50)).loader(16, shuffle=True, seed=1).load_state_dict(loader.state_dict())


def test_ranks_share_each_step(samples: JoinedSamples) -> None:
    ranks = [samples.loader(10, shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    seen = sorted(label for loader in ranks for batch in loader for label in batch["label"].tolist())
    assert seen == list(range(N))


def test_scalar_columns_are_stacked(objects: Objects) -> None:
    columns = write(objects, a=np.arange(5.0), b=np.arange(5.0) * 10)
    batch = next(iter(JoinedSamples(columns).loader(2, columns={"x": ["a", "b"]})))
    assert batch["x"].tolist() == [[0, 0], [1, 10]]
    with pytest.raises(ColumnError, match="'c'"):
        JoinedSamples(columns).loader(2, columns=["c"])


def test_partitions_are_disjoint_and_make_up_the_whole(samples: JoinedSamples) -> None:
    parts = samples.partitions(3)
    assert [len(part) for part in parts] == [34, 33, 33]
    assert [label for part in parts for label in part[:]["label"].tolist()] == list(range(N))
    assert len({samples.fingerprint, *(part.fingerprint for part in parts)}) == 4
    with pytest.raises(UsageError, match="101 partitions were asked for, but there are 100 samples"):
        samples.partitions(101)


def test_a_part_is_of_any_rows_and_its_own(samples: JoinedSamples) -> None:
    rows = np.arange(N)
    part = samples.part(rows[::-10])
    rows[:] = 0
    assert part[:]["label"].tolist() == list(range(N - 1, 0, -10))
    assert part.fingerprint == samples.part([*range(N - 1, 0, -10)]).fingerprint
    assert part.part([-1])[0]["name"] == "row 9"
    with pytest.raises(IndexError, match="row 10 of 10 samples"):
        part.part([10])


def test_fingerprints_tell_rows_apart_and_nothing_else(objects: Objects, samples: JoinedSamples) -> None:
    again = JoinedSamples(write(objects, image=IMAGES, label=np.arange(N)))
    assert (
        again.fingerprint
        == JoinedSamples(write(objects, image=IMAGES.copy(), label=np.arange(N))).fingerprint
    )
    others = [
        samples,
        JoinedSamples(again.columns, keys=[2, 1]),
        JoinedSamples(write(objects, image=IMAGES, label=np.arange(N) + 1)),
        JoinedSamples({"x": again.columns["image"], "label": again.columns["label"]}),
    ]
    assert len({again.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_a_column_that_is_being_written_is_read_as_it_is_now(local: Objects) -> None:
    with local.writing() as writer:
        draft = ColumnDraft(writer, writer, "label")
        draft.extend(np.arange(4))
        now = JoinedSamples([draft])
        draft.extend([9])
        assert (len(now), len(JoinedSamples([draft]))) == (4, 5)
        assert now[:]["label"].tolist() == [0, 1, 2, 3]
        with pytest.raises(UsageError, match="'label' has changes that are not committed"):
            pickle.dumps(now)
        draft.flush()
        writer.publish()
        assert len(pickle.loads(pickle.dumps(JoinedSamples([draft])))) == 5


# In PyTorch


def test_items_are_tuples_in_the_order_of_the_columns(local: Objects) -> None:
    image, label, name = write(local, image=IMAGES, label=np.arange(N), name=[f"row {n}" for n in range(N)])
    dataset = make_torch_dataset([label, image, name])
    number, picture, text = dataset[7]
    assert (number.item(), text) == (7, "row 7")
    assert picture.tolist() == IMAGES[7].tolist()
    assert dataset[-1][0].item() == N - 1
    assert [item[0].item() for item in dataset.__getitems__([3, 1])] == [3, 1]
    batch = dataset[[3, 1]]
    assert batch[1].shape == (2, 4, 3)
    assert make_torch_dataset((image, label), as_dict=True)[4]["label"].item() == 4
    assert [item[0].item() for item in make_torch_dataset(label, keys=[8, 2])] == [8, 2]
    assert len(make_torch_dataset([image, image])[0]) == 2
    with pytest.raises(IndexError, match="row 100 of 100 samples"):
        dataset[N]


def test_anything_else_is_refused(local: Objects) -> None:
    (label,) = write(local, label=np.arange(3))
    with pytest.raises(UsageError, match=r"make_torch_dataset\(\) was given a list of str. Give columns"):
        make_torch_dataset([label, "image"])
    with pytest.raises(
        UsageError, match=r"make_torch_dataset\(\) was given keys= or as_dict= with a dataset"
    ):
        make_torch_dataset(JoinedSamples([label]), as_dict=True)
    assert make_torch_dataset(JoinedSamples([label]))[2]["label"].item() == 2


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a single core
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_of_a_dataloader_read_every_sample(local: Objects) -> None:
    """Forked ones; ``tests/long/stockroom`` has some that begin from nothing."""
    dataset = make_torch_dataset(write(local, image=IMAGES, label=np.arange(N)))
    assert dataset[0][1].item() == 0
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=2, multiprocessing_context="fork"
    )
    seen = {}
    for images, labels in loader:
        seen.update(zip(labels.tolist(), images.numpy(), strict=True))
    assert sorted(seen) == list(range(N))
    assert all(np.array_equal(seen[n], IMAGES[n]) for n in range(N))


# In searches


class StopsAfter(Callback):
    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def on_epoch_end(self, trial: Any, epoch: Any, metrics: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Linear(4, 2)
    return TorchEstimator(
        model, torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], 8, {"lr": params["lr"]}
    )


def search(store: LocalStore, callbacks: Any = ()) -> RandomSearch:
    return RandomSearch(
        InlineBackend(), store, estimator, {"lr": hp_choice([0.1, 0.01])},
        num_models=2, num_epochs=2, num_partitions=2, progress=False, callbacks=callbacks,
    )  # fmt: skip


def columns_for_training(objects: Objects) -> JoinedSamples:
    features = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    return JoinedSamples(write(objects, features=features, label=(features.sum(1) > 0).astype(np.int64)))


def test_a_search_over_columns_is_found_again_and_resumed(tmp_path: Path, local: Objects) -> None:
    store = LocalStore(tmp_path / "experiments")
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[StopsAfter(2)]).fit(columns_for_training(local))
    model = search(store).fit(columns_for_training(local))
    whole = search(LocalStore(tmp_path / "others")).fit(columns_for_training(local))
    assert model.run_id == whole.run_id
    assert model.get_history() == whole.get_history()


def test_a_search_over_stored_datasets_is_found_again_and_resumed(tmp_path: Path, local: Objects) -> None:
    prepared = prepare(columns_for_training(local), LocalStore(tmp_path / "prepared"), validation=0.25)
    assert prepared.val is not None
    with local.writing() as writer:
        records = [store_dataset(writer, split) for split in (prepared.train, prepared.val)]
    store = LocalStore(tmp_path / "experiments")
    with pytest.raises(KeyboardInterrupt):
        search(store, callbacks=[StopsAfter(2)]).fit(prepared.train, prepared.val)
    for entry in list(LocalStore(tmp_path / "prepared").list()):
        LocalStore(tmp_path / "prepared").delete(entry.name)
    train, val = (open_stored(Objects(local.store), record, "a dataset") for record in records)
    model = search(store).fit(train, val)
    again = search(store).fit(pickle.loads(pickle.dumps(train)), val)
    assert model.run_id == again.run_id
    assert model.get_history() == again.get_history()
