from pathlib import Path

import numpy as np
import pytest

from hopyard.data.cache.durability import durability
from hopyard.data.files.stored import StoredFile
from hopyard.data.reading.region import region_of
from hopyard.errors import CorruptError, NotFoundError


def make_files(directory, sizes):
    files = []
    for number, size in enumerate(sizes):
        path = directory / str(number)
        path.write_bytes(np.random.default_rng(number).bytes(size))
        files.append(StoredFile.open(None, str(path)))
    return files


def test_files_lie_where_rows_of_all_widths_line_up(tmp_path):
    files = make_files(tmp_path, [10_000, 0, 3_000_000, 1])
    region = region_of(files, [60, 7, 4])
    for file, start in zip(files, region.starts, strict=True):
        assert region.bytes[start : start + file.size].tobytes() == file.path.read_bytes()
        assert start % 420 == 0
        assert (region.bytes.ctypes.data + start) % (2 << 20) == 0
    assert not region.bytes.flags.writeable


def test_widths_that_never_line_up_cost_no_more_than_a_limit(tmp_path):
    files = make_files(tmp_path, [100, 100])
    region = region_of(files, [2**31 - 1, 3, 5])
    assert 0 < region.starts[1] <= 1 << 30
    assert region.starts[1] % 15 == 0


def test_a_region_is_mapped_once_until_a_file_is_replaced(tmp_path):
    [file] = make_files(tmp_path, [100])
    region = region_of([file], [4])
    assert region_of([StoredFile.open(None, str(file.path))], [4]) is region
    new = tmp_path / "new"
    new.write_bytes(bytes(100))
    new.replace(file.path)
    replaced = region_of([StoredFile.open(None, str(file.path))], [4])
    assert replaced.bytes[:100].tobytes() == bytes(100)
    assert region.bytes[:100].any()


def test_a_file_that_lost_bytes_or_is_gone_is_named_instead_of_mapped(tmp_path):
    [file] = make_files(tmp_path, [10_000])
    file.path.write_bytes(bytes(100))
    with pytest.raises(CorruptError, match=r"0 has 100 bytes, but had 10000 .* prepare the data again"):
        region_of([file], [4])
    file.path.unlink()
    with pytest.raises(NotFoundError, match=r"0, a file of the dataset, is gone\. Restore it"):
        region_of([file], [4])


def test_many_small_files_are_read_so_that_mappings_suffice(tmp_path):
    files = make_files(tmp_path, [1 + number for number in range(1100)])
    durability.join()  # its thread maps and unmaps meanwhile
    before = len(Path("/proc/self/maps").read_text().splitlines())
    region = region_of(files, [60])
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 100
    for file, start in zip(files, region.starts, strict=True):
        assert region.bytes[start : start + file.size].tobytes() == file.path.read_bytes()
    assert not region.bytes.flags.writeable
    files[1000].path.write_bytes(b"")
    with pytest.raises(CorruptError, match=r"1000 has 0 bytes, but had 1001"):
        region_of(files, [60])
