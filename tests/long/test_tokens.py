"""Rows of tokens with the tokenizers and models of ``transformers``."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hopyard.data import prepare_tokens
from hopyard.data.dataset import Dataset
from hopyard.data.tokens.tokenizer import Tokenizer
from hopyard.errors import DataError, UsageError
from hopyard.storage import MemoryStore

TEXTS = [
    f"{who} {does} the {what}"
    for who in ("Ann", "the fox", "nobody")
    for does in ("sees", "quickly takes", "wants\n")
    for what in ("lazy dog", "moon", "very old house by the sea")
]
PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>\n{% endgeneration %}{% else %}{{ message['content'] }}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATS = [
    [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text[::-1]},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": f"\n{text}"},
    ]
    for text in TEXTS
]


@pytest.fixture
def tokenizer(needs: Callable[[object, str], None]) -> Any:
    """Pairs of bytes, trained on the texts, as a fast tokenizer."""
    needs(importlib.util.find_spec("transformers"), "the package transformers")
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")


def prepared(data: Any, tokenizer: Any, **arguments: Any) -> Dataset:
    return prepare_tokens(
        data, tokenizer, MemoryStore(), **{"length": 64, "validation": None, **arguments}
    ).train


def documents_of(dataset: Dataset) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
    """The ids and the labels of each document."""
    found = []
    batch = dataset[:]
    for ids, labels, positions in zip(
        batch["input_ids"], batch["labels"], batch["position_ids"], strict=True
    ):
        begins = np.flatnonzero(positions == 0)[1:]
        found += list(zip(np.split(ids, begins), np.split(labels, begins), strict=True))
    return [(ids, labels) for ids, labels in found if ids[0]]


def test_texts_are_the_tokens_of_the_tokenizer_and_its_end(tokenizer: Any) -> None:
    tokenizer.model_max_length = 4  # of which it warns, and which a call may cut at
    found = {tuple(ids.tolist()) for ids, _ in documents_of(prepared({"text": TEXTS}, tokenizer))}
    assert found == {(*tokenizer(text)["input_ids"], tokenizer.eos_token_id) for text in TEXTS}


def test_calls_of_a_tokenizer_do_not_make_another_dataset_but_its_template_does(tokenizer: Any) -> None:
    digest = Tokenizer(tokenizer, None, None).digest
    tokenizer(TEXTS[:2], padding=True, truncation=True, max_length=3)
    assert Tokenizer(tokenizer, None, None).digest == digest
    tokenizer.chat_template = PLAIN
    assert Tokenizer(tokenizer, None, None).digest != digest


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_of_chats_what_the_assistant_says_is_learned(tokenizer: Any, template: str) -> None:
    tokenizer.chat_template = template
    assert Tokenizer(tokenizer, None, None).marks == (template == MARKED)
    found = set()
    for ids, labels in documents_of(
        prepared({"messages": CHATS}, tokenizer, length=256, messages="messages")
    ):
        learned = [tokenizer.decode(part[part >= 0]) for part in np.split(labels, np.flatnonzero(labels < 0))]
        found.add((tokenizer.decode(ids), *filter(None, learned)))
    expected = set()
    for chat in CHATS:
        answers = [f"{message['content']}<|im_end|>\n" for message in chat if message["role"] == "assistant"]
        expected.add((tokenizer.apply_chat_template(chat, tokenize=False), *answers))
    assert found == expected


def test_a_template_that_marks_nothing_of_a_chat_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = MARKED.replace("'assistant' %}", "'model' %}")
    with pytest.raises(
        DataError, match=r"The chat template marks nothing of the chat of row \d+ as the assistant's\."
    ):
        prepared({"messages": CHATS}, tokenizer, length=256, messages="messages")


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_a_chat_that_a_template_refuses_is_named(tokenizer: Any, template: str) -> None:
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + template
    )
    chats = [*CHATS[:5], [{"role": "system", "content": "be brief"}, *CHATS[5]]]
    said = "The chat template cannot render the chat of row 5 (TemplateError: no system)."
    with pytest.raises(DataError, match=re.escape(said)):
        prepared({"messages": chats}, tokenizer, length=256, messages="messages")


def test_what_a_tokenizer_lacks_is_said(tokenizer: Any) -> None:
    said = "no chat template. Set tokenizer.chat_template, such as that of the model's chat version."
    with pytest.raises(UsageError, match=re.escape(said)):
        prepared({"messages": CHATS}, tokenizer, messages="messages")
    tokenizer.pad_token = None
    said = (
        "no padding token, which fills rows at their end. Set tokenizer.pad_token, or give pad_token_id=...;"
    )
    with pytest.raises(UsageError, match=re.escape(said)):
        prepared({"text": TEXTS}, tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    assert len(documents_of(prepared({"text": TEXTS}, tokenizer))) >= len(TEXTS)
    tokenizer.eos_token = None
    with pytest.raises(
        UsageError, match=r"no end token.* Set tokenizer\.eos_token, or give eos_token_id=\.\.\."
    ):
        prepared({"text": TEXTS}, tokenizer)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_keeps_the_documents_of_a_row_apart_by_their_positions(
    tokenizer: Any, attention: str
) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, attn_implementation=attention, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    dataset = prepared({"text": TEXTS[::3]}, tokenizer)
    batch = {name: torch.from_numpy(values).long() for name, values in dataset[:].items()}
    ids, positions, labels = batch["input_ids"], batch["position_ids"], batch["labels"]
    with torch.no_grad():
        together = model(ids, position_ids=positions, use_cache=False).logits
        losses, several = [], 0
        for row in range(len(ids)):
            begins = [*torch.nonzero(positions[row] == 0).flatten().tolist(), len(ids[row])]
            several += len(begins) > 3
            for start, stop in pairwise(begins):
                alone = model(ids[row : row + 1, start:stop], use_cache=False).logits[0]
                torch.testing.assert_close(together[row, start:stop], alone, atol=1e-5, rtol=1e-4)
                if ids[row, start]:
                    predicted = alone[:-1].log_softmax(-1)
                    losses += predicted.gather(1, ids[row, start + 1 : stop, None])[:, 0].neg().tolist()
        loss = model(ids, position_ids=positions, labels=labels, use_cache=False).loss
        flat = model(ids.reshape(1, -1), position_ids=positions.reshape(1, -1), use_cache=False).logits
        torch.testing.assert_close(flat.reshape(together.shape), together, atol=1e-5, rtol=1e-4)
    assert several, "rows hold several documents"
    assert len(losses) == (labels != -100).sum()
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
