"""What depends on what a process has imported, in processes that start with nothing and import PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopyard.backend import LocalBackend
from hopyard.storage import LocalStore


def test_a_function_that_imports_pytorch_itself_is_seeded() -> None:
    code = """
import sys, numpy as np
from hopyard.training.build import build_replica
from hopyard.training.check import check_trial
from hopyard.training.program import Program
def gen(params):
    import torch
    model = torch.nn.Linear(2, 2)
    from hopyard.torch import TorchEstimator
    return TorchEstimator(model, torch.optim.SGD, torch.nn.MSELoss())
program = Program(gen, ("x",), ("y",), None, None, 1, 1, 7, "cpu")
assert "torch" not in sys.modules
print(build_replica(program, {}, 1).module.weight.tolist() == build_replica(program, {}, 1).module.weight.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_workers_do_not_import_what_only_drivers_need(
    fresh_processes: None, search: Callable[..., Any], make_rows: Callable[..., Any], tmp_path: Path
) -> None:
    def look() -> list[str]:
        import sys  # this function travels

        rooms = ("hopyard.tune", "hopyard.hopper", "hopyard.search", "hopyard.stockroom")
        return [room for room in rooms if room in sys.modules]

    with LocalBackend(num_workers=1, device="cpu") as backend:
        search(LocalStore(tmp_path), backend).fit(make_rows())
        assert backend.submit(0, look).result() == []
