from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import UsageError
from hopyard.stockroom.maps import keys as k
from hopyard.stockroom.maps.keys import Key, check_key, decode, encode

INTS = st.integers(-(2**63), 2**63 - 1)
# Characters around the escape of the encoding often.
STRINGS = st.text() | st.text(alphabet="\0\x01\x02a\xff\uffff\U00010000", max_size=4)
PARTS = INTS | STRINGS
KEYS = PARTS | st.tuples(PARTS, PARTS)


def place(key: Key) -> tuple[Any, ...]:
    """What keys are ordered by."""

    def of(part: int | str) -> tuple[Any, ...]:
        return (0, part) if isinstance(part, int) else (1, [ord(character) for character in part])

    return (2, of(key[0]), of(key[1])) if isinstance(key, tuple) else of(key)


@given(KEYS, KEYS)
def test_the_order_of_bytes_is_the_order_of_keys(a: Key, b: Key) -> None:
    assert (encode(a) < encode(b)) == (place(a) < place(b))
    assert (encode(a) == encode(b)) == (a == b)


@given(KEYS)
def test_a_key_comes_back(key: Key) -> None:
    back = decode(encode(key))
    assert back == key
    assert type(back) is type(key)


@given(
    st.binary(max_size=20)
    | st.builds(bytes.__add__, st.sampled_from([b"\1", b"\2", b"\3\2", b"\3\1"]), st.binary())
)
def test_bytes_are_one_key_or_refused(data: bytes) -> None:
    try:
        key = decode(data)
    except UsageError:
        return
    assert encode(key) == data


def test_bytes_that_are_no_key_say_so() -> None:
    with pytest.raises(UsageError, match=r"the bytes b'data/image' are not an encoded key"):
        decode(b"data/image")


def test_the_encoding_is_fixed() -> None:
    assert encode(-1).hex() == "017fffffffffffffff"
    assert encode("cat").hex() == "02636174"
    assert encode(("a\0", 1)).hex() == "03026100ff00018000000000000001"


def test_the_hash_is_fixed() -> None:
    # The first number of SplitMix64 with seeds 0 and 1, as in the reference implementation.
    assert k.hash_key(encode(0)) == 0xE220A8397B1DCDAF
    assert k.hash_key(encode(1)) == 0x910A2DEC89025CC1
    assert k.hash_key(encode("cat")) == int.from_bytes(blake3(encode("cat")).digest()[:8], "little")


@given(st.lists(INTS))
def test_arrays_of_ints_are_encoded_and_hashed_like_single_ones(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert [bytes(row) for row in k.encode_ints(array)] == [encode(value) for value in values]
    assert k.hash_ints(array).tolist() == [k.hash_key(encode(value)) for value in values]
    assert array.tolist() == values


@given(st.lists(KEYS) | st.lists(INTS))
def test_many_keys_are_treated_like_single_ones(many: list[Key]) -> None:
    encoded = k.encode_many(many)
    assert encoded == [encode(key) for key in many]
    assert k.decode_many(encoded) == many
    assert k.hash_many(encoded).tolist() == [k.hash_key(key) for key in encoded]


class Colour(enum.IntEnum):
    RED = 3


class Name(enum.StrEnum):
    CAT = "cat"


@pytest.mark.parametrize(
    ("given_key", "key"),
    [
        (np.int8(-3), -3),
        (np.uint64(7), 7),
        (np.str_("x"), "x"),
        ("", ""),
        (Colour.RED, 3),
        (Name.CAT, "cat"),
        ((np.int64(1), "a"), (1, "a")),
    ],
)
def test_keys_become_plain(given_key: Any, key: Key) -> None:
    checked = check_key(given_key)
    assert checked == key
    assert type(checked) is type(key)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (True, "is of type bool, but keys are ints, strings, or pairs"),
        (np.bool_(True), "but keys are ints, strings, or pairs"),
        (None, "is of type NoneType"),
        (1.5, "is of type float.*Give a number or a name"),
        (2.0, "is of type float.*Give 2 for a whole number"),
        (float("inf"), "is of type float"),
        (range(3), r"is of type range.*give a slice of all keys, column\[2:5\], or a list of keys"),
        ((slice(0, 2), 0), "is of type slice.*give a slice of all keys"),
        (b"cat", r"Decode bytes to a string first: key.decode\(\)"),
        (2**63, "does not fit into 64 bits.*Give it as a string: '9223372036854775808'"),
        (np.uint64(2**63), "does not fit into 64 bits"),
        (-(2**63) - 1, "does not fit into 64 bits"),
        ("a\ud800", "half of a surrogate pair at character 1"),
        ((1, 2, 3), "has 3 parts, but a tuple that is a key has two"),
        ((1, None), r"the key \(1, None\) is of type NoneType"),
        ((1, (2, 3)), "Pairs cannot hold pairs"),
        ([1, 2], "is of type list"),
    ],
)
def test_what_is_no_key_is_refused(key: Any, message: str) -> None:
    for refusing in (check_key, encode, lambda value: k.encode_many([value])):
        with pytest.raises(UsageError, match=message):
            refusing(key)
