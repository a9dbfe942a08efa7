"""Loaders of a converter: epochs, shares, order, and arguments of Petastorm's that mean something else here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from hopyard.errors import ColumnError, UsageError
from hopyard.spark import SparkDatasetConverter, make_spark_converter


@pytest.fixture
def converter(tmp_path: Path) -> SparkDatasetConverter:
    """103 rows in 6 row groups, from files."""
    frame = pd.DataFrame({"id": range(103), "even": [row % 2 == 0 for row in range(103)]})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=20)
    return make_spark_converter(str(tmp_path))


def ids(converter: SparkDatasetConverter, **options: Any) -> list[list[int]]:
    with converter.make_torch_dataloader(**options) as loader:
        return [batch["id"].tolist() for batch in loader]


def test_batches_are_dicts_of_tensors_of_one_epoch(converter: SparkDatasetConverter) -> None:
    with converter.make_torch_dataloader() as loader:
        assert isinstance(loader, torch.utils.data.DataLoader)
        batches = list(loader)
        assert len(batches) == len(loader) == 4
        assert [len(batch["id"]) for batch in batches] == [32, 32, 32, 7]
        assert (batches[0]["id"].dtype, batches[0]["even"].dtype) == (torch.int64, torch.bool)
        again = list(loader)
    first, second = (torch.cat([batch["id"] for batch in each]).tolist() for each in (batches, again))
    assert sorted(first) == sorted(second) == list(range(103))
    assert first != second  # the next epoch has another order


def test_num_epochs_are_those_of_one_iteration(converter: SparkDatasetConverter) -> None:
    with converter.make_torch_dataloader(batch_size=50, num_epochs=3) as loader:
        assert len(loader) == 9
        rows = [row for batch in loader for row in batch["id"].tolist()]
    orders = [rows[:103], rows[103:206], rows[206:]]
    assert [sorted(order) for order in orders] == [list(range(103))] * 3
    assert orders[0] != orders[1] != orders[2]


def test_order_follows_the_seed_and_0_is_one(converter: SparkDatasetConverter) -> None:
    assert ids(converter, seed=0) == ids(converter, seed=0) == ids(converter)
    assert ids(converter, seed=0) != ids(converter, seed=1) == ids(converter, shard_seed=1)
    in_order = [list(range(first, min(first + 32, 103))) for first in range(0, 103, 32)]
    assert ids(converter, shuffle_row_groups=False) == ids(converter, shuffle=False) == in_order
    for more in ({"shuffling_queue_capacity": 10}, {"shuffle_rows": True}):
        assert ids(converter, shuffle_row_groups=False, **more) == ids(converter)


def test_shards_are_disjoint_and_take_equally_many_steps(converter: SparkDatasetConverter) -> None:
    parts = [ids(converter, batch_size=8, cur_shard=shard, shard_count=4) for shard in range(4)]
    assert {tuple(len(batch) for batch in part) for part in parts} == {(8, 8, 8, 1)}
    rows = [row for part in parts for batch in part for row in batch]
    assert len(set(rows)) == len(rows) == 100  # 3 of the 103 are left over among 4


def test_options_of_datasets_and_loaders_are_passed_on(converter: SparkDatasetConverter) -> None:
    def doubled(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"twice": batch["id"] * 2}

    options = {"columns": ["id"], "filters": [("id", "<", 10)], "drop_last": True, "shuffle": False}
    with converter.make_torch_dataloader(batch_size=4, transform=doubled, num_workers=2, **options) as loader:
        assert [batch["twice"].tolist() for batch in loader] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    with pytest.raises(ColumnError, match="Unknown column: 'ids'; did you mean 'id'"):
        ids(converter, columns=["ids"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("transform_spec", r"transform=fn\(batch, rng\)"),
        ("data_loader_fn", "there is no loader to choose"),
        ("reader_pool_type", "decoding runs ahead in threads"),
        ("schema_fields", "columns="),
        ("predicate", "filters="),
        ("rank", "cur_shard="),
    ],
)
def test_arguments_that_only_petastorm_has_say_what_to_write(
    converter: SparkDatasetConverter, name: str, text: str
) -> None:
    with pytest.raises(
        UsageError, match=rf"{name}=\.\.\.\) was called, which Petastorm's.*Instead: .*{text}"
    ):
        ids(converter, **{name: 1})


def test_an_unknown_argument_names_the_nearest(converter: SparkDatasetConverter) -> None:
    with pytest.raises(
        UsageError, match=r"no such argument; did you mean 'shard_count'\? It takes .*'?columns"
    ):
        ids(converter, shard_cuont=1)
    with pytest.raises(UsageError, match="num_workerz"), converter.make_tf_dataset(num_workerz=1):
        pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_epochs": 0}, "num_epochs=0, but it must be an integer of at least 1"),
        ({"workers_count": 0}, "workers_count=0"),
        ({"shuffling_queue_capacity": -1}, "shuffling_queue_capacity=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"shuffle_row_groups": 1}, "shuffle_row_groups=1, but it must be True or False"),
        ({"shard_count": 2}, "Give both or neither"),
        ({"cur_shard": 0, "shard_count": 200}, "103 rows are not enough for one on each of 200 ranks"),
    ],
)
def test_impossible_values_are_errors(
    converter: SparkDatasetConverter, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        ids(converter, **options)


def test_a_contradiction_to_the_launcher_is_an_error(
    converter: SparkDatasetConverter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(UsageError, match="each would read all rows"):
        ids(converter)
    assert len(ids(converter, cur_shard=1, shard_count=2)) == 2


def test_a_converter_pickles(converter: SparkDatasetConverter) -> None:
    copy = pickle.loads(pickle.dumps(converter))
    assert (copy.file_urls, copy.cache_dir_url, len(copy)) == (
        converter.file_urls, converter.cache_dir_url, 103,
    )  # fmt: skip
    assert ids(copy) == ids(converter)
    assert repr(copy) == f"SparkDatasetConverter(103 rows in {converter.cache_dir_url})"
