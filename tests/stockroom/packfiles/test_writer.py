"""What is added is stored once, whole or not at all."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hopyard.errors import ChangedError, CorruptError, DataError, NotFoundError, StorageFullError, UsageError
from hopyard.objects import Tensor, digest
from hopyard.stockroom.packfiles import Objects, writer
from hopyard.stockroom.packfiles.layout import read_packfile
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.faults import Fault, FaultyStore

Packfiles = Callable[[Store], list[str]]


def test_what_is_here_or_pending_is_not_written_again(
    store: Store, index: Path, packfiles: Packfiles
) -> None:
    large = b"x" * 100_000
    for _ in range(2):
        with Objects(store, index).writing() as adding:
            for _ in range(2):
                assert adding.add("page", b"one") == digest(b"one", "hopyard.page")
                adding.add("fragment", large)
                adding.add_tensor(Tensor.from_numpy(np.ones(3)))
    assert len(packfiles(store)) == 2
    with Objects(store, index).writing() as adding:
        adding.add("page", b"one")
        new = adding.add("page", b"new")
    packfile = Objects(store).locate(new).packfile
    assert list(read_packfile(store, packfile, store.size(packfile) or 0).objects) == [new]
    # Equal bytes of another kind are another object.
    with Objects(store, index).writing() as adding:
        assert adding.add("json", b"one") != digest(b"one", "hopyard.page")


def test_what_is_pending_is_read_through_the_writer(store: Store) -> None:
    objects = Objects(store)
    with objects.writing() as adding:
        stored = adding.add_json([1])
        adding.publish()
        page, empty = adding.add_json({"a": 1}, kind="page"), adding.add("fragment", b"")
        assert adding.json(page) == {"a": 1}
        assert adding.json(stored) == [1]
        assert adding.read(empty).size == 0
        found = adding.read_many([stored, page, empty])
        assert [found[name].tobytes() for name in (stored, page, empty)] == [b"[1]", b'{"a":1}', b""]
        assert not found[page].flags.writeable
        assert not objects.has(page)
    assert objects.has(page)


def test_what_was_added_may_be_changed_afterwards(store: Store) -> None:
    array = np.arange(10.0)
    text = bytearray(b"text")
    objects = Objects(store)
    with objects.writing() as adding:
        tensor = adding.add_tensor(Tensor.from_numpy(array))
        names = [adding.add("fragment", text), adding.add("fragment", np.array([[1, 2], [3, 4]], "u1"))]
        array[:] = -1
        text[:] = b"!!!!"
    assert objects.tensors([tensor])[tensor].numpy().tolist() == list(range(10))
    assert [objects.read(name).tobytes() for name in names] == [b"text", b"\1\2\3\4"]


def test_full_packfiles_are_put_on_the_way(
    store: Store, packfiles: Packfiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PACKFILE_BYTES", 100_000)
    monkeypatch.setattr(writer, "PACKFILE_OBJECTS", 50)
    objects = Objects(store)
    with objects.writing() as adding:
        fragments = [adding.add("fragment", bytes([n]) * 40_000) for n in range(7)]
        assert [name[10:14] for name in packfiles(store)] == ["data", "data"]
        fragments.append(adding.add("fragment", np.zeros(200_000, "u1")))
        assert len(packfiles(store)) == 3
        pages = [adding.add_json(n) for n in range(49)]
        assert len(packfiles(store)) == 3
        pages.append(adding.add_json(49))
        assert [name[10:14] for name in packfiles(store)] == ["data"] * 3 + ["meta"]
        # What is here already makes no packfiles.
        again = [adding.add_json(n) for n in range(49)] + [adding.add_json(-1)]
        assert len(packfiles(store)) == 4
    assert len(packfiles(store)) == 5
    assert objects.missing([*fragments, *pages, *again]) == set()


def test_after_an_exception_nothing_more_is_published(store: Store, packfiles: Packfiles) -> None:
    objects = Objects(store)
    names = []

    def fail() -> None:
        with objects.writing() as adding:
            names.append(adding.add_json(1))
            adding.publish()
            names.append(adding.add_json(2))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert objects.missing(names) == {names[1]}
    assert len(packfiles(store)) == 1


def test_a_full_disk_loses_nothing_that_is_pending() -> None:
    store = FaultyStore(MemoryStore(), Fault("full", at=2))
    objects = Objects(store)
    adding = objects.writing()
    names = [adding.add("fragment", b"x"), adding.add_json(1)]
    with pytest.raises(StorageFullError, match="Make space"):
        adding.publish()
    assert objects.missing(names) == {names[1]}
    adding.publish()
    assert Objects(store).missing(names) == set()
    assert [name[:14] for name in store.writes] == ["packfiles/data", "packfiles/meta", "packfiles/meta"]


KILLED = """
import pickle, sys
from pathlib import Path
from types import FrameType
from typing import Any
from hopyard.stockroom.packfiles import Objects
store, index, file = pickle.load(sys.stdin.buffer)
objects = Objects(store, index)
with objects.writing() as adding:
    adding.add_file(file)
    for n in range(3):
        adding.add("fragment", bytes([n]) * 2_000_000)
        adding.add_json(n)
        adding.publish()
