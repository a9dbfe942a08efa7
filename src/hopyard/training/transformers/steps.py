"""Steps for models of transformers: ``fn(model, batch)``, which give loss, weight and metrics of a batch.

A step calls the model with the columns of the batch but ``labels``, and computes the loss from its logits, as
transformers does. The loss is a mean over labels, whose number is the ``"weight"``; where a label is -100, nothing is
learned, and a batch of nothing else has the loss 0. Labels are left out by where they stand, never by what they are:
the token of padding may be a label.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from hopyard.checks import number
from hopyard.data.reading.views import Batch
from hopyard.errors import EstimatorError
from hopyard.training.torch.forward import KnownStep, shape_of, step_of
from hopyard.training.transformers import faults
from hopyard.training.transformers.quantized import gradients_checked
from hopyard.wording import nearest

IGNORED = -100
"""The label of what is not learned."""

_CHANGE = "Change the labels, or the model's head (num_labels=, problem_type=)."


def outputs_of(model: nn.Module, arguments: Mapping[str, Any]) -> Any:
    """Outputs of a model that predicts, without a cache.

    Raises:
        EstimatorError: it has no such parameter.
    """
    known = _parameters(model)
    for name in _unknown(known, arguments):
        raise EstimatorError(
            f"The model is to predict from {', '.join(arguments)}, but {name!r} is no argument of {_name(model)}"
            f"{nearest(name, known, '.')} Say which columns it takes when it predicts: "
            f"inputs={{'input_ids': {next(iter(arguments))!r}}}."
        )
    return _called(model, known, arguments, "")


def _kind(classes_of: Callable[[Any], int]) -> KnownStep:
    """What is known of a step whose labels are of ``classes_of(model)`` classes or tokens; 0: that is not known."""

    def check(model: nn.Module, batch: Batch) -> None:
        """Look at a batch before it is computed: on a GPU, the process is of no use after most of its faults."""
        within, labels = inner(model), batch.get("labels")
        found = faults.of_arguments(within, without(batch, "labels"))
        if not found and isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            found = faults.of_labels("labels", labels, classes_of(within), IGNORED)
        if found:
            raise EstimatorError(found)

    return KnownStep(outputs_of, check)


def _classes(model: Any) -> int:
    """How many classes a model tells apart; 0: that is not known, or labels are none."""
    config = getattr(model, "config", None)
    is_class = getattr(config, "problem_type", None) in (None, "single_label_classification")
    classes = int(getattr(config, "num_labels", 0))
    return classes if is_class and classes > 1 else 0


@step_of(_kind(faults.words_out))
def causal_lm(model: nn.Module, batch: Batch, *, label_smoothing: float = 0.0) -> dict[str, Any]:
    """Step of a language model: each token is told from those before it.

    Args:
        model: gives ``logits`` (n, length, vocabulary).
        batch: ``labels`` (n, length), int64, mostly the ``input_ids``; not shifted. Other columns are arguments of the
            model: ``attention_mask`` of padded rows, or ``position_ids`` of packed ones, which begin at 0 in each text.
        label_smoothing: share of each label that is spread over the vocabulary.

    Returns: ``loss``, ``accuracy`` (share of target tokens with the largest logit) and ``weight`` (their number).

    Raises:
        EstimatorError: a column is missing, is no argument of the model, or has a shape that does not fit.
    """
    labels, arguments = column(batch, "labels", "causal_lm"), without(batch, "labels")
    return _mean("causal_lm", *shifted(logits_of(model, arguments), labels, arguments), label_smoothing)


@step_of(_kind(_classes))
def token_classification(model: nn.Module, batch: Batch, *, label_smoothing: float = 0.0) -> dict[str, Any]:
    """Step of a model that tells the class of each token.

    Args:
        model: gives ``logits`` (n, length, classes).
        batch: ``labels`` (n, length), int64. Other columns are arguments of the model.
        label_smoothing: share of each label that is spread over the classes.

    Returns: ``loss``, ``accuracy`` and ``weight`` (number of labelled tokens).

    Raises:
        EstimatorError: a column is missing, is no argument of the model, or has a shape that does not fit.
    """
    labels = column(batch, "labels", "token_classification")
    logits = logits_of(model, without(batch, "labels"))
    if labels.numel() * logits.shape[-1] != logits.numel():
        raise misfit("token_classification", logits, labels, "one label for each token")
    return _mean("token_classification", logits, labels, label_smoothing)


@step_of(_kind(_classes))
def sequence_classification(
    model: nn.Module, batch: Batch, *, label_smoothing: float = 0.0
) -> dict[str, Any]:
    """Step of a model that tells the class, the classes or the value of a whole text.

    Which of them, ``problem_type`` of the model's configuration says; without it, one logit is a value, and labels
    say the rest: integers are classes, floating numbers are shares of each class.

    Args:
        model: gives ``logits`` (n, classes).
        batch: ``labels``: classes (n,), int64; or (n, classes), float32, from 0 to 1; or values (n,). Other columns are
            arguments of the model.
        label_smoothing: share of each label that is spread over the classes, of which each row has one.

    Returns: ``loss``, ``weight`` (number of labelled rows), and, where each row has one class, ``accuracy``.

    Raises:
        EstimatorError: a column is missing, is no argument of the model, or has a shape that does not fit.
    """
    labels = column(batch, "labels", "sequence_classification")
    logits = logits_of(model, without(batch, "labels"))
    return _of_rows(logits, labels, _problem(model, logits, labels), label_smoothing)


def _problem(model: nn.Module, logits: torch.Tensor, labels: torch.Tensor) -> str:
    """What is told of each row, in the words of transformers."""
    given: str | None = getattr(getattr(model, "config", None), "problem_type", None)
    if given is not None:
        return given
    if logits.shape[-1] == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def _of_rows(
    logits: torch.Tensor, labels: torch.Tensor, problem: str, label_smoothing: float
) -> dict[str, Any]:
    name = "sequence_classification"
    if problem == "single_label_classification":
        if labels.is_floating_point() or labels.numel() != len(logits):
            raise misfit(name, logits, labels, "the number of a class, int64 (n,), for each row")
        return _mean(name, logits, labels, label_smoothing)
    if labels.numel() != logits.numel():
        if problem == "regression":
            raise misfit(name, logits, labels, "a value for each row")
        rule = "a share, float32, for each class, or an integer for each row, the number of its class"
        raise misfit(name, logits, labels, rule, f"{_CHANGE} Classes are integers: labels.astype('int64').")
    logits, labels = logits.float(), labels.reshape(logits.shape).float()
    compare = mse_loss if problem == "regression" else binary_cross_entropy_with_logits
    return {"loss": compare(logits, labels), "weight": len(logits)}


def _mean(step: str, logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float) -> dict[str, Any]:
    """Cross-entropy and accuracy, as means over the labels that are not ignored."""
    option(step, "label_smoothing", label_smoothing, least=0, most=1)
    logits, labels = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1)
    weight = labels.ne(IGNORED).sum()
    count = weight.clamp(min=1)
    total = losses_of(logits, labels, "labels", reduction="sum", label_smoothing=label_smoothing)
    hits = logits.detach().argmax(dim=1).eq(labels).sum()
    return {"loss": total / count, "accuracy": hits / count, "weight": weight}


def losses_of(logits: torch.Tensor, labels: torch.Tensor, column: str, **options: Any) -> torch.Tensor:
    """Cross-entropy of logits (m, classes) with labels (m,) of a column.

    Raises:
        EstimatorError: labels are no classes; says what they are.
    """
    try:
        return cross_entropy(logits, labels, ignore_index=IGNORED, **options)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if found := _found(faults.of_labels, column, labels, logits.shape[-1], IGNORED):
            raise EstimatorError(found) from error
        raise


def _found(look: Callable[..., str], *given: Any) -> str:
    """The fault that ``look`` finds, if any: a device that has failed cannot be asked."""
    try:
        return look(*given)
    except Exception:
        return ""


def option(
    step: str,
    name: str,
    value: Any,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Check an argument of a step, which is a number.

    Raises:
        EstimatorError: it is none, or out of the bounds, as of ``checks.number``.
    """
    advice = f"Give the step a number: step=functools.partial({step}, {name}=0.1)."
    if not isinstance(value, torch.Tensor):
        value = float(value) if isinstance(value, np.number) else value
        number(name, value, least=least, above=above, most=most, advice=advice, error=EstimatorError)


