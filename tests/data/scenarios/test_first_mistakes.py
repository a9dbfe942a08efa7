"""What someone new does wrong, and what it says: what was given, the rule, the next step."""

import datetime
import logging
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from hopyard.data import inspect, open_dataset, prepare
from hopyard.data.petastorm.convert import convert_petastorm
from hopyard.errors import CorruptError, DataError, NotFoundError, UsageError
from hopyard.storage import LocalStore

PETASTORM = Path(__file__).parents[1] / "petastorm" / "dataset"


@pytest.fixture
def trips(tmp_path):
    """600 rows in three row groups, to be decoded."""
    rows = 600
    table = pa.table(
        {
            "id": np.arange(rows),
            "fare": pa.array([Decimal(n).scaleb(-2) for n in range(1000, 1000 + rows)], pa.decimal128(4, 2)),
            "pickup": pa.array(np.arange(rows) * 60, pa.timestamp("s")),
            "day": pa.array((np.arange(rows) // 100).astype("int32")).cast(pa.date32()),
            "series": np.arange(rows) // 300,
            "minute": np.arange(rows) % 300,
            "tags": [[n] * (n % 3) for n in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "trips.parquet", row_group_size=200)
    return open_dataset(tmp_path / "trips.parquet", cache=False)


def test_a_loader_inside_a_dataloader(trips):
    for output in ("numpy", "torch"):
        loader = trips.loader(8, output=output)
        with pytest.raises(
            UsageError, match=r"gives whole batches in order.*iterate over it.*make_torch_dataset"
        ):
            next(iter(DataLoader(loader)))


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (lambda batch: batch, r"cannot be called as transform\(batch, rng\): too many positional arguments"),
        ({"id": 1}, r"transform=\{'id': 1\} cannot be called .*write def transform\(batch, rng\)"),
    ],
)
def test_a_transform_of_another_kind(trips, transform, text):
    with pytest.raises(UsageError, match=text):
        trips.loader(8, transform=transform)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_transform_that_forgets_its_return(trips, output):
    def forgetful(batch, rng):
        batch["id"] += 1

    loader = trips.loader(8, transform=forgetful, output=output)
    with pytest.raises(UsageError, match=r"gave None for a batch.*end it with return batch"):
        next(iter(loader))


def test_a_transform_of_any_arguments_is_taken(trips):
    batch = next(iter(trips.loader(8, transform=lambda *both: both[0], columns=["id"])))
    assert list(batch) == ["id"]


def test_a_word_where_a_flag_belongs(trips):
    with pytest.raises(UsageError, match="shuffle='no', but it must be True or False"):
        trips.loader(8, shuffle="no")
    assert trips.loader(8, shuffle=np.True_).shuffle


def test_a_state_that_is_none(trips):
    with pytest.raises(UsageError, match=r"state=None is no loader's state. Give the dict that state_dict"):
        trips.loader(8).load_state_dict(None)


def test_a_column_asked_for_like_rows(trips):
    with pytest.raises(
        UsageError, match=r"dataset\['id'\] was asked for.*dataset\[:\]\['id'\].*columns=\['id'\]"
    ):
        trips["id"]


def test_a_loop_over_the_dataset_itself_gives_each_row(trips):
    rows = list(trips)
    assert [row["id"] for row in rows] == list(range(600))
    assert [row["tags"].tolist() for row in rows] == [[n] * (n % 3) for n in range(600)]


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        (pc.field("fare") > 12, r"fare: decimal128\(4, 2\) \(compare with a float or a decimal.Decimal\)"),
        ([("pickup", ">", "1970-01-01")], r"pickup: timestamp\[ms\] \(compare with a datetime.datetime\)"),
        ([("day", ">", "1970-01-01")], r"day: date32\[day\] \(compare with a datetime.date\)"),
    ],
    ids=["decimal", "timestamp", "date"],
)
def test_a_filter_of_another_type_says_what_to_compare_with(trips, filters, text):
    with pytest.raises(DataError, match=f"does not fit the columns .*{text}"):
        open_dataset(trips, filters=filters)


def test_what_the_filter_is_told_to_compare_with_works(trips):
    def kept(*filters):
        return len(open_dataset(trips, filters=list(filters)))

    assert kept(("fare", ">=", Decimal("12.00"))) == kept(("fare", ">=", 12.0)) == 400
    assert kept(("pickup", "<", datetime.datetime(1970, 1, 1, 1))) == 60
    assert kept(("day", "<", datetime.date(1970, 1, 3))) == 200


def test_several_series_taken_for_one(trips):
    recorded = open_dataset(trips, columns=["minute", "series"])
    with pytest.raises(
        DataError, match=r"Row 300 has minute=0.*name the column that tells them apart: series="
    ):
        recorded.windows(8, time="minute")
    assert len(recorded.windows(8, time="minute", series="series")) == 2 * (300 - 8 + 1)


