"""Predictions and ensembles of language models, whose outputs hold a cache beside the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from hopyard import load_model  # noqa: E402
from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.storage import MemoryStore  # noqa: E402
from hopyard.torch import TorchEstimator  # noqa: E402
from hopyard.transformers import causal_lm, dpo  # noqa: E402
from hopyard.tune import GridSearch, Model, hp_choice  # noqa: E402

WORDS, ROWS, LENGTH = 20, 40, 6

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **sizes))


def with_lora(base: Any) -> Any:
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config)


def rows(number: int = ROWS) -> dict[str, np.ndarray[Any, Any]]:
    """Texts with positions as of packed ones: two texts in a row."""
    ids = np.random.default_rng(0).integers(0, WORDS, (number, LENGTH))
    positions = np.tile(np.arange(LENGTH) % 3, (number, 1))
    return {"input_ids": ids, "position_ids": positions, "labels": ids}


def own_step(model: Any, batch: Any) -> dict[str, Any]:
    """A step of the user's, which has the model make a cache."""
    outputs = model(input_ids=batch["input_ids"])
    labels = batch["labels"][:, 1:].flatten()
    return {"loss": torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels)}


def trained(step: Callable[..., Any], **options: Any) -> Model:
    columns = options.pop("feature_columns", ["input_ids", "position_ids"])
    labels = options.pop("label_columns", ["labels"])
    data = options.pop("data", rows())

    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            base=llama, model=with_lora, step=step, optimizer=torch.optim.AdamW,
            optimizer_params={"lr": params["lr"]}, batch_size=16, **options,
        )  # fmt: skip

    return GridSearch(
        InlineBackend(), MemoryStore(), estimator, {"lr": hp_choice([0.01, 0.1])}, num_epochs=1, keep="all",
        feature_columns=columns, label_columns=labels, evaluation_metric="loss", validation=0.25, progress=False,
    ).fit(data)  # fmt: skip


def logits_of(model: Model, given: dict[str, Any], names: Iterable[str]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        outputs = model.torch()(**{name: torch.from_numpy(given[name]) for name in names}, use_cache=False)
    return np.asarray(outputs.logits)


IDS = {"input_ids": "input_ids"}
BOTH = {**IDS, "position_ids": "position_ids"}


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (causal_lm, {}),
        (partial(causal_lm, label_smoothing=0.1), {"inputs": BOTH}),
        (causal_lm, {"inputs": BOTH, "predict": lambda outputs: outputs.logits}),
        (own_step, {"inputs": IDS, "predict": lambda outputs: outputs.logits}),
    ],
)
def test_language_models_predict_logits_and_are_members_of_ensembles(
    step: Callable[..., Any], options: dict[str, Any], tmp_path: Path
) -> None:
    model, given, names = trained(step, **options), rows(9), options.get("inputs", BOTH)
    np.testing.assert_allclose(model.predict(given), logits_of(model, given, names), rtol=1e-4, atol=1e-5)
    team = model.run.ensemble(4)
    counts = {member["trial"]: member["count"] for member in team.params["members"]}
    expected = sum(count * logits_of(model.run.model(trial), given, names) for trial, count in counts.items())
    found = team.predict(given)
    np.testing.assert_allclose(found, expected / sum(counts.values()), rtol=1e-4, atol=1e-5)
    validation = model.contents()[1].load_program().val
    assert team.evaluate(validation[:])["loss"] == pytest.approx(team.info.value)
    team.save(tmp_path / "team")
    assert np.array_equal(load_model(tmp_path / "team").predict(given), found)


def pairs() -> dict[str, np.ndarray[Any, Any]]:
    ids = rows()["input_ids"]
    answers = {"chosen": ids, "rejected": ids[:, ::-1].copy()}
    columns = {f"{name}_{kind}": each for name, each in answers.items() for kind in ("input_ids", "labels")}
    return {**columns, **{f"ref_{name}_logps": np.full(ROWS, -20.0, "float32") for name in answers}}


PAIRS = {
    "data": pairs(),
    "feature_columns": [name for name in pairs() if not name.endswith("labels")],
    "label_columns": ["chosen_labels", "rejected_labels"],
}


def test_models_of_preferences_predict_by_the_columns_that_are_named() -> None:
    model = trained(dpo, **PAIRS, inputs={"input_ids": "chosen_input_ids"})
    ids = pairs()["chosen_input_ids"]
    with torch.no_grad():
        expected = model.torch()(input_ids=torch.from_numpy(ids)).logits
    np.testing.assert_allclose(model.predict(pairs()), expected, rtol=1e-4, atol=1e-5)
    assert model.run.ensemble(2).predict(pairs()).shape == (ROWS, LENGTH, WORDS)


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (
            dpo,
            PAIRS,
            r"^The model is .* 'chosen_input_ids' is no argument.* inputs=\{'input_ids': 'chosen_input_ids'\}\.$",
        ),
        (
            own_step,
            {"inputs": IDS},
            r"\(9, 6, 20\), past_key_values: DynamicCache\), but .* predict=lambda outputs: outputs\.logits",
        ),
        (
            causal_lm,
            {"predict": lambda outputs: outputs.logits.mean()},
            r"predict= gave float32 \(\), but predictions are arrays with a row",
        ),
    ],
)
def test_predictions_that_are_no_arrays_are_told(
    step: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    model = trained(step, **options)
    given = {name: column[:9] for name, column in (pairs() if step is dpo else rows()).items()}
    with pytest.raises(EstimatorError, match=message):
        model.predict(given)
