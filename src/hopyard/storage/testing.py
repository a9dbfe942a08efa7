"""The suite that every store must pass, also a user's own; and stores around others that fail, wait and count.

::

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)
"""

from __future__ import annotations

import builtins
import itertools
import os
import pickle
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from hopyard.errors import CorruptError, InvalidNameError, NotFoundError
from hopyard.storage.base import Entry, PrefixStore, Store
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.storage.wrappers import CachingStore, CountingStore, ReadOnlyStore, SlowStore, Wrapper

__all__ = [
    "CachingStore",
    "CountingStore",
    "Fault",
    "FaultyStore",
    "ReadOnlyStore",
    "SlowStore",
    "StoreSuite",
    "Wrapper",
]

_RACERS = 16
_NUMBERS = 20
_PURE = (str, bytes, bytearray, int, list, dict, tuple, set, frozenset, re.Pattern, re.Match)
"""Types whose methods change nothing that another thread could read of a store."""
_LOCKED = 0.25  # seconds without a read after which the store seems to keep readers out while it writes

# What other processes run. Each is given the pickled store on stdin.
_RACE = """
import pickle, sys
store = pickle.load(sys.stdin.buffer)
print("ready", flush=True)
sys.stdin.buffer.read(1)
me = sys.argv[1].encode()
print(*[n for n in range(int(sys.argv[2])) if store.put_new(f"race/{n:03d}", me)], flush=True)
"""
_WRITE_FOREVER = """
import itertools, pickle, sys
store = pickle.load(sys.stdin.buffer)
for n in itertools.count():
    store.put(f"writer/{n % 3}", bytes([n % 256]) * 3_000_000)
    print(n, flush=True)
"""


