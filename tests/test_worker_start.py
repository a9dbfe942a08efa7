"""A spare worker is the first that is started alike, and else ends; results are those of any other."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard import worker_start
from hopyard.backend import LocalBackend
from hopyard.backend.testing import result_of
from hopyard.worker_start import end_spare, start_spare


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    subprocess.run(
        [sys.executable, "-c", ""], check=True
    )  # tests.forked sets a variable when it starts the first
    end_spare()
    yield
    end_spare()


def spare_pid() -> int:
    spare = worker_start._spare
    assert spare is not None
    return spare.popen.pid


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def imported(name: str) -> bool:
    return name in sys.modules


def facts() -> tuple[int, str, str]:
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]


def test_the_first_worker_that_is_started_alike_is_the_spare_one() -> None:
    start_spare(["tabnanny", "no_such_module"])
    pid = spare_pid()
    with LocalBackend(2, device="cpu") as backend:
        first, second = (result_of(backend.submit(worker, facts)) for worker in (0, 1))
        assert result_of(backend.submit(0, imported, "tabnanny"))
        assert not result_of(backend.submit(1, imported, "tabnanny"))
    assert first == (pid, "", "1")
    assert second[0] != pid
    assert second[1:] == ("", "1")
    assert worker_start._spare is None
    assert has_ended(pid)


@pytest.mark.parametrize("differs", ["threads", "env", "prefix", "path", "environ"])
def test_it_ends_when_the_first_worker_is_another_one(
    differs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_spare(["tabnanny"])
    pid = spare_pid()
    backend = LocalBackend(1, device="cpu", threads_per_worker=2 if differs == "threads" else 1)
    if differs == "env":
        backend = backend.surrounded({"HOPYARD_TEST": "1"})
    elif differs == "prefix":
        backend = backend.surrounded(prefix=lambda: ["env", "HOPYARD_TEST=1"])
    elif differs == "path":
        monkeypatch.syspath_prepend(tmp_path)
    elif differs == "environ":
        monkeypatch.setenv("HOPYARD_TEST", "1")
    with backend:
        assert result_of(backend.submit(0, os.getpid)) != pid
        assert not result_of(backend.submit(0, imported, "tabnanny"))
    if differs == "prefix":  # which says nothing about workers without one
        assert spare_pid() == pid
    else:
        assert has_ended(pid)


def test_one_that_was_killed_is_not_taken() -> None:
    start_spare([])
    pid = spare_pid()
    spare = worker_start._spare
    assert spare is not None
    spare.popen.kill()
    spare.popen.wait()
    with LocalBackend(1, device="cpu") as backend:
        assert result_of(backend.submit(0, os.getpid)) != pid


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["by itself", "killed"])
def test_it_ends_with_the_driver(end: str) -> None:
    code = (
        "import os, signal; from hopyard import worker_start; worker_start.start_spare([]); "
        f"print(worker_start._spare.popen.pid, flush=True); {end}"
    )
    driver = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )
    try:
        descriptor = os.pidfd_open(int(driver.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 60)[0]
    finally:
        os.close(descriptor)
