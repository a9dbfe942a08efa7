"""What a unit of a training run is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.backend import LocalBackend
from hopyard.errors import WorkerMismatchError
from hopyard.storage import LocalStore


def test_a_worker_that_came_later_and_differs_ends_the_run_which_then_goes_on_elsewhere(
    search: Callable[..., Any], make_rows: Callable[..., dict[str, np.ndarray[Any, Any]]], tmp_path: Path
) -> None:
    def move() -> None:
        """From now on this process says that it is on another machine."""
        from dataclasses import replace

        from hopyard.backend import preflight

        facts = replace(preflight._own_facts(), instructions="another CPU", host="other")
        preflight._own_facts = lambda: facts

    data = make_rows()
    with LocalBackend(num_workers=1, device="cpu") as backend:
        backend.submit(0, move).result()
        text = r"A worker's process, \d+, on other differs from worker 0 on \S+: CPU instruction set another CPU \(wor"
        with pytest.raises(WorkerMismatchError, match=text):
            search(LocalStore(tmp_path), backend).fit(data)
    run = search(LocalStore(tmp_path)).fit(data).run
    assert run.status == "completed"
    assert run.broken_rules() == []


def test_drivers_do_not_import_stockrooms_for_searches_without_one(fresh_processes: None) -> None:
    code = "import hopyard.tune, sys; print('hopyard.stockroom.stock' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
