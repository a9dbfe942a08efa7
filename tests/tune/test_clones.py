"""Clones of trials, trained in earnest: each is its donor but for what was changed, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.hopper.attentive import Attentive

from hopyard import StockRoom
from hopyard.backend import InlineBackend
from hopyard.errors import NotFoundError, UsageError
from hopyard.hopper import hopper
from hopyard.hopper.control import request
from hopyard.storage import LocalStore, MemoryStore, Store
from hopyard.tune import Callback, Run, hp_log
from hopyard.tune.callbacks import TrialInfo
from hopyard.tune.reproduce import reproduce


class Cloning(Callback):
    """Asks for clones of trial 0 once it has done an epoch."""

    def __init__(self, store: Store, *commands: dict[str, Any]) -> None:
        self.store, self.commands = store, list(commands)
        self.began: list[TrialInfo] = []

    def on_epoch_end(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float]) -> None:
        while trial.number == 0 and self.commands:
            request(self.store.runs.at("r"), {"do": "clone", "trial": 0, **self.commands.pop(0)})
            Attentive.last.look()

    def on_trial_start(self, trial: TrialInfo) -> None:
        self.began.append(trial)


@pytest.fixture
def _sees_commands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "Watcher", Attentive)


@pytest.mark.usefixtures("_sees_commands_at_once")
@pytest.mark.parametrize(("where", "every"), [("inline", "unit"), ("local", "epoch")])
def test_clones_of_a_run_that_goes_on_are_their_donor_but_for_what_was_changed(
    where: str, every: str, search: Any, make_rows: Any, contents_of: Any, request: pytest.FixtureRequest
) -> None:
    backend = InlineBackend() if where == "inline" else request.getfixturevalue("local")
    arguments = {"num_epochs": 4, "run_id": "r", "checkpoint_every": every, "max_concurrent_trials": 2}
    quiet = search(MemoryStore(), InlineBackend(), **arguments).fit(make_rows()).run
    store = MemoryStore() if where == "inline" else LocalStore(request.getfixturevalue("tmp_path"))
    asked = [
        {},
        {"weights": True},
        {"params": {"lr": 0.5, "width": 4}},
        {"params": {"lr": 0.5}, "weights": True},
    ]
    cloning = Cloning(store, *asked)
    run = search(store, backend, callbacks=[cloning], **arguments).fit(make_rows()).run
    trials = run.state.trials
    clones = [trial for trial in trials.values() if trial.clone_of is not None]
    same, weighted, changed, both = clones
    found, expected = contents_of(run), contents_of(quiet)
    assert {t.draws_as: found[n] for n, t in trials.items() if t.clone_of is None} == expected
    assert found[same.number][:3] == expected[0][:3]
    assert 2 <= weighted.began < 8
    assert weighted.history == {name: values[-weighted.epochs :] for name, values in expected[0][2].items()}
    assert weighted.progress.state is not None
    assert weighted.progress.state.digest == trials[0].progress.state.digest
    assert (changed.params, changed.epochs) == ({"lr": 0.5, "width": 4}, 4)
    assert both.history["val_loss"] != trials[0].history["val_loss"][-both.epochs :]
    assert [trial.status for trial in clones] == ["completed"] * 4
    assert run.broken_rules() == []
    begun = [
        (trial.number, trial.clone_of, trial.source) for trial in cloning.began if trial.clone_of is not None
    ]
    assert begun == [(t.number, 0, 0 if t in (weighted, both) else None) for t in clones]
    table = run.trials().set_index("number")
    assert list(table.loc[[clone.number for clone in clones], "clone_of"]) == [0] * 4
    assert table.loc[0, ["source", "clone_of"]].isna().all()
    storage = optuna.storages.InMemoryStorage()
    run.export(storage)
    exported = optuna.load_study(study_name="r", storage=storage).get_trials()
    assert {each.number: each.user_attrs.get("clone_of") for each in exported} == {
        number: trial.clone_of for number, trial in trials.items()
    }


def ended(search: Any, data: Any, **changes: Any) -> tuple[Run, Any]:
    """A run that has ended, and what goes on with it."""
    store = MemoryStore()

    def fit() -> Run:
        run: Run = search(store, run_id="r", **changes).fit(data).run
        return run

    return fit(), fit


def test_a_run_that_has_ended_trains_a_clone_once_its_script_is_started_again(
    search: Any, make_rows: Any, contents_of: Any
) -> None:
    run, fit = ended(search, make_rows())
    before = contents_of(run)
    assert run.is_done
    said = run.clone(1, {"lr": 3})
    assert said == (
        "nobody drives run r now: the command is kept until it goes on, by `hopyard run resume` or by starting its "
        "script again. lr=3 lies outside of hp_log(0.001, 0.1), which is allowed."
    )
    assert (run.status, run.is_done) == ("completed", False)
    after = fit()
    assert after.is_done
    assert {number: each for number, each in contents_of(after).items() if number < 3} == before
    clone = after.state.trials[3]
    assert (clone.params, clone.status, clone.epochs) == (
        {**run.state.trials[1].params, "lr": 3.0},
        "completed",
        2,
    )
    assert fit().state.units == after.state.units
    after.clone(2)
    assert contents_of(fit())[4] == before[2]


def test_a_search_grows_after_a_clone_as_it_would_have_without(
    search: Any, make_rows: Any, contents_of: Any
) -> None:
    whole = search(MemoryStore(), num_models=5).fit(make_rows()).run
    run, fit = ended(search, make_rows())
    run.clone(0, {"width": 4})
    run.extend(num_models=5)
    after = fit()
    found = {t.draws_as: contents_of(after)[n] for n, t in after.state.trials.items() if t.clone_of is None}
    assert found == contents_of(whole)
    assert [trial.clone_of for trial in after.state.trials.values()] == [None, None, None, 0, None, None]


def test_replicates_are_cloned_together(search: Any, make_rows: Any, contents_of: Any) -> None:
    run, fit = ended(search, make_rows(), num_models=2, replicates=2)
    run.clone(3)
    after = fit()
    found = contents_of(after)
    assert [found[4], found[5]] == [found[2], found[3]]
    assert after.state.standing(2).mean == after.state.standing(1).mean
    with pytest.raises(
        UsageError, match=r"run r did not clone: trial 2 has trained to its end, so a clone with its "
    ):
        after.clone(3, weights=True)


def test_a_commit_is_reproduced_without_its_clones_and_not_if_one_is_the_best(
    search: Any, make_rows: Any, tmp_path: Path
) -> None:
    stock = StockRoom.init(tmp_path / "repo")
    with stock.enable_write():
        for name, values in make_rows().items():
            stock.data[name] = values
    data = {name: stock.data[name] for name in make_rows()}
    slow = {"width": 4, "lr": hp_log(1e-6, 1e-5)}
    store = LocalStore(tmp_path / "store")

    def fit() -> Run:
        run: Run = search(
            store, run_id="r", stock=stock, evaluation_metric="loss", search_space=slow, num_models=number
        ).fit(data).run  # fmt: skip
        return run

    number = 1
    fit().clone(0)
    fit()
    number = 2
    assert [trial.clone_of for trial in fit().state.trials.values()] == [None, 0, None]
    done = reproduce(stock, trust=True, progress=False, num_workers=0)
    assert done.equal
    assert done.clones == (1,)
    assert "left out, since users cloned them by hand: trials 1\n" in str(done)
    fit().clone(0, {"lr": 0.1})
    assert fit().state.best == 3
    refused = r"the best trial of run r, 3, was cloned from trial 0 .*: initial_params=\[\{'width': 4, 'lr': 0\.1\}\]\."
    with pytest.raises(UsageError, match=refused):
        reproduce(stock, trust=True, progress=False, num_workers=0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"rate": 1},
            "there is no hyperparameter 'rate'. There are width, lr, drop, fails. Name one of these.",
        ),
        ({"lr": "x"}, "lr is 'x', but it takes a number: the space has hp_log(0.001, 0.1)."),
        (
            {"drop.rate": True},
            "there is no hyperparameter 'drop.rate'; did you mean 'drop'? There are width, lr, ",
        ),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_not_kept(given: Any, text: str, run: Run) -> None:
    (plain,) = [number for number, trial in run.state.trials.items() if trial.params["drop"] == "no"][:1]
    with pytest.raises(UsageError) as caught:
        run.clone(plain, given)
    assert str(caught.value).startswith(f"run study did not clone: {text}")
    with pytest.raises(NotFoundError, match="run study has no trial 99; it has 6, the first is 0"):
        run.clone(99)
    assert run.is_done
