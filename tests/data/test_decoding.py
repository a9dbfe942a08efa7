"""Rows of bytes decoded into a tensor, in threads: shapes, functions, errors, processes."""

import functools
import io
import json
import logging
import multiprocessing
import pickle
import struct
import threading

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hopyard.data import Column, Ragged, image
from hopyard.data.recipe import decoding as module
from hopyard.data.recipe.decoding import Decoder, check_decodable, decode_rows, digest_or_random
from hopyard.data.schema import TENSOR_DTYPES
from hopyard.errors import CorruptError, DataError, UsageError

WHERE = "part-0.parquet, row group 2, column 'photo'"


def rows_of(items):
    return Ragged.from_rows([np.frombuffer(item, np.uint8) for item in items], np.uint8)


def encoded(array, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


def pictures(count, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def number(row):
    """A record of four bytes."""
    return struct.unpack("<i", row)[0]


def records(numbers):
    return rows_of([struct.pack("<i", each) for each in numbers])


@pytest.fixture(params=[1, 4])
def threads(request, monkeypatch):
    """Decoding by that many threads, whatever the machine has."""
    monkeypatch.setattr(module, "usable_cores", lambda: request.param)
    return request.param


# What comes out


@pytest.mark.parametrize("count", [1, 2, 100])
def test_rows_are_decoded_in_their_places(threads, count):
    values = pictures(count, 5, 7, 3)
    found = decode_rows(rows_of([encoded(each) for each in values]), image(), None, WHERE)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, values)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=200), st.integers(1, 8), st.data())
def test_any_number_of_threads_decodes_each_row_once_into_its_place(numbers, threads, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))))
    mask[data.draw(st.integers(0, len(numbers) - 1))] = False
    seen = []

    def noted(row):
        seen.append(number(row))
        return number(row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "usable_cores", lambda: threads)
        found = decode_rows(records(numbers), Decoder(noted, ""), None, WHERE, mask)
    np.testing.assert_array_equal(found, np.where(mask, 0, numbers))
    assert sorted(seen) == sorted(np.array(numbers)[~mask])


def test_several_threads_decode_at_once(monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 3)
    together = threading.Barrier(3)
    decode_rows(
        records(range(4)), Decoder(lambda row: row != b"\0" * 4 and together.wait(30) < 9, ""), None, WHERE
    )


