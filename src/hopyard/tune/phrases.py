"""Messages of runs in the words of experiments, whose users write YAML and commands where others write Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from hopyard.errors import HopyardError, Preempted

Wording: TypeAlias = Callable[[str], str]

PHRASES = (
    (
        "run the same script again, which returns its result at once.",
        "`hopyard experiment describe` shows its result.",
    ),
    (
        "before its first unit; run the same script again to go on",
        "before its first unit; give the command again",
    ),
    ("run the same script again to go on", "`hopyard experiment resume` goes on"),
    ("make space, and run the same script again", "make space, and give `hopyard experiment resume`"),
    ("and run the same script again later", "and give `hopyard experiment resume` later"),
    ("Run the same script again", "Give the command again"),
    (
        "; if it says fresh=True, which begins another run, `hopyard run resume STORE ",
        ", or `hopyard experiment resume ",
    ),
    ("fresh=True trains again.", "--fresh runs it again."),
    (
        "or give reproducible=False, or fresh=True to start anew.",
        "or begin another with `hopyard experiment create --fresh`.",
    ),
    (
        "give another run_id, or fresh=True to start anew.",
        "begin another with `hopyard experiment create --fresh`.",
    ),
    ("start the run anew with fresh=True.", "begin another with `hopyard experiment create --fresh`."),
    ("Start the run again with fresh=True.", "Begin another with `hopyard experiment create --fresh`."),
    (
        "or delete it and run again, with fresh=True if the run is finished: what needs it is then made anew.",
        "or train anew with `hopyard experiment create --fresh`.",
    ),
    (
        "or search again with fresh=True over the same base, which writes it anew.",
        "or train over the same base anew with `hopyard experiment create --fresh`, which writes it anew.",
    ),
    ("begin the run anew with fresh=True.", "begin another with `hopyard experiment create --fresh`."),
    (
        "run the search with take_over=True (--take-over on the command line): the other",
        "give the command again with --take-over (take_over=True in Python): the other",
    ),
    ("Rank by another metric (evaluation_metric=), or", "Rank by another metric (searcher.metric), or"),
    (
        "Name one of these as evaluation_metric, or let the estimator measure",
        "Name one of these as searcher.metric, or let the trial measure",
    ),
    ("evaluation_metric is ", "searcher.metric is "),
    (
        "Name one of these, or add it to the estimator's metrics=[...].",
        "Name one of these, or have the trial measure it.",
    ),
    (", but the estimator measures ", ", but the trial measures "),
    ("model.trials() has all of them.", "`hopyard experiment describe` shows all of them."),
    ("See run.trials() for all of them;", "`hopyard experiment describe` shows all of them;"),
    ("Its script, started again, goes on with it.", "`hopyard experiment resume` goes on with it."),
    ("by `hopyard run resume` or by starting its script again.", "by `hopyard experiment resume`."),
    ("so nothing was prepared and no run was begun.", "so no experiment was begun."),
    (
        "The state is that of another model than the estimator function now builds: ",
        "The weights to begin from are of another model than the trial builds: ",
    ),
    (
        "Build the model that the state came from: same layers, names and sizes for the same parameters.",
        "Give the hyperparameters with which they were trained, and the same layers.",
    ),
    ("`hopyard run ", "`hopyard experiment "),
)
"""Phrases of messages, and what they are in experiments, replaced one after the other."""


def of_experiments(text: str) -> str:
    """A message about a run, in the words of experiments."""
    for phrase, instead in PHRASES:
        text = text.replace(phrase, instead)
    return text


def wording_of(header: Mapping[str, Any]) -> Wording:
    """The wording of messages about a run, by the first record of its journal."""
    return of_experiments if "experiment" in header else str


@contextmanager
def worded(wording: Wording) -> Iterator[None]:
    """Have errors that are raised within say what they say in this wording."""
    try:
        yield
    except (HopyardError, Preempted) as error:
        error.args = tuple(wording(each) if isinstance(each, str) else each for each in error.args)
        raise
