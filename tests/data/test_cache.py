"""The node cache keeps whole entries within its limit, whoever is killed, and deletes nothing but its own."""

import contextlib
import errno
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hopyard.data.cache import format as cache_format
from hopyard.data.cache import node as module
from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import DEFAULT_LIMIT, NodeCache
from hopyard.errors import NotWritableError, UsageError

ROOM_OF_TRAILER = len(cache_format.pack(0, {}))


def key(number):
    return f"{number:064x}"


def put(cache, number, content=b"content", description=None):
    with cache.claim(key(number), wait=False) as claim:
        claim.file.write(content)
        return claim.publish(description or {})


def content_of(found):
    return found.path.read_bytes()[: found.size]


def names(cache):
    """Of all files but the two that every cache has."""
    return sorted({path.name for path in cache.path.iterdir()} - {"CACHEDIR.TAG", "usage"})


def numbers(cache):
    return [int(entry.key, 16) for entry in cache.entries()]


@pytest.fixture
def cache(tmp_path):
    return NodeCache(tmp_path / "cache", limit=10**6)


@pytest.fixture(autouse=True)
def nothing_under_way():
    yield
    durability.join()


# Entries


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(100_000)], ids=len)
@pytest.mark.parametrize("description", [{}, {"columns": [{"name": "é" * n} for n in range(200)]}], ids=len)
def test_what_is_published_is_found_with_its_description(cache, content, description):
    assert cache.find(key(1)) is None
    published = put(cache, 1, content, description)
    found = cache.find(key(1))
    assert found == published
    assert content_of(found) == content
    assert found.description == description
    [entry] = cache.entries()
    assert (entry.key, entry.path, entry.description) == (key(1), found.path, description)
    assert entry.nbytes == found.path.stat().st_size


def test_nothing_touches_the_disk_before_the_first_claim(tmp_path):
    cache = NodeCache(tmp_path / "a" / "b")
    assert cache.find(key(1)) is None
    assert cache.entries() == []
    assert cache.clear() == 0
    assert cache.admits(1000)
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_claim_leaves_nothing(cache):
    with contextlib.suppress(ZeroDivisionError), cache.claim(key(1), wait=False) as claim:
        claim.file.write(b"half")
        raise ZeroDivisionError
    assert claim.file.closed
    claim.close()
    assert cache.find(key(1)) is None
    assert names(cache) == []
    put(cache, 1)


def test_an_entry_can_be_mapped_while_it_is_made_and_after_it_is_gone(cache):
    with cache.claim(key(1), wait=False) as claim:
        claim.file.write(b"early")
        early = mmap.mmap(claim.file.fileno(), 5, prot=mmap.PROT_READ)
        found = claim.publish({})
    with found.path.open("rb") as file:
        late = mmap.mmap(file.fileno(), found.size, prot=mmap.PROT_READ)
    assert cache.clear() > 0
    assert not found.path.exists()
    assert early[:] == late[:] == b"early"


def test_an_entry_can_be_replaced(cache):
    put(cache, 1, b"old")
    put(cache, 1, b"new")
    assert content_of(cache.find(key(1))) == b"new"
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("bad", ["", "abc", "../" + "a" * 61, "A" * 64, "g" * 64, "a" * 129, 7, None])
def test_keys_are_hex_digests(cache, bad):
    for use in (cache.find, lambda bad: cache.claim(bad, wait=False)):
        with pytest.raises(UsageError, match=r"must be a hex digest, 16 to 128 digits in lower case. Give"):
            use(bad)


def test_a_cache_can_be_pickled(cache):
    put(cache, 1)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.path, copy.limit) == (cache.path, cache.limit)
    assert copy.find(key(1)) == cache.find(key(1))


