"""Runs as their journals tell them: found cheaply, also damaged or unfinished ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hopyard import open_run
from hopyard.errors import CorruptError, NotFoundError, RunInterruptedError, SettingsError, TrialError
from hopyard.hopper.history import broken_rules, committed_units
from hopyard.hopper.journal import read_records
from hopyard.storage import LocalStore, MemoryStore
from hopyard.torch import TorchEstimator
from hopyard.tune import Callback, hp_choice, list_runs
from hopyard.tune.listing import summary


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_runs_are_listed_by_their_journals(kind: str, search: Any, make_rows: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path) if kind == "local" else MemoryStore()
    assert list_runs(store) == []
    for name in ("b", "a"):
        search(store, run_id=name, num_models=1, num_epochs=1).fit(make_rows())
    store.runs.put("not-a-run/lease", b"")
    assert list_runs(store) == ["a", "b"]
    with pytest.raises(NotFoundError, match=r"no run 'c'.*The runs there are: a, b"):
        open_run(store, "c")


def test_runs_are_listed_without_listing_what_they_hold(
    search: Any, make_rows: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    store = LocalStore(tmp_path)
    search(store, run_id="a", num_models=1, num_epochs=1).fit(make_rows())
    listed: list[str] = []
    whole = LocalStore.list
    monkeypatch.setattr(
        LocalStore, "list", lambda self, prefix="": listed.append(prefix) or whole(self, prefix)
    )
    assert list_runs(store) == ["a"]
    assert listed == ["runs/a/journal"]


def test_a_run_that_has_ended_is_listed_by_its_first_and_last_record(
    search: Any, make_rows: Any, monkeypatch: Any
) -> None:
    store = MemoryStore()
    run = search(store, run_id="a").fit(make_rows()).run
    monkeypatch.setattr("hopyard.tune.listing.read_records", None)
    line = summary(store, "a")
    assert (line.status, line.trials, line.metric, line.holder) == ("completed", 3, "val_accuracy", None)
    assert line.best == run.best.info.value


def test_a_run_tells_what_was_there_when_it_was_opened(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    run = search(store, run_id="a", num_models=1).fit(make_rows()).run
    before = run.units()
    search(store, run_id="a", num_models=2).fit(make_rows())
    assert run.units() == before
    assert len(open_run(store, "a").units()) == 2 * len(before)
    assert committed_units(iter(list(read_records(store.runs.at("a"))))) == open_run(store, "a").units()
    assert broken_rules(read_records(store.runs.at("a"))) == []


def test_a_damaged_journal_is_an_error_and_fresh_starts_beside_it(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    first = search(store).fit(make_rows())
    store.put(f"runs/{first.run_id}/journal/000000000001", b"garbage")
    with pytest.raises(CorruptError, match="start the run anew with fresh=True"):
        search(store).fit(make_rows())
    fresh = search(store, fresh=True).fit(make_rows())
    assert fresh.run_id == f"{first.run_id}-2"
    assert fresh.get_all_model_history() == first.get_all_model_history()


def test_a_run_without_a_result_so_far_says_how_to_go_on(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    with pytest.raises(
        RunInterruptedError,
        match=r"none of its 3 trials has ended an epoch\. Run the same .* `hopyard run resume STORE random-",
    ):
        search(store, time_budget=1e-6).fit(make_rows())
    assert len(search(store).fit(make_rows()).get_all_models()) == 3


@pytest.mark.long
@pytest.mark.parametrize("patience", [None, 2])
def test_a_run_that_is_extended_in_steps_and_interrupted_equals_a_long_one(
    patience: int | None, search: Any, make_rows: Any, contents_of: Any
) -> None:
    whole = search(MemoryStore(), num_models=2, num_epochs=4, patience=patience).fit(make_rows())
    store = MemoryStore()

    class Stop(Callback):
        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    for models, epochs in ((1, 1), (2, 2), (2, 4)):
        budget = {"run_id": "grows", "num_models": models, "num_epochs": epochs, "patience": patience}
        with pytest.raises(KeyboardInterrupt):
            search(store, **budget, callbacks=[Stop()]).fit(make_rows())
        if epochs != 2:
            model = search(store, **budget).fit(make_rows())
    assert contents_of(model.run) == contents_of(whole.run)
    assert model.run.broken_rules() == []


@pytest.mark.long
def test_a_run_that_kept_only_its_best_grows_in_models_but_not_in_epochs(search: Any, make_rows: Any) -> None:
    store = MemoryStore()
    search(store, run_id="a", keep="best").fit(make_rows())
    before = len(list(read_records(store.runs.at("a"))))
    with pytest.raises(
        SettingsError, match=r"num_epochs is 3 now and was 2, but the state of trial \d was not kept"
    ):
        search(store, run_id="a", keep="best", num_epochs=3).fit(make_rows())
    assert len(list(read_records(store.runs.at("a")))) == before
    grown = search(store, run_id="a", keep="best", num_models=4).fit(make_rows())
    whole = search(MemoryStore(), num_models=4).fit(make_rows())
    assert grown.get_all_model_history() == whole.get_all_model_history()
    kept = {entry.name.split("/")[2] for entry in store.list("runs/a") if entry.name.endswith(".safetensors")}
    assert kept == {f"{grown.trial:05d}"}


def test_parameters_are_the_same_values_before_and_after_a_run_is_taken_up(
    search: Any, make_rows: Any
) -> None:
    store = MemoryStore()
    seen: list[Any] = []

    class Stop(Callback):
        def on_trial_start(self, trial: Any) -> None:
            seen.append(trial.params)

        def on_epoch_end(self, trial: Any, epoch: int, metrics: Any) -> None:
            raise KeyboardInterrupt

    space = {"width": 4, "lr": 0.1, "betas": hp_choice([(0.9, 0.99), (0.8, 0.9)]), "plain": (1, {"a": (2,)})}
    points = [{"width": 4, "lr": 0.1, "betas": (0.8, 0.9), "plain": (1, {"a": (2,)})}]
    arguments = {"search_space": space, "num_models": 2, "initial_params": points}
    with pytest.raises(KeyboardInterrupt):
        search(store, **arguments, callbacks=[Stop()]).fit(make_rows())
    model = search(store, **arguments).fit(make_rows())
    trials = model.run.state.trials
    assert [trials[number].params for number in sorted(trials)] == seen
    assert seen[0] == {"width": 4, "lr": 0.1, "betas": [0.8, 0.9], "plain": [1, {"a": [2]}]}


def one_cycle(optimizer: Any, steps_per_epoch: int, num_epochs: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps_per_epoch * num_epochs)


def cosine(optimizer: Any, steps_per_epoch: int, num_epochs: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps_per_epoch * num_epochs)


def halving(optimizer: Any, steps_per_epoch: int, num_epochs: int) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2 * steps_per_epoch, gamma=0.5)


def scheduled(scheduler: Any) -> Any:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        return TorchEstimator(
            model, torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], 16,
            {"lr": params["lr"], "momentum": 0.9}, scheduler=scheduler,
        )  # fmt: skip

    return estimator


@pytest.mark.long
@pytest.mark.parametrize(("scheduler", "first"), [(one_cycle, "lr"), (cosine, "lr")])
def test_a_schedule_that_follows_from_num_epochs_is_not_extended(
    scheduler: Any, first: str, search: Any, make_rows: Any
) -> None:
    store = MemoryStore()
    options = {"run_id": "a", "estimator_gen_fn": scheduled(scheduler), "num_epochs": 2}
    search(store, **options).fit(make_rows())
    before = len(list(read_records(store.runs.at("a"))))
    rule = r"num_epochs is 3 now and was 2, but the schedule of trial \d follows from num_epochs: .* instead of .*"
    with pytest.raises(
        SettingsError, match=rule + r"fresh=True, or another run_id, with num_epochs=3"
    ) as caught:
        search(store, **{**options, "num_epochs": 3}).fit(make_rows())
    assert f"{first} after " in str(caught.value)
    assert len(list(read_records(store.runs.at("a")))) == before
    grown = search(store, **options, num_models=4).fit(make_rows())
    whole = search(MemoryStore(), **options, num_models=4).fit(make_rows())
    assert grown.get_all_model_history() == whole.get_all_model_history()

    grown.run.extend(num_epochs=3)  # kept until the run goes on
    search(store, **options, num_models=4).fit(make_rows())
    refused = [r for r in read_records(store.runs.at("a")) if r["r"] == "control" and "refused" in r]
    assert [re.search(rule, record["refused"]) is not None for record in refused] == [True]


def test_a_schedule_of_steps_is_extended(search: Any, make_rows: Any, contents_of: Any) -> None:
    store = MemoryStore()
    options = {"run_id": "a", "estimator_gen_fn": scheduled(halving), "num_models": 2}
    whole = search(MemoryStore(), **options, num_epochs=4).fit(make_rows())
    search(store, **options, num_epochs=2).fit(make_rows())
    grown = search(store, **options, num_epochs=3).fit(make_rows())
    grown.run.extend(num_epochs=4)
    grown = search(store, **options, num_epochs=3).fit(make_rows())
    assert contents_of(grown.run) == contents_of(whole.run)


class FailsLater(torch.nn.Module):
    """Raises in the third epoch of its training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.batches += 1
            if int(self.batches) > 8:
                raise RuntimeError("out of epochs")
        return self.linear(x)


