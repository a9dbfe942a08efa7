"""``hopyard stock reproduce`` as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hopyard import StockRoom
from hopyard.cli import app


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory, finished: Path, python: Any) -> Path:
    """A folder with a stockroom, to which the script has committed its outcome."""
    folder = tmp_path_factory.mktemp("committed")
    StockRoom.init(folder)
    script = (finished / "search.py").read_text()
    (folder / "search.py").write_text(script.replace("fresh=", 'stock=".", fresh='))
    (folder / "lived").touch()
    done = python("search.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_commit_is_trained_again(committed: Path, hopyard: Any) -> None:
    done = hopyard("stock", "reproduce", "HEAD", "--trust", cwd=committed)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 tensors of the best model are the same to the last bit" in done.stdout
    assert "reproduced: equal to the last bit" in done.stdout


def test_it_asks_for_trust(committed: Path, hopyard: Any) -> None:
    done = hopyard("stock", "reproduce", cwd=committed)
    assert done.returncode == 1
    assert "is to run code that is in the commit" in done.stderr
    assert "(hopyard stock reproduce --trust)" in done.stderr


def test_what_differs_is_said_by_the_status_too(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = StockRoom(committed)
    (run,) = stock.experiment.runs()
    stock.branch("changed")
    stock.switch("changed")
    with stock.enable_write():
        weights = stock.model[run.id]
        weights["1.bias"][0] += 0.5
        stock.model[run.id] = weights
    stock.switch("main")
    monkeypatch.chdir(committed)
    done = CliRunner().invoke(app, ["stock", "reproduce", "changed", "--trust"])
    assert done.exit_code == 1
    assert "1.bias: 1 of 2 elements differ, by up to 0.5" in done.output
    assert "NOT reproduced" in done.output
