"""Keys of the JSON documents that only the dashboard's server gives, and the types of their values; the others are in
:mod:`hopyard.documents.shapes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Required

from typing_extensions import TypedDict

from hopyard.documents.shapes import (
    AloneJson,
    CommitJson,
    DescribedSplitJson,
    DriverJson,
    FailureJson,
    ListedThingJson,
    Named,
    RunFactsJson,
    RunSummaryJson,
    RunTrialJson,
    ScheduleNumbersJson,
    Share,
    StockStatusJson,
)

Measured = Mapping[str, Sequence[float | None]]
"""Values of metrics, one for each validation."""


class ErrorJson(TypedDict):
    """What is wrong, and what to do next."""

    error: str


class PlaceJson(TypedDict):
    """A store or a stockroom; ``error``: why it cannot be looked at now."""

    place: str
    url: str
    kind: Literal["store", "stockroom"]
    error: str | None


class PlacesJson(TypedDict):
    """What is shown, and whether runs can be steered."""

    version: str
    control: bool
    places: Sequence[PlaceJson]


# Runs


class RunItemJson(RunSummaryJson):
    """A run of the list."""

    place: str
    name: str | None
    kind: str | None
    ended_trials: int | None
    progress: Share


class RunListJson(TypedDict):
    """The runs of all stores."""

    runs: Sequence[RunItemJson]


class GoneRunJson(TypedDict):
    """A run that is no longer there."""

    place: str
    run: str


class RunListEventJson(TypedDict):
    """Runs that have changed, those that are gone, and the stores that no longer have the ``error`` that they had."""

    runs: Sequence[RunItemJson]
    gone: Sequence[GoneRunJson]
    places: Sequence[str]


class TrialJson(RunTrialJson):
    """A trial of a run; ``stopped``: by whom."""

    stopped: str | None


class ExperimentJson(TypedDict):
    """The experiment that a run is."""

    name: str | None
    description: str | None
    labels: Any
    config: Named
    length: Any


class RunJson(RunFactsJson):
    """A run with its trials, best first; ``version``: number of the records that it is made from."""

    trials: Sequence[TrialJson]
    version: int
    reading: None
    settings: Named
    metrics: Sequence[str]
    output: str | None
    driven_seconds: float
    experiment: ExperimentJson | None


class ReadingJson(TypedDict):
    """A run whose journal is still read, and the share of it that is: ask again."""

    run: str
    version: Literal[0]
    reading: float
    trials: Sequence[TrialJson]


class PointsJson(TypedDict):
    """Validations of a trial: after which epoch, when, and with which values."""

    epoch: Sequence[float]
    seconds: Sequence[float]
    metrics: Measured


class RunChangesJson(TypedDict):
    """What has changed in a run; ``points``: new validations, by numbers of trials; ``alone``: trials that train alone,
    or null if they are the same as before; ``waiting``: as in the run's document."""

    version: int
    status: str
    driver: DriverJson | None
    num_trials: int
    best_trial: int | None
    progress: Share
    expected_end_seconds: float | None
    driven_seconds: float
    schedule: ScheduleNumbersJson
    alone: Sequence[AloneJson] | None
    error: FailureJson | None
    waiting: Sequence[str]
    trials: Sequence[TrialJson]
    points: Mapping[str, PointsJson]


class MessageJson(TypedDict):
    """Something that happened in a run."""

    text: str


class EndJson(TypedDict):
    """A run has ended."""

    status: str


class ReadingShareJson(TypedDict):
    """The share of a run's journal that is read."""

    share: float


class TrialHistoryJson(TrialJson):
    """A trial with its validations."""

    history: Measured
    epoch: Sequence[float]
    seconds: Sequence[float]


class ImportanceJson(TypedDict):
    """The share of the differences in the metric between trials that goes with a hyperparameter."""

    name: str
    importance: float


class LeftOutJson(TypedDict):
    """A hyperparameter whose importance is not told, and why."""

    name: str
    why: str