_TEXTS = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids", "inputs_embeds")
"""Arguments of models with one place for each token of the text, of which the first that is given counts."""


def shifted(
    logits: torch.Tensor, labels: torch.Tensor, arguments: Mapping[str, Any], step: str = "causal_lm"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels, each label beside the logits of the token before it: (n, length, vocabulary), (n, length).

    A model may have put tokens of its own before the text, as prompt tuning does; the first one of the text is then
    told from those.

    Args:
        arguments: of the model; its text has as many tokens as labels there must be.

    Raises:
        EstimatorError: there is not one label for each token.
    """
    name = next((each for each in _TEXTS if each in arguments), None)
    text = logits if name is None else arguments[name]
    shape = text.shape[:2]
    fits = logits.ndim == 3 and len(shape) == 2 and labels.numel() == shape.numel()
    if not fits or logits.shape[1] < shape[1]:
        of = "" if name is None else f" of {name} {shape_of(text)}"
        raise misfit(
            step,
            logits,
            labels,
            f"one label for each token{of}: not shifted, and -100 where nothing is to be learned",
            "Make the labels as long as the texts, or load the model with its head, as AutoModelForCausalLM does.",
        )
    labels = labels.reshape(shape)
    labels = nn.functional.pad(labels, (logits.shape[1] - labels.shape[1], 1), value=IGNORED)
    return logits, labels[:, 1:]


def logits_of(model: nn.Module, arguments: Mapping[str, Any], prefix: str = "") -> torch.Tensor:
    """The logits of the model, called with ``arguments``, by the names of its parameters.

    Args:
        prefix: of the names of the columns that they are.

    Raises:
        EstimatorError: the model has no such parameter, gives no logits, is quantised and cannot be trained through, or
            cannot take the tokens.
    """
    known = _parameters(model)
    for name in _unknown(known, arguments):
        raise EstimatorError(
            f"The batch has the column {name!r}, which is no argument of {_name(model)}{nearest(name, known, '.')} "
            f"Name the columns that it takes in feature_columns, and `labels` in label_columns. Its arguments are "
            f"{', '.join(known)}."
        )
    with gradients_checked(model):
        outputs = _called(model, known, arguments, prefix)
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise EstimatorError(
            f"{_name(model)} gave {type(outputs).__name__} without logits, from which the step computes the loss. Load "
            "the model with its head, as AutoModelForCausalLM, AutoModelForSequenceClassification or "
            "AutoModelForTokenClassification does."
        )
    return logits


def _unknown(known: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Arguments that are none of a model with these parameters; a model without any takes all."""
    return [name for name in arguments if known and name not in known]


def _called(model: nn.Module, known: Sequence[str], arguments: Mapping[str, Any], prefix: str) -> Any:
    """Outputs of a model with these parameters.

    Raises:
        EstimatorError: tokens are none of the model's, or too many.
    """
    # Nothing is generated, and with a cache, transformers would not see that rows are packed.
    keywords = {"use_cache": False, **arguments} if "use_cache" in known else dict(arguments)
    try:
        return model(**keywords)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if found := _found(faults.of_arguments, inner(model), arguments, prefix):
            raise EstimatorError(found) from error
        raise


def _parameters(model: nn.Module) -> Sequence[str]:
    """Names of the arguments of the model within wrappers, as PEFT's takes anything; none of a model that does so."""
    named = inspect.signature(inner(model).forward).parameters.values()
    return [each.name for each in named if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]


def inner(model: nn.Module) -> Any:
    """The model within wrappers of ``torch.compile``, PEFT and ensembles."""
    wrapped: Any = model
    while True:
        if hasattr(wrapped, "_orig_mod"):
            wrapped = wrapped._orig_mod
        elif hasattr(wrapped, "get_base_model"):
            wrapped = wrapped.get_base_model()
        else:
            return wrapped


def _name(model: nn.Module) -> str:
    return type(inner(model)).__name__


_READ = ("labels", "chosen_labels", "rejected_labels", "ref_chosen_logps", "ref_rejected_logps")
"""The columns that steps read."""


def column(batch: Batch, name: str, step: str) -> torch.Tensor:
    """A column of the batch.

    Raises:
        EstimatorError: there is none of that name.
    """
    if name not in batch:
        near = get_close_matches(name, [each for each in batch if each not in _READ], n=1, cutoff=0.5)
        advice = "Add it to the data, and name"
        if near:
            advice = f"If {near[0]!r} is that column, call it {name!r} in the data; name"
        elif step == "dpo" and "ref" not in name:
            advice = (
                "A row has both answers, in columns chosen_... and rejected_... Add it to the data, and name"
            )
        raise EstimatorError(
            f"{step} needs the column {name!r}, but the batch has {', '.join(batch)}. {advice} it in label_columns or "
            "feature_columns."
        )
    value: torch.Tensor = batch[name]
    return value


def without(batch: Batch, name: str) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key != name}


def misfit(
    step: str,
    logits: torch.Tensor,
    labels: torch.Tensor,
    rule: str,
    advice: str = _CHANGE,
) -> EstimatorError:
    return EstimatorError(
        f"{step}: labels {shape_of(labels)} do not fit logits {shape_of(logits)}; there must be {rule}. {advice}"
    )
