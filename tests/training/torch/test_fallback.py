"""What fails in a pack is computed one by one, with the results of trials alone, and that is said in words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.packing import pack_whatever_it_gains
from tests.training.torch import test_pack as chains
from tests.training.torch import test_taped as over_base
from tests.training.torch.test_pack import alone, digests, together, visits
from tests.tune.test_packs import contents, rows, search
from torch import nn

from hopyard.cli.run import _packs_in_numbers
from hopyard.hopper.history import totals_of
from hopyard.training.estimator import _TogetherError
from hopyard.training.session import Session
from hopyard.training.torch import pack, plan, stack, taped
from hopyard.training.torch.replica import TorchReplica


@pytest.fixture(autouse=True)
def _packs_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_whatever_it_gains(monkeypatch)


IS_IN_FORWARD = [False]


@torch.library.custom_op("hopyard_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    if not IS_IN_FORWARD[0]:
        raise RuntimeError("its module holds no workspace\nat this time")
    return x * 2


doubled.register_autograd(lambda context, gradient: gradient * 2)


class Workspace(nn.Module):
    """Calls an extension that works while its module is called, and not from a program of a plan."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.head = base, nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        IS_IN_FORWARD[0] = True
        try:
            return torch.as_tensor(doubled(self.head(self.base(x))))
        finally:
            IS_IN_FORWARD[0] = False


class RefusesModes(Workspace):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise NotImplementedError("it is written for eager PyTorch")
        return torch.as_tensor(self.head(self.base(x)))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Workspace, "trying it out together failed (RuntimeError: its module holds no workspace)"),
        (
            RefusesModes,
            "trying it out together failed (NotImplementedError: it is written for eager PyTorch)",
        ),
    ],
)
def test_models_of_which_no_plan_can_be_made_train_alone(
    model: Callable[[nn.Module], nn.Module], why: str
) -> None:
    with Session(1):
        ones, others = (over_base.replicas(lambda number: {"model": model}, 3) for _ in range(2))
        assert others[0].signature
        with pytest.raises(_TogetherError):
            together(others, visits()[0])
        for visit in visits():
            assert together(others, visit) is None
            assert others[0].trains_alone == why
            assert alone(others, visit) == alone(ones, visit)
        assert [digests(replica) for replica in others] == [digests(replica) for replica in ones]


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> list[int]:
    """Have a method fail from one of its calls on, for want of memory. Returns the numbers of its calls."""
    real, calls = getattr(owner, name), []

    def method(*given: Any, **options: Any) -> Any:
        calls.append(len(calls))
        if len(calls) > at:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(*given, **options)

    monkeypatch.setattr(owner, name, method)
    return calls


def test_a_plan_that_fails_later_is_not_used_again_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def make(number: int) -> dict[str, Any]:
        return {"model": over_base.adapted(4, dropout=0.2), "metrics": ["accuracy"]}

    with Session(1), caplog.at_level(logging.WARNING, "hopyard"):
        ones, others = over_base.replicas(make, 3), over_base.replicas(make, 3)
        first, second = visits()
        calls = failing(monkeypatch, plan.PackPlan, "__call__", at=5)
        assert together(others, first) == alone(ones, first)
        assert len(calls) == 6, "in the middle of the visit"
        why = "their plan failed (RuntimeError: DefaultCPUAllocator: can't allocate memory)"
        assert {replica.trains_alone for replica in others} == {why}
        assert alone(others, second) == alone(ones, second)
        assert [digests(replica) for replica in others] == [digests(replica) for replica in ones]
    [said] = [record for record in caplog.records if record.name == "hopyard"]
    assert said.getMessage() == (
        "The plan that trains models together failed (RuntimeError: DefaultCPUAllocator: can't allocate "
        "memory). They are computed one by one instead, with the same results."
    )
    assert said.exc_info is not None


