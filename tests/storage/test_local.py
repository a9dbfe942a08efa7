"""What only a directory can get wrong: crashes, rights, full disks, links, paths."""

import errno
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.errors import NotFoundError, NotWritableError, StorageError, StorageFullError, UsageError
from hopyard.storage import LocalStore
from hopyard.storage.temporary import machine, temporary_name


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=60, check=False
    )


def temporaries(directory: Path) -> list[Path]:
    return sorted(directory.rglob(".tmp-*"))


# Writing a megabyte in steps, killed by the kernel's file size limit: a real death in mid-write.
DIE_WRITING = """
import resource, signal, sys
from hopyard.storage import LocalStore
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
LocalStore(sys.argv[1]).put("runs/state", b"x" * 1_000_000)
"""


def test_a_writer_killed_in_the_middle_leaves_nothing_visible_and_is_swept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("runs/state", b"old")
    assert run(DIE_WRITING, tmp_path).returncode == -signal.SIGXFSZ
    (left,) = temporaries(tmp_path)
    assert left.stat().st_size == 500_000
    assert [entry.name for entry in store.list()] == ["runs/state"]
    assert store.get("runs/state") == b"old"
    LocalStore(tmp_path).put("runs/other", b"")
    assert temporaries(tmp_path) == []


def test_only_what_is_provably_abandoned_is_swept(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    dead = f".tmp-{machine()}-{int(gone.stdout)}-0"
    alive = f".tmp-{machine()}-{os.getppid()}-0"
    foreign, old = ".tmp-00000000-1-0", ".tmp-00000000-1-1"
    for name in (dead, alive, foreign, old):
        (tmp_path / name).write_bytes(b"x")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(tmp_path / old, (two_days_ago, two_days_ago))
    staging = tmp_path / f".tmp-{machine()}-{int(gone.stdout)}-staging"
    staging.mkdir()
    (staging / "half").write_bytes(b"x")
    LocalStore(tmp_path).put("a", b"")
    assert {path.name for path in temporaries(tmp_path)} == {alive, foreign}


def test_staging_sweeps_what_killed_processes_staged(tmp_path: Path) -> None:
    code = "import os, sys\nfrom hopyard.storage import LocalStore\n"
    code += "(LocalStore(sys.argv[1]).staging() / 'half').write_bytes(b'x')\nos.kill(os.getpid(), 9)"
    assert run(code, tmp_path).returncode == -9
    (left,) = tmp_path.iterdir()
    staging = LocalStore(tmp_path).staging()
    assert staging is not None
    assert not left.exists()
    assert list(tmp_path.iterdir()) == [staging]
    assert list(LocalStore(tmp_path).list()) == []


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", fail)
    for write in (store.put, store.put_new):
        with pytest.raises(StorageFullError, match=r"quota is used up. Nothing was half-written. Make space"):
            write("b" if write == store.put_new else "a", b"new")
    monkeypatch.undo()
    assert store.get("a") == b"old"
    assert temporaries(tmp_path) == []
    assert store.size("b") is None


def test_a_full_disk_says_how_much_is_free_and_loses_nothing(tmp_path: Path, full_disk: Path) -> None:
    store = LocalStore(full_disk)
    store.put("kept", b"k" * 100_000)
    given = tmp_path / "given"
    given.write_bytes(b"x" * 4_000_000)
    with pytest.raises(
        StorageFullError, match=r"no space is left for .*/big: .* MB of [\d.]+ [MG]B are free"
    ):
        store.put("big", b"x" * 4_000_000)
    with pytest.raises(StorageFullError, match=r"Make space there"):
        store.put_new("big", b"x" * 4_000_000)
    with pytest.raises(StorageFullError, match=r"Make space there"):
        store.put_file("big", given)
    assert given.stat().st_size == 4_000_000
    assert [entry.name for entry in store.list()] == ["kept"]
    assert temporaries(full_disk) == []
    store.delete("kept")
    store.put("small", b"fits")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_put_file_moves_across_file_systems(tmp_path: Path, full_disk: Path) -> None:
    given = full_disk / "given"
    given.write_bytes(b"x" * 1000)
    LocalStore(tmp_path / "store").put_file("a/b", given)
    assert (tmp_path / "store/a/b").read_bytes() == b"x" * 1000
    assert not given.exists()


WITHOUT_RIGHTS = """
import os, sys
from hopyard.errors import NotWritableError, StorageError
from hopyard.storage import LocalStore
os.setuid(65534)
store = LocalStore(sys.argv[1])
for write in (lambda: store.put("a", b""), lambda: store.put_new("new/b", b"")):
    try:
        write()
    except NotWritableError as error:
        print(error)
try:
    store.get("secret")
except StorageError as error:
    print(error)
"""


def test_missing_rights_are_named() -> None:
    if os.getuid() != 0:
        pytest.skip("giving up rights needs root")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # pytest's own directories let nobody else in
        LocalStore(directory).put("secret", b"x")
        (Path(directory) / "secret").chmod(0o600)
        lines = run(WITHOUT_RIGHTS, directory).stdout.splitlines()
    assert len(lines) == 3
    assert "a cannot be written: Permission denied. Give this user the right to write there" in lines[0]
    assert "new/b cannot be written" in lines[1]
    assert "secret cannot be read: Permission denied. Give this user the right to read it" in lines[2]


def test_a_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(NotWritableError, match=r"Read-only file system"):
        LocalStore(tmp_path).put("a", b"")


def test_put_new_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    store = LocalStore(tmp_path)
    assert store.put_new("a/1", b"first") is True
    assert store.put_new("a/1", b"second") is False
    assert store.get("a/1") == b"first"
    assert temporaries(tmp_path) == []


def test_a_lost_reply_to_the_link_counts_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def lose_the_reply(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", lose_the_reply)
    store = LocalStore(tmp_path)
    assert store.put_new("a", b"mine") is True
    assert store.get("a") == b"mine"
    assert temporaries(tmp_path) == []


def test_files_honour_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        store = LocalStore(tmp_path / "store")
        store.put("a", b"")
        store.put_new("b", b"")
    finally:
        os.umask(old)
    for name in ("a", "b"):
        assert stat.S_IMODE((tmp_path / "store" / name).stat().st_mode) == 0o640


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "new", runs_path=tmp_path / "elsewhere")
    assert list(store.list()) == []
    assert store.runs.size("x") is None
    assert list(tmp_path.iterdir()) == []


def test_paths_are_expanded_and_fixed_at_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    relative, home = LocalStore("a/../b"), LocalStore("~/c")
    monkeypatch.chdir("/")
    assert relative.url == f"{tmp_path}/b"
    assert home.url == f"{tmp_path}/home/c"
    assert LocalStore(f"file://{tmp_path}/with%20space").url == f"{tmp_path}/with space"
    with pytest.raises(UsageError, match=r"names the host 'data'.*Write file:///data/x"):
        LocalStore("file://data/x")
    with pytest.raises(UsageError, match=r"non-empty string or Path"):
        LocalStore("")
    with pytest.raises(UsageError, match=r"given no path. Give the directory"):
        LocalStore()


def test_the_layout_of_a_search_can_be_moved_in_parts(tmp_path: Path) -> None:
    plain = LocalStore(tmp_path / "p")
    plain.train_data.put("fingerprint/x", b"")
    assert (tmp_path / "p/train_data/fingerprint/x").exists()
    assert (plain.single_train, plain.single_val) == (False, False)
    moved = LocalStore(
        tmp_path / "q",
        train_path=tmp_path / "t",
        val_path=tmp_path / "v",
        runs_path=tmp_path / "r",
        logs_path=tmp_path / "l",
    )
    for part in (moved.train_data, moved.val_data, moved.runs, moved.logs):
        part.put("x", b"")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("x")) == [
        "l/x", "p/train_data/fingerprint/x", "r/x", "t/x", "v/x"
    ]  # fmt: skip
    assert (moved.single_train, moved.single_val) == (True, True)
    assert pickle.loads(pickle.dumps(moved)).train_data.url == f"{tmp_path}/t"


def test_without_a_prefix_only_the_given_parts_can_be_used(tmp_path: Path) -> None:
    store = LocalStore(train_path=tmp_path / "t")
    store.train_data.put("x", b"")
    with pytest.raises(UsageError, match=r"has only train_data.*Give prefix_path= as well"):
        store.runs.put("x", b"")


def test_a_missing_object_suggests_its_neighbour(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("runs/digits", b"")
    with pytest.raises(NotFoundError, match=r"no object 'runs/digit' in .*did you mean 'digits'"):
        store.get("runs/digit")


def test_temporary_names_never_repeat() -> None:
    assert len({temporary_name() for _ in range(1000)}) == 1000


def test_unsynced_writes_wait_for_no_disk_until_they_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    store = LocalStore(tmp_path)
    unsynced = store.unsynced()
    store.put("a/first", b"1")  # its directory is new
    synced.clear()
    unsynced.put("a/b", b"1")
    unsynced.put_new("a/c", b"2")
    assert synced == []
    store.sync(["a/b", "a/c"])
    assert synced == [f"{tmp_path}/a/b", f"{tmp_path}/a/c", f"{tmp_path}/a"]
    with pytest.raises(StorageError, match="a/gone"):
        store.sync(["a/gone"])
