"""Small experiments, as users would write them: a directory with code, and a configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopyard.backend import Backend, InlineBackend
from hopyard.experiment import complete, create
from hopyard.storage import LocalStore
from hopyard.tune import Run

TRIAL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

from hopyard.experiment import TorchTrial


def points(n, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=random)
    return x, (x.sum(1) > 0).long()


class Trial(TorchTrial):
    def build_model(self):
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.context.get_hparam("lr"))

    def build_training_data_loader(self):
        return DataLoader(TensorDataset(*points(100, 1)), batch_size=8)

    def build_validation_data_loader(self):
        return DataLoader(TensorDataset(*points(50, 2)), batch_size=16)

    def train_batch(self, batch, model):
        x, y = batch
        return {"loss": torch.nn.functional.cross_entropy(model(x), y)}

    def evaluate_batch(self, batch, model):
        x, y = batch
        outputs = model(x)
        accuracy = (outputs.argmax(1) == y).float().mean()
        return {"loss": torch.nn.functional.cross_entropy(outputs, y), "accuracy": accuracy}
"""

FUNCTION = """
def main(context):
    begun = (context.restored() or {"epoch": 0})["epoch"]
    for epoch in range(begun, 4):
        context.save({"epoch": epoch + 1})
        context.report(accuracy=context.get_hparam("lr") + epoch)
"""


@pytest.fixture
def definition(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model definition directory with this code in ``model_def.py``, and other files."""

    def make(code: str = TRIAL, **files: str) -> Path:
        folder = tmp_path / "definition"
        folder.mkdir(exist_ok=True)
        (folder / "model_def.py").write_text(textwrap.dedent(code))
        for name, text in files.items():
            (folder / name.replace("_dot_", ".")).write_text(text)
        return folder

    return make


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Run]:
    """Runs an experiment with a directory's ``model_def:Trial``, or another entrypoint, and changed fields."""

    def run(
        folder: Path,
        backend: Backend | None = None,
        store: str = "store",
        options: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Run:
        config = {
            "entrypoint": "model_def:Trial",
            "hyperparameters": {"lr": 0.01},
            "searcher": {"name": "single", "metric": "accuracy", "max_length": {"epochs": 2}},
            "scheduling_unit": 5,
            **fields,
        }
        backend = InlineBackend() if backend is None else backend
        where = LocalStore(tmp_path / store)
        return create(complete(config), folder, where, backend, **{"progress": False, **(options or {})})

    return run
