"""JSON of datasets; docs/cli.md documents the keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from hopyard.data import CacheListing, Prepared, Throughput, VerifiedData
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import ColumnStatistics
from hopyard.data.reports.summary import DatasetSummary, Summary
from hopyard.data.reports.throughput import Epoch
from hopyard.data.schema import Column
from hopyard.documents import shapes


def summary_json(summary: Summary) -> list[shapes.DescribedSplitJson]:
    """The splits of a dataset."""
    return [_split(each) for each in summary.splits]


def _split(split: DatasetSummary) -> shapes.DescribedSplitJson:
    return {
        "split": cast(shapes.SplitName, split.split),
        "rows": split.rows,
        "row_groups": split.row_groups,
        "files": split.files,
        "file_bytes": split.nbytes,
        "prepared": split.prepared,
        "created": datetime.fromisoformat(split.created) if split.created else None,
        "fingerprint": split.fingerprint,
        "settings": split.settings,
        "partitions": split.partitions,
        "cached_row_groups": split.cached,
        "notes": split.notes,
        "columns": [_column(split, column) for column in split.schema],
    }


def _column(split: DatasetSummary, column: Column) -> shapes.DataColumnJson:
    return {
        **cast(shapes.SchemaColumnJson, column.to_json()),
        "read": "mapped" if split.mapped[column.name] else "decoded",
        "sorted": split.sortedness.get(column.name),
        "statistics": _statistics(split.statistics.get(column.name)),
    }


def _statistics(known: ColumnStatistics | None) -> shapes.ColumnStatisticsJson | None:
    if known is None:
        return None
    return {
        "min": known.min,
        "max": known.max,
        "mean": known.mean,
        "std": known.std,
        "missing": known.missing,
        "not_finite": known.not_finite,
        "distinct": known.distinct,
    }


def prepared_json(prepared: Prepared, seconds: float) -> dict[str, Any]:
    """A dataset that was prepared, or found again, in so many seconds."""
    return {
        "fingerprint": prepared.fingerprint,
        "reused": prepared.reused,
        "took_seconds": seconds,
        "train": _place(prepared.train),
        "val": None if prepared.val is None else _place(prepared.val),
    }


def _place(split: Dataset) -> dict[str, Any]:
    return {"rows": len(split), "url": None if split.store is None else split.store.url}


def verified_json(verified: VerifiedData) -> dict[str, Any]:
    """The findings in prepared datasets."""
    return {
        "ok": verified.ok,
        "datasets": verified.datasets,
        "files": verified.files,
        "read_bytes": verified.nbytes,
        "problems": verified.problems,
    }


def throughput_json(measured: Throughput) -> dict[str, Any]:
    """How fast a dataset was read, beside the limits."""
    return {
        "rows": measured.rows,
        "batch_size": measured.batch_size,
        "shuffle": measured.shuffle,
        "output": measured.output,
        "columns": measured.columns.names,
        "decoded_columns": measured.decoded,
        "window_rows": measured.window,
        "take_rows_per_second": measured.gather_limit,
        "pyarrow_rows_per_second": measured.decode_limit,
        "quality": measured.quality,
        "anonymous_before_bytes": measured.anonymous_before,
        "epochs": [_epoch(each) for each in measured.epochs],
    }


def _epoch(epoch: Epoch) -> dict[str, Any]:
    return {
        "rows": epoch.rows,
        "batches": epoch.batches,
        "value_bytes": epoch.nbytes,
        "took_seconds": epoch.seconds,
        "first_batch_seconds": epoch.first_batch,
        "cpu_seconds": epoch.cpu_seconds,
        "rows_per_second": epoch.rows_per_second,
        "peak_anonymous_bytes": epoch.peak_anonymous,
        "peak_shared_bytes": epoch.peak_shared,
    }


def cache_json(listing: CacheListing) -> dict[str, Any]:
    """What the node cache holds, most recently used files first."""
    return {
        "path": listing.path,
        "limit_bytes": listing.limit,
        "used_bytes": listing.nbytes,
        "files": [
            {
                "file": each.file,
                "entries": each.entries,
                "row_groups": each.row_groups,
                "used_bytes": each.nbytes,
                "last_used": datetime.fromtimestamp(each.used, UTC),
            }
            for each in listing.files
        ],
    }
