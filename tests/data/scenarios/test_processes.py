"""Processes, threads and forks that share a cache, or are killed: each row comes once, and is decoded once."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from hopyard.data import open_dataset
from hopyard.errors import CorruptError

LAYOUT = [[20, 20, 20], [20, 20, 20]]


WINDOW = 2000  # bytes: a row group or two


FEW = ["id", "twice", "x", "y"]


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


def test_a_run_after_another_reads_footers_and_the_cache_only(write, rows, tmp_path, monkeypatch):
    directory = write(LAYOUT, columns=FEW)
    dataset = open_dataset(directory, cache=tmp_path / "cache")
    order = rows.ids(dataset.loader(10, True, seed=7, window=2000))
    monkeypatch.setattr("hopyard.data.reading.decoder.pieces_of", None)
    again = open_dataset(directory, cache=tmp_path / "cache")
    assert rows.ids(again.loader(10, True, seed=7, window=2000)) == order


def test_rows_wiped_out_behind_the_back_of_who_looks_at_size_and_time_are_noticed(write, rows, tmp_path):
    directory = write(LAYOUT, columns=FEW)
    open_dataset(directory, cache=tmp_path / "cache")[:]
    for file in directory.iterdir():
        status, content = file.stat(), file.read_bytes()
        end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        with file.open("r+b") as opened:
            opened.seek(4)
            opened.write(bytes(end - 4))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    for cache in (False, tmp_path / "cache"):
        with pytest.raises(CorruptError, match="cannot be decoded"):
            open_dataset(directory, cache=cache)[:]


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
