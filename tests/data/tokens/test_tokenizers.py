"""Tokenizers of the library ``tokenizers``: their tokens, whatever was set on them before."""

import numpy as np
import pytest

from hopyard.data import prepare_tokens
from hopyard.data.tokens.tokenizer import Tokenizer
from hopyard.errors import UsageError
from hopyard.storage import MemoryStore

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["the quick brown fox", "jumps over", "the lazy dog", "", "quick quick quick dog"] * 3


@pytest.fixture
def words():
    """A token for each word, and one at the begin of every text."""
    names = sorted({word for text in TEXTS for word in text.split()})
    vocabulary = {name: number for number, name in enumerate(["<pad>", "<s>", "</s>", *names])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made


def test_texts_are_tokenized_whole_with_what_the_tokenizer_adds(words):
    words.enable_truncation(2)
    words.enable_padding(length=9)
    made = prepare_tokens(
        {"text": TEXTS}, words, MemoryStore(), 8, validation=None, pack=False, eos_token_id=2, pad_token_id=0
    ).train[:]
    found = {tuple(ids[ids > 0].tolist()) for ids in made["input_ids"]}
    number = words.token_to_id
    assert found == {(1, *map(number, text.split()), 2) for text in TEXTS}
    assert words.truncation["max_length"] == 2, "the given tokenizer is as it was"


def test_what_was_set_for_a_call_does_not_make_another_dataset(words):
    digest = Tokenizer(words, 2, 0).digest
    words.enable_truncation(2)
    assert Tokenizer(words, 2, 0).digest == digest
    words.add_tokens(["cat"])
    assert Tokenizer(words, 2, 0).digest != digest


def test_special_tokens_are_to_be_named(words):
    with pytest.raises(
        UsageError, match=r"The tokenizer \(Tokenizer\) has no end token.* Give eos_token_id=\.\.\."
    ):
        prepare_tokens({"text": TEXTS}, words, MemoryStore(), pad_token_id=0)


def test_prompts_begin_with_what_the_tokenizer_adds_once(words):
    made = prepare_tokens(
        {"q": ["the quick"], "a": [" brown dog"]}, words, MemoryStore(), 8, prompt="q", completion="a",
        validation=None, eos_token_id=2, pad_token_id=0,
    ).train[:]  # fmt: skip
    ids = [1, *map(words.token_to_id, ["the", "quick", "brown", "dog"]), 2, 0, 0]
    assert made["input_ids"].tolist() == [ids]
    assert made["labels"].tolist() == [[-100, -100, -100, *ids[3:6], -100, -100]]
    assert np.array_equal(made["position_ids"], [[0, 1, 2, 3, 4, 5, 0, 1]])
