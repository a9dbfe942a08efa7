"""Reading columns by key, by position, and from other processes."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from hopyard.errors import CorruptError, DataError, NotFoundError, UsageError
from hopyard.stockroom.data import ColumnDraft, SampleColumn
from hopyard.stockroom.packfiles import Objects
from hopyard.storage import LocalStore, MemoryStore

Publish = Callable[[ColumnDraft], SampleColumn]
IMAGES = np.random.default_rng(0).integers(0, 255, (5000, 10, 40), np.uint8)


@pytest.fixture
def images(draft: ColumnDraft, published: Publish) -> SampleColumn:
    draft.extend(IMAGES)
    draft["cat"] = IMAGES[7]
    return published(draft)


def test_a_column_is_a_mapping_in_the_order_of_its_keys(images: SampleColumn) -> None:
    assert (len(images), images.kind, images.dtype, images.shape) == (5001, "tensor", "uint8", (10, 40))
    assert images.nbytes == 5001 * 400
    assert list(images) == list(images.keys()) == [*range(5000), "cat"]
    assert 4999 in images
    assert np.int64(3) in images
    assert "cat" in images
    assert 5000 not in images
    assert "dog" not in images
    assert 1.5 not in images
    assert_array_equal(np.stack(list(images.values()))[:-1], IMAGES)
    assert_array_equal(dict(images.items())["cat"], IMAGES[7])
    assert images.get("dog") is None
    assert images != 3
    assert images == images
    assert "image" in repr(images)
    assert "uint8 of shape (10, 40)" in repr(images)


def test_a_sample_is_the_callers_own(images: SampleColumn) -> None:
    images[3][...] = 0
    assert_array_equal(images[3], IMAGES[3])
    assert_array_equal(images[np.int32(3)], IMAGES[3])


def test_many_samples_come_stacked(images: SampleColumn) -> None:
    assert_array_equal(images[[4000, "cat", 2, 2]], IMAGES[[4000, 7, 2, 2]])
    assert_array_equal(images[np.array([4, 1])], IMAGES[[4, 1]])
    assert_array_equal(images[4990:], IMAGES[[*range(4990, 5000), 7]])
    assert_array_equal(images[::-1000], IMAGES[[7, 4000, 3000, 2000, 1000, 0]])
    assert_array_equal(np.asarray(images)[:-1], IMAGES)
    assert_array_equal(images[...], np.asarray(images))
    assert np.asarray(images, np.float32).dtype == np.float32
    assert images[[]].shape == (0, 10, 40)
    mask = np.arange(5001) % 999 == 3
    assert_array_equal(images[mask], IMAGES[mask[:-1]])
    assert images[np.zeros(5001, bool)].shape == (0, 10, 40)
    assert_array_equal(images[mask.tolist()], images[mask])
    assert_array_equal(images[torch.from_numpy(mask)], images[mask])
    with pytest.raises(UsageError, match=r"a mask of shape \(2,\) was given"):
        images[[True, False]]


def test_masks_and_slices_that_select_nothing_sensible(images: SampleColumn) -> None:
    with pytest.raises(
        UsageError, match=r"a mask of shape \(3,\) was given, but column '.*' has 5,001 samples"
    ):
        images[np.array([True, False, True])]
    for wrong in (slice("a", "b"), slice(0, 9, 0)):
        with pytest.raises(
            UsageError, match=r"was given, but slices go by place: .*column\[\[key for key in"
        ):
            images[wrong]


def test_positions_are_taken_in_any_order(images: SampleColumn) -> None:
    order = np.random.default_rng(1).permutation(5000)
    for _ in range(2):  # while fragments are checked, and when all are
        assert_array_equal(images.take(order), IMAGES[order])
    assert_array_equal(images.take([-1, -2, 0, 0]), IMAGES[[7, 4999, 0, 0]])
    out = np.empty((3, 10, 40), np.uint8)
    assert images.take([5, 6, 5], out=out) is out
    assert_array_equal(out, IMAGES[[5, 6, 5]])
    batch = images.take([1, 2])
    batch[...] = 0
    assert_array_equal(images.take([1, 2]), IMAGES[[1, 2]])


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ([5001], "position 5001 of column 'image', which has 5,001 samples.*count from the end"),
        ([0, -5002], "position -5002"),
        ([[1]], r"int64 of shape \(1, 1\).*ints of shape \(n,\)"),
        ([1.0], "float64 of shape"),
    ],
)
def test_positions_that_are_none_are_refused(images: SampleColumn, positions: Any, text: str) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match=text):
            images.take(positions)
        images.take(np.arange(5001))


def test_memory_for_a_batch_must_fit(images: SampleColumn) -> None:
    with pytest.raises(
        UsageError, match=r"out= is float32 of shape \(2,\), but 2 samples.*numpy.empty\(\(2, 10, 40\)"
    ):
        images.take([1, 2], out=np.empty(2, np.float32))


def test_a_key_that_is_not_there_names_what_is(images: SampleColumn) -> None:
    with pytest.raises(KeyError) as caught:
        images["cas"]
    assert isinstance(caught.value, NotFoundError)
    assert str(caught.value) == (
        "column 'image' has no sample 'cas'; did you mean 'cat'? It has 5,001 samples, from 0 to 'cat': see .keys()."
    )
    with pytest.raises(KeyError, match=r"has no sample -1\. It has 5,001"):
        images[[1, -1]]
    with pytest.raises(UsageError, match=r"keys are ints, strings"):
        images[1.5]


def test_a_column_may_be_sent_to_other_processes(tmp_path: Path) -> None:
    objects = Objects(LocalStore(tmp_path / "repository"), tmp_path / "index.sqlite")
    with objects.writing() as writer:
        draft = ColumnDraft(objects, writer, "image")
        draft.extend(IMAGES)
        record = draft.flush()
    assert record is not None
    column = SampleColumn(objects, "image", record)
    column.take([1])  # what is mapped here is not sent
    assert_array_equal(pickle.loads(pickle.dumps(column))[4], IMAGES[4])
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert_array_equal(pool.apply(column.take, ([3, 4999],)), IMAGES[[3, 4999]])


def test_damage_is_found_when_it_is_first_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repository")
    objects = Objects(store)
    with objects.writing() as writer:
        draft = ColumnDraft(objects, writer, "image")
        draft.extend(IMAGES)
        record = draft.flush()
    assert record is not None
    (packfile,) = (tmp_path / "repository" / "packfiles").glob("data-*")
    packfile.chmod(0o644)
    data = bytearray(packfile.read_bytes())
    data[-1] ^= 1
    packfile.write_bytes(data)
    reads: list[Callable[[SampleColumn], Any]] = [
        lambda column: column.take([4999]),
        lambda column: column[4999],
    ]
    for read in reads:
        with pytest.raises(CorruptError, match=r"has changed"):
            read(SampleColumn(Objects(store), "image", record))


def test_packfiles_that_were_replaced_are_looked_up_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repository")
    objects = Objects(store)
    with objects.writing() as writer:
        draft = ColumnDraft(objects, writer, "image")
        draft.extend(IMAGES)
        record = draft.flush()
    assert record is not None
    (packfile,) = (tmp_path / "repository" / "packfiles").glob("data-*")
    packfile.rename(tmp_path / "gone")
    other = Objects(LocalStore(tmp_path / "other"))
    with other.writing() as writer:
        again = ColumnDraft(other, writer, "image")
        again.extend(np.zeros((9, 3), np.uint8))
        again.replace(IMAGES)
        again.flush()
    (new,) = (tmp_path / "other" / "packfiles").glob("data-*")
    new.rename(packfile.with_name(new.name))
    assert_array_equal(SampleColumn(objects, "image", record).take([4]), IMAGES[[4]])


def test_what_is_not_here_is_fetched_only_as_far_as_it_is_read(tmp_path: Path) -> None:
    remote, here = Objects(MemoryStore()), LocalStore(tmp_path / "clone")
    with remote.writing() as writer:
        draft = ColumnDraft(remote, writer, "image")
        draft.extend(IMAGES)
        record = draft.flush()
    assert record is not None
    asked: list[str] = []

    def fetch(digests: Sequence[str]) -> None:
        asked.extend(digests)
        with Objects(here).writing() as writer:
            for digest in digests:
                kind = remote.locate(digest).kind
                writer.add(kind, remote.read(digest).tobytes())

    column = SampleColumn(Objects(here, absent=fetch), "image", record)
    assert_array_equal(column[4999], IMAGES[4999])
    assert len(asked) == 2  # the page and the fragment
    assert_array_equal(column.take([4999, 4998]), IMAGES[[4999, 4998]])
    assert len(asked) == 2
    for _ in range(3):  # from fragments, and from a table when all are here
        assert_array_equal(column.take(np.arange(5000)), IMAGES)
    assert len(asked) == len(set(asked)) > 3


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_samples_without_bytes_are_counted(
    shape: tuple[int, ...], draft: ColumnDraft, published: Publish
) -> None:
    draft.extend(np.zeros((5, *shape)))
    column = published(draft)
    assert len(column) == 5
    assert column[2].shape == shape
    assert column[1:3].shape == np.asarray(column)[:2].shape == (2, *shape)


def test_a_nested_column_has_pairs_as_keys(draft: ColumnDraft, published: Publish) -> None:
    draft.update({"b": {"x": [1, 2], 3: [3, 4]}, 7: {"y": [5, 6]}})
    draft["c", "z"] = [7, 8]
    column = published(draft)
    assert column.is_nested
    assert list(column) == [(7, "y"), ("b", 3), ("b", "x"), ("c", "z")]
    assert {part: value.tolist() for part, value in column["b"].items()} == {3: [3, 4], "x": [1, 2]}
    assert column["b", "x"].tolist() == [1, 2]
    assert "b" in column
    assert "d" not in column
    assert ("b", "x") in column
    assert column[[("b", 3), (7, "y")]].tolist() == [[3, 4], [5, 6]]
    with pytest.raises(KeyError, match=r"has no sample 'd'"):
        column["d"]


def test_an_empty_column_says_that_it_is(draft: ColumnDraft, published: Publish) -> None:
    draft.create(dtype="float32", shape=(2, None))
    column = published(draft)
    assert len(column) == 0
    assert list(column) == []
    assert column[...] == []
    with pytest.raises(KeyError, match=r"it is empty. Add samples"):
        column[0]


def test_arrays_are_only_of_samples_of_one_size(draft: ColumnDraft, published: Publish) -> None:
    draft.extend(["a", "bc"])
    column = published(draft)
    assert column[...] == ["a", "bc"]
    with pytest.raises(DataError, match=r"holds strings: no array has room.*column\[\.\.\.\]"):
        np.asarray(column)
    with pytest.raises(UsageError, match=r"out=. Leave it out"):
        column.take([0], out=np.empty(1))


@pytest.mark.parametrize(
    "write",
    [
        lambda column: column.__setitem__(0, 1),
        lambda column: column.__delitem__(0),
        lambda column: column.extend([1]),
        lambda column: column.update({0: 1}),
    ],
)
def test_what_was_opened_for_reading_says_how_to_write(images: SampleColumn, write: Any) -> None:
    with pytest.raises(UsageError, match=r"was opened for reading\. Write within `with stock\.enable_write"):
        write(images)
