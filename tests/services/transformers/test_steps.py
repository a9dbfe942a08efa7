"""Steps against transformers' own losses, and trained by searches, on small models without pretrained weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.transformers import (  # noqa: E402
    causal_lm,
    dpo,
    dpo_reference,
    sequence_classification,
    token_classification,
)

WORDS = 40

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def llama(**config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **sizes, **config))


def bert(kind: Any = BertForSequenceClassification, **config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return kind(BertConfig(vocab_size=WORDS, **sizes, **without_dropout, **config))


def padded(rows: int = 4, length: int = 9, seed: int = 0) -> dict[str, torch.Tensor]:
    """Rows of several lengths; behind its end, a row is padded with token 2, which is among its words, too."""
    random = np.random.default_rng(seed)
    ends = torch.from_numpy(random.integers(2, length + 1, rows))
    mask = (torch.arange(length) < ends[:, None]).long()
    ids = torch.from_numpy(random.integers(0, WORDS, (rows, length))).where(mask.bool(), 2)
    ids[0, 1] = 2
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask.bool(), -100)}


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        gradient for gradient in torch.autograd.grad(loss, trained, allow_unused=True) if gradient is not None
    ]


LORA = {
    "lora": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    "dora": lambda: peft.LoraConfig(r=4, use_dora=True, target_modules=["down_proj"], task_type="CAUSAL_LM"),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("adapter", [None, *LORA])
def test_language_models_have_the_loss_of_transformers(adapter: str | None) -> None:
    model, batch = llama(), padded()
    if adapter is not None:
        model = peft.get_peft_model(model, LORA[adapter]())
    theirs = model(**batch).loss
    ours = causal_lm(model, batch)
    assert torch.equal(ours["loss"], theirs)
    first = 0 if adapter == "prompt" else 1  # which is told from the prompt, if there is one
    assert ours["weight"] == int((batch["labels"][:, first:] != -100).sum())
    for mine, other in zip(gradients(model, ours["loss"]), gradients(model, theirs), strict=True):
        assert torch.equal(mine, other)


def test_classes_of_tokens_have_the_loss_of_transformers() -> None:
    model, batch = bert(BertForTokenClassification, num_labels=5), padded()
    batch["labels"] = batch["labels"].where(batch["labels"] == -100, batch["labels"] % 5)
    assert torch.equal(token_classification(model, batch)["loss"], model(**batch).loss)


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (3, torch.tensor([0, 2, -100, 1])),
        (3, torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])),
        (1, torch.tensor([0.5, -1, 2, 3])),
    ],
)
def test_classes_and_values_of_rows_have_the_loss_of_transformers(classes: int, labels: torch.Tensor) -> None:
    model, batch = bert(num_labels=classes), {**padded(), "labels": labels}
    ours = sequence_classification(model, batch)["loss"]  # before transformers notes the kind of problem
    assert torch.equal(ours, model(**batch).loss)
    assert torch.equal(sequence_classification(model, batch)["loss"], ours)


def test_packed_texts_do_not_see_each_other() -> None:
    model = llama().train()
    texts = [torch.arange(3) + 4, torch.arange(5) + 9]
    alone = [causal_lm(model, {"input_ids": text[None], "labels": text[None]}) for text in texts]
    total = sum(result["loss"] * result["weight"] for result in alone)
    row = torch.cat([*texts, torch.tensor([2, 2])])
    labels = torch.cat([*texts, torch.tensor([-100, -100])])
    labels[3] = -100  # the first token of a text is told from none
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4, 0, 1])
    batch = {"input_ids": row[None], "labels": labels[None]}
    packed = causal_lm(model, {**batch, "position_ids": positions[None]})
    assert packed["weight"] == 6
    torch.testing.assert_close(packed["loss"] * packed["weight"], total, rtol=1e-6, atol=0)
    assert causal_lm(model, batch)["loss"].item() != pytest.approx(packed["loss"].item(), rel=1e-4)


def pairs() -> dict[str, torch.Tensor]:
    chosen, rejected = padded(length=9), padded(length=7, seed=1)
    chosen["labels"][:, 0] = rejected["labels"][:, 0] = -100  # the question
    rejected["labels"][0] = -100
    return {
        f"{name}_{key}": value
        for name, batch in (("chosen", chosen), ("rejected", rejected))
        for key, value in batch.items()
    }


def log_probabilities(model: Any, batch: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """As TRL defines them: log-softmax at each target, summed over those that count."""
    logits = model(
        input_ids=batch[f"{name}_input_ids"], attention_mask=batch[f"{name}_attention_mask"]
    ).logits[:, -batch[f"{name}_labels"].shape[1] :]
    labels = batch[f"{name}_labels"][:, 1:]
    each = logits[:, :-1].log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return (each * (labels != -100)).sum(1)


@pytest.mark.parametrize("adapter", LORA)
def test_the_reference_of_preferences_is_the_model_without_adapters(adapter: str) -> None:
    base, batch = llama(), pairs()
    untouched = copy.deepcopy(base)
    model = peft.get_peft_model(base, LORA[adapter]()).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    first.requires_grad_(adapter == "prompt")  # one part of an adapter is not trained, and stays so
    before = [parameter.requires_grad for parameter in model.parameters()]
    attributes = set(vars(model))
    result = dpo(model, batch, beta=0.3)
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert set(vars(model)) == attributes
    assert all(module.training for module in model.modules())

    policy, reference = (
        [log_probabilities(each, batch, name) for name in ("chosen", "rejected")]
        for each in (model, untouched)
    )
    margin = 0.3 * ((policy[0] - policy[1]) - (reference[0] - reference[1]))
    torch.testing.assert_close(result["loss"], -torch.nn.functional.logsigmoid(margin).mean())
    torch.testing.assert_close(result["margin"], margin.mean().detach())
    assert (reference[1][0], result["loss"].requires_grad) == (0, True)
    columns = dpo_reference(untouched.requires_grad_(False), batch)
    assert torch.equal(dpo(model, {**batch, **columns}, beta=0.3)["loss"], result["loss"])


def test_a_model_that_is_trained_beside_its_adapters_is_no_reference() -> None:
    model = peft.get_peft_model(llama(), LORA["lora"]())
    model.base_model.model.model.norm.weight.requires_grad_(True)
    with pytest.raises(
        EstimatorError,
        match=r"no reference: 'model\.norm\.weight' of the model is trained beside its adapters, .* Add the columns "
        r"ref_chosen_logps and ref_rejected_logps, which hopyard\.transformers\.dpo_reference computes",
    ):
        dpo(model, pairs())


def quantized() -> Any:
    """A model whose matrices of eight bits PyTorch can use, but not train through; the classifier has plain ones."""
    model = bert(num_labels=3)
    model.bert = torch.ao.quantization.quantize_dynamic(model.bert, {torch.nn.Linear}, dtype=torch.qint8)
    return model.train()


class EightBits(torch.nn.Module):
    """Weights of eight bits, and a step of rounding within a function of its own: with a gradient, or without one."""

    def __init__(self, linear: torch.nn.Linear, trainable: bool) -> None:
        super().__init__()
        self.scale = float(linear.weight.detach().abs().max()) / 127
        self.register_buffer("weight", (linear.weight.detach() / self.scale).round().to(torch.int8))
        self.trainable = trainable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            return x @ (self.weight.to(x.dtype) * self.scale).T


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
def test_a_quantised_model_is_refused_where_gradients_must_pass_through_it() -> None:
    batch = {**padded(), "labels": torch.tensor([0, 2, 1, 1])}
    model = quantized()
    model.bert.requires_grad_(True)
    with pytest.raises(
        EstimatorError,
        match=r"No gradient passes through the quantised weights of 13 modules of the model, to what is trained "
        r"before: bert\.encoder\.layer\.0\.attention\.self\.query \(Linear of torch\.ao\.nn\.quantized\.dynamic"
        r"\S*\), .* and 10 more\. Load the model in bfloat16 or float32",
    ):
        sequence_classification(model, batch)
    model = quantized()
    model.bert.requires_grad_(False)  # what is behind it can be trained
    loss = sequence_classification(model, batch)["loss"]
    assert len(gradients(model, loss)) == 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_quantised_modules_that_pass_gradients_are_trained_through(checkpointing: bool) -> None:
    batch = {**padded(), "labels": torch.tensor([0, 2, 1, 1])}
    for trainable in (True, False):
        model = bert(num_labels=3)
        if checkpointing:
            model.activation_checkpointing_enable()
        for layer in model.bert.encoder.layer:
            layer.intermediate.dense = EightBits(layer.intermediate.dense, trainable)
        before = [dict(module._forward_hooks) for module in model.modules()]
        if trainable:
            loss = sequence_classification(model.train(), batch)["loss"]
            assert gradients(model, loss)
            assert [dict(module._forward_hooks) for module in model.modules()] == before
        else:
            with pytest.raises(EstimatorError, match=r"intermediate\.dense \(EightBits of"):
                sequence_classification(model.train(), batch)


def test_a_model_that_was_dequantised_is_trained_whatever_it_says_of_itself() -> None:
    model, batch = llama(), padded()
    expected = causal_lm(model, batch)["loss"]
    model.is_quantized, model.quantization_method = True, "gguf"
    model.config.quantization_config = {"quant_method": "gguf"}
    assert torch.equal(causal_lm(peft.get_peft_model(model, LORA["lora"]()), batch)["loss"], expected)
