"""Keys of the JSON documents of runs, datasets, stockrooms and plans, and the types of their values.

Functions that make documents return these types, so that mypy holds them to it; the dashboard's OpenAPI document is
made from them. They say what a value is before :func:`hopyard.documents.values.to_json`, which makes null of numbers
that are not finite. docs/cli.md says what the keys mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from typing_extensions import TypedDict

Named = Mapping[str, Any]
"""Values under names that users gave."""

Share = float | None
"""0 to 1."""

Mode = Literal["min", "max"]
"""Whether the smallest or the largest value is the best."""

How = Literal["added", "removed", "changed"]


# Runs


class DriverJson(TypedDict):
    """The process that drives a run."""

    host: str | None
    pid: int | None


class FailureJson(TypedDict):
    """A failure on a worker."""

    kind: str
    message: str
    traceback: str
    log: str
    worker: int | None
    partition: int | None
    phase: str


class RunSummaryJson(TypedDict):
    """A run of a list; one that cannot be read says why in ``error``, and has null in the rest."""

    run: str
    status: str
    begun: datetime | None
    num_trials: int | None
    metric: str | None
    mode: Mode | None
    best: float | None
    driver: DriverJson | None
    driven_seconds: float | None
    unit_seconds: float | None
    error: str | None


class ReplicateJson(TypedDict, total=False):
    """Of a run with replicates: the point of a trial, which of its replicates it is, and mean and spread of all."""

    point: int
    replicate: int
    mean: float | None
    spread: float | None


class RunTrialJson(ReplicateJson):
    """A trial as it is at its best epoch."""

    trial: int
    status: str
    value: float | None
    best_epoch: float | None
    epochs: float
    unit_seconds: float
    copy_of: int | None
    clone_of: int | None
    params: Named
    metrics: Mapping[str, float | None]
    error: FailureJson | None


class PackJson(TypedDict):
    """How often so many trials have made a visit together."""

    trials: int
    visits: int


class AloneJson(TypedDict):
    """Trials that train with no other, and why."""

    trials: Sequence[int]
    why: str


class ScheduleNumbersJson(TypedDict):
    """The schedule of a run in numbers that change with its units."""

    units: int
    workers: int
    span_seconds: float
    paused_seconds: float
    busy: Share
    packs: Sequence[PackJson]
    hops: int
    states_read_bytes: int
    states_written_bytes: int
    data_read_bytes: int
    data_beside_bytes: int | None
    data_away_bytes: int | None


class ScheduleTotalsJson(ScheduleNumbersJson):
    """The schedule of a run in numbers, and trials that train alone."""

    alone: Sequence[AloneJson]


class RunFactsJson(TypedDict):
    """A run without its trials; ``waiting``: commands that are kept until it goes on, in words."""

    run: str
    status: str
    driver: DriverJson | None
    kind: str
    seed: int | None
    begun: datetime
    search_space: Named | None
    trained_on: Any
    frozen_at: list[str]
    metric: str
    mode: Mode
    epochs: int | None
    partitions: int
    num_trials: int
    progress: Share
    expected_end_seconds: float | None
    schedule: ScheduleTotalsJson
    waiting: Sequence[str]
    broken_rules: Sequence[str] | None
    error: FailureJson | None


class DescribedRunJson(RunFactsJson):
    """A run with its trials, best first."""

    trials: Sequence[RunTrialJson]


class ComparedRunJson(TypedDict):
    """A run beside others."""

    run: str
    kind: str
    status: str
    metric: str
    data: str | None
    settings: Named
    num_trials: int
    epochs: float
    driven_seconds: float
    best: float | None
    params: Named | None
    note: str | None


# Datasets


class ColumnStatisticsJson(TypedDict):
    """Statistics of the finite elements of a column; ``distinct``: its different values, if they are few."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    missing: int
    not_finite: int
    distinct: Sequence[int | str] | None


SplitName = Literal["train", "val"]


class SchemaColumnJson(TypedDict):
    """A column as its schema has it; ``shape``: of a row."""

    name: str
    kind: str
    dtype: str | None
    shape: Sequence[int]


class DataColumnJson(SchemaColumnJson):
    """A column of a dataset; ``sorted``: how far the rows of files as they are are sorted by it."""

    read: Literal["mapped", "decoded"]
    sorted: Share
    statistics: ColumnStatisticsJson | None


