"""Huge pages are reserved without a change to what a file holds."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hopyard.data.reading.hugepages import HUGE_PAGE, is_worth, mapped_size, reserve


@pytest.mark.parametrize("size", [0, 1, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5, 16 * HUGE_PAGE + 1])
def test_a_reserved_file_holds_what_is_written_to_it_and_zeros(size):
    with tempfile.TemporaryFile() as file:
        reserve(file.fileno(), size)
        assert os.fstat(file.fileno()).st_size <= mapped_size(size)
        os.pwrite(file.fileno(), b"row", size)
        os.ftruncate(file.fileno(), mapped_size(size + 3))
        found = np.fromfile(file, np.uint8)
    assert found[size : size + 3].tobytes() == b"row"
    assert not found[:size].any()
    assert not found[size + 3 :].any()


def test_only_long_files_are_filled_up_and_by_little():
    for size in (0, 1, 15 * HUGE_PAGE + 1, 16 * HUGE_PAGE, 16 * HUGE_PAGE + 1, 99 * HUGE_PAGE - 1):
        filled = mapped_size(size)
        assert size <= filled <= size * 17 / 16
        assert filled == size or filled % HUGE_PAGE == 0


def test_files_that_memory_cannot_hold_and_other_file_systems_are_left_alone():
    with tempfile.TemporaryFile() as file:
        reserve(file.fileno(), 1 << 50)
        assert os.fstat(file.fileno()).st_size == 0
    memory = os.memfd_create("test")
    try:
        assert is_worth(memory, HUGE_PAGE)
    finally:
        os.close(memory)
    with Path("/proc/self/status").open("rb") as file:
        assert not is_worth(file.fileno(), HUGE_PAGE)


def test_a_file_that_cannot_be_that_long_says_so():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HUGE_PAGE, limits[1]))
    try:
        with tempfile.TemporaryFile() as file, pytest.raises(OSError, match=r"too large"):
            reserve(file.fileno(), 2 * HUGE_PAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_what_cannot_be_mapped_is_left_as_it_is(tmp_path):
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)  # mapping needs reading
    try:
        reserve(descriptor, HUGE_PAGE)
    finally:
        os.close(descriptor)
    assert path.read_bytes() == bytes(HUGE_PAGE)
