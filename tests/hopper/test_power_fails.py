"""States that units leave unsynced: whenever power fails, the run goes on from records whose states are there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hopyard.backend import InlineBackend
from hopyard.errors import StorageFullError
from hopyard.hopper.history import broken_rules
from hopyard.hopper.work import Options
from hopyard.storage import LocalStore
from hopyard.storage.base import Buffer


def nothing(data: bytes) -> bytes:
    """A file that has its name and nothing else."""
    return b""


def zeros(data: bytes) -> bytes:
    """A file of the right size, of which only the first bytes came to the disk."""
    end = 8 + int.from_bytes(data[:8], "little")
    return data[:end] + bytes(len(data) - end)


class Powered(LocalStore):
    """A disk, of which a copy is made after each segment: as power would leave it, without what was not synced.

    Args:
        left: what there is of a file that was not synced.
    """

    def __init__(self, folder: Path, copies: Path, left: Callable[[bytes], bytes]) -> None:
        super().__init__(folder)
        self.synced: set[str] = set()
        self._copies, self._left, self.cuts = copies, left, 0

    def sync(self, names: Iterable[str]) -> None:
        super().sync(names := list(names))
        self.synced.update(names)

    def put_new(self, name: str, data: Buffer) -> bool:
        done = super().put_new(name, data)
        if "/" in name:
            self._copy(self._copies / str(self.cuts))
            self.cuts += 1
        return done

    def _copy(self, to: Path) -> None:
        for entry in self.list():
            if not entry.name.startswith("lease"):
                (to / entry.name).parent.mkdir(parents=True, exist_ok=True)
                is_state = entry.name.endswith(".safetensors")
                data = self.get(entry.name)
                lost = is_state and entry.name not in self.synced
                (to / entry.name).write_bytes(self._left(data) if lost else data)


@pytest.mark.parametrize("left", [nothing, zeros])
@pytest.mark.parametrize("every", ["unit", "epoch"])
def test_whenever_power_fails_the_run_goes_on_to_the_same_outcome(
    game: Any, result_of: Any, tmp_path: Path, every: str, left: Callable[[bytes], bytes]
) -> None:
    options = Options(checkpoint_every=every, keep="all")
    store = Powered(tmp_path / "run", tmp_path / "copies", left)
    run = game(store, InlineBackend(), num_models=2, options=options, unsynced=True)
    # The writer keeps pace, so that there are many segments.
    run.on_record = lambda state, record: run.flush() if record["r"] == "unit" else None
    expected = result_of(run.play())
    assert store.synced
    assert store.cuts > 10
    for cut in range(store.cuts):
        copy = tmp_path / "copies" / str(cut)
        again = game(LocalStore(copy), InlineBackend(), num_models=2, options=options, unsynced=True)
        assert result_of(again.play()) == expected
        assert broken_rules(again.records()) == []
        shutil.rmtree(copy)


def test_a_state_that_the_disk_does_not_take_in_ends_the_run_before_its_record(
    game: Any, tmp_path: Path
) -> None:
    class Full(LocalStore):
        def sync(self, names: Iterable[str]) -> None:
            if list(names):
                raise StorageFullError("the disk is full.")

    run = game(Full(tmp_path), InlineBackend(), unsynced=True)
    with pytest.raises(StorageFullError, match="the disk is full"):
        run.play()
    assert [record["r"] for record in run.records() if record["r"] == "unit"] == []
