"""What two clients of NFS 4.2 were seen to do, by whichever the subclass gives: the model's, or the kernel's."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from hopyard.storage import files


class Clients(NamedTuple):
    """Two clients: each gives the directory as it has it, while it is at work; and what waits for caches to get old."""

    a: Callable[[], AbstractContextManager[Path]]
    b: Callable[[], AbstractContextManager[Path]]
    wait: Callable[[], None]


def write(file: Path, content: bytes) -> None:
    """A new file under a name of its own, renamed over ``file``."""
    temporary = file.with_name("temporary")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, content)
    os.fsync(descriptor)
    os.close(descriptor)
    os.replace(temporary, file)  # noqa: PTH105


def read(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, 1000)
    finally:
        os.close(descriptor)


def read_or_stale(file: Path) -> bytes | None:
    """None: the server has forgotten the file that the name was of."""
    try:
        return read(file)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None


class NfsFacts:
    """Inherit, and define the fixture ``clients``."""

    @pytest.fixture
    def clients(self) -> Clients:
        raise NotImplementedError

    def test_a_name_that_was_looked_up_before_it_was_there_is_seen_later_and_in_a_listing_at_once(
        self, clients: Clients
    ) -> None:
        with clients.b() as root:
            assert not (root / "new").exists()
        with clients.a() as root:
            write(root / "new", b"1")
        with clients.b() as root:
            assert not (root / "new").exists()
        clients.wait()
        with clients.b() as root:
            assert (root / "new").exists()
            assert not (root / "other").exists()
        with clients.a() as root:
            write(root / "other", b"1")
        with clients.b() as root:
            assert "other" in os.listdir(root)  # noqa: PTH208
            assert (root / "other").exists()

    def test_a_file_that_is_read_after_another_was_renamed_over_it_may_be_the_old_one(
        self, clients: Clients
    ) -> None:
        was_new = []
        for number in range(20):
            with clients.a() as root:
                write(root / "file", b"%d" % number)
            with clients.b() as root:
                was_new.append(read_or_stale(root / "file") == b"%d" % number)
        assert not all(was_new)
        clients.wait()
        with clients.b() as root:
            assert read(root / "file") == b"19"

    def test_once_its_directory_was_opened_a_file_is_what_it_was_replaced_by(self, clients: Clients) -> None:
        for number in range(100):
            with clients.a() as root:
                write(root / "file", b"%d" % number)
            with clients.b() as root:
                assert files.look_anew(root)
                assert read(root / "file") == b"%d" % number
        with clients.a() as root:
            (root / "file").unlink()
        with clients.b() as root:
            assert files.look_anew(root)
            assert not (root / "file").exists()

    def test_directories_that_were_not_there_are_seen_when_they_are_opened_from_the_first_one(
        self, clients: Clients
    ) -> None:
        with clients.b() as root:
            assert not (root / "a/b/c").exists()
        with clients.a() as root:
            (root / "a/b/c").mkdir(parents=True)
        with clients.b() as root:
            with pytest.raises(FileNotFoundError):
                os.listdir(root / "a/b/c")  # noqa: PTH208
            assert files.look_anew(root / "a/b/c")
            assert os.listdir(root / "a/b/c") == []  # noqa: PTH208
            assert not files.look_anew(root / "a/x/y")

    def test_a_size_and_an_unlink_are_seen_later(self, clients: Clients) -> None:
        with clients.a() as root:
            write(root / "file", b"1")
            write(root / "gone", b"1")
        with clients.b() as root:
            assert (root / "file").stat().st_size == (root / "gone").stat().st_size == 1
        with clients.a() as root:
            descriptor = os.open(root / "file", os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, b"23")
            os.close(descriptor)
            (root / "gone").unlink()
        with clients.b() as root:
            assert (root / "file").stat().st_size == 1
            assert (root / "gone").exists()
        clients.wait()
        with clients.b() as root:
            assert (root / "file").stat().st_size == 3
            assert not (root / "gone").exists()

    def test_a_file_that_was_rewritten_is_new_when_it_is_opened_anew(self, clients: Clients) -> None:
        with clients.a() as root:
            write(root / "file", b"old")
        with clients.b() as root:
            assert read(root / "file") == b"old"
        with clients.a() as root:
            descriptor = os.open(root / "file", os.O_WRONLY)
            os.pwrite(descriptor, b"anew", 0)
            os.close(descriptor)
        with clients.b() as root:
            assert read(root / "file") == b"anew"
            assert (root / "file").stat().st_size == 4

    def test_what_is_written_and_not_closed_is_not_seen_before_the_file_is_locked(
        self, clients: Clients
    ) -> None:
        with clients.a() as root:
            descriptor = os.open(root / "file", os.O_RDWR | os.O_CREAT)
            os.write(descriptor, b"written")
        with clients.b() as root:
            assert read(root / "file") == b""
        with clients.a():
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        with clients.b() as root:
            assert read(root / "file") == b"written"
        with clients.a():
            os.close(descriptor)

    def test_of_those_who_create_or_link_a_name_one_wins(self, clients: Clients) -> None:
        for number in range(20):
            won = []
            for client in (clients.a, clients.b) if number % 2 else (clients.b, clients.a):
                with client() as root, suppress(FileExistsError):
                    os.close(os.open(root / f"created-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                    won.append(client)
            assert len(won) == 1
            for client in (clients.a, clients.b):
                with client() as root, suppress(FileExistsError):
                    (root / f"linked-{number}").hardlink_to(root / f"created-{number}")
                    won.append(client)
            assert len(won) == 2

    def test_a_lock_excludes_and_who_has_it_sees_what_was_written(self, clients: Clients) -> None:
        with clients.a() as root:
            write(root / "lock", b"0000")
            a = os.open(root / "lock", os.O_RDWR)
        with clients.b() as root:
            b = os.open(root / "lock", os.O_RDWR)
            assert os.pread(b, 10, 0) == b"0000"
        for number in range(1, 20):
            holder, descriptor, other, its = (
                (clients.a, a, clients.b, b) if number % 2 else (clients.b, b, clients.a, a)
            )
            with holder():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                assert os.pread(descriptor, 10, 0) == b"%04d" % (number - 1)
                os.pwrite(descriptor, b"%04d" % number, 0)
            with other(), pytest.raises(OSError) as caught:
                fcntl.flock(its, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert caught.value.errno in (errno.EAGAIN, errno.EACCES)
            with holder():
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        for client, descriptor in ((clients.a, a), (clients.b, b)):
            with client():
                os.close(descriptor)