class DescribedSplitJson(TypedDict):
    """A split of a dataset."""

    split: SplitName
    rows: int
    row_groups: int
    files: int
    file_bytes: int
    prepared: bool
    created: datetime | None
    fingerprint: str
    settings: Named
    partitions: Mapping[str, int]
    cached_row_groups: int
    notes: Sequence[str]
    columns: Sequence[DataColumnJson]


# Stockrooms


class StagedThingJson(TypedDict):
    """A thing that was written and waits for a commit."""

    path: str
    how: str


class StagedElsewhereJson(TypedDict):
    """How many writes are staged upon another commit."""

    commit: str | None
    writes: int


class RemoteBranchJson(TypedDict):
    """How many commits a branch has more, and less, than its namesake here."""

    branch: str
    more: int
    less: int


class StockStatusJson(TypedDict):
    """Where a stockroom is, and what is staged."""

    branch: str | None
    commit: str | None
    behind: str | None
    ahead: str | None
    detached: str | None
    why: str | None
    staged: Sequence[StagedThingJson]
    elsewhere: Sequence[StagedElsewhereJson]
    remotes: Sequence[RemoteBranchJson]
    advice: Sequence[str]


class CommitJson(TypedDict):
    """A commit, with the branches and tags that are there; ``git``: what was checked out in git."""

    commit: str
    parents: Sequence[str]
    time: datetime
    author: str
    message: str
    labels: Sequence[str]
    git: Named | None


class ListedThingJson(TypedDict):
    """A thing on a shelf."""

    path: str
    what: str
    count: int | None
    value_bytes: int | None


class ChangedSampleJson(TypedDict):
    """A sample that differs, by its key: a number, a text, or an array of both."""

    key: Any
    how: How


class TensorChangeJson(TypedDict):
    """A tensor that differs, and how far it moved: Euclidean, and as a share of its norm."""

    path: str
    how: str
    moved: float | None
    relative: float | None


class ChangedValueJson(TypedDict):
    """A value that differs; null: there is none."""

    before: Any
    after: Any


class ChangedFilesJson(TypedDict):
    """Names of the files of a dataset that were added and removed, and what else has changed."""

    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[str]


class DifferenceJson(TypedDict):
    """A thing that differs, and inside of it: samples, tensors, values, files."""

    path: str
    how: How
    before: str | None
    after: str | None
    samples: Sequence[ChangedSampleJson] | None
    tensors: Sequence[TensorChangeJson] | None
    values: ChangedValueJson | None
    files: ChangedFilesJson | None


class SpreadJson(TypedDict):
    """Distribution of the finite elements of a tensor; ``zeros``: their share."""

    mean: float | None
    std: float | None
    norm: float | None
    min: float | None
    max: float | None
    zeros: Share
    nan: int
    infinite: int
    histogram: Sequence[int]


class TensorJson(TypedDict):
    """A tensor of a model, and how far it moved since the version that it is compared with."""

    path: str
    dtype: str
    shape: Sequence[int]
    value_bytes: int
    statistics: SpreadJson | None
    change: str | None
    moved: float | None
    relative: float | None


class ModelJson(TypedDict):
    """A model of a stockroom."""

    path: str
    value_bytes: int
    tensors: Sequence[TensorJson]


# Plans


class TrialGroupJson(TypedDict):
    """Trials that train for so many units each."""

    num_trials: int
    units_each: int


class PreviewJson(TypedDict):
    """What a searcher would do."""

    unit: str
    num_trials: int
    units: int
    groups: Sequence[TrialGroupJson]


class EstimateJson(TypedDict):
    """What a search would take, done in one way."""

    way: str
    total_seconds: float
    worker_hours: float
    moved_bytes: int
    stored_bytes: int
    bucket_read_bytes: int
    bucket_requests: int


class ExpectedPackJson(TypedDict):
    """Trials that are expected to train together, and how many times as fast."""

    trials: Sequence[int]
    gain: float | None


class TrialsAloneJson(TypedDict):
    """Trials that are expected to train one at a time, and why."""

    why: str
    trials: Sequence[int]


class PackingJson(TypedDict):
    """How trials are expected to train on their first visits, and what of it is not known."""

    packs: Sequence[ExpectedPackJson]
    alone: Sequence[TrialsAloneJson]
    unknown: str | None
    begin_alone: Sequence[int]
    bf16_gain: float | None


class PlanJson(TypedDict):
    """A preview, estimates and the expected packing; null where there is none."""

    searcher: PreviewJson | None
    estimates: Sequence[EstimateJson] | None
    packing: PackingJson | None
