"""The examples with Hugging Face transformers, small: a vocabulary, a search, and predictions on new sentences; heads
and adapters of pretrained weights."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weights

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "transformers"


@pytest.fixture
def script(needs: Callable[[object, str], None]) -> Iterator[Callable[[str], Any]]:
    """Imports a script, which imports the file beside it."""
    needs(importlib.util.find_spec("transformers"), "the package transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield importlib.import_module
        for path in EXAMPLE.glob("*.py"):
            sys.modules.pop(path.stem, None)


def test_the_search_tells_praise_from_blame_by_more_than_single_words(
    script: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classify = script("classify")
    texts, labels = classify.make_reviews(500)
    assert classify.make_reviews(500) == (texts, labels)
    words = np.array([[word in text.split() for word in ("lovely", "awful")] for text in texts])
    assert 0.3 < np.mean(np.array(labels)[words[:, 0]]) < 0.7  # one word alone says little

    small = ["--rows", "4000", "--models", "1", "--epochs", "3", "--widths", "32", "--workers", "0"]
    model, accuracy, chance = classify.main(["--folder", str(tmp_path), *small])
    assert accuracy > chance + 0.15
    assert set(model.params) == {"lr", "width", "layers"}
    assert "the pool was not lovely" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_heads_and_adapters_of_pretrained_weights(
    script: Callable[[str], Any],
    needs: Callable[[object, str], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs(weights.available(weights.MINILM), f"the weights of {weights.MINILM} (make weights)")
    finetune = script("finetune")
    folder = ["--folder", str(tmp_path), "--weights", str(weights.FOLDER / weights.MINILM)]
    small = ["--rows", "160", "--models", "1", "--epochs", "1", "--workers", "0"]
    head, tuned, told = finetune.main([*folder, *small])
    assert {path.name for path in (tmp_path / "adapter").iterdir()} > {"adapter_model.safetensors"}
    tokenizer = finetune.AutoTokenizer.from_pretrained(weights.FOLDER / weights.MINILM)
    new = finetune.encode(tokenizer, finetune.NEW)
    np.testing.assert_allclose(tuned.predict(new), told.numpy(), rtol=1e-4, atol=1e-5)
    assert head.predict(new).shape == (2, 2)
    assert set(tuned.params) == {"lr", "rank", "targets"}
    said = capsys.readouterr().out
    assert all(text in said for text in ("heads", "adapters", *finetune.NEW))


def test_without_pretrained_weights_the_example_says_how_to_get_them(
    script: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script("finetune").main(["--folder", str(tmp_path / "store"), "--weights", str(tmp_path)])
    said = " ".join(capsys.readouterr().err.split())
    assert f"no pretrained model in {tmp_path}. Run `make weights` in the folder of the repository" in said
    assert not list(tmp_path.iterdir())
