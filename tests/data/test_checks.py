"""Damage in prepared files and manifests is never read: it is named, and ``prepare`` heals it."""

import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from tests.sampling import by_level, diagonal

from hopyard.data import open_dataset, prepare, verify
from hopyard.data.files import stored
from hopyard.data.files.stored import StoredFile
from hopyard.errors import CorruptError, DataError, HopyardError, NotFoundError
from hopyard.storage import LocalStore, MemoryStore

ROWS = 60
KINDS = ("id", "image", "small", "flag", "text", "list")


def rows():
    draw = np.random.default_rng(0)
    return {
        "id": np.arange(ROWS),
        "image": draw.random((ROWS, 3, 5)).astype(np.float32),
        "small": draw.integers(-9, 9, ROWS).astype(np.int8),
        "flag": draw.random(ROWS) > 0.5,
        "text": [f"row {i} é" for i in range(ROWS)],
        "list": [np.arange(i % 4) for i in range(ROWS)],
    }


def prepared_in(store, monkeypatch):
    """Several files, so that two can be swapped."""
    monkeypatch.setattr("hopyard.data.preparing.files.FILE_BYTES", 2000)
    return prepare(rows(), store, validation=None, ragged="keep")


def read_all(store):
    """Every column of every row by every way of reading, by what ``id`` says the rows are."""
    expected = rows()
    dataset = open_dataset(store, cache=False)
    loader = dataset.loader(batch_size=7, shuffle=True, seed=3)
    batches = [dataset[:], dataset[10:20], dataset[[ROWS - 1, 0, 7]], *loader]
    for batch in batches:
        for name in KINDS:
            for row, value in zip(batch["id"], batch[name], strict=True):
                assert np.array_equal(value, expected[name][row]), name
    assert sorted(np.concatenate([batch["id"] for batch in batches[3:]])) == list(range(ROWS))


def new_machine(monkeypatch, tmp_path):
    """Nothing of what was found out about files so far is known."""
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / f"cache-{os.urandom(4).hex()}"))
    for memory in (stored._good, stored._checks, stored._footers):
        memory.clear()


def test_a_prepared_file_has_a_checksum_for_every_byte_and_others_read_it(tmp_path, monkeypatch):
    dataset = prepared_in(LocalStore(tmp_path), monkeypatch).train
    for entry in dataset.manifest.files:
        path = dataset.store.path(entry.name)
        content = path.read_bytes()
        checks = StoredFile.open(None, str(path)).checks
        assert checks.seal == entry.seal
        ends = np.sort(checks.chunks["end"].reshape(-1))
        starts = np.sort(checks.chunks["start"].reshape(-1))
        assert starts[0] == 0
        assert np.array_equal(starts[1:], ends[:-1])
        footer = int.from_bytes(content[-8:-4], "little") + 8
        assert ends[-1] == len(content) - footer - 24 - checks.chunks.nbytes
    paths = [str(dataset.store.path(entry.name)) for entry in dataset.manifest.files]
    assert len(paths) > 2
    assert np.array_equal(np.sort(pl.read_parquet(paths)["id"].to_numpy()), np.arange(ROWS))
    assert pq.read_table(paths).num_rows == ROWS


