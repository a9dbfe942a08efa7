"""Pictures of runs as SVG: how the trials learned, and which trial trained on which worker when.

Text and lines have the colour of the text around the picture, so that it suits light and dark pages; within a page
there is no style sheet and no identifier, which would be those of the whole page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hopyard.errors import NotFoundError, UsageError
from hopyard.hopper.state import JournalRecord, RunState, TrialState
from hopyard.markup import Html, tag
from hopyard.storage.oserrors import write_errors
from hopyard.tune.describing import IN_RUNGS, describe_number, describe_params
from hopyard.tune.rows import RecordedRun, epochs_of, validations_of
from hopyard.wording import counted, shortened

COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#d37295",
    "#a0cbe8", "#ffbe7d", "#8cd17d", "#ff9d9a", "#d4a6c8", "#86bcb6", "#f1ce63", "#fabfd2", "#d7b5a6", "#79706e",
)  # fmt: skip
"""Of the best trials, the best first; the others are grey."""
NAMED = 10
"""Trials that learning curves name."""
CLOSER_UNITS = 16
"""Units per worker that the closer look of a schedule shows, numbered."""
MOST_CURVES = 200
MOST_POINTS = 100
MOST_UNITS = 4000
MOST_WORKERS = 64

_WIDTH = 820
_GREY = {"opacity": 0.3}
_DIGIT = 6.5  # width of a digit
_ALONE = Html(
    "<style>:root{color:#1f2328;background:#fff}"
    "@media(prefers-color-scheme:dark){:root{color:#e6edf3;background:#0d1117}}</style>"
)
"""Colours of a picture in a file of its own."""
_FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


class _Frame(NamedTuple):
    """Plane of a diagram: its place in units of the picture, and the ranges of values that it shows."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float) -> float:
        """Distance of ``x`` from the left side of the plane."""
        return (x - self.x[0]) / (self.x[1] - self.x[0]) * self.width

    def up(self, y: float) -> float:
        """Distance of ``y`` from the top side of the plane."""
        return (self.y[1] - y) / (self.y[1] - self.y[0]) * self.height


def draw_schedule(run: RecordedRun, path: str | Path) -> Path:
    """Write the schedule of a run as an SVG file: a row per worker, a bar per unit.

    Returns: the path.

    Raises:
        NotFoundError: the run has done no unit yet.
        UsageError: the path does not end in ``.svg``.
    """
    return _write(schedule(run.state, run.units()), run, path)


def draw_curves(run: RecordedRun, path: str | Path) -> Path:
    """Write the learning curves of a run as an SVG file: the evaluation metric of every trial over its epochs.

    Returns: the path.

    Raises:
        NotFoundError: no epoch of the run has ended yet.
        UsageError: the path does not end in ``.svg``.
    """
    return _write(curves(run.state), run, path)


def _write(picture: Html | None, run: RecordedRun, path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() != ".svg":
        raise UsageError(
            f"path={str(path)!r}, but pictures are SVG. Write {path.with_suffix('.svg').name!r}."
        )
    if picture is None:
        raise NotFoundError(f"run {run.run_id} has nothing to draw yet. Draw it once an epoch has ended.")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture.replace(">", f">{_ALONE}", 1), encoding="utf-8")
    return path


def colours_of(state: RunState) -> dict[int, str]:
    """The colours of the best trials by number."""
    return {trial.number: colour for trial, colour in zip(state.ranked(), COLOURS, strict=False)}


