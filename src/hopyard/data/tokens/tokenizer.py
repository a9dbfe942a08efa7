"""Tokenizers: those of Hugging Face ``transformers`` and ``tokenizers``, and any function from texts to ids.

Libraries are recognised by the modules of the tokenizer's type, never imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.checks import integer, refusal
from hopyard.data.ragged import Ragged
from hopyard.errors import DataError, UsageError
from hopyard.objects.digests import digest_json
from hopyard.objects.identity import identity
from hopyard.wording import counted, shortened

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_MOST = np.iinfo(np.int32).max

_LOADED = "Load it first: transformers.AutoTokenizer.from_pretrained({!r})."

Chat = Sequence[Mapping[str, Any]]
"""Messages, each with its ``"role"``."""
Where = Callable[[int], str]
"""Where a document is, as errors say it, by its place among those given."""


class Tokenizer:
    """A tokenizer as ``prepare_tokens`` is given it.

    Args:
        eos_token_id, pad_token_id: its end token and its padding token; None: as it says itself.

    Attributes:
        eos, pad: these tokens; None: there is none.
        digest: the same for tokenizers that give the same tokens; None if that cannot be known.
        marks: whether its chat template marks what the assistant says (``{% generation %}``).
    """

    def __init__(self, tokenizer: Any, eos_token_id: int | None, pad_token_id: int | None) -> None:
        if not callable(tokenizer) and not _is_of("tokenizers", tokenizer):
            raise refusal(
                "tokenizer", tokenizer, "a tokenizer of transformers or tokenizers, or a function from a list of texts "
                "to a list of ids for each", _LOADED.format(tokenizer) if isinstance(tokenizer, str) else "",
            )  # fmt: skip
        self._given = tokenizer
        self._hugging = _is_of("transformers", tokenizer)
        self._settings: str | None = None
        if _is_of("tokenizers", tokenizer):
            self._settings = tokenizer.to_str()
            self._given = type(tokenizer).from_str(self._settings)
            self._given.no_padding()
            self._given.no_truncation()
        self.eos: int | None = self._special("eos_token_id", eos_token_id)
        self.pad: int | None = self._special("pad_token_id", pad_token_id)
        self._template: str | None = self._chat_template()
        self.marks: bool = (
            self._hugging and bool(self._given.is_fast) and bool(_GENERATION.search(self._template or ""))
        )
        self.digest: str | None = self._digest()

    def _special(self, name: str, given: int | None) -> int | None:
        token = getattr(self._given, name, None) if given is None else given
        advice = (
            f"Give the number of the token: {name}=tokenizer.convert_tokens_to_ids({token!r})."
            if isinstance(token, str)
            else f"Give the number that the token has in the vocabulary, or leave {name}= out for the tokenizer's own."
        )
        return None if token is None else integer(name, token, 0, advice=advice)

    def _chat_template(self) -> str | None:
        template = getattr(self._given, "chat_template", None)
        if self._hugging and template is not None:
            template = self._given.get_chat_template()  # of several that which has no name of its own
        return template

    def _digest(self) -> str | None:
        backend = getattr(self._given, "backend_tokenizer", None) if self._hugging else None
        settings = self._settings if backend is None else backend.to_str()
        if settings is None:
            return identity(self._given, "tokenizer").digest
        content = json.loads(settings)
        del (
            content["truncation"],
            content["padding"],
        )  # of the last call; texts are neither cut nor filled here
        kind = f"{type(self._given).__module__}.{type(self._given).__qualname__}"
        return digest_json([kind, content, self._template, self.eos], "hopyard.tokenizer")

    def check_ends(self) -> None:
        """Raise UsageError if it lacks the end token."""
        if self.eos is None:
            raise self._lacks("eos", "end token, which is put behind each text", "")

    def check_fills(self) -> None:
        """Raise UsageError if it lacks the padding token."""
        if self.pad is None:
            fine = "; the end token is good for it, as labels are masked by position"
            raise self._lacks("pad", "padding token, which fills rows at their end", fine)

    def _lacks(self, name: str, what: str, advice: str) -> UsageError:
        here = f"Set tokenizer.{name}_token, or give" if self._hugging else "Give"
        return UsageError(
            f"The tokenizer ({_name(self._given)}) has no {what}. {here} {name}_token_id=...{advice}."
        )

    def check_chats(self) -> None:
        """Raise UsageError if it cannot render chats."""
        if not hasattr(self._given, "apply_chat_template"):
            raise UsageError(
                f"messages= was given with a tokenizer ({_name(self._given)}) that has no apply_chat_template, "
                "which makes chats texts. Give a tokenizer of transformers, or make texts of the chats and say text= "
                "or prompt= and completion=."
            )
        if self._hugging and self._template is None:
            raise UsageError(
                f"messages= was given, but the tokenizer ({_name(self._given)}) has no chat template. Set "
                "tokenizer.chat_template, such as that of the model's chat version."
            )

    def encode(self, texts: Sequence[str], where: Where, special: bool = True) -> Ragged:
        """The ids of each text, int32.

        Args:
            where: says where each text is.
            special: with the tokens that the tokenizer adds, such as one at the begin; functions decide it themselves.

        Raises:
            DataError: the tokenizer failed, or a function gave what no ids are.
        """
        try:
            found = self._called(texts, special)
        except Exception as error:
            raise self._failure(texts, where, special, error) from error
        return Ragged.from_rows([_ids(each) for each in self._as_many(found, texts)], np.int32)

    def _called(self, texts: Sequence[str], special: bool) -> Any:
        if self._settings is not None:
            return [each.ids for each in self._given.encode_batch(list(texts), add_special_tokens=special)]
        if self._hugging:
            return self._given(
                list(texts), add_special_tokens=special, padding=False, truncation=False,
                return_attention_mask=False, return_token_type_ids=False, verbose=False,
            )["input_ids"]  # fmt: skip
        found = self._given(list(texts))
        return found["input_ids"] if isinstance(found, Mapping) else found

    def _failure(self, texts: Sequence[str], where: Where, special: bool, error: Exception) -> DataError:
        """The error for texts that the tokenizer failed on; it is tried on each alone, to say which it is."""
        of = counted(len(texts), "text")
        for number, text in enumerate(texts):
            try:
                self._called([text], special)
            except Exception as its:
                of, error = f"the text of {where(number)}, {shortened(repr(text))}", its
                break
        return DataError(
            f"The tokenizer ({_name(self._given)}) failed on {of} ({type(error).__name__}: {error}). Leave such texts "
            "out, or give another tokenizer."
        )

    def _as_many(self, found: Any, texts: Sequence[str]) -> Any:
        if not hasattr(found, "__len__") or len(found) != len(texts):
            count = f"{len(found)} rows" if hasattr(found, "__len__") else type(found).__name__
            raise DataError(
                f"The tokenizer ({_name(self._given)}) gave {count} for {len(texts)} texts. It must give a list of "
                "ids for each text."
            )
        return found

    def render(self, chat: Chat, generation: bool = False) -> str:
        """The chat as a text; ``generation``: with what stands before an answer of the assistant."""
        text = self._given.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=generation)
        assert isinstance(text, str)
        return text

    def encode_chats(self, chats: Sequence[Chat]) -> tuple[Ragged, npt.NDArray[np.bool_]]:
        """The ids of each chat, and for each whether the assistant says it, where the template ``marks`` that."""
        found = self._given.apply_chat_template(
            list(chats), tokenize=True, return_dict=True, return_assistant_tokens_mask=True, padding=False,
            truncation=False,
        )  # fmt: skip
        masks = Ragged.from_rows(found["assistant_masks"], np.uint8)
        return Ragged.from_rows(found["input_ids"], np.int32), masks.values.astype(np.bool_)


def _is_of(library: str, tokenizer: Any) -> bool:
    return any(base.__module__.partition(".")[0] == library for base in type(tokenizer).__mro__)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _ids(row: Any) -> npt.NDArray[np.int32]:
    ids = np.asarray(row)
    if not ids.size and ids.ndim == 1:
        return np.empty(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > _MOST:
        raise DataError(
            f"The tokenizer gave {shortened(repr(row))} for a text, but it must give a list of ids, integers of 0 or "
            "more."
        )
    return ids.astype(np.int32)
