"""Objects are read as they were written, or an error says what is wrong."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hopyard.errors import CorruptError, NotFoundError, UsageError
from hopyard.objects import Tensor, digest
from hopyard.stockroom.packfiles import Location, Objects, mapped
from hopyard.stockroom.packfiles.layout import digest_at
from hopyard.storage import Entry, LocalStore, MemoryStore, Store

Packfiles = Callable[[Store], list[str]]
Write = Callable[..., list[str]]

ABSENT = digest(b"absent", "hopyard.page")


def repack(store: Store, objects: Objects, names: Sequence[str]) -> None:
    """What gc does: the objects go into a packfile of their own, and the old packfiles are deleted."""
    contents = {name: objects.read(name).tobytes() for name in names}
    old = {objects.locate(name).packfile for name in names}
    fresh = MemoryStore()
    with Objects(fresh).writing() as writer:
        assert [writer.add("page", content) for content in contents.values()] == list(names)
    for entry in fresh.list():
        store.put(entry.name, fresh.get(entry.name))
        old.discard(entry.name)
    for name in old:
        store.delete(name)


def test_what_is_read_is_read_only_and_mapped_once(local: LocalStore, index: Path, write: Write) -> None:
    objects = Objects(local, index)
    first, second = write(objects, b"first", b"second")
    arrays = [objects.read(first), objects.read(second), objects.read(first)]
    assert [array.tobytes() for array in arrays] == [b"first", b"second", b"first"]
    assert not any(array.flags.writeable for array in arrays)
    assert np.shares_memory(arrays[0], arrays[2])
    assert arrays[1].__array_interface__["data"][0] - arrays[0].__array_interface__["data"][0] == 5


def test_objects_that_are_not_here(store: Store, index: Path, write: Write) -> None:
    objects = Objects(store, index)
    assert not objects.has(ABSENT)
    (here,) = write(objects, b"here")
    assert objects.missing([ABSENT, here]) == {ABSENT}
    for call in (
        objects.read,
        objects.locate,
        objects.json,
        lambda name: objects.tensors([name]),
        objects.file,
    ):
        with pytest.raises(NotFoundError, match=f"the object {ABSENT} is not in .*hopyard stock fetch"):
            call(ABSENT)
    for nonsense in ("", "x", ABSENT.upper(), ABSENT[:-1], "../" + ABSENT):
        with pytest.raises(UsageError, match="is not an object's digest, which has 64 hex digits"):
            objects.has(nonsense)
    with pytest.raises(UsageError, match=f"the object {here} is a page, not a file"):
        objects.file(here)
    with pytest.raises(
        CorruptError, match=f"the object {here} is a page, but something names it as a tensor"
    ):
        objects.tensors([here])


def test_absent_objects_are_brought(store: Store, index: Path, write: Write) -> None:
    remote = MemoryStore()
    names = write(Objects(remote), b"one", b"two", b"three")
    asked: list[list[str]] = []

    def bring(digests: Sequence[str]) -> None:
        asked.append(list(digests))
        for entry in remote.list():
            store.put(entry.name, remote.get(entry.name))

    objects = Objects(store, index, bring)
    (here,) = write(objects, b"here")
    assert objects.missing(names) == set(names)
    found = objects.read_many([*names, here])
    assert [found[name].tobytes() for name in names] == [b"one", b"two", b"three"]
    objects.read(names[0])
    assert asked == [names]
    with pytest.raises(NotFoundError, match=ABSENT):
        objects.locate(ABSENT)
    assert asked[1:] == [[ABSENT]]


def test_packfiles_of_other_processes_are_found(store: Store, index: Path, write: Write) -> None:
    objects = Objects(store, index)
    (first,) = write(objects, b"first")
    (second,) = write(Objects(store), b"second")
    assert objects.read(second).tobytes() == b"second"
    assert objects.missing([first, second]) == set()


def test_what_is_packed_anew_while_packfiles_are_listed_is_found(tmp_path: Path, write: Write) -> None:
    plain = LocalStore(tmp_path)

    class Repacked(LocalStore):
        names_of: Sequence[str] = ()

        def names(self, prefix: str = "") -> set[str]:
            found = super().names(prefix)
            wanted, self.names_of = self.names_of, ()
            if wanted:
                repack(plain, Objects(plain), wanted)
            return found

    store = Repacked(tmp_path)
    objects = Objects(store)
    with pytest.raises(NotFoundError):  # which makes the index anew, once
        objects.read(ABSENT)
    (first,), (second,) = (write(Objects(plain), content) for content in (b"first", b"second"))
    store.names_of = (first, second)
    assert objects.read(first).tobytes() == b"first"
    assert store.names_of == ()


def test_objects_whose_packfile_is_gone_are_looked_up_again(store: Store, index: Path, write: Write) -> None:
    objects, other = Objects(store, index), Objects(store, index)
    names = write(objects, b"one", b"two") + write(objects, b"three")
    (lost,) = write(objects, b"lost", kind="json")
    before = objects.read_many(names)
    assert other.missing(names) == set()
    repack(store, Objects(store), names)
    store.delete(objects.locate(lost).packfile)
    assert [before[name].tobytes() for name in names] == [b"one", b"two", b"three"]
    assert [other.read(name).tobytes() for name in names] == [b"one", b"two", b"three"]
    assert other.locate(names[0]).packfile == other.locate(names[2]).packfile
    with pytest.raises(NotFoundError, match=lost):
        other.read(lost)
    # Written again, since it is not here any more.
    assert write(Objects(store, index), b"lost", kind="json") == [lost]
    assert other.read(lost).tobytes() == b"lost"


def test_a_changed_byte_is_found_out_and_a_restored_packfile_read(
    store: Store, index: Path, packfiles: Packfiles, write: Write
) -> None:
    objects = Objects(store, index)
    good, bad = write(objects, b"good", b"bad")
    (packfile,) = packfiles(store)
    whole = store.get(packfile)
    store.put(packfile, whole[:-1] + b"?")
    for _ in range(2):
        with pytest.raises(
            CorruptError, match=rf"{packfile} in .*the page {bad} in it has changed. Run `hopyard stock v"
        ):
            objects.read(bad)
    assert objects.read(good).tobytes() == b"good"
    assert objects.read(bad, verify=False).tobytes() == b"ba?"
    store.put(packfile, whole)
    objects = Objects(store, index)
    assert objects.read(bad).tobytes() == b"bad"


def test_bytes_are_checked_once(local: LocalStore, write: Write, packfiles: Packfiles) -> None:
    objects = Objects(local)
    (name,) = write(objects, b"x" * 1000)
    objects.read(name)
    (packfile,) = packfiles(local)
    path = local.path(packfile)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert objects.read(name)[-1] == ord("?")
    with pytest.raises(CorruptError, match=name):
        Objects(local).read(name)


def damage(store: Store, place: Location) -> None:
    """Flip a bit in the middle of an object."""
    content = bytearray(store.get(place.packfile))
    content[(place.start + place.stop) // 2] ^= 4
    store.put(place.packfile, bytes(content))


@pytest.mark.parametrize("kind", ["page", "fragment", "tensor"])
def test_what_is_damaged_is_stored_again_and_read_where_it_is_whole(
    store: Store, index: Path, packfiles: Packfiles, kind: str
) -> None:
    contents = [bytes([number]) * 100_000 for number in range(3)]

    def save(*contents: bytes) -> list[str]:
        with Objects(store, index).writing() as adding:
            if kind == "tensor":
                return adding.add_tensors(
                    Tensor("U8", (len(one),), np.frombuffer(one, "u1")) for one in contents
                )
            return [adding.add(kind, one) for one in contents]

    names = save(*contents)
    open_before = Objects(store, index)
    damage(store, open_before.locate(names[1]))
    with pytest.raises(
        CorruptError, match=rf"the {kind} {names[1]} in it has changed.*--repair-from URL.*[Ss]ave again"
    ):
        open_before.read(names[1])
    assert open_before.damaged(open_before.locate_many(names)) == {names[1]}
    before = packfiles(store)
    assert save(*contents) == names
    (new,) = set(packfiles(store)) - set(before)
    assert store.size(new) < 150_000
    assert save(*contents) == names
    assert len(packfiles(store)) == len(before) + 1
    rebuilt = Objects(store, index)
    rebuilt.rebuild()
    for reader in (open_before, Objects(store, index), Objects(store), rebuilt):
        assert [bytes(reader.read(name)) for name in names] == contents
        if store.path(new) is not None:  # otherwise it is found out each time
            assert reader.packed(names)[names[1]].packfile == new
        assert reader.damaged(reader.locate_many(names)) == set()


def test_a_damaged_file_is_stored_again(store: Store, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"x" * 1000)
    objects = Objects(store)
    with objects.writing() as adding:
        name = adding.add_file(given, link=False)
    damage(store, objects.locate(name))
    for reader in (objects, Objects(store)):
        with pytest.raises(CorruptError, match=f"files/{name} in .* the file {name} in it has changed"):
            reader.read(name)
    if store.path("files") is not None:
        with pytest.raises(CorruptError, match=f"files/{name} in .* the file {name} in it has changed"):
            objects.file(name)
        assert objects.file(name, verify=False) is not None
    with objects.writing() as adding:
        assert adding.add_file(given, link=False) == name
    for reader in (objects, Objects(store)):
        assert bytes(reader.read(name)) == b"x" * 1000
        path = reader.file(name)
        assert path is None or path.read_bytes() == b"x" * 1000


def test_what_comes_through_a_network_is_checked_each_time(write: Write) -> None:
    store = MemoryStore()
    objects = Objects(store)
    (name,) = write(objects, b"x" * 1000)
    assert bytes(objects.read(name)) == b"x" * 1000
    damage(store, objects.locate(name))
    with pytest.raises(CorruptError, match=name):
        objects.read(name)


def test_a_process_hashes_what_lies_in_a_file_once(
    local: LocalStore, index: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    def counting(place: Location, data: np.ndarray, threads: int = 1) -> str:
        hashed.append(data.size)
        return digest_at(place, data, threads)

    monkeypatch.setattr("hopyard.stockroom.packfiles.objects.digest_at", counting)
    names = write(Objects(local, index), b"x" * 1000, b"y" * 2000)
    objects = Objects(local, index)
    for _ in range(2):
        objects.read(names[0])
    assert hashed == [1000]
    objects.read_many(names)
    assert hashed == [1000, 2000]
    # A file that has just been written may change again within one tick of the clock.
    Objects(local, index).read(names[0])
    assert hashed == [1000, 2000, 1000]
    monkeypatch.setattr("hopyard.stockroom.packfiles.mapped._SETTLED", -1)
    for _ in range(2):
        Objects(local, index).read_many(names)
    assert sorted(hashed[3:]) == [1000, 2000]
    damage(local, objects.locate(names[0]))
    with pytest.raises(CorruptError, match=names[0]):
        Objects(local, index).read(names[0])


@pytest.mark.parametrize("sizes", [[40 << 20], [17 << 20, *[3000] * 1500], [0, 1, 1 << 20], []])
def test_many_and_large_objects_are_hashed_by_several_threads(local: LocalStore, sizes: list[int]) -> None:
    tensors = [Tensor("U8", (size, 1), np.full(size, at % 251, np.uint8)) for at, size in enumerate(sizes)]
    with Objects(local).writing() as adding:
        names = adding.add_tensors(tensors)
    objects = Objects(local)
    found = objects.tensors(names)
    assert all(found[name] == tensor for name, tensor in zip(names, tensors, strict=True))
    harmed = {name for name, size in zip(names[-3:], sizes[-3:], strict=True) if size}
    for name in sorted(harmed):
        damage(local, objects.locate(name))
    assert (reader := Objects(local)).damaged(reader.locate_many(names)) == harmed


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("left", [0.999, 0.5, 0.01, 0.0])
def test_a_truncated_packfile_is_an_error_and_what_is_whole_in_it_is_read(
    store: Store, index: Path, packfiles: Packfiles, write: Write, is_indexed: bool, left: float
) -> None:
    objects = Objects(store, index if is_indexed else None)
    names = write(objects, *(bytes([n]) * 5000 for n in range(20)))
    (packfile,) = packfiles(store)
    content = store.get(packfile)
    store.put(packfile, content[: int(len(content) * left)])
    objects = Objects(store, index if is_indexed else None)
    with pytest.raises(
        CorruptError, match=rf"the object {names[-1]} is in no .*{packfile}.*hopyard stock verify"
    ):
        objects.read(names[-1])
    assert objects.has(names[0]) == (left >= 0.5)
    # Written again, they are whole again.
    again = write(objects, *(bytes([n]) * 5000 for n in range(20)))
    assert again == names
    assert [objects.read(name)[0] for name in names] == list(range(20))


class Counting(MemoryStore):
    """Remembers which ranges were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int | None]] = []

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.ranges.append((start, length))
        return super().get(name, start, length)


