"""Downloads: one transfer for all processes of a machine, resumed, checked, kept within a limit, errors."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import S3Server
from tests.sampling import by_level, sample
from tests.web_servers import send, serving
from tests.wire import Wire

from hopyard.errors import CorruptError, NotFoundError, StorageError, StorageFullError, UsageError
from hopyard.experiment import downloads, remote
from hopyard.experiment.downloads import Downloads, download
from hopyard.storage import Store, open_store

PART = 256 << 10
WHOLE = np.random.default_rng(0).bytes(4 * PART + 12_345)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a download cache of the test's own."""
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "REQUEST", PART)
    yield tmp_path / "cache-downloads"
    while downloads._of_process:
        downloads._of_process.popitem()[1].close()


@pytest.fixture
def wire(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Counts the bytes between the server and all processes."""
    wire = Wire(s3.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
    yield wire
    wire.close()


@pytest.fixture
def store(s3_url: str, wire: Wire) -> Store:
    """A prefix in a bucket, behind the wire."""
    return open_store(s3_url)


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name))


@contextlib.contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process


# One transfer

TRIAL = """
import hashlib, sys
from hopyard.experiment.downloads import download
print("ready", flush=True)
sys.stdin.readline()
path = download(sys.argv[1])
print(path, hashlib.md5(path.read_bytes()).hexdigest(), flush=True)
sys.stdin.readline()
"""


def test_many_processes_download_an_object_by_one_transfer(store: Store, wire: Wire) -> None:
    whole = np.random.default_rng(1).bytes(by_level(10_000_000, 40_000_000, 200_000_000))
    store.put("data.bin", whole)
    before = wire.received
    with contextlib.ExitStack() as stack:  # two ranks of four trials
        trials = [stack.enter_context(running(TRIAL, f"{store.url}/data.bin")) for _ in range(8)]
        assert [trial.stdout.readline() for trial in trials] == ["ready\n"] * 8  # type: ignore[union-attr]
        for trial in trials:
            assert trial.stdin is not None
            trial.stdin.write("\n")
            trial.stdin.flush()
        said = {trial.stdout.readline() for trial in trials}  # type: ignore[union-attr]
        [(path, _)] = [line.split() for line in said]
        assert len(whole) < wire.received - before < len(whole) + 200_000
    assert Path(path).read_bytes() == whole
    assert Path(path).name == "data.bin"


def test_a_file_that_is_here_is_not_transferred_again(store: Store, wire: Wire) -> None:
    store.put("data.csv", WHOLE)
    path = download(f"{store.url}/data.csv")
    assert path.read_bytes() == WHOLE
    before = wire.received
    with Downloads() as others:
        assert others.download(f"{store.url}/data.csv") == path
    assert wire.received - before < 5000


def test_a_folder_has_each_object_below_a_prefix(store: Store, s3: S3Server, cache: Path) -> None:
    objects = {"a.bin": WHOLE, "deep/b.txt": b"b", "deep/er/empty": b"", "z": b"z" * 1000}
    for name, data in objects.items():
        store.put(f"images/{name}", data)
    store.put("images-of-others", b"no")
    folder = download(f"{store.url}/images/")
    assert folder.name == "images"
    assert {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    } == objects
    before = s3.requests()
    assert download(f"{store.url}/images") == folder
    asked = [
        each for each in s3.requests()[len(before) :] if each.startswith("GET") and "prefix=" not in each
    ]
    assert (
        len(asked) <= len(objects) + 2
    )  # each was looked at, the empty one twice, and whether there is images
    store.put("images/z", b"Z" * 1000)
    again = download(f"{store.url}/images/")
    assert again != folder
    assert ((folder / "z").read_bytes(), (again / "z").read_bytes()) == (b"z" * 1000, b"Z" * 1000)


def test_paths_of_this_machine_are_returned_as_they_are(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "with blanks.csv").write_text("1")
    assert download(tmp_path / "with blanks.csv") == tmp_path / "with blanks.csv"
    assert download(f"file://{tmp_path}/with%20blanks.csv") == tmp_path / "with blanks.csv"
    assert download(str(tmp_path)) == tmp_path
    assert not cache.exists()


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_of_a_web_server_is_downloaded_as_long_as_it_says_its_length(
    has_ranges: bool, cache: Path
) -> None:
    asked: list[str | None] = []
    tag = ['"one"']

    def answer(request: Any) -> None:
        asked.append(request.headers["Range"])
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        if has_ranges:
            body = WHOLE[first : last + 1]
            send(request, 206, body, ETag=tag[0], **{"Content-Range": f"bytes {first}-{last}/{len(WHOLE)}"})
        else:
            with contextlib.suppress(ConnectionError):  # who looks reads no more
                send(request, 200, WHOLE, ETag=tag[0])

    with serving(answer) as address:
        path = download(f"http://{address}/some/data.tgz?signature=1")
        assert path.name == "data.tgz"
        assert path.read_bytes() == WHOLE
        assert len(asked) == (6 if has_ranges else 2)
        assert download(f"http://{address}/some/data.tgz?signature=1") == path
        assert len(asked) == (7 if has_ranges else 3)
        tag[0] = '"two"'
        assert download(f"http://{address}/some/data.tgz?signature=1") != path
    assert "signature" not in next(entries(cache)[0].glob("plan")).read_text()


# Killed and resumed

KILLED = """
import os, signal, sys
from hopyard.experiment import downloads, remote
remote.REQUEST = 256 << 10
downloads._AT_ONCE = 1  # so that nothing else is under way
real, half = downloads.files.write_at, int(sys.argv[2]) * remote.REQUEST

def write_at(file, piece, place):
    if place >= half:
        piece = piece[: len(piece) // 2]
    real(file, piece, place)
    if place >= half:
        os.kill(os.getpid(), signal.SIGKILL)

downloads.files.write_at = write_at
downloads.download(sys.argv[1])
"""
"""Downloads, and is killed in the middle of the part of that number."""


def asked_for(s3: S3Server, name: str) -> int:
    """Number of times that the bytes of an object were asked for."""
    return sum(request.startswith("GET") and request.endswith(f"/{name}?") for request in s3.requests())


@pytest.mark.parametrize("parts", sample("parts before a kill", range(5), 2, 5))
def test_a_transfer_that_was_killed_is_continued(store: Store, s3: S3Server, parts: int) -> None:
    store.put("data.bin", WHOLE)
    before = asked_for(s3, "data.bin")
    with running(KILLED, f"{store.url}/data.bin", parts) as killed:
        assert killed.wait() == -signal.SIGKILL, killed.stderr
    assert asked_for(s3, "data.bin") - before == 1 + parts + 1
    before = asked_for(s3, "data.bin")
    assert download(f"{store.url}/data.bin").read_bytes() == WHOLE
    assert asked_for(s3, "data.bin") - before == 1 + 5 - parts


def test_parts_that_are_not_what_was_written_are_transferred_again(
    store: Store, s3: S3Server, cache: Path
) -> None:
    store.put("data.bin", WHOLE)
    with running(KILLED, f"{store.url}/data.bin", 3) as killed:
        killed.wait()
    [entry] = entries(cache)
    with (entry / "partial" / "data.bin").open("r+b") as file:  # as a power cut may leave it
        file.seek(PART + 5)
        file.write(b"\0" * 5000)
    with (entry / "parts").open("ab") as file:
        file.write(b"half a record")
    before = asked_for(s3, "data.bin")
    assert download(f"{store.url}/data.bin").read_bytes() == WHOLE
    assert asked_for(s3, "data.bin") - before == 1 + 5 - 2


def test_one_that_waits_goes_on_where_the_one_it_waits_for_is_killed(
    store: Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data.bin", WHOLE)
    monkeypatch.setattr(downloads, "_LOOK", 0.01)
    monkeypatch.setattr(downloads, "_SELDOM", 0.001)
    monkeypatch.setattr(sys, "stderr", said := Said())
    stopping = KILLED.replace("os.kill(", 'print("half", flush=True); sys.stdin.readline(); os.kill(')
    with running(stopping, f"{store.url}/data.bin", 2) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "half\n"
        found: list[Path] = []
        waiting = threading.Thread(target=lambda: found.append(download(f"{store.url}/data.bin")))
        waiting.start()
        assert said.something.wait(20)
        before = asked_for(s3, "data.bin")
        killed.kill()
    waiting.join()
    assert found[0].read_bytes() == WHOLE
    assert asked_for(s3, "data.bin") - before == 5 - 2
    expected = r"waiting for a process that downloads s3://\S+/data\.bin: 524,288 of 1,060,921 bytes"
    assert re.search(expected, said.getvalue())


def test_a_fork_of_a_process_that_was_killed_holds_nobody_up(store: Store) -> None:
    store.put("data.bin", WHOLE)
    forking = KILLED.replace(
        "        os.kill(",
        "        if os.fork() == 0:\n            sys.stdin.read()\n            os._exit(0)\n        os.kill(",
    )
    with running(forking, f"{store.url}/data.bin", 2) as killed:
        assert killed.wait() == -signal.SIGKILL
        assert download(f"{store.url}/data.bin").read_bytes() == WHOLE


class Said(io.StringIO):
    """Standard error, and whether something was written there."""

    def __init__(self) -> None:
        super().__init__()
        self.something = threading.Event()

    def write(self, text: str) -> int:
        self.something.set()
        return super().write(text)


# Changed


def test_an_object_that_changed_is_another_file_and_the_old_one_stays(store: Store) -> None:
    store.put("data.bin", b"one" * 1000)
    old = download(f"{store.url}/data.bin")
    store.put("data.bin", b"two" * 1000)
    new = download(f"{store.url}/data.bin")
    assert (old.read_bytes(), new.read_bytes()) == (b"one" * 1000, b"two" * 1000)


@pytest.mark.parametrize("size", [len(WHOLE), 3 * PART, 100])
def test_an_object_that_is_replaced_meanwhile_is_transferred_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int, cache: Path
) -> None:
    store.put("data.bin", WHOLE)
    other, real = np.random.default_rng(2).bytes(size), downloads._Entry._fetch
    replace = threading.Lock()

    def fetch(entry: Any, number: int, part: int, log: int) -> bool:
        done = real(entry, number, part, log)
        if part == 0 and replace.acquire(blocking=False):
            store.put("data.bin", other)
        return done if part == 0 else real(entry, number, part, log)

    monkeypatch.setattr(downloads, "_AT_ONCE", 1)
    monkeypatch.setattr(downloads._Entry, "_fetch", fetch)
    assert download(f"{store.url}/data.bin").read_bytes() == other
    assert len(entries(cache)) == 1


def test_an_object_that_is_replaced_all_the_time_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data.bin", b"0")
    real = downloads._Entry._fetch

    def fetch(entry: Any, number: int, part: int, log: int) -> bool:
        store.put("data.bin", os.urandom(8))
        return real(entry, number, part, log)

    monkeypatch.setattr(downloads._Entry, "_fetch", fetch)
    with pytest.raises(CorruptError) as raised:
        download(f"{store.url}/data.bin")
    assert str(raised.value) == (
        f"{store.url}/data.bin was replaced while it was downloaded, 3 times. Let nothing write to it meanwhile, and "
        "start again."
    )


def test_an_object_that_is_deleted_meanwhile_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data.bin", b"0")
    real = downloads._Entry._fetch

    def fetch(entry: Any, number: int, part: int, log: int) -> bool:
        store.delete("data.bin")
        return real(entry, number, part, log)

    monkeypatch.setattr(downloads._Entry, "_fetch", fetch)
    with pytest.raises(
        NotFoundError, match=r"there is no object s3://\S+/data\.bin, and none below it\. Correct the"
    ):
        download(f"{store.url}/data.bin")


@pytest.mark.parametrize("damage", ["shorter", "other bytes", "gone", "touched"])
def test_a_file_that_somebody_wrote_to_is_transferred_again(store: Store, wire: Wire, damage: str) -> None:
    store.put("data.bin", WHOLE)
    with Downloads() as first:
        path = first.download(f"{store.url}/data.bin")
        assert path.stat().st_mode & 0o222 == 0
    path.chmod(0o644)
    if damage == "shorter":
        os.truncate(path, 1000)
    elif damage == "other bytes":
        path.write_bytes(WHOLE[:-1] + b"?")
    elif damage == "gone":
        path.unlink()
    else:
        os.utime(path, (1, 1))
    before = wire.received
    assert download(f"{store.url}/data.bin").read_bytes() == WHOLE
    assert (wire.received - before > len(WHOLE)) == (damage != "touched")


def test_a_file_in_use_that_somebody_wrote_to_is_an_error(store: Store) -> None:
    store.put("data.bin", WHOLE)
    path = download(f"{store.url}/data.bin")
    path.chmod(0o644)
    os.truncate(path, 1000)
    with pytest.raises(CorruptError) as raised, Downloads() as others:
        others.download(f"{store.url}/data.bin")
    assert str(raised.value) == (
        f"{path} is not what was downloaded from {store.url}/data.bin: somebody wrote to it, and other processes use "
        "it. End them, and start again. To change files, download them with directory=."
    )


def test_after_a_boot_the_content_is_compared_with_its_checksums(
    store: Store, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data.bin", WHOLE)
    path = download(f"{store.url}/data.bin")
    monkeypatch.setattr(downloads, "boot_id", lambda: bytes(16))
    before = wire.received
    assert download(f"{store.url}/data.bin") == path
    assert wire.received - before < 5000
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(
        WHOLE[:-1] + b"?"
    )  # as a power cut may leave it: size and times are on the disk, the bytes not
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    downloads._of_process.popitem()[1].close()
    assert (
        download(f"{store.url}/data.bin").read_bytes() == WHOLE[:-1] + b"?"
    )  # what it costs to look at no bytes
    downloads._of_process.popitem()[1].close()
    monkeypatch.setattr(downloads, "boot_id", lambda: b"1" * 16)
    assert download(f"{store.url}/data.bin").read_bytes() == WHOLE


# Kept within a limit


def test_what_was_used_longest_ago_is_deleted_and_nothing_that_is_in_use(store: Store, cache: Path) -> None:
    for number in range(5):
        store.put(f"{number}", bytes([number]) * 1000)
    urls = [f"{store.url}/{number}" for number in range(5)]
    paths = []
    for url in urls[:3]:
        with Downloads() as used:
            paths.append(used.download(url))
    _used_at(paths)
    with Downloads(limit=2500) as using:
        assert using.download(urls[0]) == paths[0]
        with Downloads(limit=2500) as other:
            other.download(urls[3])
            assert [path.exists() for path in paths] == [True, False, False]  # the oldest is in use
            new = other.download(urls[4])
        assert new.read_bytes() == bytes([4]) * 1000
        assert len(entries(cache)) == 3  # all in use
    with Downloads(limit=0) as used:
        again = used.download(urls[1])
        assert again.read_bytes() == bytes([1]) * 1000
        assert len(entries(cache)) == 1


def _used_at(paths: list[Path]) -> None:
    """Let these have been used one after another, a second each."""
    for second, path in enumerate(paths):
        os.utime(path.parent.parent / "lock", (second, second))


def test_what_another_process_uses_is_kept_until_it_ends(store: Store, cache: Path) -> None:
    store.put("a", b"a" * 1000)
    store.put("b", b"b" * 1000)
    store.put("c", b"c" * 1000)
    with running(TRIAL, f"{store.url}/a") as trial:
        assert trial.stdout is not None
        assert trial.stdin is not None
        trial.stdin.write("\n")
        trial.stdin.flush()
        assert trial.stdout.readline() == "ready\n"
        path = Path(trial.stdout.readline().split()[0])
        with Downloads(limit=0) as used:
            used.download(f"{store.url}/b")
        assert path.exists()
        trial.kill()
    with Downloads(limit=0) as used:
        used.download(f"{store.url}/c")
    assert not path.exists()
    assert len(entries(cache)) == 1


def test_one_process_deletes_while_others_begin_to_use(tmp_path: Path, s3: S3Server, store: Store) -> None:
    for number in range(3):
        store.put(f"{number}", bytes([number]) * 1000)
    code = """
import sys
from hopyard.experiment.downloads import Downloads
print("ready", flush=True)
sys.stdin.readline()
for turn in range(int(sys.argv[2])):
    number = (turn + int(sys.argv[3])) % 3
    with Downloads(limit=0) as used:
        assert used.download(f"{sys.argv[1]}/{number}").read_bytes() == bytes([number]) * 1000
print("done", flush=True)
"""
    with contextlib.ExitStack() as stack:
        turns = by_level(4, 12, 100)
        racers = [stack.enter_context(running(code, store.url, turns, me)) for me in range(4)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        said = [racer.communicate("\n") for racer in racers]
    assert [out for out, _ in said] == ["done\n"] * 4, said


# Copies


def test_a_copy_in_a_directory_is_the_callers(store: Store, tmp_path: Path) -> None:
    store.put("images/a", b"a")
    store.put("images/deep/b", b"b")
    for rank in range(2):
        path = download(f"{store.url}/images/a", directory=tmp_path / f"rank{rank}")
        assert path == tmp_path / f"rank{rank}" / "a"
        assert download(f"{store.url}/images/a", directory=tmp_path / f"rank{rank}") == path
    path.write_bytes(b"mine")
    assert (tmp_path / "rank0" / "a").read_bytes() == b"a"
    with pytest.raises(UsageError) as raised:
        download(f"{store.url}/images/a", directory=tmp_path / "rank1")
    assert re.fullmatch(
        rf"{path} is to be a copy of \S+/whole/a, but is another file already, with other content\. Delete it, or give "
        r"another directory=\.",
        str(raised.value),
    )
    assert path.read_bytes() == b"mine"
    folder = download(f"{store.url}/images/", directory=tmp_path / "all")
    assert folder == tmp_path / "all" / "images"
    assert {str(each.relative_to(folder)) for each in folder.rglob("*")} == {"a", "deep", "deep/b"}
    assert download(tmp_path / "all", directory=tmp_path / "again") == tmp_path / "again" / "all"
    assert (tmp_path / "again" / "all" / "images" / "deep" / "b").read_bytes() == b"b"


# Errors


def test_what_is_not_there_is_an_error(s3_url: str, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(NotFoundError) as raised:
        download(f"{s3_url}/none")
    assert str(raised.value) == (
        f"there is no object {s3_url}/none, and none below it. Correct the URL, or put the object there."
    )
    with pytest.raises(
        StorageError, match=r"the bucket of s3://no-such-bucket does not exist .* Create it, or correct"
    ):
        download("s3://no-such-bucket/x")
    with pytest.raises(NotFoundError) as raised:
        download(tmp_path / "none")
    assert str(raised.value) == f"there is no file or folder {tmp_path}/none. Correct the path."
    assert not cache.exists()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "ftp://host/x",
            "the URL 'ftp://host/x' has the scheme 'ftp', but objects are read from a path or from file://,",
        ),
        ("s3:/bucket/x", "'s3:/bucket/x' begins like a URL, but lacks '//'. Write s3://bucket/x"),
        ("s3://", "'s3://' is no bucket. Give one of s3://,"),
        ("", "'' is no URL of an object. Give a text such as 's3://bucket/key', or a path of this machine."),
        (3, "3 is no URL of an object. Give a text"),
        (
            "https://me:hush@host/x",
            "the URL of a web server must name a host, and must not hold a user name or password",
        ),
    ],
)
def test_what_is_no_url_is_refused(url: Any, text: str, cache: Path) -> None:
    with pytest.raises(UsageError) as raised:
        download(url)
    assert text in str(raised.value)
    assert "hush" not in str(raised.value)
    assert not cache.exists()


def test_objects_in_memory_and_names_that_lead_elsewhere_are_refused(s3: S3Server, s3_url: str) -> None:
    open_store("memory://downloads").put("x", b"1")
    with pytest.raises(
        UsageError, match=r"memory://downloads/x is in the memory of this process, and other processes"
    ):
        download("memory://downloads/x")
    bucket = s3_url.split("/")[2]
    s3.request("PUT", f"/{bucket}/evil//x", b"1")
    with pytest.raises(StorageError, match=r"evil//x. contained empty path segment"):
        download(f"s3://{bucket}/evil/")
    with serving(lambda request: send(request, 200, b"1")) as address, pytest.raises(UsageError) as raised:
        download(f"http://{address}/evil/..")
    assert "cannot become a file: a part of its name between slashes is empty, '.' or '..', or" in str(
        raised.value
    )


def test_a_server_that_forbids_is_an_error_and_nothing_is_believed(
    s3: S3Server, store: Store, cache: Path
) -> None:
    store.put("data.bin", WHOLE)
    s3.fail("(GET|HEAD) .*data.bin 9 403")
    with pytest.raises(StorageError, match=r"data\.bin cannot be read: the server forbids it"):
        download(f"{store.url}/data.bin")
    assert not cache.exists()
    s3.fail()
    assert download(f"{store.url}/data.bin").read_bytes() == WHOLE


def test_a_web_server_that_says_too_little_or_no_is_an_error() -> None:
    def answer(request: Any) -> None:
        if "/unknown" in request.path:
            request.send_response(200)
            request.send_header("Connection", "close")
            request.end_headers()
            request.close_connection = True
        else:
            send(request, int(request.path[1:4]), b"")

    with serving(answer) as address:
        for path, error, text in [
            (
                "unknown",
                StorageError,
                "the server does not tell how long the object is, so that nobody could see that",
            ),
            ("404", NotFoundError, "there is no object http://{}/404 (HTTP 404). Correct the URL."),
            (
                "403/x?key=hush",
                StorageError,
                "/403/x cannot be read: the server forbids it (HTTP 403 Forbidden). Give a",
            ),
            (
                "400",
                StorageError,
                "/400 cannot be read: HTTP 400 Bad Request. Look at the URL and at the server.",
            ),
        ]:
            with pytest.raises(error) as raised:
                download(f"http://{address}/{path}")
            assert text.format(address) in str(raised.value)
            assert "hush" not in str(raised.value)


def test_a_full_disk_is_an_error_and_what_came_is_kept(
    store: Store, wire: Wire, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data.bin", WHOLE)
    real = downloads.files.write_at

    def full(file: int, data: Any, place: int) -> None:
        if place >= 2 * PART:
            raise OSError(28, "No space left on device")
        real(file, data, place)

    with monkeypatch.context() as patch:
        patch.setattr(downloads, "_AT_ONCE", 1)
        patch.setattr(downloads.files, "write_at", full)
        with pytest.raises(
            StorageFullError, match=r"no space is left for \S+/partial/data\.bin: .* Make space there\."
        ):
            download(f"{store.url}/data.bin")
    before = wire.received
    assert download(f"{store.url}/data.bin").read_bytes() == WHOLE
    left = len(WHOLE) - 2 * PART
    assert left <= wire.received - before < left + PART


def test_a_disk_that_is_too_small_is_seen_before_anything_comes(
    store: Store, wire: Wire, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data.bin", WHOLE)
    with Downloads() as used:
        old = used.download(f"{store.url}/data.bin")
    store.put("data.bin", WHOLE[::-1])
    monkeypatch.setattr(
        downloads.os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 10**6, 100, 100, 0, 0, 0, 0, 255))
    )
    before = wire.received
    with pytest.raises(StorageFullError) as raised:
        download(f"{store.url}/data.bin")
    assert re.fullmatch(
        r"no space is left for \S+/data\.bin: 1\.06 MB are to come, and where \S+ is 410 kB are free\. Make space "
        r"there, or set HOPYARD_CACHE to a folder on a larger disk\.",
        str(raised.value),
    )
    assert wire.received - before < 5000
    assert not old.exists()  # which was not enough
    assert entries(cache) == []


@pytest.mark.parametrize("given_limit", ["much", "-1", "1.5"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(
    given_limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPYARD_DOWNLOAD_BYTES", given_limit)
    with pytest.raises(UsageError) as raised:
        Downloads()
    assert str(raised.value) == (
        f"HOPYARD_DOWNLOAD_BYTES={given_limit!r}, but it must be a whole number of bytes, such as 100e9 for 100 GB."
    )
    monkeypatch.setenv("HOPYARD_DOWNLOAD_BYTES", "1e9")
    Downloads()
    with pytest.raises(UsageError, match=r"limit=-1, but it must be an integer of at least 0"):
        Downloads(limit=-1)


# Any sequence


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["use", "keep", "end", "change"])), max_size=12
    ),
)
def test_a_download_is_always_what_the_server_has_and_what_is_in_use_stays(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], steps: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    there = [(0, bytes([number]) * size) for number, size in enumerate(sizes)]

    def answer(request: Any) -> None:
        version, data = there[int(request.path[1:])]
        send(request, 200, data, ETag=f'"{version}"')

    kept: list[tuple[Downloads, Path, bytes]] = []
    with serving(answer) as address:
        for version, (given_number, step) in enumerate(steps):
            number = given_number % len(sizes)
            if step == "change":
                there[number] = version, f"{version}".encode()
            elif step == "end" and kept:
                kept.pop(0)[0].close()
            else:
                used = Downloads(folder / "cache", limit=20)
                path = used.download(f"http://{address}/{number}")
                assert path.read_bytes() == there[number][1]
                kept.append((used, path, there[number][1]))
                if step == "use":
                    kept.pop()[0].close()
            assert all(path.read_bytes() == data for _, path, data in kept)
    for used, _, _ in kept:
        used.close()