def test_files_of_other_columns_and_broken_ones_can_be_left_out(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [1.0]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [2]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"leave the column out with columns=\[...\], leave the file out"):
        open_dataset(tmp_path)
    assert open_dataset(tmp_path, columns=["a"], cache=False)[:]["a"].tolist() == [1, 2]
    (tmp_path / "3.parquet").write_bytes(b"PAR")
    with pytest.raises(CorruptError, match=r"\(8 bytes\)\. Restore it, write it again, or .*corrupt='skip'"):
        open_dataset(tmp_path, columns=["a"])
    assert len(open_dataset(tmp_path, columns=["a"], corrupt="skip", cache=False)) == 2


@pytest.mark.parametrize("rows", [{"a": [1, 2]}, pa.table({"a": [1, 2]}), [{"a": 1}], 7], ids=str)
def test_rows_where_a_path_belongs(rows):
    with pytest.raises(
        UsageError, match=r"Data of type .* cannot be opened: give a path.*prepare\(data, store\)"
    ):
        open_dataset(rows)


def test_a_path_that_leads_nowhere(tmp_path):
    with pytest.raises(NotFoundError, match=r"There is no file or directory .*/gone\. Check the path"):
        open_dataset(tmp_path / "gone")
    with pytest.raises(NotFoundError, match=r"There is no .parquet or .*file in .*Check the path"):
        prepare(tmp_path, LocalStore(tmp_path / "store"))


def test_nulls_in_a_column_that_is_not_wanted(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": [None, 1.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"or leave the column out with columns=\[...\]"):
        open_dataset(tmp_path)
    assert len(open_dataset(tmp_path, columns=["a"])) == 2


def test_a_csv_with_the_index_of_pandas(tmp_path):
    (tmp_path / "a.csv").write_text(",a\n0,1\n1,2\n")
    with pytest.raises(DataError, match=r"but there are: '' \('' is often the index.*index=False\)"):
        prepare(tmp_path / "a.csv", LocalStore(tmp_path / "store"))
    with pytest.raises(
        DataError, match=r"not a Parquet file.*prepare\(path, store\), or hopyard data prepare"
    ):
        open_dataset(tmp_path / "a.csv")


def test_a_cache_where_no_directory_can_be_made(tmp_path, caplog):
    """Where the kernel says that the parent is missing, though it is there."""
    pq.write_table(pa.table({"s": ["x", "y"]}), tmp_path / "a.parquet")
    dataset = open_dataset(tmp_path / "a.parquet", cache="/proc/hopyard/cache")
    assert dataset[:]["s"].tolist() == ["x", "y"]
    assert "/proc/hopyard/cache cannot be written" in caplog.text


def test_a_petastorm_dataset_opened_as_plain_parquet(tmp_path, caplog):
    shutil.copytree(PETASTORM, tmp_path / "old")
    with caplog.at_level(logging.WARNING, "hopyard"):
        opened = open_dataset(tmp_path / "old", columns=["id", "matrix"])
    assert opened.schema["matrix"].kind == "bytes"
    assert "is a Petastorm dataset. Its columns matrix hold encoded arrays" in caplog.text
    assert f"hopyard data convert-petastorm {tmp_path / 'old'} STORE" in caplog.text
    converted = convert_petastorm(tmp_path / "old", tmp_path / "new", columns=["id", "matrix"]).train
    assert converted.schema["matrix"].kind == "tensor"
    open_dataset(tmp_path / "old", columns=["id", "matrix"])
    assert caplog.text.count("is a Petastorm dataset") == 1, "said once"


def test_a_petastorm_dataset_prepared_as_plain_parquet(tmp_path, caplog):
    shutil.copytree(PETASTORM, tmp_path / "old")
    prepared = prepare(tmp_path / "old", LocalStore(tmp_path / "new"), nulls="fill").train
    assert prepared.schema["matrix"].kind == "bytes"
    assert "Its columns matrix, half, packed, " in caplog.text
    assert f"hopyard data convert-petastorm {tmp_path / 'old'} STORE" in caplog.text


def test_a_petastorm_dataset_of_which_nothing_encoded_is_read(tmp_path, caplog):
    shutil.copytree(PETASTORM, tmp_path / "old")
    assert len(open_dataset(tmp_path / "old", columns=["id"])) == 46
    assert not caplog.records


def test_inspect_shows_no_statistics_where_there_are_none(trips, tmp_path):
    assert " min " not in str(inspect(trips))
    prepared = prepare({"a": np.arange(50)}, LocalStore(tmp_path / "store"))
    assert " min " in str(inspect(prepared.train))
