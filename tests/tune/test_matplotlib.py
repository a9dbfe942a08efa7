"""Pictures of runs: what they say in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes

from hopyard.backend import InlineBackend
from hopyard.storage import MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import ASHA, RandomSearch, Run, hp_log
from hopyard.tune.matplotlib import draw_curves


def estimator(params: dict[str, Any]) -> TorchEstimator:
    return TorchEstimator(
        torch.nn.Linear(4, 2), torch.optim.Adam, torch.nn.CrossEntropyLoss(), [], 8, {"lr": params["lr"]}
    )


def run_of(kind: type[Any], data: Any, **own: Any) -> Run:
    search = kind(
        InlineBackend(),
        MemoryStore(),
        estimator,
        {"lr": hp_log(1e-3, 1e-1)},
        num_models=4,
        num_epochs=2,
        num_partitions=4,
        progress=False,
        **own,
    )
    run: Run = search.fit(data).run
    return run


def texts(monkeypatch: pytest.MonkeyPatch, run: Run, path: Path) -> list[str]:
    written: list[str] = []
    text = Axes.text

    def noting(axes: Axes, x: float, y: float, s: str, *values: Any, **named: Any) -> Any:
        written.append(f"{x}:{s}")
        return text(axes, x, y, s, *values, **named)

    monkeypatch.setattr(Axes, "text", noting)
    assert draw_curves(run, path).read_bytes().startswith(b"\x89PNG")
    return written


def test_curves_of_a_search_in_rungs_say_where_and_how_many_trained_on(
    make_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(ASHA, make_rows(), divisor=4)
    assert texts(monkeypatch, run, tmp_path / "curves.png") == ["0.5: 1 of 4 train on"]


def test_curves_of_other_searches_have_no_rungs(
    make_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(RandomSearch, make_rows(), patience=1)
    assert texts(monkeypatch, run, tmp_path / "curves.png") == []
