import numpy as np
import pytest

from hopyard.data import open_dataset


def held(batches):
    return {name: [batch[name] for batch in batches] for name in batches[0]}


@pytest.mark.parametrize("layout", [[[10, 10, 7]], [[10, 10], [10, 3]]])
@pytest.mark.parametrize("batch_size", [5, 6])
def test_views_hold_the_rows_that_copies_hold(make_dataset, expect_rows, layout, batch_size):
    dataset = make_dataset(layout, ("id", "image", "small", "text", "list", "unsigned"))
    loader = dataset.loader(batch_size, views=True)
    batches = list(loader)
    for number, batch in enumerate(batches):
        expect_rows(batch, range(number * batch_size, min((number + 1) * batch_size, len(dataset))))
    assert list(loader)[1]["id"].tolist() == batches[1]["id"].tolist()


def test_rows_side_by_side_are_read_only_views_and_others_are_copies(make_dataset):
    batches = held(list(make_dataset([[10, 10]], ("id", "image", "small")).loader(4, views=True)))
    assert [array.flags.writeable for array in batches["id"]] == [False, False, True, False, False]
    assert [array.flags.writeable for array in batches["image"]] == [False, False, True, False, False]
    assert all(array.flags.writeable for array in batches["small"])  # stored in 32 bits, cast to 8
    with pytest.raises(ValueError, match="read-only"):
        batches["id"][0][0] = 1


def test_without_views_batches_are_writable(make_dataset):
    batch = next(iter(make_dataset([[10, 10]], ("id", "image")).loader(4)))
    batch["id"][0] = 77
    assert batch["id"].flags.writeable
    assert batch["image"].flags.writeable


def test_views_outlive_loader_and_dataset(make_dataset):
    first = next(iter(make_dataset([[10]], ("id",)).loader(4, views=True)))["id"]
    assert first.tolist() == [0, 1, 2, 3]


def test_filtered_rows_are_views_only_where_they_are_neighbours(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "plain.parquet"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = pa.table({"id": np.arange(20)}, schema=schema)
    pq.write_table(table, path, use_dictionary=False, compression="none", data_page_size=1 << 20)
    dataset = open_dataset(path, filters=[("id", "not in", [5, 13])])
    batches = list(dataset.loader(6, views=True))
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == [
        row for row in range(20) if row not in (5, 13)
    ]
    assert batches[0]["id"].flags.writeable  # rows 0 to 6 without 5


def test_views_of_decoded_columns_are_of_the_flat_files(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"x": [[float(i), 0.5] for i in range(12)]}), path, row_group_size=6)
    batches = list(open_dataset(path, ragged="pad").loader(3, columns=["x"], views=True))
    assert np.concatenate([batch["x"] for batch in batches])[:, 0].tolist() == list(range(12))
    assert not batches[0]["x"].flags.writeable