class Looking(LocalStore):
    """Counts how often the size of an object was looked at."""

    looked = 0

    def size(self, name: str) -> int | None:
        self.looked += 1
        return super().size(name)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        for entry in super().list(prefix):
            self.looked += 1
            yield entry


def test_packfiles_that_are_known_are_not_looked_at_again(
    local: LocalStore, index: Path, write: Write
) -> None:
    """However many commits there were, the next one looks at the packfiles that are new."""
    store = Looking(local.url)
    objects = Objects(store, index)
    names = [write(objects, bytes([number]))[0] for number in range(20)]
    store.looked = 0
    objects.refresh()
    assert store.looked == 0
    (by_other,) = write(Objects(local, index), b"by another process")
    (put_only,) = write(Objects(local), b"by one that was killed before it was in the index")
    objects.refresh()
    assert store.looked == 1
    assert objects.missing([*names, by_other, put_only]) == set()
    store.looked = 0
    store.delete(objects.locate(names[7]).packfile)
    objects.refresh()
    assert store.looked == 0
    assert objects.missing(names) == {names[7]}


def test_a_packfile_that_was_cut_off_is_looked_at_until_it_is_whole(
    local: LocalStore, index: Path, write: Write
) -> None:
    (name,) = write(Objects(local), b"x" * 1000)
    packfile = Objects(local).locate(name).packfile
    whole = local.get(packfile)
    local.put(packfile, whole[:-10])
    objects = Objects(local, index)
    for _ in range(2):
        objects.refresh()
        assert objects.missing([name]) == {name}
    local.put(packfile, whole)
    objects.refresh()
    assert bytes(objects.read(name)) == b"x" * 1000


