"""Runs and models as HTML, for notebooks.

Tables have the class that notebooks know from pandas, so that they look like all tables there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hopyard.errors import HopyardError
from hopyard.hopper.state import RunState, TrialState
from hopyard.markup import Html, join, tag
from hopyard.tune.callbacks import flat_params
from hopyard.tune.describing import describe_epochs, describe_mean, describe_number, describe_state
from hopyard.tune.pictures import colours_of, curves, schedule
from hopyard.tune.rows import RecordedRun, Row, epochs_of, replicate_row
from hopyard.wording import counted, shortened

if TYPE_CHECKING:
    from hopyard.tune.predicting.saved import ModelInfo

MOST_TRIALS = 10
MOST_FAILURES = 3
MOST_EPOCHS = 20
_LONGEST = 48
_SPACE = "padding:2px 8px"


def run_html(run: RecordedRun, chosen: int | None = None) -> Html:
    """A run: its best trials as a table, the learning curves and the schedule. The row of ``chosen`` is bold."""
    state = run.state
    states = Counter(describe_state(state, trial) for trial in state.trials.values())
    became = ", ".join(f"{count:,} {name}" for name, count in states.most_common())
    trials = counted(len(state.trials), "trial") + (f" ({became})" if became else "")
    try:
        units = run.units()
    except (HopyardError, OSError):  # its store is gone since it was opened
        units = []
    pictures = [curves(state), schedule(state, units)]
    return tag(
        "div",
        tag("p", tag("b", f"run {run.run_id}"), f": {run.status}; {trials}, {state.clock:.1f} s"),
        _leaderboard(state, chosen) if state.trials else None,
        [tag("p", line) for line in _failures(state)],
        [tag("div", picture, style="margin-top:1em") for picture in pictures if picture is not None],
    )


def model_html(info: ModelInfo, run: RecordedRun | None) -> Html:
    """A model: its facts, and the run that it comes from; of a model from a file, which has no run, its history."""
    epochs = describe_epochs(info.epoch)
    said = tag(
        "p",
        tag("b", f"model of trial {info.trial}"),
        f": {info.metric} {describe_number(info.value)} after epoch {epochs}",
    )
    if run is not None:
        return tag("div", said, run_html(run, info.trial))
    params = [[name, _short(value)] for name, value in flat_params(info.params, ".").items()]
    return tag("div", said, _table(["hyperparameter", "value"], params), _history(info.history))


def progress_html(headline: str, titles: Sequence[str], rows: Iterable[Sequence[str]], more: int) -> Html:
    """The table of a run that goes on; ``more`` trials are not in it."""
    return tag("div", tag("p", tag("b", headline)), _table(titles, rows), _and_more(more))


def _leaderboard(state: RunState, chosen: int | None) -> Html:
    ranked = state.ranked()
    shown = ranked[:MOST_TRIALS]
    params = list(dict.fromkeys(name for trial in shown for name in flat_params(trial.params, ".")))
    key = state.metric.key
    metrics = list(dict.fromkeys(name for trial in shown if trial.best for name in trial.best.metrics))
    metrics = [key, *(name for name in metrics if name != key)]
    colours = colours_of(state)
    rows = [
        [
            [tag("span", "■ ", style=f"color:{colours[trial.number]}"), str(trial.number)],
            *(_replicate(replicate_row(state, trial)) if state.replicates > 1 else ()),
            *(_short(flat_params(trial.params, ".").get(name, "")) for name in params),
            *(_measured(trial, name) for name in metrics),
            describe_epochs(epochs_of(state, trial)),
            describe_state(state, trial),
            f"{trial.seconds:.1f}",
        ]
        for trial in shown
    ]
    bold = [place for place, trial in enumerate(shown) if trial.number == chosen]
    point = ["point", "mean"] if state.replicates > 1 else []
    table = _table(["trial", *point, *params, *metrics, "epochs", "state", "seconds"], rows, bold)
    return join([table, _and_more(len(ranked) - len(shown), "; trials() has all of them")])


def _replicate(row: Row) -> list[str]:
    """Point and mean of a trial."""
    return [str(row["point"]), describe_mean(row["mean"], row["spread"])]


def _measured(trial: TrialState, name: str) -> str:
    """A metric at the best validation."""
    return describe_number(trial.best.metrics.get(name)) if trial.best else ""


def _failures(state: RunState) -> list[str]:
    failed = [trial for trial in state.trials.values() if trial.error is not None]
    lines = [
        f"trial {trial.number} failed: {_short(f'{trial.error.kind}: {trial.error.message}', 300)}"
        for trial in failed[:MOST_FAILURES]
        if trial.error is not None
    ]
    return (
        [*lines, f"and {len(failed) - MOST_FAILURES:,} more failed"] if len(failed) > MOST_FAILURES else lines
    )


def _history(history: dict[str, list[float]]) -> Html:
    """A row per epoch, the last ones of many."""
    length = max(map(len, history.values()), default=0)
    rows = [
        [
            str(epoch + 1),
            *(describe_number(values[epoch]) if epoch < len(values) else "" for values in history.values()),
        ]
        for epoch in range(max(length - MOST_EPOCHS, 0), length)
    ]
    return _table(["epoch", *history], rows) if rows else Html("")


def _short(value: Any, most: int = _LONGEST) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return shortened(text, most)


def _and_more(count: int, where: str = "") -> Html | None:
    return tag("p", f"and {counted(count, 'more trial')}{where}") if count > 0 else None


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]], bold: Sequence[int] = ()) -> Html:
    """A table that scrolls by itself where it is too wide."""
    head = tag("tr", [tag("th", title, style=f"text-align:left;{_SPACE}") for title in titles])
    body = [
        tag("tr", [_cell(tag("b", cell) if place in bold else cell) for cell in row])
        for place, row in enumerate(rows)
    ]
    table = tag("table", tag("thead", head), tag("tbody", body), class_="dataframe", border="0")
    return tag("div", table, style="overflow-x:auto")


def _cell(content: Any) -> Html:
    return tag("td", content, style=f"text-align:left;white-space:nowrap;{_SPACE}")
