"""Downloads from a real server on the loopback: resumed, checked, kept."""

import hashlib
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.errors import CorruptError, NotFoundError, NotWritableError, StorageError
from hopyard.stockroom.importers.cifar import Cifar10
from hopyard.stockroom.importers.download import RemoteFile, download, downloads_folder
from hopyard.stockroom.importers.mnist import Mnist

from .formats import cifar10, mnist, tar, unpack

DATA = bytes(range(256)) * 4000  # 1,024,000 bytes
MD5 = hashlib.md5(DATA).hexdigest()


class Server:
    def __init__(self, folder):
        self.folder = folder
        script = Path(__file__).with_name("server.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.process.stdout.readline())

    def url(self, path):
        return f"http://127.0.0.1:{self.port}/{path}"

    def end(self):
        """What was asked for."""
        self.process.terminate()
        requests = self.process.stdout.read().splitlines()
        self.process.stdout.close()
        self.process.wait()
        return requests


@pytest.fixture
def server(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "data.bin").write_bytes(DATA)
    server = Server(tmp_path / "served")
    yield server
    if server.process.poll() is None:
        server.end()


def remote(*urls, md5=MD5):
    return RemoteFile("data.bin", urls, md5)


def test_a_file_is_downloaded_once(server, tmp_path):
    seen = []
    for _ in range(2):
        path = download(
            remote(server.url("data.bin")), tmp_path / "cache" / "deep", lambda *at: seen.append(at)
        )
        assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert server.end() == ["/data.bin "]
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"]


def test_broken_connections_are_continued(server, tmp_path):
    path = download(remote(server.url("broken/300000/data.bin")), tmp_path)
    assert path.read_bytes() == DATA
    assert [line.partition(" ")[2] for line in server.end()] == [
        "", "bytes=300000-", "bytes=600000-", "bytes=900000-",
    ]  # fmt: skip


def test_what_an_earlier_process_left_is_continued(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    assert download(remote(server.url("data.bin")), tmp_path).read_bytes() == DATA
    assert server.end() == ["/data.bin bytes=1000-"]


@pytest.mark.parametrize("left", [b"x" * 1000, DATA + b"more", b"x" * len(DATA)])
def test_a_part_of_another_file_is_begun_again(server, tmp_path, left):
    (tmp_path / "data.bin.part").write_bytes(left)
    assert download(remote(server.url("data.bin")), tmp_path).read_bytes() == DATA


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    assert download(remote(server.url("whole/data.bin")), tmp_path).read_bytes() == DATA
    assert server.end() == ["/whole/data.bin bytes=1000-"]


def test_a_server_may_not_say_the_length(server, tmp_path):
    seen = []
    download(remote(server.url("silent/data.bin")), tmp_path, lambda *at: seen.append(at))
    assert seen[-1] == (len(DATA), None)


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    wrong = "0" * 32
    with pytest.raises(
        CorruptError,
        match=rf"data.bin could not be downloaded: .*/data.bin gave 1,024,000 bytes with the MD5 {MD5}, but {wrong} "
        r"was expected. Try again later, or download it by other means and give its path \(--from PATH\).",
    ):
        download(remote(server.url("data.bin"), md5=wrong), tmp_path)
    assert not (tmp_path / "data.bin").exists()
    assert (tmp_path / "data.bin.part").stat().st_size == 0


def test_a_file_that_is_not_there_is_said(server, tmp_path):
    with pytest.raises(
        NotFoundError, match=r"data.bin could not be downloaded: .*/missing/404/data.bin is not there \(HTTP"
    ):
        download(remote(server.url("missing/404/data.bin")), tmp_path)
    with pytest.raises(StorageError, match=r"missing/403/data.bin answers HTTP 403 Forbidden"):
        download(remote(server.url("missing/403/data.bin")), tmp_path)


def test_a_failing_server_is_given_up(server, tmp_path):
    with pytest.raises(
        StorageError, match=r"missing/503/data.bin cannot be read: HTTP 503 Service Unavailable"
    ):
        download(remote(server.url("missing/503/data.bin")), tmp_path)
    assert len(server.end()) == 5


def test_no_server_is_said_and_the_part_kept(tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    with pytest.raises(
        StorageError, match=r"127.0.0.1:9/x cannot be read: .*refused.* The 1,000 bytes that came are kept."
    ):
        download(remote("http://127.0.0.1:9/x"), tmp_path)
    assert (tmp_path / "data.bin.part").read_bytes() == DATA[:1000]


def test_the_next_mirror_goes_on(server, tmp_path):
    urls = [server.url("missing/404/data.bin"), "http://127.0.0.1:9/x", server.url("data.bin")]
    assert download(remote(*urls), tmp_path).read_bytes() == DATA


def test_a_folder_that_cannot_be_made_is_said(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((StorageError, NotWritableError, ValueError), match=r"file"):
        download(remote(server.url("data.bin")), tmp_path / "file" / "below")


def fetch(url, folder):
    return download(remote(url), folder).read_bytes() == DATA


def test_processes_that_want_one_file_take_turns(server, tmp_path):
    url = server.url("broken/200000/data.bin")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.starmap(fetch, [(url, tmp_path)] * 3) == [True] * 3
    assert len(server.end()) == 6  # as many as one needs


def test_importers_download_what_they_are_not_given(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPYARD_DOWNLOADS", str(tmp_path / "downloads"))
    archive = tar(server.folder / "cifar-10-python.tar.gz", cifar10()[0], "w:gz")
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(Cifar10, "remote", RemoteFile(archive.name, (server.url(archive.name),), md5))
    seen = []
    with Cifar10() as importer:
        importer.watch_download = lambda *at: seen.append(at)
        assert importer.columns()[0].count == 20
    assert seen[-1] == (archive.name, archive.stat().st_size, archive.stat().st_size)
    files, _ = mnist()
    unpack(server.folder, files)
    monkeypatch.setattr(Mnist, "urls", (server.url("missing/404/"), server.url("")))
    monkeypatch.setattr(Mnist, "md5s", tuple(hashlib.md5(data).hexdigest() for data in files.values()))
    with Mnist() as importer:
        assert importer.columns()[0].count == 5
    assert sorted(p.name for p in (tmp_path / "downloads").iterdir()) == ["MNIST", "cifar-10-python.tar.gz"]


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("HOPYARD_DOWNLOADS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert downloads_folder() == tmp_path / "hopyard" / "downloads"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert downloads_folder() == Path.home() / ".cache" / "hopyard" / "downloads"
    monkeypatch.setenv("HOPYARD_DOWNLOADS", str(tmp_path / "own"))
    assert downloads_folder() == tmp_path / "own"