class ImportancesJson(TypedDict):
    """Hyperparameters, most important first, by which method, and from how many of the trials that have a result; or
    why that cannot be told."""

    importances: Sequence[ImportanceJson]
    method: str
    num_trials: int | None
    num_results: int | None
    left_out: Sequence[LeftOutJson]
    error: str | None


class LogLineJson(TypedDict):
    """A line that a trial printed, or of the traceback of its failure."""

    time: datetime | None
    trial: int | None
    worker: int | None
    stream: str | None
    text: str


class LogsJson(TypedDict):
    """Lines, ``after`` for the next request, and whether it has some to give already."""

    lines: Sequence[LogLineJson]
    next: str
    more: bool


class SaidJson(TypedDict):
    """What became of a command, in words."""

    said: str


# Datasets


class ListedDatasetJson(TypedDict):
    """A dataset of a store, or Parquet files that are in the place itself as they are (``prepared`` is false, the path
    empty); or, with an ``error``, what was found and cannot be read."""

    path: str
    prepared: bool
    error: str | None


class DatasetListJson(TypedDict):
    """The datasets of a store."""

    datasets: Sequence[ListedDatasetJson]


class OrderQualityJson(TypedDict):
    """How far batches of the shuffled order are from independent draws: 1 is a true permutation, more is worse."""

    batch_size: int
    ratio: float


class SplitJson(DescribedSplitJson):
    """A split of a dataset; ``places``: hosts that have the bytes of each file; ``..._unknown``: why it is not
    known, where it is null."""

    row_group_rows: Sequence[int]
    places: Sequence[Sequence[str]] | None
    places_unknown: str | None
    order_quality: OrderQualityJson | None
    order_quality_unknown: str | None


class SampleColumnJson(TypedDict):
    """A column of shown rows."""

    name: str
    type: str
    shown: Literal["text", "number", "image", "tensor"]


class ImageJson(TypedDict):
    """An image as a ``data:`` address."""

    image: str


class TensorCellJson(TypedDict):
    """A tensor in words, its first elements, and the bounds of the finite ones."""

    tensor: str
    first: Sequence[float | bool | None]
    min: float | None
    max: float | None


Cell = ImageJson | TensorCellJson | str | float | bool | None


class SamplesJson(TypedDict):
    """Rows of a split from ``first`` on, ``of`` so many."""

    columns: Sequence[SampleColumnJson]
    rows: Sequence[Sequence[Cell]]
    first: int
    of: int


# Stockrooms


class BranchJson(TypedDict):
    """A branch, and whether this is on it."""

    branch: str
    commit: str
    current: bool


class TagJson(TypedDict):
    """A tag."""

    tag: str
    commit: str


class StockJson(TypedDict):
    """A stockroom; ``status`` is null while git merges, and ``merging`` says so."""

    status: StockStatusJson | None
    branches: Sequence[BranchJson]
    tags: Sequence[TagJson]
    things: Sequence[ListedThingJson]
    merging: str | None


class CommitContentsJson(TypedDict):
    """A commit: what is on the shelves, the models and runs that came with it, and ``reproduce``: a command for each of
    the searches among these that can be trained again."""

    commit: CommitJson
    things: Sequence[ListedThingJson]
    models: Sequence[str]
    runs: Sequence[str]
    reproduce: Sequence[str]


# What is sent


class CommandJson(TypedDict, total=False):
    """A command to a run; ``trial``: of stop and clone; the numbers: of extend; ``params`` that are changed, and
    whether it begins with the ``weights`` of the other: of clone."""

    do: Required[Literal["pause", "resume", "stop", "kill", "extend", "clone"]]
    trial: int
    params: Named
    weights: bool
    num_models: int | None
    num_epochs: int | None


class PlanOptionsJson(TypedDict, total=False):
    """Options of a plan, as of ``hopyard plan``; ``searcher``: the configuration of one."""

    searcher: Named | None
    workers: float | None
    rows: float | None
    rows_per_second: float | None
    seconds_per_unit: float | None
    state_mb: float | None
    data_gb: float | None
    models: float | None
    epochs: float | None
    partitions: float | None
    batch_size: float | None
    gbit: float | None
