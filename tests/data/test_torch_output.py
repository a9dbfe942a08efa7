import pickle

import pytest

import hopyard
from hopyard import make_torch_dataset
from hopyard.errors import UsageError

torch = pytest.importorskip("torch")


def test_items_are_rows_as_tensors(make_dataset):
    dataset = make_torch_dataset(make_dataset([[10, 10]], ("id", "image", "flag", "text", "list")))
    assert len(dataset) == 20
    item = dataset[13]
    assert item["id"].item() == 13
    assert item["image"].shape == (3, 5)
    assert item["image"].dtype == torch.float32
    assert item["flag"].dtype == torch.bool
    assert item["text"] == "row 13 é"
    assert item["list"].tolist() == [13]
    with pytest.raises(IndexError):
        dataset[20]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a single core
def test_a_dataloader_reads_every_row_in_its_workers(make_dataset):
    dataset = make_torch_dataset(make_dataset([[10, 10]], ("id", "image")))
    loader = torch.utils.data.DataLoader(dataset, batch_size=6, shuffle=True, num_workers=2)
    batches = list(loader)
    assert sorted(row for batch in batches for row in batch["id"].tolist()) == list(range(20))
    assert batches[0]["image"].shape == (6, 3, 5)
    assert len(pickle.loads(pickle.dumps(dataset))) == 20


def test_anything_but_a_dataset_is_refused():
    with pytest.raises(UsageError, match=r"make_torch_dataset\(\) was given a list"):
        make_torch_dataset([1, 2])


def test_the_package_offers_it_without_importing_torch_first():
    assert "make_torch_dataset" in dir(hopyard)
    with pytest.raises(AttributeError, match="has no attribute 'make_torch_datset'"):
        hopyard.make_torch_datset  # noqa: B018
