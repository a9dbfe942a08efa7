"""Files, disks and processes that fail while rows are read: said by name, or gone on from; never wrong rows."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import open_dataset
from hopyard.data.cache.durability import durability
from hopyard.data.cache.node import NodeCache
from hopyard.errors import CorruptError, DataError, NotFoundError

LAYOUT = [[20, 20, 20], [20, 20, 20]]
WINDOW = 2000  # bytes: a row group or two
PLAIN = {"compression": "none", "use_dictionary": False}
FEW = ["id", "twice", "x", "y"]


def flip(path, group, column, byte=-8, count=8):
    """Flip bytes of a column's chunk, counted from its end."""
    described = pq.read_metadata(path).row_group(group)
    chunk = next(
        chunk
        for chunk in map(described.column, range(described.num_columns))
        if chunk.path_in_schema.split(".")[0] == column
    )
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    end = start + chunk.total_compressed_size
    content = bytearray(path.read_bytes())
    for place in range(end + byte, end + byte + count):
        content[place] ^= 0xFF
    path.write_bytes(content)


# Files


@pytest.mark.parametrize("cache", ["cache", False])
@pytest.mark.parametrize(
    "options", [{"data_page_size": 64}, {"compression": "snappy"}], ids=["pages", "snappy"]
)
def test_a_page_that_does_not_fit_its_checksum_is_named(write, rows, tmp_path, cache, options):
    options = {**PLAIN, **options}
    directory = write(LAYOUT, write_page_checksum=True, write_batch_size=4, columns=FEW, **options)
    flip(directory / "001.parquet", 1, "x")
    dataset = open_dataset(directory, cache=cache and tmp_path / "cache")
    expected = r"001\.parquet, row group 1, column 'x': cannot be decoded \(.*CRC.*corrupt='skip'"
    with pytest.raises(CorruptError, match=expected):
        dataset[:]
    loader, seen = dataset.loader(10, window=1), []
    with pytest.raises(CorruptError, match=expected):
        seen.extend(row for batch in loader for row in batch["id"].tolist())
    assert seen == list(range(80)), "what comes before it is read"
    assert rows.ids(dataset.loader(10, columns=["id", "y"])) == list(range(120)), "other columns are whole"


def test_damaged_compressed_pages_are_named_without_a_checksum_too(write):
    directory = write(LAYOUT, columns=FEW, compression="zstd", write_page_checksum=False)
    flip(directory / "000.parquet", 2, "twice", byte=-40, count=32)
    with pytest.raises(CorruptError, match=r"000\.parquet, row group 2, column 'twice': cannot be decoded"):
        open_dataset(directory)[:]


def test_damaged_row_groups_can_be_left_out(write, rows, warnings_of):
    directory = write(LAYOUT, columns=FEW, write_page_checksum=True)
    flip(directory / "001.parquet", 1, "x")
    (directory / "002.parquet").write_bytes(b"")
    dataset = open_dataset(directory, corrupt="skip")
    assert rows.ids(dataset.loader(10, True, window=WINDOW)) != []
    assert dataset[:]["id"].tolist() == [*range(80), *range(100, 120)]
    assert [(skipped.row_group, skipped.rows) for skipped in dataset.skipped] == [(None, None), (1, 20)]
    assert len(warnings_of()) == 1


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_a_file_that_lost_its_end_is_named(write, size):
    directory = write(LAYOUT)
    content = (directory / "001.parquet").read_bytes()
    (directory / "001.parquet").write_bytes(content[:size])
    with pytest.raises(CorruptError, match=r"001\.parquet \(\d+ bytes\) is not a complete Parquet file"):
        open_dataset(directory)


