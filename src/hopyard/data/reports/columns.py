"""Columns of a dataset: statistics, distributions and sample images of the splits, and strong differences of them.

Numbers that ``prepare`` wrote are of all rows. All else is of a sample, the same one every time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import ColumnStatistics
from hopyard.data.opening.opening import open_dataset
from hopyard.data.reports.distributions import (
    FrequentStrings,
    Histogram,
    Numbers,
    ValueShares,
    count_strings,
    distance_of_numbers,
    distribution,
    missing_differs,
    numbers_differ,
    strings_differ,
)
from hopyard.data.reports.images import Thumbnail, Thumbnails, find_thumbnails, thumbnail
from hopyard.data.reports.sample import ColumnSample, sample_columns, sampled_together
from hopyard.data.schema import Column
from hopyard.errors import DataError, NotFoundError, UsageError

SAMPLE_ROWS = 50_000
"""Rows of each split that are looked at, at most."""

FIRST_ROWS = 8
_ROW_SIDE = 40

# Nanoseconds since 1970: from 1979 to 2099.
_EARLIEST, _LATEST = 3 * 10**17, 41 * 10**17

Chart = Histogram | ValueShares


@dataclass(frozen=True)
class ColumnFacts:
    """A column in one split.

    Attributes:
        split: ``"train"`` or ``"val"``.
        rows: number of rows looked at; complete: these are all.
        missing: number of rows, of ``of`` rows, that are missing.
        nan, infinite: numbers of such elements in the rows looked at.
        min, max, mean, std: of the finite elements; of all rows if ``exact``, else of the rows looked at; None
            without any.
        distinct: number of different values, or None where it makes no sense; ``at_least``: there may be more.
    """

    split: str
    rows: int
    complete: bool
    missing: int
    of: int
    nan: int = 0
    infinite: int = 0
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    exact: bool = True
    distinct: int | None = None
    at_least: bool = False


@dataclass(frozen=True)
class ColumnReport:
    """A column in all splits that have it.

    Attributes:
        column: of the schema.
        splits: facts of the column in each split, the first split first.
        charts: title and series of each distribution; the splits in the same order.
        frequent: the most frequent strings.
        images: thumbnails of images of the first split.
        differences: in words, what differs strongly between the first split and another.
        masked: another column says which rows are null; they are left out of numbers and charts.
    """

    column: Column
    splits: tuple[ColumnFacts, ...]
    charts: tuple[tuple[str, Chart], ...] = ()
    frequent: FrequentStrings | None = None
    images: Thumbnails | None = None
    differences: tuple[str, ...] = ()
    masked: bool = False

    @property
    def times(self) -> tuple[str, str] | None:
        """First and last as UTC, if the values may be nanoseconds since 1970, as datetimes are kept."""
        ends = [end for facts in self.splits for end in (facts.min, facts.max) if isinstance(end, int)]
        if self.column.dtype != "int64" or not ends or not _EARLIEST <= min(ends) <= max(ends) <= _LATEST:
            return None
        first, last = (
            str(np.datetime64(end, "ns").astype("datetime64[s]")) for end in (min(ends), max(ends))
        )
        return first.replace("T", " "), last.replace("T", " ")


def describe_columns(
    data: Any, sample_rows: int = SAMPLE_ROWS, *, progress: Callable[[int, int], None] | None = None
) -> tuple[ColumnReport, ...]:
    """Every column of a dataset; columns that say which rows of others are null belong to those.

    The node cache is neither read nor filled.

    Args:
        data: a ``Dataset``, or anything that ``open_dataset`` takes, with both splits of a store.
        sample_rows: rows of each split and column at most; fewer of columns with large rows.
        progress: called with the columns done and the columns in all.

    Raises:
        UsageError: ``sample_rows`` is below 1.
        NotFoundError: there is no dataset.
        DataError: the dataset has no rows.
    """
    if sample_rows < 1:
        raise UsageError(f"sample_rows={sample_rows}, but it must be an integer of at least 1.")
    first, *others = _splits(data)
    if not len(first):
        raise DataError("The dataset has no rows, so there is nothing to describe. Open one that has some.")
    datasets = [first, *(each for each in others if len(each))]
    masks = _masks_of(first)
    columns = [column for column in first.schema if column.name not in masks.values()]
    reports: list[ColumnReport] = []
    for together in sampled_together(first, columns, sample_rows):
        samples = []
        for dataset in datasets:
            names = [column.name for column in together if column in dataset.schema.columns]
            samples.append(sample_columns(dataset, names, sample_rows, _masks_of(dataset)))
        for column in together:
            having = [place for place, by_name in enumerate(samples) if column.name in by_name]
            reports.append(
                _describe(
                    column,
                    [datasets[place] for place in having],
                    [samples[place][column.name] for place in having],
                    masked=column.name in masks,
                )
            )
            if progress is not None:
                progress(len(reports), len(columns))
    return tuple(reports)


def first_rows(data: Any, columns: Sequence[ColumnReport]) -> list[list[Any]]:
    """The first rows of the first split, as they are stored.

    Args:
        data: that :func:`describe_columns` described; ``columns``: its result.

    Returns:
        For each row a value of each column; None for a missing value, a ``Thumbnail`` for an image.
    """
    dataset = _splits(data)[0]
    rows = np.arange(min(FIRST_ROWS, len(dataset)))
    masks = _masks_of(dataset)
    batch = dataset.take(rows, {name: name for name in dataset.schema.names})

    def value_of(report: ColumnReport, row: int) -> Any:
        name = report.column.name
        if name in masks and batch[masks[name]][row]:
            return None
        value = batch[name][row]
        if report.images is None or not report.images.shown:
            return value
        image: Thumbnail | None = thumbnail(report.column, value, row, _ROW_SIDE)
        return value if image is None else image

    return [[value_of(report, row) for report in columns] for row in rows.tolist()]


def _splits(data: Any) -> list[Dataset]:
    if isinstance(data, Dataset):
        dataset = copy.copy(data)
        dataset.cache = False
        return [dataset]
    train = open_dataset(data, nulls="mask", cache=False)
    try:
        val = open_dataset(data, "val", nulls="mask", cache=False)
    except NotFoundError:
        return [train]
    return [train, val] if val.split != train.split else [train]


def _masks_of(dataset: Dataset) -> dict[str, str]:
    """Mask columns by column: a column that had nulls holds fill values where its mask column is True."""
    policies = dataset.recipe.policies
    masked = [] if policies is None else list(policies.masked)
    if dataset.prepared and dataset.manifest.settings.get("nulls") == "mask":
        masked += [
            name
            for name in dataset.schema.names
            if Column(f"{name}_mask", "tensor", "bool") in dataset.schema.columns
        ]
    return {name: f"{name}_mask" for name in masked if f"{name}_mask" in dataset.schema}


def _describe(
    column: Column, datasets: Sequence[Dataset], samples: Sequence[ColumnSample], *, masked: bool
) -> ColumnReport:
    if column.kind in ("tensor", "ragged"):
        report = _describe_numbers(column, datasets, samples)
    elif column.kind == "string":
        report = _describe_strings(column, datasets, samples)
    else:
        facts = tuple(_facts(dataset, sample) for dataset, sample in zip(datasets, samples, strict=True))
        charts, differences = _lengths(samples, "Bytes of a row")
        report = ColumnReport(column, facts, charts, differences=differences)
    images = find_thumbnails(samples[0])
    return replace(
        report,
        # Lengths of encoded images say nothing about them.
        charts=report.charts if images is None or column.kind != "bytes" else (),
        images=images,
        differences=(*report.differences, *_missing_differences(report.splits)),
        masked=masked,
    )


def _describe_numbers(
    column: Column, datasets: Sequence[Dataset], samples: Sequence[ColumnSample]
) -> ColumnReport:
    numbers = [Numbers.of(sample.present()) for sample in samples]
    facts = tuple(
        _facts(dataset, sample, **_moments(dataset, sample, its))
        for dataset, sample, its in zip(datasets, samples, numbers, strict=True)
    )
    values = distribution(numbers, column.dtype == "bool")
    charts: tuple[tuple[str, Chart], ...] = () if values is None else (("", values),)
    differences = _differences(numbers, samples, "the values")
    if column.kind == "ragged":
        more_charts, more_differences = _lengths(samples, "Values of a row")
        charts, differences = (*charts, *more_charts), (*differences, *more_differences)
    return ColumnReport(column, facts, charts, differences=differences)


def _describe_strings(
    column: Column, datasets: Sequence[Dataset], samples: Sequence[ColumnSample]
) -> ColumnReport:
    counts, frequent = count_strings([sample.present().tolist() for sample in samples])
    facts = []
    for dataset, sample, count in zip(datasets, samples, counts, strict=True):
        known = _written_statistics(dataset, sample)
        every = None if known is None or sample.missing is not None else known.distinct
        distinct = len(count) if every is None else len(every)
        at_least = every is None and not sample.complete
        facts.append(_facts(dataset, sample, distinct=distinct, at_least=at_least))
    charts, differences = _lengths(samples, "Characters of a row")
    for other in counts[1:]:
        distance, strong = strings_differ(counts[0], other)
        if strong:
            differences = (f"the shares of its values, by a total variation of {distance:.2f}", *differences)
    return ColumnReport(column, tuple(facts), charts, frequent, differences=differences)


def _written_statistics(dataset: Dataset, sample: ColumnSample) -> ColumnStatistics | None:
    """Statistics that ``prepare`` wrote of the column, if they are of the rows of this dataset."""
    if len(dataset) != dataset.manifest.rows:
        return None
    return dataset.manifest.statistics.get(sample.column.name)


def _facts(dataset: Dataset, sample: ColumnSample, **more: Any) -> ColumnFacts:
    known = _written_statistics(dataset, sample)
    if known is not None:
        missing, of = known.missing, len(dataset)
    else:
        missing, of = 0 if sample.missing is None else int(sample.missing.sum()), len(sample.rows)
    return ColumnFacts(dataset.split, len(sample.rows), sample.complete, missing, of, **more)


def _moments(dataset: Dataset, sample: ColumnSample, numbers: Numbers) -> dict[str, Any]:
    """Statistics of numbers: as ``prepare`` wrote them, with fill values counted, else of the sample."""
    moments: dict[str, Any] = {"nan": numbers.nan, "infinite": numbers.infinite}
    known = _written_statistics(dataset, sample)
    distinct = None
    if known is not None and sample.missing is None:
        moments |= {"min": known.min, "max": known.max, "mean": known.mean, "std": known.std}
        distinct = None if known.distinct is None else len(known.distinct)
    else:
        values = numbers.values
        if len(values):
            wide = values.astype(np.float64)
            moments |= {"min": values.min().item(), "max": values.max().item()}
            moments |= {"mean": float(wide.mean()), "std": float(wide.std())}
        moments["exact"] = sample.complete
    if sample.column.kind == "tensor" and not sample.column.shape:
        if distinct is None:
            distinct = len(np.unique(numbers.values))
            moments["at_least"] = not sample.complete
        moments["distinct"] = distinct
    return moments


def _lengths(
    samples: Sequence[ColumnSample], title: str
) -> tuple[tuple[tuple[str, Chart], ...], tuple[str, ...]]:
    """The distribution of the lengths of rows, and how it differs."""
    numbers = [Numbers.of_lengths(sample) for sample in samples]
    lengths = distribution(numbers)
    charts = () if lengths is None else ((title, lengths),)
    return charts, _differences(numbers, samples, "the lengths of rows")


def _differences(numbers: Sequence[Numbers], samples: Sequence[ColumnSample], noun: str) -> tuple[str, ...]:
    """Strong differences of the first split's numbers from those of each other split."""
    distances = [
        (distance_of_numbers(numbers[0].values, other.values), len(sample.rows))
        for other, sample in zip(numbers[1:], samples[1:], strict=True)
    ]
    return tuple(
        f"{noun}, by a Kolmogorov-Smirnov distance of {distance:.2f}"
        for distance, rows in distances
        if numbers_differ(distance, len(samples[0].rows), rows)
    )


def _missing_differences(splits: Sequence[ColumnFacts]) -> tuple[str, ...]:
    first, *others = splits
    return tuple(
        f"missing rows, {first.missing / first.of:.1%} and {other.missing / other.of:.1%} of all"
        for other in others
        if missing_differs(first.missing, first.of, other.missing, other.of)
    )
