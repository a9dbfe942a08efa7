"""Searches that look at results: the same on any number of workers, and after any crash, to the last bit."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from tests.sampling import by_level, sample

from hopyard.backend import InlineBackend
from hopyard.errors import EstimatorError, SettingsError, UsageError
from hopyard.hopper.state import JournalRecord, RunState
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import (
    ASHA,
    PBT,
    GridSearch,
    Hyperband,
    HyperOpt,
    QuasiRandomSearch,
    RandomSearch,
    Run,
    hp_choice,
    hp_log,
    launch,
)
from hopyard.tune.observers import observers_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RATES = {"lr": hp_log(1e-3, 1e-1)}
KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "grid": (GridSearch, {"num_models": None, "search_space": {"lr": hp_choice([0.001, 0.003, 0.01, 0.03])}}),
    "random": (RandomSearch, {"patience": 1}),
    "quasi-random": (QuasiRandomSearch, {"median_stopping": 1}),
    "tpe": (HyperOpt, {"max_concurrent_trials": 3}),
    "asha": (ASHA, {"divisor": 2, "max_concurrent_trials": 4}),
    "asha, stopping": (ASHA, {"divisor": 2, "max_concurrent_trials": 4, "stop_once": True}),
    "asha, brackets": (ASHA, {"divisor": 2, "brackets": "conservative"}),
    "hyperband": (Hyperband, {"divisor": 2}),
    "pbt": (PBT, {"truncate_fraction": 0.4}),
}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2))
    return TorchEstimator(
        model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), ["accuracy"], 8, {"lr": params["lr"]}
    )


def search(kind: str, store: Any, backend: Any = None, **changes: Any) -> Any:
    cls, own = KINDS[kind]
    arguments = {
        "backend": backend or InlineBackend(),
        "store": store,
        "estimator_gen_fn": estimator,
        "search_space": RATES,
        "num_models": 6,
        "num_epochs": 4,
        "num_partitions": 3,
        "run_id": "run",
        "progress": False,
    }
    arguments |= own | changes
    return cls(**{name: value for name, value in arguments.items() if value is not None})


@pytest.fixture(scope="module")
def workers(local: Any, local_of_three: Any) -> dict[int, Any]:
    return {1: InlineBackend(), 2: local, 3: local_of_three}


UNDISTURBED = by_level(0, 0, 1)
"""How often searches also run with two workers that nothing disturbs."""


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Let the driver die when that many records are written."""
    whole = observers_of
    dies_at: list[int | None] = [None]

    def observers(*args: Any) -> list[Any]:
        written = itertools.count(1)

        def dying(state: RunState, record: JournalRecord) -> None:
            if next(written) == dies_at[0]:
                raise KeyboardInterrupt

        return [*whole(*args), dying]

    monkeypatch.setattr(launch, "observers_of", observers)

    def set_it(record: int | None) -> None:
        dies_at[0] = record

    return set_it


@pytest.mark.parametrize("kind", sample("kinds of searches", KINDS, quick=2, ci=4))
def test_the_same_search_on_any_workers_and_after_crashes_is_the_same_to_the_last_bit(
    kind: str, workers: dict[int, Any], make_rows: Any, contents_of: Any, die_at: Any, tmp_path: Path
) -> None:
    data, found = make_rows(), {}
    for number in (1, *[2] * UNDISTURBED, 3):
        run = search(kind, LocalStore(tmp_path / str(number)), workers[number]).fit(data).run
        assert run.broken_rules() == []
        found[number] = contents_of(run)
    assert all(each == found[1] for each in found.values())
    store = LocalStore(tmp_path / "crashed")
    for record in (9, 17, 31, 23, 5, 40):  # each from where the one before died
        die_at(record)
        try:
            search(kind, store, workers[2]).fit(data)
            break
        except KeyboardInterrupt:
            continue
    die_at(None)
    run = search(kind, store, workers[3]).fit(data).run
    assert contents_of(run) == found[1]
    assert run.broken_rules() == []
    done = Counter((trial, unit["v"]) for unit in run.units() for trial in unit["t"])
    assert set(done.values()) == {1}


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_takes_results_as_it_began_to_whatever_reproducible_says_later(
    begun: bool, make_rows: Any, contents_of: Any, die_at: Any
) -> None:
    """As the message of a run that is continued elsewhere advises."""
    data, store = make_rows(), MemoryStore()
    die_at(60)
    with pytest.raises(KeyboardInterrupt):
        search("asha", store, reproducible=begun).fit(data)
    die_at(None)
    run = search("asha", store, reproducible=not begun).fit(data).run
    assert run.status == "completed"
    if begun:
        assert contents_of(run) == contents_of(search("asha", MemoryStore()).fit(data).run)


