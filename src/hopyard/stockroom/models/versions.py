"""Versions of registered models: what is noted of each, beside its weights.

Version 3 of ``digits`` is the model ``digits/3`` of the model shelf, whose record leads, beside the tree of its
weights, to one ``json`` object: the note. So whatever is done with models is done with versions: they are committed,
compared, merged, sent, fetched, verified and exported by their names, and weights that are there already are shared.

A number is given once on a branch: the next one is above all that are there, and the last version is not deleted.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from hopyard.errors import CorruptError, UsageError
from hopyard.objects import flatten, unflatten
from hopyard.stockroom.records import Json, ModelRecord, check_name, parsing
from hopyard.stockroom.views.view import ObjectReader
from hopyard.storage.format import check_format, object_header

_KIND = "registered-version"
_NUMBER = re.compile("[1-9][0-9]{0,8}")
MOST = 10**9 - 1
"""The highest number of a version."""


@dataclass(frozen=True)
class Source:
    """Where a registered version came from, as far as that is known.

    Attributes:
        commit: digest of the commit that brought the weights to the stockroom, where they lay on the model shelf
            before. None: they came with the registration.
        model: the name that they had on the model shelf.
        run: id of the run, of a search or of the experiment shelf.
        trial: of a search, the number of the trial.
        epoch: of a search, after how many epochs the trial had these weights.
        data: what it was trained on: name on the data shelf to the digest of its content; of a search that is in a
            store, ``train`` to the fingerprint of the dataset.
    """

    commit: str | None = None
    model: str | None = None
    run: str | None = None
    trial: int | None = None
    epoch: float | None = None
    data: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VersionNote:
    """What is noted of a version.

    Attributes:
        description: any text.
        labels: words for people, as ``"production"``.
        params: plain values by name.
        metrics: numbers by name.
        source: where it came from.
        registered: when: ISO 8601, UTC.
        author: who registered it: ``"Name <address>"``.
        files: of a model of a search, what ``load_model`` needs beside the weights: name to digest and bytes.
        state: the folder among them into which the weights go; None: there are none, or they are among the files.
    """

    description: str
    labels: tuple[str, ...]
    params: dict[str, Any]
    metrics: dict[str, float]
    source: Source
    registered: str
    author: str
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    state: str | None = None

    def to_json(self) -> Json:
        """The note as a ``json`` object holds it."""
        written = {each.name: getattr(self, each.name) for each in fields(self)}
        written |= {"labels": list(self.labels), "source": asdict(self.source)}
        written |= {name: flatten(written[name])[1] for name in ("params", "metrics")}
        written["files"] = {name: list(entry) for name, entry in self.files.items()}
        return {"format": object_header(_KIND), **written}


def read_note(objects: ObjectReader, record: ModelRecord, name: str) -> VersionNote:
    """The note of a version; ``name`` is for messages.

    Raises:
        CorruptError: it is not what was written; FormatError: a newer version of Hopyard wrote it.
    """
    assert record.about is not None
    value = objects.json(record.about)
    try:
        check_format(value["format"], _KIND, where=f"the note of the version {name}")
        return _parsed(value)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"what is noted of the registered version {name!r} cannot be read ({type(error).__name__}: {error}). Run "
            "`hopyard stock verify`, which lists all that is damaged; then fetch it from a remote that has it."
        ) from error


def _parsed(value: Json) -> VersionNote:
    params, metrics = (unflatten({}, value[name]) for name in ("params", "metrics"))
    if not isinstance(params, dict) or any(type(metric) is not float for metric in metrics.values()):
        raise TypeError("its parameters are no dict, or its metrics no numbers")
    datetime.fromisoformat(value["registered"])
    return VersionNote(
        description=parsing.text(value["description"]),
        labels=tuple(map(parsing.text, value["labels"])),
        params=params,
        metrics=metrics,
        source=_source(value["source"]),
        registered=value["registered"],
        author=parsing.text(value["author"]),
        files={
            parsing.text(name): (parsing.digest(digest), parsing.whole(size))
            for name, (digest, size) in value["files"].items()
        },
        state=None if value["state"] is None else parsing.text(value["state"]),
    )


def _source(value: Json) -> Source:
    parsing.digest_or_none(value["commit"])
    for name in ("model", "run"):
        if value[name] is not None:
            parsing.text(value[name])
    if value["trial"] is not None:
        parsing.whole(value["trial"])
    if type(value["epoch"]) not in (int, float, type(None)):
        raise TypeError("its epoch is no number")
    for digest in value["data"].values():
        parsing.text(digest)
    return Source(**value)


def path_of(name: str, number: int) -> str:
    """The name on the model shelf of a version: ``digits/3``."""
    return f"{name}/{number}"


def split_path(path: str) -> tuple[str, int] | None:
    """Name and number that a name on the model shelf has if it is that of a version; None: it cannot be one's."""
    name, slash, number = path.rpartition("/")
    return (name, int(number)) if slash and name and _NUMBER.fullmatch(number) else None


def check_registered_name(name: Any) -> str:
    """The name of a registered model, if it can be one.

    Raises:
        UsageError: it cannot be; says why.
    """
    text = check_name(name, "A registered model")
    if text.startswith("/") or text.endswith("/"):
        raise UsageError(
            f"A registered model was given the name {text!r}, but names neither begin nor end with a "
            "slash. Leave it out."
        )
    if _NUMBER.fullmatch(text.rpartition("/")[2]):
        raise UsageError(
            f"A registered model was given the name {text!r}, but its last part is a number, as that of a version is: "
            "digits/3. Give a name without it; versions are numbered one by one."
        )
    check_name(path_of(text, MOST), "A version of the registered model")
    return text
