"""Direct preference optimisation: a step that has a model prefer one of two answers.

Source: Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward Model", 2023,
equation 7; with ``label_smoothing``, Mitchell, "A note on DPO with noisy preferences", 2023, equation 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError
from hopyard.training.torch.forward import KnownStep, step_of
from hopyard.training.transformers import faults
from hopyard.training.transformers.steps import (
    column,
    inner,
    logits_of,
    losses_of,
    option,
    outputs_of,
    shifted,
)

_ANSWERS = ("chosen", "rejected")


def _check(model: nn.Module, batch: Batch) -> None:
    """Look at a batch before it is computed."""
    for answer in _ANSWERS:
        if found := faults.of_arguments(inner(model), _arguments(batch, answer), f"{answer}_"):
            raise EstimatorError(found)


@step_of(KnownStep(outputs_of, _check))
def dpo(model: nn.Module, batch: Batch, *, beta: float = 0.1, label_smoothing: float = 0.0) -> dict[str, Any]:
    """Step of direct preference optimisation: the model is to prefer the chosen answer to the rejected one by more than
    a reference does.

    The reference is what columns ``ref_chosen_logps`` and ``ref_rejected_logps`` (n,) say; without them it is the
    model without its adapters, in evaluation mode, if it is one of PEFT's.

    Args:
        model: gives ``logits`` (n, length, vocabulary).
        batch: ``chosen_input_ids`` and ``chosen_labels`` (n, length), int64, with -100 for the tokens of the question
            and of padding; the same of ``rejected``, of a length of their own. Other columns named so are arguments of
            the model, such as ``chosen_attention_mask``.
        beta: how much a departure from the reference costs.
        label_smoothing: share of pairs whose answers are taken for exchanged, from 0 to 0.5.

    Returns: ``loss``, a mean over pairs; ``accuracy``, the share of pairs whose chosen answer has the larger reward;
        ``chosen_reward``, ``rejected_reward``, and ``margin`` between them.

    Raises:
        EstimatorError: a column is missing, or there is no reference.
    """
    option("dpo", "beta", beta, above=0)
    option("dpo", "label_smoothing", label_smoothing, least=0, most=0.5)
    reference = dpo_reference(model, batch) if f"ref_{_ANSWERS[0]}_logps" not in batch else batch
    rewards = [
        beta * (_log_probabilities(model, batch, answer) - column(reference, f"ref_{answer}_logps", "dpo"))
        for answer in _ANSWERS
    ]
    margin = rewards[0] - rewards[1]
    losses = -logsigmoid(margin) * (1 - label_smoothing) - logsigmoid(-margin) * label_smoothing
    chosen, rejected, between = (value.detach() for value in (*rewards, margin))
    return {
        "loss": losses.mean(),
        "accuracy": between.gt(0).float().mean(),
        "chosen_reward": chosen.mean(),
        "rejected_reward": rejected.mean(),
        "margin": between.mean(),
    }


@torch.no_grad()
def dpo_reference(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """The columns of the reference for ``dpo``: log-probabilities of both answers, without dropout.

    Args:
        model: the reference itself, or one of PEFT's, whose adapters are left out.
        batch: as of ``dpo``.

    Returns: ``ref_chosen_logps`` and ``ref_rejected_logps``, float32 (n,).

    Raises:
        EstimatorError: the model is trained, and not by adapters alone, so that it is no reference.
    """
    with _evaluating(model), _without_adapters(model):
        return {f"ref_{answer}_logps": _log_probabilities(model, batch, answer) for answer in _ANSWERS}


def _log_probabilities(model: nn.Module, batch: Batch, answer: str) -> torch.Tensor:
    """Sum over the learned tokens of an answer, (n,); 0 where there are none."""
    name = f"{answer}_labels"
    labels, arguments = column(batch, name, "dpo"), _arguments(batch, answer)
    logits, labels = shifted(logits_of(model, arguments, f"{answer}_"), labels, arguments, "dpo")
    losses = losses_of(logits.flatten(0, 1).float(), labels.flatten(), name, reduction="none")
    return -losses.view(labels.shape).sum(dim=1)


def _arguments(batch: Batch, answer: str) -> dict[str, Any]:
    """The arguments of the model for an answer: its columns, but that of labels, without the prefix."""
    prefix, labels = f"{answer}_", f"{answer}_labels"
    return {
        key.removeprefix(prefix): value
        for key, value in batch.items()
        if key.startswith(prefix) and key != labels
    }


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _without_adapters(model: nn.Module) -> Iterator[None]:
    """The model as it was before adapters were put into it.

    Raises:
        EstimatorError: other tensors of it are trained as well.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield
        return
    peft: Any = model
    adapters = getattr(peft, "disable_adapter", None)
    if adapters is None:
        raise EstimatorError(
            "dpo has no reference: the batch has no columns ref_chosen_logps and ref_rejected_logps, and "
            f"{type(model).__name__} has no adapters of PEFT to leave out. Add the columns, which "
            "hopyard.transformers.dpo_reference computes with the model before it is trained, or train adapters: "
            "peft.get_peft_model(model, config)."
        )
    required = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    own = set(vars(model))
    try:
        with adapters():
            trained = [name for name, each in peft.get_base_model().named_parameters() if each.requires_grad]
            if trained:
                raise EstimatorError(
                    f"dpo has no reference: {trained[0]!r} of the model is trained beside its adapters, so the model "
                    "without them is not what it was. Add the columns ref_chosen_logps and ref_rejected_logps, which "
                    "hopyard.transformers.dpo_reference computes with the model before it is trained."
                )
            yield
    finally:
        # PEFT lets all of its adapters require gradients afterwards, and leaves the method of a prompt as an attribute.
        for parameter, requires in required:
            parameter.requires_grad_(requires)
        for name in set(vars(model)) - own:
            delattr(model, name)
