"""Searches whose trials train together end where searches end whose trials train alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.packing import pack_whatever_it_gains
from tests.training.torch.test_equivalence import (
    Attentive,
    Backwards,
    Conditional,
    Doubles,
    Embedded,
    Recurrent,
    convolutional,
)
from tests.training.torch.test_pack import WIDTH
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from hopyard.backend import InlineBackend, LocalBackend
from hopyard.cli import app
from hopyard.errors import UsageError
from hopyard.hopper.history import totals_of
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.training import probe
from hopyard.training.torch import pack
from hopyard.tune import ASHA, Callback, GridSearch, hp_choice, hp_log
from hopyard.tune.run import Run

RATES = [0.001 * (1 + number) for number in range(6)]


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_whatever_it_gains(monkeypatch)


def rows(count: int = 240) -> dict[str, Any]:
    random = np.random.default_rng(2)
    features = random.standard_normal((count, 5)).astype(np.float32)
    return {"features": features, "label": (features[:, 0] > 0).astype(np.int64)}


def estimator(params: dict[str, Any]) -> TorchEstimator:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
    return TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        loss=functional.cross_entropy if params.get("function") else nn.CrossEntropyLoss(),
        metrics=["accuracy"],
        batch_size=16,
    )


def of_two_kinds(params: dict[str, Any]) -> TorchEstimator:
    made = estimator(params)
    if params["lr"] > 0.004:
        made.model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    if params["lr"] == RATES[2]:
        made.precision = "bf16"
    return made


def kills_its_worker(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.detach().abs().max() > 1e6 and "WORKER" in os.environ:
        os._exit(9)
    return functional.cross_entropy(outputs, labels)


def one_kills_its_worker(params: dict[str, Any]) -> TorchEstimator:
    made = estimator({"lr": 1e20 if params["lr"] == RATES[1] else params["lr"]})
    made.loss = kills_its_worker
    return made


def search(store: Path, kind: Any = GridSearch, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "backend": InlineBackend(), "store": LocalStore(store), "estimator_gen_fn": estimator,
        "search_space": {"lr": hp_choice(RATES)}, "num_epochs": 2, "num_partitions": 2, "validation": 0.25,
        "evaluation_metric": "loss", "progress": False,
    }  # fmt: skip
    return kind(**(arguments | changes))


def contents(run: Run) -> dict[int, Any]:
    """Points, histories and digests of the weights of all trials."""
    return {
        number: (trial.params, trial.status, trial.history, trial.best.state.digest if trial.best else None)
        for number, trial in run.state.trials.items()
    }


def test_trials_that_train_together_end_where_they_end_alone(tmp_path: Path) -> None:
    alone = search(tmp_path / "alone", packing="serial").fit(rows()).run
    run = search(tmp_path / "together").fit(rows()).run
    assert contents(run) == contents(alone)
    assert totals_of(alone.units()).packs == {1: 6 * 2 * 4}
    assert totals_of(run.units()).packs == {3: 2 * 2 * 4}, "three trials of each group of orders"
    assert run.state.units == alone.state.units
    assert not run.broken_rules()
    sums = [sum(trial.seconds for trial in each.state.trials.values()) for each in (run, alone)]
    assert all(seconds > 0 for seconds in sums)


def test_the_leaderboard_is_the_same_packed_and_unpacked(tmp_path: Path) -> None:
    boards = [
        search(tmp_path / packing, packing=packing, num_epochs=3)
        .fit(rows())
        .run.trials()
        .drop(columns="seconds")
        for packing in ("fused", "serial")
    ]
    assert boards[0].equals(boards[1])
    assert len({repr(metrics) for metrics in boards[0]["metrics"]}) == len(RATES)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3)),
    "embedding": Embedded,
    "convolution": convolutional,
    "transformer": Attentive,
    "rnn": Recurrent,
    "condition": lambda: Conditional(WIDTH, 3),
    "autograd function": lambda: Doubles(WIDTH, 3),
    "optimizer": lambda: nn.Linear(WIDTH, 3),
    "step": lambda: nn.Linear(WIDTH, 3),
}


def of_any_kind(params: dict[str, Any]) -> TorchEstimator:
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "metrics": ["accuracy"]}
    if params["kind"] == "step":
        kept: list[int] = []

        def step(model: nn.Module, batch: Any) -> dict[str, Any]:
            kept.append(len(batch["x"]))
            return {"loss": functional.cross_entropy(model(batch["x"]), batch["class"])}

        given = {"step": step}
    return TorchEstimator(
        model=ARCHITECTURES[params["kind"]](),
        optimizer=Backwards if params["kind"] == "optimizer" else torch.optim.Adam,
        optimizer_params={"lr": params["lr"]},
        batch_size=16,
        **given,
    )


def test_models_of_every_kind_come_to_the_same_and_say_why_they_train_alone(tmp_path: Path) -> None:
    kinds = list(ARCHITECTURES)
    space = {"kind": hp_choice(kinds), "lr": hp_choice(RATES[:2])}
    random = np.random.default_rng(2)
    data = {"x": random.standard_normal((96, WIDTH)).astype(np.float32), "class": random.integers(0, 3, 96)}
    given: dict[str, Any] = {
        "estimator_gen_fn": of_any_kind, "search_space": space, "num_epochs": 1, "order_groups": 1,
        "feature_columns": ["x"], "label_columns": ["class"],
    }  # fmt: skip
    run = search(tmp_path / "together", **given).fit(data).run
    alone = search(tmp_path / "alone", packing="serial", **given).fit(data).run
    assert contents(run) == contents(alone)
    reasons = {number: why for why, numbers in totals_of(run.units()).alone.items() for number in numbers}
    said = {trial.params["kind"]: reasons.get(number, "") for number, trial in run.state.trials.items()}
    assert {kind for kind, why in said.items() if why} == {"condition", "optimizer", "step"}, said
    trained = {number for unit in run.units() if len(unit["t"]) > 1 for number in unit["t"]}
    assert {run.state.trials[number].params["kind"] for number in trained} >= {"chain", "transformer", "rnn"}


def test_only_models_that_are_alike_train_together(tmp_path: Path) -> None:
    alone = search(tmp_path / "alone", packing="off", estimator_gen_fn=of_two_kinds).fit(rows()).run
    run = search(tmp_path / "together", estimator_gen_fn=of_two_kinds).fit(rows()).run
    assert contents(run) == contents(alone)
    totals = totals_of(run.units())
    assert totals.alone == {"precision is 'bf16'": [2]}
    assert totals.packs.keys() == {1, 2, 3}, (
        "three only in the first visits, when workers had not said who is alike"
    )
    later = [unit["t"] for unit in run.units() if unit["v"]]
    assert all(len({number >= 4 for number in trials}) == 1 for trials in later)
    assert [2] in later
    shown = CliRunner().invoke(app, ["run", "describe", str(tmp_path / "together"), run.run_id])
    assert "trained alone: trial 2, since precision is 'bf16'" in shown.output
    assert "trained together: " in shown.output


def of_a_branch(params: dict[str, Any]) -> TorchEstimator:
    made = estimator(params)
    made.model = Branched()
    return made


def branched_by_rate(params: dict[str, Any]) -> TorchEstimator:
    return of_a_branch(params) if params["lr"] > RATES[1] else estimator(params)


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x).tanh()


def test_models_with_tapes_begin_alone_and_train_together_once_it_pays_to_record_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = 6  # of a visit
    monkeypatch.setattr(pack, "_in_turns", {})
    monkeypatch.setattr(pack, "_BATCHES_FIRST", 2 * batches)
    given = {"estimator_gen_fn": of_a_branch, "order_groups": 1}
    run = search(tmp_path / "together", **given).fit(rows()).run
    packs = [unit["t"] for unit in run.units() if unit["ph"] == "train"]
    assert [len(trials) for trials in packs[:2]] == [1, 1]
    assert set(packs[2]) == set(range(6)) - {*packs[0], *packs[1]}, "all others, which nobody has met yet"
    assert max(len(trials) for trials in packs[3:]) > 4
    assert contents(run) == contents(search(tmp_path / "alone", packing="serial", **given).fit(rows()).run)


def test_asha_comes_to_the_same_in_packs_and_without(tmp_path: Path) -> None:
    asha = {"kind": ASHA, "num_models": 9, "num_epochs": 4, "search_space": {"lr": hp_log(1e-4, 1e-1)}}
    alone = search(tmp_path / "alone", packing="serial", **asha).fit(rows()).run
    with LocalBackend(num_workers=2, device="cpu") as backend:
        run = search(tmp_path / "together", backend=backend, **asha).fit(rows()).run
    assert contents(run) == contents(alone)
    assert max(totals_of(run.units()).packs) > 1
    assert not run.broken_rules()


class Stop(Callback):
    """Ends the process's driving after some epochs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_epoch_end(self, trial: Any, epoch: float, metrics: dict[str, float]) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_search_that_was_interrupted_goes_on_in_packs(tmp_path: Path, after: int) -> None:
    whole = search(tmp_path / "whole", packing="serial").fit(rows()).run
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "store", callbacks=[Stop(after)]).fit(rows())
    for packing in ("serial", "auto"):  # it may even change on the way
        run = search(tmp_path / "store", packing=packing).fit(rows()).run
        assert contents(run) == contents(whole)
    assert run.state.units == whole.state.units