class StoreSuite:
    """Inherit and define the fixture ``store``: a fresh, empty store for each test."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("define a fixture `store` that gives a fresh, empty store")

    # Reading and writing

    def test_what_was_put_is_read(self, store: Store) -> None:
        for data in (b"", b"\0", bytes(range(256)) * 1000):
            store.put("a/b.bin", data)
            assert store.get("a/b.bin") == data
            assert store.size("a/b.bin") == len(data)
            assert store.exists("a/b.bin")

    def test_any_buffer_is_taken_by_its_bytes(self, store: Store) -> None:
        store.put("a", bytearray(b"abc"))
        assert store.get("a") == b"abc"
        store.put("a", memoryview(b"abcdefgh").cast("I"))
        assert store.get("a") == b"abcdefgh"
        assert store.put_new("b", memoryview(b"xyz"))
        assert store.get("b") == b"xyz"

    def test_ranges_are_read_and_may_not_go_beyond_the_end(self, store: Store) -> None:
        store.put("a", b"0123456789")
        assert store.get("a", 3) == b"3456789"
        assert store.get("a", 3, 4) == b"3456"
        assert store.get("a", 10) == b""
        assert store.get("a", 0, 0) == b""
        for start, length in ((0, 11), (8, 3), (11, None), (11, 0)):
            with pytest.raises(CorruptError) as caught:
                store.get("a", start, length)
            _check_named(caught.value, store, "a")

    def test_reading_tells_what_the_object_was(self, store: Store) -> None:
        for data in (b"0123456789", b"01234"):
            store.put("a/b", data)
            for start, length in ((0, None), (2, 3), (-3, None), (-20, None), (-5, 2), (3, None), (1, 0)):
                begin = max(start + len(data), 0) if start < 0 else start
                part = store.read("a/b", start, length)
                assert bytes(part.data) == data[begin : None if length is None else begin + length]
                assert (part.size, part.version) == (len(data), store.version("a/b"))
        store.put("empty", b"")
        assert bytes(store.read("empty", -8).data) == bytes(store.read("empty").data) == b""
        with pytest.raises(CorruptError):
            store.read("a/b", 3, 3)
        with pytest.raises(NotFoundError):
            store.read("nothing", -8)

    def test_a_name_that_is_not_there(self, store: Store) -> None:
        store.put("digits/weights", b"x")
        for name in ("digits/weight", "digits", "nothing", "digits/weights/0"):
            assert store.size(name) is None
            assert not store.exists(name)
            with pytest.raises(NotFoundError) as caught:
                store.get(name)
            _check_named(caught.value, store, name)
            store.delete(name)
        assert store.get("digits/weights") == b"x"

    def test_put_new_writes_only_if_the_name_is_free(self, store: Store) -> None:
        assert store.put_new("a/1", b"first") is True
        assert store.put_new("a/1", b"second") is False
        assert store.get("a/1") == b"first"
        store.delete("a/1")
        assert store.put_new("a/1", b"third") is True
        assert store.get("a/1") == b"third"

    def test_a_version_changes_when_the_object_is_replaced(self, store: Store) -> None:
        assert store.version("a") is None
        store.put("a", b"first")
        first = store.version("a")
        assert store.version("a") == first
        store.put("a", b"other")
        if first is not None:  # a store may know no versions
            assert store.version("a") not in (None, first)
            assert store.at("p").version("a") is None

    def test_put_file_takes_the_file(self, store: Store, tmp_path: Path) -> None:
        path = (store.staging() or tmp_path) / "given"
        for content in (b"x" * 100_000, b"y"):
            path.write_bytes(content)
            store.put_file("files/one", path)
            assert store.get("files/one") == content
            assert not path.exists()
        assert [entry.name for entry in store.list()] == ["files/one"]

    def test_what_is_written_unsynced_is_there_and_can_be_made_durable(
        self, store: Store, tmp_path: Path
    ) -> None:
        unsynced = store.at("a").unsynced()
        path = (unsynced.staging() or tmp_path) / "given"
        path.write_bytes(b"file")
        unsynced.put("put", b"put")
        unsynced.put_file("file", path)
        assert unsynced.put_new("new", b"new")
        assert not unsynced.put_new("new", b"other")
        store.at("a").sync(["put", "file", "new"])
        assert {name: store.get(f"a/{name}") for name in ("put", "file", "new")} == {
            "put": b"put",
            "file": b"file",
            "new": b"new",
        }

    def test_bytes_come_in_pieces_with_what_they_are_of(self, store: Store) -> None:
        content = random.Random(0).randbytes(1_000_000)
        store.put("a", content)
        found = bytearray(700_000)

        def keep(position: int, piece: memoryview) -> None:
            found[position - 200_000 : position - 200_000 + len(piece)] = piece

        part, whole = store.receive("a", 200_000, 700_000, keep), store.read("a", 200_000, 700_000)
        assert found == whole.data == content[200_000:900_000]
        assert (len(part.data), part.size, part.version) == (0, whole.size, whole.version)
        store.receive("a", 5, 0, keep)
        with pytest.raises(CorruptError):
            store.receive("a", 999_999, 2, lambda position, piece: None)
        with pytest.raises(NotFoundError):
            store.receive("none", 0, 2, keep)

    def test_deletions_can_be_made_to_last(self, store: Store) -> None:
        for name in ("a/b", "a/c", "d"):
            store.put(f"x/{name}", b"")
            store.delete(f"x/{name}")
        store.at("x").sync_deleted(["a/b", "a/c", "d", "never/there"])
        assert not list(store.list())

    def test_a_path_is_a_file_with_the_objects_bytes(self, store: Store) -> None:
        store.put("a/b", b"content")
        path = store.path("a/b")
        assert path is None or path.read_bytes() == b"content"

    def test_an_object_being_read_is_not_changed_by_replacing_it(self, store: Store) -> None:
        store.put("a", b"old")
        path = store.path("a")
        if path is None:
            kept = store.get("a")
            store.put("a", b"new!")
            assert kept == b"old"
        else:
            with path.open("rb") as file:
                store.put("a", b"new!")
                assert file.read() == b"old"
        assert store.get("a") == b"new!"

    def test_a_write_that_fails_changes_nothing(self, store: Store, tmp_path: Path) -> None:
        """The bytes cannot be read, so any error is right; but the old object stays, and a new one does not begin."""
        store.put("a", b"old")
        store.put("b/c", b"old")
        released = memoryview(b"new!")
        released.release()
        for name in ("a", "new"):
            with pytest.raises(Exception):  # noqa: B017
                store.put(name, released)
            with pytest.raises(Exception):  # noqa: B017
                store.put_file(name, tmp_path / "absent")
        with pytest.raises(Exception):  # noqa: B017
            store.put_new("new", released)
        path = (store.staging() or tmp_path) / "given"
        path.write_bytes(b"new!")
        with pytest.raises(InvalidNameError):
            store.put_file("b", path)
        assert path.exists(), "put_file failed, and took the file"
        assert path.read_bytes() == b"new!"
        found = {entry.name: store.get(entry.name) for entry in store.list()}
        assert found == {"a": b"old", "b/c": b"old"}, f"a write that failed changed the store: {found}"

    def test_a_reader_finds_the_old_object_or_the_new_one_at_every_moment(
        self, store: Store, tmp_path: Path
    ) -> None:
        """One thread reads all the time; the one that writes lets it read after each call that it makes."""
        old, new = contents = bytes(100_000), b"\1" * 150_000
        path = (store.staging() or tmp_path) / "given"
        path.write_bytes(old)
        store.put("a", old)
        with _Reader(store, "a", contents) as reader, reader.between_calls():
            store.put("a", bytearray(new))
            store.put_file("a", path)
        assert reader.strange is None, f"a reader found {reader.strange}"

    def test_what_is_read_and_told_is_of_one_object_while_it_is_replaced(self, store: Store) -> None:
        """Another thread replaces the object once, by a shorter one or a longer one, after each call that ``read``
        makes in turn."""
        long, short = bytes(100), b"\1" * 10
        for old, new in ((long, short), (short, long)):
            expected = [(data[-20:], len(data)) for data in (old, new)]
            for after in itertools.count():
                store.put("a", old)
                with _Replacing(store, "a", new, after) as replacing:
                    try:
                        part = store.read("a", -20)
                    except CorruptError as error:
                        raise AssertionError(
                            f"an object was replaced while it was read, which raised: {error}"
                        ) from error
                found = bytes(part.data), part.size
                assert found in expected, (
                    f"an object was replaced while it was read: {len(found[0])} bytes of one of {found[1]} were told"
                )
                if not replacing.done:
                    break  # read() makes fewer calls

    # Names

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("", "empty"),
            ("/a", "relative"),
            ("a//b", "empty segment"),
            ("a/", "empty segment"),
            ("a/../b", "another directory"),
            (".", "another directory"),
            ("a b", "' '"),
            ("a\\b", "only ASCII"),
            ("größe", "only ASCII"),
            ("a/.tmp-x", "unfinished"),
            ("a" * 201, "201 bytes"),
            ("/".join(["a" * 100] * 9), "at most 800"),
        ],
    )
    def test_names_that_break_a_rule_are_refused_with_its_reason(
        self, store: Store, name: str, reason: str
    ) -> None:
        for call in (store.get, store.size, store.delete, store.exists, store.at("x").get):
            with pytest.raises(InvalidNameError, match=reason):
                call(name)
        for write in (store.put, store.put_new):
            with pytest.raises(InvalidNameError, match=reason):
                write(name, b"")

    def test_an_object_is_never_a_prefix_of_another(self, store: Store) -> None:
        store.put("a/b", b"x")
        for name in ("a", "a/b/c", "a/b/c/d"):
            for write in (store.put, store.put_new):
                with pytest.raises(InvalidNameError) as caught:
                    write(name, b"y")
                _check_named(caught.value, store, name)
        assert [entry.name for entry in store.list()] == ["a/b"]
        store.delete("a/b")
        store.put("a", b"now free")
        assert store.get("a") == b"now free"

    # Listing

    def test_listing_is_complete_and_in_order_of_names(self, store: Store) -> None:
        assert list(store.list()) == []
        names = ["a-b", "a.b", "a/b", "a/b-c/d", "a/b0", "a/c/d/e", "a0", "b", "Z", "_", ".hidden/x"]
        for i, name in enumerate(names):
            store.put(name, b"x" * i)
        expected = sorted(Entry(name, i) for i, name in enumerate(names))
        assert list(store.list()) == expected
        assert list(store.list("a")) == [e for e in expected if e.name.startswith("a/")]
        assert [e.name for e in store.list("a/c")] == ["a/c/d/e"]
        assert list(store.list("nothing")) == []
        assert list(store.list("b")) == []
        for prefix in ("", "a", "a/c", "nothing", "b"):
            assert store.names(prefix) == {entry.name for entry in store.list(prefix)}

    def test_folders_are_the_first_segments_of_names_that_go_on(self, store: Store) -> None:
        assert store.folders() == []
        for name in ("b/x/y", "a/z", "file", "b/a", "c.d/e/f/g"):
            store.put(name, b"1")
        assert store.folders() == ["a", "b", "c.d"]
        assert store.folders("b") == store.at("b").folders() == ["x"]
        assert store.at("c.d").folders("e") == ["f"]
        assert store.folders("nothing") == []
        assert store.folders("file") == []

    def test_a_part_of_a_store_is_a_store(self, store: Store, tmp_path: Path) -> None:
        part = store.at("x").at("y")
        part.put("a/b", b"1")
        assert part.put_new("c", b"22")
        path = tmp_path / "f"
        path.write_bytes(b"333")
        part.put_file("d", path)
        store.put("x/yz", b"")
        assert list(part.list()) == [Entry("a/b", 1), Entry("c", 2), Entry("d", 3)]
        assert list(part.list("a")) == [Entry("a/b", 1)]
        assert part.names() == {"a/b", "c", "d"}
        assert part.names("a") == {"a/b"}
        assert store.get("x/y/a/b") == part.get("a/b") == b"1"
        assert part.path("a/b") == store.path("x/y/a/b")
        assert part.url.endswith("x/y")
        part.delete("c")
        assert part.size("c") is None
        assert part.shared == store.shared

    # Several at once

    def test_one_of_many_threads_wins_each_name(self, store: Store) -> None:
        barrier = threading.Barrier(_RACERS)

        def race(me: int) -> list[int]:
            barrier.wait()
            return [n for n in range(_NUMBERS) if store.put_new(f"race/{n:03d}", str(me).encode())]

        with ThreadPoolExecutor(_RACERS) as pool:
            won = list(pool.map(race, range(_RACERS)))
        _check_race(store, {str(me).encode(): numbers for me, numbers in enumerate(won)})

    def test_one_of_many_processes_wins_each_name(self, store: Store) -> None:
        if not store.shared:
            _check_refused_elsewhere(store)
            return
        racers = [_start(_RACE, store, str(me), str(_NUMBERS)) for me in range(_RACERS // 4)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == b"ready\n"
        won = {}
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"\n")
            racer.stdin.flush()
        for me, racer in enumerate(racers):
            output, _ = racer.communicate(timeout=60)
            won[str(me).encode()] = [int(n) for n in output.split()]
        _check_race(store, won)

    def test_a_killed_writer_leaves_whole_objects_or_none(self, store: Store) -> None:
        if not store.shared:
            _check_refused_elsewhere(store)
            return
        writer = _start(_WRITE_FOREVER, store)
        assert writer.stdout is not None
        for _ in range(5):
            writer.stdout.readline()
        writer.kill()
        writer.communicate(timeout=60)
        for entry in store.list():
            data = store.get(entry.name)
            assert len(data) == entry.size == 3_000_000
            assert data == data[:1] * len(data)
        assert [e.name for e in store.list()] == ["writer/0", "writer/1", "writer/2"]
        store.put("writer/0", b"again")
        assert store.get("writer/0") == b"again"

    def test_a_pickled_copy_sees_the_same_objects(self, store: Store) -> None:
        store.put("a", b"x")
        for copied, original in ((store, store), (store.at("p"), store.at("p"))):
            copy = pickle.loads(pickle.dumps(copied))
            assert copy.url == original.url
            copy.put("b", b"y")
            assert original.get("b") == b"y"

    def test_the_parts_of_a_search_are_apart(self, store: Store) -> None:
        parts = (store.train_data, store.val_data, store.runs, store.logs)
        for number, part in enumerate(parts):
            part.put("x", bytes([number]))
        assert [part.get("x") for part in parts] == [b"\0", b"\1", b"\2", b"\3"]


class _Reader:
    """A thread that reads an object, again and again, until it finds something ``strange``: none of its contents."""

    def __init__(self, store: Store, name: str, contents: tuple[bytes, ...]) -> None:
        self.strange: str | None = None
        self._store, self._name, self._contents = store, name, contents
        self._package = type(store).__module__.partition(".")[0]
        self._condition = threading.Condition()
        self._reads = 0
        self._kept_out_at = -1
        self._ended = False
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """While this lasts, the thread waits until one read has begun and ended since, at the end of each function of
        the store's package and of each call of a function that is not Python's and may change anything outside.

        A store may keep readers out by a lock; then it goes on.
        """
        before = sys.getprofile()
        sys.setprofile(self._let_read)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _let_read(self, frame: FrameType, event: str, called: object) -> None:
        if event == "return":
            counts = str(frame.f_globals.get("__name__")).partition(".")[0] == self._package
        else:
            owner = getattr(called, "__self__", None)
            counts = event == "c_return" and owner is not builtins and not isinstance(owner, _PURE)
        with self._condition:
            if not counts or self._kept_out_at == self._reads or self.strange is not None:
                return
            enough = self._reads + 2  # the first may have begun earlier
            if not self._condition.wait_for(
                lambda: self._reads >= enough or self.strange is not None, _LOCKED
            ):
                self._kept_out_at = self._reads

    def _read(self) -> None:
        while self.strange is None and not self._ended:
            try:
                found = self._store.get(self._name)
                strange = None if found in self._contents else f"{len(found):,} bytes that are neither"
            except Exception as error:
                strange = "nothing" if isinstance(error, NotFoundError) else repr(error)
            with self._condition:
                self._reads += 1
                self.strange = strange
                self._condition.notify()


class _Replacing:
    """Lets another thread replace an object once: when so many calls that a store's ``read`` makes have returned.

    A store may keep writers out by a lock; then reading goes on.
    """

    def __init__(self, store: Store, name: str, data: bytes, after: int) -> None:
        self.done = False
        self._left = after
        self._thread = threading.Thread(target=store.put, args=(name, data))

    def __enter__(self) -> _Replacing:
        self._before = sys.getprofile()
        sys.setprofile(self._returned)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self.done:
            self._thread.join()

    def _returned(self, frame: FrameType, event: str, _called: object) -> None:
        caller = {"return": frame.f_back, "c_return": frame}.get(event)
        if self.done or caller is None or caller.f_code.co_name != "read":
            return
        if not isinstance(caller.f_locals.get("self"), Store):
            return
        if self._left:
            self._left -= 1
            return
        self.done = True
        self._thread.start()
        self._thread.join(_LOCKED)


def _start(code: str, store: Store, *args: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if store.shared else subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(store))
    process.stdin.flush()
    return process


def _check_race(store: Store, won: dict[bytes, list[int]]) -> None:
    assert sorted(number for numbers in won.values() for number in numbers) == list(range(_NUMBERS))
    for winner, numbers in won.items():
        assert all(store.get(f"race/{number:03d}") == winner for number in numbers)
    assert len(list(store.list())) == _NUMBERS


def _check_refused_elsewhere(store: Store) -> None:
    """Check that a store of one process cannot be unpickled in another one."""
    for part in (store, store.at("x")):
        process = _start(_RACE, part, "0", "0")
        output, errors = process.communicate(timeout=60)
        assert process.returncode != 0, "the store says that it is not shared, but another process has a copy"
        assert output == b"", (
            "the store was unpickled in another process, and failed there only when it was used"
        )
        assert b"hopyard.errors." in errors, errors.decode()


def _check_named(error: Exception, store: Store, name: str) -> None:
    """Check that an error names the object and the store; that of a part may name the whole, and all of the name."""
    while isinstance(store, PrefixStore):
        store = store._inner
    assert name in str(error), f"the error does not name the object {name!r}: {error}"
    assert store.url in str(error), f"the error does not name the store {store.url}: {error}"
