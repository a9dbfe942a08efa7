"""One driver at a time; the next one may begin when it is gone, and only then."""

import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.nfs_like import Machine, Nfs

from hopyard.errors import RunHeldError
from hopyard.objects import Lease
from hopyard.objects.heartbeat import Heartbeat, holder_that_beats
from hopyard.objects.lease import holder_of
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.base import Buffer


class Clock:
    """A clock that only waiting moves; ``meanwhile`` is what others do during each wait."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self.meanwhile = meanwhile

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


# Stores with files

HOLD = """
import pickle, sys
from hopyard.objects import Lease
lease = Lease(pickle.load(sys.stdin.buffer), "lease", {"driver": "first"})
lease.acquire()
print("held", flush=True)
sys.stdin.buffer.read(1)
lease.release()
"""


def hold_elsewhere(store: Store) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(store))
    process.stdin.flush()
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_held_lease_names_its_holder_and_the_next_steps(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    holder = hold_elsewhere(store)
    with pytest.raises(RunHeldError) as caught:
        Lease(store, "lease", {"driver": "second"}).acquire()
    message = str(caught.value)
    assert f"{tmp_path} is held by another driver (host " in message
    assert f"pid {holder.pid}, since 20" in message
    assert "driver first). Wait until it ends or stop it; " in message
    assert "run the search with take_over=True" in message
    holder.communicate(b"\n", timeout=60)
    Lease(store, "lease", {}).acquire()


def test_a_lease_dies_with_its_holder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    holder = hold_elsewhere(store)
    holder.kill()
    holder.communicate(timeout=60)
    lease = Lease(store, "lease", {"driver": "second"}, wait=lambda seconds: pytest.fail("waited"))
    lease.acquire()
    assert json.loads(store.get("lease"))["driver"] == "second"
    lease.release()


def test_a_lease_can_be_taken_over_and_then_belongs_to_the_new_holder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    holder = hold_elsewhere(store)
    new = Lease(store, "lease", {"driver": "new"})
    new.acquire(take_over=True)
    holder.communicate(b"\n", timeout=60)  # the old one's release changes nothing
    with pytest.raises(RunHeldError, match="driver new"):
        Lease(store, "lease", {}).acquire()
    new.release()
    Lease(store, "lease", {}).acquire()


def test_leases_of_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    first, second = (Lease(LocalStore(tmp_path), "lease", {}) for _ in range(2))
    first.acquire()
    with pytest.raises(RunHeldError, match=f"pid {os.getpid()}"):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_one_that_is_held_alone_is_not_taken_over(tmp_path: Path) -> None:
    alone, other = (Lease(LocalStore(tmp_path), "lease", {}) for _ in range(2))
    alone.acquire(alone=True)
    with pytest.raises(
        RunHeldError,
        match=f"^{tmp_path} is being deleted by another process\\. Wait until that has ended, and begin anew\\.$",
    ):
        other.acquire(take_over=True)
    with pytest.raises(RunHeldError, match=f"is held by another driver \\(host .*, pid {os.getpid()}, "):
        other.acquire(alone=True)
    alone.release()
    other.acquire()


def test_nobody_holds_it_alone_while_one_that_lost_it_goes_on(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lost = hold_elsewhere(store)
    new, alone = Lease(store, "lease", {"driver": "new"}), Lease(store, "lease", {})
    new.acquire(take_over=True)
    with pytest.raises(RunHeldError, match=r"is held by another driver .*driver new"):
        alone.acquire(alone=True)
    new.release()
    with pytest.raises(
        RunHeldError, match=r"was taken over from a driver that has not ended\. End that process first\."
    ):
        alone.acquire(alone=True)
    lost.kill()
    lost.communicate(timeout=60)
    alone.acquire(alone=True)


# Stores without files


def beating(store: Store, **holder: object) -> Heartbeat:
    """A holder that has begun and beats only when it is told to."""
    heart = Heartbeat(store.at("lease.beats"), {"driver": "first", **holder}, unseen=1e9)
    assert heart.begin(lambda: 0.0, lambda seconds: pytest.fail("waited"), take_over=False) is None
    return heart


def test_a_holder_that_beats_is_left_alone() -> None:
    store = MemoryStore()
    heart = beating(store)
    clock = Clock(meanwhile=heart.beat)
    with pytest.raises(RunHeldError, match=r"held by another driver \(driver first\)"):
        Lease(store, "lease", {}, clock=clock, wait=clock.wait).acquire()
    assert clock.now == 5.0
    heart.end()


def test_a_holder_unseen_for_thirty_seconds_is_succeeded_and_notices() -> None:
    store = MemoryStore()
    heart = beating(store)
    clock = Clock()
    lease = Lease(store, "lease", {"driver": "second"}, clock=clock, wait=clock.wait)
    lease.acquire()
    assert clock.now == 30.0
    assert heart.beat() is False
    assert json.loads(store.get("lease"))["driver"] == "second"
    heart.end()
    assert heart.beat() is False  # giving back what it had lost changed nothing
    lease.release()


def test_a_holder_that_slept_through_its_succession_notices() -> None:
    store = MemoryStore()
    sleeper = beating(store)
    clock = Clock()
    successor = Heartbeat(store.at("lease.beats"), {}, unseen=1e9)
    assert successor.begin(clock, clock.wait, take_over=True) is None
    for _ in range(5):
        assert successor.beat()
    assert sleeper.beat() is False
    assert successor.beat() is True
    sleeper.end()
    successor.end()


def test_a_lease_given_back_is_free_at_once() -> None:
    store = MemoryStore()
    never = Clock(meanwhile=lambda: pytest.fail("waited"))
    for _ in range(3):
        lease = Lease(store, "lease", {}, clock=never, wait=never.wait)
        lease.acquire()
        lease.release()
    assert len(list(store.list("lease.beats"))) == 2


def test_a_holder_that_gives_back_while_it_is_watched_is_succeeded() -> None:
    store = MemoryStore()
    heart = beating(store)
    clock = Clock(meanwhile=heart.end)
    lease = Lease(store, "lease", {}, clock=clock, wait=clock.wait)
    lease.acquire()
    assert clock.now == 5.0
    lease.release()


def test_a_heartbeat_can_be_taken_over() -> None:
    store = MemoryStore()
    heart = beating(store)
    lease = Lease(store, "lease", {}, wait=lambda seconds: pytest.fail("waited"))
    lease.acquire(take_over=True)
    assert heart.beat() is False
    heart.end()
    lease.release()


def test_a_heartbeat_that_holds_it_alone_is_not_taken_over() -> None:
    store = MemoryStore()
    alone = Lease(store, "lease", {})
    alone.acquire(alone=True)
    held = holder_of(store, "lease")
    alone.release()
    assert held is not None
    heart = beating(store, **held)
    clock = Clock(heart.beat)
    with pytest.raises(RunHeldError, match=f"pid {os.getpid()}"):
        Lease(store, "lease", {}, clock=clock, wait=clock.wait).acquire(take_over=True)
    heart.end()
    Lease(store, "lease", {}).acquire(take_over=True)


def test_a_dead_process_of_this_machine_is_not_waited_for() -> None:
    store = MemoryStore()
    beating(store)
    name = "lease.beats/000000000001"
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    store.put(name, json.dumps({**json.loads(store.get(name)), "pid": int(gone.stdout)}).encode())
    lease = Lease(store, "lease", {}, wait=lambda seconds: pytest.fail("waited"))
    lease.acquire()
    lease.release()


def test_old_beats_are_removed_and_the_last_one_counts() -> None:
    store = MemoryStore()
    heart = beating(store)
    for _ in range(5):
        assert heart.beat()
    assert [entry.name for entry in store.list("lease.beats")] == ["lease.beats/000000000006"]
    heart.end()


class CountingStore(MemoryStore):
    """Says when a number of writes has been made."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()

    def put_new(self, name: str, data: Buffer) -> bool:
        done = super().put_new(name, data)
        if name.endswith("000000000004"):
            self.reached.set()
        return done


