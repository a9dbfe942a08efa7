"""Batches streamed from objects: which bytes, in which order, read ahead or not, in whichever process."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import by_level
from tests.web_servers import send, serving

from hopyard.errors import CorruptError, DataError, NotFoundError, UsageError
from hopyard.experiment import streams
from hopyard.experiment.remote import REQUEST, RemoteObject
from hopyard.experiment.streams import Stream, stream
from hopyard.storage import MemoryStore, Store, open_store
from hopyard.storage.wrappers import CountingStore


def load(data: bytearray) -> Any:
    return np.load(io.BytesIO(data))


def write_parts(folder: Path, count: int = 5) -> list[np.ndarray[Any, Any]]:
    arrays = [np.arange(10 * number, 10 * number + 4) for number in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(arrays):
        np.save(folder / f"part-{number}.npy", array)
    return arrays


def of_store(
    store: Store, objects: Sequence[bytes], record: int | None = None, batch_size: int = 1
) -> Stream:
    """A stream over objects that are put into the store, which may count or hold requests."""
    for number, data in enumerate(objects):
        store.put(f"part-{number}", data)
    there = [RemoteObject(store, f"part-{number}", len(data), REQUEST) for number, data in enumerate(objects)]
    sizes = [len(data) for data in objects]
    if record is None:
        return Stream(there, streams._WholeObjects(sizes), bytes)
    counts = [size // record for size in sizes]
    return Stream(there, streams._Records(counts, record, 0, batch_size), bytes)


# Which bytes


def test_each_object_that_matches_a_pattern_is_a_batch(tmp_path: Path) -> None:
    arrays = write_parts(tmp_path / "train")
    (tmp_path / "train" / "readme.txt").write_text("no batch")
    data = stream(tmp_path / "train" / "part-*.npy", load)
    assert len(data) == 5
    assert [batch.tolist() for batch in data] == [array.tolist() for array in arrays]
    assert data[-1].tolist() == data[4].tolist() == arrays[4].tolist()
    assert [batch.tolist() for batch in data[1:3]] == [array.tolist() for array in arrays[1:3]]
    assert [batch.tolist() for batch in data.__getitems__([3, 0])] == [arrays[3].tolist(), arrays[0].tolist()]
    assert [batch[0] for batch in data.batches([4, 0, 0, -1])] == [40, 0, 0, 40]


def test_urls_are_read_in_the_order_given_and_folders_in_that_of_names(tmp_path: Path) -> None:
    write_parts(tmp_path / "a", 2)
    write_parts(tmp_path / "b", 3)
    data = stream([tmp_path / "b" / "part-2.npy", f"{tmp_path}/a/", tmp_path / "b" / "part-[01].npy"], load)
    assert [int(batch[0]) for batch in data] == [20, 0, 10, 0, 10]


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any),
    record=st.integers(1, 9),
    header=st.integers(0, 5),
    batch_size=st.integers(1, 50),
    data=st.data(),
)
def test_records_follow_each_other_from_one_object_to_the_next(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    record: int,
    header: int,
    batch_size: int,
    data: Any,
) -> None:
    folder = tmp_path_factory.mktemp("records")
    rng = np.random.default_rng(sum(counts))
    bodies = [rng.bytes(count * record) for count in counts]
    for number, body in enumerate(bodies):
        (folder / f"{number} of some").write_bytes(b"h" * header + body)
    batches = stream(f"{folder}/", record_bytes=record, batch_size=batch_size, header_bytes=header)
    whole = b"".join(bodies)
    expected = [whole[at : at + batch_size * record] for at in range(0, len(whole), batch_size * record)]
    assert len(batches) == len(expected)
    assert list(batches) == expected
    order = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=10))
    assert [batches[index] for index in order] == [expected[index] for index in order]
    assert list(batches.batches(order)) == batches.__getitems__(order) == [expected[index] for index in order]


def test_a_batch_may_be_larger_than_a_request(s3_url: str) -> None:
    whole = np.random.default_rng(0).bytes(9_000_000)
    open_store(s3_url).put("large", whole)
    assert stream(f"{s3_url}/large")[0] == whole
    assert list(stream(f"{s3_url}/large", record_bytes=3_000_000, batch_size=2)) == [
        whole[:6000000],
        whole[6000000:],
    ]


def test_what_decode_gets_may_be_kept_and_written_to(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(8))

    def decode(data: bytearray) -> Any:
        values = np.frombuffer(data, np.uint8)
        values += 1
        return values

    data = stream(tmp_path / "x", decode, record_bytes=2, batch_size=2)
    assert [batch.tolist() for batch in [*data, *data]] == [[1, 1, 1, 1]] * 4


@pytest.mark.parametrize("has_ranges", [True, False])
def test_objects_of_a_web_server_are_streamed_too(has_ranges: bool) -> None:
    asked: list[str | None] = []

    def answer(request: Any) -> None:
        asked.append(request.headers["Range"])
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        if has_ranges:
            last = min(last, 99)
            send(
                request, 206, bytes(range(first, last + 1)), **{"Content-Range": f"bytes {first}-{last}/100"}
            )
        else:
            send(request, 200, bytes(range(100)))

    with serving(answer) as address:
        data = stream(f"http://{address}/some/object?signature=1", record_bytes=10, batch_size=3)
        assert [list(batch) for batch in data] == [
            list(range(at, min(at + 30, 100))) for at in range(0, 100, 30)
        ]
    assert asked == ["bytes=0-0", "bytes=0-99"]


# What is read ahead


def test_the_next_batches_are_on_their_way_while_one_is_used() -> None:
    data = of_store(store := Holding(), [bytes([number]) * 100 for number in range(8)])
    store.holds("part-2")
    assert data[0] == bytes(100)
    assert store.was_asked_for("part-7")
    assert data[1] == bytes([1]) * 100
    store.release()
    assert data[2] == bytes([2]) * 100


def test_no_more_is_read_ahead_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "AHEAD_BYTES", 400_000)
    data = of_store(store := CountingStore(MemoryStore()), [bytes(100_000)] * 20)
    batches = iter(data)
    taken = [next(batches) for _ in range(6)]
    assert len(taken) == 6
    assert 6 <= store.calls["get"] <= 11
    batches.close()  # type: ignore[attr-defined]


def test_a_batch_that_is_larger_than_the_room_is_read_ahead_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "AHEAD_BYTES", 1000)
    data = of_store(store := Holding(), [bytes([number]) * 5000 for number in range(4)])
    batches = iter(data)
    next(batches)
    assert store.was_asked_for("part-1")
    assert store.calls["get"] == 2


def test_neighbours_travel_together() -> None:
    data = of_store(store := CountingStore(MemoryStore()), [bytes(range(200)) * 500] * 2, 100, 2)
    assert b"".join(data) == bytes(range(200)) * 1000
    assert store.calls["get"] <= 6
    store.reset()
    assert b"".join(data[index] for index in range(len(data))) == bytes(range(200)) * 1000
    assert store.calls["get"] <= 6


@pytest.mark.parametrize(
    "order",
    [
        range(30), range(3, 30, 3), range(2, 30, 4), np.random.default_rng(3).permutation(range(1, 30)).tolist(),
        [*range(1, 30, 2), *range(1, 30, 2)],
    ],
    ids=["all", "every third", "of a rank", "shuffled", "two epochs of a rank"],
)  # fmt: skip
def test_nothing_is_read_that_is_not_asked_for(order: Sequence[int]) -> None:
    data = of_store(store := CountingStore(MemoryStore()), [bytes([number]) for number in range(30)])
    assert [data[index] for index in order] == [bytes([index]) for index in order]
    assert store.calls["get"] == len(order)


def test_what_is_waited_for_comes_though_its_neighbours_are_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_AT_ONCE", 1)
    monkeypatch.setattr(streams, "_FEWEST_AT_ONCE", 1)
    data = of_store(store := Holding(), [bytes(100), bytes(range(250))], 50, 2)
    store.holds("part-0")
    coming = [data._reader().take(index) for index in (0, 1, 0)]  # the last one is not what was read ahead
    store.release()
    assert [bytes(each.result()) for each in coming] == [bytes(100), bytes(range(100)), bytes(100)]


def test_threads_may_share_a_stream() -> None:
    data = of_store(MemoryStore(), [bytes([number]) * 10 for number in range(200)])
    found: list[bytes] = [b""] * 200

    def take(first: int) -> None:
        for index in range(first, 200, 4):
            found[index] = data[index]

    threads = [threading.Thread(target=take, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [bytes([number]) * 10 for number in range(200)]


class Holding(CountingStore):
    """A store in memory, that holds back the answers for one object until it is released."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self._held, self._released = "", threading.Event()
        self._changed = threading.Condition()
        self._asked_for: set[str] = set()

    def holds(self, name: str) -> None:
        self._held = name

    def release(self) -> None:
        self._released.set()

    def was_asked_for(self, name: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: name in self._asked_for, 20)

    def read(self, name: str, start: int = 0, length: int | None = None) -> Any:
        with self._changed:
            self._asked_for.add(name)
            self._changed.notify_all()
        if name == self._held:
            self._released.wait()
        return super().read(name, start, length)