def test_what_lay_in_a_packfile_that_was_cut_off_meanwhile_is_stored_again(
    local: LocalStore, index: Path, write: Write
) -> None:
    objects = Objects(local, index)
    names = write(objects, b"x" * 1000, b"y" * 1000)
    write(objects, b"another packfile")  # the sizes of all have been compared by now
    packfile = objects.locate(names[1]).packfile
    local.put(packfile, local.get(packfile)[:-10])
    assert write(objects, b"x" * 1000, b"y" * 1000) == names
    for reader in (objects, Objects(local)):
        assert [bytes(reader.read(name)) for name in names] == [b"x" * 1000, b"y" * 1000]


def test_ranges_that_lie_close_together_come_with_one_request(write: Write) -> None:
    store = Counting()
    objects = Objects(store)
    contents = [bytes([n]) * 50_000 for n in range(100)]
    names = write(objects, *contents, kind="fragment")
    store.ranges.clear()
    wanted = [names[n] for n in (99, 0, 2, 4, 50, 51)]
    found = objects.read_many(wanted)
    assert list(found) == wanted
    assert [found[name][0] for name in wanted] == [99, 0, 2, 4, 50, 51]
    assert len(store.ranges) == 3
    assert sum(length or 0 for _, length in store.ranges) == 50_000 * (5 + 2 + 1)


