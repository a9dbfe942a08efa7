"""Runs whose points have replicates: their best, what is kept of them, and that a kill changes nothing."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hopper.conftest import LAYOUT, killed_after_each_record

from hopyard.backend import InlineBackend
from hopyard.errors import Evidence, TrialError
from hopyard.hopper.history import broken_rules
from hopyard.hopper.state import RunState, trial_folder
from hopyard.hopper.work import Options
from hopyard.search import (
    Asha,
    FullLength,
    InVirtualTime,
    ListPoints,
    Patience,
    Pbt,
    RandomPoints,
    Replicated,
    Searcher,
    hp_uniform,
)
from hopyard.storage import MemoryStore

VISITS = 2 * LAYOUT["train"]
SPACE = {"x": hp_uniform(0, 1)}
FAILED = Evidence("ValueError", "as asked")


def searcher(kind: str) -> Searcher:
    points = RandomPoints(SPACE, 1)
    if kind == "full":
        return Replicated(FullLength(points, 3, VISITS), 2)
    inner: Searcher = Asha(points, 4, [2, VISITS], 2, 4) if kind == "asha" else Pbt(points, SPACE, 3, 2, 3)
    return InVirtualTime(Replicated(inner, 2))


@pytest.mark.parametrize("kind", ["full", "asha", "pbt"])
@pytest.mark.parametrize("fails", [None, 1])
def test_a_run_killed_after_each_record_ends_as_one_that_was_not(
    kind: str, fails: int | None, game: Any, result_of: Any
) -> None:
    def behaviour(visit: Any) -> Any:
        return FAILED if visit.trial == fails and visit.unit.trained == 2 else None

    arguments: dict[str, Any] = {
        "make_searcher": lambda: searcher(kind),
        "behaviour": behaviour,
        "of_header": {"settings": {"num_models": 4, "replicates": 2}},
        "extends": False,
    }
    undisturbed = game(MemoryStore(), InlineBackend(), **arguments)
    state = undisturbed.play()
    expected = result_of(state)
    assert broken_rules(undisturbed.records()) == []
    assert (fails is None) == all(trial.status != "failed" for trial in state.trials.values())
    for stop, run in killed_after_each_record(game, **arguments):
        again = run.play()
        assert result_of(again) == expected, f"after record {stop}"
        assert again.best == state.best
        assert [*map(again.standing, range(len(expected) // 2))] == [
            *map(state.standing, range(len(expected) // 2))
        ]
        assert files(run.store) == files(undisturbed.store)


def files(store: MemoryStore) -> list[str]:
    """Names of the files of states."""
    return sorted(entry.name for entry in store.list() if entry.name[0].isdigit())


@pytest.mark.parametrize("keep", ["completed", "best"])
def test_the_weights_of_the_best_trial_are_kept_whichever_replicate_fails_and_whenever(
    keep: str, game: Any
) -> None:
    """Only the point 2, of the trials 4 and 5, is promoted; without trial 5 the best one was stopped before."""
    became: dict[tuple[int, int], tuple[int, str]] = {}
    for fails, after in [(0, 1), (4, 1), (4, 3), (5, 1), (5, 2), (5, 3), (5, 5)]:

        def behaviour(visit: Any, fails: int = fails, after: int = after) -> Any:
            at = visit.trial, visit.unit.phase, visit.unit.trained
            return FAILED if at == (fails, "train", after) else None

        run = game(
            MemoryStore(),
            InlineBackend(),
            make_searcher=lambda: InVirtualTime(
                Replicated(Asha(RandomPoints(SPACE, 1), 4, [2, VISITS], 4, 4), 2)
            ),
            behaviour=behaviour,
            options=Options(keep=keep),
            of_header={"settings": {"num_models": 4, "replicates": 2}},
            extends=False,
        )
        state = run.play()
        best = state.trials[state.best]
        assert {f"{trial_folder(best.number)}/{name}" for name in best.best.state.files} <= {
            *files(run.store)
        }
        became[fails, after] = best.number, best.status
    assert became[0, 1] == (5, "completed")
    assert became[5, 3] == became[5, 5] == (0, "stopped")


def test_weights_of_stopped_points_go_once_they_cannot_be_the_best_ones(game: Any) -> None:
    run = game(
        MemoryStore(),
        InlineBackend(),
        make_searcher=lambda: searcher("asha"),
        of_header={"settings": {"num_models": 4, "replicates": 2}},
        extends=False,
    )
    state = run.play()
    kept = {int(name.partition("/")[0]) for name in files(run.store)}
    completed = {number for number, trial in state.trials.items() if trial.status == "completed"}
    assert completed <= kept <= completed | state.candidates
    assert len(kept) < len(state.trials)


def began(replicates: int, mode: str, trials: int) -> RunState:
    """A run of trials that have done nothing yet."""
    state = RunState()
    header: dict[str, Any] = {
        "layout": {"train": 1, "validate": 1},
        "num_epochs": 9,
        "settings": {"replicates": replicates},
    }
    state.apply({"r": "run", **header, "metric": {"key": "val_loss", "mode": mode}})
    for number in range(trials):
        state.apply({"r": "trial", "n": number, "params": {}, "g": 0, "source": None})
    return state


def validate(state: RunState, number: int, value: float) -> None:
    """An epoch of a trial."""
    visits = state.trials[number].progress.visits
    part: dict[str, Any] = {"digest": f"{number} {visits}", "files": [], "nbytes": 0}
    reference: dict[str, Any] = {**part, "parts": {"model": part}}
    unit: dict[str, Any] = {
        "r": "unit",
        "t": [number],
        "e": 0,
        "p": 0,
        "w": 0,
        "a": 0.0,
        "z": 1.0,
        "to": None,
        "last": False,
    }
    state.apply(unit | {"ph": "train", "v": visits, "s": [reference], "m": [{"loss": [1.0, 1.0]}]})
    state.apply(unit | {"ph": "validate", "v": visits + 1, "s": [None], "m": [{"values": {"loss": value}}]})


def end(state: RunState, number: int, status: str) -> None:
    error = {"error": FAILED.to_json()} if status == "failed" else {}
    state.apply({"r": "end", "t": number, "status": status, **error})


def expected_order(state: RunState, replicates: int) -> tuple[list[int], dict[int, tuple[float, float]]]:
    """Trials best first, and mean and spread by point, by the words of the issue."""
    sign = -1 if state.metric.mode == "max" else 1
    order: list[tuple[Any, list[int]]] = []
    means: dict[int, tuple[float, float]] = {}
    for point in range(len(state.trials) // replicates):
        numbers = range(point * replicates, (point + 1) * replicates)
        best = {n: sign * b.value for n in numbers if (b := state.trials[n].best) is not None}
        status = {n: state.trials[n].status for n in numbers}
        validated = {n for n in numbers if state.trials[n].epochs}
        counting = [
            n for n in numbers if status[n] == "running" or (status[n] != "failed" and n in validated)
        ]
        counting = counting or list(best)
        counted = sorted((n for n in counting if n in best), key=lambda n: (best[n], n))
        others = sorted(set(numbers) - set(counted), key=lambda n: (n not in best, best.get(n, 0), n))
        if not counted:
            order.append(((2, 0, point), others))
            continue
        values = [best[n] for n in counted]
        mean = statistics.mean(values)
        means[point] = sign * mean, statistics.stdev(values) if len(values) > 1 else math.nan
        order.append(((len(counted) < len(counting), mean, point), counted + others))
    return [number for _, trials in sorted(order) for number in trials], means


EVENTS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0, math.nan, "failed", "stopped"])),
    max_size=40,
)


@given(replicates=st.sampled_from([1, 2, 3]), mode=st.sampled_from(["min", "max"]), events=EVENTS)
def test_points_are_ranked_by_the_mean_of_the_replicates_that_count(
    replicates: int, mode: str, events: list[tuple[int, Any]]
) -> None:
    state = began(replicates, mode, 12)
    for number, what in events:
        if not state.trials[number].running:
            continue
        if isinstance(what, str):
            end(state, number, what)
        else:
            validate(state, number, what)
        order, means = expected_order(state, replicates)
        assert [trial.number for trial in state.ranked()] == order
        assert state.best == (order[0] if means else None)
        for point in range(12 // replicates):
            standing = state.standing(point)
            expected = means.get(point, (math.nan, math.nan))
            assert (standing.mean, standing.spread) == pytest.approx(expected, nan_ok=True)


def test_a_replicate_whose_metric_is_no_number_leaves_its_point_behind_complete_ones() -> None:
    state = began(2, "min", 4)
    for number, value in enumerate([0.1, math.nan, 0.5, 0.7]):
        validate(state, number, value)
        end(state, number, "completed")
    assert [trial.number for trial in state.ranked()] == [2, 3, 0, 1]
    assert state.best == 2


def test_replicates_of_three_points_must_fail_alike_before_a_run_gives_up(game: Any) -> None:
    def run(good: int | None) -> Any:
        return game(
            MemoryStore(),
            InlineBackend(),
            make_searcher=lambda: Replicated(
                FullLength(ListPoints([{"x": i} for i in range(4)]), 4, VISITS), 3
            ),
            behaviour=lambda visit: None if visit.trial == good else FAILED,
            of_header={"settings": {"num_models": 4, "replicates": 3}},
            extends=False,
        )

    with pytest.raises(TrialError, match="the first 9 trials fail alike"):
        run(None).play()
    assert run(3).play().best == 3


def test_early_stopping_looks_at_points(game: Any) -> None:
    """Each replicate alone would be stopped at another epoch."""

    def run(replicates: int) -> RunState:
        points = ListPoints([{"x": 0.1}, {"x": 0.2}])
        patience = Patience(FullLength(points, 2, 6 * LAYOUT["train"]), 1, LAYOUT["train"])
        settings = {"num_models": 2, "replicates": replicates}
        made = game(
            MemoryStore(),
            InlineBackend(),
            num_epochs=6,
            make_searcher=lambda: Replicated(patience, replicates),
            of_header={"settings": settings},
            extends=False,
        )
        state: RunState = made.play()
        return state

    trials = run(2).trials
    assert trials[0].epochs == trials[1].epochs
    assert trials[2].epochs == trials[3].epochs
    for point in (0, 1):
        losses = zip(*(trials[2 * point + r].history["val_loss"] for r in (0, 1)), strict=True)
        means = [statistics.mean(each) for each in losses]
        assert all(after < before for before, after in itertools.pairwise(means[:-1]))
        assert len(means) == 6 or means[-1] >= means[-2]