# In other processes


def test_a_stream_pickles_and_reads_in_a_new_process(s3_url: str) -> None:
    store = open_store(s3_url)
    for number in range(3):
        store.put(f"part-{number}", bytes([number]) * 10)
    data = stream(f"{s3_url}/part-*")
    assert data[0] == bytes(10)  # which opens a client here
    code = "import pickle, sys; print([batch[0] for batch in pickle.load(sys.stdin.buffer)])"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(data), capture_output=True, check=True
    )
    assert done.stdout == b"[0, 1, 2]\n"


@pytest.mark.parametrize("start", ["fork", "spawn"][: by_level(1, 2, 2)])
def test_workers_of_a_data_loader_read_however_they_are_started(s3_url: str, start: str) -> None:
    import torch

    store = open_store(s3_url)
    store.put("records", np.arange(1000, dtype="<i4").tobytes())
    data = stream(f"{s3_url}/records", record_bytes=4, batch_size=64)
    assert len(data[0]) == 256  # the threads of this process's client are in no fork
    loader = torch.utils.data.DataLoader(
        data.as_torch(),
        batch_size=None,
        num_workers=2 if start == "fork" else 1,  # what the other imports takes seconds
        multiprocessing_context=start,
        persistent_workers=start == "spawn",
    )
    for _ in range(2):
        assert b"".join(loader) == np.arange(1000, dtype="<i4").tobytes()


