"""Datasets that Petastorm wrote become what was given to Petastorm."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import open_dataset, prepare
from hopyard.data.files.unischema import Field
from hopyard.data.petastorm.convert import convert_petastorm, petastorm_source
from hopyard.errors import (
    DataError,
)
from hopyard.storage import LocalStore

from .stored import COLUMNS, DATASET, files_of, rows_of, saved


def test_a_converted_dataset_is_what_was_given_to_petastorm(expected, tmp_path):
    prepared = convert_petastorm(DATASET, tmp_path / "store", columns=COLUMNS, nulls="mask", ragged="pad")
    rows = rows_of(prepared.train)
    assert prepared.val is None
    exact = [
        "id",
        "small",
        "score",
        "ratio",
        "flag",
        "time",
        "day",
        "count",
        "matrix",
        "half",
        "packed",
        "image",
    ]
    exact += ["deep", "deep_rgb", "gray", "part", "count_mask", "half_mask", "gray_mask"]
    for name in exact:
        assert rows[name].dtype == expected[name].dtype, name
        np.testing.assert_array_equal(rows[name], expected[name], name)
    assert rows["title"].tolist() == expected["title"].tolist()
    assert rows["raw"].tolist() == [text.encode() for text in expected["raw"].tolist()]
    np.testing.assert_array_max_ulp(
        rows["price"], expected["price"].astype(np.float64), 1
    )  # as Arrow casts them
    for name in ("tokens", "points"):
        lengths = expected[f"{name}_lengths"]
        np.testing.assert_array_equal(rows[f"{name}_length"], lengths)
        kept = np.arange(lengths.max()) < lengths[:, None]
        np.testing.assert_array_equal(rows[name][kept], expected[name])
        assert not rows[name][~kept].any()
    assert set(rows) - set(COLUMNS) == {f"{n}_mask" for n in ("count", "half", "gray")} | {
        "tokens_length",
        "points_length",
    }


def test_jpeg_is_decoded_as_opencv_does(expected):
    photos = petastorm_source(DATASET, ["photo", "id"]).head(46)
    order = np.argsort(photos["id"])
    difference = photos["photo"][order].astype(int) - expected["photo_decoded"]
    assert np.abs(difference).max() <= 2  # decoders round differently
    assert np.abs(photos["photo"][order].astype(int) - expected["photo"]).mean() < 6  # of the lossy encoder


def test_lists_of_any_length_are_kept_ragged_on_demand(expected, tmp_path):
    prepared = prepare(petastorm_source(DATASET, ["id", "tokens"]), LocalStore(tmp_path), None, ragged="keep")
    rows = rows_of(prepared.train)
    np.testing.assert_array_equal(rows["tokens"].values, expected["tokens"])
    np.testing.assert_array_equal(rows["tokens"].lengths, expected["tokens_lengths"])


def test_batches_are_row_groups_and_can_be_read_again():
    source = petastorm_source(DATASET, ["id"])
    sizes = [
        pq.read_metadata(file).row_group(group).num_rows
        for file in files_of(DATASET)
        for group in range(pq.read_metadata(file).num_row_groups)
    ]
    assert len(set(sizes)) > 2
    for _ in range(2):
        assert [len(batch["id"]) for batch in source.batches()] == sizes
    assert source.rows == sum(sizes) == 46
    assert source.fingerprint() == petastorm_source(f"file://{DATASET}").select(["id"]).fingerprint()


def test_images_of_several_sizes_are_kept_encoded_on_demand(tmp_path):
    prepared = convert_petastorm(DATASET, tmp_path, columns=["id", "sizes"], images="keep")
    opened = open_dataset(tmp_path)
    assert prepared.train.schema["sizes"].kind == "bytes"
    assert all(each.startswith(b"\x89PNG") for each in opened[:]["sizes"])
    with pytest.raises(DataError) as caught:
        convert_petastorm(DATASET, tmp_path, columns=["sizes"])
    text = str(caught.value)
    assert "row group 0, field 'sizes', row 1: its shape is [2, 3, 3], but [3, 3, 3] in the first row" in text
    assert "images='keep'" in text
    assert "columns=" in text


def test_progress_counts_rows_read_and_written(tmp_path):
    seen = []
    convert_petastorm(DATASET, tmp_path, columns=["id"], progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {92}
    assert seen[-1] == (92, 92)
    assert convert_petastorm(DATASET, tmp_path, columns=["id"]).reused


def test_validation_and_seed_are_those_of_prepare(tmp_path):
    ours = convert_petastorm(DATASET, tmp_path / "a", columns=["id", "score"], validation=0.25, seed=3)
    theirs = prepare(
        petastorm_source(DATASET, ["id", "score"]), LocalStore(tmp_path / "b"), validation=0.25, seed=3
    )
    assert ours.fingerprint == theirs.fingerprint
    assert len(ours.val) == len(theirs.val) > 0
    by_column = convert_petastorm(DATASET, tmp_path / "c", columns=["id", "flag"], validation="flag")
    assert (by_column.val[:]["id"] % 3 == 0).all()


def test_columns_that_the_schema_does_not_list_are_told(copy, caplog):
    file = files_of(copy)[0]
    table = pq.ParquetFile(file).read()
    pq.write_table(table.append_column("extra", table["id"]), file)
    petastorm_source(copy)
    assert "columns that the Unischema does not list are left out: extra" in caplog.text


def test_default_partitions_are_null_and_others_have_the_fields_dtype(copy):
    (copy / "part=7").rename(copy / "part=__HIVE_DEFAULT_PARTITION__")
    columns = petastorm_source(copy, ["id", "part"]).collect().columns
    part = columns["part"]
    assert part.values.dtype == np.int32
    assert part.missing.sum() == 16
    assert set(part.values[~part.missing]) == {3, 12}


def test_old_timestamps_of_96_bits_keep_their_microseconds(expected):
    assert pq.ParquetFile(files_of(DATASET)[0]).schema.column(8).physical_type == "INT96"
    rows = petastorm_source(DATASET, ["id", "time"]).head(46)
    np.testing.assert_array_equal(rows["time"], expected["time"][rows["id"]])


@given(
    arrays=st.lists(st.integers(0, 2**32), min_size=1, max_size=12),
    null=st.sets(st.integers(0, 11)),
    dtype=st.sampled_from(["<f4", ">i2", "bool", "<u8", "<f2"]),
    order=st.sampled_from(["C", "F", "mixed"]),
)
def test_arrays_of_any_layout_are_read_alike(tmp_path_factory, arrays, null, dtype, order):
    from hopyard.data.petastorm.codecs import decode_field

    rng = np.random.default_rng(arrays[0])
    values = [(rng.normal(size=(2, 3)) * 50).astype(dtype) for _ in arrays]
    told = [
        np.asfortranarray(value) if order == "F" or (order == "mixed" and number % 2) else value
        for number, value in enumerate(values)
    ]
    rows = [None if number in null else saved(value) for number, value in enumerate(told)]
    name = np.dtype(dtype).name
    data = decode_field(Field("a", name, (2, 3), "NdarrayCodec", {}, True), pa.array(rows, pa.binary()), "it")
    wanted = np.zeros((len(rows), 2, 3), name)
    for number, value in enumerate(values):
        if number not in null:
            wanted[number] = value
    np.testing.assert_array_equal(data.values, wanted)
    assert data.values.dtype == np.dtype(name)
    assert (np.zeros(len(rows), bool) if data.missing is None else data.missing).tolist() == [
        row is None for row in rows
    ]
