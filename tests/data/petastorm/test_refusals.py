"""What is no Petastorm dataset, or holds what its schema does not say, is named."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data.files.unischema import METADATA_NAME
from hopyard.data.petastorm.convert import convert_petastorm, is_petastorm, petastorm_source
from hopyard.errors import (
    ColumnError,
    CorruptError,
    DataError,
    NotFoundError,
    UsageError,
)
from hopyard.storage import LocalStore, MemoryStore

from .stored import DATASET, files_of, replaced, saved, stored


def test_what_is_a_petastorm_dataset_is_told_without_an_error(tmp_path, copy):
    assert is_petastorm(DATASET)
    assert is_petastorm(f"file://{DATASET}")
    assert is_petastorm(LocalStore(DATASET))
    (tmp_path / "other").mkdir()
    pq.write_metadata(pa.schema([("a", pa.int8())]), tmp_path / "other" / METADATA_NAME)
    (copy / METADATA_NAME).write_bytes(b"PAR1 no")
    for other in (tmp_path / "other", copy, tmp_path, tmp_path / "none", "s3://x/y", MemoryStore()):
        assert not is_petastorm(other)
    store = MemoryStore()
    store.put(METADATA_NAME, (DATASET / METADATA_NAME).read_bytes())
    assert is_petastorm(store)


def test_directories_that_are_no_petastorm_dataset_are_refused(tmp_path, copy):
    with pytest.raises(
        NotFoundError, match=r"no Petastorm dataset: there is no _common_metadata.*open_dataset\(\)"
    ):
        petastorm_source(tmp_path)
    pq.write_metadata(pa.schema([("a", pa.int8())]), tmp_path / METADATA_NAME)
    with pytest.raises(NotFoundError, match=r"has no key 'dataset-toolkit.unischema.v1'"):
        petastorm_source(tmp_path)
    (copy / METADATA_NAME).write_bytes(b"PAR1 no")
    with pytest.raises(CorruptError, match=r"is not a whole Parquet footer .* Restore it"):
        petastorm_source(copy)
    with pytest.raises(DataError, match="hdfs://a/b is not a path of this machine"):
        petastorm_source("hdfs://a/b")


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ColumnError, match=r"'scor'; did you mean 'score'\?"):
        petastorm_source(DATASET, ["scor"])
    with pytest.raises(UsageError, match="images='raw', but it must be one of 'decode', 'keep'"):
        convert_petastorm(DATASET, tmp_path, images="raw")
    assert not list(tmp_path.iterdir())


def test_fields_that_no_dataset_holds_are_named(tmp_path):
    with pytest.raises(DataError, match=r"words \(arrays of str\).*name only other fields in columns="):
        convert_petastorm(DATASET, tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_that_differ_from_the_schema_are_named(copy):
    file = files_of(copy)[-2]
    rows = stored(file, "matrix")
    replaced(file, "matrix", [*rows[:-1], saved(np.zeros((3, 5), np.float32))], groups=4)
    with pytest.raises(DataError) as caught:
        petastorm_source(copy, ["id", "matrix"]).collect()
    group, row = divmod(len(rows) - 1, 4)
    text = str(caught.value)
    assert f"{file}: row group {group}, field 'matrix', row {row}: it is float32[3, 5]" in text
    assert "the Unischema says matrix: float32[3, 4] by NdarrayCodec" in text


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("matrix", saved(np.zeros((3, 4), np.float64)), DataError, "row 1: it is float64[3, 4], but the Unischema"),
        ("matrix", b"none", CorruptError, "row 1: its 4 bytes are no array of NdarrayCodec"),
        ("packed", b"none", CorruptError, "row 1: its 4 bytes are no array of CompressedNdarrayCodec"),
        ("packed", saved(np.zeros(3)), CorruptError, "row 1: its 152 bytes are no array of Compr"),
        ("image", b"none", CorruptError, "row 1: its 4 bytes"),
        ("tokens", saved(np.zeros((1, 1), np.int32)), DataError, "row 1: it is int32[1, 1], but the Unischema says"),
        ("tokens", b"none", CorruptError, "row 1: its 4 bytes are no array"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(copy, name, value, error, text):
    file = files_of(copy)[0]
    values = stored(file, name)
    values[1] = value
    replaced(file, name, values)
    with pytest.raises(error) as caught:
        petastorm_source(copy, [name]).collect()
    assert f"{file}: row group 0, field {name!r}, {text}" in str(caught.value)


def test_scalars_that_do_not_fit_are_named(copy):
    file = files_of(copy)[0]
    values = stored(file, "small")
    values[2] = 256
    replaced(file, "small", values)
    with pytest.raises(
        DataError, match=r"row group 0, field 'small', row 2: 256 is stored as int16 and does not fit"
    ):
        petastorm_source(copy, ["small"]).collect()


def test_files_that_lack_a_field_or_store_another_type_are_named(copy):
    file = files_of(copy)[1]
    replaced(file, "matrix", pa.array(["x"] * len(stored(file, "id"))))
    with pytest.raises(
        DataError, match=r"field 'matrix' is stored as (large_)?string, but the Unischema says matrix"
    ):
        petastorm_source(copy, ["matrix"]).collect()
    replaced(file, "matrix", None)
    with pytest.raises(DataError, match=r"has no column 'matrix', which the Unischema lists"):
        petastorm_source(copy, ["id", "matrix"])
    assert petastorm_source(copy, ["id"]).collect().rows == 46


def test_nulls_need_a_policy(tmp_path):
    with pytest.raises(DataError, match=r"column 'gray' in 12 rows .the first are rows 2, 6, 10"):
        convert_petastorm(DATASET, tmp_path, columns=["gray"])


def test_damaged_files_are_named(copy):
    file = files_of(copy)[0]
    data = bytearray(file.read_bytes())
    place = pq.read_metadata(file).row_group(1).column(11)
    start = place.dictionary_page_offset or place.data_page_offset
    data[start : start + 40] = bytes(40)
    file.write_bytes(data)
    with pytest.raises(
        CorruptError, match=r"row group 1, field 'matrix' cannot be decoded; the file was truncated"
    ):
        petastorm_source(copy, ["matrix"]).collect()
    file.write_bytes(data[:-100])
    with pytest.raises(CorruptError, match="is not a complete Parquet file"):
        petastorm_source(copy, ["id"])