@pytest.mark.parametrize("how", ["replaced", "appended to", "truncated"])
@pytest.mark.parametrize("cache", ["cache", False])
def test_a_file_that_changes_while_rows_are_decoded_ends_the_epoch_and_is_named(
    write, rows, tmp_path, how, cache
):
    directory, other = write(LAYOUT), write(LAYOUT, first=1000)
    dataset = open_dataset(directory, cache=cache and tmp_path / "cache")
    loader = dataset.loader(10, window=WINDOW)
    epoch = iter(loader)
    batches = [next(epoch)]
    file = directory / "001.parquet"
    if how == "replaced":
        (other / "001.parquet").replace(file)
    elif how == "appended to":
        with file.open("ab") as end:
            end.write(b"more")
    else:
        os.truncate(file, 1000)
    with pytest.raises(
        CorruptError, match=r"001\.parquet was changed while it was being read.*open the dataset again"
    ):
        batches.extend(epoch)
    for batch in batches:
        rows.check(batch)
    seen = rows.ids(batches)
    assert seen == list(range(len(seen))), "rows of the old file only"
    assert len(seen) <= 60
    with pytest.raises(CorruptError, match=r"001\.parquet was changed"):
        next(iter(loader))


def test_a_mapped_file_that_is_replaced_is_read_to_the_end_of_the_epoch_and_named_at_the_next(write, rows):
    directory, other = (
        write(LAYOUT, first=first, columns=FEW, required=True, **PLAIN) for first in (0, 1000)
    )
    dataset = open_dataset(directory)
    assert all(dataset.reader().is_mapped(column) for column in dataset.schema)
    loader = dataset.loader(10, True, seed=1)
    seen = []
    for batch in loader:
        rows.check(batch)
        seen += batch["id"].tolist()
        if len(seen) == 10:
            (other / "001.parquet").replace(directory / "001.parquet")
    assert sorted(seen) == list(range(120)), "rows of the old file only"
    with pytest.raises(CorruptError, match=r"001\.parquet was changed while it was being read"):
        next(iter(loader))


def test_what_is_cached_is_read_to_the_end_though_its_file_is_gone_and_named_at_the_next_epoch(
    write, rows, tmp_path
):
    directory = write(LAYOUT)
    loader = open_dataset(directory, cache=tmp_path / "cache").loader(10, True, seed=1, window=WINDOW)
    rows.ids(loader)
    epoch = iter(loader)
    seen = next(epoch)["id"].tolist()
    (directory / "000.parquet").unlink()
    assert sorted(seen + rows.ids(epoch)) == list(range(120))
    with pytest.raises(
        NotFoundError, match=r"000\.parquet, a file of the dataset, cannot be read.*Restore it"
    ):
        next(iter(loader))


@pytest.mark.parametrize("cache", ["cache", False])
def test_a_file_that_goes_before_it_is_decoded_is_named(write, rows, tmp_path, cache):
    directory = write(LAYOUT)
    loader = open_dataset(directory, cache=cache and tmp_path / "cache").loader(10, window=WINDOW)
    epoch = iter(loader)
    batches = [next(epoch)]
    (directory / "001.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"001\.parquet, a file of the dataset, cannot be read"):
        batches.extend(epoch)
    assert rows.ids(batches) == list(range(10 * len(batches)))


@pytest.mark.parametrize(
    ("drifted", "text"),
    [
        ({"x": pa.array(["a"] * 5)}, r"001\.parquet.*x"),
        ({"x": pa.array([1] * 5, pa.int32())}, r"001\.parquet.*x"),
        ({}, r"001\.parquet.*x"),
    ],
)
def test_files_whose_columns_drifted_are_named(write, drifted, text):
    directory = write([[10]], columns=["id", "x"])
    pq.write_table(pa.table({"id": np.arange(5), **drifted}), directory / "001.parquet")
    with pytest.raises(DataError, match=text):
        open_dataset(directory)


def test_arrays_of_one_length_in_one_file_and_of_another_in_the_next_are_ragged_or_refused(tmp_path):
    for length in (3, 4):
        column = pa.array([[float(length)] * length] * 100, pa.list_(pa.float64(), length))
        pq.write_table(pa.table({"v": column}), tmp_path / f"{length}.parquet", row_group_size=50)
    assert open_dataset(tmp_path / "3.parquet").schema["v"].shape == (3,)
    dataset = open_dataset(tmp_path)
    assert dataset.schema["v"].kind == "ragged"
    for batch in dataset.loader(16, True, window=1):
        assert all(row.tolist() == [float(len(row))] * len(row) for row in batch["v"])
    with pytest.raises(DataError, match=r"Column 'v' is ragged: its rows have 3 to 4 values"):
        open_dataset(tmp_path, ragged="error")
    padded = open_dataset(tmp_path, ragged="pad")[[99, 100]]
    assert padded["v"].tolist() == [[3.0, 3.0, 3.0, 0.0], [4.0] * 4]
    assert padded["v_length"].tolist() == [3, 4]


# The node cache's disk


@contextlib.contextmanager
def mounted(folder, size):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield
    finally:
        durability.join()
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder, left):
    """Fill the file system, but for so many bytes."""
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    os.truncate(folder / "ballast", (folder / "ballast").stat().st_size - left)


