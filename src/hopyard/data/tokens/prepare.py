"""``prepare_tokens``: texts or chats as a dataset of rows of tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from hopyard.checks import flag, integer
from hopyard.data.preparing.prepare import prepare
from hopyard.data.preparing.prepared import Prepared
from hopyard.data.preparing.request import Watch, reading
from hopyard.data.preparing.split import validation_of
from hopyard.data.schema import unknown_columns
from hopyard.data.sources.base import Source
from hopyard.data.sources.sources import as_source
from hopyard.data.tokens.documents import Documents, documents_of
from hopyard.data.tokens.source import SplitDocuments, TokenSource
from hopyard.data.tokens.tokenizer import Tokenizer
from hopyard.errors import DataError
from hopyard.storage import open_store
from hopyard.storage.base import Store

_log = logging.getLogger("hopyard")
_LENGTH = "Give the tokens of a row, at most as many as the model has positions: length=2048."


def prepare_tokens(
    data: Any,
    tokenizer: Any,
    store: Store | str | os.PathLike[str],
    length: int = 2048,
    *,
    text: str | None = None,
    messages: str | None = None,
    prompt: str | None = None,
    completion: str | None = None,
    pack: bool = True,
    validation: Any = 0.25,
    seed: int = 0,
    val: Any = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Watch | None = None,
    wait: Callable[[float], bool] | None = None,
    announce: Callable[[str], None] = _log.warning,
) -> Prepared:
    """Write texts or chats as rows of tokens into ``store``, or find the dataset that was written before.

    The dataset has three columns (length,) of int32. ``input_ids``: documents one after another, the padding token
    behind the last. ``labels``: the same ids, and -100 for tokens that are not learned: prompts, what others than
    the assistant say, the padding, and a document's first token, which nothing predicts. ``position_ids``: from 0 in
    every document, and in the padding, so that attention can keep documents apart.

    Args:
        data: see :func:`hopyard.data.as_source`.
        tokenizer: of Hugging Face ``transformers`` or ``tokenizers``; or a function from a list of texts to a list of
            ids for each, or to a dict with these as ``"input_ids"``, with the attributes ``eos_token_id`` and
            ``pad_token_id``, and a method ``apply_chat_template`` for chats.
        store: or its path or URL.
        length: tokens of a row.
        text: the column of texts, each a document, with the end token behind it. The default is ``"text"``, where no
            column is named.
        messages: the column of chats, lists of dicts with ``"role"`` and ``"content"``, or such lists as JSON.
            They are rendered by the tokenizer's chat template; what the role ``"assistant"`` says is learned.
        prompt, completion: columns of texts, each prompt a document with its completion and the end token behind it,
            which are learned.
        pack: as many documents in a row as fit. A document longer than a row is cut into pieces, each a document of its
            own from then on; no other is cut. False: a row for each document.
        validation, seed, val: as in :func:`hopyard.data.prepare`, for documents; those that are equal are in one set.
        eos_token_id, pad_token_id: the end token and the padding token; None: the tokenizer's. They may be the same.
        progress, wait, announce: as in ``prepare``.
        watch: as in ``prepare``, with one phase more, ``"tokenizing"``, in which documents are counted.

    Raises:
        DataError: a document breaks a rule; says in which row. ColumnError: unknown columns.
        UsageError: the tokenizer lacks what is needed.
        SettingsError, CorruptError, StorageFullError: as in ``prepare``.
    """
    length, seed, pack = (
        integer("length", length, 2, advice=_LENGTH),
        integer("seed", seed),
        flag("pack", pack),
    )
    kind = documents_of(text, messages, prompt, completion)
    encoder = Tokenizer(tokenizer, eos_token_id, pad_token_id)
    kind.check(encoder)
    encoder.check_fills()
    store = open_store(store)
    documents, share = _split_documents(data, val, validation, seed, kind)
    settings = {
        "tokens": {
            "columns": dict(kind.columns),
            "length": length,
            "pack": pack,
            "tokenizer": encoder.digest,
            "eos_token_id": encoder.eos,
            "pad_token_id": encoder.pad,
            "validation": "explicit" if len(documents.sources) > 1 else share,
        }
    }
    sets = [
        TokenSource(documents, split, kind, encoder, length, pack, settings)
        for split in range(1 + documents.has_val)
    ]
    for source in documents.sources:
        source.watch = reading(watch, source)
    if (
        documents.fingerprint() is None
    ):  # read once; whether the dataset is there is known before it is tokenized
        documents.collect(store.train_data.staging())
    return prepare(
        sets[0], store, None, seed=seed, val=sets[1] if documents.has_val else None, progress=progress,
        watch=None if watch is None else _watching(watch, documents, sets), wait=wait, announce=announce,
    )  # fmt: skip


def _split_documents(
    data: Any, val: Any, validation: Any, seed: int, kind: Documents
) -> tuple[SplitDocuments, float | str | None]:
    share, val = validation_of(validation, val)
    names = list(kind.columns.values())
    source = _selected(data, names, kind, share if isinstance(share, str) else None)
    held = None if val is None else _selected(val, names, kind, None)
    return SplitDocuments(source, held, share, seed, names), share


def _selected(data: Any, names: list[str], kind: Documents, split: str | None) -> Source:
    source = as_source(data)
    if split is not None and split in names:
        raise DataError(f"Column {split!r} splits the data and cannot be one of texts as well.")
    if unknown := [name for name in dict.fromkeys(names) if name not in source.columns]:
        raise unknown_columns(unknown, source.columns)
    if split is not None and split not in source.columns:
        raise unknown_columns([split], source.columns, "validation column")
    wanted = names if split is None else [*names, split]
    source = source if set(source.columns) == set(wanted) else source.select(wanted)
    return source.with_json(kind.json) if kind.json else source


def _watching(watch: Watch, documents: SplitDocuments, sets: list[TokenSource]) -> Watch:
    """``watch`` for ``prepare``, which reads rows while documents are tokenized."""

    def watching(phase: str, done: float, total: int | None) -> None:
        if phase == "reading":
            counts = [documents.count(split) for split in range(len(sets))]
            watch("tokenizing", sum(each.done for each in sets), sum(counts))
        else:
            watch(phase, done, total)

    return watching
