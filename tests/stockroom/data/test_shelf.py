"""The data shelf of a revision and of a draft."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.data import Dataset, prepare
from hopyard.errors import DataError, NotFoundError, UsageError
from hopyard.stockroom.data.column import SampleColumn
from hopyard.stockroom.data.drafts import ColumnDraft
from hopyard.stockroom.data.joined import JoinedSamples
from hopyard.stockroom.data.shelf import DataShelf
from hopyard.stockroom.history.draft import Draft
from hopyard.stockroom.packfiles import Objects
from hopyard.stockroom.views.view import Snapshot
from hopyard.storage import LocalStore, MemoryStore

IMAGES = np.arange(60, dtype=np.float32).reshape(5, 3, 4)


class Room:
    """A repository with one draft."""

    def __init__(self, path: Path) -> None:
        self.objects = Objects(LocalStore(path))
        self.draft = Draft(self.objects, None)
        self.data = DataShelf(self.draft)

    def committed(self) -> DataShelf:
        return DataShelf(Snapshot(self.objects, self.draft.flush(), "the commit 0123abcd"))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "repository")


def prepared(rows: int = 40) -> Any:
    data = {"features": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "label": np.arange(rows)}
    return prepare(data, MemoryStore(), validation=0.25)


def test_arrays_dicts_and_lists_become_columns(room: Room) -> None:
    room.data["image"] = IMAGES
    room.data["label"] = {"cat": 1, "dog": 2}
    room.data["name"] = ["a", "b"]
    assert isinstance(room.data["image"], ColumnDraft)
    assert room.data["image"][2].tolist() == IMAGES[2].tolist()
    shelf = room.committed()
    assert list(shelf) == ["image", "label", "name"] == list(room.data)
    assert len(shelf) == 3
    assert "image" in shelf
    assert "imago" not in shelf
    assert 3 not in shelf
    assert isinstance(shelf["image"], SampleColumn)
    assert np.array_equal(shelf["image"], IMAGES)
    assert shelf["label"]["dog"] == 2
    assert shelf["name"][[0, 1]] == ["a", "b"]
    assert repr(shelf) == "<data of the commit 0123abcd: image, label, name>"


def test_what_is_there_is_replaced_whatever_it_is(room: Room) -> None:
    room.data["x"] = IMAGES
    room.data["x"] = ["a", "b", "c"]
    assert room.committed()["x"][...] == ["a", "b", "c"]
    train = prepared().train
    room.data["x"] = train
    assert room.data["x"].fingerprint == train.fingerprint
    room.data["x"] = [1.5, 2.5]
    assert room.committed()["x"][...].tolist() == [1.5, 2.5]


def test_what_cannot_be_stored_leaves_the_shelf_as_it_was(room: Room) -> None:
    room.data["x"] = IMAGES
    room.data["set"] = prepared().train
    for name in ("x", "set", "new"):
        with pytest.raises(DataError):
            room.data[name] = [object()]
    with pytest.raises(UsageError, match="empty name"):
        room.data[""] = IMAGES
    assert list(room.data) == ["set", "x"]
    assert np.array_equal(room.data["x"], IMAGES)
    assert isinstance(room.data["set"], Dataset)


def test_a_column_is_stored_under_another_name_without_reading_it(room: Room, tmp_path: Path) -> None:
    room.data["image"] = IMAGES
    shelf = room.committed()
    room.data["copy"] = shelf["image"]
    room.data["image"] = room.data["image"]
    again = room.committed()
    assert again["copy"].record == shelf["image"].record == again["image"].record
    other = Room(tmp_path / "other")
    other.data["image"] = shelf["image"]
    assert np.array_equal(other.committed()["image"], IMAGES)


def test_datasets_are_stored_by_reference_and_open_in_drafts_and_commits(room: Room) -> None:
    splits = prepared()
    room.data["train"], room.data["val"] = splits.train, splits.val
    staged = room.data["train"]
    assert isinstance(staged, Dataset)
    assert len(pickle.loads(pickle.dumps(staged))) == 30
    shelf = room.committed()
    for name, given in (("train", splits.train), ("val", splits.val)):
        assert shelf[name].fingerprint == given.fingerprint
        assert shelf[name][:]["label"].tolist() == given[:]["label"].tolist()
    assert shelf["train"].store.url == "dataset 'train' of the commit 0123abcd"
    assert pickle.loads(pickle.dumps(shelf["val"])).split == "val"


def test_the_result_of_prepare_is_two_datasets(room: Room) -> None:
    with pytest.raises(UsageError, match=r"stock.data\['train'\] = prepared.train"):
        room.data["digits"] = prepared()


def test_columns_are_joined_by_a_list_of_names(room: Room) -> None:
    room.data["image"], room.data["label"] = IMAGES, np.arange(5)
    shelf = room.committed()
    samples = shelf[["image", "label"]]
    assert isinstance(samples, JoinedSamples)
    assert samples[3]["label"] == 3
    assert len(shelf.samples(["image"], keys=[4, 0])) == 2
    room.data["set"] = prepared().train
    with pytest.raises(UsageError, match="'set' is a dataset, whose columns stand side by side"):
        room.data[["image", "set"]]
    with pytest.raises(UsageError, match="'image' was asked for twice"):
        shelf[["image", "image"]]


def test_missing_names_say_what_is_there(room: Room) -> None:
    room.data["image"] = IMAGES
    shelf = room.committed()
    with pytest.raises(
        NotFoundError, match="no column or dataset 'imag' in the commit 0123abcd; did you mean 'image'"
    ) as e:
        shelf["imag"]
    assert isinstance(e.value, KeyError)
    assert "It has 'image'." in str(e.value)
    assert shelf.get("imag") is None
    with pytest.raises(NotFoundError, match="'imag' in the working tree; did you mean 'image'"):
        del room.data["imag"]
    with pytest.raises(UsageError, match="Names are strings"):
        shelf[3]  # type: ignore[call-overload]


def test_columns_and_datasets_are_deleted(room: Room) -> None:
    room.data["image"], room.data["set"] = IMAGES, prepared().train
    del room.data["image"], room.data["set"]
    assert list(room.data) == []
    assert list(room.committed()) == []


def test_columns_are_created_before_they_have_samples(room: Room) -> None:
    column = room.data.create("mask", dtype="bool", shape=(None, 4))
    assert (len(column), column.shape, "mask" in room.data) == (0, (None, 4), True)
    room.data["mask"]["a"] = np.ones((2, 4), bool)
    assert room.committed()["mask"]["a"].shape == (2, 4)
    with pytest.raises(UsageError, match="there is a column 'mask' already"):
        room.data.create("mask", dtype="bool")


def test_a_revision_is_not_written_to(room: Room) -> None:
    room.data["image"] = IMAGES
    shelf = room.committed()
    with pytest.raises(UsageError, match=r"was opened for reading\. Write within"):
        shelf["image"] = IMAGES  # type: ignore[index]
    with pytest.raises(UsageError, match="was opened for reading"):
        del shelf["image"]  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="was opened for reading"):
        shelf.create("x", dtype="int8")


def test_the_error_for_a_column_that_is_not_there_says_how_one_is_made(room: Room) -> None:
    with pytest.raises(
        NotFoundError, match=r"no column or dataset 'new'.*stock.data\['new'\] = \{key: sample\}"
    ) as told:
        room.data["new"]["k"] = np.zeros(3, np.float32)
    assert "stock.data.create('new', dtype='float32', shape=(3,))" in str(told.value)
    room.data.create("new", dtype="float32", shape=(3,))["k"] = np.zeros(3, np.float32)
    room.data["other"] = {"k": np.zeros(3)}
    assert [list(room.data[name]) for name in ("new", "other")] == [["k"], ["k"]]
    with pytest.raises(NotFoundError) as told:
        room.committed()["newer"]
    assert "create" not in str(told.value)
