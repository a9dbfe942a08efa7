"""Commands that begin an experiment start a worker first of all; no other command does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard import worker_start
from hopyard.cli import early

CLASS = "from hopyard.experiment import TorchTrial\nclass Trial(TorchTrial): ...\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    found: list[list[str]] = []
    monkeypatch.setattr(worker_start, "start_spare", lambda modules: found.append(list(modules)))
    monkeypatch.setattr(worker_start, "end_spare", lambda: found.append(["ended"]))
    return found


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        (CLASS, ["hopyard.experiment.torch_trial"]),
        ("from hopyard.experiment import KerasTrial\n", ["hopyard.experiment.keras_trial"]),
        ("def main(context):\n    import torch\n    from keras import layers\n", ["torch", "keras"]),
        ("def main(context):\n    '''Like torch, without it.'''\n", []),
        ("import torchmetrics\n", []),
        (b"\xff\xfe import torch", []),
    ],
)
@pytest.mark.parametrize("words", [["experiment", "create"], ["create", "experiment"]])
def test_its_worker_imports_what_the_code_seems_to_need(
    started: list[list[str]], tmp_path: Path, words: list[str], code: str | bytes, modules: list[str]
) -> None:
    (tmp_path / "model_def.py").write_bytes(code if isinstance(code, bytes) else code.encode())
    with early.worker_started_early([*words, "const.yaml", str(tmp_path), "--store", "no-such-directory"]):
        assert started == [["hopyard.experiment.looking", *modules]]
    assert started[1:] == [["ended"]]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["experiment"],
        ["experiment", "list"],
        ["experiment", "create", "--help"],
        ["experiment", "create", "const.yaml", "no-such-directory"],
        ["experiment", "create", "const.yaml", ".", "--backend", "ray"],
        ["experiment", "create", "const.yaml", ".", "--backend=ray"],
        ["experiment", "create", "const.yaml", ".", "--detach"],
        ["data", "create", "."],
    ],
)
def test_no_other_command_starts_one(started: list[list[str]], words: list[str]) -> None:
    with early.worker_started_early(words):
        pass
    assert started == []
