"""Packed rows in files of a folder, without an engine."""

import errno
import pickle

import numpy as np
import pyarrow as pa
import pytest

from hopyard.data.frames import spilling
from hopyard.data.frames.packing import Layout, Packing
from hopyard.data.frames.reading import Reading, columns_of_types
from hopyard.data.frames.spilling import spill
from hopyard.data.frames.writing import Files, Writing
from hopyard.errors import StorageFullError


@pytest.mark.parametrize("counts", [(3, 1), (1, 12), (24, 2)])
def test_the_files_of_rows_are_the_ranges_of_their_orders(counts):
    files = tuple(Files(count, 24) for count in counts)
    writing = Writing(Layout(()), {}, None, (None, None), files, 512)
    bounds = np.array([writing.orders(number) for number in range(writing.count)]).reshape(-1)
    random = np.random.default_rng(0).integers(0, 1 << 62, 1000)
    order = np.concatenate([random, bounds, bounds - 1, [0, (1 << 62) - 1]])
    order = order[(order >= 0) & (order < 1 << 62)]
    for part in (0, 511, 512, 1023):
        numbers = writing.numbers(order, np.full(len(order), part))
        for number in range(writing.count):
            first, last = writing.orders(number)
            mine = (order >= first) & (order < last) & (writing.is_val(number) == (part < 512))
            assert np.array_equal(mine, numbers == number)


def test_a_full_disk_is_told_by_the_survey(tmp_path, monkeypatch):
    def full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    layout = Layout(tuple(columns_of_types({"a": pa.int64()}, ["a"]).values()))
    packing = Packing(Reading(("a",), ("a",)), layout, None, 0)
    rows = pa.record_batch({"a": [1, 2, 3]})
    survey = spill(packing, tmp_path, iter([rows])).survey
    assert (survey.rows, survey.error) == (3, None)
    monkeypatch.setattr(spilling.pa, "OSFile", full)
    survey = pickle.loads(pickle.dumps(spill(packing, tmp_path, iter([rows])))).survey
    with pytest.raises(StorageFullError) as error:
        survey.checked(None)
    assert str(error.value) == (
        f"No space is left in {tmp_path} for the rows on their way into the dataset; they take as much as the dataset "
        "itself until it is written. Make space there and run it again; nothing was half-written."
    )
