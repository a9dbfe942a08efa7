"""The scheduler alone: random events, invariants, order, and who goes first."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import by_level

from hopyard.hopper.orders import rotating_order
from hopyard.hopper.scheduler import Layout, Position, Scheduler, Start, Unit
from hopyard.hopper.state import TrialProgress

SEQUENCES = by_level(200, 800, 20_000)
"""How many random sequences of events are played; 100,000 take a quarter of an hour."""


def make(
    partitions: int, validate: int, homes: dict[int, frozenset[int]] | None = None, **how: Any
) -> Scheduler:
    order = rotating_order(partitions, partitions, 7)
    of_validation = rotating_order(max(validate, 1), partitions, 7)
    return Scheduler(Layout(partitions, validate), order, of_validation, homes, **how)


def follow(position: Position, unit: Unit, layout: Layout) -> Position:
    """Where a trial stands after a unit: told independently of the scheduler."""
    visits = position.visits + 1
    if unit.phase == "train":
        trained = position.trained + 1
        seen = frozenset() if trained % layout.train == 0 else position.seen | {unit.partition}
        return replace(position, visits=visits, trained=trained, seen=seen)
    if unit.last:
        return replace(position, visits=visits, step=0, validated=position.trained)
    return replace(position, visits=visits, step=position.step + 1)


class Driver:
    """Carries out instructions and chooses, at random, what happens next."""

    def __init__(
        self, scheduler: Scheduler, workers: int, seed: int, free: bool = False, most: int = 1
    ) -> None:
        self.scheduler, self.random, self.free = scheduler, random.Random(seed), free
        self.layout = scheduler.layout
        self.running: dict[int, tuple[Unit, ...]] = {}
        self.done: dict[int, list[Unit]] = defaultdict(list)
        self.position: dict[int, Position] = {}
        self.durable: dict[int, tuple[int, Position]] = {}
        self.target: dict[int, int] = {}
        self.kind: dict[int, str | None] = {}
        self.most = most
        self.up: set[int] = set()
        self.anywhere: set[int] = set()
        for worker in range(workers):
            self.worker_up(worker)

    def obey(self, starts: list[Start]) -> None:
        for start in starts:
            assert start.worker in self.up, "a worker that is gone was given a unit"
            assert start.worker not in self.running, "a busy worker was given a unit"
            under_way = {unit.trial for units in self.running.values() for unit in units}
            assert not under_way.intersection(start.trials), "a trial in two units"
            assert len(set(start.trials)) == len(start.units) <= self.most
            assert len({replace(unit, trial=0) for unit in start.units}) == 1, (
                "trials together make one visit"
            )
            assert len(start.units) == 1 or len({self.kind[trial] for trial in start.trials} - {None}) == 1
            assert len({self.target[trial] for trial in start.trials}) == 1
            for unit in start.units:
                position = self.position[unit.trial]
                assert (unit.visit, unit.trained) == (position.visits, position.trained)
                assert unit.partition not in position.seen or unit.phase == "validate"
                homes = self.scheduler_homes
                if unit.trial not in self.anywhere and homes is not None:
                    assert start.worker in homes[unit.partition], "a partition lives elsewhere"
                assert unit.trial not in self.anywhere or len(start.units) == 1
                self.anywhere.discard(unit.trial)
            self.running[start.worker] = start.units

    scheduler_homes: dict[int, frozenset[int]] | None = None

    def worker_up(self, worker: int) -> None:
        self.up.add(worker)
        self.obey(self.scheduler.worker_up(worker))

    def worker_down(self, worker: int) -> None:
        self.up.discard(worker)
        units = self.running.pop(worker, ())
        lost = self.scheduler.worker_down(worker)
        self.scheduler.validate()
        for trial in dict.fromkeys([*(unit.trial for unit in units), *lost]):
            done, self.position[trial] = self.durable[trial]
            del self.done[trial][done:]
            anywhere = self.random.random() < 0.5
            self.anywhere = self.anywhere | {trial} if anywhere else self.anywhere - {trial}
            self.obey(self.scheduler.returned(trial, self.position[trial], anywhere=anywhere))

    def add(self, trial: int, target: int, urgency: float = 0, position: Position | None = None) -> None:
        self.target[trial] = target
        self.position[trial] = position or Position()
        self.durable[trial] = (0, self.position[trial])
        kind = self.kind[trial] = None if self.most == 1 else self.random.choice(["", "", "a", None])
        self.obey(self.scheduler.add(trial, trial % 3, self.position[trial], target, urgency, kind=kind))

    def extend(self, trial: int, target: int) -> None:
        self.target[trial] = target
        self.obey(self.scheduler.extend(trial, target, self.random.choice([0, 1, 2])))

    def finish(self, worker: int, resident: bool = False, seconds: float | None = None) -> None:
        if len(self.kind) % 7 == 5 and self.most > 1:
            for trial in self.random.sample(sorted(self.kind), 2):
                if self.scheduler.has(trial):  # it may be ready
                    self.kind[trial] = self.random.choice(["a", "b", None])
                    self.scheduler.set_kind(trial, self.kind[trial])
                    self.scheduler.validate()
        for unit in self.running.pop(worker):
            if len(self.kind) % 7 == 3 and self.most > 1:
                self.kind[unit.trial] = self.random.choice(["a", "b", None])
                self.scheduler.set_kind(unit.trial, self.kind[unit.trial])
            if self.most > 1 and self.random.random() < 0.05:
                self.repeat(unit.trial)
                continue
            self.done[unit.trial].append(unit)
            self.position[unit.trial] = follow(self.position[unit.trial], unit, self.layout)
            if not resident:
                self.durable[unit.trial] = (len(self.done[unit.trial]), self.position[unit.trial])
            self.obey(self.scheduler.done(unit.trial, seconds, resident))

    def finish_one(self, resident: bool = False) -> None:
        self.finish(
            self.random.choice(sorted(self.running)), resident, self.random.choice([None, 1.0, 2.0, 9.0])
        )

    def put_back(self, worker: int) -> None:
        """A full disk: the unit is repeated."""
        for unit in self.running.pop(worker):
            self.repeat(unit.trial)

    def repeat(self, trial: int) -> None:
        """A trial goes on from what is durable of it."""
        self.anywhere.discard(trial)
        done, self.position[trial] = self.durable[trial]
        del self.done[trial][done:]
        self.obey(self.scheduler.returned(trial, self.position[trial]))

    def end(self, trial: int) -> None:
        left = {w: tuple(unit for unit in units if unit.trial != trial) for w, units in self.running.items()}
        self.running = {worker: units for worker, units in left.items() if units}
        del self.target[trial]
        self.obey(self.scheduler.end(trial))


def play(seed: int) -> None:
    """One random sequence of events, up to a quiet end."""
    chance = random.Random(seed)
    partitions, validate, workers = chance.randint(1, 5), chance.randint(0, 3), chance.randint(1, 6)
    free, order = chance.random() < 0.4, chance.choice(["longest", "greedy"])
    copies = chance.choice([0, 0, 1, 2])
    homes = {
        j: frozenset((j + shift) % workers for shift in range(copies))
        for j in range(max(partitions, validate))
    }
    most = chance.choice([1, 2, 5])
    scheduler = make(
        partitions,
        validate,
        homes if copies else None,
        order=order,
        free=free,
        hop_seconds=chance.choice([0, 2]),
        most=most,
    )
    driver = Driver(scheduler, 0, seed, free, most)
    driver.scheduler_homes = homes if copies else None
    for worker in range(chance.randint(1, workers)):
        driver.worker_up(worker)
    for _ in range(chance.randint(5, 60)):
        disturb(driver, chance, workers, resident=not copies)
        scheduler.validate()
    driver.obey(scheduler.resume())
    for worker in set(range(workers)) - driver.up:
        driver.worker_up(worker)
    while driver.running:
        driver.finish_one()
        scheduler.validate()
    for trial, target in driver.target.items():
        assert driver.position[trial].trained >= target, f"trial {trial} was left behind"
        assert_complete(driver, trial, validate)


def disturb(driver: Driver, chance: random.Random, workers: int, resident: bool) -> None:
    scheduler, trials = driver.scheduler, sorted(driver.target)
    event = chance.random()
    if event < 0.2:
        number = len(driver.position)
        driver.add(number, chance.randint(0, 3 * driver.layout.train), chance.choice([0, 0, 1, 2.5]))
    elif event < 0.26 and trials:
        trial = chance.choice(trials)
        driver.extend(trial, driver.target[trial] + chance.randint(0, driver.layout.train))
    elif event < 0.30 and trials:
        driver.end(chance.choice(trials))
    elif event < 0.34:
        driver.worker_up(chance.randrange(workers))
    elif event < 0.38 and driver.up:
        driver.worker_down(chance.choice(sorted(driver.up)))
    elif event < 0.41 and driver.running:
        driver.put_back(chance.choice(sorted(driver.running)))
    elif event < 0.44:
        if scheduler.paused:
            driver.obey(scheduler.resume())
        else:
            scheduler.pause()
    elif driver.running:
        driver.finish_one(resident and chance.random() < 0.3)


def assert_complete(driver: Driver, trial: int, validate: int) -> None:
    """In each epoch every partition once, and validations whole."""
    per_epoch: dict[int, list[int]] = defaultdict(list)
    for unit in driver.done[trial]:
        if unit.phase == "train":
            per_epoch[unit.epoch].append(unit.partition)
    for partitions in per_epoch.values():
        assert len(set(partitions)) == len(partitions) <= driver.layout.train
    position = driver.position[trial]
    assert position.step == 0
    assert not validate or position.validated == position.trained


def test_any_events_keep_the_invariants_and_no_trial_is_left_behind() -> None:
    for seed in range(SEQUENCES):
        play(seed)


@given(seed=st.integers(10**6, 10**9))
def test_any_events_found_by_hypothesis_do_as_well(seed: int) -> None:
    play(seed)


def run_all(scheduler: Scheduler, workers: int, trials: int, target: int) -> Driver:
    driver = Driver(scheduler, workers, workers)
    for trial in range(trials):
        driver.add(trial, target)
    while driver.running:
        driver.finish_one()
    return driver


def test_a_trial_visits_the_partitions_in_its_groups_order_whatever_the_workers() -> None:
    order = rotating_order(4, 4, 7)
    for workers in (1, 3):
        driver = run_all(make(4, 0), workers, 5, 8)
        for trial in range(5):
            visited = [unit.partition for unit in driver.done[trial]]
            assert visited == [*order(trial % 3, 0), *order(trial % 3, 1)]


def test_equal_units_of_as_many_groups_as_partitions_never_meet() -> None:
    order = rotating_order(6, 6, 3)
    for step in range(6):
        assert len({order(group, 2)[step] for group in range(6)}) == 6


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (3, "ttt vv"),  # a rung within an epoch
        (4, "tttt vv"),
        (6, "tttt vv tt vv"),
        (8, "tttt vv tttt vv"),
    ],
)
def test_validation_follows_an_epoch_and_the_target(target: int, expected: str) -> None:
    units = run_all(make(4, 2), 1, 1, target).done[0]
    assert "".join(unit.phase[0] for unit in units) == expected.replace(" ", "")
    ends = [unit.visit for unit in units if unit.last]
    assert ends == [n - 1 for n, _ in enumerate(expected.replace(" ", ""), 1) if is_end(expected, n)]
    assert [unit.trained for unit in units if unit.phase == "validate"] == [
        trained for trained in (*range(4, target, 4), target) for _ in range(2)
    ]


def is_end(expected: str, units: int) -> bool:
    """Whether ``units`` letters end a word."""
    lengths = [len(word) for word in expected.split()]
    return units in [sum(lengths[:k]) for k in range(1, len(lengths) + 1)]


def test_a_trial_that_is_extended_after_a_rung_finishes_its_epoch() -> None:
    driver = run_all(make(4, 1), 1, 1, 3)
    driver.extend(0, 8)
    while driver.running:
        driver.finish_one()
    assert "".join(unit.phase[0] for unit in driver.done[0]) == "tttv" + "tv" + "ttttv"
    assert [unit.epoch for unit in driver.done[0]] == [0] * 6 + [1] * 5


def test_a_trial_goes_on_within_a_validation() -> None:
    scheduler = make(4, 3)
    position = Position(visits=5, trained=4, step=1, validated=0)
    [start] = scheduler.worker_up(0) + scheduler.add(0, 0, position, 8)
    assert (start.unit.phase, start.unit.visit, start.unit.epoch, start.unit.last) == (
        "validate",
        5,
        0,
        False,
    )


def test_a_trial_in_free_order_goes_on_with_the_partitions_that_it_has_not_seen() -> None:
    scheduler = make(4, 0, free=True)
    scheduler.worker_up(0)
    [start] = scheduler.add(0, 0, Position(visits=3, trained=3, seen=frozenset({0, 2, 3})), 8)
    assert start.unit.partition == 1


@pytest.mark.parametrize("step", [0, 1])
def test_a_trial_in_free_order_that_comes_back_in_a_validation_sees_all_in_the_next_epoch(step: int) -> None:
    """As a journal leaves it: what the epoch has seen is forgotten once that is validated."""
    trained = tuple((partition, {"loss": [1.0, 1.0]}) for partition in (2, 0, 1))
    carried = ({"partition": 1, "states": {}},) * step
    position = TrialProgress(visits=3 + step, trained=3, step=step, train=trained, carried=carried).position()
    scheduler = make(3, 2, free=True)
    scheduler.worker_up(0)
    [start] = scheduler.add(0, 0, position, 6)
    units = [start.unit]
    while found := scheduler.done(0):
        units.append(found[0].unit)
    phases = [unit.phase for unit in units]
    assert phases == ["validate"] * (2 - step) + ["train"] * 3 + ["validate"] * 2
    assert sorted(unit.partition for unit in units if unit.phase == "train") == [0, 1, 2]


@pytest.mark.parametrize("order", ["longest", "greedy"])
def test_trials_advance_together(order: Literal["longest", "greedy"]) -> None:
    driver = Driver(make(4, 0, order=order), 1, 0)
    for trial in range(4):
        driver.add(trial, 12)
    while driver.running:
        driver.finish(0, seconds=1.0)
        visits = [len(driver.done[trial]) for trial in range(4)]
        assert max(visits) - min(visits) <= 1


def test_the_longest_way_goes_first_once_units_were_measured() -> None:
    driver = Driver(make(2, 0), 1, 0)
    for trial in range(3):
        driver.add(trial, 4)
    for _ in range(3):
        driver.finish(0, seconds=[1.0, 5.0, 2.2][driver.running[0][0].trial])
    taken = []
    while driver.running:
        taken.append(driver.running[0][0].trial)
        driver.finish(0, seconds=[1.0, 5.0, 2.2][driver.running[0][0].trial])
    assert taken == [1, 1, 2, 1, 2, 0, 2, 0, 0]


def test_the_most_urgent_go_first() -> None:
    driver = Driver(make(2, 0), 1, 0)
    driver.scheduler.pause()
    for trial, urgency in enumerate([3.0, 1.0, 2.0]):
        driver.add(trial, 2, urgency)
    driver.obey(driver.scheduler.resume())
    taken = []
    while driver.running:
        taken.append(driver.running[0][0].trial)
        driver.finish(0, seconds=1.0)
    assert taken == [1, 1, 2, 2, 0, 0]


@pytest.mark.parametrize("order", ["longest", "greedy"])
def test_trials_keep_to_their_workers_when_all_units_take_the_same_time(
    order: Literal["longest", "greedy"],
) -> None:
    driver = Driver(make(4, 0, order=order), 2, 0)
    where: dict[int, set[int]] = defaultdict(set)
    for trial in range(6):
        driver.add(trial, 12)
    while driver.running:
        for worker in sorted(driver.running):
            where[driver.running[worker][0].trial].add(worker)
            driver.finish(worker, seconds=1.0)
    assert all(len(workers) == 1 for workers in where.values())


def test_a_worker_keeps_what_it_holds_if_a_hop_costs_more_than_it_gains() -> None:
    hops = []
    for hop_seconds in (0.0, 100.0):
        driver = Driver(make(4, 0, hop_seconds=hop_seconds), 2, 5)
        for trial in range(6):
            driver.add(trial, 40)
        held: dict[int, int] = {}
        count: Counter[int] = Counter()
        while driver.running:
            worker = driver.random.choice(sorted(driver.running))
            trial = driver.running[worker][0].trial
            count[held.get(trial, worker) != worker] += 1
            held[trial] = worker
            driver.finish(worker, seconds=1.0 + trial)
        hops.append(count[True])
    assert hops[1] < hops[0] / 4


def test_a_unit_goes_to_the_replica_that_is_idle() -> None:
    scheduler = make(2, 0, {0: frozenset({0, 1}), 1: frozenset({0, 1})})
    driver = Driver(scheduler, 2, 0)
    driver.add(0, 2)
    driver.add(1, 2)
    assert sorted(driver.running) == [0, 1]


def test_a_worker_that_has_other_work_leaves_a_trial_to_one_that_has_none() -> None:
    """Worker 1 can only do partition 1, worker 0 both."""
    scheduler = make(2, 0, {0: frozenset({0}), 1: frozenset({0, 1})}, free=True)
    driver = Driver(scheduler, 2, 0)
    driver.scheduler_homes = {0: frozenset({0}), 1: frozenset({0, 1})}
    scheduler.pause()
    driver.add(0, 1, urgency=0)
    driver.add(1, 1, urgency=1)
    driver.obey(scheduler.resume())
    assert len(driver.running) == 2


def test_what_a_lost_worker_did_may_be_done_where_its_partition_does_not_live() -> None:
    scheduler = make(2, 0, {0: frozenset({0}), 1: frozenset({1})})
    [start] = [*scheduler.worker_up(0), *scheduler.worker_up(1), *scheduler.add(0, 0, Position(), 2)]
    scheduler.worker_down(start.worker)
    other = 1 - start.worker
    assert scheduler.returned(0, Position(), anywhere=True) == [Start(other, (start.unit,))]
    assert scheduler.worker_up(start.worker) == []
    [following] = scheduler.done(0)
    assert (following.worker, following.unit.partition) == (other, other), "only that unit"


def test_a_resident_state_keeps_its_trial_on_the_worker_that_holds_it() -> None:
    scheduler = make(3, 0)
    [start] = scheduler.add(0, 0, Position(), 3) + scheduler.worker_up(0)
    assert start.worker == 0
    scheduler.worker_up(1)
    scheduler.add(1, 0, Position(), 3)
    assert [s.worker for s in scheduler.done(0, resident=True)] == [0]
    assert scheduler.worker_down(0) == [0]


def test_a_trial_whose_worker_is_lost_waits_until_it_is_said_from_where_it_goes_on() -> None:
    scheduler = make(3, 0)
    scheduler.worker_up(0)
    scheduler.add(0, 0, Position(), 3)
    assert scheduler.worker_down(0) == []
    scheduler.validate()
    assert scheduler.worker_up(0) == []
    assert [start.unit.visit for start in scheduler.returned(0, Position())] == [0]


def test_trials_of_one_kind_make_a_visit_together() -> None:
    scheduler = make(2, 0, most=4)
    scheduler.pause()
    scheduler.worker_up(0)
    for trial, kind in enumerate(["a", "a", "b", None, None, "a", "a", "a"]):
        scheduler.add(trial, 0, Position(), 2, kind=kind)
    [start] = scheduler.resume()
    assert start.trials == (0, 1, 5, 6), "as many as may, from the first on"
    assert scheduler.done(0) == scheduler.done(1) == scheduler.done(5) == []
    assert scheduler.running == 1
    [following] = scheduler.done(6)
    assert following.trials == (2,), "those that have done less go first"
    scheduler.validate()


def test_trials_that_may_go_together_are_shared_among_workers_that_would_be_idle() -> None:
    scheduler = make(2, 0, most=16)
    scheduler.pause()
    for worker in range(3):
        scheduler.worker_up(worker)
    for trial in range(8):
        scheduler.add(trial, 0, Position(), 2, kind="a")
    assert sorted(len(start.units) for start in scheduler.resume()) == [2, 3, 3]


def three_under_way_together() -> Scheduler:
    """Trials 0, 1 and 2 make a visit together on worker 0."""
    scheduler = make(2, 0, most=4)
    scheduler.pause()
    scheduler.worker_up(0)
    for trial in range(3):
        scheduler.add(trial, 0, Position(), 2, kind="a")
    [start] = scheduler.resume()
    assert start.trials == (0, 1, 2)
    return scheduler


def test_a_trial_that_ends_in_a_visit_leaves_the_others_in_it() -> None:
    scheduler = three_under_way_together()
    assert scheduler.end(1) == []
    assert scheduler.done(0) == []
    [start] = scheduler.done(2)
    assert start.trials == (0, 2)


def test_after_a_lost_worker_each_makes_the_visit_alone() -> None:
    scheduler = three_under_way_together()
    scheduler.worker_down(0)
    for trial in range(3):
        scheduler.returned(trial, Position(), idle=False, anywhere=True)
    [start] = scheduler.worker_up(0)
    assert start.trials == (0,)
    assert [following.trials for following in scheduler.done(0)] == [(1,)]


def test_nothing_starts_while_paused() -> None:
    scheduler = make(2, 0)
    scheduler.worker_up(0)
    scheduler.pause()
    assert scheduler.add(0, 0, Position(), 2) == []
    assert [start.worker for start in scheduler.resume()] == [0]


@pytest.mark.parametrize("workers", [1, 1000])
def test_ten_thousand_trials_on_many_workers_are_scheduled_without_going_through_all(workers: int) -> None:
    scheduler = make(2, 0)
    for worker in range(workers):
        scheduler.worker_up(worker)
    running = [start for trial in range(10_000) for start in scheduler.add(trial, trial % 3, Position(), 2)]
    for start in running[:1000]:
        running += scheduler.done(start.unit.trial, 1.0)
    assert scheduler.running == workers
    scheduler.validate()
