"""The bytes of fragments."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hopyard.errors import CorruptError
from hopyard.objects.digests import digest
from hopyard.objects.tensors import Tensor
from hopyard.stockroom.data.fragments import Fragment, encode_fragment, is_plainly
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes, encoded, keys_of
from hopyard.stockroom.data.samples import StoredSample, empty_record, rows_of
from hopyard.stockroom.maps import Key, encode
from hopyard.stockroom.records import ColumnRecord

IMAGES = empty_record("tensor", "F32", (2, 3), nested=False)
VARYING = empty_record("tensor", "I16", (2, None), nested=False)
TEXTS = empty_record("string", "U8", (), nested=False)

CASES: dict[str, tuple[ColumnRecord, list[Key], list[StoredSample], str]] = {
    "range": (
        IMAGES, [7, 8], [Tensor.from_numpy(np.full((2, 3), value, np.float32)) for value in (1, 2)],
        "ace86136fbf6da66f4a321e3711b38cf86fc919e5ee6a3feb2c811364bc76b64",
    ),
    "ints": (
        VARYING, [-3, 8, 9], [Tensor.from_numpy(np.zeros((2, n), np.int16)) for n in (0, 3, 1)],
        "6d84d41fd3383a98d35f0c42843bc9fee5a2bfab03a29f4ad8792625de75dadc",
    ),
    "bytes": (TEXTS, [1, "a", "b\0"], ["one", "", "zwei \N{SNOWMAN}"],
        "06eac7cc326556a4ee3f890ca2a265e4c6380ac1bf9b3ce323b2c6ecf2b947c6"),
    "pairs": (TEXTS, [(1, "a"), (1, "b")], ["x", "y"],
        "51b4869bcd8d3e7235fcb23573691f43242133a04b69b8b0ca75ae08f25b251e"),
}  # fmt: skip


def fragment_of(name: str) -> tuple[bytes, int]:
    record, keys, values, _ = CASES[name]
    return encode_fragment(
        record, [KeyedSamples(keys_of([encode(key) for key in keys]), rows_of(values, record))]
    )


@pytest.mark.parametrize("name", CASES)
def test_the_format_is_fixed(name: str) -> None:
    assert digest(fragment_of(name)[0], "hopyard.fragment") == CASES[name][3]


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_what_was_written(name: str) -> None:
    record, keys, values, _ = CASES[name]
    data, body = fragment_of(name)
    assert body % 64 == 0
    fragment = Fragment(np.frombuffer(data, np.uint8))
    assert encoded(fragment.keys) == [encode(key) for key in keys]
    rows = rows_of(values, record)
    assert_array_equal(fragment.rows.data, rows.data)
    assert data[body:] == rows.data.tobytes()
    for found, wanted in ((fragment.rows.offsets, rows.offsets), (fragment.rows.shapes, rows.shapes)):
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert_array_equal(found, wanted)


def test_a_fragment_in_parts_is_the_same_as_at_once() -> None:
    for name, (record, keys, values, _) in CASES.items():
        batch = KeyedSamples(keys_of([encode(key) for key in keys]), rows_of(values, record))
        parts = [batch.part(slice(0, 1)), batch.part(slice(1, None))]
        assert encode_fragment(record, parts) == fragment_of(name)


@pytest.mark.parametrize("change", ["empty", "magic", "cut", "longer", "header", "keys"])
def test_what_is_no_fragment_says_so(change: str) -> None:
    data = fragment_of("range")[0]
    damaged = {
        "empty": b"",
        "magic": b"X" + data[1:],
        "cut": data[:-1],
        "longer": data + b"\0",
        "header": data.replace(b'"F32"', b'"X32"'),
        "keys": data.replace(b'{"range":7}', b'"sort of x"'),
    }[change]
    with pytest.raises(CorruptError, match=r"is not a fragment .*hopyard stock verify"):
        Fragment(np.frombuffer(damaged, np.uint8))


def test_rows_that_differ_are_found() -> None:
    one, other = ([Tensor.from_numpy(np.zeros(shape, np.int16)) for shape in shapes] for shapes in (
        [(2, 3), (2, 1), (2, 2)], [(2, 3), (2, 2), (2, 2)],
    ))  # fmt: skip
    other[2] = Tensor.from_numpy(np.ones((2, 2), np.int16))
    assert rows_of(one, VARYING).differing(rows_of(other, VARYING)).tolist() == [False, True, True]
    assert SampleBytes(np.eye(2, dtype=np.uint8)).differing(SampleBytes(np.ones((2, 2), np.uint8))).all()
    assert rows_of(["", "a"], TEXTS).differing(rows_of(["", "b"], TEXTS)).tolist() == [False, True]


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("keys", [
    [7], [-2, -1, 0], [_LEAST, _LEAST + 1], [_MOST - 1, _MOST], [_LEAST, 3, _MOST], ["a", "c"], [5, 6, "a"],
    [(1, "a"), (1, "b")],
])  # fmt: skip
def test_a_key_is_found_where_it_is_and_no_other_is(keys: list[Key]) -> None:
    names = [encode(key) for key in keys]
    batch = KeyedSamples(keys_of(names), rows_of([""] * len(keys), TEXTS))
    fragment = Fragment(np.frombuffer(encode_fragment(TEXTS, [batch])[0], np.uint8))
    assert [fragment.position(name) for name in names] == list(range(len(keys)))
    others: list[Key] = [_LEAST, -3, 0, 1, 4, 8, _MOST - 2, _MOST, "", "b", "z", (1, "0"), (1, "c"), (2, 1)]
    assert {fragment.position(encode(key)) for key in others if key not in keys} <= {None}
    fragment.check_fits(TEXTS, names[0], names[-1], len(keys), 0)
    for first, last in [(encode("b"), names[-1]), (names[0], encode("zz"))]:
        with pytest.raises(CorruptError, match="other keys than the column's map says"):
            fragment.check_fits(TEXTS, first, last, len(keys), 0)


@pytest.mark.parametrize("keys", [[7], [-2, -1, 0], [_MOST - 1, _MOST], ["name"], [("pair", 3)]])
def test_a_plain_fragment_is_told_by_a_comparison_and_nothing_else_is(keys: list[Key]) -> None:
    names = [encode(key) for key in keys]
    values: list[StoredSample] = [
        Tensor.from_numpy(np.full((2, 3), at, np.float32)) for at in range(len(keys))
    ]
    batch = KeyedSamples(keys_of(names), rows_of(values, IMAGES))
    data = np.frombuffer(encode_fragment(IMAGES, [batch])[0], np.uint8)
    first, last, count, nbytes = names[0], names[-1], len(keys), 24 * len(keys)
    assert is_plainly(data, IMAGES, first, last, count, nbytes)
    other = encode("other")
    same_size = empty_record("tensor", "I32", (2, 3), nested=False)
    for record, *said in [
        (same_size, first, last, count, nbytes),
        (IMAGES, other, last, count, nbytes),
        (IMAGES, first, other, count, nbytes),
        (IMAGES, first, encode(9), count + 1, nbytes + 24),
        (IMAGES, first, last, count, nbytes + 24),
    ]:
        assert not is_plainly(data, record, *said)
        with pytest.raises(CorruptError):
            Fragment(data).check_fits(record, *said)
    for at in (0, 9, 40, len(data) - nbytes - 1):
        changed = data.copy()
        changed[at] ^= 1
        assert not is_plainly(changed, IMAGES, first, last, count, nbytes)
    assert not is_plainly(data[:-1], IMAGES, first, last, count, nbytes)
    purged, _ = encode_fragment(IMAGES, [batch], [[0, "2026-01-01", "Ada", "asked"]])
    assert not is_plainly(np.frombuffer(purged, np.uint8), IMAGES, first, last, count, nbytes)
