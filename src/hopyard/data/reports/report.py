"""``report``: a dataset as one HTML page, for people who want to see what they train on."""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopyard import __version__
from hopyard.data.dataset import Dataset
from hopyard.data.opening.opening import open_dataset
from hopyard.data.reports.facts import ColumnReport, preview, report_columns
from hopyard.data.reports.page import Report
from hopyard.data.reports.summary import summarize
from hopyard.errors import DataError, NotFoundError, NotWritableError, StorageFullError, UsageError
from hopyard.storage.base import Store

SAMPLE_ROWS = 50_000


def report(
    data: Any,
    output: str | os.PathLike[str] = "report.html",
    sample_rows: int = SAMPLE_ROWS,
    *,
    title: str | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Path:
    """Write a page about a dataset: columns, missing values, distributions of both splits, sample images, rows.

    The page is one file that loads nothing from elsewhere. Charts are of a sample, the same one every time; the page
    says which. Statistics that ``prepare`` wrote are of all rows. Of Parquet files as they are, nulls are counted.

    Args:
        data: a ``Dataset``, or anything that ``open_dataset`` takes, with both splits of a store.
        output: the file; one that is there is replaced once the page is complete.
        sample_rows: of each split and column at most; fewer of columns with large rows.
        title: of the page; by default the last part of the path.
        progress: called with the phase, columns done and columns in all.

    Returns:
        The path of the page.

    Raises:
        UsageError: an argument is impossible.
        NotFoundError: there is no dataset, or no directory for the page.
        DataError: the dataset has no rows.
        NotWritableError, StorageFullError: the page cannot be written; what was there before still is.
    """
    target = _checked(output)
    page = describe(data, sample_rows, title=title, progress=progress).html()
    _write(target, page.encode())
    return target


def describe(
    data: Any,
    sample_rows: int = SAMPLE_ROWS,
    *,
    title: str | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Report:
    """What :func:`report` writes, before it is written: for notebooks, ``IPython.display.HTML(describe(d).html())``."""
    if sample_rows < 1:
        raise UsageError(f"sample_rows={sample_rows}, but it must be an integer of at least 1.")
    datasets = _splits(data)
    if not len(datasets[0]):
        raise DataError("The dataset has no rows, so there is nothing to report. Open one that has some.")
    datasets = [datasets[0], *(each for each in datasets[1:] if len(each))]
    tell = progress or _say_nothing
    columns = tuple(report_columns(datasets, sample_rows, functools.partial(tell, "columns")))
    where = _where(data, datasets[0])
    return Report(
        title or _name_of(where, datasets[0]), where, tuple(map(summarize, datasets)), columns,
        preview(datasets[0], columns), _sampled(columns), __version__,
    )  # fmt: skip


def _say_nothing(phase: str, done: int, total: int | None) -> None:
    """Without a progress."""


def _splits(data: Any) -> list[Dataset]:
    if isinstance(data, Dataset):
        return [_uncached(data)]
    train = open_dataset(data, nulls="mask", cache=False)
    try:
        val = open_dataset(data, "val", nulls="mask", cache=False)
    except NotFoundError:
        return [train]
    return [train, val] if val.split != train.split else [train]


def _uncached(dataset: Dataset) -> Dataset:
    """A look at a few rows of every column by itself should not fill the node cache."""
    dataset = copy.copy(dataset)
    dataset.cache = False
    return dataset


def _where(data: Any, dataset: Dataset) -> str:
    if isinstance(data, (str, os.PathLike)):
        text = os.fspath(data)
        return text if "://" in text else str(Path(text).expanduser().absolute())
    if isinstance(data, Store):
        return data.url
    if dataset.store is not None:
        return dataset.store.url
    names = [entry.name for entry in dataset.manifest.files]
    return names[0] if len(names) == 1 else os.path.commonpath(names)


def _name_of(where: str, dataset: Dataset) -> str:
    """The last part of the path; a dataset inside a store, whose own folder is a digest, is named by the store."""
    path = Path(where)
    if path.name == dataset.fingerprint and len(path.parts) > 3:
        path = path.parent.parent
    return path.name or where


def _sampled(columns: tuple[ColumnReport, ...]) -> str:
    if all(facts.complete for column in columns for facts in column.splits):
        return "Charts, most frequent values and comparisons are of all rows."
    most = max(facts.rows for column in columns for facts in column.splits)
    return (
        f"Charts, most frequent values and comparisons are of a sample: at most {most:,} rows of each split, one from "
        "each of as many equal stretches of it, drawn with a fixed seed; of large rows fewer, and what must be decoded "
        "comes from some row groups only."
    )


def _checked(output: str | os.PathLike[str]) -> Path:
    target = Path(output).expanduser()
    if os.path.isdir(target):  # noqa: PTH112, also of a name that is too long
        raise UsageError(
            f"output={str(target)!r} is a directory. Give the path of a file, such as {target / 'report.html'}."
        )
    if not target.parent.is_dir():
        raise NotFoundError(
            f"{target.parent}, the directory for the report, does not exist. Make it, or give another path."
        )
    if not os.access(target.parent, os.W_OK):
        raise _not_writable(target, "permission denied")
    return target


def _not_writable(target: Path, reason: str | None) -> NotWritableError:
    return NotWritableError(
        f"The report cannot be written to {target} ({reason}). Give a path that you may write to."
    )


def _write(target: Path, page: bytes) -> None:
    """Under another name first, so that a page is there as a whole or not at all."""
    temporary = target.with_name(f".hopyard-report-{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(page)
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"No space is left in {target.parent} for the report of {len(page):,} bytes. Make space there."
            ) from error
        raise _not_writable(target, error.strerror) from error
