import logging
import pickle
from functools import partial

import numpy as np
import pytest
from tests.sampling import by_level

from hopyard.data import Loader, Ragged, open_dataset
from hopyard.errors import UsageError

torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler  # noqa: E402

from hopyard.data.outputs import torch_loader as module  # noqa: E402
from hopyard.data.outputs.torch_transfer import HostBuffers, as_host_tensors, to_device  # noqa: E402


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


@pytest.fixture
def dataset(make_dataset):
    return make_dataset([[10, 10, 7]], ("id", "image", "list", "text", "small"))


def test_it_is_a_dataloader_with_the_stream_of_the_numpy_loader(dataset):
    loader = dataset.loader(4, shuffle=True, seed=5, output="torch")
    expected = dataset.loader(4, shuffle=True, seed=5)
    assert isinstance(loader, DataLoader)
    assert (len(loader), loader.batch_size, loader.drop_last, loader.num_workers) == (7, 4, False, 0)
    assert len(loader.dataset) == 27
    assert loader.columns == ["id", "image", "list", "text", "small"]
    for _ in range(2):
        assert ids(loader) == ids(expected)


def test_a_plain_dataloader_of_its_parts_gives_the_same_batches(dataset):
    loader = dataset.loader(
        4, shuffle=True, output="torch", transform=lambda batch, rng: {**batch, "r": rng.random()}
    )
    expected = dataset.loader(4, shuffle=True, transform=lambda batch, rng: {**batch, "r": rng.random()})
    plain = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    for _ in range(2):
        for batch, its in zip(plain, expected, strict=True):
            assert batch["id"].tolist() == its["id"].tolist()
            assert np.array_equal(batch["image"].numpy(), its["image"])
            assert batch["text"].tolist() == its["text"].tolist()
            assert batch["r"] == its["r"]
    assert len(plain) == 7


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a single core
def test_its_parts_work_in_worker_processes(make_dataset):
    dataset = make_dataset([[10, 10, 7]], ("id", "image"))
    loader = dataset.loader(4, shuffle=True, output="torch")
    plain = DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, num_workers=2
    )
    assert ids(plain) == ids(dataset.loader(4, shuffle=True))


