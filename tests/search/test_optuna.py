"""Optuna's samplers give exact points of our spaces, again in another process; its pruners stop trials."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from hopyard.errors import MissingExtraError, SpaceError, UsageError
from hopyard.search import (
    FullLength,
    InVirtualTime,
    Patience,
    Proposer,
    RandomPoints,
    Searcher,
    hp_choice,
    hp_int,
    hp_log,
    hp_loguniform,
    hp_qloguniform,
    hp_quniform,
    hp_uniform,
)
from hopyard.search.optuna import OptunaPoints, OptunaPruning
from hopyard.search.points import check_point, draw, key_of
from hopyard.search.testing import ProposerTests, SearcherTests, play

SMALL: dict[str, Any] = {"width": hp_choice([32, 64, 128]), "depth": hp_int(1, 4)}
SPACE: dict[str, Any] = {
    "lr": hp_loguniform(-4, -1),
    "width": hp_qloguniform(0, 3, 1),
    "optimizer": hp_choice([{"name": "sgd", "momentum": hp_uniform(0, 1)}, {"name": "adam"}, None]),
    "layers": [hp_int(1, 3), {"drop": hp_quniform(0.1, 0.5, 0.1)}],
    "seed": 7,
}


class TestTPE(ProposerTests):
    space = SPACE

    def proposer(self) -> Proposer:
        return self.seeded(1)

    def seeded(self, seed: int) -> Proposer:
        return OptunaPoints(SPACE, None, seed, [draw(SPACE, 5, 0), draw(SPACE, 5, 1)])


class TestTPEInASmallSpace(ProposerTests):
    space = SMALL
    num_points = 12

    def proposer(self) -> Proposer:
        return self.seeded(0)

    def seeded(self, seed: int) -> Proposer:
        return OptunaPoints(SMALL, seed=seed)


class TestFullLengthOfTPE(SearcherTests):
    visits = 8
    extension = (9, 12)

    def searcher(self) -> Searcher:
        return FullLength(OptunaPoints(SPACE), 7, 8)


class TestOptunaPruning(SearcherTests):
    visits = 16
    extension = (11, 32)

    def searcher(self) -> Searcher:
        return self.seeded(3)

    def seeded(self, seed: int) -> Searcher:
        searcher = FullLength(RandomPoints(SPACE), 9, 16, max_concurrent=2)
        return OptunaPruning(searcher, optuna.pruners.HyperbandPruner(1, 4, reduction_factor=2), 4, seed)


def learn(proposer: Proposer, trials: int, at_once: int = 4) -> list[dict[str, Any]]:
    """Points of trials of which ``at_once`` run at a time; smaller learning rates are better, to 0.001."""
    found: list[dict[str, Any]] = []
    for trial in range(trials):
        point = proposer.propose(trial)
        assert point is not None
        found.append(point)
        if trial >= at_once:
            value = abs(math.log10(found[trial - at_once].get("lr", 1)) + 3)
            proposer.observed(trial - at_once, 8, value)
            proposer.ended(trial - at_once)
    return found


CONSTANTS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "a", "a.b"])
DIMENSIONS = st.one_of(
    st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda n: hp_int(n[0], n[0] + n[1])),
    st.tuples(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)).map(lambda n: hp_uniform(n[0], n[0] + n[1])),
    st.tuples(st.floats(1e-9, 1), st.floats(2, 1e9)).map(lambda n: hp_log(*n)),
    st.tuples(st.integers(-9, 9), st.sampled_from([0.1, 0.3, 1, 2.5])).map(
        lambda n: hp_quniform(n[0], n[0] + 3, n[1])
    ),
    st.tuples(st.integers(0, 2), st.sampled_from([0.5, 1, 3])).map(lambda n: hp_qloguniform(n[0], 3, n[1])),
    st.just(hp_int(0, 2**70)),
)
SPACES = st.recursive(
    CONSTANTS | DIMENSIONS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", "a.b", "a[0]", "", "<0>"]), inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=3, unique_by=repr).map(hp_choice)
    ),
    max_leaves=8,
)


@given(SPACES, st.integers(0, 2**40))
def test_every_point_is_exactly_one_of_the_space(inner: Any, seed: int) -> None:
    space = {"x": inner, "x.y": hp_uniform(0, 1)}
    first = draw(space, seed, 0)
    proposer = OptunaPoints(
        space, lambda seed: TPESampler(n_startup_trials=2, seed=seed), seed, initial_params=[first]
    )
    for trial in range(6):
        point = proposer.propose(trial)
        assert point is not None
        assert trial or point == first
        check_point(space, point)
        proposer.observed(trial, 1, float(trial))
        proposer.ended(trial)


def test_tpe_learns_in_a_conditional_space() -> None:
    found = learn(OptunaPoints(SPACE), 80)
    near = [abs(math.log10(point["lr"]) + 3) < 0.5 for point in found]
    assert sum(near[-30:]) > sum(near[:30])
    assert {key_of(point["optimizer"])[:16] for point in found[-30:]} != {"null"}


SCRIPT = """
from optuna.samplers import *
from hopyard.search.optuna import OptunaPoints
from hopyard.search import hp_loguniform, hp_choice, hp_uniform
space = {"lr": hp_loguniform(-4, -1), "o": hp_choice([{"m": hp_uniform(0, 1), "n": hp_uniform(0, 1)}, {"b": 1}])}
proposer = OptunaPoints(space, eval(sampler), seed=3)
points = []
for trial in range(24):
    points.append(proposer.propose(trial))
    proposer.observed(trial, 1, points[-1]["lr"])
    proposer.ended(trial)
