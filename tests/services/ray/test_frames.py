"""Datasets of Ray Data; ``test_dask`` tests the rules that all engines share."""

import numpy as np
import pytest

from hopyard.data import as_source, prepare
from hopyard.errors import DataError
from hopyard.storage import LocalStore

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.fixture
def dataset(cluster, monkeypatch):
    """Rows with tensors and texts."""
    monkeypatch.setattr(ray.data.DataContext.get_current(), "enable_progress_bars", False)
    return ray.data.from_items(
        [{"id": i, "image": np.full((2, 3), i, np.float32), "text": f"row {i}"} for i in range(60)]
    )


def test_every_row_is_there_once_and_files_do_not_depend_on_blocks(dataset, tmp_path, files_of):
    stores = [LocalStore(tmp_path / str(number)) for number in range(3)]
    prepared = prepare(dataset.repartition(1), stores[0])
    prepare(dataset.repartition(4), stores[1])
    here = {
        "id": np.arange(60)[::-1],
        "image": np.stack([np.full((2, 3), i, np.float32) for i in range(60)])[::-1],
        "text": [f"row {i}" for i in range(60)][::-1],
    }
    assert prepare(here, stores[2]).fingerprint == prepared.fingerprint
    assert files_of(stores[0]) == files_of(stores[1]) == files_of(stores[2])
    batch = prepared.train[:]
    assert sorted(batch["id"].tolist() + prepared.val[:]["id"].tolist()) == list(range(60))
    assert batch["image"].dtype == np.float32
    assert np.array_equal(batch["image"], np.broadcast_to(batch["id"][:, None, None], (45, 2, 3)))
    assert batch["text"].tolist() == [f"row {i}" for i in batch["id"]]


def test_first_rows_and_errors(dataset, tmp_path):
    assert as_source(dataset).head(2)["image"].shape == (2, 2, 3)
    lists = dataset.map(lambda row: {"id": row["id"], "list": list(range(row["id"] % 3))})
    with pytest.raises(DataError, match="Column 'list' is ragged: its rows have 0 to 2 values"):
        prepare(lists, LocalStore(tmp_path))