@pytest.fixture(scope="module")
def asha_run(make_rows: Any) -> Run:
    run: Run = search("asha", MemoryStore(), num_models=9, keep="all").fit(make_rows()).run
    return run


def test_rungs_are_whole_visits_and_trials_end_there(asha_run: Run) -> None:
    trained = {n: trial.progress.trained for n, trial in asha_run.state.trials.items()}
    assert set(trained.values()) <= {2, 3, 6, 12}
    assert max(trained.values()) == 12
    assert sum(trained.values()) < 9 * 12 * 0.7
    statuses = {n: trial.status for n, trial in asha_run.state.trials.items()}
    assert {n for n, status in statuses.items() if status == "completed"} == {
        n for n, visits in trained.items() if visits == 12
    }
    assert set(statuses.values()) == {"completed", "stopped"}


def test_a_trial_that_ends_within_an_epoch_has_a_value_for_the_part_it_trained(asha_run: Run) -> None:
    parts = [trial for trial in asha_run.state.trials.values() if trial.progress.trained == 2]
    assert parts
    for trial in parts:
        assert trial.epochs == 0
        assert {len(values) for values in trial.history.values()} == {1}
        assert trial.best is not None
        assert trial.best.epoch == pytest.approx(2 / 3)
        assert asha_run.model(trial.number).get_history()["val_loss"] == [trial.best.value]


def test_every_trial_of_a_search_that_stops_early_can_be_used(asha_run: Run, make_rows: Any) -> None:
    for model in asha_run.models:
        assert model.evaluate(make_rows())["loss"] > 0
    assert [model.trial for model in asha_run.models] == [t.number for t in asha_run.state.ranked()]


def test_copies_go_on_from_their_donors_state_and_leave_no_file_behind(make_rows: Any) -> None:
    store = MemoryStore()
    seen: dict[int, tuple[Any, Any]] = {}
    whole = observers_of

    def observers(*args: Any) -> list[Any]:
        def watch(state: RunState, record: JournalRecord) -> None:
            if record["r"] == "trial" and record["source"] is not None:
                child, donor = state.trials[record["n"]], state.trials[record["source"]]
                seen[child.number] = (child.progress, donor.durable)

        return [*whole(*args), watch]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "observers_of", observers)
        run = search("pbt", store).fit(make_rows()).run
    assert seen
    for number, (progress, donor) in seen.items():
        child = run.state.trials[number]
        assert (progress.state, progress.trained) == (donor.state, donor.trained)
        assert child.params != run.state.trials[child.source].params
        assert child.began == donor.trained > 0
        if child.status == "completed":
            assert child.progress.trained == 12
            assert len(child.history["val_loss"]) == (12 - child.began) // 3
    kept = {entry.name for entry in store.runs.at("run").list() if entry.name.endswith(".safetensors")}
    trials = run.state.trials
    states = [
        (trial.number, state)
        for trial in trials.values()
        if trial.status == "completed"
        for state in trial.live_states()
    ]
    best = trials[run.state.best].best  # of a trial that was stopped, its best weights alone
    assert best is not None
    states.append((run.state.best, best.state))
    needed = {f"{number:05d}/{name}" for number, state in states for name in state.files}
    assert kept == needed


