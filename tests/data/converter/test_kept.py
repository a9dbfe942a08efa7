"""Directories of converters: one winner, nothing half-written is believed, nothing foreign is deleted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.data.converter.kept import (
    MARKER,
    Marker,
    abandon,
    delete_directory,
    finish,
    new_attempt,
    usable_marker,
)
from hopyard.data.manifest import FileEntry
from hopyard.errors import CorruptError, FormatError, UsageError
from hopyard.storage import LocalStore
from hopyard.storage.temporary import machine


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "converter-1")


def written(store: LocalStore, attempt: str, names: str = "ab") -> Marker:
    files = [FileEntry(f"{attempt}-{name}.parquet", 3, "", "", (1,)) for name in names]
    for file in files:
        store.put(file.name, b"row")
    return Marker("converter-1", {}, tuple(files))


def names(store: LocalStore) -> list[str]:
    return [entry.name for entry in store.list()]


def test_a_marker_comes_back_as_it_was(store: LocalStore) -> None:
    marker = written(store, new_attempt())
    assert Marker.read(store) is None
    assert finish(store, "part-0", marker) == marker == Marker.read(store)


def test_of_two_attempts_one_wins_and_the_other_cleans_up(store: LocalStore) -> None:
    first, second = new_attempt(), new_attempt()
    winner, loser = written(store, first), written(store, second)
    assert finish(store, first, winner) == winner
    assert finish(store, second, loser) == winner
    assert names(store) == sorted([MARKER, *(file.name for file in winner.files)])


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(store: LocalStore) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True, text=True
    )
    dead = f"part-{machine()}-{done.stdout.strip()}-abc"
    written(store, dead)
    elsewhere = written(store, "part-00000000-1-abc")
    other = written(store, new_attempt())
    mine = written(store, attempt := new_attempt())
    store.put("mine.txt", b"x")
    finish(store, attempt, mine)
    kept = [file.name for each in (elsewhere, other, mine) for file in each.files]
    assert names(store) == sorted([MARKER, "mine.txt", *kept])


def test_an_abandoned_attempt_leaves_nothing(store: LocalStore) -> None:
    written(store, attempt := new_attempt())
    abandon(store, attempt)
    assert names(store) == []


def test_a_directory_is_deleted_with_its_files(store: LocalStore, tmp_path: Path) -> None:
    finish(store, attempt := new_attempt(), written(store, attempt))
    written(store, "part-leftover")
    delete_directory(f"file://{tmp_path}/converter-1")
    assert list(tmp_path.iterdir()) == []
    delete_directory(f"file://{tmp_path}/converter-1")  # gone already


def test_files_of_others_stay(store: LocalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    finish(store, attempt := new_attempt(), written(store, attempt))
    store.put("notes.txt", b"x")
    store.put("part-own/x.parquet", b"x")
    delete_directory(f"file://{tmp_path}/converter-1")
    assert names(store) == ["notes.txt", "part-own/x.parquet"]
    assert "is kept, because it holds files that no converter has written" in caplog.text


def test_what_is_no_converters_directory_is_not_deleted(store: LocalStore, tmp_path: Path) -> None:
    store.put("part-0.parquet", b"x")
    with pytest.raises(UsageError, match=r"converter-1 is not deleted: it has no _hopyard_converter\.json"):
        delete_directory(f"file://{tmp_path}/converter-1")
    finish(store, attempt := new_attempt(), written(store, attempt))
    copied = LocalStore(tmp_path / "data")
    copied.put(MARKER, store.get(MARKER))
    copied.put("part-0.parquet", b"x")
    with pytest.raises(UsageError, match=r"data/ is not deleted"):
        delete_directory(f"file://{tmp_path}/data/")
    assert names(copied) == [MARKER, "part-0.parquet"]


def test_a_damaged_or_newer_marker_says_what_to_do(store: LocalStore) -> None:
    store.put(MARKER, b"{")
    with pytest.raises(CorruptError, match=r"is not a converter's marker .* convert the data again"):
        Marker.read(store)
    fields = json.loads(written(store, "part-1").to_bytes())
    fields["format"]["version"] = 99
    store.put(MARKER, json.dumps(fields).encode())
    with pytest.raises(FormatError, match="in format 99"):
        Marker.read(store)


def test_a_marker_whose_files_are_gone_is_removed(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    marker = finish(store, attempt := new_attempt(), written(store, attempt))
    assert usable_marker(store) == marker
    store.delete(marker.files[0].name)
    assert usable_marker(store) is None
    assert f"{marker.files[0].name} is missing or damaged; the data is written again." in caplog.text
    assert Marker.read(store) is None