def curves(state: RunState) -> Html | None:
    """The evaluation metric of the trials over their epochs, the best ones in colours and named; None before the first
    epoch has ended. Of a search in rungs, dashed lines say where trials were stopped, and how many trained on."""
    key, ranked = state.metric.key, state.ranked()[:MOST_CURVES]
    pairs = [(trial, _curve(state, trial)) for trial in ranked]
    named = [pair for pair in pairs[:NAMED] if pair[1]]
    values = [y for _, points in named for _, y in points if math.isfinite(y)]
    if not values:
        return None
    epochs = [x for _, points in pairs for x, _ in points]
    frame = _Frame(
        46, 24, 400, 190, _wider(min(epochs), max(epochs), 0.5),
        _wider(*_without_outliers(values, state.metric.mode == "max"), 0.01),
    )  # fmt: skip
    colours = colours_of(state)
    lines = [_line(frame, trial, points, colours.get(trial.number)) for trial, points in reversed(pairs)]
    description = f"{key} of {counted(len(state.trials), 'trial')} by epoch"
    plane = tag(
        "svg",
        _rungs(frame, state),
        lines,
        x=frame.left,
        y=frame.top,
        width=frame.width,
        height=frame.height,
        overflow="hidden",
    )
    parts = [_axes(frame, "epoch", whole_x=True), plane, _legend(state, [trial for trial, _ in named])]
    return _picture(description, frame.top + frame.height + 32, parts)


def _rungs(frame: _Frame, state: RunState) -> list[Html]:
    """A line at each length at which trials of a search in rungs were stopped."""
    if state.header.get("settings", {}).get("kind") not in IN_RUNGS:
        return []
    lengths = {trial.number: epochs_of(state, trial) for trial in state.trials.values()}
    ends = {lengths[trial.number] for trial in state.trials.values() if trial.status == "stopped"} - {0}
    height = 11 if state.metric.mode == "max" else frame.height - 5  # where the curves of bad trials are not
    parts = []
    for end in sorted(ends):
        on, came = (
            sum(length > end for length in lengths.values()),
            sum(length >= end for length in lengths.values()),
        )
        at = frame.at(end)
        parts += [
            tag(
                "path",
                d=f"M{at:.1f} 0V{frame.height:g}",
                stroke="currentColor",
                opacity=0.5,
                stroke_dasharray="4 3",
            ),
            _text(f"{on} of {came} train on", at + 3, height),
        ]
    return parts


def schedule(state: RunState, units: Sequence[JournalRecord]) -> Html | None:
    """Workers over time: a bar for each unit, in the colour of its trial; None before the first unit is done.

    Training units are as high as the row, validation units half as high. Below it a closer look at the middle of a run
    of many units, with the numbers of the trials.
    """
    if not units:
        return None
    shown = sorted(units, key=lambda unit: float(unit["a"]))
    if len(shown) > MOST_UNITS:
        first = (len(shown) - MOST_UNITS) // 2
        shown = shown[first : first + MOST_UNITS]
    every = sorted({unit["w"] for unit in shown})
    workers = {worker: row for row, worker in enumerate(every[:MOST_WORKERS])}
    shown = [unit for unit in shown if unit["w"] in workers]
    colours = colours_of(state)
    whole = shown[0]["a"], max(unit["z"] for unit in shown)
    drawn = sorted({trial for unit in shown for trial in unit["t"]})
    some = f" (of {len(units):,})" if len(shown) < len(units) else ""
    description = (
        f"{counted(len(shown), 'unit')}{some} on {counted(len(workers), 'worker')}, a colour per trial"
    )
    row = max(min(22.0, 320 / len(workers)), 6.0)
    key = _key([trial for trial in colours if trial in drawn], colours, len(drawn) > len(colours))
    top, height = 42.0, row * len(workers)
    parts = [key, _workers_over_time(top, row, workers, shown, whole, colours)]
    closer = _middle(shown, CLOSER_UNITS * len(workers))
    if closer is not None:
        parts.append([_text("a closer look, with the trials' numbers", 62, top + height + 50)])
        top += height + 56
        seen = [unit for unit in shown if unit["z"] > closer[0] and unit["a"] < closer[1]]
        parts.append(_workers_over_time(top, row, workers, seen, closer, colours, with_numbers=True))
    return _picture(description, top + height + 32, parts)


