"""Packed rows in files of a folder, without an engine."""

import errno
import pickle

import numpy as np
import pyarrow as pa
import pytest

from hopyard.data.columns.policies import plan_policies
from hopyard.data.frames import spilling
from hopyard.data.frames.spilling import spill, write_spilled
from hopyard.data.preparing.files import SplitFiles, Writing, of_split, rows_and_sum
from hopyard.data.preparing.packing import ORDER, PackedLayout, Packing
from hopyard.data.preparing.survey import ORDER_BITS
from hopyard.data.sources.frame_batches import FrameReading, columns_of_types
from hopyard.errors import StorageFullError
from hopyard.storage import LocalStore


@pytest.mark.parametrize("counts", [(3, 1), (1, 12), (24, 2)])
def test_the_files_of_rows_are_the_ranges_of_their_orders(counts):
    files = tuple(SplitFiles(count, 24) for count in counts)
    writing = Writing(PackedLayout(()), {}, None, (None, None), files, 512)
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


def packed_ids():
    layout = PackedLayout(
        tuple(columns_of_types({"id": pa.int64(), "text": pa.string()}, ["id", "text"]).values())
    )
    return Packing(FrameReading(("id", "text"), ("id", "text")), layout, 0.25, 0)


def test_every_file_gets_its_rows_of_all_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "_RUN_BYTES", 20_000)
    packing = packed_ids()
    batches = [
        pa.record_batch({"id": list(range(start, start + 50)), "text": ["x" * 100] * 50})
        for start in range(0, 1000, 50)
    ]
    (tmp_path / "rows").mkdir()
    spilled = [spill(packing, tmp_path / "rows", iter(part)) for part in (batches[:15], batches[15:])]
    for task in spilled:
        with pa.OSFile(str(tmp_path / "rows" / task.name)) as source:
            file = pa.ipc.open_file(source)
            runs = [file.get_batch(number) for number in range(file.num_record_batches)]
        assert all(10_000 < run.nbytes <= 20_000 for run in runs[:-1])
        assert all(np.all(np.diff(run[ORDER].to_numpy() >> ORDER_BITS - 16) >= 0) for run in runs)

    whole = packing.new_survey()
    for task in spilled:
        whole.merge(task.survey)
    samples = whole.samples(["id", "text"])
    cut, val_rows = whole.split.cut(explicit=False)
    writing = Writing(
        packing.layout,
        {name: sample.column for name, sample in samples.items()},
        plan_policies([samples], "error", "error"),
        (LocalStore(tmp_path / "train"), LocalStore(tmp_path / "val")),
        (SplitFiles(5, 2), SplitFiles(3, 2)),
        cut,
    )
    names = [task.name for task in spilled]
    written = [write_spilled(writing, tmp_path / "rows", names, number) for number in range(8)]
    assert rows_and_sum(written) == (whole.content.rows, whole.order_sum) == (1000, whole.order_sum)
    assert sum(part.entry.rows for part in of_split(written, 1)) == val_rows == 250


def test_a_batch_larger_than_a_run_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(spilling, "_RUN_BYTES", 10)
    rows = pa.record_batch({"id": [3, 1, 2], "text": ["c", "a", "b"]})
    spilled = spill(packed_ids(), tmp_path, iter([rows, rows]))
    with pa.OSFile(str(tmp_path / spilled.name)) as file:
        assert pa.ipc.open_file(file).num_record_batches == 2


def test_a_full_disk_is_told_by_the_survey(tmp_path, monkeypatch):
    def full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    layout = PackedLayout(tuple(columns_of_types({"a": pa.int64()}, ["a"]).values()))
    packing = Packing(FrameReading(("a",), ("a",)), layout, 1, 0)
    rows = pa.record_batch({"a": [1, 2, 3]})
    survey = spill(packing, tmp_path, iter([rows])).survey
    assert (survey.content.rows, survey.error) == (3, None)
    monkeypatch.setattr(spilling.pa, "OSFile", full)
    survey = pickle.loads(pickle.dumps(spill(packing, tmp_path, iter([rows])))).survey
    with pytest.raises(StorageFullError) as error:
        survey.checked(None)
    assert str(error.value) == (
        f"No space is left in {tmp_path} for the rows on their way into the dataset; they take as much as the dataset "
        "itself until it is written. Make space there and run it again; nothing was half-written."
    )


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    found = spill(packed_ids(), tmp_path / "elsewhere", iter([]))
    for part in (" does not see ", "elsewhere, where the driver made it", "mount it there"):
        assert part in str(found.survey.error)
    assert list(tmp_path.iterdir()) == []