def test_no_thread_stays_behind(monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    before = set(threading.enumerate())
    decode_rows(records(range(100)), Decoder.of(number), None, WHERE)
    with pytest.raises(DataError):
        decode_rows(records(range(100)), Decoder.of(lambda row: 1 // (number(row) % 50 - 10)), None, WHERE)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("function", "dtype", "shape"),
    [
        (number, "int64", ()),
        (lambda row: row == b"1234", "bool", ()),
        (lambda row: number(row) / 2, "float64", ()),
        (lambda row: [[1, 2], [3, 4], [5, 6]], "int64", (3, 2)),
        (lambda row: np.frombuffer(row, ">u2"), "uint16", (2,)),
        (lambda row: np.float16(1), "float16", ()),
        (lambda row: torch.ones(2, 3), "float32", (2, 3)),
        (lambda row: json.loads(b'{"x": [1.5, 2]}')["x"], "float64", (2,)),
        (functools.partial(np.frombuffer, dtype="<f4"), "float32", (1,)),
    ],
)
def test_what_a_function_gives_becomes_an_array(function, dtype, shape):
    found = decode_rows(records(range(40)), Decoder.of(function), None, WHERE)
    assert (found.dtype, found.shape) == (np.dtype(dtype), (40, *shape))
    assert found.dtype.isnative
    np.testing.assert_array_equal(found[7], np.asarray(function(struct.pack("<i", 7))))


def test_a_column_says_what_rows_must_be_also_where_there_are_none():
    column = Column("photo", "tensor", "int64", ())
    assert decode_rows(records([5]), Decoder.of(number), column, WHERE).tolist() == [5]
    assert decode_rows(records([]), Decoder.of(number), column, WHERE).shape == (0,)
    with pytest.raises(DataError, match="row 0 is int64 when decoded, but the dataset has photo: int32"):
        decode_rows(records([5]), Decoder.of(number), Column("photo", "tensor", "int32"), WHERE)


def test_rows_that_are_missing_are_zeros_and_not_decoded():
    rows = rows_of([b"", encoded(pictures(1, 5, 7)[0]), b"", b""])
    found = decode_rows(rows, image(), None, WHERE, np.array([True, False, True, True]))
    np.testing.assert_array_equal(found[1], pictures(1, 5, 7)[0])
    assert found.shape == (4, 5, 7)
    assert not found[[0, 2, 3]].any()


@pytest.mark.parametrize(("items", "missing"), [([], None), ([b"", b""], np.array([True, True]))])
def test_without_a_row_there_is_nothing_to_learn_the_shape_from(items, missing):
    with pytest.raises(DataError, match="there is no row to decode, so what the decoder gives is unknown"):
        decode_rows(rows_of(items), image(), None, WHERE, missing)


# Errors


def fails(items, decoder, error=DataError):
    with pytest.raises(error) as caught:
        decode_rows(rows_of(items), decoder, None, WHERE)
    return caught.value


def test_images_of_different_shapes_name_the_row_both_shapes_and_the_way_out(threads):
    items = [encoded(each) for each in pictures(50, 5, 7, 3)]
    items[30] = encoded(pictures(1, 6, 7)[0])
    assert str(fails(items, image())) == (
        f"{WHERE}, row 30 is uint8[6, 7] when decoded, but row 0 is uint8[5, 7, 3] when decoded. All images must have "
        "one size and one mode: give decode=image(size=(h, w), mode='RGB')."
    )
    found = decode_rows(rows_of(items), image(size=(4, 4), mode="RGB"), None, WHERE)
    assert found.shape == (50, 4, 4, 3)


def test_arrays_of_different_dtypes_are_an_error():
    error = fails([b"a", b"b"], Decoder.of(lambda row: 1 if row == b"a" else 2.5))
    assert str(error) == (
        f"{WHERE}, row 1 is float64 when decoded, but row 0 is int64 when decoded. The decoder must give one dtype and "
        "one shape for all rows."
    )


def test_an_image_that_cannot_be_decoded_names_the_row_and_keeps_the_cause(threads):
    items = [encoded(each) for each in pictures(50, 5, 7)]
    items[30] = items[30][:20]
    items[45] = b"no image"
    error = fails(items, image(), CorruptError)
    assert str(error).startswith(f"{WHERE}, row 30: its 20 bytes, which begin with b'\\x89PNG\\r\\n\\x1a\\n")
    assert error.__cause__ is not None


def test_the_first_row_is_named_too():
    assert str(fails([b"no image"], image(), CorruptError)).startswith(f"{WHERE}, row 0: its 8 bytes")


def test_an_error_of_a_function_names_the_row_and_keeps_the_cause(threads):
    error = fails([bytes([each]) * 4 for each in range(100)], Decoder.of(lambda row: 1 / (row[0] % 50 - 40)))
    assert str(error) == (
        f"{WHERE}, row 40: the decoder {test_an_error_of_a_function_names_the_row_and_keeps_the_cause.__name__}"
        ".<locals>.<lambda> failed for its 4 bytes: ZeroDivisionError: division by zero. Mend the decoder, or remove "
        "the row."
    )
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    "result",
    ["text", b"bytes", None, 1j, 2**70, np.datetime64("2020-01-01"), {"a": 1}, np.longdouble(1), {1, 2}],
)
def test_a_result_without_a_dtype_of_a_tensor_is_refused(result):
    text = str(fails([b"a"], Decoder.of(lambda row: result)))
    assert text.startswith(f"{WHERE}, row 0: the decoder gave an array of {np.asarray(result).dtype}; ")
    assert text.endswith(f"must be one of {', '.join(TENSOR_DTYPES)}. Convert it in the decoder.")


def test_bfloat16_and_ragged_lists_are_refused():
    assert "failed for its 1 bytes: TypeError: Got unsupported ScalarType BFloat16" in str(
        fails([b"a"], Decoder.of(lambda row: torch.ones(2, dtype=torch.bfloat16)))
    )
    assert "failed for its 1 bytes: ValueError" in str(fails([b"a"], Decoder.of(lambda row: [[1], [2, 3]])))


# Decoders


def test_the_name_image_and_decoders_are_decoders():
    assert Decoder.of("image") == image()
    decoder = image((3, 4))
    assert Decoder.of(decoder) is decoder
    assert Decoder.of(decoder.function) == decoder


@pytest.mark.parametrize("given", ["jpeg", 5, None, {"image": "image"}])
def test_what_is_no_decoder_is_refused(given):
    with pytest.raises(
        UsageError, match=r"decode=.* is no decoder; give 'image', hopyard\.data\.image\(\.\.\.\), or"
    ):
        Decoder.of(given)


def scaled(by):
    return lambda row: number(row) * by


def test_functions_that_compute_the_same_are_equal_decoders():
    assert Decoder.of(scaled(2)) == Decoder.of(scaled(2))
    assert len({Decoder.of(scaled(2)), Decoder.of(scaled(3)), Decoder.of(number), image()}) == 4
    assert len(Decoder.of(number).digest) == 64


def test_decoders_travel():
    by_value = cloudpickle.loads(cloudpickle.dumps(Decoder.of(scaled(3))))
    assert by_value == Decoder.of(scaled(3))
    assert decode_rows(records([5]), by_value, None, WHERE).tolist() == [15]
    by_name = pickle.loads(pickle.dumps(Decoder.of(struct.calcsize)))
    assert by_name == Decoder.of(struct.calcsize)


def test_a_function_that_cannot_be_digested_has_a_new_digest_each_time_and_says_so(caplog):
    lock = threading.Lock()

    def guarded(row):
        with lock:
            return number(row)

    with caplog.at_level(logging.WARNING, "hopyard"):
        first = Decoder.of(guarded)
    (record,) = caplog.records
    name = guarded.__qualname__
    assert record.getMessage() == (
        f"The decoder {name} cannot be told from others, because {name} -> closure['lock'] is a _thread.lock. What it "
        "gives is not reused by other processes, nor after the dataset is opened again."
    )
    assert first != Decoder.of(guarded)
    assert len(first.digest) == 64
    assert decode_rows(records([1, 2]), first, None, WHERE).tolist() == [1, 2]


def test_a_function_that_can_be_digested_is_not_warned_of(caplog):
    assert digest_or_random(number, "one", "cached_transform") == digest_or_random(number, "one", "")
    assert digest_or_random(number, "one", "") != digest_or_random(number, "another", "")
    assert caplog.records == []


def test_only_bytes_are_decoded():
    check_decodable(Column("photo", "bytes"))
    text = (
        "decode= is for columns of bytes, but column 'name' is name: string. Text has its characters already"
    )
    with pytest.raises(DataError, match=text):
        check_decodable(Column("name", "string"))
    for kind in ("tensor", "ragged"):
        with pytest.raises(
            DataError, match=r"column 'x' is x: uint8.*It holds numbers already: leave it out of"
        ):
            check_decodable(Column("x", kind, "uint8"))


# Processes


def decoded_in_child(items, decoder, pipe):
    pipe.send(decode_rows(rows_of(items), decoder, None, WHERE))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_forked_while_threads_decode_decodes_too(monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    context = multiprocessing.get_context("fork")
    items = [encoded(each) for each in pictures(40, 5, 7)]
    forked, going_on = threading.Event(), threading.Barrier(5)

    def held(row):
        if row != items[0]:
            if not forked.is_set():
                going_on.wait(30)
            forked.wait(30)
        return image().function(row)

    parent = threading.Thread(target=decode_rows, args=(rows_of(items[:5]), Decoder(held, ""), None, WHERE))
    parent.start()
    going_on.wait(30)
    mine, its = context.Pipe()
    child = context.Process(target=decoded_in_child, args=(items, image(), its))
    child.start()
    forked.set()
    assert mine.poll(60)
    np.testing.assert_array_equal(mine.recv(), pictures(40, 5, 7))
    child.join(30)
    parent.join(30)
    assert child.exitcode == 0
    assert not parent.is_alive()