def test_a_trial_that_kills_its_worker_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER", "1")
    with LocalBackend(num_workers=1, device="cpu") as backend:
        run = (
            search(tmp_path / "store", backend=backend, estimator_gen_fn=one_kills_its_worker).fit(rows()).run
        )
    monkeypatch.delenv("WORKER")
    assert [number for number, trial in run.state.trials.items() if trial.status == "failed"] == [1]
    healthy = (
        search(tmp_path / "alone", packing="serial", estimator_gen_fn=one_kills_its_worker).fit(rows()).run
    )
    assert {number: each for number, each in contents(run).items() if number != 1} == {
        number: each for number, each in contents(healthy).items() if number != 1
    }
    assert not run.broken_rules()


def test_models_that_cannot_be_packed_are_refused_where_packs_are_asked_for(tmp_path: Path) -> None:
    def images(params: dict[str, Any]) -> TorchEstimator:
        made = estimator(params)
        made.model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 2))
        made.precision = "bf16"
        return made

    with pytest.raises(
        UsageError,
        match=r"packing='fused' trains models together, but these train alone: precision is 'bf16'\. PyTorch models in "
        r"fp32 on CPUs .* Change that, or give packing='auto'\.",
    ):
        search(tmp_path, packing="fused", estimator_gen_fn=images).fit(rows())
    assert (
        search(tmp_path, packing="auto", estimator_gen_fn=images, num_epochs=1).fit(rows()).run.status
        == "completed"
    )


