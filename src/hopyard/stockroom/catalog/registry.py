"""The registry: named models of which each version is kept, with what it reached and where it came from.

A version is a model of the model shelf, ``digits/3``; ``models.versions`` says how it is stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from hopyard.errors import DataError, MissingKeyError, NotFoundError, UsageError
from hopyard.markup import Html, table
from hopyard.objects import save_state
from hopyard.stockroom.catalog.origins import Found, Registering, made_by, on_shelf, with_run
from hopyard.stockroom.catalog.replacing import replaced
from hopyard.stockroom.experiments.values import plain
from hopyard.stockroom.models import ModelShelf
from hopyard.stockroom.models.content import StoredModel, read, write
from hopyard.stockroom.models.leaves import take_in
from hopyard.stockroom.models.safetensors import write_safetensors
from hopyard.stockroom.models.versions import (
    MOST,
    Source,
    VersionNote,
    check_registered_name,
    path_of,
    read_note,
)
from hopyard.stockroom.records import ModelRecord, check_name
from hopyard.stockroom.records.frozen import frozen
from hopyard.stockroom.records.quoting import check_text, check_texts
from hopyard.stockroom.views.view import View, WritableView, writable
from hopyard.storage import LocalStore
from hopyard.storage.names import path_given
from hopyard.wording import counted, describe_bytes, nearest, one_line, shown, some_names

_SAFETENSORS = ".safetensors"


class ModelVersion:
    """One version of a registered model. Its weights are read when they are asked for:
    ``stock.model[version.path]``, or :meth:`download`.

    Attributes:
        name: of the registered model.
        number: 1 or more.
        path: its name on the model shelf: ``digits/3``.
        digest: of the weights, as a tree of tensors: equal weights have equal ones.
        nbytes: of the weights.
    """

    def __init__(
        self, view: View, name: str, number: int, record: ModelRecord, note: VersionNote | None = None
    ) -> None:
        self._view, self._record = view, record
        self._known = note
        self.name: str = name
        self.number: int = number
        self.path: str = path_of(name, number)
        self.digest: str = record.tree
        self.nbytes: int = record.nbytes

    def __repr__(self) -> str:
        return one_line(
            f"<version {self.number} of {self.name}: {_metrics_in_words(self.metrics) or 'no metrics'}>"
        )

    def _repr_html_(self) -> str:
        """A table of what is noted of it, for notebooks. Reads metadata only."""
        return table(f"{self.name}, version {self.number}", ("", ""), self.lines())

    @property
    def description(self) -> str:
        """Text that it was given."""
        return self._note.description

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that it has, as ``"production"``."""
        return self._note.labels

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by name: plain values."""
        found: dict[str, Any] = self._frozen(self._note.params)
        return found

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics by name; of a search those of the epoch that the weights are of."""
        found: dict[str, float] = self._frozen(self._note.metrics)
        return found

    @property
    def source(self) -> Source:
        """Where it came from, as far as that is known."""
        return self._note.source

    @property
    def registered(self) -> datetime:
        """When it was registered, with the offset of UTC."""
        return datetime.fromisoformat(self._note.registered)

    @property
    def author(self) -> str:
        """Who registered it: ``"Name <address>"``."""
        return self._note.author

    @property
    def is_loadable(self) -> bool:
        """Whether it downloads as a folder that ``hopyard.load_model`` reads: it came from a search in a store."""
        return bool(self._note.files)

    def download(self, target: str | os.PathLike[str]) -> Path:
        """Write it to a file or folder, which appears when it is whole; what is not here yet is fetched.

        Args:
            target: ``X.safetensors``: the weights, as ``stock export`` writes them. Else a folder, which is new or
                empty, for ``hopyard.load_model``; that runs the code in it, so load only models that you trust.

        Returns:
            The path.

        Raises:
            UsageError: the version has no code, so there is nothing for ``load_model``; or the folder is not empty.
            NotFoundError: there is no such directory; or no remote has the weights.
        """
        file = path_given(target)
        if not file.parent.is_dir():
            raise NotFoundError(
                f"version {self.number} of {self.name!r} cannot be written to {file}: there is no directory "
                f"{file.parent}. Make it."
            )
        if file.suffix == _SAFETENSORS:
            write_safetensors(self._weights(), self.path, file)
        elif not self.is_loadable:
            raise UsageError(
                f"version {self.number} of {self.name!r} was to be written to {file}, a folder for hopyard.load_model, "
                "but only versions that were registered from a search in a store have the code that this needs. Give a "
                f"file for the weights: {file.name}{_SAFETENSORS}."
            )
        else:
            replaced(file, self._write)
        return file

    def lines(self) -> Iterator[tuple[str, str]]:
        """All that is noted of it, in words: pairs of a title and a text."""
        source = self.source
        yield from [("description", self.description)] if self.description else []
        yield from [("labels", ", ".join(self.labels))] if self.labels else []
        yield from ((f"metric {name}", f"{value:.6g}") for name, value in self.metrics.items())
        yield from ((f"param {name}", repr(value)) for name, value in self.params.items())
        yield "commit", source.commit or "the one that registered it brought the weights"
        told = {"model": source.model, "run": source.run, "trial": source.trial, "epoch": source.epoch}
        yield from ((title, f"{value}") for title, value in told.items() if value is not None)
        yield from ((f"data {name}", digest) for name, digest in source.data.items())
        yield "registered", f"{self.registered:%Y-%m-%d %H:%M} UTC by {self.author}"
        yield "weights", f"{describe_bytes(self.nbytes)}, {self.digest}"
        reads = "hopyard.load_model, or safetensors" if self.is_loadable else "safetensors"
        yield "downloads for", reads

    def _write(self, folder: Path) -> None:
        store = LocalStore(folder)
        for name, (digest, _) in self._note.files.items():
            store.put(name, self._view.objects.read(digest).tobytes())
        if self._note.state is not None:
            save_state(store.at(self._note.state), self._weights().tree())

    def _weights(self) -> StoredModel:
        """The structure of the weights, by the record: a draft may have others by now."""
        return read(self._view.objects, self._record, self.path)

    @cached_property
    def _note(self) -> VersionNote:
        return self._known or read_note(self._view.objects, self._record, self.path)

    def _frozen(self, value: Any) -> Any:
        return frozen(
            value,
            f"version {self.number} of {self.name!r} is registered, and its parameters and metrics never change. Take "
            "a copy, .copy(), and change that; or register another version.",
        )


