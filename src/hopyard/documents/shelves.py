"""JSON of single things on the shelves of a stockroom; docs/cli.md documents the keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, cast

from hopyard.documents import shapes
from hopyard.stockroom.data.leaks import Leaks
from hopyard.stockroom.experiments.read import RunView
from hopyard.stockroom.importers.storing import Imported
from hopyard.stockroom.models.describe import Spread, TensorFacts

_KEYS = 10


def model_json(path: str, facts: Sequence[TensorFacts]) -> shapes.ModelJson:
    """A model's tensors."""
    return {
        "path": path,
        "value_bytes": sum(fact.nbytes for fact in facts if fact.change != "removed"),
        "tensors": [
            {
                "path": fact.path,
                "dtype": fact.dtype,
                "shape": fact.shape,
                "value_bytes": fact.nbytes,
                "statistics": spread_json(fact.spread),
                "change": fact.change,
                "moved": fact.moved,
                "relative": fact.relative,
            }
            for fact in facts
        ],
    }


def spread_json(spread: Spread | None) -> shapes.SpreadJson | None:
    """The distribution of a tensor's elements, or null."""
    return None if spread is None else cast(shapes.SpreadJson, asdict(spread))


def dataset_json(path: str, dataset: Any) -> dict[str, Any]:
    """A dataset's columns."""
    return {"path": path, "rows": len(dataset), "columns": dataset.schema.to_json()}


def column_json(path: str, column: Any, described: tuple[int, Spread] | None) -> dict[str, Any]:
    """A column, with its first keys and the statistics of the samples that were looked at."""
    samples, statistics = described or (0, None)
    return {
        "path": path,
        "kind": column.kind,
        "count": len(column),
        "value_bytes": column.nbytes,
        "dtype": column.dtype if column.kind == "tensor" else None,
        "shape": column.shape,
        "first_keys": list(islice(column, _KEYS)),
        "described": samples,
        "statistics": spread_json(statistics),
    }


def run_json(path: str, run: RunView) -> dict[str, Any]:
    """A run: parameters, tags, the last value of each metric, files, and the error that ended it."""
    return {
        "path": path,
        "status": run.status,
        "started": run.started,
        "run_seconds": run.seconds,
        "params": run.params,
        "tags": run.tags,
        "metrics": {
            name: {
                "count": len(values),
                "last": values[-1] if len(values) else None,
                "last_step": steps[-1] if len(values) else None,
            }
            for name, (steps, values) in run.metrics.items()
        },
        "artifacts": [{"name": name, "file_bytes": size} for name, size in run.artifacts.items()],
        "error": run.error,
    }


def leaks_json(found: Iterable[tuple[str, str, Leaks | Exception]]) -> list[dict[str, Any]]:
    """Pairs of columns or datasets: the keys of equal samples, or why they cannot be compared."""
    documents = []
    for first, second, each in found:
        document: dict[str, Any] = {"first": first, "second": second}
        if isinstance(each, Leaks):
            document |= {"compared": each.compared, "pairs": each.pairs, "error": None}
        else:
            document |= {"compared": None, "pairs": None, "error": str(each)}
        documents.append(document)
    return documents


def imported_json(imported: Imported, branch: str | None, seconds: float) -> dict[str, Any]:
    """An import."""
    return {
        "commit": imported.commit,
        "branch": branch,
        "is_new": imported.is_new,
        "columns": [{"path": f"data/{name}", "count": count} for name, count in imported.columns.items()],
        "resumed": imported.resumed,
        "took_seconds": seconds,
        "notes": imported.notes,
    }
