"""HDFS that is slow and does not always answer: runs that are killed and resumed, and stockrooms, as in a directory.

A fault is a call that gets no answer, before it acted or after. What is interrupted by one is begun again, as users do.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.sampling import SEED, by_level, sample
from tests.services.hdfs.conftest import folder, hdfs  # noqa: F401
from tests.stockroom.remotes.repositories import at, commit, content, samples, whole
from tests.storage.test_object_rooms import rows, search

from hopyard.backend import LocalBackend
from hopyard.errors import UnreachableError
from hopyard.stockroom.remotes import clone, fetch, push
from hopyard.storage import HDFSStore, LocalStore, Store
from hopyard.storage.faults import Fault, FaultyStore
from hopyard.storage.wrappers import Call, SlowStore, T, Wrapper

LATENCY = by_level(2, 2, 50) / 1000  # seconds
SHARE = 0.01  # of the calls
Result = TypeVar("Result")


class UnsteadyStore(Wrapper):
    """A store of which a share of the calls get no answer: half of them do nothing, the others have acted."""

    has_files = False

    def __init__(self, inner: Store, share: float, seed: int) -> None:
        super().__init__(inner)
        self._share, self._random = share, random.Random(seed)
        self.faults: list[str] = []

    def _called(self, call: Call, name: str, action: Callable[[], T], sent: int = 0) -> T:
        with self._lock:
            drawn = self._random.random()
        if drawn < self._share / 2:
            raise self._no_answer(call, name)
        result = action()
        if drawn < self._share:
            raise self._no_answer(call, name)
        return result

    def _no_answer(self, call: str, name: str) -> UnreachableError:
        self.faults.append(f"{call} {name}")
        return UnreachableError(
            f"{call} of {name!r} in {self.url} got no answer (injected). Look at the fault."
        )


def unsteady(url: str, seed: int = SEED) -> UnsteadyStore:
    return UnsteadyStore(SlowStore(HDFSStore(url), LATENCY), SHARE, seed)


def until_done(call: Callable[[], Result]) -> Result:
    while True:
        try:
            return call()
        except UnreachableError as error:
            print("begun again:", error)


def drive(url: str, at_write: int) -> None:
    """Search, in a process that is killed behind a write of that number."""
    store = FaultyStore(unsteady(url, SEED + at_write), Fault("kill_after", at=at_write, match="runs/*"))
    until_done(lambda: search(store, backend=LocalBackend(num_workers=2)).fit(rows()))


DRIVE = "import sys; from tests.long.test_hdfs_faults import drive; drive(sys.argv[1], int(sys.argv[2]))"


@pytest.mark.parametrize("at_write", sample("killed drivers", [1, 4, 9], quick=1, ci=1))
def test_a_run_whose_driver_is_killed_has_the_bits_that_it_has_in_a_directory(
    folder: str,  # noqa: F811
    tmp_path: Path,
    at_write: int,
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", DRIVE, folder, str(at_write)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = unsteady(folder)
    model = until_done(lambda: search(store, backend=LocalBackend(num_workers=2)).fit(rows()))
    expected = search(LocalStore(tmp_path / "here")).fit(rows())
    assert model.get_all_model_history() == expected.get_all_model_history()
    assert until_done(model.run.broken_rules) == []
    for left, right in zip(model.torch().parameters(), expected.torch().parameters(), strict=True):
        assert left.equal(right)
    assert files(HDFSStore(folder)) == files(LocalStore(tmp_path / "here"))


def files(store: Store) -> set[str]:
    """Data and states; names of other files tell when and where a driver began."""
    return {name for name in store.names() if re.match(r"(train|val)_data/|runs/[^/]+/\d{5}/", name)}


def test_a_stockroom_is_pushed_fetched_and_cloned_as_through_a_directory(
    folder: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    store = unsteady(folder)
    local = at(tmp_path / "local")
    first = commit(local, image=samples(20), models={"net": {"w": np.ones(3)}})
    until_done(lambda: push(local, at(store, "origin", index=False), ["main"]))
    until_done(lambda: clone(store, tmp_path / "copy", by="Bob"))
    heads: dict[str, Any] = {"main": first}
    for number in range(by_level(4, 8, 40)):
        heads["main"] = commit(
            local, message=str(number), image=samples(3, 20 + 3 * number), values={"n": number}
        )
        heads[f"b{number}"] = commit(local, f"b{number}", label=samples(4, number))
        until_done(lambda: push(local, at(store, "origin", index=False), list(heads)))
    assert store.faults, f"no fault by seed {SEED}"
    copy = at(tmp_path / "copy")
    until_done(lambda: fetch(copy, at(store, "origin", index=False)))
    there = at(HDFSStore(folder), "origin", index=False)
    assert whole(HDFSStore(folder)) == set(heads.values())
    for head in heads.values():
        assert content(there, head) == content(local, head)
