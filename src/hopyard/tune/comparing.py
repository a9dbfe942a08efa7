"""Runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopyard.errors import UsageError
from hopyard.tune.rows import Row, epochs_of

if TYPE_CHECKING:
    import pandas as pd

    from hopyard.tune.run import Run

COLUMNS = (
    "run", "kind", "status", "data", "metric", "settings", "trials", "epochs", "best", "params", "seconds", "note",
)  # fmt: skip


def compare(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run, in the given order.

    Columns: run (its id), kind of search, status, data (the fingerprint of its rows), metric, settings (a dict of
    those in which the runs differ), trials (int), epochs trained by all of them, best (value of the metric, NaN if
    none), params (the best trial's, or None), seconds that it was driven, and a note where the best value is not
    comparable with the first run's, because the metric or the data is another; else it is empty.

    Raises:
        UsageError: no run was given.
    """
    import pandas as pd

    return pd.DataFrame(compared_rows(runs), columns=list(COLUMNS))


def compared_rows(runs: Sequence[Run]) -> list[Row]:
    """The rows of :func:`compare`, without pandas."""
    if not runs:
        raise UsageError("compare was given no runs, but needs at least one. Write compare([run, other]).")
    settings = [_settings_of(run) for run in runs]
    differing = _differing(settings)
    rows = []
    for run, own in zip(runs, settings, strict=True):
        state = run.state
        best = state.trials[state.best] if state.best is not None else None
        rows.append(
            {
                "run": run.run_id,
                "kind": run.settings["kind"],
                "status": run.status,
                "data": run.settings["data"],
                "metric": state.metric.key,
                "settings": {name: _shown(own[name]) for name in differing if name in own},
                "trials": len(state.trials),
                "epochs": sum(epochs_of(state, trial) for trial in state.trials.values()),
                "best": best.best.value if best and best.best else float("nan"),
                "params": best.params if best else None,
                "seconds": state.clock,
                "note": _note(run, runs[0]),
            }
        )
    return rows


def _settings_of(run: Run) -> dict[str, Any]:
    """The settings; of an experiment the fields of its configuration, each by its path, its code, and the weights that
    it began from: all other settings follow from these."""
    if "experiment" not in run.settings:
        return run.settings
    about = run.state.header["experiment"]
    warm = about.get("warm_start")
    code = {"definition": about["definition"][:12], "keras_backend": run.settings.get("keras_backend")}
    began = {"warm_start": f"trial {warm['trial']} of {warm['experiment']}"} if warm is not None else {}
    return _fields(run.settings["experiment"], "") | code | began


def _fields(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for name, part in value.items():
        found |= _fields(part, f"{path}.{name}" if path else name)
    return found


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Names of settings that are not the same in all runs, without settings that have columns of their own."""
    names = dict.fromkeys(name for each in settings for name in each)
    found = [
        name for name in names if len({json.dumps(each.get(name), sort_keys=True) for each in settings}) > 1
    ]
    return [name for name in found if name not in ("kind", "data")]


def _shown(setting: Any) -> Any:
    """The digest of an identity of code; other settings as they are."""
    return (
        str(setting["digest"])[:12]
        if isinstance(setting, dict) and {"digest", "parts"} <= set(setting)
        else setting
    )


def _note(run: Run, first: Run) -> str:
    notes = []
    if run.state.metric != first.state.metric:
        notes.append(
            f"another metric than {first.run_id} ({first.state.metric.key}, {first.state.metric.mode})"
        )
    if run.settings["data"] != first.settings["data"]:
        notes.append(f"other data than {first.run_id}")
    return ", ".join(notes)
