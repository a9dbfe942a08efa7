"""The one exception tree of Hopyard, grouped by what a handler would do.

::

    HopyardError
    ├── UsageError              fix the call
    │   ├── DataError           fix the data, or state a policy for it
    │   │   ├── ColumnError     name other columns
    │   │   ├── ChangedError    let nothing write to it while it is stored
    │   │   ├── NullsError      fill or drop nulls, or say what becomes of them
    │   │   └── UnsupportedTypeError  turn the column into numbers, text or bytes
    │   ├── SpaceError          fix the search space
    │   ├── ConfigError         fix the configuration of the experiment; carries every problem
    │   ├── MetricError         name another metric, or its mode
    │   ├── EstimatorError      fix the estimator function or its arguments
    │   │   └── BaseChangedError  leave the base as it is, which all trials share
    │   ├── InvalidNameError    use another name in the store
    │   ├── SettingsError       a run or dataset exists with other settings
    │   ├── ConflictError       say whose version to have; carries the conflicts
    │   └── MissingExtraError   install an extra
    ├── StorageError            look at the store
    │   ├── NotFoundError       nothing under that name
    │   │   └── MissingKeyError nothing on a shelf, or in a column, under that name or key
    │   │       └── PurgedError a sample was purged: leave it out
    │   ├── NotWritableError    permissions, read-only file systems
    │   ├── StorageFullError    make space; what was under way can be repeated
    │   ├── UnreachableError    nothing answers, or not now: look at the network or the server, and repeat
    │   │   └── ExpiredError    the credentials have expired: renew them
    │   ├── CorruptError        bytes are not what was written
    │   ├── FormatError         written by a newer version of Hopyard
    │   │   └── KindError       the store holds a thing of another kind
    │   ├── BusyError           somebody else is writing: try again
    │   └── BehindError         a remote has commits that are not here: pull, then push again
    ├── RunError                look at the run
    │   ├── RunHeldError        another driver holds the run
    │   ├── RunInterruptedError the run stopped early and can be resumed
    │   └── TrialError          one trial failed; carries its evidence
    │       └── DivergedError   its loss is not finite
    └── WorkerError             look at the workers
        ├── WorkerLostError     the worker is gone; its unit can be repeated
        │   └── StateLostError  with it went the state of a trial that was only in its memory
        ├── UnitTimeoutError    the unit took longer than allowed
        └── WorkerMismatchError a worker differs from the others

Beside it stands :class:`Preempted`, which ends the process.

Every message says what was given, which rule it breaks, and what to do next.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "BaseChangedError",
    "BehindError",
    "BusyError",
    "ChangedError",
    "ColumnError",
    "ConfigError",
    "ConflictError",
    "CorruptError",
    "DataError",
    "DivergedError",
    "EstimatorError",
    "Evidence",
    "ExpiredError",
    "FormatError",
    "HopyardError",
    "InvalidNameError",
    "KindError",
    "MetricError",
    "MissingExtraError",
    "MissingKeyError",
    "NotFoundError",
    "NotWritableError",
    "NullsError",
    "Preempted",
    "PurgedError",
    "RunError",
    "RunHeldError",
    "RunInterruptedError",
    "SettingsError",
    "SpaceError",
    "StateLostError",
    "StorageError",
    "StorageFullError",
    "TrialError",
    "UnitTimeoutError",
    "UnreachableError",
    "UnsupportedTypeError",
    "UsageError",
    "WorkerError",
    "WorkerLostError",
    "WorkerMismatchError",
]


class HopyardError(Exception):
    """The root: catches everything that Hopyard raises on purpose."""


class UsageError(HopyardError, ValueError):
    """The request cannot be carried out; nothing was changed."""


class DataError(UsageError):
    """The data given breaks a rule (empty, null, ragged, not finite, wrong type)."""


class ColumnError(DataError):
    """A column is unknown or missing."""


class NullsError(DataError):
    """Rows are null, and nothing says what becomes of them. ``found`` says where, which column, and how many."""

    def __init__(self, message: str, found: str | None = None) -> None:
        super().__init__(message)
        self.found: str = message if found is None else found

    def __reduce__(self) -> tuple[type[NullsError], tuple[str, str]]:
        return type(self), (str(self), self.found)


class UnsupportedTypeError(DataError):
    """A column's values have no place in a dataset.

    Attributes:
        unknown: which rows are null, where all others are empty lists, so that no row says what the column is; None:
            it is unsupported for another reason.
    """

    def __init__(self, message: str, unknown: Sequence[bool] | None = None) -> None:
        super().__init__(message)
        self.unknown = unknown


class SpaceError(UsageError):
    """A search space or one of its dimensions is impossible."""


class ConfigError(UsageError):
    """The configuration of an experiment breaks a rule.

    Attributes:
        problems: (path of the field, the rule it breaks and the next step), one pair for each broken rule.
    """

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)


class MetricError(UsageError):
    """A metric is unknown, or does not say whether more is better."""


class EstimatorError(UsageError):
    """The estimator function, or an estimator's argument, is not usable."""


class BaseChangedError(EstimatorError):
    """A trial changed the base that it shares with the other trials of its process."""


class InvalidNameError(UsageError):
    """A name that no store may hold."""


class SettingsError(UsageError):
    """Something of this name exists already, with other settings."""