class RegisteredModel(Mapping[int, ModelVersion]):
    """The versions of a registered model by number, in order."""

    def __init__(self, view: View, name: str, numbers: list[int]) -> None:
        self._view, self._numbers = view, numbers
        self.name: str = name

    def __repr__(self) -> str:
        return one_line(f"<{self.name}: {_listed(self._numbers)}>")

    def _repr_html_(self) -> str:
        """A table of the versions, the newest first, for notebooks. Reads metadata only."""
        return _html(self.name, (self[number] for number in reversed(self._numbers)))

    def __getitem__(self, number: int) -> ModelVersion:
        """One version.

        Raises:
            MissingKeyError: there is none of this number.
        """
        if type(number) is not int or number not in self._numbers:
            raise MissingKeyError(
                f"{self.name!r} has no version {shown(number)} in {self._view.revision}. It has "
                f"{_listed(self._numbers)}."
            )
        record = ModelShelf(self._view).record(path_of(self.name, number))
        return ModelVersion(self._view, self.name, number, record)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def latest(self) -> ModelVersion:
        """The version with the highest number."""
        return self[self._numbers[-1]]

    def version(self, which: int | str | None = None) -> ModelVersion:
        """One version by its number; or the latest one that has a label; None: the latest of all.

        Raises:
            MissingKeyError: there is none of this number, or with this label.
        """
        if which is None:
            return self.latest
        if not isinstance(which, str):
            return self[which]
        labels: set[str] = set()
        for number in reversed(self._numbers):
            found = self[number]
            if which in found.labels:
                return found
            labels |= {*found.labels}
        raise MissingKeyError(
            f"no version of {self.name!r} has the label {which!r} in {self._view.revision}"
            f"{nearest(which, labels, '.')} Labels: {some_names(sorted(labels))}; it has {_listed(self._numbers)}."
        )


