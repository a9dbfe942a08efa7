"""A watcher in this process; the driver is the journal that it holds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.tune import open_run
from hopyard.tune.progress import ProgressDisplay
from hopyard.tune.watching import watch


@pytest.mark.parametrize("kind", [LocalStore, lambda path: MemoryStore()], ids=["files", "objects"])
def test_a_watcher_is_told_when_the_driver_waits_for_space_and_when_it_goes_on(
    kind: Any, search: Any, make_rows: Any, tmp_path: Path
) -> None:
    store: Store = kind(tmp_path)
    run_id = search(store, num_models=1, num_epochs=1).fit(make_rows()).run.run_id
    folder = store.runs.at(run_id)
    journal = Journal(folder)
    steps: Iterator[Any] = iter(
        [lambda: journal.tell_full(True), lambda: None, lambda: journal.tell_full(False), journal.close]
    )
    out = io.StringIO()
    with ProgressDisplay(console=Console(file=out, width=120)) as progress:
        watch(folder, run_id, progress, wait=lambda seconds: next(steps)())
    said = [line for line in out.getvalue().splitlines() if line.startswith("the run")]
    assert said == [
        "the run waits: its store is full, or does not answer. It goes on by itself once it can.",
        "the run goes on.",
    ]
    assert open_run(store, run_id).status == "completed"
