"""Adapters over one base that Spark's executors train are those of plain PEFT, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tune.adapters import by_hand, check, search

from hopyard.backend import SparkBackend
from hopyard.storage import LocalStore

RECIPES = ["LoRA with dropout", "LoRA and a norm", "LoRA and a head"]


def test_adapters_are_those_of_plain_peft(spark: Any, tmp_path: Path) -> None:
    model = search(SparkBackend(num_workers=2), LocalStore(tmp_path / "store"), RECIPES)
    check(model, by_hand(tmp_path / "plain", RECIPES))
    assert set(model.schedule()["worker"]) == {0, 1}
