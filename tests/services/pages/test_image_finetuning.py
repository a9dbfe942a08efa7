"""The example of heads over a shared frozen trunk, on a few images, in this process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard import load_model

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "image_finetuning" / "finetune.py"


@pytest.fixture
def finetune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("finetune", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "finetune", module)
    spec.loader.exec_module(module)
    return module


def test_heads_on_the_trunk_learn_what_heads_with_it_inside_learn(
    finetune: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--trials=2", "--epochs=2", "--each=16", "--pretrain-epochs=1", "--workers=0"]
    found = finetune.main([f"--store={tmp_path}", *sizes])
    printed = capsys.readouterr().out
    assert "heads learn the digits 5 to 9 from 80 images; 816 others test them" in printed
    shared, inside = (found[name][0] for name in ("on the shared trunk", "each with the trunk inside"))
    for name, values in shared.get_history().items():
        assert values == pytest.approx(inside.get_history()[name], rel=1e-3), name
    assert found["on the shared trunk"][1] == pytest.approx(found["each with the trunk inside"][1], abs=0.01)

    (tmp_path / "trunk.pt").unlink()
    saved = load_model(tmp_path / f"best-{shared.run_id}")
    images = finetune.images_of([5, 6, 7, 8, 9])[0][:3]
    np.testing.assert_array_equal(saved.predict(images), shared.predict(images))
