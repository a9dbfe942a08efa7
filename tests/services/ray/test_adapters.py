"""Adapters over one base that Ray's actors train are those of plain PEFT, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tune.adapters import by_hand, check, search

from hopyard.backend import RayBackend
from hopyard.storage import LocalStore

RECIPES = ["LoRA with dropout", "LoRA and a norm", "LoRA and a head"]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def test_adapters_are_those_of_plain_peft(cluster: Any, tmp_path: Path) -> None:
    model = search(RayBackend(num_workers=2), LocalStore(tmp_path / "store"), RECIPES)
    check(model, by_hand(tmp_path / "plain", RECIPES))
    assert set(model.schedule()["worker"]) == {0, 1}