"""


@pytest.mark.parametrize("action", ["kill_before", "kill_after"])
@pytest.mark.parametrize("at", [1, 2, 3, 7])
def test_a_kill_leaves_whole_packfiles_and_the_same_again_completes(
    local: LocalStore, index: Path, tmp_path: Path, action: str, at: int
) -> None:
    file = tmp_path / "given"
    file.write_bytes(b"file")
    faulty = FaultyStore(local, Fault(action, at=at, once=tmp_path / "done"))  # type: ignore[arg-type]
    for code in (-9, 0):
        given = pickle.dumps((faulty, index, file))
        done = subprocess.run([sys.executable, "-c", KILLED], input=given, timeout=60, check=False)
        assert done.returncode == code
        for packfile in local.list("packfiles"):
            stored = read_packfile(local, packfile.name, packfile.size)
            assert stored.size == stored.whole
            assert len(Objects(local).read_many(stored.objects)) == 1
        if code == -9:
            assert len(list(local.list())) - index.exists() == at - (action == "kill_before")
    assert len(list(local.list("packfiles"))) == 6


def test_values_that_are_no_json_are_refused() -> None:
    adding = Objects(MemoryStore()).writing()
    nested: list[object] = []
    nested.append(nested)
    for value in (float("nan"), {1, 2}, b"", nested, {(1, 2): 3}, ["half of a pair: \ud800"]):
        with pytest.raises(DataError, match=r"cannot be stored as JSON: .*convert what else"):
            adding.add_json(value)
    for kind in ("tensor", "file", "blob"):
        with pytest.raises(UsageError, match=f"of kind '{kind}' was added.*Use add_tensor for tensors"):
            adding.add(kind, b"")


def test_files_are_linked_and_protected(local: LocalStore, tmp_path: Path) -> None:
    file = tmp_path / "given.parquet"
    file.write_bytes(b"rows")
    objects = Objects(local)
    with objects.writing() as adding:
        name = adding.add_file(file)
        assert adding.add_file(file) == name == digest(b"rows", "hopyard.file")
    stored = objects.file(name)
    assert stored == local.path(f"files/{name}")
    assert stored is not None
    assert stored.samefile(file)
    assert stored.stat().st_mode & 0o222 == 0
    assert objects.locate(name) == (f"files/{name}", 0, 4, "file", "U8", (4,))
    assert objects.read(name).tobytes() == b"rows"
    assert objects.missing([name] + [digest(bytes([n]), "hopyard.file") for n in range(40)]).isdisjoint(
        {name}
    )
    # Replacing or deleting the file that was given changes nothing.
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "other").replace(file)
    assert Objects(local).read(name).tobytes() == b"rows"
    assert [entry.name for entry in local.list()] == [f"files/{name}"]


def test_a_linked_file_that_was_written_to_is_found_out(local: LocalStore, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_bytes(b"rows")
    with Objects(local).writing() as adding, file.open("r+b") as still_open:
        name = adding.add_file(file)
        still_open.write(b"R")
    with pytest.raises(
        CorruptError, match=rf"files/{name} in .* the file {name} in it has changed. Run `hopyard"
    ):
        Objects(local).read(name)


def test_files_are_copied_where_they_cannot_be_linked(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "given"
    file.write_bytes(b"rows")
    objects = Objects(store)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chmod", refuse)
    with objects.writing() as adding:
        first = adding.add_file(file)
        file.write_bytes(b"more")
        second = adding.add_file(file, link=False)
        file.write_bytes(b"")
        empty = adding.add_file(file)
    file.write_bytes(b"else")
    assert [objects.read(name).tobytes() for name in (first, second, empty)] == [b"rows", b"more", b""]
    assert (objects.file(first) is None) == (store.path("x") is None)
    with pytest.raises(NotFoundError, match=r"there is no file .*missing to be stored"):
        adding.add_file(tmp_path / "missing")


def test_a_file_that_could_not_be_stored_stays_as_it_was(local: LocalStore, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_bytes(b"rows")
    mode = file.stat().st_mode
    adding = Objects(FaultyStore(local, Fault("full"))).writing()
    with pytest.raises(StorageFullError):
        adding.add_file(file)
    assert file.stat().st_mode == mode


def test_many_tensors_are_packed_at_once_and_a_full_disk_loses_none(
    store: Store, packfiles: Packfiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PACKFILE_BYTES", 1000)
    put, failures = writer.put_packfile, [StorageFullError("no space"), StorageFullError("no space")]

    def fails_at_first(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return put(*given)

    monkeypatch.setattr(writer, "put_packfile", fails_at_first)
    arrays = [np.full(40 + number % 3, number) for number in range(30)]
    tensors = [Tensor.from_numpy(array) for array in arrays]
    objects = Objects(store)
    adding = objects.writing()
    first = adding.add("fragment", b"before")
    with pytest.raises(StorageFullError, match="no space"):
        adding.add_tensors(tensors)
    for array in arrays:  # whose memory is no longer looked at
        array[:] = -1
    adding.publish()
    assert objects.missing([first, *(tensor.digest for tensor in tensors)]) == set()
    for number, tensor in enumerate(tensors):
        assert objects.tensors([tensor.digest])[tensor.digest].numpy().tolist() == [number] * (
            40 + number % 3
        )
    before = len(packfiles(store))
    again = [Tensor.from_numpy(np.full(200, number)) for number in (1, 2, 1)]
    assert adding.add_tensors(again) == [tensor.digest for tensor in again]
    assert len(packfiles(store)) == before + 2


def test_adding_a_tensor_takes_as_many_steps_however_many_are_pending() -> None:
    def steps(number: int) -> int:
        """Lines of the writer that are run for one more tensor."""
        lines = 0

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if frame.f_code.co_filename != writer.__file__:
                return None
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            adding.add_tensor(Tensor.from_numpy(np.array([number])))
        finally:
            sys.settrace(before)
        return lines

    adding = Objects(MemoryStore()).writing()
    first, *_, last = [steps(number) for number in range(100)]
    assert last == first > 0


@pytest.mark.parametrize("size", [1_000, 3_000_000, 80_000_000], ids=["small", "kept", "written on the way"])
def test_a_tensor_that_is_written_to_while_it_is_stored_is_refused(local: LocalStore, size: int) -> None:
    memory = np.zeros(size, np.uint8)
    objects = Objects(local)

    def training(tensors: list[Tensor]) -> Iterator[Tensor]:
        for tensor in tensors:
            _ = tensor.digest
            memory[-1] += 1
            yield tensor

    with objects.writing() as adding:
        before = adding.add_tensor(Tensor.from_numpy(np.ones(5)))
        with pytest.raises(
            ChangedError, match="was written to while it was stored, so nothing of it was"
        ) as found:
            adding.add_tensors(training([Tensor.from_numpy(memory)]))
        # Nothing of it stands in the way of what follows.
        after = adding.add_tensor(Tensor.from_numpy(memory))
    changed = pickle.loads(pickle.dumps(found.value))
    assert (changed.digest, str(changed)) == (found.value.digest, str(found.value))
    assert objects.missing([before, after, found.value.digest]) == {found.value.digest}
    assert objects.tensors([after])[after].data[-1] == 1


def test_memory_that_is_written_to_after_an_interrupted_call_is_not_stored(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = np.zeros(1_000, np.uint8)
    objects = Objects(local)
    with objects.writing() as adding:

        def interrupted(_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(writer, "private", interrupted)
            with pytest.raises(KeyboardInterrupt):
                adding.add_tensor(Tensor.from_numpy(memory))
        memory[:] = 1
        with pytest.raises(ChangedError, match="Let nothing write to it until it is stored"):
            adding.publish()
        adding.add("page", b"one")
    assert not objects.missing([digest(b"one", "hopyard.page")])
