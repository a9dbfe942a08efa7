"""One winner for each number, and no history with holes."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import CorruptError, RunHeldError
from hopyard.objects import NumberedLog
from hopyard.storage import LocalStore, MemoryStore, Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else MemoryStore()


def test_appends_are_numbered_from_one_and_read_in_order(store: Store) -> None:
    log = NumberedLog(store, "journal")
    assert log.last == 0
    assert list(log.read()) == []
    assert [log.append(data) for data in (b"a", b"", b"c")] == [1, 2, 3]
    assert [entry.name for entry in store.list()] == [f"journal/{n:012d}" for n in (1, 2, 3)]
    again = NumberedLog(store, "journal")
    assert again.last == 3
    assert list(again.read()) == [(1, b"a"), (2, b""), (3, b"c")]
    assert list(again.read(start=3)) == [(3, b"c")]
    assert list(again.read(start=4)) == []


def test_who_has_lost_the_log_cannot_write_again(store: Store) -> None:
    old = NumberedLog(store, "journal")
    old.append(b"old")
    new = NumberedLog(store, "journal")
    assert list(new.read()) == [(1, b"old")]
    assert new.append(b"new") == 2
    for _ in range(2):
        with pytest.raises(
            RunHeldError, match=r"journal/000000000002 was written by another process.*run again"
        ):
            old.append(b"late")
    assert [data for _, data in new.read()] == [b"old", b"new"]


def test_a_log_continues_where_its_reading_ended(store: Store) -> None:
    """What another one appends between reading and writing is not overlooked."""
    for count in range(3):
        reader = NumberedLog(store, "j")
        assert len(list(reader.read())) == count
        NumberedLog(store, "j").append(b"other")
        with pytest.raises(RunHeldError):
            reader.append(b"unaware")
    assert reader.refresh() == 3
    assert reader.append(b"aware") == 4


def test_a_torn_history_is_corrupt(store: Store) -> None:
    log = NumberedLog(store, "journal")
    for data in (b"a", b"b", b"c"):
        log.append(data)
    store.delete("journal/000000000002")
    read = log.read()
    assert next(read) == (1, b"a")
    with pytest.raises(CorruptError, match=r"lacks 000000000002, but has 000000000003: .*Restore"):
        next(read)
    assert list(log.read(start=3)) == [(3, b"c")]


def test_foreign_objects_in_a_log_are_named(store: Store) -> None:
    store.put("journal/notes.txt", b"")
    with pytest.raises(CorruptError, match=r"holds 'notes\.txt', but only numbers of 12 digits"):
        NumberedLog(store, "journal").append(b"")


APPEND = """
import pickle, sys
from hopyard.errors import RunHeldError
from hopyard.objects import NumberedLog
store = pickle.load(sys.stdin.buffer)
log = NumberedLog(store, "log")
won = []
while len(won) < 20:
    try:
        won.append(log.append(f"{sys.argv[1]}:{len(won)}".encode()))
    except RunHeldError:
        log.refresh()
print(*won)
"""


def test_of_several_processes_exactly_one_wins_each_number(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", APPEND, str(me)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for me in range(4)
    ]
    outputs = [process.communicate(pickle.dumps(store), timeout=60)[0] for process in processes]
    content = dict(NumberedLog(store, "log").read())
    assert sorted(content) == list(range(1, 81))
    for me, output in enumerate(outputs):
        for count, number in enumerate(map(int, output.split())):
            assert content[number] == f"{me}:{count}".encode()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["append", "refresh", "read"])), max_size=30))
def test_any_interleaving_keeps_what_was_acknowledged(steps: list[tuple[int, str]]) -> None:
    store = MemoryStore()
    logs = [NumberedLog(store, "log") for _ in range(3)]
    model: list[bytes] = []
    seen: list[int | None] = [None] * 3
    for step, (who, what) in enumerate(steps):
        if what == "append":
            known = len(model) if seen[who] is None else seen[who]
            data = f"{step}".encode()
            if known == len(model):
                assert logs[who].append(data) == len(model) + 1
                model.append(data)
            else:
                with pytest.raises(RunHeldError):
                    logs[who].append(data)
            seen[who] = logs[who].last
        elif what == "refresh":
            seen[who] = logs[who].refresh()
            assert seen[who] == len(model)
        else:
            assert [data for _, data in logs[who].read()] == model
            seen[who] = logs[who].last
    assert [data for _, data in logs[0].read()] == model