def _workers_over_time(
    top: float,
    row: float,
    workers: dict[int, int],
    units: Sequence[JournalRecord],
    seconds: tuple[float, float],
    colours: dict[int, str],
    with_numbers: bool = False,
) -> list[Html]:
    """Rows of workers from ``top`` on, with the bars of the units."""
    height = row * len(workers)
    frame = _Frame(62, top, _WIDTH - 74, height, (seconds[0], max(seconds[1], seconds[0] + 1e-9)), (0, 1))
    bars = _bars(frame, units, workers, row)
    content = [
        tag("path", tag("title", f"trial {trial}"), d=bars[trial], **_filled(colours.get(trial)))
        for trial in sorted(bars)
    ]
    if with_numbers:
        content += _numbers(frame, units, workers, row)
    each = math.ceil(12 / row)
    labels = [
        _text(f"worker {worker}", frame.left - 6, top + (place + 0.5) * row + 4, anchor="end")
        for worker, place in workers.items()
        if place % each == 0
    ]
    plane = tag("svg", content, x=frame.left, y=top, width=frame.width, height=height, overflow="hidden")
    return [*_axes(frame, "seconds since the run began", with_y=False), *labels, plane]


def _middle(units: Sequence[JournalRecord], most: int) -> tuple[float, float] | None:
    """Interval of time in which about ``most`` units begin, halfway through the run; None if there are hardly more."""
    if len(units) <= 2 * most:
        return None
    start = (len(units) - most) // 2
    return units[start]["a"], units[start + most]["a"]


def _numbers(
    frame: _Frame, units: Iterable[JournalRecord], workers: dict[int, int], row: float
) -> list[Html]:
    """The trials' numbers on the bars that are wide enough for them."""
    parts = []
    for unit in units:
        text = ",".join(map(str, unit["t"]))
        left, right = max(frame.at(unit["a"]), 0), min(frame.at(unit["z"]), frame.width)
        if right - left > _DIGIT * len(text):
            low = (workers[unit["w"]] + (0.5 if unit["ph"] == "train" else 0.7)) * row
            parts.append(_text(text, (left + right) / 2, low + 4, anchor="middle"))
    return parts


def _curve(state: RunState, trial: TrialState) -> list[tuple[float, float]]:
    """Epochs and values, not more than can be seen."""
    found = validations_of(state, trial)
    values = found.metrics.get(state.metric.key, [])
    points = list(zip(found.epochs[len(found.epochs) - len(values) :], values, strict=True))
    every = math.ceil(len(points) / MOST_POINTS) or 1
    return points[:-1:every] + points[-1:]


def _line(
    frame: _Frame, trial: TrialState, points: Sequence[tuple[float, float]], colour: str | None
) -> Html:
    """A curve; it is interrupted where a value is no number."""
    path, is_down = "", False
    for x, y in points:
        if math.isfinite(y):  # a line of no length is a point, which is drawn larger if there is nothing else
            path += f"{'L' if is_down else 'M'}{frame.at(x):.1f} {frame.up(y):.1f}{'' if is_down else 'h0'}"
        is_down = math.isfinite(y)
    return tag(
        "path", tag("title", _name(trial)), d=path, fill="none", stroke=colour or "currentColor",
        stroke_width=6 if "L" not in path else 2 if colour else 1, stroke_linecap="round", stroke_linejoin="round",
        opacity=None if colour else 0.2,
    )  # fmt: skip


def _name(trial: TrialState) -> str:
    best = f"{describe_number(trial.best.value)}  " if trial.best else ""
    return f"{trial.number}:  {best}{describe_params(trial.params)}"


def _legend(state: RunState, named: Sequence[TrialState]) -> list[Html]:
    """The best trials beside their curves."""
    colours, left, top = colours_of(state), 462, 20
    parts = [_text("trial: best value", left, top)]
    for place, trial in enumerate(named, start=1):
        parts.append(
            tag("rect", x=left, y=top + 17 * place - 9, width=10, height=10, fill=colours[trial.number])
        )
        parts.append(_text(shortened(_name(trial), 48), left + 16, top + 17 * place))
    others = len(state.trials) - len(named)
    if others > 0:
        drawn = "" if len(state.trials) <= MOST_CURVES else f" the best {MOST_CURVES - len(named):,} of"
        parts.append(_text(f"pale:{drawn} {others:,} others", left + 16, top + 17 * (len(named) + 1)))
    return parts