# Where, and how large


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOPYARD_CACHE": "/x/y", "XDG_CACHE_HOME": "/z"}, "/x/y"),
        ({"HOPYARD_CACHE": "", "XDG_CACHE_HOME": "/z"}, "/z/hopyard/data"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/hopyard/data"),
        ({"HOME": "/home/me"}, "/home/me/.cache/hopyard/data"),
        ({"HOME": "/home/me", "HOPYARD_CACHE": "~/x"}, "/home/me/x"),
    ],
)
def test_the_default_place(monkeypatch, environment, expected):
    for name in ("HOPYARD_CACHE", "XDG_CACHE_HOME", "HOPYARD_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert NodeCache().path == Path(expected)
    assert NodeCache().limit == DEFAULT_LIMIT == 20_000_000_000


def test_the_default_limit_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("HOPYARD_CACHE_BYTES", "2e9")
    assert NodeCache(tmp_path).limit == 2_000_000_000
    assert NodeCache(tmp_path, limit=5).limit == 5
    monkeypatch.setenv("HOPYARD_CACHE_BYTES", "20GB")
    with pytest.raises(
        UsageError, match="HOPYARD_CACHE_BYTES is '20GB', but must be a whole number of bytes"
    ):
        NodeCache(tmp_path)


@pytest.mark.parametrize("limit", [-1, 1.5, True, float("nan"), float("inf"), [1]])
def test_a_limit_is_a_number_of_bytes(tmp_path, limit):
    with pytest.raises(UsageError, match=r"limit is .* but must be a whole number of bytes, such as 20e9"):
        NodeCache(tmp_path, limit)


@pytest.mark.parametrize("path", ["", 7, b"x"])
def test_a_path_is_a_path(path):
    with pytest.raises(UsageError, match="a cache's path must be a non-empty string or Path"):
        NodeCache(path)


# The limit


def sized(nbytes):
    """Content of an entry whose file has ``nbytes``."""
    return bytes(nbytes - ROOM_OF_TRAILER)


@pytest.fixture
def every_use_counts(monkeypatch):
    """Not just one a minute."""
    monkeypatch.setattr(module, "_REFRESH", -1.0)


def test_what_was_not_used_for_longest_goes_first(tmp_path, every_use_counts):
    cache = NodeCache(tmp_path / "cache", limit=1000)
    for number in (1, 2, 3):
        put(cache, number, sized(300))
        durability.join()
    assert cache.find(key(1))
    put(cache, 4, sized(300))
    assert numbers(cache) == [3, 1, 4]


def test_a_use_is_written_down_at_most_once_a_minute(cache):
    path = put(cache, 1).path
    durability.join()
    before = path.stat().st_mtime_ns
    cache.find(key(1))
    assert path.stat().st_mtime_ns == before
    for hour in (-3600, 3600):  # also after a clock that went wrong
        os.utime(path, ns=(before, before + hour * 10**9))
        cache.find(key(1))
        assert abs(path.stat().st_mtime_ns - before) < 1800 * 10**9


def test_an_entry_larger_than_the_limit_is_refused_and_displaces_none(tmp_path):
    cache = NodeCache(tmp_path / "cache", limit=1000)
    put(cache, 1, sized(600))
    assert cache.admits(1000)
    assert not cache.admits(1001)
    with pytest.raises(OSError, match="an entry of 1001 bytes is larger than the cache's limit of 1000"):
        put(cache, 2, sized(1001))
    assert numbers(cache) == [1]
    put(cache, 2, sized(1000))
    assert numbers(cache) == [2]
    assert names(cache) == [f"{key(2)}.flat"]


def test_the_directory_is_not_listed_at_every_publication(tmp_path, monkeypatch):
    cache = NodeCache(tmp_path / "cache", limit=100 * 200)
    listed = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or real(path))
    for number in range(300):
        put(cache, number, sized(200))
    assert len(listed) <= 2 * (1 + 200 // 6 + 1), "twice at first, and then for every sixteenth of the limit"
    assert sum(entry.nbytes for entry in cache.entries()) <= cache.limit


def test_a_sum_that_is_wrong_is_made_right_when_it_matters(tmp_path):
    cache = NodeCache(tmp_path / "cache", limit=1000)
    for number in range(3):
        put(cache, number, sized(300))
    for number in range(3):
        (cache.path / f"{key(number)}.flat").unlink()  # by someone else
    put(cache, 3, sized(300))
    put(cache, 4, sized(300))
    (cache.path / "usage").write_bytes(b"")
    put(cache, 5, sized(300))
    assert numbers(cache) == [3, 4, 5]


class CacheAgainstADict(RuleBasedStateMachine):
    """Any commands, of several objects on one directory, against a dict that knows the rule of eviction."""

    LIMIT = 1600

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.refresh = module._REFRESH
        module._REFRESH = -1.0
        self.caches = [NodeCache(Path(self.folder.name) / "cache", self.LIMIT) for _ in range(2)]
        self.model = {}  # number -> content; least recently used first
        self.claims = {}

    def teardown(self):
        if hasattr(self, "folder"):
            for claim in self.claims.values():
                claim.close()
            durability.join()
            module._REFRESH = self.refresh
            self.folder.cleanup()

    which = st.integers(0, 1)
    number = st.integers(0, 7)

    @rule(which=which, number=number)
    def find(self, which, number):
        found = self.caches[which].find(key(number))
        assert (found is None) == (number not in self.model)
        if found:
            assert content_of(found) == self.model[number]
            assert found.description == {}
            self.model[number] = self.model.pop(number)

    @rule(which=which, number=number)
    def claim(self, which, number):
        claim = self.caches[which].claim(key(number), wait=False)
        assert (claim is None) == (number in self.claims)
        if claim:
            self.claims[number] = claim

    @rule(
        number=number, size=st.integers(ROOM_OF_TRAILER, LIMIT + 100), fill=st.binary(min_size=1, max_size=1)
    )
    def publish(self, number, size, fill):
        if number not in self.claims:
            return
        claim = self.claims.pop(number)
        content = fill * (size - ROOM_OF_TRAILER)
        claim.file.write(content)
        if size > self.LIMIT:
            with pytest.raises(OSError, match="larger than the cache's limit"):
                claim.publish({})
            return
        claim.publish({})
        durability.join()
        self.model.pop(number, None)
        if self.total() + size > self.LIMIT:
            while self.model and self.total() + size > self.LIMIT - self.LIMIT // 16:
                del self.model[next(iter(self.model))]
        self.model[number] = content

    def total(self):
        return sum(len(content) + ROOM_OF_TRAILER for content in self.model.values())

    @rule(number=number)
    def abandon(self, number):
        if number in self.claims:
            self.claims.pop(number).close()

    @rule(which=which)
    def clear(self, which):
        assert self.caches[which].clear() == self.total()
        self.model.clear()

    @rule(number=number, cut=st.integers(1, 40))
    def truncate(self, number, cut):
        if number in self.model:
            path = self.caches[0].path / f"{key(number)}.flat"
            os.truncate(path, path.stat().st_size - cut)
            assert self.caches[0].find(key(number)) is None
            assert not path.exists()
            del self.model[number]
            (self.caches[0].path / "usage").unlink()  # which has counted it

    @rule()
    def copy(self):
        self.caches = pickle.loads(pickle.dumps(self.caches))

    @invariant()
    def lists_what_is_there(self):
        if hasattr(self, "model"):
            assert numbers(self.caches[0]) == list(self.model)
            assert self.total() <= self.LIMIT


CacheAgainstADict.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestCacheAgainstADict = CacheAgainstADict.TestCase


# Several makers


MAKER = """
import sys
from hopyard.data.cache.node import NodeCache
cache = NodeCache(sys.argv[1])
with cache.claim("0" * 63 + "1", wait=True) as claim:
    print("claimed", flush=True)
    claim.file.write(b"half and ")
    sys.stdin.readline()
    claim.file.write(b"half")
    claim.publish({"by": "another process"})
"""


@contextlib.contextmanager
def running(program, cache, *arguments):
    """A process that has printed a line, and ends when it is sent one."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(cache.path), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            process.said = process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_one_process_makes_an_entry_and_others_do_something_else_or_wait(cache):
    with running(MAKER, cache) as maker:
        assert maker.said == "claimed\n"
        assert cache.claim(key(1), wait=False) is None
        put(cache, 2)
        outcome = []

        def wait():
            with cache.claim(key(1), wait=True):
                outcome.append(cache.find(key(1)))

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert cache.find(key(1)) is None
        assert outcome == []
        maker.stdin.write("\n")
        maker.stdin.flush()
        waiting.join()
        [found] = outcome
        assert content_of(found) == b"half and half"
        assert found.description == {"by": "another process"}
        assert maker.wait() == 0


def test_one_of_many_processes_makes_an_entry(cache):
    program = """
import os, sys
from hopyard.data.cache.node import NodeCache
cache = NodeCache(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with cache.claim("0" * 63 + "1", wait=True) as claim:
    if cache.find(claim.key) is None:
        claim.file.write(b"x" * 100000)
        claim.publish({"pid": os.getpid()})
        print("made")
print(cache.find("0" * 63 + "1").description["pid"])
"""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(running(program, cache)) for _ in range(3)]
        answers = [process.communicate("\n")[0].split() for process in processes]
    [made] = [answer for answer in answers if answer[0] == "made"]
    assert {answer[-1] for answer in answers} == {made[-1]}


def test_one_of_many_threads_makes_each_entry(cache):
    made, barrier = [], threading.Barrier(8)

    def make_all():
        barrier.wait()
        for number in range(40):
            with cache.claim(key(number), wait=True) as claim:
                if cache.find(claim.key) is None:
                    claim.file.write(claim.key.encode())
                    claim.publish({})
                    made.append(number)

    threads = [threading.Thread(target=make_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(40))
    assert {content_of(cache.find(key(n))) for n in made} == {key(n).encode() for n in made}


# Kills


KILLED = """
import os, signal, sys, threading
from hopyard.data.cache import durability as cache_durability
from hopyard.data.cache.node import NodeCache
NodeCache(sys.argv[1]).prepare()
def end(*ignored, **too):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "before the trailer":
    os.pwrite = end
if sys.argv[2] == "before it has its name":
    os.rename = end
if sys.argv[2] == "before it is durable":
    os.fsync = lambda fd: threading.Event().wait()
with NodeCache(sys.argv[1]).claim("0" * 63 + "1", wait=False) as claim:
    if sys.argv[2] == "before the first write":
        end()
    claim.file.write(b"x" * 10000)
    if sys.argv[2] == "in the middle":
        end()
    claim.file.write(b"y" * 10000)
    claim.publish({})
    end()
"""
MOMENTS = ["before the first write", "in the middle", "before the trailer", "before it has its name"]


def kill(cache, moment):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(cache.path), moment], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_killed_writer_left_is_no_entry_and_is_removed(cache, moment):
    kill(cache, moment)
    assert f"{key(1)}.part" in names(cache)
    assert cache.find(key(1)) is None
    assert cache.entries() == []
    with cache.claim(key(2), wait=False):
        freed = cache.clear()
        assert names(cache) == [f"{key(2)}.part"], "what is being written stays"
    assert (freed > 0) == (moment != MOMENTS[0])


def test_the_next_claim_does_so_too(cache):
    kill(cache, "in the middle")
    put(cache, 1, b"whole")
    assert content_of(cache.find(key(1))) == b"whole"


def test_the_next_eviction_does_so_too(cache):
    kill(cache, "in the middle")
    small = NodeCache(cache.path, limit=1000)
    put(small, 2, sized(700))
    put(small, 3, sized(700))
    assert names(cache) == [f"{key(3)}.flat"]


def power_fails(monkeypatch):
    monkeypatch.setattr(cache_format, "boot_id", lambda: b"\x01" * 16)


@pytest.mark.skipif(cache_format.boot_id() is None, reason="needs a system that tells its boot's id")
def test_a_published_entry_outlives_a_kill_but_not_the_power_before_it_is_durable(cache, monkeypatch):
    kill(cache, "before it is durable")
    with monkeypatch.context() as another_boot:
        power_fails(another_boot)
        assert cache.entries() == []
    assert content_of(found := cache.find(key(1))) == b"x" * 10000 + b"y" * 10000
    durability.join()  # who finds it makes it durable
    power_fails(monkeypatch)
    assert cache.find(key(1)) == found


@pytest.mark.skipif(cache_format.boot_id() is None, reason="needs a system that tells its boot's id")
def test_an_entry_that_may_have_lost_bytes_with_the_power_is_deleted(cache, monkeypatch):
    kill(cache, "before it is durable")
    power_fails(monkeypatch)
    assert cache.find(key(1)) is None
    assert f"{key(1)}.flat" not in names(cache)


def test_without_a_boot_id_an_entry_is_synced_before_it_is_published(cache, monkeypatch):
    monkeypatch.setattr(cache_format, "boot_id", lambda: None)
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size) or real(fd))
    found = put(cache, 1, bytes(1000))
    assert found.path.stat().st_size in synced
    power_fails(monkeypatch)
    assert cache.find(key(1)) == found


def test_an_entry_that_the_disk_does_not_take_is_deleted(cache, monkeypatch):
    cache.prepare()

    def fail(fd):
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fsync", fail)
    found = put(cache, 1)
    durability.join()
    assert not found.path.exists()


def test_syncing_leaves_no_thread_and_no_descriptor(cache):
    put(cache, 0)
    durability.join()
    before = len(list(Path("/dev/fd").iterdir()))
    for number in range(20):
        put(cache, number)
        cache.find(key(number))
    durability.join()
    assert "hopyard-cache" not in {thread.name for thread in threading.enumerate()}
    assert len(list(Path("/dev/fd").iterdir())) == before


# Damage, and files of others


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[1:],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"x",
        lambda data: bytes(len(data)),
        lambda data: data[:-60] + b"?" + data[-59:],
        lambda data: data[:-1] + b"\x02",
    ],
    ids=[
        "empty",
        "end cut",
        "begin cut",
        "half",
        "longer",
        "zeros",
        "description changed",
        "another version",
    ],
)
def test_a_damaged_entry_is_deleted_and_made_again(cache, damage):
    path = put(cache, 1, b"c" * 1000, {"some": "description of it"}).path
    durability.join()
    path.write_bytes(damage(path.read_bytes()))
    assert cache.entries() == []
    assert cache.find(key(1)) is None
    assert not path.exists()
    assert content_of(put(cache, 1, b"again")) == b"again"


FOREIGN = ["notes.txt", "x.flat", "A" * 64 + ".flat", key(1) + ".flat.bak", "deep/" + key(3) + ".flat"]


def test_files_of_others_survive_clearing_and_eviction(cache, tmp_path):
    cache.prepare()
    for name in FOREIGN:
        (cache.path / name).parent.mkdir(exist_ok=True)
        (cache.path / name).write_bytes(b"mine")
    (outside := tmp_path / "outside").write_bytes(b"mine")
    (cache.path / f"{key(4)}.flat").symlink_to(outside)
    (cache.path / f"{key(5)}.flat").mkdir()
    assert cache.find(key(4)) is None
    assert cache.find(key(5)) is None
    small = NodeCache(cache.path, limit=1000)
    for number in range(10, 20):
        put(small, number, sized(700))
    cache.clear()
    assert {name: (cache.path / name).read_bytes() for name in FOREIGN} == dict.fromkeys(FOREIGN, b"mine")
    assert outside.read_bytes() == b"mine"
    assert (cache.path / f"{key(4)}.flat").is_symlink()
    assert (cache.path / f"{key(5)}.flat").is_dir()


@pytest.mark.parametrize("name", [key(1) + ".flat", key(1) + ".part", "CACHEDIR.TAG", "photo.jpg"])
def test_a_directory_of_someone_else_is_refused(tmp_path, name):
    content = b"Signature: 8a477f597d28d172789f06886806bc55\n# pip's"
    (tmp_path / name).write_bytes(content)
    cache = NodeCache(tmp_path)
    for use in (cache.prepare, cache.clear, cache.entries, lambda: cache.claim(key(1), wait=False)):
        with pytest.raises(UsageError, match=r"a directory with other files in it.* Give an empty directory"):
            use()
    cache.find(key(1))
    cache.admits(10**15)
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert (tmp_path / name).read_bytes() == content


def test_backup_tools_are_told_to_skip_it(cache):
    cache.prepare()
    tag = (cache.path / "CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


@pytest.mark.parametrize("length", [0, 10, 60])
def test_a_directory_whose_maker_was_killed_is_taken_over(cache, length):
    cache.prepare()
    tag = cache.path / "CACHEDIR.TAG"
    whole = tag.read_bytes()
    tag.write_bytes(whole[:length])
    put(NodeCache(cache.path), 1)
    assert tag.read_bytes() == whole


def test_a_directory_that_is_removed_is_made_again(cache):
    put(cache, 1)
    durability.join()
    for path in cache.path.iterdir():
        path.unlink()
    cache.path.rmdir()
    assert cache.find(key(1)) is None
    assert content_of(put(cache, 1)) == b"content"


# Disks


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = NodeCache(path)
        assert cache.find(key(1)) is None
        for _ in range(2):
            with pytest.raises(NotWritableError) as caught:
                cache.claim(key(1), wait=True)
        message = (
            f"the node cache {path} cannot be written: Not a directory. Give another directory as cache= or"
        )
        assert message in str(caught.value)
        assert "HOPYARD_CACHE, or cache=False to keep decoded data in memory" in str(caught.value)


@contextlib.contextmanager
def mounted(folder, options):
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_cache_that_may_only_be_read_is_read(tmp_path):
    cache = NodeCache(tmp_path / "mount" / "cache")
    with mounted(tmp_path / "mount", "size=1m"):
        put(cache, 1)
        os.utime(cache.path / f"{key(1)}.flat", (0, 0))
        durability.join()
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "mount"], check=True)
        assert content_of(cache.find(key(1))) == b"content"
        with pytest.raises(NotWritableError, match="Read-only file system"):
            cache.claim(key(2), wait=False)
        with pytest.raises(NotWritableError, match="Read-only file system"):
            cache.clear()
        with pytest.raises(NotWritableError, match="Read-only file system"):
            NodeCache(tmp_path / "mount" / "another").prepare()


def write_until_full(file, block):
    with contextlib.suppress(OSError):
        while file.write(block) == len(block):
            pass


def test_a_disk_that_fills_up_leaves_no_part_of_an_entry(tmp_path):
    with mounted(tmp_path / "mount", "size=1m"):
        cache = NodeCache(tmp_path / "mount" / "cache")
        kept = put(cache, 1, b"x" * 1000)
        with cache.claim(key(2), wait=False) as claim:
            write_until_full(claim.file, bytes(4096))
            with pytest.raises(OSError, match="No space left on device"):
                claim.publish({"long": "x" * 4096})
        assert names(cache) == [f"{key(1)}.flat"]
        assert cache.find(key(1)) == kept
        put(cache, 2)


def test_a_short_file_system_admits_what_fits_and_gives_up_what_was_used_longest_ago(tmp_path):
    with mounted(tmp_path / "mount", "size=2m"):
        cache = NodeCache(tmp_path / "mount" / "cache")
        for number in range(3):
            assert cache.admits(500_000)
            put(cache, number, bytes(500_000))
            durability.join()
        assert cache.admits(300_000)
        assert not cache.admits(4_000_000)
        assert numbers(cache) == [0, 1, 2], "nothing goes for what does not fit anyway"
        assert cache.admits(560_000)
        assert numbers(cache) == [1, 2]
        ballast = (tmp_path / "mount" / "ballast").open("wb", buffering=0)
        with ballast, cache.claim(key(3), wait=False) as claim:
            write_until_full(ballast, bytes(4096))
            ballast.truncate(ballast.tell() - 8192)
            claim.publish({})
        assert numbers(cache) == [2, 3], "some of the file system stays free for others"


@pytest.mark.parametrize("call", ["pwrite", "rename"])
def test_an_injected_lack_of_space_is_raised_and_leaves_nothing(cache, monkeypatch, call):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "injected")

    put(cache, 1)
    durability.join()
    with monkeypatch.context() as patch, cache.claim(key(2), wait=False) as claim:
        claim.file.write(b"mapped")
        mapped = mmap.mmap(claim.file.fileno(), 6, prot=mmap.PROT_READ)
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="injected"):
            claim.publish({})
    assert mapped[:] == b"mapped"
    assert names(cache) == [f"{key(1)}.flat"]


# Forks, as those of a data loader's workers: in a fresh process, since forking this one copies its threads

FORKS = """
import os, sys, threading, traceback
from hopyard.data.cache import durability as cache_durability
from hopyard.data.cache.node import NodeCache
from hopyard.data.cache.files import Book

cache = NodeCache(sys.argv[1])
one, two = "0" * 63 + "1", "0" * 63 + "2"
real, under_way, go_on = os.fsync, threading.Event(), threading.Event()
def slow(fd):
    under_way.set()
    go_on.wait()
    real(fd)
cache.prepare()
os.fsync = slow
with cache.claim(one, wait=False) as claim:
    claim.publish({})
under_way.wait()  # the daemon thread is at work
claim = cache.claim(two, wait=False)
held, release = threading.Event(), threading.Event()
def hold():
    with cache_durability.durability._lock, Book(sys.argv[1]):
        held.set()
        release.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
read, write = os.pipe()
checked, check = os.pipe()
child = os.fork()
if child == 0:
    os.fsync = real
    try:
        assert cache.find(one) is not None
        assert cache.claim(two, wait=False) is None, "it is the parent's"
        claim.close()
        assert claim.file.closed
        assert os.path.exists(f"{sys.argv[1]}/{two}.part")
        os.write(check, b"x")
        os.close(write)
        os.read(read, 1)  # the parent has let the directory go
        with cache.claim("0" * 63 + "3", wait=False) as mine:
            mine.publish({})
        cache_durability.durability.join()
        with cache.claim(two, wait=True):  # comes when the parent has published
            assert cache.find(two).description == {"by": "parent"}
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
os.close(read)
os.close(check)
os.read(checked, 1)  # or the child has ended
release.set()
holder.join()
os.close(write)
go_on.set()
claim.publish({"by": "parent"})
assert os.waitpid(child, 0)[1] == 0
cache_durability.durability.join()
assert len(cache.entries()) == 3
"""


def test_a_fork_while_locks_are_held_and_the_thread_works_blocks_nobody(cache):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(cache.path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


ORPHAN = """
import os, sys
from hopyard.data.cache.node import NodeCache
claim = NodeCache(sys.argv[1]).claim("0" * 63 + "1", wait=False)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(read, 1)
print("claimed", flush=True)
sys.stdin.readline()
"""


def test_a_claim_dies_with_its_process_though_a_fork_of_it_lives_on(cache):
    with running(ORPHAN, cache) as process:
        assert process.said == "claimed\n"
        assert cache.claim(key(1), wait=False) is None
        process.kill()
        process.wait()
        with cache.claim(key(1), wait=True) as claim:
            claim.publish({})
