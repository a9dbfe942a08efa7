"""Which trials are expected to train together."""

from __future__ import annotations

import pytest

from hopyard.errors import UsageError
from hopyard.hopper import PackingPlan, PlannedPack, plan_packs


def packs_of(plan: PackingPlan) -> list[tuple[int, ...]]:
    return [pack.trials for pack in plan.packs]


def test_trials_are_shared_out_over_workers_and_no_pack_has_more_than_16() -> None:
    assert packs_of(plan_packs(8, workers=2, partitions=1)) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [len(pack) for pack in packs_of(plan_packs(40, workers=1, partitions=1))] == [16, 16, 8]
    assert sorted(trial for pack in packs_of(plan_packs(40, 3, 1)) for trial in pack) == list(range(40))


def test_only_trials_that_are_to_make_the_same_visit_train_together() -> None:
    assert packs_of(plan_packs(8, workers=1, partitions=2)) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert packs_of(plan_packs(8, workers=1, partitions=2, order_groups=1)) == [tuple(range(8))]


def test_kinds_keep_to_themselves_and_reasons_are_said() -> None:
    plan = plan_packs(
        6,
        workers=1,
        partitions=1,
        kinds=["a", "b", "a", "", "b", "c"],
        reasons=["", "", "", "step= is given", "", ""],
        gains={"a": 3.0, "b": 1.5},
        unknown="",
    )
    assert sorted(plan.packs, key=lambda pack: pack.trials) == [
        PlannedPack((0, 2), 3.0),
        PlannedPack((1, 4), 1.5),
    ]
    assert {why[:20]: trials for why, trials in plan.alone.items()} == {
        "step= is given": [3],
        "no other trial of th": [5],
    }
    assert str(plan).startswith(
        "4 trials train together in 2 packs of 2, gradients of a batch 1.5 to 3.0 times as fast as one by one; "
        "1 trial trains one at a time: "
    )


def test_what_is_not_known_is_said() -> None:
    assert str(plan_packs(70, workers=2, partitions=4)) == (
        "68 trials would train together in 4 packs of 16 and 2 packs of 2; 2 trials train one at a time: no other "
        "trial of their architecture is to visit the same partition at the same time; order_groups=1, fewer partitions "
        "or fewer workers would let them; the gain is unknown, as no model is at hand: search.check(data) builds some "
        "and measures it"
    )


def test_where_no_two_trials_make_a_visit_together_that_is_all_that_is_said() -> None:
    plan = plan_packs(3, workers=8, partitions=8)
    assert not plan.packs
    assert str(plan).startswith("trials train one at a time: no other trial of their architecture")
    assert "unknown" not in str(plan)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trials": 0}, "trials=0, but it must be an integer of at least 1"),
        ({"workers": 0}, "workers=0, but it must be an integer of at least 1"),
        ({"partitions": 1.5}, "partitions=1.5, but it must be an integer of at least 1"),
        ({"order_groups": 0}, "order_groups=0, but it must be an integer of at least 1"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_packs(**{"trials": 4, "workers": 2, "partitions": 2, **changes})
