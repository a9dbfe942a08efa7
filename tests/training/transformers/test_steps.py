"""Steps for models of transformers, on a network that stands for one: losses as their definitions say."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hopyard.errors import EstimatorError
from hopyard.transformers import (
    causal_lm,
    dpo,
    dpo_reference,
    sequence_classification,
    token_classification,
)

WORDS = 7
Step = Callable[..., dict[str, Any]]


class Network(nn.Module):
    """Gives logits of each token, or with ``pooled`` of each row."""

    def __init__(self, outputs: int = WORDS, pooled: bool = False, **config: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.linear = nn.Embedding(WORDS, 5), nn.Linear(5, outputs)
        self.pooled, self.config = pooled, SimpleNamespace(**config)
        self.given: dict[str, Any] = {}

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> Any:
        self.given = {"attention_mask": attention_mask, "position_ids": position_ids}
        hidden = self.words(input_ids)
        if position_ids is not None:
            hidden = hidden + position_ids[..., None]
        logits = self.linear(hidden.mean(dim=1) if self.pooled else hidden)
        return SimpleNamespace(logits=logits)


class Prompted(Network):
    """Gives logits of three tokens of its own, too, which come first."""

    def forward(self, *given: Any, **named: Any) -> Any:
        logits = super().forward(*given, **named).logits
        return SimpleNamespace(logits=nn.functional.pad(logits, (0, 0, 3, 0), value=9.0))


def log_softmax(logits: torch.Tensor) -> np.ndarray[Any, Any]:
    values = logits.detach().numpy().astype("float64")
    values = values - values.max(axis=-1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


def mean_over_labels(
    logits: torch.Tensor, labels: np.ndarray[Any, Any], smoothing: float
) -> tuple[float, int, float]:
    """Loss, number of labels and accuracy, label by label; logits (n, classes), labels (n,)."""
    logs, losses, hits = log_softmax(logits), [], 0
    for row, label in zip(logs, labels, strict=True):
        if label != -100:
            losses.append(-(1 - smoothing) * row[label] - smoothing * row.mean())
            hits += int(row.argmax() == label)
    count = len(losses)
    return sum(losses) / max(count, 1), count, hits / max(count, 1)


labelled = st.lists(
    st.lists(st.sampled_from([-100, *range(WORDS)]), min_size=6, max_size=6), min_size=1, max_size=4
)


@given(labels=labelled, smoothing=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 9))
def test_losses_of_tokens_are_means_over_the_labels_that_are_there(
    labels: list[list[int]], smoothing: float, seed: int
) -> None:
    network, given_labels = Network(), torch.tensor(labels)
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, WORDS, given_labels.shape))
    with torch.no_grad():
        logits = network(ids).logits
    batch = {"input_ids": ids, "labels": given_labels}
    cases: list[tuple[Step, torch.Tensor, torch.Tensor]] = [
        (causal_lm, logits[:, :-1], given_labels[:, 1:]),
        (token_classification, logits, given_labels),
    ]
    for step, told, targets in cases:
        result = step(network, batch, label_smoothing=smoothing)
        loss, weight, accuracy = mean_over_labels(
            told.reshape(-1, WORDS), targets.reshape(-1).numpy(), smoothing
        )
        assert result["loss"].item() == pytest.approx(loss, rel=1e-5, abs=1e-6)
        assert result["weight"].item() == weight
        assert result["accuracy"].item() == pytest.approx(accuracy)


@pytest.mark.parametrize("step", [causal_lm, token_classification])
def test_a_batch_without_labels_has_no_loss_and_no_gradient(step: Step) -> None:
    network, ids = Network(), torch.arange(6).view(1, 6)
    result = step(network, {"input_ids": ids, "labels": torch.full((1, 6), -100)})
    assert (result["loss"].item(), result["weight"].item(), result["accuracy"].item()) == (0, 0, 0)
    result["loss"].backward()
    assert all(not parameter.grad.any() for parameter in network.parameters() if parameter.grad is not None)


def test_columns_are_arguments_of_the_model() -> None:
    network, ids = Network(), torch.arange(6).view(1, 6)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    batch = {"input_ids": ids, "labels": ids, "position_ids": positions}
    packed = causal_lm(network, batch)["loss"]
    assert network.given == {"attention_mask": None, "position_ids": positions}
    assert packed != causal_lm(network, {"input_ids": ids, "labels": ids})["loss"]
    mask = torch.ones(1, 6)
    causal_lm(network, {"input_ids": ids, "labels": ids, "attention_mask": mask})
    assert network.given == {"attention_mask": mask, "position_ids": None}


def test_the_first_token_of_a_text_is_told_from_those_that_a_model_puts_before_it() -> None:
    ids = torch.arange(6).view(1, 6)
    batch = {"input_ids": ids, "labels": ids}
    prompted, alone = causal_lm(Prompted(), batch), causal_lm(Network(), batch)
    assert prompted["weight"] == 6
    expected = (5 * alone["loss"].item() + np.log(WORDS)) / 6
    assert prompted["loss"].item() == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classes_of_rows(smoothing: float) -> None:
    network, ids = Network(3, pooled=True), torch.arange(12).view(4, 3) % WORDS
    labels = torch.tensor([0, -100, 2, 1])
    result = sequence_classification(network, {"input_ids": ids, "labels": labels}, label_smoothing=smoothing)
    loss, weight, accuracy = mean_over_labels(network(ids).logits, labels.numpy(), smoothing)
    assert result["loss"].item() == pytest.approx(loss)
    assert (result["weight"].item(), result["accuracy"].item()) == (weight, pytest.approx(accuracy))


def test_shares_of_classes_and_values_of_rows() -> None:
    ids = torch.arange(12).view(4, 3) % WORDS
    shares = torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 1, 0.5], [0, 1, 0]])
    network = Network(3, pooled=True)
    result = sequence_classification(network, {"input_ids": ids, "labels": shares})
    told, wanted = network(ids).logits.detach().numpy().astype("float64"), shares.numpy()
    each = np.log1p(np.exp(-told)) * wanted + np.log1p(np.exp(told)) * (1 - wanted)
    assert result["loss"].item() == pytest.approx(each.mean(), rel=1e-6)
    assert result["weight"] == 4
    assert "accuracy" not in result

    values = torch.tensor([1, 2, 3, 4])
    network = Network(1, pooled=True)
    expected = ((network(ids).logits.squeeze() - values) ** 2).mean().item()
    assert sequence_classification(network, {"input_ids": ids, "labels": values})[
        "loss"
    ].item() == pytest.approx(expected)


def test_the_configuration_says_what_is_told() -> None:
    ids, labels = torch.arange(6).view(2, 3), torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    network = Network(3, pooled=True, problem_type="regression")
    expected = ((network(ids).logits - labels) ** 2).mean().item()
    assert sequence_classification(network, {"input_ids": ids, "labels": labels})["loss"].item() == (
        pytest.approx(expected)
    )


def pairs(rows: int = 3, lengths: tuple[int, int] = (6, 4), seed: int = 0) -> dict[str, torch.Tensor]:
    """Pairs of answers; the first ones of each kind have no token to be learned."""
    random, batch = np.random.default_rng(seed), {}
    for number, (name, length) in enumerate(zip(("chosen", "rejected"), lengths, strict=True)):
        ids = torch.from_numpy(random.integers(0, WORDS, (rows, length)))
        batch[f"{name}_input_ids"] = ids
        batch[f"{name}_labels"] = ids.where(torch.from_numpy(random.random((rows, length)) < 0.7), -100)
        batch[f"{name}_labels"][:number] = -100
        batch[f"ref_{name}_logps"] = torch.from_numpy(random.normal(-9, 1, rows)).float()
    return batch


def log_probability(network: Network, batch: dict[str, torch.Tensor], name: str) -> np.ndarray[Any, Any]:
    logs = log_softmax(network(batch[f"{name}_input_ids"]).logits)
    labels = batch[f"{name}_labels"].numpy()
    return np.array(
        [
            sum(row[place - 1][label] for place, label in enumerate(targets) if place and label != -100)
            for row, targets in zip(logs, labels, strict=True)
        ]
    )


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.2)])
def test_preferences_are_the_sigmoid_of_what_beats_the_reference(beta: float, smoothing: float) -> None:
    network, batch = Network(), pairs()
    rewards = {
        name: beta * (log_probability(network, batch, name) - batch[f"ref_{name}_logps"].double().numpy())
        for name in ("chosen", "rejected")
    }
    margin = rewards["chosen"] - rewards["rejected"]
    losses = (1 - smoothing) * np.log1p(np.exp(-margin)) + smoothing * np.log1p(np.exp(margin))
    result = dpo(network, batch, beta=beta, label_smoothing=smoothing)
    told = {name: value.item() for name, value in result.items()}
    assert told == {
        "loss": pytest.approx(losses.mean(), rel=1e-5),
        "accuracy": pytest.approx((margin > 0).mean()),
        "chosen_reward": pytest.approx(rewards["chosen"].mean(), rel=1e-5),
        "rejected_reward": pytest.approx(rewards["rejected"].mean(), rel=1e-5),
        "margin": pytest.approx(margin.mean(), rel=1e-5),
    }
    assert [name for name, value in result.items() if value.requires_grad] == ["loss"]


def test_a_reference_is_computed_beforehand_by_the_model_that_is_one() -> None:
    network, batch = Network().requires_grad_(False), pairs()
    given_ones = {name: value for name, value in batch.items() if not name.startswith("ref")}
    network.train()
    found = dpo_reference(network, given_ones)
    assert network.training
    assert list(found) == ["ref_chosen_logps", "ref_rejected_logps"]
    for name in ("chosen", "rejected"):
        expected = log_probability(network, batch, name)
        assert found[f"ref_{name}_logps"].numpy() == pytest.approx(expected, rel=1e-5)
    assert found["ref_rejected_logps"][0] == 0  # nothing is learned there
    assert dpo(network.requires_grad_(True), {**given_ones, **found})["loss"].item() == pytest.approx(
        np.log(2)
    )


IDS = torch.arange(6).view(2, 3)


@pytest.mark.parametrize(
    ("step", "network", "batch", "message"),
    [
        (
            causal_lm,
            Network(),
            {"input_ids": IDS, "label": IDS},
            r"causal_lm needs the column 'labels', but .*, label\. If 'label' is that column, call it 'labels'",
        ),
        (
            causal_lm,
            Network(),
            {"input_ids": IDS, "labels": IDS, "atention_mask": IDS},
            r"'atention_mask', which is no argument of Network; did you mean 'attention_mask'\? .* Its arguments are",
        ),
        (
            causal_lm,
            Network(),
            {"input_ids": IDS, "labels": torch.arange(8).view(2, 4)},
            r"\(2, 4\) do not fit logits float32 \(2, 3, 7\); .* input_ids int64 \(2, 3\): not shifted, .* Make",
        ),
        (
            causal_lm,
            Network(),
            {"input_ids": IDS, "labels": IDS[:, :2]},
            r"causal_lm: labels int64 \(2, 2\) do not fit .* one label for each token of input_ids int64 \(2, 3\)",
        ),
        (
            causal_lm,
            Prompted(),
            {"input_ids": IDS, "labels": torch.arange(8).view(2, 4)},
            r"labels int64 \(2, 4\) do not fit logits float32 \(2, 6, 7\); .* of input_ids int64 \(2, 3\)",
        ),
        (
            dpo,
            Network(),
            {**pairs(), "chosen_labels": pairs()["chosen_labels"][:, :5]},
            r"dpo: labels int64 \(3, 5\) do not fit .* one label for each token of input_ids int64 \(3, 6\)",
        ),
        (
            token_classification,
            Network(),
            {"input_ids": IDS, "labels": torch.arange(2)},
            r"token_classification: labels int64 \(2,\) do not fit .* there must be one label for each token",
        ),
        (
            sequence_classification,
            Network(3, pooled=True),
            {"input_ids": IDS, "labels": torch.ones(2)},
            r"labels float32 \(2,\) do not fit .* there must be a share, float32, for each class, .*\. Change",
        ),
        (
            sequence_classification,
            Network(3, pooled=True),
            {"input_ids": IDS, "labels": torch.ones(2, 3, dtype=torch.int64)},
            r"labels int64 \(2, 3\) do not fit .* there must be the number of a class, int64 \(n,\), for each row",
        ),
        (
            sequence_classification,
            Network(1, pooled=True),
            {"input_ids": IDS, "labels": torch.ones(2, 3)},
            r"labels float32 \(2, 3\) do not fit logits float32 \(2, 1\); there must be a value for each row",
        ),
        (
            causal_lm,
            nn.Embedding(7, 7),
            {"input": IDS, "labels": IDS},
            r"Embedding gave Tensor without logits, .* Load the model with its head, as AutoModelForCausalLM",
        ),
        (
            dpo,
            Network(),
            {name: value for name, value in pairs().items() if name != "chosen_labels"},
            r"dpo needs the column 'chosen_labels', but the batch has chosen_input_ids",
        ),
        (
            dpo,
            Network(),
            {name: value for name, value in pairs().items() if name != "ref_rejected_logps"},
            r"dpo needs the column 'ref_rejected_logps', but the batch has",
        ),
        (
            dpo,
            Network(),
            {name: value for name, value in pairs().items() if not name.startswith("ref")},
            r"the batch has no columns ref_chosen_logps and .* Network has no adapters .* or train adapters",
        ),
    ],
)
def test_batches_that_do_not_fit_are_told_in_words(
    step: Step, network: nn.Module, batch: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(EstimatorError, match=message):
        step(network, batch)