@pytest.mark.parametrize("left", [0, 8192, 40_000])
def test_a_full_disk_is_said_once_and_what_it_does_not_take_is_held_in_memory(
    write, rows, tmp_path, warnings_of, monkeypatch, left
):
    with mounted(tmp_path / "disk", "1m"):
        cache = NodeCache(tmp_path / "disk" / "cache")
        # As if another process filled the disk after it was looked at.
        monkeypatch.setattr(cache, "admits", lambda *nbytes: True)
        monkeypatch.setattr(cache, "_lacking", lambda nbytes: 0)
        fill(tmp_path / "disk", left)
        dataset = open_dataset(write([[200] * 3, [200] * 3]), cache=cache)
        loader = dataset.loader(64, True, window=20_000)
        for _ in range(2):
            batches = list(loader)
            for batch in batches:
                rows.check(batch)
            assert sorted(rows.ids(batches)) == list(range(1200))
        assert len(warnings_of()) == 1
        assert "No space left on device" in warnings_of()[0]
        assert "held in memory" in warnings_of()[0]
        rows.check(dataset[::-7], np.arange(1200)[::-7])


def test_a_disk_that_is_known_to_be_full_is_not_written_to(write, rows, tmp_path, warnings_of):
    with mounted(tmp_path / "disk", "1m"):
        fill(tmp_path / "disk", 8192)
        loader = open_dataset(write(LAYOUT), cache=tmp_path / "disk" / "cache").loader(
            16, True, window=WINDOW
        )
        assert sorted(rows.ids(loader)) == list(range(120))
        assert not (tmp_path / "disk" / "cache").exists()
        assert warnings_of() == []


def test_a_cache_that_cannot_be_written_is_said_once(write, rows, tmp_path, warnings_of):
    (tmp_path / "file").write_text("in the way")
    loader = open_dataset(write(LAYOUT), cache=tmp_path / "file" / "cache").loader(16, True, window=WINDOW)
    for _ in range(2):
        assert sorted(rows.ids(loader)) == list(range(120))
    assert len(warnings_of()) == 1
    assert "the node cache" in warnings_of()[0]


def test_a_cache_that_goes_under_a_running_loader_is_made_again(write, rows, tmp_path, warnings_of):
    cache, moved, decoded = tmp_path / "cache", [], []

    def moving(columns):
        first = int(columns["id"][0])
        decoded.append(first)
        if first in (20, 80) and len(moved) < 6 and cache.exists():  # this row group is being made in it
            moved.append(cache.rename(tmp_path / f"cache-{len(moved)}"))
        return columns

    # Of windows of one row group, only one is made at a time.
    loader = open_dataset(write(LAYOUT), cache=cache, cached_transform=moving).loader(10, True, window=1)

    def read():
        decoded.clear()
        batches = list(loader)
        for batch in batches:
            rows.check(batch)
        assert sorted(rows.ids(batches)) == list(range(120))

    for epoch in 1, 2, 3:
        read()
        assert len(moved) == 2 * epoch
        assert set(decoded) >= {20, 80}, "what had no place in the cache is tried again"
    read()
    assert len(list(cache.glob("*.flat"))) == 6
    read()
    assert decoded == []
    assert warnings_of() == []


