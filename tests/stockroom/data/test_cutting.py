"""Where fragments end depends on the samples alone, and changes touch few of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.stockroom.data import cutting
from hopyard.stockroom.data.cutting import AIM, LARGE, LIMIT, FragmentEntry, rewrite, weights
from hopyard.stockroom.data.fragments import Fragment
from hopyard.stockroom.data.rows import KeyedSamples, SampleBytes, encoded, keys_of
from hopyard.stockroom.data.samples import empty_record, rows_of
from hopyard.stockroom.maps import Key, SortedMap, encode
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.records import ColumnRecord
from hopyard.storage import MemoryStore

Content = dict[bytes, bytes]


def batch_of(content: Content, record: ColumnRecord) -> KeyedSamples:
    keys = sorted(content)
    return KeyedSamples(keys_of(keys), rows_of([content[key] for key in keys], record))


def entries(objects: Any, record: ColumnRecord) -> list[FragmentEntry]:
    return [FragmentEntry.of(*item) for item in SortedMap(objects, record.pages).items()]


def content_of(objects: Any, record: ColumnRecord) -> Content:
    found: Content = {}
    for entry in entries(objects, record):
        fragment = Fragment(objects.read(entry.digest))
        codes = encoded(fragment.keys)
        assert (codes[0], codes[-1], len(codes)) == (entry.first, entry.last, entry.count)
        assert fragment.rows.nbytes == entry.nbytes
        found.update((code, fragment.rows.sample(at)[0].tobytes()) for at, code in enumerate(codes))
    assert list(found) == sorted(found)
    assert record.count == len(found)
    assert record.nbytes == sum(map(len, found.values()))
    return found


keys = st.one_of(st.integers(-5, 60), st.sampled_from("abcdefgh"), st.text("ab\0", max_size=3))
changes = st.dictionaries(keys, st.one_of(st.none(), st.integers(0, 130)), max_size=12)


@pytest.mark.parametrize("aim_bits", [3, 7, 11])
@given(steps=st.lists(changes, max_size=6), split=st.integers(1, 5))
def test_the_same_samples_have_the_same_pages_in_whatever_steps_they_were_written(
    aim_bits: int, steps: list[dict[Key, int | None]], split: int
) -> None:
    """Samples of 0 to 130 bytes in fragments of at most 100: cut naturally, by force, large, and too large for any."""
    with pytest.MonkeyPatch.context() as patch, Objects(MemoryStore()).writing() as writer:
        patch.setattr(cutting, "LIMIT", 100)
        patch.setattr(cutting, "AIM_BITS", aim_bits)
        patch.setattr(cutting, "LARGE", 60)
        record = empty_record("bytes", "U8", (), nested=False)
        wanted: Content = {}
        for number, step in enumerate(steps):
            new = {encode(key): bytes([number]) * size for key, size in step.items() if size is not None}
            gone = sorted(encode(key) for key, size in step.items() if size is None)
            batch = batch_of(new, record)
            parts = [batch.part(slice(at, at + split)) for at in range(0, len(new), split)]
            record = rewrite(writer, record, parts, gone)
            wanted = {key: value for key, value in {**wanted, **new}.items() if key not in gone}
            assert content_of(writer, record) == wanted
            at_once = rewrite(
                writer,
                empty_record("bytes", "U8", (), nested=False),
                [batch_of(wanted, record)] if wanted else [],
            )
            assert at_once.pages == record.pages


@pytest.mark.parametrize("width", [0, 64, 3072, 30_000])
def test_fragments_have_about_half_a_mebibyte_and_never_more_than_one(width: int) -> None:
    count = 40 * LIMIT // (width + 17)
    batch = KeyedSamples(np.arange(count), SampleBytes(np.zeros((count, width), np.uint8)))
    with Objects(MemoryStore()).writing() as writer:
        record = rewrite(writer, empty_record("tensor", "U8", (width,), nested=False), [batch])
        sizes = [entry.nbytes + 17 * entry.count for entry in entries(writer, record)]
    assert max(sizes) <= LIMIT
    assert AIM // 5 < np.mean(sizes) < AIM * 1.1


def test_a_sample_larger_than_a_fragment_is_alone() -> None:
    with Objects(MemoryStore()).writing() as writer:
        record = empty_record("bytes", "U8", (), nested=False)
        small = {encode(number): b"x" * 10 for number in range(100)}
        record = rewrite(writer, record, [batch_of(small, record)])
        record = rewrite(writer, record, [batch_of({encode(50): b"y" * 3 * LIMIT}, record)])
        assert [entry.count for entry in entries(writer, record)] == [50, 1, 49]


@pytest.mark.parametrize("size", [LARGE - 1, LARGE])
def test_large_samples_stand_alone_so_that_appending_one_writes_no_other_again(size: int) -> None:
    content = sized(dict.fromkeys(range(50), size))
    empty = empty_record("bytes", "U8", (), nested=False)
    with Objects(MemoryStore()).writing() as writer:
        record, written = empty, dict[str, int]()
        for key, sample in sorted(content.items()):
            record = rewrite(writer, record, [batch_of({key: sample}, empty)])
            written |= {entry.digest: entry.nbytes for entry in entries(writer, record)}
        assert record == rewrite(writer, empty, [batch_of(content, empty)])
        is_large = size == LARGE
        assert (len(entries(writer, record)) == 50) == is_large
        assert (sum(written.values()) == 50 * size) == is_large


def test_weights_are_of_samples_and_keys() -> None:
    assert (
        weights(KeyedSamples(np.arange(4), SampleBytes(np.zeros((4, 64), np.uint8)))).tolist()
        == [64 + 9 + 8] * 4
    )


def sized(sizes: dict[int, int], seed: int = 0) -> Content:
    random = np.random.default_rng(seed)
    return {encode(key): random.bytes(size) for key, size in sizes.items()}


TINY, HUGE = 8, 300_000


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(TINY, HUGE), (HUGE, TINY)], ids=["tiny then huge", "huge then tiny"])
def test_what_is_cut_follows_sizes_that_differ_by_much(sizes: tuple[int, int]) -> None:
    """A column of tiny samples whose later ones are huge, and the other way round: a change rewrites what is near."""
    counts = [2000 if size == TINY else 100 for size in sizes]
    record = empty_record("bytes", "U8", (), nested=False)
    with Objects(MemoryStore()).writing() as writer:
        start = 0
        for size, count in zip(sizes, counts, strict=True):
            record = rewrite(
                writer, record, [batch_of(sized(dict.fromkeys(range(start, start + count), size)), record)]
            )
            start += count
        old = entries(writer, record)
        assert len(old) < 105
        assert sum(entry.count > 500 for entry in old) >= 1  # tiny ones are together
        known = {entry.digest for entry in old}
        for key in range(0, start, 97):
            for size in sizes:
                changed = rewrite(writer, record, [batch_of(sized({key: size}, seed=1), record)])
                written = [entry for entry in entries(writer, changed) if entry.digest not in known]
                assert sum(entry.nbytes for entry in written) < 6 * LIMIT
    content = content_of(writer, record)
    with Objects(MemoryStore()).writing() as writer:
        at_once = rewrite(writer, empty_record("bytes", "U8", (), nested=False), [batch_of(content, record)])
    assert at_once == record


def test_a_change_rewrites_few_fragments() -> None:
    samples = np.random.default_rng(0).integers(0, 255, (100_000, 64), np.uint8)
    objects = Objects(MemoryStore())
    with objects.writing() as writer:
        record = rewrite(
            writer,
            empty_record("tensor", "U8", (64,), nested=False),
            [KeyedSamples(np.arange(len(samples)), SampleBytes(samples))],
        )
        writer.publish()
        old = {entry.digest for entry in entries(writer, record)}
        one = KeyedSamples(np.array([50_000]), SampleBytes(np.zeros((1, 64), np.uint8)))
        changed = rewrite(writer, record, [one])
        assert len({entry.digest for entry in entries(writer, changed)} - old) == 1
        assert (
            rewrite(writer, changed, [KeyedSamples(one.keys, SampleBytes(samples[50_000:50_001]))]) == record
        )
        assert rewrite(writer, record, [], [encode("nothing"), encode(-1)][::-1]) == record
