"""Frozen tensors are stored once for all runs, as long as one of them needs them."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.storage.test_conformance import OwnSuite

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.objects import StateRef, Tensor, load_part, load_state, save_state
from hopyard.objects import frozen as frozen_module
from hopyard.objects.elsewhere import find_elsewhere
from hopyard.objects.frozen import RunFolder
from hopyard.objects.states import state_digest
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.storage.wrappers import Call, Wrapper

T = TypeVar("T")
LARGE = 20_000
"""Elements of a tensor that is worth a file."""


def another_process() -> None:
    """What a process remembers of files is gone."""
    for known in frozen_module._places.values():  # which objects in the middle of something have
        known.clear()
    frozen_module._marked.clear()
    frozen_module._lent.clear()


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    another_process()
    yield
    another_process()


class TestRunFolder(OwnSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return RunFolder(LocalStore(tmp_path / "store").runs, "grid-1")


class TestPartOfRunFolder(OwnSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return RunFolder(LocalStore(tmp_path / "store"), "grid-1").at("00000").unsynced().without_links()


def tensor(seed: int, size: int = LARGE, is_frozen: bool = True) -> Tensor:
    values = np.random.default_rng(seed).normal(size=size).astype("f4")
    return replace(Tensor.from_numpy(values), is_frozen=is_frozen)


def state(trial: int, *bases: int) -> dict[str, Any]:
    """A model with an adapter of its own over base weights, and an optimizer's state."""
    model = {f"base{number}": tensor(number) for number in bases}
    return {
        "model": {**model, "adapter": tensor(1000 + trial, 10, is_frozen=False)},
        "optimizer": {"m": tensor(2000 + trial, 10, is_frozen=False)},
    }


def save(folder: RunFolder, trial: int, tree: Any, previous: StateRef | None = None) -> StateRef:
    folder.put_new("lease", b"")  # as whoever drives a run has it
    return save_state(
        folder.at(f"{trial:05d}"), tree, previous=previous, parts=("model",), frozen=folder.frozen()
    )


def check(folder: RunFolder, trial: int, ref: StateRef, tree: Any) -> None:
    store = folder.at(f"{trial:05d}")
    assert load_state(store, ref, verify=True) == tree
    assert load_part(store, ref, "model", verify=True) == tree["model"]


def shared(runs: Store) -> list[str]:
    return sorted(name for name in runs.at("_frozen").names() if name.endswith(".safetensors"))


def test_what_is_frozen_is_stored_once_for_trials_epochs_and_runs(tmp_path: Path) -> None:
    runs = LocalStore(tmp_path).runs
    saved: list[tuple[RunFolder, int, StateRef, Any]] = []
    for run in ("grid-1", "grid-2"):
        another_process()
        folder, previous = RunFolder(runs, run), None
        for trial in range(3):
            for epoch in range(2):
                tree = state(trial + 100 * epoch, 1, 2)
                previous = save(folder, trial, tree, previous if epoch else None)
                saved.append((folder, trial, previous, tree))
    another_process()
    for each in saved:
        check(*each)
    assert len(shared(runs)) == 1
    sizes = {entry.name: entry.size for entry in runs.list()}
    base, rest = 2 * LARGE * 4, sum(size for name, size in sizes.items() if not name.startswith("_frozen"))
    assert base < sum(sizes.values()) - rest < base + 2_000
    assert rest < len(saved) * 5_000
    assert save_state(MemoryStore(), saved[0][3], parts=("model",)).digest == saved[0][2].digest


def test_a_state_with_more_frozen_tensors_writes_those_that_are_missing(tmp_path: Path) -> None:
    runs = LocalStore(tmp_path).runs
    folder = RunFolder(runs, "grid-1")
    refs = []
    for trial, bases in enumerate([(1, 2), (2, 3), (1, 2, 3), (4,)]):
        another_process()
        lender = folder.frozen()
        ref = save_state(folder.at(f"{trial:05d}"), state(trial, *bases), parts=("model",), frozen=lender)
        refs.append((trial, ref, state(trial, *bases)))
        assert lender.written == {0: 2, 1: 1, 2: 0, 3: 1}[trial] * LARGE * 4
    for trial, ref, tree in refs:
        check(folder, trial, ref, tree)
    assert len(shared(runs)) == 3


def test_few_bytes_are_not_worth_a_file(tmp_path: Path) -> None:
    runs = LocalStore(tmp_path).runs
    folder = RunFolder(runs, "grid-1")
    tree = {"model": {"table": tensor(0, 1000)}}
    check(folder, 0, save(folder, 0, tree), tree)
    assert shared(runs) == []