class Registry(Mapping[str, RegisteredModel]):
    """Registered models by name: ``stock.registry["digits"][3]``, ``stock.registry["digits"].latest``.

    Args:
        view: a revision, or a draft.
        now: what is known when a version is registered; None: nothing can be, this is a revision.
    """

    def __init__(self, view: View, now: Callable[[], Registering] | None = None) -> None:
        self._view, self._now = view, now

    def __repr__(self) -> str:
        return one_line(f"<registry of {self._view.revision}: {some_names(list(self))}>")

    def _repr_html_(self) -> str:
        """A table of the latest version of each model, for notebooks. Reads metadata only."""
        return _html(f"registry of {self._view.revision}", (model.latest for model in self.values()))

    def __getitem__(self, name: str) -> RegisteredModel:
        """The versions of one model.

        Raises:
            MissingKeyError: none is registered under this name.
        """
        found = ModelShelf(self._view).versions(name) if isinstance(name, str) else {}
        if not found:
            models = list(self)
            given, listed = (name, some_names(list(map(repr, models))))
            close = nearest(given, models, ".") if isinstance(given, str) else "."
            raise MissingKeyError(
                f"no model is registered as {shown(given)} in {self._view.revision}{close} Registered are: {listed}."
            )
        return RegisteredModel(self._view, name, found[name])

    def __iter__(self) -> Iterator[str]:
        return iter(ModelShelf(self._view).versions())

    def items(self) -> ItemsView[str, RegisteredModel]:
        """Names and models as they are now, found at one look."""
        found = ModelShelf(self._view).versions().items()
        return {name: RegisteredModel(self._view, name, numbers) for name, numbers in found}.items()

    def values(self) -> ValuesView[RegisteredModel]:
        """Models as they are now, found at one look."""
        return dict(self.items()).values()

    def __len__(self) -> int:
        return len(ModelShelf(self._view).versions())

    def version(self, name: str, which: int | str | None = None) -> ModelVersion:
        """One version of a model: by number, by label, or the latest one.

        Raises:
            MissingKeyError: there is no such model, or version.
        """
        return self[name].version(which)

    def register(
        self,
        name: str,
        model: Any = None,
        *,
        run: str | None = None,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        description: str = "",
        labels: Iterable[str] = (),
    ) -> ModelVersion:
        """Register the next version of a model, which is written as all else is: committed at the end of a block,
        outside of one staged. Weights that are here are not written again.

        ``with stock.enable_write(): stock.registry.register("digits", "resnet", labels=["candidate"])``

        A model of a search in a store registers itself: ``model.register(stock, "digits")``.

        Args:
            name: of the registered model; its first version has the number 1.
            model: a name on the model shelf; or a model as that shelf takes it, such as a ``state_dict``; None: the
                model that ``run`` has made. Another version, ``"digits/3"``, brings all that is noted of it.
            run: id of a run of the experiment shelf, whose parameters and metrics these are; None: the latest one that
                is linked to the model, if there is one.
            params, metrics: by name, beside those of the run.
            description: any text.
            labels: words for people: ``["production"]``.

        Raises:
            MissingKeyError: there is no such model or run.
            UsageError: the name cannot be one; the run has not made one model; this is not open for writing.
            DataError: a parameter is no plain value, a metric is no number. Nothing was registered.
        """
        check_registered_name(name)
        taken = None if isinstance(model, str) or model is None else take_in(model, name)

        def find(draft: WritableView, now: Registering) -> Found:
            if taken is not None:
                return with_run(draft, Found(write(draft.writer, taken)), run)
            shelf_name = made_by(draft, run) if model is None else model
            return with_run(draft, on_shelf(draft, now.commit, shelf_name), run)

        return self.add(name, find, params, metrics, description, labels)

    def add(
        self,
        name: str,
        find: Callable[[WritableView, Registering], Found],
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        description: str = "",
        labels: Iterable[str] = (),
    ) -> ModelVersion:
        """Register a version of what ``find`` finds, or adds, once all that was given is checked; see :meth:`register`.

        Args:
            find: is given the draft, where it adds objects, and what is known now.
        """
        check_registered_name(name)
        check_text(description, "the description of a version")
        checked_labels = _checked_labels(labels)
        more = plain(_named(params, "parameter"), "The parameters of a version"), _numbers(metrics)
        draft = writable(self._view)
        if self._now is None:
            raise UsageError(
                f"{self._view.revision} is for reading only. Register in the stockroom: StockRoom()."
            )
        now = self._now()
        with draft.guard.write(f"registering {name!r}"), draft.writing():
            found = find(draft, now)
            note = VersionNote(
                description, checked_labels, {**found.params, **more[0]}, {**found.metrics, **more[1]}, found.source,
                datetime.now(UTC).isoformat(timespec="microseconds"), now.author, dict(found.files), found.state,
            )  # fmt: skip
            number = max(ModelShelf(draft).numbers(name), default=0) + 1
            return self._set(draft, name, number, found.record, note)

    def change(
        self,
        name: str,
        version: int | str | None = None,
        *,
        description: str | None = None,
        labels: Iterable[str] | None = None,
    ) -> ModelVersion:
        """Give a version another description, or other labels; what is None stays. All else never changes.

        Raises:
            MissingKeyError: there is no such version. UsageError: this is not open for writing.
        """
        if description is not None:
            check_text(description, "the description of a version")
        checked_labels = None if labels is None else _checked_labels(labels)
        draft = writable(self._view)
        with draft.guard.write(f"a change of {name!r}"), draft.writing():
            was = self.version(name, version)
            note = replace(
                was._note,
                description=was.description if description is None else description,
                labels=was.labels if checked_labels is None else checked_labels,
            )
            return self._set(draft, name, was.number, was._record, note)

    def renumber(self, name: str, version: int, number: int | None = None) -> ModelVersion:
        """Give a version another number, so that it can be merged with another one of its number.

        Args:
            number: above all that are there; None: the next one.

        Raises:
            MissingKeyError: there is no such version. UsageError: the number is not above all others.
        """
        draft = writable(self._view)
        with draft.guard.write(f"a new number of {name!r}"), draft.writing():
            was = self[name][version]
            last = max(ModelShelf(draft).numbers(name))
            new = last + 1 if number is None else number
            if type(new) is not int or not last < new <= MOST:
                raise UsageError(
                    f"version {version} of {name!r} was to get the number {shown(new)}, but a number is given once: it "
                    f"must be an int above {last}, the last one there. Leave it out for {last + 1}."
                )
            moved = self._set(draft, name, new, was._record, was._note)
            draft.set("model", was.path, None)
            return moved

    def _set(
        self, draft: WritableView, name: str, number: int, record: ModelRecord, note: VersionNote
    ) -> ModelVersion:
        new = replace(record, about=draft.writer.add_json(note.to_json()))
        draft.set("model", path_of(name, number), new)
        return ModelVersion(self._view, name, number, new, note)