def test_a_plan_that_fails_in_validation_is_said_and_results_are_those_of_single_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(1), caplog.at_level(logging.WARNING, "hopyard"):
        ones, others = (over_base.replicas(lambda number: {"metrics": ["accuracy"]}, 3) for _ in range(2))
        [visit] = visits(1)
        assert together(others, visit) == alone(ones, visit)
        failing(monkeypatch, taped.Unison, "_ran", at=2)
        for _ in range(2):
            measured = TorchReplica.validate_together(others, visit, list(range(len(others))))
            assert measured is not None
            assert [each.compute() for each in measured] == [
                replica.validate(visit).compute() for replica in ones
            ]  # type: ignore[union-attr]
        assert not others[0].trains_alone, "which they do together"
    assert [record.getMessage()[:52] for record in caplog.records if record.name == "hopyard"] == [
        "The plan that validates models together failed (Runt"
    ]


def test_a_stack_that_fails_in_validation_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(1), caplog.at_level(logging.WARNING, "hopyard"):
        members = chains.replicas(chains.small, 3)
        failing(monkeypatch, stack.Stack, "forward", at=0)
        assert TorchReplica.validate_together(members, visits()[0], list(range(len(members)))) is None
    [said] = [record.getMessage() for record in caplog.records if record.name == "hopyard"]
    assert said == (
        "Validating models together failed (RuntimeError: DefaultCPUAllocator: can't allocate memory). They are "
        "computed one by one instead, with the same results."
    )


def test_a_stack_that_fails_while_it_trains_ends_the_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "training them together failed (RuntimeError: DefaultCPUAllocator: can't allocate memory)"
    with Session(1):
        members = chains.replicas(chains.small, 3)
        failing(monkeypatch, pack._Lockstep, "gradients", at=4)
        with pytest.raises(_TogetherError) as raised:
            together(members, visits()[0])
        assert str(raised.value) == why
        assert members[0].trains_alone == why
        assert all(parameter.grad is None for replica in members for parameter in replica.module.parameters())


@pytest.mark.parametrize("at", [3, 4 + 40])
def test_trials_of_a_pack_that_fails_begin_the_visit_anew_alone(
    at: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In their first visit, and in a later one, in which their states are in memory."""
    expected = search(tmp_path / "alone", packing="serial").fit(rows()).run
    calls = failing(monkeypatch, pack._Lockstep, "gradients", at)
    with caplog.at_level(logging.WARNING, "hopyard"):
        run = search(tmp_path / "run").fit(rows()).run
    assert calls
    assert contents(run) == contents(expected)
    totals = totals_of(run.units())
    why = "training them together failed (RuntimeError: DefaultCPUAllocator: can't allocate memory)"
    assert sorted(totals.alone[why]) == [0, 1, 2, 3, 4, 5]
    [said] = {record.getMessage() for record in caplog.records if "one at a time" in record.getMessage()}
    assert said.endswith(f"make this visit one at a time from where they began, since {why}.")
    assert f"\ntrained alone: trials 0, 1, 2, 3, 4, ..., since {why}" in _packs_in_numbers(totals)


def test_what_the_data_fails_at_is_the_failure_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(1):
        members = chains.replicas(chains.small, 3)

        def broken(self: Any, visit: Any) -> Any:
            yield from list(real(self, visit))[:2]
            raise OSError("the disk is gone")

        real = TorchReplica.training_batches
        monkeypatch.setattr(TorchReplica, "training_batches", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            together(members, visits()[0])
        assert not members[0].trains_alone


def test_a_check_says_that_measuring_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(kind: type[TorchReplica], *given: Any) -> None:
        raise ValueError("no row is like that\nor another")

    monkeypatch.setattr(TorchReplica, "gain_together", classmethod(fail))
    planned = search(tmp_path).check(rows())
    assert planned.unknown == "measuring what they gain failed (ValueError: no row is like that)"
    assert str(planned) == f"6 trials would train together in 2 packs of 3; {planned.unknown}"
    assert capsys.readouterr().out == f"a batch was trained and validated; {planned}.\n"
