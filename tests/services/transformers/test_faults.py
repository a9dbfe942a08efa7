"""Batches and arguments that models of transformers cannot take are told with the rule and the next step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.errors import EstimatorError, TrialError  # noqa: E402
from hopyard.storage import MemoryStore  # noqa: E402
from hopyard.torch import TorchEstimator  # noqa: E402
from hopyard.transformers import causal_lm, dpo, sequence_classification  # noqa: E402
from hopyard.tune import GridSearch, hp_choice  # noqa: E402

WORDS, ROWS, LENGTH, POSITIONS = 20, 4, 6, 8
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def classifier(kind: Any = BertForSequenceClassification, config: Any = BertConfig) -> Any:
    torch.manual_seed(0)
    given = {"vocab_size": WORDS, "max_position_embeddings": POSITIONS, "num_labels": 3}
    return kind(config(**given, **SIZES))


def language_model() -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **SIZES))
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))


IDS = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % WORDS
LONG = torch.arange(ROWS * 9).view(ROWS, 9) % WORDS
CLASSES = torch.tensor([0, 1, 2, -100])
TEXTS = {"input_ids": IDS, "labels": IDS}
PAIRS = {f"{name}_{kind}": IDS for name in ("chosen", "rejected") for kind in ("input_ids", "labels")}

CASES: list[tuple[str, Callable[[], Any], Any, dict[str, torch.Tensor], str]] = [
    (
        "a token beyond the vocabulary",
        language_model,
        causal_lm,
        {"input_ids": IDS + 1000, "labels": IDS},
        (
            r"The column 'input_ids' holds the token 1000, but LlamaForCausalLM has 20 tokens, 0 to 19\. Use the "
            r"tokenizer of the model; .* model\.resize_token_embeddings\(len\(tokenizer\)\)\."
        ),
    ),
    (
        "a token of an answer",
        language_model,
        dpo,
        {**PAIRS, "rejected_input_ids": IDS - 1},
        r"The column 'rejected_input_ids' holds the token -1, but LlamaForCausalLM has 20 tokens, 0 to 19\. Use",
    ),
    (
        "a class beyond those of the model",
        classifier,
        sequence_classification,
        {"input_ids": IDS, "labels": CLASSES + 4},
        (
            r"The column 'labels' holds 4, but the model tells 3 classes or tokens apart, 0 to 2, and -100 is not "
            r"learned\. Number classes from 0 .* \(num_labels=\)"
        ),
    ),
    (
        "a negative class",
        classifier,
        sequence_classification,
        {"input_ids": IDS, "labels": CLASSES - 1},
        r"The column 'labels' holds -1, but the model tells 3 classes or tokens apart, .* Number classes from 0",
    ),
    (
        "floating labels of tokens",
        language_model,
        causal_lm,
        {"input_ids": IDS, "labels": IDS.float()},
        (
            r"The column 'labels' holds float32, but classes and tokens are integers\. Store them as integers: "
            r"labels\.astype\('int64'\)"
        ),
    ),
    (
        "floating tokens",
        classifier,
        sequence_classification,
        {"input_ids": IDS.float(), "labels": CLASSES},
        (
            r"The column 'input_ids' holds float32, but the tokens of a text are integers\. Keep them .* "
            r"ids\.astype\('int64'\)"
        ),
    ),
    (
        "a text longer than the positions",
        classifier,
        sequence_classification,
        {"input_ids": LONG, "labels": CLASSES},
        (
            r"Texts have 9 tokens, but BertForSequenceClassification has 8 positions\. Cut them .* truncation=True, "
            r"max_length=8\), or prepare_tokens with length=8\), or load a base that has more positions"
        ),
    ),
    (
        "a text longer than the positions of a model that begins at another",
        partial(classifier, RobertaForSequenceClassification, RobertaConfig),
        sequence_classification,
        {"input_ids": LONG[:, :8].clamp(min=2), "labels": CLASSES},
        r"Texts have 8 tokens, but RobertaForSequenceClassification has 6 positions\. Cut them",
    ),
    (
        "a column of labels with another name",
        classifier,
        sequence_classification,
        {"input_ids": IDS, "label": CLASSES},
        (
            r"needs the column 'labels', but the batch has input_ids, label\. If 'label' is that column, call it "
            r"'labels' in the data; name it in label_columns or feature_columns"
        ),
    ),
    (
        "no rejected answers",
        language_model,
        dpo,
        {name: value for name, value in PAIRS.items() if "chosen" in name},
        (
            r"dpo needs the column 'rejected_labels', but the batch has chosen_input_ids, chosen_labels\. A row has "
            r"both answers, in columns chosen_\.\.\. and rejected_\.\.\. Add it to the data, and name it in label"
        ),
    ),
    (
        "floating numbers of classes",
        classifier,
        sequence_classification,
        {"input_ids": IDS, "labels": CLASSES.float()},
        (
            r"float32 \(4,\) do not fit logits float32 \(4, 3\); there must be a share, float32, for each class"
            r", or an integer for each row, the number of it.* Classes are integers: labels\.astype\('int64'\)"
        ),
    ),
    (
        "a share above 1",
        language_model,
        partial(causal_lm, label_smoothing=2),
        TEXTS,
        (
            r"label_smoothing=2, but it must be a number of at least 0 and of at most 1\. Give the step a number: "
            r"step=functools\.partial\(causal_lm, label_smoothing=0\.1\)\."
        ),
    ),
    (
        "a text for a number",
        language_model,
        partial(dpo, beta="x"),
        PAIRS,
        r"beta='x', but it must be a number above 0\. Give .*: step=functools\.partial\(dpo, beta=0\.1\)\.",
    ),
]


@pytest.mark.parametrize(
    ("make", "step", "batch", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_a_model_cannot_take_is_told(
    make: Callable[[], Any], step: Any, batch: dict[str, torch.Tensor], message: str
) -> None:
    model = make()
    with pytest.raises(EstimatorError, match=message):
        step(model, batch)


def search(step: Any, make: Callable[[], Any], columns: list[str]) -> GridSearch:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(model=make(), step=step, optimizer=torch.optim.SGD, optimizer_params=params)

    return GridSearch(
        InlineBackend(), MemoryStore(), estimator, {"lr": hp_choice([0.1])}, num_epochs=1, validation=0.5,
        feature_columns=[name for name in columns if name.endswith("ids")], evaluation_metric="loss",
        label_columns=[name for name in columns if not name.endswith("ids")], progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_search_tells_it_before_it_begins(case: Any) -> None:
    _, make, step, batch, message = case
    with pytest.raises(TrialError, match=message):
        search(step, make, list(batch)).check({name: column.numpy() for name, column in batch.items()})


@pytest.mark.parametrize("fault", [0, 1, 2, 3, 5, 6, 7])
def test_faults_that_end_the_process_on_a_gpu_are_found_before_the_computation(
    fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, make, step, batch, message = CASES[fault]
    kind = type(make().get_base_model() if step in (causal_lm, dpo) else make())

    def unreachable(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model was run")

    monkeypatch.setattr(kind, "forward", unreachable)
    with pytest.raises(TrialError, match=message):
        search(step, make, list(batch)).check({name: column.numpy() for name, column in batch.items()})


def test_rows_of_which_nothing_is_learned_are_warned_of_and_named_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch = {"input_ids": IDS, "labels": torch.full_like(IDS, -100)}
    made = search(causal_lm, language_model, list(batch))
    with pytest.raises(
        TrialError,
        match=r"val_loss was no number .* train and validate on rows .* at least one label other than -100",
    ):
        made.fit({name: column.numpy() for name, column in batch.items()})
    assert "Nothing is learned of the first rows, whose weight in the loss is 0" in caplog.text
    assert "look at the labels" in caplog.text
    caplog.clear()
    made.check({"input_ids": IDS.numpy(), "labels": IDS.numpy()})
    assert "Nothing is learned" not in caplog.text