def in_short(params: dict[str, Any]) -> TorchEstimator:
    made = estimator(params)
    made.precision = "bf16"
    return made


def five(params: dict[str, Any]) -> TorchEstimator:
    """Models of which the third and last trains alone, and cannot be built."""
    if params["lr"] == RATES[5]:
        raise ArithmeticError("no such model")
    return in_short(params) if params["lr"] == RATES[2] else estimator(params)


TOGETHER = "6 trials train together in 2 packs of 3, gradients of a batch "


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, TOGETHER + "# times as fast as one by one"),
        (
            {"estimator_gen_fn": in_short},
            "trials train one at a time: precision is 'bf16'",
        ),
        ({"packing": "serial"}, "trials train one at a time: packing is 'serial'"),
        (
            {"estimator_gen_fn": five},
            (
                "4 trials train together in 2 packs of 2, gradients of a batch # times as fast as one by one; 1 trial "
                "trains one at a time: precision is 'bf16'; 1 trial trains one at a time: it cannot be built "
                "(ArithmeticError)"
            ),
        ),
    ],
)
def test_a_check_says_which_trials_train_together_and_what_that_gains(
    changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = search(tmp_path, **changes).check(rows())
    assert re.sub(r"\d+\.\d( to \d+\.\d)?", "#", str(plan)) == said
    assert capsys.readouterr().out == f"a batch was trained and validated; {plan}.\n"
    assert plan.unknown == ""


def test_a_check_gains_what_a_run_measures_and_foresees_its_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_gains", {})
    with LocalBackend(num_workers=2, device="cpu") as backend:
        plan = search(tmp_path, backend=backend).check(rows())
        run = search(tmp_path, backend=backend, num_epochs=1).fit(rows()).run
    first = [tuple(sorted(unit["t"])) for unit in run.units() if unit["v"] == 0]
    assert sorted(first) == sorted(each.trials for each in plan.packs)
    assert not pack._gains, "it was measured on a worker"
    here = search(tmp_path, backend=InlineBackend()).check(rows())
    assert [each.gain for each in here.packs] == list(pack._gains.values()) * 2


def test_a_check_says_that_models_with_tapes_begin_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_in_turns", {})
    monkeypatch.setattr(pack, "_BATCHES_FIRST", 1000)
    plan = search(tmp_path / "all", estimator_gen_fn=of_a_branch).check(rows())
    said = "; each begins by itself, until a worker has trained such models for some hundred batches"
    assert re.sub(r"\d+\.\d", "#", str(plan)) == TOGETHER + "# times as fast as one by one" + said
    assert plan.begin_alone == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(pack, "_widths", {})  # the check has measured them
    some = search(tmp_path / "some", estimator_gen_fn=branched_by_rate, order_groups=1).check(rows())
    assert some.begin_alone == [2, 3, 4, 5]
    assert "; 4 of them begin by themselves" in str(some)


def test_models_that_gain_nothing_are_expected_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_GAIN", 1e9)
    plan = search(tmp_path).check(rows())
    assert not plan.packs
    [(why, trials)] = plan.alone.items()
    assert "as long as one by one" in why
    assert trials == [0, 1, 2, 3, 4, 5]


def test_models_that_are_built_slowly_are_taken_for_alike_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_BUILD_SECONDS", 0.0)
    plan = search(tmp_path).check(rows())
    assert plan.unknown == (
        "5 trials not built within a second, and taken for alike the first; gains that could not be measured within "
        "two seconds are unknown"
    )
    assert [each.gain for each in plan.packs] == [None, None]
