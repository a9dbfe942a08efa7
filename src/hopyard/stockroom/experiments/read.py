"""A run that is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopyard.errors import CorruptError, NotFoundError
from hopyard.markup import cut, table
from hopyard.stockroom.experiments import series
from hopyard.stockroom.experiments.run import KIND
from hopyard.stockroom.experiments.values import decode
from hopyard.stockroom.records import RunRecord, parsing
from hopyard.stockroom.records.frozen import frozen
from hopyard.stockroom.views.shelf import ListedThing
from hopyard.stockroom.views.view import ObjectReader
from hopyard.storage.format import check_format
from hopyard.wording import counted, describe_bytes, describe_seconds, nearest, one_line, some_names

_SHOWN = 30  # runs, or parameters and so on of one, that a console or notebook shows

StepNumbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class RunView:
    """A stored run. What it holds is read when it is asked for.

    Attributes:
        id: its name on the shelf.
        status: ``finished``, ``failed``, or ``running``: under way, or killed.
    """

    def __init__(self, objects: ObjectReader, id: str, record: RunRecord) -> None:
        self._objects, self._record = objects, record
        self.id = id
        self.status: str = record.status

    def __repr__(self) -> str:
        return one_line(f"<run {self.id}: {self.status}>")

    def _repr_html_(self) -> str:
        """A table of parameters, tags, metrics and artifacts, for notebooks. Reads metadata only."""
        ended = "" if self.ended is None else f"{self.ended:%Y-%m-%d %H:%M:%S}"
        rows = [("begun, UTC", f"{self.started:%Y-%m-%d %H:%M:%S}"), ("ended", ended)]
        rows += [("took", describe_seconds(self.seconds))]
        rows += _first("param", ((name, repr(value)) for name, value in self.params.items()))
        rows += _first("tag", ((name, repr(value)) for name, value in self.tags.items()))
        rows += _first("metric", ((name, counted(count, "value")) for name, count in self.counts.items()))
        rows += _first("artifact", ((name, describe_bytes(size)) for name, size in self.artifacts.items()))
        rows += [("uses", f"{shelf}/{name}") for shelf, names in self.links.items() for name in names][
            :_SHOWN
        ]
        rows += [] if self.error is None else [("error", f"{self.error['kind']}: {self.error['message']}")]
        return table(f"run {self.id}: {self.status}", ("", ""), rows, len(rows))

    def _frozen(self, value: Any) -> Any:
        return frozen(
            value,
            f"the run {self.id} is stored and never changes: changing what it handed out would change nothing. Take a "
            "copy, .copy(), and change that; tags of a run that is under way are set by run.set(...).",
        )

    @property
    def params(self) -> dict[str, Any]:
        """Parameters that the experiment was started with."""
        found: dict[str, Any] = self._frozen(self._decoded("params"))
        return found

    @property
    def tags(self) -> dict[str, Any]:
        """Tags that were set."""
        found: dict[str, Any] = self._frozen(self._decoded("tags"))
        return found

    @property
    def git(self) -> Any:
        """Facts of the code, as they were given."""
        return self._frozen(self._decoded("git"))

    @property
    def links(self) -> dict[str, dict[str, Any]]:
        """``model`` and ``data``: name to the JSON of the record that it then had."""
        found: dict[str, dict[str, Any]] = self._frozen(self._get("links"))
        return found

    @property
    def error(self) -> dict[str, str] | None:
        """``kind``, ``message`` and ``traceback`` of the exception that ended it."""
        error: dict[str, str] | None = self._get("error")
        return error

    @property
    def started(self) -> datetime:
        """With the offset of UTC."""
        return datetime.fromisoformat(self._record.started)

    @property
    def ended(self) -> datetime | None:
        """None while it is running, and if it was killed."""
        ended = self._get("ended")
        return None if ended is None else datetime.fromisoformat(ended)

    @property
    def seconds(self) -> float:
        """Seconds from the start until the experiment was last stored."""
        return float(self._get("seconds"))

    @property
    def metrics(self) -> dict[str, tuple[StepNumbers, Floats]]:
        """Of each metric (n,) steps and (n,) values, in the order in which they were logged."""
        return {
            name: (series.read(self._objects, one, 0, "<i8"), series.read(self._objects, one, 1, "<f8"))
            for name, one in self._get("series").items()
        }

    @property
    def counts(self) -> dict[str, int]:
        """Of each metric how many values there are; these are not read."""
        return {name: one["count"] for name, one in self._get("series").items()}

    def times(self, metric: str) -> Floats:
        """(n,) seconds since the run began, of each point of a metric.

        Raises:
            NotFoundError: it logged no such metric.
        """
        return series.read(self._objects, self._one("series", metric, "metric"), 2, "<f8")

    @property
    def artifacts(self) -> dict[str, int]:
        """Name to bytes."""
        return {name: size for name, (_, size) in self._get("artifacts").items()}

    def artifact(self, name: str) -> Path | None:
        """Path of the artifact, not to be written to; None if the repository is not of files (use :meth:`read`).

        Raises:
            NotFoundError: it has no such artifact.
        """
        return self._objects.file(self._one("artifacts", name, "artifact")[0])

    def read(self, name: str) -> bytes:
        """The bytes of an artifact, checked.

        Raises:
            NotFoundError: it has no such artifact; CorruptError: it has changed.
        """
        return self._objects.read(self._one("artifacts", name, "artifact")[0]).tobytes()

    def reached(self) -> Iterator[str]:
        """The digests of all objects that it needs."""
        yield self._record.content
        for one in self._get("series").values():
            for part in one["parts"]:
                yield from part
        yield from (digest for digest, _ in self._get("artifacts").values())

    @cached_property
    def _content(self) -> dict[str, Any]:
        value = self._objects.json(self._record.content)
        try:
            check_format(value["format"], KIND, where=f"the run {self.id}")
            _check(value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._corrupt(error) from error
        return dict(value)

    def _get(self, field: str) -> Any:
        try:
            return self._content[field]
        except KeyError as error:
            raise self._corrupt(error) from error

    def _decoded(self, field: str) -> Any:
        return decode(self._get(field))

    def _one(self, field: str, name: str, what: str) -> Any:
        known = self._get(field)
        if name not in known:
            raise NotFoundError(
                f"the run {self.id} has no {what} {name!r}{nearest(name, known, '.')} "
                f"It has {some_names(list(map(repr, known)))}."
            )
        return known[name]

    def _corrupt(self, error: Exception) -> CorruptError:
        return CorruptError(
            f"what is stored of the run {self.id} cannot be read ({error!r}). Run `hopyard stock verify`, which lists "
            "all that is damaged; then fetch it from a remote that has it."
        )


class Runs(list[RunView]):
    """A list of stored runs, the newest first. A console or notebook shows the first of them."""

    def listed(self) -> Iterator[ListedThing]:
        """Lines on the runs as a list of shelves has them, in the order in which they were begun."""
        for run in reversed(self):
            begun = f"{run.started:%Y-%m-%d %H:%M}"
            yield ListedThing(f"run/{run.id}", f"run, {run.status}, begun {begun}")

    def __repr__(self) -> str:
        lines = [one_line(f"{run.id}  {run.status}  {run.started:%Y-%m-%d %H:%M}") for run in self[:_SHOWN]]
        if len(self) > _SHOWN:
            lines.append(f"and {len(self) - _SHOWN:,} more")
        return "\n".join([f"{counted(len(self), 'run')}, times in UTC", *lines])

    def _repr_html_(self) -> str:
        """A table with a row for each run, for notebooks. Reads metadata only."""
        rows = (
            (
                run.id,
                run.status,
                f"{run.started:%Y-%m-%d %H:%M}",
                describe_seconds(run.seconds),
                _settings(run),
            )
            for run in self
        )
        return table(counted(len(self), "run"), ("run", "", "begun, UTC", "took", "params"), rows, _SHOWN)


def _first(kind: str, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows for the first names of a kind; a last one says that there are more."""
    remaining = iter(pairs)
    rows = [(f"{kind} {name}", cut(text)) for name, text in islice(remaining, _SHOWN)]
    return [*rows, *((kind, "and more") for _ in islice(remaining, 1))]


def _settings(run: RunView) -> str:
    return cut(", ".join(f"{name}={value!r}" for name, value in islice(run.params.items(), _SHOWN)), 160)


def _check(content: Any) -> None:
    for one in content["series"].values():
        series.check(one)
    for digest, size in content["artifacts"].values():
        parsing.digest(digest), parsing.whole(size)
    if not {shelf: dict(records) for shelf, records in content["links"].items()}.keys() <= {"model", "data"}:
        raise ValueError("it links to other things than models and data")
    if content["ended"] is not None:
        datetime.fromisoformat(content["ended"])
    if type(content["seconds"]) not in (int, float):
        raise TypeError("it took no number of seconds")
    if content["error"] is not None and not all(map(parsing.text, content["error"].values())):
        raise ValueError("its error says nothing")
    for field in ("params", "tags"):
        if not isinstance(decode(content[field]), dict):
            raise TypeError(f"its {field} are no dict")
    decode(content["git"])
