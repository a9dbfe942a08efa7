"""The example with Hugging Face transformers, small: a vocabulary, a search, and predictions on new sentences."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "transformers"


@pytest.fixture
def classify(needs: Callable[[object, str], None]) -> Iterator[Any]:
    """The script, which imports the file beside it."""
    needs(importlib.util.find_spec("transformers"), "the package transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield importlib.import_module("classify")
        for path in EXAMPLE.glob("*.py"):
            del sys.modules[path.stem]


def test_the_search_tells_praise_from_blame_by_more_than_single_words(
    classify: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, labels = classify.make_reviews(500)
    assert classify.make_reviews(500) == (texts, labels)
    words = np.array([[word in text.split() for word in ("lovely", "awful")] for text in texts])
    assert 0.3 < np.mean(np.array(labels)[words[:, 0]]) < 0.7  # one word alone says little

    small = ["--rows", "4000", "--models", "1", "--epochs", "3", "--widths", "32", "--workers", "0"]
    model, accuracy, chance = classify.main(["--folder", str(tmp_path), *small])
    assert accuracy > chance + 0.15
    assert set(model.params) == {"lr", "width", "layers"}
    assert "the pool was not lovely" in capsys.readouterr().out
