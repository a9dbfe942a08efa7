"""Faults of batches for models of transformers, in words.

They are looked for when a computation has failed, and in the first batch of a check: no batch of a training waits for
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_IDS = ("input_ids", "decoder_input_ids")
_EMBEDDINGS_OF_POSITIONS = ("position_embeddings", "wpe", "embed_positions")


def of_arguments(model: Any, arguments: Mapping[str, Any], prefix: str = "") -> str:
    """What is wrong with the arguments of a model, and what to do about it; empty: nothing is known.

    Args:
        model: one of transformers, or any, without wrappers.
        prefix: of the columns that they are.
    """
    for name in _IDS:
        ids = arguments.get(name)
        if isinstance(ids, torch.Tensor) and (found := _of_ids(model, prefix + name, ids)):
            return found
    return _of_positions(model, arguments)


def _of_ids(model: Any, column: str, ids: torch.Tensor) -> str:
    if ids.is_floating_point():
        return (
            f"The column {column!r} holds {_dtype(ids)}, but the tokens of a text are integers. Keep them as the "
            "tokenizer gives them, or make them integers: ids.astype('int64')."
        )
    words = _words(model)
    wrong = ids[(ids < 0) | (ids >= words)] if words else ids[:0]
    if not wrong.numel():
        return ""
    return (
        f"The column {column!r} holds the token {int(wrong[0])}, but {type(model).__name__} has {words} tokens, 0 to "
        f"{words - 1}. Use the tokenizer of the model; if tokens were added to it, make room for them where the model "
        "is loaded: model.resize_token_embeddings(len(tokenizer))."
    )


def _words(model: Any, embeddings: str = "get_input_embeddings") -> int:
    """How many tokens a model has, by one of its methods; 0: that is not known."""
    try:
        weight = getattr(model, embeddings)().weight
    except (AttributeError, NotImplementedError):
        return 0
    return int(weight.shape[0])


def words_out(model: Any) -> int:
    """How many tokens a language model tells apart; 0: that is not known."""
    return _words(model, "get_output_embeddings")


def _of_positions(model: Any, arguments: Mapping[str, Any]) -> str:
    positions = _positions(model)
    text = next((arguments[name] for name in _IDS if name in arguments), None)
    given = arguments.get("position_ids")
    needed = 0 if text is None or text.ndim < 2 else text.shape[1]
    if isinstance(given, torch.Tensor) and given.numel():
        needed = int(given.max()) + 1
    if not positions or needed <= positions:
        return ""
    return (
        f"Texts have {needed} tokens, but {type(model).__name__} has {positions} positions. Cut them where they are "
        f"tokenized (tokenizer(texts, truncation=True, max_length={positions}), or prepare_tokens with "
        f"length={positions}), or load a base that has more positions."
    )


def _positions(model: Any) -> int:
    """How many positions a model has; 0: that is not known, or they are not counted."""
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding) and name.rpartition(".")[2] in _EMBEDDINGS_OF_POSITIONS:
            # RoBERTa's first position is the number behind that of the padding token, and OPT's is 2.
            first = 0 if part.padding_idx is None else part.padding_idx + 1
            return int(part.num_embeddings - getattr(part, "offset", first))
    return 0


def of_labels(column: str, labels: torch.Tensor, classes: int, ignored: int) -> str:
    """What is wrong with labels of classes or tokens, and what to do about it; empty: nothing is known.

    Args:
        classes: their number; 0: that is not known.
    """
    if labels.is_floating_point():
        return (
            f"The column {column!r} holds {_dtype(labels)}, but classes and tokens are integers. Store them as "
            "integers: labels.astype('int64')."
        )
    wrong = labels[(labels != ignored) & ((labels < 0) | (labels >= classes))] if classes else labels[:0]
    if not wrong.numel():
        return ""
    return (
        f"The column {column!r} holds {int(wrong[0])}, but the model tells {classes} classes or tokens apart, 0 to "
        f"{classes - 1}, and {ignored} is not learned. Number classes from 0 (numpy.unique(labels, "
        "return_inverse=True)[1]) and load the model with as many (num_labels=); tokens are those of its tokenizer."
    )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