# What is given


def _checked_labels(labels: Any) -> tuple[str, ...]:
    texts = check_texts(labels, "the labels of a version")
    for text in texts:
        check_name(text, "A label of a version")
        if text.isdecimal():
            raise UsageError(
                f"A version was to get the label {text!r}, but a number names a version. Give a word: 'production'."
            )
    return tuple(dict.fromkeys(texts))


def _named(values: Any, what: str) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise DataError(
            f"A version's {what}s were given as {type(values).__name__}. Give a dict of them by name."
        )
    return {check_name(name, f"A version's {what}"): value for name, value in values.items()}


def _numbers(metrics: Any) -> dict[str, float]:
    found = {}
    for name, value in plain(_named(metrics, "metric"), "The metrics of a version").items():
        try:
            found[name] = float(None if isinstance(value, bool | str) else value)  # type: ignore[arg-type]
        except (TypeError, OverflowError):
            raise DataError(
                f"The metric {name!r} of a version was given as {value!r:.80}, but metrics are numbers that float64 "
                "holds. Other values go into params=."
            ) from None
    return found


# In words


def _listed(numbers: list[int]) -> str:
    return f"{counted(len(numbers), 'version')}: {some_names(list(map(str, numbers)))}"


def _metrics_in_words(metrics: Mapping[str, float], most: int = 4) -> str:
    some = [f"{name} {value:.6g}" for name, value in list(metrics.items())[:most]]
    return ", ".join([*some, "..."] if len(metrics) > most else some)


def version_row(version: ModelVersion) -> tuple[str, ...]:
    """The cells of a version in a table: name, version, labels, metrics, source, when it was registered."""
    source = version.source
    came = f"run {source.run}" if source.run else f"model {source.model}" if source.model else ""
    came += f", trial {source.trial}" if source.trial is not None else ""
    return (
        version.name, str(version.number), ", ".join(version.labels), _metrics_in_words(version.metrics), came,
        (source.commit or "")[:12], f"{version.registered:%Y-%m-%d %H:%M}",
    )  # fmt: skip


TITLES = ("model", "version", "labels", "metrics", "from", "commit", "registered, UTC")
"""The titles of ``version_row``."""


def _html(title: str, versions: Iterable[ModelVersion]) -> Html:
    return table(title, TITLES, map(version_row, versions))