def test_errors_of_a_store_reach_a_forked_process(s3_url: str) -> None:
    store = open_store(s3_url)
    store.put("part-0", b"there")
    store.put("part-1", b"soon gone")
    data = stream(f"{s3_url}/part-*")
    assert data[0] == b"there"
    store.delete("part-1")
    ours, theirs = multiprocessing.Pipe()

    def read() -> None:
        try:
            theirs.send([data[0], data[1]])
        except NotFoundError as error:
            theirs.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    assert "there is no object 'some/prefix/part-1' in the store s3://bucket-" in ours.recv()
    process.join()
    assert process.exitcode == 0


def test_torch_finds_a_dataset_that_pickles(tmp_path: Path) -> None:
    import torch

    write_parts(tmp_path)
    data = stream(tmp_path / "part-*.npy", load).as_torch()
    assert isinstance(data, torch.utils.data.Dataset)
    again = pickle.loads(pickle.dumps(data))
    assert isinstance(again, torch.utils.data.Dataset)
    assert len(again) == 5
    assert [batch.tolist() for batch in torch.utils.data.DataLoader(again, batch_size=2)] == [
        [[0, 1, 2, 3], [10, 11, 12, 13]], [[20, 21, 22, 23], [30, 31, 32, 33]], [[40, 41, 42, 43]],
    ]  # fmt: skip