def test_a_file_is_deleted_with_the_last_run_that_uses_it(tmp_path: Path) -> None:
    runs = LocalStore(tmp_path).runs
    one, two = RunFolder(runs, "grid-1"), RunFolder(runs, "grid-2")
    save(one, 0, state(0, 1))
    ref = save(two, 0, state(0, 1))
    save(two, 1, state(1, 2))
    one.frozen().release()
    check(two, 0, ref, state(0, 1))
    two.frozen().release()
    assert runs.at("_frozen").names() == set()


def test_marks_of_a_run_whose_folder_was_deleted_by_hand_go_with_another_one(tmp_path: Path) -> None:
    runs = LocalStore(tmp_path).runs
    one, two = RunFolder(runs, "grid-1"), RunFolder(runs, "grid-2")
    save(one, 0, state(0, 1))
    save(two, 0, state(0, 2))
    for name in one.names():
        one.delete(name)
    two.frozen().release()
    assert shared(runs) == []


def test_a_run_that_was_deleted_and_begun_anew_has_its_tensors(tmp_path: Path) -> None:
    folder = RunFolder(LocalStore(tmp_path).runs, "grid-1")
    for _ in range(3):
        ref = save(folder, 0, state(0, 1))
        check(folder, 0, ref, state(0, 1))
        folder.frozen().release()
        folder.at("00000").delete(ref.files[0])
        folder.at("00000").delete(ref.part("model").files[0])


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    runs = LocalStore(tmp_path).runs
    folder = RunFolder(runs, "grid-1")
    ref = save(folder, 0, state(0, 1))
    (name,) = shared(runs)
    path = runs.path(f"_frozen/{name}")
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(CorruptError, match=rf"the file {path} is not what was written"):
        load_state(folder.at("00000"), ref)
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(CorruptError, match=r"the bytes of the tensor .* have changed"):
        load_state(folder.at("00000"), ref, verify=True)
    path.unlink()
    with pytest.raises(NotFoundError, match=f"_frozen/{name}"):
        load_state(folder.at("00000"), ref)
    another_process()
    check(folder, 1, save(folder, 1, state(0, 1)), state(0, 1))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda data: data[:5000] + bytes(len(data) - 5000)]
)
def test_a_file_that_power_or_a_disk_has_damaged_is_written_anew(damage: Any, tmp_path: Path) -> None:
    """One that was cut off, and one with a header and zeros, as of a file written without ``sync``."""
    runs = LocalStore(tmp_path).runs
    one, two = RunFolder(runs, "grid-1"), RunFolder(runs, "grid-2")
    ref = save(one, 0, state(0, 1))
    (name,) = shared(runs)
    path = runs.path(f"_frozen/{name}")
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    another_process()
    check(two, 0, save(two, 0, state(1, 1)), state(1, 1))
    check(one, 0, ref, state(0, 1))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("action", ["full", "error", "unanswered"])
def test_a_write_that_fails_leaves_a_state_that_can_be_saved_again(tmp_path: Path, action: Any) -> None:
    counted = FaultyStore(MemoryStore())
    save(RunFolder(counted, "grid-1"), 0, state(0, 1))
    for number in range(1, len(counted.writes) + 1):
        another_process()
        inner = LocalStore(tmp_path / str(number))
        folder = RunFolder(FaultyStore(inner, Fault(action, at=number)), "grid-1")
        with pytest.raises(StorageError):
            save(folder, 0, state(0, 1))
        for restarted in (False, True):
            if restarted:
                another_process()
            check(folder, restarted, save(folder, restarted, state(0, 1)), state(0, 1))
        assert len(shared(inner)) == 1


# Deletion beside use


