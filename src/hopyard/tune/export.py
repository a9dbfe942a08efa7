"""Runs as files, MLflow runs and Optuna studies, for other programs to show."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.errors import NotFoundError, UsageError
from hopyard.search.points import key_of
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name
from hopyard.tune.rows import RecordedRun, Row, history_rows, trial_rows

if TYPE_CHECKING:
    import pyarrow as pa


_TARGETS = (
    'Write "trials.jsonl", "trials.csv", "trials.parquet", "mlflow:" with a tracking URI after it, or '
    '"sqlite:///study.db" or a storage of Optuna.'
)


def export_run(
    run: RecordedRun, target: Any, *, history: bool = False, overwrite: bool = False, name: str | None = None
) -> None:
    """Write a run's results for other programs; also a run that is still under way.

    Args:
        target: what is written to:
            a file ``*.jsonl``, ``*.csv`` or ``*.parquet``: ``trial_rows`` of the run, or its ``history_rows``. In JSON
            lines, numbers that are not finite are null; in tables, columns of mixed kinds hold JSON texts.
            ``"mlflow:URI"``: an MLflow run for the run and one below it for each trial, as ``MLflowCallback`` logs
            them. Nothing after the colon: where MLflow is set to log.
            ``"sqlite:///study.db"`` or the URL of another database, or an object of ``optuna.storages``: a study.
        history: one row per epoch of a trial, in place of one per trial. For files; others hold both.
        overwrite: replace what the target holds of that name.
        name: of the study (None: the run's id), or of the MLflow experiment (None: ``"hopyard"``).

    Raises:
        UsageError: the target is none of these, or holds the run already; nothing was written.
        MissingExtraError: MLflow or Optuna is not installed.
        StorageError: the file cannot be written; nothing was half-written.
    """
    text = os.fspath(target) if isinstance(target, str | os.PathLike) else None
    suffix = "" if text is None else Path(text).suffix.lower()
    to_file = suffix in _WRITERS and text is not None and "://" not in text and not text.startswith("mlflow:")
    if not to_file and history:
        raise UsageError(
            f"history=True is for files, but the target is {target!r}, which holds the history of each trial anyway. "
            "Leave history out."
        )
    if to_file and name is not None:
        raise UsageError(
            f"name={name!r} is for studies and experiments, but the target is the file {text}. Leave it out."
        )
    if text is not None and to_file:
        _to_file(run, Path(text), history, overwrite)
    elif text is not None and text.startswith("mlflow:"):
        from hopyard.tune.mlflow import MLflowCallback

        MLflowCallback(text.removeprefix("mlflow:") or None, name or "hopyard").export(run, overwrite)
    elif text is None or "://" in text:
        from hopyard.tune.optuna import export_to_optuna

        export_to_optuna(run, target, name or run.run_id, overwrite)
    else:
        raise UsageError(f"the target {text!r} is nothing that a run is exported to. {_TARGETS}")


def _to_file(run: RecordedRun, path: Path, history: bool, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise NotFoundError(f"{path} cannot be written: there is no directory {path.parent}. Make it first.")
    if path.exists() and not overwrite:
        raise UsageError(
            f"{path} exists already. Give another name, or overwrite=True (on the command line: --overwrite)."
        )
    rows = history_rows(run.state) if history else trial_rows(run.state)
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        names = ["trial", "epoch", "seconds"] if history else ["number", "state", "epochs"]
    unfinished = path.with_name(temporary_name())
    with write_errors(path):
        try:
            _WRITERS[path.suffix.lower()](rows, names, unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _write_jsonl(rows: list[Row], names: list[str], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({name: _json(row.get(name)) for name in names}, allow_nan=False) + "\n")


def _write_csv(rows: list[Row], names: list[str], path: Path) -> None:
    from pyarrow.csv import write_csv

    write_csv(_table(rows, names), path)


def _write_parquet(rows: list[Row], names: list[str], path: Path) -> None:
    from pyarrow.parquet import write_table

    write_table(_table(rows, names), path)


_WRITERS = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(rows: list[Row], names: Iterable[str]) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    """Values of one kind as they are, ints among floats as floats, everything else as JSON texts."""
    import pyarrow as pa

    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int, float}:
        values = [None if value is None else float(value) for value in values]
    elif kinds and not (len(kinds) == 1 and kinds <= {bool, int, float, str}):
        values = [None if value is None else key_of(value) for value in values]
    try:
        return pa.array(values)
    except OverflowError:  # whole numbers beyond 64 bits
        return pa.array([None if value is None else str(value) for value in values])