"""
SAMPLERS = [
    "None",
    "TPESampler(group=True)",
    "NSGAIISampler(population_size=4)",
    "QMCSampler(warn_asynchronous_seeding=False)",
    "PartialFixedSampler({'o': 0}, TPESampler())",
    "lambda seed: TPESampler()",
]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_another_process_gets_the_same_points_also_of_samplers_made_without_a_seed() -> None:
    code = f"""
import json, sys, warnings
warnings.simplefilter("ignore")
for sampler in {SAMPLERS!r}:
    exec({SCRIPT!r})
    print(json.dumps(points))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    for sampler, there in zip(SAMPLERS, done.stdout.splitlines(), strict=True):
        here: dict[str, Any] = {"sampler": sampler}
        exec(SCRIPT, here)
        assert json.loads(there) == here["points"], sampler
        assert len({key_of(point) for point in here["points"]}) == 24


def test_seeds_give_different_points_and_a_given_object_stays_as_it_is() -> None:
    sampler = RandomSampler(seed=0)
    before = sampler._rng.rng.get_state()[1].tolist()  # type: ignore[index]
    first, again, other = (learn(OptunaPoints(SPACE, sampler, seed), 4) for seed in (0, 0, -1))
    assert first == again != other
    assert sampler._rng.rng.get_state()[1].tolist() == before  # type: ignore[index]


class Own(RandomSampler):
    """A user's sampler."""


