"""Whenever power fails, a run goes on from records whose states are there, to the outcome that it would have had."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.power import Cuts, recording, scratch_disk

from hopyard.backend import InlineBackend
from hopyard.errors import StorageFullError
from hopyard.hopper.history import broken_rules
from hopyard.hopper.journal import read_records
from hopyard.hopper.state import trial_folder, units_states
from hopyard.hopper.work import Options
from hopyard.objects import load_state
from hopyard.storage import LocalStore


@pytest.mark.parametrize("unsynced", [True, False])
@pytest.mark.parametrize("every", ["unit", "epoch"])
def test_whenever_power_fails_the_run_goes_on_to_the_same_outcome(
    game: Any, result_of: Any, every: str, unsynced: bool
) -> None:
    options = Options(checkpoint_every=every, keep="all")

    def make(root: Path) -> Any:
        """A driver in a machine that has just started: no worker holds anything in its memory."""
        sys.modules.pop("kept_between_units", None)
        store = LocalStore(root / "run")
        return game(store, InlineBackend(), num_models=2, options=options, unsynced=unsynced)

    with scratch_disk() as root:
        with recording(root) as record:
            run = make(root)

            def flush(state: Any, written: dict[str, Any]) -> None:
                # The writer keeps pace, so that there are many segments.
                if written["r"] == "unit":
                    run.flush()
                    record.done(len(run.records()))

            run.on_record = flush
            expected, records = result_of(run.play()), run.records()
            record.done(len(records))

        def look(done: list[int], cut: Any) -> None:
            again = make(root)
            left = list(read_records(again.store)) if (root / "run").exists() else []
            assert left == records[: len(left)]
            assert len(left) >= (done[-1] if done else 0)
            states = {trial: state for each in left for trial, state, _ in units_states(each) if state}
            for trial, state in states.items():
                load_state(again.store.at(trial_folder(trial)), state, verify=True)
            assert result_of(again.play()) == expected
            assert broken_rules(again.records()) == []

        Cuts(f"run {every} {unsynced}", record, 100, 6, 30).check(root, look)


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