class ConflictError(UsageError):
    """Two versions changed the same things differently. ``conflicts`` says which, and what each has."""

    def __init__(self, message: str, conflicts: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.conflicts: list[Any] = list(conflicts)

    def __reduce__(self) -> tuple[type[ConflictError], tuple[str, list[Any]]]:
        return type(self), (str(self), self.conflicts)


class MissingExtraError(UsageError, ImportError):
    """An optional dependency is not installed."""


class StorageError(HopyardError):
    """A store failed to carry out a request."""


class NotFoundError(StorageError):
    """Nothing is stored under that name."""


class MissingKeyError(NotFoundError, KeyError):
    """Nothing is on a shelf, or in a column, under that name or key; a ``KeyError`` too."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError's shows the text as its repr


class PurgedError(MissingKeyError):
    """A sample's bytes were removed from all versions, on purpose and for good."""


class NotWritableError(StorageError):
    """The store refuses writes."""


class StorageFullError(StorageError):
    """No space is left; repeat after making space. Nothing was half-written."""


class UnreachableError(StorageError):
    """A store does not answer, or does not serve for now. The same call may succeed later.

    A write that ended so may have happened or not; it is whole in either case.
    """


class ExpiredError(UnreachableError):
    """The credentials for a store have expired, or its server's clock says so. Renewed, the same call may succeed."""


class CorruptError(StorageError):
    """Stored bytes are not what was written.

    Attributes:
        reason: why, without a name and without advice; empty where only the message says it.
    """

    reason: str = ""


class FormatError(StorageError):
    """Stored by a version of Hopyard that this one cannot read."""


class KindError(FormatError):
    """A store holds a thing of another kind: a run, say, and not a stockroom."""


class BusyError(StorageError):
    """Somebody else is writing. It can be tried again."""


class BehindError(StorageError):
    """A remote's branch has commits that are not here, or was moved by a faster push. Pull, then push again."""


class ChangedError(DataError):
    """The memory of a tensor was written to while it was stored. ``digest`` is the one that it had at first."""

    def __init__(self, digest: str, message: str = "") -> None:
        super().__init__(
            message
            or "a tensor was written to while it was stored, so nothing of it was. Let nothing write to it until it is "
            "stored, as a thread that trains does; or store a copy."
        )
        self.digest = digest

    def __reduce__(self) -> tuple[type[ChangedError], tuple[str, str]]:
        return type(self), (self.digest, str(self))


class RunError(HopyardError):
    """A run could not go on."""


class RunHeldError(RunError):
    """Another driver holds the run, or took it over."""


class RunInterruptedError(RunError):
    """The run stopped before its end; running it again continues it."""


@dataclass(frozen=True)
class Evidence:
    """Evidence of a failure on a worker. All fields are JSON values.

    Attributes:
        kind: the exception's class name, as in a traceback.
        message: the exception's text.
        traceback: the formatted traceback on the worker.
        log: the last lines the worker printed or logged.
        worker: number of the worker, or None if it never reached one.
        partition: number of the partition being visited, or None.
        phase: ``"build"``, ``"train"`` or ``"validate"``.
    """

    kind: str
    message: str
    traceback: str = ""
    log: str = ""
    worker: int | None = None
    partition: int | None = None
    phase: str = "train"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Evidence:
        """The failure that such an object tells.

        Raises:
            TypeError: it is another object, or has no text where there is one.
        """
        texts = [fields.get(name, "") for name in ("kind", "message", "traceback", "log", "phase")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"a failure is told in texts, not as {fields!r}")
        return cls(**fields)

    def describe(self) -> str:
        """The failure in a few lines: where, what, traceback, last log lines."""
        where = self.phase + ("" if self.partition is None else f" of partition {self.partition}")
        where += "" if self.worker is None else f" on worker {self.worker}"
        parts = [f"{self.kind}: {self.message} ({where})"]
        if self.traceback:
            parts.append(self.traceback.rstrip())
        if self.log:
            parts.append("last output of the worker:\n" + self.log.rstrip())
        return "\n".join(parts)


class TrialError(RunError):
    """One trial failed. ``evidence`` says where and how."""

    def __init__(self, message: str, evidence: Evidence | None = None) -> None:
        super().__init__(message)
        self.evidence = evidence

    def __reduce__(self) -> tuple[type[TrialError], tuple[str, Evidence | None]]:
        return type(self), (str(self), self.evidence)


class DivergedError(TrialError):
    """A trial's loss became NaN or infinite."""


class WorkerError(HopyardError):
    """A worker could not do its unit, through no fault of the trial."""


class WorkerLostError(WorkerError):
    """The worker's process is gone."""


class StateLostError(WorkerLostError):
    """A state that was only in a worker's memory is not there: that process has ended since."""


class UnitTimeoutError(WorkerError):
    """A unit took longer than ``unit_timeout`` seconds."""


class WorkerMismatchError(WorkerError):
    """A worker lacks a package, cannot read the store, has another instruction set, or makes another base."""


class Preempted(SystemExit):
    """The process was told to end, by SIGTERM or SIGUSR1, while it drove a run, which can be resumed.

    What ended is committed. It is no error, so that ``except Exception`` does not keep the process from ending: with
    status 75 (``EX_TEMPFAIL`` of ``sysexits.h``), by which a job's script knows that the job is to be queued again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code: int = os.EX_TEMPFAIL