def test_a_copy_whose_layers_have_other_sizes_fails_with_what_to_do(make_rows: Any) -> None:
    def sized(params: dict[str, Any]) -> TorchEstimator:
        model = torch.nn.Sequential(torch.nn.Linear(4, params["width"]), torch.nn.Linear(params["width"], 2))
        return TorchEstimator(model, torch.optim.Adam, torch.nn.CrossEntropyLoss(), [], 8, {"lr": 0.01})

    space = {"width": hp_choice([4, 5, 6, 7])}
    made = search(
        "pbt",
        MemoryStore(),
        estimator_gen_fn=sized,
        search_space=space,
        resample_probability=1.0,
        num_models=4,
    )
    run = made.fit(make_rows()).run
    failed = [trial for trial in run.state.trials.values() if trial.status == "failed"]
    assert failed
    assert all("but not sizes of layers" in trial.error.message for trial in failed)
    assert all(trial.error.kind == EstimatorError.__name__ for trial in failed)
    assert run.best.trial not in [trial.number for trial in failed]


@pytest.mark.parametrize("kind", ["random", "tpe", "asha"])
def test_a_run_with_more_trials_asked_for_is_extended(kind: str, make_rows: Any) -> None:
    store, data = MemoryStore(), make_rows()
    first = search(kind, store, num_models=4, num_epochs=2).fit(data).run
    more = search(kind, store, num_models=7, num_epochs=2).fit(data).run
    assert len(more.state.trials) == 7
    assert all(more.state.trials[n].params == trial.params for n, trial in first.state.trials.items())
    units = len(more.units())
    again = search(kind, store, num_models=4, num_epochs=2).fit(data).run
    assert len(again.units()) == units  # as it was begun: finished


def test_as_many_trials_as_were_published_are_no_number_that_could_grow(make_rows: Any) -> None:
    store, data = MemoryStore(), make_rows()
    found = search("hyperband", store, num_models=None, num_epochs=2).fit(data).run
    again = search("hyperband", store, num_models=None, num_epochs=2).fit(data).run
    assert len(again.units()) == len(found.units()) > 0
    with pytest.raises(SettingsError, match=r"num_models: null \(run\) -> 40 \(now\)"):
        search("hyperband", store, num_models=40, num_epochs=2).fit(data)


def test_what_cannot_be_extended_is_refused_and_nothing_is_lost(make_rows: Any) -> None:
    store, data = MemoryStore(), make_rows()
    before = search("asha", store).fit(data).run
    with pytest.raises(SettingsError, match=r"its rungs follow from the length.*as they were continue it"):
        search("asha", store, num_epochs=8).fit(data)
    assert len(search("asha", store).fit(data).run.units()) == len(before.units())


@pytest.mark.parametrize("kind", ["asha", "hyperband"])
def test_a_divisor_may_be_a_fraction(kind: str, make_rows: Any) -> None:
    store = MemoryStore()
    run = search(kind, store, divisor=Fraction(5, 2)).fit(make_rows()).run
    assert run.settings["divisor"] == "5/2"
    assert search(kind, store, divisor=Fraction(5, 2)).fit(make_rows()).run_id == run.run_id


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("asha", {"num_models": 0}, "num_models=0, but it must be an integer of at least 1"),
        ("pbt", {"num_models": 2, "truncate_fraction": 0.3}, "would ever be replaced. Write num_models=4"),
        ("hyperband", {"eta": 3}, "Hyperband has no argument 'eta'; it is called 'divisor' here"),
        (
            "tpe",
            {"parallelism": 2},
            "parallelism is 2 and max_concurrent_trials is 3, but these are two names",
        ),
        ("asha", {"divisor": 1}, "divisor=1, but it must be a number of at least 2"),
        ("asha", {"brackets": "agressive"}, "did you mean 'aggressive'?"),
        ("asha", {"stop_once": "no"}, "stop_once='no', but it must be True or False."),
        ("asha", {"max_rungs": 0}, "max_rungs=0, but it must be an integer of at least 1"),
        ("pbt", {"epochs_per_round": 3}, "num_epochs is 4 and epochs_per_round is 3, but a search has whole"),
        ("pbt", {"truncate_fraction": 0.9}, "truncate_fraction=0.9"),
        ("hyperband", {"divisor": "three"}, "divisor='three'"),
        (
            "tpe",
            {"max_concurrent_trials": 0},
            "max_concurrent_trials=0, but it must be an integer of at least 1",
        ),
        ("random", {"median_stopping": 0}, "median_stopping=0, but it must be an integer of at least 1"),
    ],
)
def test_impossible_searches_are_refused_at_once(kind: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        search(kind, MemoryStore(), **changes)
    assert text in str(refused.value)
