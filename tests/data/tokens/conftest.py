"""A tokenizer that needs no library, and texts for it."""

import itertools

import numpy as np
import pytest


class Letters:
    """Each letter is a token, with its code as the id."""

    eos_token_id = 1
    pad_token_id = 0

    def __call__(self, texts):
        return [[ord(letter) for letter in text] for text in texts]

    def apply_chat_template(self, chat, tokenize, add_generation_prompt):
        assert not tokenize
        said = "".join(f"<{message['role']}>{message['content']};" for message in chat)
        return said + "<assistant>" * add_generation_prompt


def texts_to_prepare(count=120):
    """Texts of 1 to 39 letters; a few are equal."""
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("abcdef"), random.integers(1, 40))) for _ in range(count - 20)]
    return texts + texts[:20]


@pytest.fixture
def letters():
    return Letters()


@pytest.fixture
def texts():
    """``texts(count=120)``: the same each time."""
    return texts_to_prepare


@pytest.fixture
def documents_in():
    """``documents_in(dataset)``: all documents as texts, without their end, in order of the alphabet."""

    def read(dataset):
        found = []
        batch = dataset[:]
        for ids, positions in zip(batch["input_ids"], batch["position_ids"], strict=True):
            begins = [*np.flatnonzero(positions == 0), len(ids)]
            parts = [ids[a:b].tolist() for a, b in itertools.pairwise(begins)]
            found += ["".join(map(chr, part[:-1])) for part in parts if part[0] != Letters.pad_token_id]
            assert all(part[-1] == Letters.eos_token_id for part in parts if part[0] != Letters.pad_token_id)
        return sorted(found)

    return read