def _key(trials: Iterable[int], colours: dict[int, str], others: bool) -> list[Html]:
    """The colours of trials, in a line above the plane."""
    parts, left = [], 62.0
    for trial in trials:
        if left > _WIDTH - 250:
            break
        parts.append(tag("rect", x=left, y=23, width=10, height=10, fill=colours[trial]))
        parts.append(_text(str(trial), left + 14, 32))
        left += 30 + 6 * len(str(trial))
    more = "grey: other trials; " if others else ""
    return [*parts, _text(f"{more}half height: validation", left, 32)]


def _bars(
    frame: _Frame, units: Iterable[JournalRecord], workers: dict[int, int], row: float
) -> dict[int, str]:
    """Outlines of units by trial; units of a pack share the height of a bar."""
    bars: dict[int, str] = {}
    for unit in units:
        height = row * (0.8 if unit["ph"] == "train" else 0.4) / len(unit["t"])
        left = frame.at(unit["a"])
        width = max(frame.at(unit["z"]) - left - 0.3, 0.2)  # a little apart from the next one
        for place, trial in enumerate(unit["t"], start=1):
            top = (workers[unit["w"]] + 0.9) * row - place * height
            bar = f"M{left:.1f} {top:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            bars[trial] = bars.get(trial, "") + bar
    return bars


def _filled(colour: str | None) -> dict[str, Any]:
    return {"fill": colour} if colour else {"fill": "currentColor", **_GREY}


def _axes(frame: _Frame, title: str, *, whole_x: bool = False, with_y: bool = True) -> list[Html]:
    """Lines and numbers below the plane and, if there are any, on its left."""
    left, bottom = frame.left, frame.top + frame.height
    parts = [_rule(left, bottom, left + frame.width, bottom, 0.6)]
    for tick in _ticks(*frame.x, 8):
        if not whole_x or tick == int(tick):
            parts.append(_text(f"{tick:,.6g}", left + frame.at(tick), bottom + 14, anchor="middle"))
    parts.append(_text(title, left + frame.width / 2, bottom + 28, anchor="middle"))
    for tick in _ticks(*frame.y, 5) if with_y else ():
        y = frame.top + frame.up(tick)
        parts += [
            _rule(left, y, left + frame.width, y, 0.15),
            _text(f"{tick:.5g}", left - 5, y + 4, anchor="end"),
        ]
    return parts


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most about ``most``."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    return [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _wider(low: float, high: float, least: float) -> tuple[float, float]:
    """The range with a little space at both ends; never empty, also of equal or huge numbers."""
    space = max((high - low) * 0.04, least if low == high else 0.0, abs(high) * 1e-9, 1e-12)
    return low - space, high + space


def _without_outliers(values: Sequence[float], maximize: bool) -> tuple[float, float]:
    """The smallest and the largest value; values beyond all that is usual, on the bad side, do not count."""
    inorder = sorted(values, reverse=maximize)  # the best first
    best, middle, worst = inorder[0], inorder[len(inorder) // 2], inorder[-1]
    if best != middle and abs(worst - middle) > 10 * abs(middle - best):
        worst = middle + 10 * (middle - best)
    return min(best, worst), max(best, worst)


def _rule(x1: float, y1: float, x2: float, y2: float, opacity: float) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", opacity=opacity)


def _text(text: str, x: float, y: float, *, anchor: str | None = None, weight: str | None = None) -> Html:
    return tag("text", text, x=float(x), y=float(y), text_anchor=anchor, font_weight=weight)


def _picture(description: str, height: float, parts: Sequence[Any]) -> Html:
    return tag(
        "svg",
        tag("title", description),
        _text(description, 0, 12, weight="bold"),
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height:.0f}",
        width=_WIDTH,
        height=f"{height:.0f}",
        role="img",
        fill="currentColor",
        style=f"max-width:100%;height:auto;font:{_FONT}",
    )  # fmt: skip
