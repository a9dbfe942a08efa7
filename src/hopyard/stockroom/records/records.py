"""Records: what the root map of a commit says of each thing on a shelf.

The map's keys are pairs (shelf, name); its values are JSON objects with one key, the kind of the record.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from hopyard.errors import CorruptError, UsageError
from hopyard.stockroom.records import parsing
from hopyard.wording import shown

Shelf: TypeAlias = Literal["data", "model", "experiment", "run"]
SHELVES: tuple[Shelf, ...] = ("data", "model", "experiment", "run")

Json: TypeAlias = dict[str, Any]

_LONGEST_NAME = 255  # bytes


@dataclass(frozen=True)
class ColumnRecord:
    """A column: keyed samples of one kind.

    Attributes:
        kind: ``"tensor"``, ``"string"`` or ``"bytes"``.
        dtype: of tensors, as ``objects.tensors`` names it; ``"U8"`` for strings and bytes.
        shape: of a tensor; None where lengths differ from sample to sample. ``()`` for strings and bytes.
        nested: keys are pairs (sample, part).
        bits: 0; early versions wrote how they chose where fragments end.
        pages: root of the map from each fragment's first key to ``[fragment, last key, samples, bytes]``.
        count: samples.
        nbytes: of all samples' values.
    """

    kind: Literal["tensor", "string", "bytes"]
    dtype: str
    shape: tuple[int | None, ...]
    nested: bool
    bits: int
    pages: str | None
    count: int
    nbytes: int

    def to_json(self) -> Json:
        return {"column": {**vars(self), "shape": list(self.shape)}}

    @property
    def settings(self) -> tuple[Any, ...]:
        """The settings that all samples of a column share; columns of different settings cannot be merged."""
        return self.kind, self.dtype, self.shape, self.nested


@dataclass(frozen=True)
class DatasetRecord:
    """A prepared dataset, by reference to its files.

    Attributes:
        manifest: digest of a ``json`` object: the manifest without its files.
        files: root of the map from a file's number to ``{name, size, digest, seal, group_rows}``.
        rows: of all files.
        nbytes: of all files.
    """

    manifest: str
    files: str | None
    rows: int
    nbytes: int

    def to_json(self) -> Json:
        return {"dataset": dict(vars(self))}


@dataclass(frozen=True)
class ModelRecord:
    """A saved model: a tree of tensors and plain values.

    Attributes:
        tree: digest of a ``json`` object: skeleton and tensors.
        nbytes: of all its tensors.
        about: of a registered version, the digest of a ``json`` object: metrics, source, description and so on
            (``models.versions``). None: the model is not one, and its JSON has no such field.
    """

    tree: str
    nbytes: int
    about: str | None = None

    def to_json(self) -> Json:
        return {"model": {key: value for key, value in vars(self).items() if value is not None}}


@dataclass(frozen=True)
class ValueRecord:
    """A plain value: None, bool, int, float, str, or lists and dicts of these, as ``objects.tree`` writes them."""

    value: Any

    def to_json(self) -> Json:
        return {"value": self.value}


@dataclass(frozen=True)
class RunRecord:
    """A run of the experiment shelf.

    Attributes:
        content: digest of a ``json`` object: parameters, series, tags, artifacts, links.
        status: ``"finished"``, ``"failed"``, or ``"running"``: under way when it was stored, or killed.
        started: ISO 8601, UTC.
    """

    content: str
    status: str
    started: str

    def to_json(self) -> Json:
        return {"run": dict(vars(self))}


Record: TypeAlias = ColumnRecord | DatasetRecord | ModelRecord | ValueRecord | RunRecord


def parse(json: Json, where: str) -> Record:
    """The record that ``to_json`` gave; ``where`` names it in errors.

    Raises:
        CorruptError: it is none that this version knows.
    """
    try:
        ((kind, fields),) = json.items()
        if kind == "column":
            return _checked_column(
                ColumnRecord(**{**fields, "shape": parsing.varying_shape(fields["shape"])})
            )
        if kind == "dataset":
            dataset = DatasetRecord(**fields)
            parsing.digest(dataset.manifest), parsing.digest_or_none(dataset.files)
            parsing.whole(dataset.rows), parsing.whole(dataset.nbytes)
            return dataset
        if kind == "model":
            model = ModelRecord(**fields)
            parsing.digest(model.tree), parsing.whole(model.nbytes), parsing.digest_or_none(model.about)
            return model
        if kind == "value":
            if isinstance(fields, dict) and fields.keys() == {"json"}:
                parsing.digest(fields["json"])
            return ValueRecord(fields)
        if kind == "run":
            run = RunRecord(**fields)
            parsing.digest(run.content), parsing.text(run.status)
            datetime.fromisoformat(run.started)
            return run
        raise ValueError(f"kind {kind!r}")
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise CorruptError(
            f"the record of {where} cannot be read ({error}). Run `hopyard stock verify`; if all is well there, a "
            "newer version of Hopyard wrote it: install that."
        ) from error


def _checked_column(column: ColumnRecord) -> ColumnRecord:
    parsing.one_of(column.kind, "tensor", "string", "bytes")
    parsing.dtype(column.dtype)
    if column.kind != "tensor" and (column.shape or column.dtype != "U8"):
        raise ValueError(f"{column.kind}s have no shape or dtype of their own")
    parsing.one_of(column.nested, True, False)
    parsing.digest_or_none(column.pages)
    for number in (column.bits, column.count, column.nbytes):
        parsing.whole(number)
    if (column.pages is None) != (column.count == 0):
        raise ValueError(f"it has {column.count} samples and the pages {column.pages}")
    return column


def thing_of(path: str) -> tuple[Shelf, str]:
    """Shelf and name that ``SHELF/NAME`` says.

    Raises:
        UsageError: it names no shelf, or nothing on it.
    """
    shelf, _, name = path.partition("/")
    if shelf not in SHELVES:
        raise UsageError(
            f"{path!r} names no thing of a shelf. Write SHELF/NAME, with a shelf of {', '.join(SHELVES)}: data/image, "
            "for example. hopyard stock list shows what there is."
        )
    if not name:
        raise UsageError(
            f"{path!r} names a shelf, and no thing on it. Write {shelf}/NAME; hopyard stock list {shelf} shows what "
            "there is."
        )
    return shelf, name


def check_name(name: Any, what: str) -> str:
    """The name of a column, model, value or run, if it is one; ``what`` says of which.

    Raises:
        UsageError: it is no text, empty, too long, or holds characters that cannot be seen.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"{what} was given the name {shown(name)} of type {type(name).__name__}. Names are strings."
        )
    text = str.__str__(name)
    if not text:
        raise UsageError(f"{what} was given an empty name. Give it one of at least one character.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} was given the name {name!r}, which is not valid Unicode. Rename it."
        ) from None
    if size > _LONGEST_NAME:
        raise UsageError(
            f"{what} was given a name of {size} bytes ({text[:40]!r}...), but names have at most {_LONGEST_NAME} in "
            "UTF-8. Shorten it."
        )
    if any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in text):
        raise UsageError(
            f"{what} was given the name {name!r}, which holds control characters. Leave them out: nobody could type it."
        )
    return text
