"""Measuring what packs gain takes no more steps than a budget of CPU time allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.training.torch import test_pack as chains
from tests.training.torch import test_taped as over_base
from torch import nn

from hopyard.training import measuring
from hopyard.training.session import Session
from hopyard.training.torch import pack, taped
from hopyard.training.torch.replica import TorchReplica


class Clock:
    """Time that passes by steps of models alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, what: str, seconds: Callable[..., float], real: Callable[..., Any]) -> Any:
        def step(*given: Any, **options: Any) -> Any:
            self.steps.append(what)
            self.now += seconds(*given)
            return real(*given, **options)

        return step


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(measuring, "clock", made)
    monkeypatch.setattr(pack, "_widths", {})
    monkeypatch.setattr(pack, "_gains", {})
    monkeypatch.setattr(pack, "_in_turns", {})
    monkeypatch.setattr(pack, "_BATCHES_FIRST", 0)
    monkeypatch.setattr(taped, "_plans", {})
    with Session(1):
        yield made


def gain_of(members: list[TorchReplica]) -> float | None:
    return TorchReplica.gain_together(members, chains.visits()[0], list(range(len(members))))


def chains_taking(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, alone: float, together: Callable[[int], float]
) -> list[TorchReplica]:
    """Twenty chains of which a step takes so long alone, and so many times as long as all of them alone in a stack."""
    lockstep = pack._Lockstep.gradients

    def seconds(stack: Any, *given: Any) -> float:
        return together(len(stack._forwards)) * alone * len(stack._forwards)

    monkeypatch.setattr(
        pack, "_own_gradients", clock.taking("alone", lambda *given: alone, pack._own_gradients)
    )
    monkeypatch.setattr(pack._Lockstep, "gradients", clock.taking("together", seconds, lockstep))
    return chains.replicas(
        lambda number: {"model": nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 3))}, 20
    )


@pytest.mark.parametrize("together", [0.5, 0.95, 2.0])
@pytest.mark.parametrize("alone", [0.0005, 0.004, 0.03, 0.09, 0.11, 1.5, 60.0])
def test_steps_of_chains_keep_to_the_budget(
    alone: float, together: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = chains_taking(monkeypatch, clock, alone, lambda width: together)
    gain = gain_of(members)
    assert clock.now <= 2.0 + (1 + 4 * together) * alone, "a turn that begins in time is done"
    if 5 * 4 * alone > 2.0:
        assert gain is None
        assert clock.steps == ["alone"] * (1 if alone > 0.2 else 2)
        assert members[0].trains_alone == (
            "a batch takes so long that it takes over 2 s to measure what they gain"
        )
    elif together == 0.5:
        assert gain == pytest.approx(2)
        assert not members[0].trains_alone
    else:
        assert members[0].trains_alone.endswith(
            f"of them together would take {together:.2f} times as long as one by one"
        )


def test_a_wider_stack_is_measured_while_there_is_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = {}
    for alone in (0.0005, 0.03, 0.09):
        monkeypatch.setattr(pack, "_widths", {})
        with monkeypatch.context() as patch:
            members = chains_taking(patch, clock, alone, lambda width: 2 / width)
            gain_of(members)
            with Session(1):
                widths[alone] = pack.width_of(members[0].signature)
    assert widths == {0.0005: 16, 0.03: 8, 0.09: 4}


def over_base_taking(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, alone: float, together: float
) -> list[TorchReplica]:
    """As :func:`chains_taking`, eight models over a base."""
    run = taped.Unison._ran

    def seconds(unison: Any, *given: Any) -> float:
        return together * alone * len(unison._members)

    monkeypatch.setattr(
        taped, "gradients_of", clock.taking("alone", lambda *given: alone, taped.gradients_of)
    )
    monkeypatch.setattr(taped.Unison, "_ran", clock.taking("together", seconds, run))
    return over_base.replicas(lambda number: {}, 8)


@pytest.mark.parametrize("together", [0.5, 0.95, 2.0])
@pytest.mark.parametrize("alone", [0.002, 0.04, 0.09, 0.15, 0.3, 60.0])
def test_steps_over_a_base_keep_to_the_budget(
    alone: float, together: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = over_base_taking(monkeypatch, clock, alone, together)
    found = chains.together(members, chains.visits()[0]) if together != 0.5 else gain_of(members)
    assert clock.now <= 2.0 + (1 + 2 * together) * alone, "a turn that begins in time is done"
    if 5 * 2 * alone > 2.0:
        assert found is None
        assert clock.steps == ["alone"] * (1 if alone > 0.2 else 2)
        assert not taped._plans
    elif together == 0.5:
        assert found == pytest.approx(2)
    else:
        assert found is None
        assert "times as long as one by one" in members[0].trains_alone


def test_over_a_base_long_batches_are_measured_after_many_in_turns(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = over_base_taking(monkeypatch, clock, 0.4, 0.6)
    key = (members[0].signature, 1)
    for batches, width in ((0, None), (400, 2), (2000, 8)):
        clock.steps.clear()
        pack._in_turns[key] = batches
        pack._widths.clear()
        begun = clock.now
        found = chains.together(members, chains.visits()[0])
        assert (found is not None) == (width is not None)
        assert pack.width_of(members[0].signature) == (width or pack._TAKES_LONG)
        assert width or clock.now - begun < 1
        assert not width or begun + clock.steps.count("alone") * 0.4 > 2.0


def of(ones: list[float], stacks: list[float], width: int, until: float = 1e9) -> tuple[float, str]:
    """A gain that is measured of calls that take so long, in milliseconds, and their order."""
    clock = Clock()
    given = {"1": iter(ones), "k": iter(stacks)}

    def call(name: str) -> Callable[[], None]:
        def do() -> None:
            clock.steps.append(name)
            clock.now += next(given[name]) / 1000

        return do

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "clock", clock)
        found = measuring.gain(call("1"), call("k"), width, 1.1, until)
    return found, "".join(clock.steps)


def test_short_calls_have_turns_of_equal_work_behind_one_each_that_does_not_count() -> None:
    found, order = of([5, *[1] * 1000], [3, *[2] * 1000], 3)
    assert order == "1k" + "111k" * 6, "five turns, and 0.03 s"
    assert found == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("ones", "stacks", "order", "gain"),
    [
        ([100, 90], [200, 150], "1k1k", 2.4),
        ([100], [400], "1k", 1.0),
        ([100, 100, 100], [350, 380, 360], "1k1k1k", 400 / 350),
        ([100, 90], [350, 250], "1k1k1k"[:6], 360 / 250),
    ],
)
def test_long_calls_have_another_turn_only_where_the_answer_is_not_clear(
    ones: list[float], stacks: list[float], order: str, gain: float
) -> None:
    ones, stacks = [*ones, *ones[-1:] * 3], [*stacks, *stacks[-1:] * 3]
    assert of(ones, stacks, 4) == (pytest.approx(gain), order)


def test_no_other_turn_begins_when_time_is_over() -> None:
    assert of([100] * 3, [360] * 3, 4, until=0.4)[1] == "1k"


def test_a_first_call_does_not_count_unless_it_is_long(clock: Clock) -> None:
    for first, then, found in ((0.15, 0.01, 0.01), (0.25, 0.01, 0.25)):
        left = [first, then]

        def do(left: list[float] = left) -> None:
            clock.now += left.pop(0)

        assert measuring.seconds(do) == pytest.approx(found)
