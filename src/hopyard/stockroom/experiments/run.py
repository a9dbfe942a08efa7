"""A run while it is under way."""

from __future__ import annotations

import os
import secrets
import threading
import time
import traceback
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hopyard.errors import DataError, NotFoundError, StorageError, UsageError
from hopyard.stockroom.experiments.series import Growing
from hopyard.stockroom.experiments.values import encode, plain
from hopyard.stockroom.records import RunRecord, Shelf, check_name
from hopyard.stockroom.views.view import WritableView
from hopyard.storage.format import object_header
from hopyard.wording import nearest, shown

KIND = "stock-run"
INTERVAL = 30.0  # seconds of logging after which what was logged is stored


class StockRun:
    """``with StockRun(view, params={"lr": 0.01}) as run: run.log(loss=0.5)``.

    It is stored when the block ends, as failed if by an exception; until then every 30 seconds while it logs, with the
    status ``running``: that is what a process that was killed leaves. Threads may share a run.

    Args:
        view: where it is stored.
        params: plain values by name: what the run was started with.
        tags: plain values by name.
        git: facts of the code (commit, branch, whether it was changed), as the caller found them.
        id: its name on the shelf, where it replaces what is there; None: one of its own.
        clock: seconds that only grow; they decide durations and when to store.

    Raises:
        DataError: a parameter or tag is no plain value.
    """

    def __init__(
        self,
        view: WritableView,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        git: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        id: str | None = None,
    ) -> None:
        self._view, self._clock = view, clock
        self._params = _named("parameter", params or {})
        self._tags = _named("tag", tags or {})
        self._git = plain(git, "git=")
        self._links: dict[str, dict[str, Any]] = {}
        self._artifacts: dict[str, tuple[str, int]] = {}
        self._series: dict[str, Growing] = {}
        self._step = -1
        self._lock = threading.RLock()
        self._status = "new"
        self._error: dict[str, str] | None = None
        self._began = self._next = 0.0
        self.id: str = "" if id is None else check_name(id, "A run")

    def __repr__(self) -> str:
        return f"<run {self.id or 'without an id yet'}: {self._status}>"

    @property
    def status(self) -> str:
        """``new`` before its block begins, ``running``, ``finished`` or ``failed``."""
        return self._status

    def __enter__(self) -> Self:
        if self._status != "new":
            raise UsageError(f"The run {self.id} was begun before. Make a new one: each is one `with` block.")
        self._started = datetime.now(UTC)
        self._began = self._clock()
        self._next = self._began + INTERVAL
        self.id = self.id or f"{self._started:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        self._status = "running"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._status = "finished" if error is None else "failed"
            if error is not None:
                text = "".join(traceback.format_exception(kind, error, trace))
                said = {"kind": type(error).__name__, "message": str(error), "traceback": text}
                # Names of files may hold what is not valid Unicode.
                self._error = {
                    name: part.encode(errors="backslashreplace").decode() for name, part in said.items()
                }
            try:
                self._store()
            except StorageError as failure:
                if error is None:
                    raise
                error.add_note(f"The run {self.id} could not be stored either: {failure}")

    def log(self, step: int | None = None, **metrics: float) -> None:
        """Add a point to the series of each metric.

        Args:
            step: None: one more than the last; the first is 0.
            metrics: numbers, which are kept as float64; NaN and infinities too.

        Raises:
            DataError: a value is no number, or an int that float64 would round, or the step is no int. Nothing was
                logged.
            UsageError: the run is not under way.
        """
        with self._lock:
            self._check_running()
            now = self._clock()
            step = self._step + 1 if step is None else step
            try:
                values = array("d", metrics.values())
                (step,) = array("q", (step,))
            except (TypeError, OverflowError, ValueError, RuntimeError):
                raise _not_numbers(step, metrics) from None
            for value, kept in zip(metrics.values(), values, strict=True):
                if isinstance(value, int | np.integer) and int(value) != kept:
                    raise _rounded(metrics, values)
            if not metrics.keys() <= self._series.keys():
                names = [check_name(name, "A run's metric") for name in metrics]
                self._series |= {name: Growing() for name in names if name not in self._series}
            seconds = now - self._began
            for name, value in zip(metrics, values, strict=True):
                series = self._series[name]
                series.steps.append(step)
                series.values.append(value)
                series.seconds.append(seconds)
            self._step = step
            if now >= self._next:
                self._store_in_passing(now)

    def log_artifact(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Keep a copy of a file, as it is now. An artifact of the same name is replaced.

        Args:
            name: None: the file's.

        Raises:
            NotFoundError: there is no such file; UsageError: it is a directory, or the run is not under way.
        """
        file = Path(path)
        name = check_name(file.name if name is None else name, "A run's artifact")
        if file.is_dir():
            raise UsageError(
                f"The artifact {file} is a directory. Log its files one by one, or an archive of it."
            )
        with self._lock:
            self._check_running()
            # Not under the guard: the file is stored at once, and belongs to the run when the run is stored.
            # Not linked, which makes a file read only: it may be written to again.
            writer = self._view.writer
            digest = writer.add_file(file, link=False)
            # Of the copy: the file may have grown meanwhile.
            copy = writer.file(digest, verify=False)
            self._artifacts[name] = digest, (copy or file).stat().st_size

    def set(self, **tags: Any) -> None:
        """Add tags: plain values. Those of the same name are replaced.

        Raises:
            DataError: one is no plain value. None was set.
        """
        new = _named("tag", tags)
        with self._lock:
            self._check_running()
            self._tags |= new

    def link(self, model: str | Sequence[str] = (), data: str | Sequence[str] = ()) -> None:
        """Say which models and columns the run used or made: their content now is noted, whatever follows.

        Raises:
            NotFoundError: there is none of that name. Nothing was noted.
        """
        given: tuple[tuple[Shelf, str | Sequence[str]], ...] = (("model", model), ("data", data))
        with self._lock:
            self._check_running()
            found = {shelf: self._records(shelf, names) for shelf, names in given}
            for shelf, records in found.items():
                self._links.setdefault(shelf, {}).update(records)

    def flush(self) -> None:
        """Store what was logged so far.

        Raises:
            StorageError: it could not be; the run goes on.
        """
        with self._lock:
            self._check_running()
            self._store()

    def _records(self, shelf: Shelf, names: str | Sequence[str]) -> dict[str, Any]:
        found = {}
        for name in [names] if isinstance(names, str) else names:
            record = self._view.noted(shelf, name)
            if record is None:
                known = self._view.names(shelf)
                raise NotFoundError(
                    f"The run {self.id} cannot be linked to {name!r}: there is no such {_WORD[shelf]} in "
                    f"{self._view.revision}{nearest(name, known, '.')} Store it first."
                )
            found[name] = record.to_json()
        return found

    def _check_running(self) -> None:
        if self._status == "new":
            raise UsageError(
                "The run has not begun. Use it in a block: with stock.run(...) as run: run.log(...)"
            )
        if self._status != "running":
            raise UsageError(f"The run {self.id} has ended, so nothing can be added to it. Begin a new one.")

    def _store_in_passing(self, now: float) -> None:
        if (
            self._view.guard.is_others
        ):  # a thread of a block's owner logs: the owner stores it with its next point
            return
        self._next = now + INTERVAL
        try:
            self._store()
        except StorageError as error:
            warnings.warn(
                f"The run {self.id} could not be stored; it goes on, and is stored again in {INTERVAL:.0f} s: {error}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _store(self) -> None:
        with self._view.guard.write(f"storing the run {self.id}"):
            self._store_alone()

    def _store_alone(self) -> None:
        writer = self._view.writer
        started = self._started.isoformat(timespec="microseconds")
        is_over = self._status != "running"
        content = {
            "format": object_header(KIND),
            "params": encode(self._params),
            "tags": encode(self._tags),
            "series": {name: series.write(writer) for name, series in self._series.items()},
            "artifacts": {name: list(artifact) for name, artifact in self._artifacts.items()},
            "links": self._links,
            "git": encode(self._git),
            "started": started,
            "ended": datetime.now(UTC).isoformat(timespec="microseconds") if is_over else None,
            "seconds": self._clock() - self._began,
            "status": self._status,
            "error": self._error,
        }
        self._view.set("run", self.id, RunRecord(writer.add_json(content), self._status, started))


_WORD = {"model": "model", "data": "column or dataset"}


def _named(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise DataError(
            f"A run's {kind}s were given as {type(values).__name__}. Give a dict of them by name."
        )
    return {
        check_name(name, f"A run's {kind}"): plain(value, f"The {kind} {name!r}")
        for name, value in values.items()
    }


def _rounded(metrics: Mapping[str, Any], values: Sequence[float]) -> DataError:
    name, value = next(
        (name, value)
        for (name, value), kept in zip(metrics.items(), values, strict=True)
        if isinstance(value, int | np.integer) and int(value) != kept
    )
    return DataError(
        f"The metric {name!r} was logged as {value}, but metrics are float64, which would round it. Log float(...) of "
        "it if it may be rounded; ids go into set()."
    )


def _not_numbers(step: Any, metrics: Mapping[str, Any]) -> DataError:
    for name, value in metrics.items():
        try:
            array("d", (value,))
        except (TypeError, OverflowError, ValueError, RuntimeError):
            kind = type(value)
            return DataError(
                f"The metric {name!r} was logged as {shown(value):.80} of type {kind.__module__}.{kind.__qualname__}, "
                "but metrics are single numbers. Log float(...) of it; texts and lists go into set()."
            )
    return DataError(
        f"The step {shown(step)} was logged, but steps are ints of up to 64 bits. Use int(...), or leave it out."
    )