def test_rows_named_one_by_one_are_those_of_the_stream(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    first, second = (
        ids(dataset.loader(27, shuffle=True))[0],
        ids(dataset.loader(27, shuffle=True, epoch=1))[0],
    )
    assert loader.dataset.__getitems__([3, 4, 5, 0, 1, 27, 28])["id"].tolist() == [
        *first[3:6], *first[:2], *second[:2],
    ]  # fmt: skip
    assert loader.dataset[30]["id"].item() == second[3]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_distributed_sampler_in_its_place_gives_a_rank_its_share(dataset, world_size):
    loader = dataset.loader(4, shuffle=True, output="torch")
    for rank in range(world_size):
        sampler = DistributedSampler(loader.dataset, world_size, rank)
        steps = type(loader.batch_sampler)(sampler, batch_size=4, drop_last=False)
        again = type(loader)(dataset=loader.dataset, batch_sampler=steps, collate_fn=loader.collate_fn)
        expected = dataset.loader(4, shuffle=True, rank=rank, world_size=world_size)
        assert isinstance(again.sampler, DistributedSampler)  # who looks for one leaves the ranks alone
        assert len(again) == len(expected)
        assert ids(again) == ids(expected)
    assert not isinstance(loader.sampler, DistributedSampler)


def test_a_sequential_sampler_in_its_place_turns_shuffling_off(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    steps = type(loader.batch_sampler)(SequentialSampler(loader.dataset), batch_size=4, drop_last=False)
    again = type(loader)(dataset=loader.dataset, batch_sampler=steps)
    assert ids(again) == ids(dataset.loader(4))


def test_the_sampler_names_the_epoch(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    begun = iter(loader)  # some ask for the iterator first
    loader.sampler.set_epoch(2)
    assert ids(begun) == ids(dataset.loader(4, shuffle=True, epoch=2))
    loader.sampler.set_epoch(2)
    assert ids(loader) == ids(dataset.loader(4, shuffle=True, epoch=2))
    assert ids(loader) == ids(dataset.loader(4, shuffle=True, epoch=3))


def test_an_epoch_that_was_restored_goes_on_where_it_was_when_it_is_named(dataset):
    whole = ids(dataset.loader(4, shuffle=True, epoch=1))
    loader = dataset.loader(4, shuffle=True, epoch=1, output="torch")
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    for epoch, expected in (1, whole[2:]), (2, ids(dataset.loader(4, shuffle=True, epoch=2))):
        other = dataset.loader(4, output="torch")
        other.load_state_dict(state)
        other.set_epoch(epoch)
        assert ids(other) == expected


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_state_of_so_many_batches_goes_on_behind_them(dataset, output):
    whole = ids(dataset.loader(4, shuffle=True))
    loader = dataset.loader(4, shuffle=True, output=output)
    list(loader)
    for used in range(8):
        other = dataset.loader(4, output=output)
        other.load_state_dict(loader.state_dict(batches=used))
        assert ids(other) == whole[used:]
    with pytest.raises(
        UsageError, match=r"batches=8\) was asked for, but the iteration has 7. Count the batches"
    ):
        loader.state_dict(batches=8)


def test_a_state_of_so_many_batches_counts_from_where_the_iteration_began(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    batches = iter(loader)
    next(batches), next(batches)
    loader.load_state_dict(loader.state_dict())
    list(loader)
    assert loader.state_dict(batches=3)["rows"] == 20


def test_drop_last_leaves_out_what_is_not_full(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch", drop_last=True)
    assert (len(loader), loader.drop_last) == (6, True)
    assert [len(batch) for batch in ids(loader)] == [4] * 6
    ranks = [dataset.loader(4, rank=rank, world_size=2, drop_last=True) for rank in range(2)]
    assert [[len(batch) for batch in ids(rank)] for rank in ranks] == [[4] * 3] * 2


def test_worker_options_are_accepted_and_explained_once(dataset, caplog, monkeypatch):
    monkeypatch.setattr(module, "_explained", False)
    options = {"num_workers": 4, "prefetch_factor": 2, "persistent_workers": True}
    with caplog.at_level(logging.INFO, "hopyard"):
        loader = dataset.loader(4, output="torch", **options)
        dataset.loader(4, output="torch", **options)
    assert loader.num_workers == 0
    assert ids(loader) == ids(dataset.loader(4))
    explained = [record.message for record in caplog.records if "num_workers" in record.message]
    assert len(explained) == 1
    assert explained[0].startswith(
        "num_workers is accepted and starts no processes: batches are gathered from mapped"
    )


def test_unknown_options_and_devices_are_refused(dataset):
    with pytest.raises(
        UsageError, match=r"collate_fn was given to loader.*What becomes of the rows of a batch is trans"
    ):
        dataset.loader(4, output="torch", collate_fn=list)
    with pytest.raises(
        UsageError, match=r"device='cpx' cannot be used here: .*Give a device that PyTorch sees"
    ):
        dataset.loader(4, output="torch", device="cpx")


def test_on_the_cpu_a_device_changes_nothing(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch", device="cpu")
    assert ids(loader) == ids(dataset.loader(4, shuffle=True))


def test_other_devices_get_batches_moved(dataset):
    batches = list(dataset.loader(4, output="torch", device="meta"))
    assert [batch["image"].device.type for batch in batches] == ["meta"] * 7
    assert batches[0]["list"].values.device.type == "meta"
    assert batches[0]["text"].dtype == object


@pytest.mark.skipif(torch.accelerator.is_available(), reason="is about machines without accelerators")
def test_pinning_without_an_accelerator_warns_as_pytorch_does(dataset):
    with pytest.warns(
        UserWarning, match="pin_memory=True, but no accelerator is found: memory is not pinned"
    ):
        loader = dataset.loader(4, shuffle=True, output="torch", pin_memory=True)
    assert loader.pin_memory is False
    assert ids(loader) == ids(dataset.loader(4, shuffle=True))


def test_host_tensors_are_over_the_storage_of_the_allocator(make_dataset):
    names = ("id", "image", "small", "half", "flag", "unsigned", "list", "text")
    dataset = make_dataset([[10, 10, 7]], names)
    stacked = {"pair": ["id", "id"], **{name: name for name in names}}
    expected = list(dataset.loader(4, shuffle=True, columns=stacked))
    made = []

    class Recorded(HostBuffers):
        def buffer(self, rows, width):
            buffer = super().buffer(rows, width)
            made.append(buffer.owner.base)
            return buffer

    loader = Loader(dataset, 4, shuffle=True, columns=stacked, output="torch").changed(
        convert=partial(as_host_tensors, pinned=False), buffers=Recorded(pinned=False)
    )
    for batch, its in zip(loader, expected, strict=True):
        for name, values in its.items():
            if isinstance(values, Ragged):
                assert batch[name].values.tolist() == values.values.tolist()
            elif values.dtype == object:
                assert batch[name].tolist() == values.tolist()
            else:
                assert np.array_equal(batch[name].numpy(), values)
                inside = {host.untyped_storage().data_ptr() for host in made}
                assert (batch[name].untyped_storage().data_ptr() in inside) == (name != "pair")
    assert loader.columns == list(stacked)


def test_packed_columns_are_views_of_host_tensors():
    packed = HostBuffers(pinned=False).empty(6, np.dtype(np.float32), (5,))
    packed[...] = np.arange(30).reshape(6, 5)
    batch = as_host_tensors({"one": packed[:, 3], "two": packed[:, 1:3], "all": packed}, pinned=False)
    assert batch["one"].tolist() == packed[:, 3].tolist()
    assert batch["two"].tolist() == packed[:, 1:3].tolist()
    assert len({tensor.untyped_storage().data_ptr() for tensor in batch.values()}) == 1


def test_tensors_in_any_structure_are_moved():
    ragged = Ragged(torch.zeros(3), torch.tensor([0, 3]))
    moved = to_device(
        {"a": [torch.zeros(2)], "b": (torch.zeros(1), "text"), "c": ragged}, torch.device("meta")
    )
    assert moved["a"][0].device.type == moved["b"][0].device.type == moved["c"].offsets.device.type == "meta"
    assert moved["b"][1] == "text"


@pytest.mark.gpu
def test_on_a_gpu_batches_are_copied_ahead_and_states_count_what_was_given(dataset):
    expected = list(dataset.loader(4, shuffle=True))
    loader = dataset.loader(4, shuffle=True, output="torch", device="cuda")
    held = []
    for number, batch in enumerate(loader):
        assert loader.state_dict()["rows"] == min(27, 4 * (number + 1))
        held.append(batch)
    for batch, its in zip(held, expected, strict=True):
        assert batch["image"].device.type == "cuda"
        assert np.array_equal(batch["image"].cpu().numpy(), its["image"])
        assert batch["list"].values.device.type == "cuda"


@pytest.mark.gpu
def test_on_a_gpu_batches_can_be_pinned(dataset):
    copies = []
    for batch in dataset.loader(4, output="torch", pin_memory=True):
        assert batch["image"].is_pinned()
        assert batch["list"].values.is_pinned()
        copies.append(batch["id"].to("cuda", non_blocking=True))
    assert torch.cat(copies).tolist() == list(range(27))


def test_a_loader_pickles_with_its_place(dataset):
    loader = dataset.loader(4, shuffle=True, output="torch")
    expected = ids(dataset.loader(4, shuffle=True))
    batches = iter(loader)
    next(batches)
    pickled = pickle.dumps(loader)
    assert len(pickled) < 10_000
    other = pickle.loads(pickled)
    assert other.state_dict() == loader.state_dict()
    other.load_state_dict(other.state_dict())
    assert ids(other) == expected[1:]


def test_a_loop_that_is_left_ends_what_is_in_the_background(tmp_path):
    import threading

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"x": [[float(i)] * 8 for i in range(4000)]}), path, row_group_size=500)
    loader = open_dataset(path, ragged="pad").loader(10, shuffle=True, output="torch", window=64_000)
    before = set(threading.enumerate())
    for _ in loader:
        assert any(thread.name.startswith("hopyard-window") for thread in set(threading.enumerate()) - before)
        break
    assert not any(thread.name.startswith("hopyard-window") for thread in set(threading.enumerate()) - before)


def test_a_batch_sampler_over_rows_asks_for_batches(make_dataset):
    from hopyard import make_torch_dataset

    dataset = make_torch_dataset(make_dataset([[10, 10, 7]], ("id", "list", "text")))
    sampler = BatchSampler(SequentialSampler(dataset), 5, drop_last=False)
    for method in (None, "fork", "spawn")[: by_level(2, 3, 3)]:
        workers = {} if method is None else {"num_workers": 1, "multiprocessing_context": method}
        batches = list(DataLoader(dataset, batch_size=None, sampler=sampler, **workers))
        assert ids(batches) == [list(range(start, min(start + 5, 27))) for start in range(0, 27, 5)]
        assert batches[1]["list"].offsets.tolist() == [0, 1, 3, 6, 6, 7]
        assert batches[1]["text"].tolist()[0] == "row 5 é"
