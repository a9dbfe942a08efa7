"""Pictures of runs: who was where when, and how the trials learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.errors import missing_extra
from hopyard.tune.run import Run

try:
    from matplotlib import colormaps
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing_extra("matplotlib", "demo", "drawing a run") from error

_INK, _FAINT = "#222222", "#bbbbbb"


def draw_schedule(run: Run, path: str | Path) -> Path:
    """Workers over time as a PNG: one row per worker, one bar per unit, coloured by trial.

    Training units are full, validation units pale.
    """
    units = run.units()
    workers = sorted({unit["w"] for unit in units})
    figure, axes = _figure(height=1.6 + 0.7 * len(workers))
    colours = _colours(sorted(run.state.trials))
    for unit in units:
        share = 0.8 / len(unit["t"])
        for place, trial in enumerate(unit["t"]):
            axes.barh(
                workers.index(unit["w"]) - 0.4 + share * (place + 0.5),
                unit["z"] - unit["a"],
                left=unit["a"],
                height=share,
                color=colours[trial],
                alpha=1.0 if unit["ph"] == "train" else 0.45,
                linewidth=0,
            )
    axes.set_yticks(range(len(workers)), [f"worker {worker}" for worker in workers])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the run began")
    axes.set_title(
        f"{run.run_id}: units on workers, one colour per trial (pale: validation)", fontsize=10, loc="left"
    )
    _legend_of_trials(axes, colours)
    return _save(figure, path)


def draw_curves(run: Run, path: str | Path) -> Path:
    """The evaluation metric of every trial over its epochs as a PNG; the best trial stands out."""
    key, best = run.state.metric.key, run.state.best
    figure, axes = _figure(height=4.2)
    colours = _colours(sorted(run.state.trials))
    for number, trial in run.state.trials.items():
        values = trial.history.get(key, [])
        chosen = number == best
        axes.plot(
            range(1, len(values) + 1),
            values,
            color=colours[number],
            linewidth=3 if chosen else 1.2,
            alpha=1.0 if chosen else 0.7,
            marker="o",
            markersize=6 if chosen else 3,
            zorder=3 if chosen else 2,
            label=f"{number} (best)" if chosen else str(number),
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(key)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color=_FAINT, linewidth=0.4)
    axes.set_title(f"{run.run_id}: {key} of {len(run.state.trials)} trials", fontsize=10, loc="left")
    if len(run.state.trials) <= 20:
        axes.legend(
            title="trial", fontsize=7, ncol=2, frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left"
        )
    return _save(figure, path)


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _colours(trials: list[int]) -> dict[int, Any]:
    palette = colormaps["tab20"]
    return {number: palette(place % 20) for place, number in enumerate(trials)}


def _legend_of_trials(axes: Any, colours: dict[int, Any]) -> None:
    if len(colours) > 20:
        return
    for number, colour in colours.items():
        axes.barh(0, 0, color=colour, label=str(number))
    axes.legend(title="trial", fontsize=7, ncol=2, frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")


def _save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