class NeedsMore(RandomSampler):
    def __init__(self, temperature: float) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (Own(), r"object of Own, whose random numbers .* sampler=lambda seed: Own\(seed=seed\)"),
        (
            NeedsMore,
            r"NeedsMore cannot be made from a seed alone: .*lambda seed: NeedsMore\(..., seed=seed\)",
        ),
        (optuna.samplers.GridSampler({"x": [1]}), "has a space of its own. Use GridSearch"),
        (lambda seed: seed, "sampler makes 0, but must make a sampler of Optuna"),
        ("tpe", r"sampler='tpe', but it must be .* Write sampler=optuna.samplers.TPESampler\(\)"),
    ],
)
def test_a_sampler_that_cannot_be_replayed_is_refused(sampler: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        OptunaPoints(SPACE, sampler)


def test_a_class_and_a_function_are_given_the_seed() -> None:
    expected = learn(OptunaPoints(SPACE, lambda seed: Own(seed=seed), 4), 5)
    assert learn(OptunaPoints(SPACE, Own, 4), 5) == expected


def test_a_sampler_that_does_not_take_the_space_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler: BaseSampler = optuna.samplers.BruteForceSampler()
    with pytest.raises(UsageError, match=r"BruteForceSampler proposed no point: .* Give another sampler"):
        OptunaPoints(SPACE, sampler).propose(0)
    exhaustive = OptunaPoints(SMALL, sampler)
    for trial in range(12):
        assert exhaustive.propose(trial) is not None
        exhaustive.observed(trial, 1, 0.0)
    assert exhaustive.propose(12) is None


@pytest.mark.skipif(find_spec("cmaes") is not None, reason="the package that the sampler needs is installed")
@pytest.mark.parametrize("sampler", [optuna.samplers.CmaEsSampler, optuna.samplers.CmaEsSampler()])
def test_a_sampler_that_needs_a_package_says_so_before_anything_is_trained(sampler: Any) -> None:
    with pytest.raises(
        MissingExtraError, match=r"CmaEsSampler needs the package 'cmaes'.*: pip install cmaes$"
    ):
        OptunaPoints(SPACE, sampler)


class Unimportable(optuna.samplers.RandomSampler):
    """Needs a package that nobody has, once it is asked."""

    def sample_independent(self, *arguments: Any) -> Any:
        import_module("no_such_package")


def test_a_package_that_is_missed_later_is_named() -> None:
    with pytest.raises(MissingExtraError, match=r"Unimportable needs the package 'no_such_package'"):
        OptunaPoints(SPACE, Unimportable).propose(0)


@pytest.mark.parametrize("wide", [hp_int(0, 10**301), hp_uniform(-1e305, 1)])
def test_numbers_beyond_floats_are_refused(wide: Any) -> None:
    with pytest.raises(SpaceError, match=r"a\[0\] is .*too wide for Optuna: .* or use RandomSearch"):
        OptunaPoints({"a": [wide]})


def states(proposer: OptunaPoints) -> list[tuple[str, float | None]]:
    return [(trial.state.name, trial.value) for trial in proposer._study.get_trials(deepcopy=False)]


def test_only_equally_long_trials_are_complete() -> None:
    proposer = OptunaPoints(SPACE)
    for trial in range(4):
        proposer.propose(trial)
    proposer.observed(0, 2, 0.5)
    proposer.observed(1, 2, 0.3)
    proposer.ended(0)
    proposer.ended(2)
    assert states(proposer) == [("COMPLETE", 0.5), ("COMPLETE", 0.3), ("FAIL", None), ("RUNNING", None)]
    proposer.observed(1, 4, 0.2)
    proposer.observed(3, 2, math.inf)
    assert states(proposer) == [("PRUNED", 0.5), ("COMPLETE", 0.2), ("FAIL", None), ("PRUNED", math.inf)]
    assert proposer._study.get_trials()[1].intermediate_values == {2: 0.3, 4: 0.2}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sampler_learns_the_last_value_of_trials_that_were_stopped_early(wrapped: bool) -> None:
    proposer = OptunaPoints(SPACE)
    inner: Searcher = FullLength(proposer, 3, 12, max_concurrent=1)
    if wrapped:
        inner = InVirtualTime(OptunaPruning(inner, optuna.pruners.NopPruner(), 4))
    played = play(
        Patience(inner, 1, 4), 12, lambda trial, visits: visits / 4 if trial else -visits, failing={2}
    )
    assert played.ends == {0: "completed", 1: "stopped", 2: "exited"}
    assert states(proposer) == [("COMPLETE", -12), ("PRUNED", 2), ("FAIL", None)]
    assert proposer._study.get_trials()[1].intermediate_values == {8: 2}


def test_optunas_logging_stays_as_it_was_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    learn(OptunaPoints(SPACE, TPESampler()), 14)
    play(OptunaPruning(FullLength(RandomPoints(SPACE), 3, 8), optuna.pruners.MedianPruner(), 2), 8)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_the_median_pruner_stops_what_is_worse_than_trials_that_ended() -> None:
    searcher = FullLength(RandomPoints(SPACE), 6, 12, max_concurrent=1)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    played = play(OptunaPruning(searcher, pruner, 4), 12, lambda trial, visits: trial + 1 / visits)
    assert list(played.visits.values()) == [12, 12, 8, 8, 8, 8]
    assert list(played.ends.values()) == ["completed"] * 2 + ["stopped"] * 4


@pytest.mark.parametrize(("maximize", "stopped"), [(True, [1, 2, 3]), (False, [])])
def test_a_threshold_is_compared_with_the_metric_as_the_user_sees_it(
    maximize: bool, stopped: list[int]
) -> None:
    searcher = FullLength(RandomPoints(SPACE), 4, 8)
    pruner = (
        optuna.pruners.ThresholdPruner(lower=0.5) if maximize else optuna.pruners.ThresholdPruner(upper=0.5)
    )
    pruning = OptunaPruning(searcher, pruner, 4, maximize=maximize)
    played = play(pruning, 8, lambda trial, visits: -0.6 if trial == 0 else -0.4)
    assert [trial for trial, end in played.ends.items() if end == "stopped"] == stopped


def test_an_infinite_value_is_pruned_without_a_warning() -> None:
    searcher = FullLength(RandomPoints(SPACE), 4, 8, max_concurrent=1)
    pruner = optuna.pruners.PercentilePruner(50.0, n_startup_trials=1)
    played = play(OptunaPruning(searcher, pruner, 4), 8, lambda trial, visits: math.inf if trial else 1.0)
    assert list(played.ends.values()) == ["completed", "stopped", "stopped", "stopped"]


def test_a_pruner_is_asked_for() -> None:
    with pytest.raises(
        UsageError, match=r"pruner='median', but it must be .* pruner=optuna.pruners.MedianPruner\(\)"
    ):
        OptunaPruning(FullLength(RandomPoints(SPACE), 1, 1), "median", 1)  # type: ignore[arg-type]
