"""Arguments of ``prepare``, checked as far as they can be without reading the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hopyard.checks import choice, integer
from hopyard.data.columns.policies import added_columns
from hopyard.data.manifest import FORMAT_VERSION
from hopyard.data.preparing.exchange import FrameSource
from hopyard.data.preparing.prepared import check_labels
from hopyard.data.preparing.split import validation_of, warn_of_overlap
from hopyard.data.schema import unknown_columns
from hopyard.data.sources.collect import SourceFindings
from hopyard.data.sources.sources import Source, as_source
from hopyard.errors import DataError, UsageError
from hopyard.objects.digests import digest_json

Watch: TypeAlias = Callable[[str, int | float, int | None], None]
"""Called with the phase, rows done, and rows in all; where nobody counts rows, with the share as a float, and None."""


@dataclass(frozen=True)
class Request:
    """The arguments of ``prepare``, checked."""

    source: Source
    val: Source | None
    validation: float | str | None
    columns: tuple[list[str] | None, list[str] | None]
    seed: int
    nulls: str
    ragged: str
    compress_sparse: bool = False
    added: tuple[str, ...] = ()
    """Mask and length columns that are made in any case."""

    @property
    def labels(self) -> list[str]:
        return self.columns[1] or []

    @property
    def split_column(self) -> str | None:
        """The column that splits the data."""
        return self.validation if isinstance(self.validation, str) else None

    def settings(self) -> dict[str, Any]:
        """Settings that shape the files, beside the data's content."""
        return {
            "validation": "explicit" if self.val is not None else self.validation,
            "seed": self.seed,
            "nulls": self.nulls,
            "ragged": self.ragged,
            **({"compress_sparse": True} if self.compress_sparse else {}),
            **({"added": sorted(self.added)} if self.added else {}),
            **self.source.settings,
        }

    @contextlib.contextmanager
    def watched(self, watch: Watch | None) -> Iterator[None]:
        """Inside, the sources call ``watch`` with their progress."""
        sources = [source for source in (self.source, self.val) if source is not None]
        for source in sources if watch is not None else []:
            source.watch = reading(watch, source)
        try:
            yield
        finally:
            for source in sources:
                source.watch = None

    def fingerprint(self) -> str | None:
        """Fingerprint of the dataset; None while a source is one-shot and not yet collected."""
        train = self.source.fingerprint()
        if train is None:
            return None
        val = None
        if self.val is not None:
            self._tell_val()
            if (val := self.val.fingerprint()) is None:
                return None
        return self.fingerprint_of(train, val)

    def collect(self, spool: Path | None) -> tuple[SourceFindings, SourceFindings | None]:
        """All rows of both sources; see ``Source.collect``."""
        train = self.source.collect(spool)
        if self.val is None:
            return train, None
        self._tell_val()
        return train, self.val.collect(spool)

    def _tell_val(self) -> None:
        """Set the training rows' columns as expected ones of the validation rows, for columns without a value there."""
        assert self.val is not None
        self.val.expected = self.source.schema()

    def fingerprint_of(self, train: str, val: str | None) -> str:
        """Fingerprint of the dataset of sources that have these fingerprints."""
        content = {"source": train, "val": val, "format": FORMAT_VERSION, **self.settings()}
        return digest_json(content, "hopyard.dataset")


def request_of(
    data: Any,
    validation: Any,
    feature_columns: str | Sequence[str] | None,
    label_columns: str | Sequence[str] | None,
    seed: int,
    nulls: str,
    ragged: str,
    val: Any,
    compress_sparse: bool = False,
    masked: Sequence[str] = (),
) -> Request:
    """The request of a call of ``prepare``; raises errors of the arguments."""
    choice("nulls", nulls, ("error", "fill", "mask"))
    choice("ragged", ragged, ("error", "keep", "pad"))
    seed = integer("seed", seed)
    features, labels = _names(feature_columns), _names(label_columns)
    named = list(dict.fromkeys([*(features or ()), *(labels or ())]))
    share, val = validation_of(validation, val)
    check_labels((data, val), labels or ())
    source = as_source(data, source_names(named, nulls, ragged))
    added = added_columns(named, source.columns, nulls, ragged)
    named = list(dict.fromkeys(added.get(name, name) for name in named))
    # A mask that the data has already says which rows were null; another would have its name.
    masks = {f"{name}_mask": name for name in masked}
    there = [mask for mask in masks if mask in source.columns]
    added |= {mask: name for mask, name in masks.items() if mask not in there}
    named = list(dict.fromkeys([*named, *there])) if named else named
    if compress_sparse and not isinstance(source, FrameSource):
        raise UsageError(
            f"compress_sparse=True was given with data of type {type(data).__name__}, but it is for the vectors of "
            "Spark ML in a Spark DataFrame. Leave it out; other data is stored as dense arrays."
        )
    warn_of_overlap(data, share)
    source = _select(source, named, share if isinstance(share, str) else None)
    val_source = None
    if val is not None:
        val_source = as_source(val, source.columns)
        if unknown := [name for name in source.columns if name not in val_source.columns]:
            raise unknown_columns(unknown, val_source.columns, "validation column")
        val_source = _only(val_source, source.columns)
    return Request(
        source, val_source, share, (features, labels), seed, nulls, ragged, compress_sparse, tuple(added)
    )


def source_names(names: Sequence[str], nulls: str, ragged: str) -> list[str]:
    """The columns to read where ``names`` are asked for: without columns that policies make of others."""
    made = {f"{name}_mask" for name in names if nulls == "mask"}
    made |= {f"{name}_length" for name in names if ragged == "pad"}
    return [name for name in names if name not in made]


def _names(columns: str | Sequence[str] | None) -> list[str] | None:
    return [columns] if isinstance(columns, str) else None if columns is None else list(columns)


def _select(source: Source, named: list[str], split: str | None) -> Source:
    if split is not None and split not in source.columns:
        raise unknown_columns([split], source.columns, "validation column")
    if not named:
        if source.columns == [split]:
            raise DataError(
                f"The data has no column but {split!r}, which splits it. Give data to learn from."
            )
        return source
    if split in named:
        raise DataError(
            f"Column {split!r} splits the data and cannot be a feature or label as well. Remove it there."
        )
    return _only(source, named if split is None else [*named, split])


def _only(source: Source, names: Sequence[str]) -> Source:
    """``source`` with these columns; if it has no others, ``source`` itself, with all that it knows of its rows."""
    return source if set(names) == set(source.columns) else source.select(names)


def reading(watch: Watch | None, source: Source) -> Callable[[int], None] | None:
    """What the source calls with the rows read so far."""
    return None if watch is None else lambda rows: watch("reading", rows, source.rows)