class Interrupted(Wrapper):
    """A store in which something else happens before some of its calls."""

    def __init__(self, inner: Store, at: int | tuple[int, ...], meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.calls, self._at, self._meanwhile = 0, (at,) if isinstance(at, int) else at, meanwhile

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        self.calls += 1
        if self.calls in self._at:
            kept = (
                {url: dict(known) for url, known in frozen_module._places.items()},
                set(frozen_module._marked),
            )
            another_process()
            self._meanwhile()
            another_process()
            for url, known in kept[0].items():
                frozen_module._places.setdefault(url, {}).update(known)
            frozen_module._marked.update(kept[1])
        return action()


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "is killed"])
@pytest.mark.parametrize("beside", [False, True], ids=["", "beside another deletion"])
def test_no_moment_of_a_deletion_takes_tensors_from_another_run(beside: bool, ends: bool) -> None:
    at, happened = 0, True
    while happened:
        at += 1
        another_process()
        store = MemoryStore()
        first, second, third = (RunFolder(store, f"grid-{number}") for number in (1, 2, 3))
        save(first, 0, state(0, 1))
        save(second, 0, state(0, 1))
        refs: list[StateRef] = []

        def meanwhile(second: RunFolder = second, third: RunFolder = third, refs: Any = refs) -> None:
            if beside:
                second.frozen().release()
            refs.append(save(third, 0, state(7, 1)))
            check(third, 0, refs[0], state(7, 1))
            if ends:
                raise KeyboardInterrupt

        interrupted = Interrupted(store, at, meanwhile)
        for mark in [name for name in store.names() if name.endswith("/marks/grid-2")]:
            store.delete(mark)
        another_process()
        with contextlib.suppress(KeyboardInterrupt):
            RunFolder(interrupted, "grid-1").frozen().release()
        another_process()
        happened = interrupted.calls >= at
        if happened:
            check(third, 0, refs[0], state(7, 1))
            check(third, 1, save(third, 1, state(8, 1)), state(8, 1))
            assert len(shared(store)) <= 2
            first.frozen().release()
            check(third, 0, refs[0], state(7, 1))
            third.frozen().release()
            assert shared(store) == []
    assert at > 4


def test_no_moment_of_a_use_loses_tensors_to_a_deletion() -> None:
    at, happened = 0, True
    while happened:
        at += 1
        another_process()
        store = MemoryStore()
        first = RunFolder(store, "grid-1")
        save(first, 0, state(0, 1))
        another_process()
        interrupted = Interrupted(store, at, first.frozen().release)
        other = RunFolder(interrupted, "grid-2")
        ref = save(other, 0, state(7, 1))
        happened = interrupted.calls >= at
        check(RunFolder(store, "grid-2"), 0, ref, state(7, 1))
        check(RunFolder(store, "grid-2"), 1, save(other, 1, state(8, 1)), state(8, 1))
    assert at > 10


@pytest.mark.long
def test_a_worker_that_turns_away_from_a_deletion_keeps_the_tensors_of_another_one_of_its_run() -> None:
    for first, second in itertools.combinations(range(1, 40), 2):
        another_process()
        store = MemoryStore()
        save(RunFolder(store, "grid-1"), 0, state(0, 1))
        refs: list[StateRef] = []

        def meanwhile(store: Store = store, refs: Any = refs) -> None:
            refs.append(save(RunFolder(store, "grid-2"), len(refs), state(len(refs), 1)))

        interrupted = Interrupted(store, (first, second), meanwhile)
        another_process()
        RunFolder(interrupted, "grid-1").frozen().release()
        another_process()
        for trial, ref in enumerate(refs):
            check(RunFolder(store, "grid-2"), trial, ref, state(trial, 1))
        RunFolder(store, "grid-2").frozen().release()
        assert shared(store) == []
        if not refs:
            break
    assert first > 4


# Writing beside writing


@pytest.mark.parametrize("size", [LARGE, 300_000], ids=["in one piece", "in pieces"])
@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "is killed"])
@pytest.mark.parametrize("run", ["grid-1", "grid-2"], ids=["of the run", "of another run"])
def test_no_moment_of_a_write_is_in_the_way_of_another_one(
    size: int, ends: bool, run: str, tmp_path: Path
) -> None:
    """Also between the write of a file that is staged and the move to its name."""
    one, two = ({"model": {"base": tensor(1, size), "number": number}} for number in (0, 1))
    at, happened = 0, True
    while happened:
        at += 1
        another_process()
        store = LocalStore(tmp_path / str(at))
        refs: list[StateRef] = []

        def meanwhile(store: Store = store, refs: Any = refs) -> None:
            refs.append(save(RunFolder(store, run), 1, two))
            check(RunFolder(store, run), 1, refs[0], two)
            if ends:
                raise KeyboardInterrupt

        interrupted = Interrupted(store, at, meanwhile)
        with contextlib.suppress(KeyboardInterrupt):
            refs.insert(0, save(RunFolder(interrupted, "grid-1"), 0, one))
        happened = interrupted.calls >= at
        another_process()
        if happened:
            check(RunFolder(store, run), 1, refs[-1], two)
        if not (happened and ends):
            check(RunFolder(store, "grid-1"), 0, refs[0], one)
        assert len(shared(store)) == 1
    assert at > 8