@pytest.mark.parametrize("window", [None, 60_000])
def test_a_cache_too_small_for_what_looked_small_in_the_files_gives_right_rows(tmp_path, window):
    # One long text is stored once, but decoded in every row, so the cache is too small by far.
    ids = np.arange(600)
    table = pa.table({"id": ids, "text": [f"{row % 2}" * 300 for row in ids]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    dataset = open_dataset(tmp_path / "a.parquet", cache=NodeCache(tmp_path / "cache", 80_000))
    loader = dataset.loader(64, True, seed=1, window=window)
    for _ in range(3):
        batches = list(loader)
        for batch in batches:
            assert batch["text"].tolist() == [f"{row % 2}" * 300 for row in batch["id"]]
        assert sorted(row for batch in batches for row in batch["id"]) == ids.tolist()
    assert dataset[::-1]["id"].tolist() == ids[::-1].tolist()


# Processes

READ = """
    import json, os, signal, sys
    from hopyard.data import open_dataset

    directory, cache, log, ranks, size, stop = json.loads(sys.argv[1])

    def noted(columns):
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{columns['id'][0]}\\n".encode())
        os.close(fd)
        return columns

    dataset = open_dataset(directory, cache=cache, cached_transform=noted if log else None)
    loaders = [
        dataset.loader(size, True, seed=7, rank=rank, world_size=ranks, window=2000) for rank in range(ranks)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    for step, batches in enumerate(zip(*loaders, strict=True), 1):
        assert all((batch["twice"] == 2 * batch["id"]).all() for batch in batches)
        ids = [row for batch in batches for row in batch["id"].tolist()]
        print(json.dumps([ids, loaders[0].state_dict()]), flush=True)
        if step == stop:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def start(tmp_path):
    """``start(directory, ...)``: a process that reads once it is told to; ``finish()`` says what it read."""
    script = tmp_path / "read.py"
    script.write_text(textwrap.dedent(READ))
    started = []

    def begin(directory, ranks=1, size=10, stop=None, log=None):
        arguments = [str(directory), str(tmp_path / "cache"), log, ranks, size, stop]
        process = subprocess.Popen(
            [sys.executable, script, json.dumps(arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)

        def finish():
            out, _ = process.communicate(timeout=60)
            steps = [json.loads(line) for line in out.splitlines() if line != "ready"]
            return [row for ids, _ in steps for row in ids], [state for _, state in steps], process.returncode

        process.finish = finish
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def tell(*processes):
    """All of them at once, when all are ready."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


@pytest.mark.parametrize("steps", [1, 5])
def test_a_killed_epoch_is_gone_on_from_by_other_ranks_and_each_row_came_once(
    write, rows, start, tmp_path, steps
):
    directory = write(LAYOUT, columns=FEW)
    process = start(directory, ranks=2, size=6, stop=steps)
    tell(process)
    seen, states, code = process.finish()
    assert code == -signal.SIGKILL
    assert len(seen) == 12 * steps
    kept = {path: path.stat().st_ino for path in (tmp_path / "cache").glob("*.flat")}
    assert len(kept) >= 1 + (steps == 5)
    dataset = open_dataset(directory, cache=tmp_path / "cache")
    for ranks, size in ((3, 4), (1, 13), (4, 100)):
        rest = []
        for rank in range(ranks):
            loader = dataset.loader(size, rank=rank, world_size=ranks)
            loader.load_state_dict(states[-1])
            batches = list(loader)
            for batch in batches:
                rows.check(batch)
            rest += rows.ids(batches)
            assert len(batches) == -(-(120 - 12 * steps) // (ranks * size))
        assert sorted(seen + rest) == list(range(120))
    whole = dataset.loader(6, True, seed=7, window=2000)
    assert sorted(rows.ids(whole)[: 12 * steps]) == sorted(seen)
    after = {path: path.stat().st_ino for path in (tmp_path / "cache").glob("*.flat")}
    assert kept.items() <= after.items(), "what the killed process had decoded was found"
    assert len(after) == 6


def test_processes_that_read_cold_at_once_decode_each_row_group_once(write, start, tmp_path):
    log = tmp_path / "log"
    processes = [start(write(LAYOUT, columns=FEW), log=str(log))]
    processes.append(start(tmp_path / "files-0", log=str(log)))
    tell(*processes)
    for process in processes:
        seen, _, code = process.finish()
        assert code == 0
        assert sorted(seen) == list(range(120))
    counts = Counter(map(int, log.read_text().split()))
    counts[0] -= len(processes)  # a transform is shown the first rows when the dataset is opened
    assert counts == dict.fromkeys(range(0, 120, 20), 1)


def test_threads_that_read_cold_at_once_decode_each_row_group_once(write, rows, tmp_path):
    directory, calls, counted = write([[20] * 8]), [], threading.Lock()
    opened = threading.Event()

    def noted(columns):
        if opened.is_set():
            with counted:
                calls.append(int(columns["id"][0]))
        return columns

    datasets = [open_dataset(directory, cache=tmp_path / "cache", cached_transform=noted)] * 4
    opened.set()

    def read(number):
        loader = datasets[number].loader(16, True, seed=number, window=WINDOW)
        batches = list(loader)
        for batch in batches:
            rows.check(batch)
        return sorted(rows.ids(batches))

    with ThreadPoolExecutor(4) as pool:
        assert all(ids == list(range(160)) for ids in pool.map(read, range(4)))
    assert sorted(calls) == list(range(0, 160, 20))


def test_a_run_after_another_reads_footers_and_the_cache_only(write, rows, start, tmp_path):
    directory = write(LAYOUT, columns=FEW)
    dataset = open_dataset(directory, cache=tmp_path / "cache")
    order = rows.ids(dataset.loader(10, True, seed=7, window=2000))
    for file in directory.iterdir():  # its rows are wiped out, behind the back of who looks at size and time
        status, content = file.stat(), file.read_bytes()
        end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        with file.open("r+b") as opened:
            opened.seek(4)
            opened.write(bytes(end - 4))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptError, match="cannot be decoded"):
        open_dataset(directory, cache=False)[:]
    process = start(directory)
    tell(process)
    seen, _, code = process.finish()
    assert (seen, code) == (order, 0)


# Forks


def in_fork(read, meanwhile):
    """What ``read()`` gives in a fork of this process, which must not take a minute."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(60)
            os.write(send, json.dumps(read()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(send)
    meanwhile()
    with os.fdopen(receive, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0
    return json.loads(result)


@pytest.mark.parametrize("cache", ["cache", False])
def test_a_fork_in_the_middle_of_an_epoch_reads_on_as_its_parent_does(write, rows, tmp_path, cache):
    decoding, forked = threading.Event(), threading.Event()

    def held_up(columns):
        if columns["id"][0] == 20:
            decoding.set()
            assert forked.wait(30)
        return columns

    directory = write(LAYOUT)
    dataset = open_dataset(directory, cache=cache and tmp_path / "cache", cached_transform=held_up)
    loader = dataset.loader(10, window=WINDOW)
    epoch = iter(loader)
    seen = next(epoch)["id"].tolist()
    assert decoding.wait(30), "a thread decodes the window ahead"

    def read():
        forked.set()
        return [rows.ids(epoch), rows.ids(loader), dataset[::7]["id"].tolist()]

    theirs = in_fork(read, forked.set)
    mine = rows.ids(epoch)
    assert seen + mine == list(range(120))
    assert theirs == [mine, list(range(120)), list(range(0, 120, 7))]