def test_the_holder_beats_by_itself_until_it_gives_back() -> None:
    store = CountingStore()
    lease = Lease(store, "lease", {}, unseen=0.06)
    lease.acquire()
    assert store.reached.wait(timeout=30)
    lease.release()
    (last,) = list(store.list("lease.beats"))[-1:]
    assert json.loads(store.get(last.name))["released"] is True


def test_a_holder_is_shown_until_it_was_not_seen_for_long_and_a_clock_that_went_back_does_not_matter() -> (
    None
):
    store = MemoryStore()
    heart = beating(store)
    seen = json.loads(store.get("lease.beats/000000000001"))["holder"]["seen"]
    beats = store.at("lease.beats")
    for now in (seen - 1e9, seen, seen + 119):
        found = holder_that_beats(beats, 120, itertools.repeat(now).__next__)
        assert found is not None
        assert found["driver"] == "first"
    assert holder_that_beats(beats, 120, lambda: seen + 121) is None
    heart.end()
    assert holder_of(store, "lease") is None


def test_those_who_look_who_holds_it_keep_nobody_from_holding_it(tmp_path: Path) -> None:
    store, stop = LocalStore(tmp_path), threading.Event()

    def look() -> None:
        while not stop.is_set():
            holder_of(store, "lease")

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        lease = Lease(store, "lease", {})
        lease.acquire()
        assert holder_of(store, "lease") is not None
        lease.release()
    stop.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("forgets", [False, True])
def test_machines_that_share_a_directory_by_nfs_see_who_holds_a_lease_now(
    tmp_path: Path, forgets: bool
) -> None:
    with Nfs(tmp_path, forgets).mounted() as nfs:
        a, b, c = (Machine(nfs) for _ in range(3))
        store = LocalStore(tmp_path)
        first, second, third = (Lease(store, "driver", {"run": name}) for name in "abc")
        with a.at_work():
            assert holder_of(store, "driver") is None
        with b.at_work():
            first.acquire()
        with a.at_work():
            assert (holder_of(store, "driver") or {})["run"] == "a"
        with c.at_work():
            second.acquire(take_over=True)
        with a.at_work():
            assert (holder_of(store, "driver") or {})["run"] == "b"
        with b.at_work():
            first.release()
        with a.at_work(), pytest.raises(RunHeldError, match="run b"):
            third.acquire()
        with c.at_work():
            second.release()
        with a.at_work():
            third.acquire()
            third.release()
