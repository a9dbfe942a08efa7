"""Schemas of every version of Petastorm are read without loading a pickle."""

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.files.pickled import DeferredCall, Symbol, read_pickle
from hopyard.data.files.unischema import Field, parse_unischema, read_unischema
from hopyard.data.petastorm.convert import petastorm_source
from hopyard.errors import (
    CorruptError,
    HopyardError,
    UnsupportedTypeError,
)

from .pickles import Stand, field, made, unischema
from .stored import DATASET, PICKLES, files_of, replaced, saved, stored, with_schema


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
    pairs = b"\x80\x02}" + b")" + b"2\x86" * 60 + b"K\x01s."
    with pytest.raises(CorruptError, match="a dict has keys that are no text"):
        read_pickle(pairs, "it")
    names = Stand(made("pyspark.serializers", "_restore"), ("UnischemaField", ("a", ("b",)), (1, 2)))
    with pytest.raises(CorruptError, match="a field has other parts than name, numpy_dtype"):
        parse_unischema(unischema(names), "it")


def test_symbols_and_records_are_plain_data():
    symbol = read_pickle(pickle.dumps(np.dtype, 4), "it")
    assert isinstance(symbol, Symbol)
    assert (symbol.module, symbol.name, str(symbol)) == ("numpy", "dtype", "numpy.dtype")
    record = read_pickle(pickle.dumps(Path("x"), 2), "it")
    assert isinstance(record, DeferredCall)
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
        (b"\x80\x02Pname\n.", CorruptError, "opcode PERSID has no place in a schema"),
        (b"\x80\x02\x82\x01.", CorruptError, "opcode EXT1 has no place in a schema"),
        (b"(ios\nsystem\n.", CorruptError, "opcode INST has no place in a schema"),
        (b"\x80\x02cos\nsystem\n}b.", CorruptError, "cannot be followed"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", CorruptError, "it is no Unischema with fields"),
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