@pytest.mark.long
@pytest.mark.parametrize("kind", [LocalStore, MemoryStore])
def test_a_flipped_bit_anywhere_in_a_file_is_named_or_harmless(kind, tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s") if kind is LocalStore else MemoryStore()
    dataset = prepared_in(store, monkeypatch).train
    entry = dataset.manifest.files[1]
    whole = dataset.store.get(entry.name)
    read_all(store)
    draw = np.random.default_rng(1)
    every = by_level(160, 80, 40) if kind is LocalStore else by_level(320, 320, 160)
    for start in range(0, len(whole), every):  # a byte of each stretch, so of every region
        place = int(min(start + draw.integers(every), len(whole) - 1))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(draw.integers(8))
        dataset.store.put(entry.name, damaged)
        with pytest.raises(CorruptError, match=entry.name):
            read_all(store)
    dataset.store.put(entry.name, whole)
    read_all(store)


def truncated(dataset, one, other):
    content = dataset.store.get(one)
    dataset.store.put(one, content[: len(content) // 2])


def emptied(dataset, one, other):
    dataset.store.put(one, b"")


def longer(dataset, one, other):
    dataset.store.put(one, dataset.store.get(one) + b"x")


def deleted(dataset, one, other):
    dataset.store.delete(one)


def swapped(dataset, one, other):
    first, second = dataset.store.get(one), dataset.store.get(other)
    dataset.store.put(one, second)
    dataset.store.put(other, first)


def flipped(dataset, one, other):
    content = bytearray(dataset.store.get(one))
    content[len(content) // 3] ^= 4
    dataset.store.put(one, content)


@pytest.mark.parametrize(
    ("damage", "known"),
    diagonal("damage", [truncated, emptied, longer, deleted, swapped, flipped], [True, False]),
)
def test_damage_of_files_is_named_and_healed_by_prepare(damage, known, tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    names = [entry.name for entry in dataset.manifest.files]
    before = {name: dataset.store.get(name) for name in names}
    read_all(store)
    damage(dataset, names[1], names[2])
    if not known:
        new_machine(monkeypatch, tmp_path)
    with pytest.raises(HopyardError, match=rf"({names[1]}|{names[2]}).*repare the (same )?data"):
        read_all(store)
    again = prepared_in(store, monkeypatch)
    assert not again.reused
    assert {name: again.train.store.get(name) for name in names} == before
    assert {entry.name for entry in again.train.store.list()} == {*names, "manifest.json"}
    read_all(store)
    assert prepared_in(store, monkeypatch).reused


def test_prepare_alone_finds_a_flipped_bit(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    flipped(dataset, dataset.manifest.files[0].name, None)
    assert not prepared_in(store, monkeypatch).reused
    read_all(store)


def test_damage_in_a_store_without_paths_is_healed_by_prepare_once_it_was_met(tmp_path, monkeypatch):
    store = MemoryStore()
    dataset = prepared_in(store, monkeypatch).train
    flipped(dataset, dataset.manifest.files[0].name, None)
    with pytest.raises(CorruptError, match=r"row group \d+, column .*Prepare the same data"):
        read_all(store)
    if dataset.store.version(dataset.manifest.files[0].name) is None:
        dataset.store.delete(dataset.manifest.files[0].name)
    assert not prepared_in(store, monkeypatch).reused
    read_all(store)


def test_a_flipped_bit_anywhere_in_a_manifest_is_named_and_healed(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    whole = dataset.store.get("manifest.json")
    draw = np.random.default_rng(2)
    for start in range(0, len(whole), 150):
        place = int(min(start + draw.integers(150), len(whole) - 1))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(draw.integers(8))
        if damaged[place : place + 1].isspace() and whole[place : place + 1].isspace():
            continue  # white space says nothing
        dataset.store.put("manifest.json", damaged)
        with pytest.raises(CorruptError, match=r"manifest\.json.*Prepare the same data"):
            read_all(store)
    for damaged in (b"", whole[: len(whole) // 2], b"[]", b"null"):
        dataset.store.put("manifest.json", damaged)
        with pytest.raises(CorruptError, match=r"manifest\.json.*Prepare the same data"):
            read_all(store)
        assert not prepared_in(store, monkeypatch).reused
        read_all(store)
        assert prepared_in(store, monkeypatch).reused


def test_a_damaged_manifest_of_another_dataset_is_not_written_over(tmp_path):
    store = LocalStore(tmp_path / "s", train_path=tmp_path / "train")
    prepare({"x": np.arange(40)}, store, validation=None)
    path = tmp_path / "train" / "manifest.json"
    damaged = path.read_bytes().replace(b'"rows": 40', b'"rows": 41')
    path.write_bytes(damaged)
    with pytest.raises(CorruptError, match="seems to be of another dataset"):
        prepare({"x": np.arange(50)}, store, validation=None)
    assert path.read_bytes() == damaged
    assert not prepare({"x": np.arange(40)}, store, validation=None).reused
    assert prepare({"x": np.arange(40)}, store, validation=None).reused


def test_readers_go_on_while_a_file_is_healed(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    reading = open_dataset(store, cache=False)
    batches = iter(reading.loader(batch_size=4, shuffle=True, seed=1))
    seen = [next(batches)]
    flipped(dataset, dataset.manifest.files[0].name, None)  # of which the reader has looked at everything
    dataset.store.delete(dataset.manifest.files[1].name)
    prepared_in(store, monkeypatch)
    seen += list(batches)
    assert sorted(np.concatenate([batch["id"] for batch in seen])) == list(range(ROWS))


def test_a_file_that_is_only_linked_or_renamed_is_still_itself(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    batches = iter(open_dataset(store).loader(batch_size=50, columns=["id", "text"]))
    next(batches)
    path = dataset.store.path(dataset.manifest.files[0].name)
    os.link(path, tmp_path / "a-link")
    path.chmod(0o444)
    next(batches)
    read_all(store)


def test_a_pickled_dataset_looks_at_what_it_opens(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    pickled = pickle.dumps(dataset)
    one, other = (entry.name for entry in dataset.manifest.files[:2])
    swapped(dataset, one, other)
    with pytest.raises(CorruptError, match=r"is not the file|bytes, but had"):
        pickle.loads(pickled)[:]


def test_each_chunk_is_looked_at_once_by_all_processes_of_the_machine(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    new_machine(monkeypatch, tmp_path)
    prepared_in(store, monkeypatch)
    looked = []
    real = stored.damaged_chunks
    monkeypatch.setattr(stored, "damaged_chunks", lambda files: looked.extend(files) or real(files))
    read_all(store)
    assert looked
    looked.clear()
    read_all(store)
    stored._good.clear()
    stored._checks.clear()
    read_all(store)
    assert not looked, "another process of the machine would not look again"
    program = (
        "import sys; from hopyard.data import open_dataset; from hopyard.data.files import stored\n"
        "stored.damaged_chunks = None\n"
        f"print(len(open_dataset({str(tmp_path / 's')!r}, cache=False)[:]['id']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == [str(ROWS)], ended.stderr


def test_a_slice_looks_at_no_more_than_its_row_groups(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    new_machine(monkeypatch, tmp_path)
    dataset = prepared_in(store, monkeypatch).train
    looked = []
    real = stored.damaged_chunks

    def noted(files):
        looked.extend(place for _, places, _ in files for place in places.tolist())
        return real(files)

    monkeypatch.setattr(stored, "damaged_chunks", noted)
    dataset[0:1]
    assert {group for group, _ in looked} == {0}


def test_damage_of_what_the_machine_knows_costs_time_and_nothing_else(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    new_machine(monkeypatch, tmp_path)
    dataset = prepared_in(store, monkeypatch).train
    read_all(store)
    [memory] = tmp_path.glob("cache-*/known")
    whole = memory.read_bytes()
    assert len(whole) % 64 == 0
    for damaged in (b"", whole[:-7], bytes(len(whole)), os.urandom(len(whole)), whole + b"torn"):
        memory.write_bytes(damaged)
        stored._good.clear()
        read_all(store)
    shutil.rmtree(memory.parent)
    flipped(dataset, dataset.manifest.files[0].name, None)
    with pytest.raises(CorruptError):
        read_all(store)


def test_foreign_readers_of_a_prepared_file_look_at_it_too(tmp_path, monkeypatch):
    dataset = prepared_in(LocalStore(tmp_path / "s"), monkeypatch).train
    name = dataset.manifest.files[0].name
    flipped(dataset, name, None)
    with pytest.raises((CorruptError, DataError), match=name):
        open_dataset([str(dataset.store.path(name))], cache=False)[:]


def test_verify_finds_all_damage_in_a_store_whatever_was_found_before(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    dataset = prepared_in(store, monkeypatch).train
    read_all(store)
    other = prepare({"x": np.arange(40)}, store, validation=0.5)
    said = []
    verified = verify(store, lambda done, total: said.append((done, total)))
    assert verified.ok
    assert len(verified.datasets) == 3
    assert verified.files == len(dataset.manifest.files) + 2 == len(said)
    assert "everything is as it was written" in str(verified)
    one, two, three = (entry.name for entry in dataset.manifest.files[:3])
    flipped(dataset, one, None)
    deleted(dataset, two, None)
    truncated(dataset, three, None)
    other.val.store.delete("manifest.json")
    for place in (store, str(tmp_path / "s"), tmp_path / "s"):
        verified = verify(place)
        assert not verified.ok
        text = "\n".join(verified.problems)
        assert len(verified.problems) == 4
        for name in (one, two, three, other.val.manifest.files[0].name):
            assert name in text
        assert "row group" in text
    assert len(verify(dataset).problems) == 3
    prepared_in(store, monkeypatch)
    prepare({"x": np.arange(40)}, store, validation=0.5)
    assert verify(store).ok
    with pytest.raises(NotFoundError, match="holds no prepared dataset"):
        verify(tmp_path / "elsewhere")


@pytest.mark.long
def test_damaged_entries_of_the_node_cache_are_made_again(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "s")
    prepared_in(store, monkeypatch)
    expected, cache = rows(), tmp_path / "cache"

    def read():
        batches = list(open_dataset(store, cache=cache).loader(batch_size=16, shuffle=True, seed=2))
        for batch in batches:
            for name in KINDS:
                for row, value in zip(batch["id"], batch[name], strict=True):
                    assert np.array_equal(value, expected[name][row]), name
        assert sum(len(batch["id"]) for batch in batches) == ROWS

    read()
    entries = sorted(cache.glob("*.flat"))
    assert entries
    draw = np.random.default_rng(4)
    for path in entries[:12]:
        whole = path.read_bytes()
        one, other = entries[0].read_bytes(), entries[-1].read_bytes()
        flip = bytearray(whole)
        flip[int(draw.integers(len(whole)))] ^= 1 << int(draw.integers(8))
        for damaged in (bytes(flip), whole[: int(draw.integers(len(whole)))], b"", whole + b"x"):
            path.write_bytes(damaged)
            read()
    entries[0].unlink()
    read()
    assert len(list(cache.glob("*.flat"))) == len(entries)
    entries[0].write_bytes(other)
    entries[-1].write_bytes(one)
    read()
    entries[0].rename(tmp_path / "other")  # times and inodes stay
    entries[-1].rename(entries[0])
    (tmp_path / "other").rename(entries[-1])
    read()
