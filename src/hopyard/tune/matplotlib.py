"""Pictures of runs: who was where when, and how the trials learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopyard.errors import NotFoundError, missing_extra
from hopyard.hopper.state import Record
from hopyard.tune.export import epoch_numbers, epochs_of
from hopyard.tune.progress import IN_RUNGS, describe_number, describe_params
from hopyard.tune.run import Run
from hopyard.wording import counted

try:
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ImportError as error:
    raise missing_extra("matplotlib", "demo", "drawing a run") from error

CLOSER_UNITS = 16
"""Units per worker that the closer look of a schedule shows, numbered."""
NAMED_TRIALS = 10
"""Trials that learning curves name; the others are grey."""
_HEIGHTS = {"train": 0.8, "validate": 0.4}
_WIDTH_OF_DIGIT = 0.009
"""As a share of the picture's width."""
_GREY, _LINES = "#b8b8b8", "#e4e4e4"


def draw_schedule(run: Run, path: str | Path) -> Path:
    """Workers over time as a PNG: one row per worker, one bar per unit, coloured by trial.

    Training units are as high as the row, validation units half as high. Below it a closer look at
    the middle of a run of many units, with the numbers of the trials.

    Raises:
        NotFoundError: the run has done no unit yet.
    """
    units = sorted(run.units(), key=lambda unit: float(unit["a"]))
    if not units:
        raise NotFoundError(f"run {run.run_id} has no unit to draw yet. Draw it once it has done some.")
    workers = sorted({unit["w"] for unit in units})
    closer = _middle(units, CLOSER_UNITS * len(workers))
    panels = 1 if closer is None else 2
    figure = Figure(figsize=(11, panels * (1.3 + 0.55 * len(workers))), layout="constrained")
    colours = _colours(sorted(run.state.trials))
    rows = figure.subplots(panels, squeeze=False)[:, 0]
    _draw_units(rows[0], units, workers, colours)
    rows[0].set_xlim(units[0]["a"], max(unit["z"] for unit in units))
    rows[0].set_title(
        f"run {run.run_id}: {counted(len(units), 'unit')} on {counted(len(workers), 'worker')}, one colour per trial",
        loc="left",
    )
    if closer is not None:
        seen = [unit for unit in units if unit["z"] > closer[0] and unit["a"] < closer[1]]
        _draw_units(rows[1], seen, workers, colours)
        _number_units(rows[1], seen, workers, closer)
        rows[1].set_xlim(*closer)
        rows[1].set_title(
            "a closer look, with the trials' numbers (full height: training, half: validation)", loc="left"
        )
    rows[-1].set_xlabel("seconds since the run began")
    return _save(figure, path)


def draw_curves(run: Run, path: str | Path) -> Path:
    """The evaluation metric of every trial over its epochs as a PNG; the best ones are named.

    Of a search in rungs, dashed lines say where trials were stopped, and how many trained on.
    """
    key, ranked = run.state.metric.key, run.state.ranked()
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = _plain_axes(figure.add_subplot())
    colours = _colours([trial.number for trial in ranked[:NAMED_TRIALS]])
    for place, trial in reversed(list(enumerate(ranked))):
        values = trial.history.get(key, [])
        epochs = epoch_numbers(run.state, trial)[len(trial.ended_at) - len(values) :]
        named = place < NAMED_TRIALS and trial.best is not None
        label = f"{trial.number}:  {describe_number(trial.best.value)}  " if trial.best else ""
        axes.plot(
            epochs,
            values,
            color=colours[trial.number] if named else _GREY,
            linewidth=3.5 if place == 0 else 1.5 if named else 1,
            marker="o",
            markersize=7 if place == 0 else 4 if named else 2,
            zorder=4 if place == 0 else 3 if named else 2,
            label=label + describe_params(trial.params) if named else "_",
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(key)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color=_LINES)
    if run.state.header["settings"]["kind"] in IN_RUNGS:
        _draw_rungs(axes, run)
    axes.set_title(f"run {run.run_id}: {key} of {len(ranked)} trials", loc="left")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        title="trial: best value" if len(ranked) <= NAMED_TRIALS else f"the best {NAMED_TRIALS}: best value",
        alignment="left",
        fontsize=8.5,
        frameon=False,
        bbox_to_anchor=(1.01, 1),
        loc="upper left",
    )
    return _save(figure, path)


def _draw_rungs(axes: Any, run: Run) -> None:
    """A line at each length that trials were stopped at."""
    trials = run.state.trials.values()
    lengths = [epochs_of(run.state, trial) for trial in trials]
    ends = {length for trial, length in zip(trials, lengths, strict=True) if trial.status == "stopped"}
    height = 0.97 if run.state.metric.mode == "max" else 0.03  # where the curves of bad trials are not
    for end in sorted(ends - {0}):
        on = sum(length > end for length in lengths)
        axes.axvline(end, color="#888888", linestyle="--", linewidth=1, zorder=1)
        axes.text(
            end, height, f" {on} of {sum(length >= end for length in lengths)} train on",
            transform=axes.get_xaxis_transform(), va="center", color="#666666", fontsize=8.5,
        )  # fmt: skip


def _middle(units: list[Record], most: int) -> tuple[float, float] | None:
    """From when to when about ``most`` units begin, halfway through the run; None if there are hardly more."""
    if len(units) <= 2 * most:
        return None
    start = (len(units) - most) // 2
    return units[start]["a"], units[start + most]["a"]


def _draw_units(axes: Any, units: list[Record], workers: list[int], colours: dict[int, Any]) -> None:
    """A bar per unit, cut into as many as its pack has trials."""
    _plain_axes(axes)
    for unit in units:
        height = _HEIGHTS[unit["ph"]] / len(unit["t"])
        for place, trial in enumerate(unit["t"], start=1):
            axes.add_patch(
                Rectangle(
                    (unit["a"], workers.index(unit["w"]) + _HEIGHTS["train"] / 2 - place * height),
                    unit["z"] - unit["a"],
                    height,
                    color=colours[trial],
                    linewidth=0,
                )
            )
    axes.set_yticks(range(len(workers)), [f"worker {worker}" for worker in workers])
    axes.set_ylim(len(workers) - 0.5, -0.5)


def _number_units(axes: Any, units: list[Record], workers: list[int], closer: tuple[float, float]) -> None:
    """The trials' numbers on the bars that are wide enough for them."""
    for unit in units:
        text = ",".join(map(str, unit["t"]))
        left, right = max(unit["a"], closer[0]), min(unit["z"], closer[1])
        if right - left > len(text) * _WIDTH_OF_DIGIT * (closer[1] - closer[0]):
            axes.text(
                (left + right) / 2, workers.index(unit["w"]) + 0.2, text, ha="center", va="center", fontsize=8
            )


def _plain_axes(axes: Any) -> Any:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _colours(trials: Sequence[int]) -> dict[int, Any]:
    """Strong colours first, their pale sisters after them."""
    palette = colormaps["tab20"]
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    return {number: palette(order[place % 20]) for place, number in enumerate(trials)}


def _save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path
