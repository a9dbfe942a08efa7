"""What a report knows of a dataset, before it is a page: everything that the page shows is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import ColumnStatistics
from hopyard.data.reports.columns import (
    Bins,
    Frequent,
    Numbers,
    Values,
    chart_numbers,
    count_strings,
    lengths_of,
)
from hopyard.data.reports.compare import (
    distance_of_numbers,
    missing_differs,
    numbers_differ,
    strings_differ,
)
from hopyard.data.reports.images import THUMBNAIL, Pictures, find_pictures, picture_of
from hopyard.data.reports.sample import Sample, packs_of, sample_columns
from hopyard.data.schema import Column

PREVIEWED = 8
_EARLIEST, _LATEST = 3 * 10**17, 41 * 10**17  # nanoseconds: 1979 to 2099


@dataclass(frozen=True)
class ColumnFacts:
    """A column in one split.

    Attributes:
        rows: looked at; complete: these are all.
        missing: how many of ``of`` rows are missing.
        nan, infinite: elements in the rows looked at.
        min, max, mean, std: of the finite elements; of all rows if ``prepare`` counted them (``exact``), else of
            the rows looked at; None without any.
        distinct: different values, or None where it makes no sense; ``at_least``: there may be more.
    """

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
    """A column, in all splits.

    Attributes:
        mapped: batches are gathered straight from the files.
        splits: what it is in each.
        charts: title and chart; the splits in the same order.
        frequent: the most frequent strings.
        pictures: sample images of the first split.
        differences: in words, how splits differ strongly.
        masked: another column says which rows are null; they are left out of numbers and charts.
    """

    column: Column
    mapped: bool
    splits: tuple[ColumnFacts, ...]
    charts: tuple[tuple[str, Bins | Values], ...] = ()
    frequent: Frequent | None = None
    pictures: Pictures | None = None
    differences: tuple[str, ...] = ()
    masked: bool = False

    @property
    def type(self) -> str:
        return str(self.column).removeprefix(f"{self.column.name}: ")

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


def masks_of(dataset: Dataset) -> dict[str, str]:
    """Of columns that had nulls and hold fill values there, the column that says where."""
    policies = dataset.recipe.policies
    masked = [] if policies is None else list(policies.masked)
    if dataset.prepared and dataset.manifest.settings.get("nulls") == "mask":
        masked += [
            name
            for name in dataset.schema.names
            if Column(f"{name}_mask", "tensor", "bool") in dataset.schema.columns
        ]
    return {name: f"{name}_mask" for name in masked if f"{name}_mask" in dataset.schema}


def report_columns(
    datasets: Sequence[Dataset], sample_rows: int, told: Callable[[int, int], None]
) -> list[ColumnReport]:
    """Every column of the first dataset; of the others, those that have the same columns are beside it."""
    first, masks = datasets[0], masks_of(datasets[0])
    columns = [column for column in first.schema if column.name not in masks.values()]
    found: list[ColumnReport] = []
    for pack in packs_of(first, columns, sample_rows):
        samples = []
        for dataset in datasets:
            its = [column.name for column in pack if column in dataset.schema.columns]
            samples.append(sample_columns(dataset, its, sample_rows, masks_of(dataset)))
        for column in pack:
            with_it = [place for place, each in enumerate(samples) if column.name in each]
            found.append(
                _report(
                    column,
                    [datasets[place] for place in with_it],
                    [samples[place][column.name] for place in with_it],
                    masks,
                )
            )
            told(len(found), len(columns))
    return found


def _report(
    column: Column, datasets: Sequence[Dataset], samples: Sequence[Sample], masks: Mapping[str, str]
) -> ColumnReport:
    mapped = datasets[0].reader().is_mapped(column)
    if column.kind in ("tensor", "ragged"):
        report = _of_numbers(column, mapped, datasets, samples)
    elif column.kind == "string":
        report = _of_strings(column, mapped, datasets, samples)
    else:
        facts = tuple(_counted(dataset, sample) for dataset, sample in zip(datasets, samples, strict=True))
        its_charts, its_differences = _lengths(samples, "Bytes of a row")
        report = ColumnReport(column, mapped, facts, its_charts, differences=its_differences)
    first, *others = report.splits
    differences = list(report.differences)
    for other in others:
        if missing_differs(first.missing, first.of, other.missing, other.of):
            shares = f"{first.missing / first.of:.1%} and {other.missing / other.of:.1%}"
            differences.append(f"missing rows, {shares} of all")
    pictures = find_pictures(samples[0])
    return replace(
        report,
        charts=report.charts if pictures is None or column.kind != "bytes" else (),
        pictures=pictures,
        differences=tuple(differences),
        masked=column.name in masks,
    )


def _known(dataset: Dataset, name: str) -> ColumnStatistics | None:
    """What ``prepare`` wrote of the column, if it is of these rows."""
    return dataset.manifest.statistics.get(name) if len(dataset) == dataset.manifest.rows else None


def _counted(dataset: Dataset, sample: Sample, **more: Any) -> ColumnFacts:
    known = _known(dataset, sample.column.name)
    if known is not None:
        return ColumnFacts(len(sample.rows), sample.complete, known.missing, len(dataset), **more)
    missing = 0 if sample.missing is None else int(sample.missing.sum())
    return ColumnFacts(len(sample.rows), sample.complete, missing, len(sample.rows), **more)


def _of_numbers(
    column: Column, mapped: bool, datasets: Sequence[Dataset], samples: Sequence[Sample]
) -> ColumnReport:
    numbers = [Numbers.of(sample.present()) for sample in samples]
    facts = tuple(
        _counted(dataset, sample, **_moments(dataset, column, sample, its))
        for dataset, sample, its in zip(datasets, samples, numbers, strict=True)
    )
    boolean = column.dtype == "bool"
    values = chart_numbers(numbers, boolean)
    charts = [] if values is None else [("", values)]
    differences = _differences(numbers, samples, "the values")
    if column.kind == "ragged":
        more, differ = _lengths(samples, "Values of a row")
        charts += more
        differences += differ
    return ColumnReport(column, mapped, facts, tuple(charts), differences=tuple(differences))


def _moments(dataset: Dataset, column: Column, sample: Sample, numbers: Numbers) -> dict[str, Any]:
    """Statistics that ``prepare`` wrote, else of the sample: what was filled counts in the first."""
    found: dict[str, Any] = {"nan": numbers.nan, "infinite": numbers.infinite}
    known = _known(dataset, column.name)
    if known is not None and sample.missing is None:
        found |= {"min": known.min, "max": known.max, "mean": known.mean, "std": known.std}
        distinct = None if known.distinct is None else len(known.distinct)
    else:
        values = numbers.values
        if len(values):
            wide = values.astype(np.float64)
            found |= {"min": values.min().item(), "max": values.max().item()}
            found |= {"mean": float(wide.mean()), "std": float(wide.std())}
        found["exact"] = sample.complete
        distinct = None
    if column.kind == "tensor" and not column.shape:
        if distinct is None:
            distinct = len(np.unique(numbers.values))
            found["at_least"] = not sample.complete
        found["distinct"] = distinct
    return found


def _of_strings(
    column: Column, mapped: bool, datasets: Sequence[Dataset], samples: Sequence[Sample]
) -> ColumnReport:
    counts, frequent = count_strings([sample.present().tolist() for sample in samples])
    facts = []
    for dataset, sample, its in zip(datasets, samples, counts, strict=True):
        known = _known(dataset, column.name)
        every = None if known is None or sample.missing is not None else known.distinct
        distinct = len(its) if every is None else len(every)
        at_least = every is None and not sample.complete
        facts.append(_counted(dataset, sample, distinct=distinct, at_least=at_least))
    charts, differences = _lengths(samples, "Characters of a row")
    for other in counts[1:]:
        distance, strong = strings_differ(counts[0], other)
        if strong:
            differences = (f"the shares of its values, by a total variation of {distance:.2f}", *differences)
    return ColumnReport(column, mapped, tuple(facts), charts, frequent, differences=differences)


def _lengths(
    samples: Sequence[Sample], title: str
) -> tuple[tuple[tuple[str, Bins | Values], ...], tuple[str, ...]]:
    """The chart of the lengths of rows, and how they differ."""
    numbers = [Numbers.of_lengths(lengths_of(sample)) for sample in samples]
    chart = chart_numbers(numbers)
    charts = () if chart is None else ((title, chart),)
    return charts, tuple(_differences(numbers, samples, "the lengths of rows"))


def _differences(numbers: Sequence[Numbers], samples: Sequence[Sample], what: str) -> list[str]:
    """How the first split differs from each of the others."""
    found = []
    for its, sample in zip(numbers[1:], samples[1:], strict=True):
        distance = distance_of_numbers(numbers[0].values, its.values)
        if numbers_differ(distance, len(samples[0].rows), len(sample.rows)):
            found.append(f"{what}, by a Kolmogorov-Smirnov distance of {distance:.2f}")
    return found


def preview(dataset: Dataset, columns: Sequence[ColumnReport]) -> list[list[Any]]:
    """The first rows, a list each: pictures, None for what is missing, or values."""
    rows = np.arange(min(PREVIEWED, len(dataset)))
    masks = masks_of(dataset)
    batch = dataset.take(rows, {name: name for name in dataset.schema.names})
    shown: list[list[Any]] = [[] for _ in rows]
    for report in columns:
        column = report.column
        mask = batch[masks[column.name]] if column.name in masks else np.zeros(len(rows), bool)
        for row, cells in enumerate(shown):
            value = None if mask[row] else batch[column.name][row]
            picture = None
            if value is not None and report.pictures is not None and report.pictures.shown:
                picture = picture_of(column, value, row, THUMBNAIL)
            cells.append(value if picture is None else picture)
    return shown


def shorten(value: Any) -> str:
    """A number, an array or bytes, in a few words."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:8].hex(' ')}{' …' if len(value) > 8 else ''}"
    array = np.asarray(value)
    if not array.ndim:
        return _plain(array.item())
    listed = ", ".join(_plain(each) for each in array.reshape(-1)[:4].tolist())
    shape = " × ".join(map(str, array.shape))
    return f"[{listed}{', …' if array.size > 4 else ''}]" + (f" {shape}" if array.size > 4 else "")


def _plain(value: Any) -> str:
    return (
        f"{value:.5g}"
        if isinstance(value, float)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
