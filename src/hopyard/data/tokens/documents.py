"""Documents of tokens from texts, prompts with completions, and chats, and which of their tokens are learned."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.checks import refusal
from hopyard.data.ragged import Ragged, offsets_of
from hopyard.data.tokens.rows import Tokens
from hopyard.data.tokens.tokenizer import Chat, Tokenizer, Where
from hopyard.errors import DataError, UsageError
from hopyard.wording import shortened

Texts = Sequence[str]

ASSISTANT = "assistant"


class Documents(ABC):
    """Columns that hold documents, and the way from their rows to tokens.

    Attributes:
        columns: the argument that names each, and its name.
        json: those whose rows may be lists of dicts.
    """

    def __init__(self, **columns: str) -> None:
        self.columns: Mapping[str, str] = columns
        self.json: Sequence[str] = ()

    @abstractmethod
    def check(self, tokenizer: Tokenizer) -> None:
        """Raise UsageError if the tokenizer lacks what these documents need."""

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: Mapping[str, Texts], where: Where) -> Tokens:
        """The tokens of some rows.

        Raises:
            DataError: a row is no such document; says where it is.
        """


def documents_of(
    text: str | None, messages: str | None, prompt: str | None, completion: str | None
) -> Documents:
    """The documents in the columns of these names; where none is given, those in ``"text"``.

    Raises:
        UsageError: they do not go together.
    """
    given = {
        name: column
        for name, column in (
            ("text", text), ("messages", messages), ("prompt", prompt), ("completion", completion)
        )
        if column is not None
    }  # fmt: skip
    for name, column in given.items():
        if not isinstance(column, str) or not column:
            raise refusal(name, column, "the name of a column")
    if not given or list(given) == ["text"]:
        return Plain(text=text or "text")
    if list(given) == ["messages"]:
        return Chats(**given)
    if list(given) == ["prompt", "completion"]:
        return Prompts(**given)
    raise UsageError(
        f"{' and '.join(f'{name}={column!r}' for name, column in given.items())} cannot be given "
        f"{'alone' if len(given) == 1 else 'together'}. Name the columns of one kind of documents: text=, messages=, "
        "or prompt= and completion=."
    )


class Plain(Documents):
    """Texts, of which all is learned."""

    def check(self, tokenizer: Tokenizer) -> None:
        tokenizer.check_ends()

    def encode(self, tokenizer: Tokenizer, rows: Mapping[str, Texts], where: Where) -> Tokens:
        ids = _ended(tokenizer.encode(rows[self.columns["text"]], where), tokenizer.eos)
        return Tokens(ids, np.ones(len(ids.values), bool))


class Prompts(Documents):
    """Prompts, each with its completion behind it, which alone is learned."""

    def check(self, tokenizer: Tokenizer) -> None:
        tokenizer.check_ends()

    def encode(self, tokenizer: Tokenizer, rows: Mapping[str, Texts], where: Where) -> Tokens:
        prompts = rows[self.columns["prompt"]]
        whole = [
            prompt + behind for prompt, behind in zip(prompts, rows[self.columns["completion"]], strict=True)
        ]
        ids = _ended(tokenizer.encode(whole, where), tokenizer.eos)
        # Some tokenizers end the prompt with the end token, too; that of the whole is the completion's.
        begins = [
            min(common(before, document), len(document) - 1)
            for before, document in zip(tokenizer.encode(prompts, where), ids, strict=True)
        ]
        return Tokens(ids, np.arange(len(ids.values)) >= np.repeat(ids.offsets[:-1] + begins, ids.lengths))


class Chats(Documents):
    """Chats as the tokenizer's template renders them; what the assistant says is learned.

    Templates that mark it say which tokens those are. Of others it is found by rendering the chat up to each answer,
    without and with it: what differs is the answer.
    """

    def __init__(self, **columns: str) -> None:
        super().__init__(**columns)
        self.json: Sequence[str] = list(columns.values())

    def check(self, tokenizer: Tokenizer) -> None:
        tokenizer.check_chats()

    def encode(self, tokenizer: Tokenizer, rows: Mapping[str, Texts], where: Where) -> Tokens:
        texts = rows[self.columns["messages"]]
        chats = [_chat(text, where, number) for number, text in enumerate(texts)]
        return (self._marked if tokenizer.marks else self._rendered)(tokenizer, chats, where)

    def _marked(self, tokenizer: Tokenizer, chats: Sequence[Chat], where: Where) -> Tokens:
        try:
            ids, learned = tokenizer.encode_chats(chats)
        except Exception:  # the template's: one chat at a time says which it is
            for number, chat in enumerate(chats):
                _rendered(tokenizer, chat, False, where(number))
            raise
        for number, (start, stop) in enumerate(pairwise(ids.offsets.tolist())):
            if not learned[start:stop].any():
                raise DataError(
                    f"The chat template marks nothing of the chat of {where(number)} as the assistant's. Its "
                    "{% generation %} must be around every answer."
                )
        return Tokens(ids, learned)

    def _rendered(self, tokenizer: Tokenizer, chats: Sequence[Chat], where: Where) -> Tokens:
        texts: list[str] = []  # of each chat the whole, then before and after each answer
        numbers: list[int] = []
        for number, chat in enumerate(chats):
            texts += _renderings(tokenizer, chat, where(number))
            numbers += [number] * (len(texts) - len(numbers))
        encoded = iter(tokenizer.encode(texts, lambda text: where(numbers[text]), special=False))
        ids, learned = [], []
        for chat in chats:
            whole = next(encoded)
            is_said = np.zeros(len(whole), bool)
            for message in chat:
                if message["role"] == ASSISTANT:
                    start, stop = common(next(encoded), whole), common(next(encoded), whole)
                    is_said[start:stop] = True
            ids.append(whole)
            learned.append(is_said)
        return Tokens(Ragged.from_rows(ids, np.int32), np.concatenate(learned))


def _chat(text: str, where: Where, number: int) -> Chat:
    try:
        chat = json.loads(text)
    except ValueError:
        chat = None
    is_chat = isinstance(chat, list) and all(isinstance(each, dict) and "role" in each for each in chat)
    if not is_chat or not chat:
        raise DataError(
            f"A chat is a list of messages such as {{'role': 'user', 'content': '...'}}, or such a list as JSON, but "
            f"{where(number)} holds {shortened(text)}. Make chats of such rows, or leave them out."
        )
    # Nothing would be learned of it, and left out unsaid it would be lost.
    if not any(each["role"] == ASSISTANT for each in chat):
        roles = ", ".join(dict.fromkeys(str(each["role"]) for each in chat))
        raise DataError(
            f"The assistant says nothing in the chat of {where(number)} (its roles: {roles}), so that nothing could be "
            "learned of it. Leave such rows out."
        )
    messages: Chat = chat
    return messages


def _renderings(tokenizer: Tokenizer, chat: Chat, where: str) -> list[str]:
    """The chat as a text, then what stands before each answer and what stands there up to its end."""
    whole = _rendered(tokenizer, chat, False, where)
    texts = [whole]
    for number, message in enumerate(chat):
        if message["role"] != ASSISTANT:
            continue
        if not number:
            raise DataError(
                f"The chat of {where} begins with the assistant, and where its answer begins is found by what is "
                f"rendered before it. {_MARKED}, or put a message of the system or the user first."
            )
        before = _rendered(tokenizer, chat[:number], True, where)
        after = _rendered(tokenizer, chat[: number + 1], False, where)
        if not after.startswith(before) or not whole.startswith(after):
            raise DataError(
                f"The chat template does not render the chat of {where} message by message, so that the assistant's "
                f"tokens cannot be found: before message {number} it gives {_end(before)}, with it {_end(after)}, and "
                f"one does not begin the other, or not the whole chat. {_MARKED}."
            )
        texts += [before, after]
    return texts


_MARKED = "Give the tokenizer a chat template that marks answers: {% generation %}...{% endgeneration %}"


def _end(text: str) -> str:
    return repr(text if len(text) <= 40 else f"...{text[-40:]}")


def _rendered(tokenizer: Tokenizer, chat: Chat, generation: bool, where: str) -> str:
    try:
        return tokenizer.render(chat, generation)
    except Exception as error:
        for number, message in enumerate(chat):
            if message.get("content") is None:
                raise DataError(
                    f"The chat template cannot render the chat of {where}: its message {number}, of the role "
                    f"{message['role']!r}, has no content. Give the message a text, which may be empty, or leave the "
                    "row out."
                ) from error
        raise DataError(
            f"The chat template cannot render the chat of {where} ({type(error).__name__}: {error}). Give every chat "
            "the roles that the template wants, in its order, or give the tokenizer another template."
        ) from error


def common(before: npt.NDArray[Any], whole: npt.NDArray[Any]) -> int:
    """How many first tokens two texts have in common, of which one begins the other. A token that holds the end of the
    one and what follows it is not common."""
    count = min(len(before), len(whole))
    differ = np.flatnonzero(before[:count] != whole[:count])
    return int(differ[0]) if len(differ) else count


def _ended(ids: Ragged, eos: int | None) -> Ragged:
    """The documents with the end token behind each, where it is not there."""
    assert eos is not None
    lengths = ids.lengths
    has_end = np.zeros(len(ids), bool)
    has_end[lengths > 0] = ids.values[ids.offsets[1:][lengths > 0] - 1] == eos
    values = np.insert(ids.values, ids.offsets[1:][~has_end], np.int32(eos))
    return Ragged(values, offsets_of(lengths + ~has_end))