def test_only_so_many_packfiles_stay_mapped(
    local: LocalStore, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_KEPT", 3)
    objects = Objects(local)
    names = [write(objects, bytes([n]))[0] for n in range(10)]
    assert [objects.read(name)[0] for name in names] == list(range(10))
    assert [objects.read(name)[0] for name in names] == list(range(10))
    mappings = Path("/proc/self/maps")
    if mappings.exists():
        packfiles = {packfile.name for packfile in (tmp_path / "repository").rglob("*")}
        mapped_now = {Path(line.split()[-1]).name for line in mappings.read_text().splitlines()}
        assert 0 < len(packfiles & mapped_now) <= 3


COPY = """
import pickle, sys
objects, name = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(objects.read(name).tobytes())
"""


def test_a_pickled_copy_reads_in_another_process(local: LocalStore, index: Path, write: Write) -> None:
    objects = Objects(local, index)
    (name,) = write(objects, b"content")
    objects.read(name)
    for given in (objects, Objects(local)):
        done = subprocess.run(
            [sys.executable, "-c", COPY], input=pickle.dumps((given, name)), capture_output=True, check=True
        )
        assert done.stdout == b"content"


@pytest.mark.long
@pytest.mark.parametrize("in_file", [True, False])
def test_forked_children_read_and_write_while_threads_of_the_parent_do(
    local: LocalStore, index: Path, write: Write, in_file: bool
) -> None:
    objects = Objects(local, index if in_file else None)
    names = [write(objects, bytes([n]) * 10)[0] for n in range(8)]
    done = threading.Event()

    def read() -> int:
        count = 0
        while not done.is_set():
            assert len(objects.read_many(names)) == len(names)
            count += 1
        return count

    def child(number: int) -> None:
        assert [objects.read(name)[0] for name in names] == list(range(8))
        (new,) = write(objects, b"of the child" + bytes([number]))
        assert objects.has(new)

    context = multiprocessing.get_context("fork")
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(8):
                process = context.Process(target=child, args=(number,))
                process.start()
                process.join(60)
                assert process.exitcode == 0
        finally:
            done.set()
        assert all(reader.result() for reader in readers)
    assert objects.missing(digest(b"of the child" + bytes([n]), "hopyard.page") for n in range(8)) == set()


def test_threads_share_objects(local: LocalStore, index: Path) -> None:
    objects = Objects(local, index)

    def work(number: int) -> list[str]:
        with objects.writing() as writer:
            names = [writer.add_json([number % 3, n]) for n in range(5)]
            names.append(writer.add_tensor(Tensor.from_numpy(np.full(3, number))))
        assert objects.json(names[4]) == [number % 3, 4]
        assert objects.tensors(names[5:])[names[5]].numpy().tolist() == [number] * 3
        return names

    with ThreadPoolExecutor(8) as pool:
        names = {name for some in pool.map(work, range(24)) for name in some}
    assert len(Objects(local).read_many(names)) == 3 * 5 + 24


@pytest.mark.parametrize("size", [1000, 2_000_000])
def test_private_tensors_may_be_written_to_and_change_nothing_but_themselves(store: Store, size: int) -> None:
    objects = Objects(store)
    content = Tensor.from_numpy(np.arange(size, dtype=np.uint8))
    with objects.writing() as adding:
        name = adding.add_tensor(content)
        pending = adding.tensors([name], private=True)[name]
        pending.data[0] = 77
        assert adding.read(name)[0] == 0
        adding.publish()
        stored = adding.tensors([name], private=True)[name]
        stored.data[0] = 77
    first, second = (objects.tensors([name], private=True)[name] for _ in range(2))
    assert first == content
    first.data[0] = 77
    assert second.data[0] == 0
    assert objects.read(name)[0] == 0
    assert Objects(store).read(name)[0] == 0


def test_objects_are_found_by_how_their_digests_begin(store: Store, write: Write) -> None:
    objects = Objects(store)
    pages = write(objects, *(bytes([number]) for number in range(100)))
    others = write(objects, *(bytes([number]) for number in range(100)), kind="json")
    for prefix in ("", pages[0][:1], pages[7][:2], pages[7][:3], pages[7], others[0], "f"):
        assert objects.beginning(prefix, "page") == sorted(name for name in pages if name.startswith(prefix))
    elsewhere = Objects(store)
    assert elsewhere.beginning(pages[3][:5], "page") == [pages[3]]


def test_a_writer_says_before_it_adds(store: Store, tmp_path: Path) -> None:
    calls: list[None] = []
    (tmp_path / "file").write_bytes(b"x")
    writer = Objects(store).writing(before=lambda: calls.append(None))
    assert not calls
    writer.add_json([1])
    writer.add("page", b"1")
    writer.add_file(tmp_path / "file", link=False)
    assert len(calls) == 3