WRITE = """
import pickle, sys
from hopyard.objects import load_state, save_state
store, trees = pickle.load(sys.stdin.buffer)
folder = store.at(sys.argv[1])
print("ready", flush=True)
sys.stdin.buffer.read(1)
for tree in trees:
    ref = save_state(folder, tree, parts=("model",), frozen=store.frozen())
    assert load_state(folder, ref, verify=True) == tree
"""


def test_processes_that_write_the_same_files_at_once_do_not_disturb_each_other_or_readers(
    tmp_path: Path,
) -> None:
    """One of them is killed where it has written another file, which has no name yet."""
    runs = LocalStore(tmp_path).runs
    trees = [{"model": {"base": tensor(number, 300_000)}} for number in range(6)]
    unfinished = {"model": {"base": tensor(6, 300_000)}}
    digest = unfinished["model"]["base"].digest
    name = f"{state_digest({digest: unfinished['model']['base']})}-0"
    deadly = FaultyStore(runs, Fault("kill_before", match=f"_frozen/{name}/*.safetensors"))
    processes = []
    for worker, store, its in (0, runs, trees), (1, runs, trees), (2, deadly, [*trees[:3], unfinished]):
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", WRITE, f"{worker:05d}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        give(processes[-1], pickle.dumps((RunFolder(store, "grid-1"), its)))
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        give(process, b"x")
    reader = RunFolder(runs, "grid-2")
    for trial, tree in enumerate(trees):  # it finds files, or writes them
        another_process()
        check(reader, trial, save(reader, trial, tree), tree)
    for process, code in zip(processes, (0, 0, -signal.SIGKILL), strict=True):
        process.communicate(timeout=60)
        assert process.returncode == code
    assert len(shared(runs)) == len(trees)
    check(reader, 6, save(reader, 6, unfinished), unfinished)
    assert [found for found in shared(runs) if found.startswith(name)]


def give(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


class Runs(RuleBasedStateMachine):
    """Runs that save, load, are deleted and begun anew, in processes that start and end, against a dict of trees. Some
    of the tensors lie elsewhere, in a file that comes and goes."""

    @initialize()
    def begin(self) -> None:
        another_process()
        self.store = MemoryStore()
        self.elsewhere = MemoryStore(f"elsewhere-{secrets.token_hex(8)}")
        self.states: dict[tuple[str, int], tuple[StateRef, Any]] = {}
        self.come()

    @rule()
    def come(self) -> None:
        tensors = {f"layers.{number}.weight": tensor(number).numpy() for number in (1, 2, 3)}
        self.elsewhere.put("model.safetensors", safetensors.numpy.save(tensors))

    @rule()
    def go(self) -> None:
        self.elsewhere.delete("model.safetensors")

    @precondition(lambda self: self.elsewhere.exists("model.safetensors"))
    @rule(run=st.sampled_from(["grid-1", "grid-2", "grid-3"]))
    def refer(self, run: str) -> None:
        folder = RunFolder(self.store, run)
        folder.put_new("lease", b"")
        folder.frozen().refer(find_elsewhere(self.elsewhere))

    @rule(
        run=st.sampled_from(["grid-1", "grid-2", "grid-3"]),
        trial=st.integers(0, 2),
        bases=st.lists(st.integers(1, 4), max_size=3, unique=True),
    )
    def save(self, run: str, trial: int, bases: list[int]) -> None:
        tree = state(trial, *bases)
        ref = save(RunFolder(self.store, run), trial, tree, self.states.get((run, trial), (None,))[0])
        self.states[run, trial] = ref, tree

    @precondition(lambda self: bool(self.states))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted({run for run, _ in self.states})))
        folder = RunFolder(self.store, run)
        folder.frozen().release()
        for name in folder.names():
            folder.delete(name)
        self.states = {key: value for key, value in self.states.items() if key[0] != run}

    @rule()
    def restart(self) -> None:
        another_process()

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        another_process()
        self.come()
        for (run, trial), (ref, tree) in self.states.items():
            check(RunFolder(self.store, run), trial, ref, tree)
        for run in ("grid-1", "grid-2", "grid-3"):
            RunFolder(self.store, run).frozen().release()
        assert shared(self.store) == []


TestRuns = Runs.TestCase
TestRuns.settings = settings(stateful_step_count=20)