@pytest.mark.parametrize("progress", [False, True])
def test_a_run_whose_trials_all_fail_in_an_extension_says_so_and_is_not_completed(
    progress: bool, search: Any, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            FailsLater(), torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], 20, {"lr": params["lr"]}
        )

    store = MemoryStore()
    options = {"run_id": "a", "estimator_gen_fn": estimator, "num_partitions": 1, "progress": progress}
    assert search(store, **options, num_epochs=2).fit(make_rows()).run.status == "completed"
    for _ in range(2):  # the second time nothing is trained
        caplog.clear()
        model = search(store, **options, num_epochs=4).fit(make_rows())
        assert "3 of 3 trials of run a failed; trial 0 with RuntimeError: out of epochs" in caplog.text
        assert (model.run.status, model.run.state.finished) == ("failed", "failed")
        assert set(model.trials()["state"]) == {"failed"}
        assert len(model.get_history()["val_loss"]) == 2
        assert list(read_records(store.runs.at("a")))[-1]["r"] == "finish"
    assert open_run(store, "a").status == "failed"


def test_a_run_without_any_result_is_failed_and_says_why(search: Any, make_rows: Any) -> None:
    def estimator(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            FailsLater(), torch.optim.SGD, torch.nn.CrossEntropyLoss(), ["accuracy"], 6, {"lr": params["lr"]}
        )

    store = MemoryStore()
    for _ in range(2):
        with pytest.raises(TrialError, match=r"out of epochs"):
            search(store, run_id="a", estimator_gen_fn=estimator, num_partitions=1).fit(make_rows())
