"""Frozen tensors are stored once for all runs, as long as one of them needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.storage.test_conformance import OwnSuite

from hopyard.errors import CorruptError, NotFoundError, StorageError
from hopyard.objects import StateRef, Tensor, flatten, load_part, load_state, save_state
from hopyard.objects import frozen as frozen_module
from hopyard.objects.frozen import RunFolder
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
    with pytest.raises(CorruptError, match=rf"the file frozen/{name} in .* is not what was written"):
        load_state(folder.at("00000"), ref)
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(CorruptError, match=r"the bytes of the tensor .* have changed"):
        load_state(folder.at("00000"), ref, verify=True)
    path.unlink()
    with pytest.raises(NotFoundError, match=f"_frozen/{name}"):
        load_state(folder.at("00000"), ref)
    another_process()
    check(folder, 1, save(folder, 1, state(0, 1)), state(0, 1))


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
    """A store in which something else happens before one of its calls."""

    def __init__(self, inner: Store, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.calls, self._at, self._meanwhile = 0, at, meanwhile

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        self.calls += 1
        if self.calls == self._at:
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


class Runs(RuleBasedStateMachine):
    """Runs that save, load, are deleted and begun anew, in processes that start and end, against a dict of trees."""

    @initialize()
    def begin(self) -> None:
        another_process()
        self.store = MemoryStore()
        self.states: dict[tuple[str, int], tuple[StateRef, Any]] = {}

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
        needed: set[str] = set()
        for (run, trial), (ref, tree) in self.states.items():
            check(RunFolder(self.store, run), trial, ref, tree)
            needed |= {each.digest for each in flatten(tree)[0].values() if each.is_frozen}
        for run in sorted({run for run, _ in self.states}):
            RunFolder(self.store, run).frozen().release()
        assert shared(self.store) == []


TestRuns = Runs.TestCase
TestRuns.settings = settings(stateful_step_count=20)
