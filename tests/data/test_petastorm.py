"""Datasets that Petastorm wrote, in ``petastorm/``: what their schemas say, and what their rows become."""

import base64
import contextlib
import io
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data import open_dataset, prepare
from hopyard.data.petastorm.convert import convert_petastorm, is_petastorm, petastorm_source
from hopyard.data.petastorm.pickled import Record, Symbol, read_pickle
from hopyard.data.petastorm.schema import METADATA_NAME, UNISCHEMA_KEY, Field, parse_unischema, read_unischema
from hopyard.errors import (
    ColumnError,
    CorruptError,
    DataError,
    HopyardError,
    NotFoundError,
    UnsupportedTypeError,
    UsageError,
)
from hopyard.storage import LocalStore, MemoryStore

HERE = Path(__file__).parent / "petastorm"
DATASET = HERE / "dataset"
PICKLES = {
    key: base64.b64decode(text) for key, text in json.loads((HERE / "unischemas.json").read_text()).items()
}
NOT_ALIKE = ("words", "sizes")  # texts in arrays, images of several sizes
COLUMNS = [name for name in read_unischema(DATASET) if name not in NOT_ALIKE]


@pytest.fixture(scope="module")
def expected():
    with np.load(HERE / "expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def copy(tmp_path):
    """A copy of the dataset, to be changed."""
    return Path(shutil.copytree(DATASET, tmp_path / "dataset"))


def files_of(directory):
    return sorted(directory.rglob("*.parquet"))


def replaced(file, name, values, groups=None):
    """Write a file again with another column, or without one; bytes keep the type that was stored."""
    table = pq.ParquetFile(file).read()
    place = table.schema.get_field_index(name)
    if values is None:
        table = table.remove_column(place)
    else:
        array = values if isinstance(values, pa.Array) else pa.array(values, table.schema.field(name).type)
        table = table.set_column(place, pa.field(name, array.type), array)
    pq.write_table(table, file, row_group_size=groups)


def stored(file, name):
    return pq.ParquetFile(file).read()[name].to_pylist()


def saved(array):
    memory = io.BytesIO()
    np.save(memory, array)
    return memory.getvalue()


def with_schema(directory, pickled):
    schema = pa.schema([("id", pa.int64())]).with_metadata({UNISCHEMA_KEY: pickled})
    pq.write_metadata(schema, directory / METADATA_NAME)


def rows_of(dataset):
    """The rows of a dataset in the order of ``id``."""
    batch = dataset[:]
    order = np.argsort(batch["id"])
    return {name: values[order] for name, values in batch.items()}


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


@pytest.mark.parametrize("key", PICKLES)
def test_schemas_of_all_versions_and_protocols_are_the_same(key):
    first, fields = read_unischema(DATASET), parse_unischema(PICKLES[key], key)
    assert fields == first
    assert fields["image"].arguments == {"format": "png", "quality": 80}
    assert fields["photo"].arguments == {"format": "jpeg", "quality": 90}
    assert fields["count"] == Field("count", "int32", (), "ScalarCodec", {"spark_type": "IntegerType"}, True)
    assert fields["sizes"].shape == (None, None, 3)
    assert fields["ratio"].codec is None


@pytest.mark.parametrize("package", ["av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit"])
def test_schemas_of_earlier_package_names_are_read(package):
    pickled = PICKLES["0.5.1, protocol 0"].replace(b"cpetastorm.", b"c" + package.encode() + b".")
    assert package.encode() in pickled
    assert parse_unischema(pickled, "it") == read_unischema(DATASET)


def test_schemas_of_python_2_are_read():
    """Its texts are of the opcode STRING, and its numpy.str_ is unicode_."""
    lines = PICKLES["0.5.1, protocol 0"].split(b"\n")
    told = [b"S'" + line[1:] + b"'" if line[:1] == b"V" else line for line in lines]
    pickled = b"\n".join(told).replace(b"\nsV", b"\nsS").replace(b"str_\n", b"unicode_\n")
    pickled = b"\n".join(
        b"sS'" + line[2:] + b"'" if line[:2] == b"sS" and line[-1:] != b"'" else line
        for line in pickled.split(b"\n")
    )
    assert b"S'" in pickled
    assert b"unicode_" in pickled
    assert parse_unischema(pickled, "it") == read_unischema(DATASET)


class Stand:
    """Pickled as whatever it is told."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def made(module, name):
    """A function that is pickled as a name of a module that need not exist."""

    def function():
        """Never called."""

    function.__module__, function.__qualname__, function.__name__ = module, name, name
    return function


class Pickler(pickle._Pickler):
    """Pickles the functions of ``made`` without looking for them."""

    def save_global(self, obj, name=None):
        self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__qualname__}\n".encode())
        self.memoize(obj)

    dispatch = {**pickle._Pickler.dispatch, type(made): save_global, type: save_global}  # noqa: RUF012


def unischema(*fields):
    """A pickled Unischema of these fields, spelled by hand."""
    memory = io.BytesIO()
    items = iter([(str(number), field) for number, field in enumerate(fields)])
    ordered = Stand(made("collections", "OrderedDict"), (), None, None, items)
    Pickler(memory, 2).dump(
        Stand(made("petastorm.unischema", "Unischema"), (), {"_name": "x", "_fields": ordered})
    )
    return memory.getvalue()


def field(name="a", dtype=np.int32, shape=(), codec=None, nullable=False):
    return Stand(made("petastorm.unischema", "UnischemaField"), (name, dtype, shape, codec, nullable))


def test_named_tuples_as_pyspark_pickled_them_are_read():
    names = ("name", "numpy_dtype", "shape", "codec", "nullable")
    values = ("a", np.float32, (2, None), None, True)
    pickled = unischema(Stand(made("pyspark.serializers", "_restore"), ("UnischemaField", names, values)))
    assert parse_unischema(pickled, "it") == {"a": Field("a", "float32", (2, None), None, None, True)}


def test_dtypes_may_be_instances_and_python_types():
    pickled = unischema(
        field("a", Stand(made("numpy", "dtype"), ("f4", False, True), (3, "<", None, None, None, -1, -1, 0))),
        field("b", made("__builtin__", "unicode")),
        field("c", made("builtins", "float")),
        field("d", made("numpy", "bool")),
    )
    assert [each.dtype for each in parse_unischema(pickled, "it").values()] == [
        "float32",
        "str",
        "float64",
        "bool",
    ]


def test_a_hostile_pickle_does_nothing(copy, tmp_path):
    trace = tmp_path / "trace"
    attack = pickle.dumps(Stand(os.system, (f"touch {trace}",)))
    pickle.loads(attack)
    assert trace.exists()  # it works where pickles are loaded
    trace.unlink()
    with_schema(copy, attack)
    with pytest.raises(CorruptError, match=r"was followed to its end, but it is no Unischema with fields"):
        petastorm_source(copy)
    hidden = unischema(field(codec=Stand(made("posix", "system"), (f"touch {trace}",))))
    with_schema(copy, hidden)
    with pytest.raises(
        UnsupportedTypeError, match=r"field 'a' is encoded by posix.system, not by one of Petastorm's"
    ):
        petastorm_source(copy)
    assert not trace.exists()


def test_arrays_that_are_pickles_are_not_loaded(copy, tmp_path):
    trace = tmp_path / "trace"
    objects = np.array([Stand(os.system, (f"touch {trace}",))], object)
    file = files_of(copy)[0]
    replaced(file, "matrix", [saved(objects), *stored(file, "matrix")[1:]])
    with pytest.raises(
        CorruptError, match=r"row group 0, field 'matrix', row 0: its .* are no array of NdarrayCodec"
    ):
        petastorm_source(copy, ["matrix"]).collect()
    assert not trace.exists()


def test_pickles_that_would_exhaust_the_stack_are_refused():
    deep = b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x01s."
    with pytest.raises(CorruptError, match="a dict has keys that are no text"):
        read_pickle(deep, "it")
    names = Stand(made("pyspark.serializers", "_restore"), ("UnischemaField", ("a", ("b",)), (1, 2)))
    with pytest.raises(CorruptError, match="a field has other parts than name, numpy_dtype"):
        parse_unischema(unischema(names), "it")


def test_columns_that_the_schema_does_not_list_are_told(copy, caplog):
    file = files_of(copy)[0]
    table = pq.ParquetFile(file).read()
    pq.write_table(table.append_column("extra", table["id"]), file)
    petastorm_source(copy)
    assert "columns that the Unischema does not list are left out: extra" in caplog.text


def test_symbols_and_records_are_plain_data():
    assert read_pickle(pickle.dumps(np.dtype, 4), "it") == Symbol("numpy", "dtype")
    record = read_pickle(pickle.dumps(Path("x"), 2), "it")
    assert isinstance(record, Record)
    assert record.function.module.startswith("pathlib")
    assert record.arguments == ("x",)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN, st.integers(3, 5))
def test_plain_data_is_itself(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol), "it") == value


@given(st.sampled_from(sorted(PICKLES)), st.data())
def test_damaged_schemas_are_refused_or_read_but_never_fail_otherwise(key, data):
    pickled = bytearray(PICKLES[key])
    for _ in range(data.draw(st.integers(1, 4))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(pickled[: data.draw(st.integers(0, len(pickled)))])
    with contextlib.suppress(HopyardError):
        assert all(isinstance(each, Field) for each in parse_unischema(cut, "it").values())


@pytest.mark.parametrize(
    ("pickled", "error", "text"),
    [
        (b"", CorruptError, "it is a pickle that cannot be followed"),
        (PICKLES["0.13.1, protocol 4"][:-200], CorruptError, "petastorm-generate-metadata.py"),
        (pickle.dumps({1, 2}, 4), CorruptError, "opcode EMPTY_SET has no place in a schema"),
        (pickle.dumps([1]), CorruptError, "it is no Unischema with fields"),
        (unischema(), CorruptError, "it is no Unischema with fields"),
        (unischema(3), CorruptError, "a field is a int, not a UnischemaField"),
        (unischema(field(shape="ab")), CorruptError, "'a' has a shape that is no tuple of sizes and None"),
        (unischema(field(dtype=np.complex64)), UnsupportedTypeError, "field 'a' is of the type numpy.complex64"),
        (unischema(field(codec=Stand(made("mine", "Codec"), ()))), UnsupportedTypeError, "is encoded by mine.Codec"),
    ],
)  # fmt: skip
def test_unexpected_schemas_say_what_is_wrong(pickled, error, text):
    with pytest.raises(error) as caught:
        parse_unischema(pickled, "it")
    assert text in str(caught.value)


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
    with pytest.raises(UsageError, match="images='raw' is unknown; it must be one of 'decode', 'keep'"):
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
    with pytest.raises(DataError, match=r"'gray' has 12 .the first in row"):
        convert_petastorm(DATASET, tmp_path, columns=["gray"])


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
    with pytest.raises(CorruptError, match="is not a whole Parquet file"):
        petastorm_source(copy, ["id"])


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