# Errors


def test_an_object_that_is_replaced_is_an_error(s3_url: str) -> None:
    store = open_store(s3_url)
    store.put("one", bytes(100))
    data = stream(f"{s3_url}/one", record_bytes=10)
    for changed in (bytes([1]) * 100, bytes(40), bytes(140)):
        store.put("one", changed)
        text = (
            f"/one was replaced while it was read: it had 100 bytes, and now an object of {len(changed)} bytes is "
            "there. Let nothing write to it while it is used, and start again."
        )
        with pytest.raises(CorruptError, match=re.escape(text)):
            pickle.loads(pickle.dumps(data))[9]


def test_objects_that_match_a_pattern_are_those_that_this_process_first_saw(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(bytes(20_000_000))
    data = stream(tmp_path / "part-*", record_bytes=10_000_000)
    assert data[1] == bytes(10_000_000)
    (tmp_path / "other").write_bytes(bytes([1]) * 20_000_000)
    (tmp_path / "other").replace(tmp_path / "part-0")
    with pytest.raises(
        CorruptError, match=r"/part-0 was replaced while it was read, by an object of the same size\. Let"
    ):
        data[0]


def test_an_error_of_decode_says_of_which_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    data = stream(tmp_path / "x", load, record_bytes=10, batch_size=3)
    with pytest.raises(Exception) as raised:
        data[2]
    assert raised.value.__notes__ == [
        f"This is decode= of 30 bytes, batch 2, which begins at byte 60 of {tmp_path}/x."
    ]


LEFT_OVER = (
    "one has 1,000 bytes, which is not a whole number of records of 96 bytes: 40 are left over. Correct record_bytes=, "
    "or give the size of what is before the first record as header_bytes=."
)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"record_bytes": 96}, DataError, LEFT_OVER),
        (
            {"record_bytes": 96, "header_bytes": 41}, DataError,
            "of records of 96 bytes behind a header of 41: 95 are left over.",
        ),
        ({"record_bytes": 1, "header_bytes": 1001}, DataError, "is not a whole number of records of 1 bytes behind"),
        ({"record_bytes": 7, "header_bytes": 1000}, DataError, "one holds no record. Give an object with at least"),
        ({"record_bytes": 0}, UsageError, "record_bytes=0, but it must be an integer of at least 1."),
        ({"record_bytes": 10, "batch_size": 0}, UsageError, "batch_size=0, but it must be an integer of at least 1."),
        ({"batch_size": 10}, UsageError, "batch_size= and header_bytes= were given without record_bytes=, but they"),
        ({"decode": None}, UsageError, "decode=None, but it must be a function of the bytes of a batch."),
    ],
)  # fmt: skip
def test_what_cannot_be_streamed_is_refused_at_once(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    (tmp_path / "one").write_bytes(bytes(1000))
    with pytest.raises(error) as raised:
        stream(tmp_path / "one", **options)
    assert text in str(raised.value)


def test_nothing_to_stream_is_an_error(s3_url: str, tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"there is no object below .*/none/\. Correct the URL, or put the object"
    ):
        stream(f"{s3_url}/none/")
    with pytest.raises(
        NotFoundError, match=r"there is no object .*/none, and none below it\. Correct the URL"
    ):
        stream([f"{s3_url}/none"])
    with pytest.raises(
        NotFoundError, match=r"no object matches .*/x-\*\. Correct the pattern, or put the objects there"
    ):
        stream(tmp_path / "x-*")
    with pytest.raises(UsageError, match=r"urls=\[\], but there must be at least one URL of an object"):
        stream([])
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(
        IndexError,
        match=r"batch 1 was asked for, but the stream has 1, numbered from 0 on\. "
        r"Give a number below len\(stream\), or iterate over the stream\.",
    ):
        stream(tmp_path / "x")[1]
