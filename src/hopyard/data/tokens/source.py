"""Rows of tokens as sources, which ``prepare`` takes like any other rows.

Documents are split and ordered by hashes of their content, as ``prepare`` does it with rows, and only then tokenized
and put into rows: rows do not depend on the order in which documents came, nor on what they came in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.data.columns.columns import ColumnData, ConvertedColumns
from hopyard.data.columns.policies import Nulls
from hopyard.data.order import Rows as Numbers
from hopyard.data.preparing.here import sorted_rows
from hopyard.data.preparing.packing import PackedLayout, placed
from hopyard.data.preparing.split import check_flags, check_split, warn_of_equal
from hopyard.data.preparing.survey import Survey
from hopyard.data.ragged import Ragged
from hopyard.data.sources.base import Source
from hopyard.data.sources.collect import SourceFindings, pick
from hopyard.data.tokens.documents import Documents
from hopyard.data.tokens.rows import Tokens, in_rows, windows
from hopyard.data.tokens.tokenizer import Tokenizer
from hopyard.errors import DataError
from hopyard.objects.digests import digest_json

_TEXT_BYTES = 4 << 20  # tokenized at once
_FEWEST_BYTES = 4 << 10  # that a document counts for there
_COLUMNS = ("input_ids", "labels", "position_ids")


@dataclass(frozen=True)
class _Set:
    """Documents of the training or the validation set: rows of these columns, at these positions, in this order."""

    source: Source
    columns: Mapping[str, ColumnData]
    rows: Numbers


class SplitDocuments:
    """The documents of a training and a validation set.

    Args:
        source: columns of texts, and the one that splits them.
        val: the validation set, if it is explicit.
        validation: a share of the documents, or the name of the column that splits them; None: no validation set, or an
            explicit one.
        seed: of the split and of the order.
        names: of the columns of texts.
    """

    def __init__(
        self,
        source: Source,
        val: Source | None,
        validation: float | str | None,
        seed: int,
        names: Sequence[str],
    ) -> None:
        self.sources: list[Source] = [source] if val is None else [source, val]
        self._validation = validation
        self._seed = seed
        self._names = list(names)
        self._sets: list[_Set] | None = None

    @property
    def has_val(self) -> bool:
        """Whether there is a validation set."""
        return len(self.sources) > 1 or self._validation is not None

    def fingerprint(self) -> str | None:
        """Digest of the documents; None for one-shot sources until they are collected."""
        found = [source.fingerprint() for source in self.sources]
        return None if None in found else digest_json(found, "hopyard.documents")

    def count(self, split: int) -> int:
        """Documents of the training (0) or the validation set (1), once they are collected."""
        assert self._sets is not None
        return len(self._sets[split].rows)

    def collect(self, spool: Path | None = None) -> None:
        """Read all documents, and split them. Texts that exceed the memory go to files in ``spool``.

        Raises:
            DataError: a document is null or no text, or one of the sets would be empty.
        """
        if self._sets is None:
            found = [source.collect(spool) for source in self.sources]
            for source, each in zip(self.sources, found, strict=True):
                self._check(source, each)
            self._sets = self._split(found[0]) if len(found) == 1 else self._apart(found)

    def _check(self, source: Source, found: SourceFindings) -> None:
        for name, each in found.content.found.items():
            if name not in self._names:
                check_flags(found.schema[name])
            elif each.column.kind != "string":
                raise DataError(
                    f"Column {name!r} holds no texts: it is {found.schema[name]}. Name a column of texts, or make "
                    "texts of it; bytes are made texts by decoding."
                )
            if each.missing:
                first = f", the first is {source.where(each.first[0])}" if each.first else ""
                raise DataError(
                    f"Column {name!r} is null in {Nulls(each.missing)}{first}. Leave such rows out, for example with "
                    f".dropna(subset=[{name!r}]) in pandas."
                )

    def _split(self, found: SourceFindings) -> list[_Set]:
        part = 1 if self._validation is None else self._validation
        places, numbers = placed(found.columns or {}, found.hashes, part, self._seed)
        survey = Survey(part if isinstance(part, float) else None)
        survey.place(places, numbers)
        cut, val_rows = survey.split.cut(explicit=isinstance(part, str))
        if self._validation is not None:
            check_split(self._validation, found.rows, val_rows)
        return [
            self._ordered(self.sources[0], found, places, np.flatnonzero((numbers < cut) == is_val))
            for is_val in (False, True)
        ]

    def _apart(self, found: Sequence[SourceFindings]) -> list[_Set]:
        warn_of_equal(found[0].hashes, found[1].hashes)
        sets = []
        for source, each in zip(self.sources, found, strict=True):
            places, _ = placed(each.columns or {}, each.hashes, 1, self._seed)
            sets.append(self._ordered(source, each, places, np.arange(each.rows)))
        return sets

    def _ordered(self, source: Source, found: SourceFindings, places: Numbers, chosen: Numbers) -> _Set:
        columns = {name: data for name, data in (found.columns or {}).items() if name in self._names}
        layout = PackedLayout(tuple(data.column for data in columns.values()))
        return _Set(source, columns, sorted_rows(layout, columns, places, chosen))

    def batches(self, split: int) -> Iterator[tuple[dict[str, list[str]], Callable[[int], str]]]:
        """The documents of a set in order, some at a time, and where each of these is."""
        assert self._sets is not None
        found = self._sets[split]
        for rows in _batches(found):
            texts = {name: data.take(rows).as_batch().tolist() for name, data in found.columns.items()}  # type: ignore[union-attr]
            yield texts, partial(_where, found.source, rows)


def _where(source: Source, rows: Numbers, number: int) -> str:
    return source.where(int(rows[number])) if source.numbered else "a row"


def _batches(documents: _Set) -> Iterator[Numbers]:
    sizes = np.full(len(documents.rows), 0)
    for data in documents.columns.values():
        assert isinstance(data.values, Ragged)
        sizes += data.values.lengths[documents.rows]
    ends = np.cumsum(np.maximum(sizes, _FEWEST_BYTES))
    yield from np.split(documents.rows, np.flatnonzero(np.diff(ends // _TEXT_BYTES)) + 1)


class TokenSource(Source):
    """The training (0) or the validation set (1) as rows of tokens.

    Attributes:
        done: documents that are tokenized.
    """

    numbered = False

    def __init__(
        self,
        documents: SplitDocuments,
        split: int,
        kind: Documents,
        tokenizer: Tokenizer,
        length: int,
        pack: bool,
        settings: Mapping[str, Any],
    ) -> None:
        self.columns: list[str] = list(_COLUMNS)
        self.settings = settings
        self.one_shot: bool = tokenizer.digest is None  # then only the tokens tell what it does
        self.done: int = 0
        self._documents = documents
        self._split = split
        self._kind = kind
        self._tokenizer = tokenizer
        self._length = length
        self._pack = pack

    def select(self, names: Sequence[str]) -> TokenSource:
        other = copy.copy(self)
        other.columns = list(pick(dict.fromkeys(self.columns), names))
        other._collected = None
        return other

    def fingerprint(self) -> str | None:
        """Digest of the documents, the settings and the tokenizer; where that has none, of the rows."""
        if self._tokenizer.digest is None:
            return super().fingerprint()
        documents = self._documents.fingerprint()
        if documents is None:
            return None
        return digest_json([documents, self._split, self.columns, self.settings], "hopyard.tokens")

    def _collect(self, spool: Path | None) -> SourceFindings:
        self._documents.collect(spool)
        return super()._collect(spool)

    def batches(self) -> Iterator[ConvertedColumns]:
        self._documents.collect()
        self.done = 0
        for documents in windows(self._tokenized(), self._length):
            rows = in_rows(documents, self._length, self._tokenizer.pad or 0, self._pack)
            yield {name: ColumnData(name, "tensor", getattr(rows, name)) for name in self.columns}

    def _tokenized(self) -> Iterator[Tokens]:
        for texts, where in self._documents.batches(self._split):
            tokens = self._kind.encode(self._tokenizer, texts, where)
            if not self._pack:
                self._check_lengths(tokens, where)
            self.done += len(tokens)
            yield tokens

    def _check_lengths(self, tokens: Tokens, where: Callable[[int], str]) -> None:
        lengths = tokens.ids.lengths
        if len(longer := np.flatnonzero(lengths > self._length)):
            raise DataError(
                f"The document of {where(int(longer[0]))} has {lengths[longer[0]]} tokens, but with pack=False a "
                f"document has a row of length={self._length} tokens. Give a larger length= (of the documents read so "
                f"far the longest has {lengths.max()}), leave longer ones out, or cut them with pack=True."
            )
