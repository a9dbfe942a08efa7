"""The scheduler alone: random events, invariants, order, and who goes first."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.hopper.orders import rotating_order
from hopyard.hopper.scheduler import Layout, Scheduler, Start, Unit


def make(partitions: int, validate: int, homes: dict[int, frozenset[int]] | None = None) -> Scheduler:
    order = rotating_order(partitions, partitions, 7)
    return Scheduler(
        Layout(partitions, validate), order, rotating_order(max(validate, 1), partitions, 7), homes
    )


class Driver:
    """Carries out instructions and chooses, at random, what happens next."""

    def __init__(self, scheduler: Scheduler, workers: int, seed: int) -> None:
        self.scheduler, self.random = scheduler, random.Random(seed)
        self.running: dict[int, Unit] = {}
        self.done: dict[int, list[Unit]] = defaultdict(list)
        self.durable: Counter[int] = Counter()
        self.live: set[int] = set()
        for worker in range(workers):
            self.obey(scheduler.worker_up(worker))

    def obey(self, starts: list[Start]) -> None:
        for start in starts:
            assert start.worker not in self.running, "a busy worker was given a unit"
            assert all(unit.pack != start.unit.pack for unit in self.running.values()), "a pack in two units"
            assert start.unit.visit == len(self.done[start.unit.pack]), "a visit was skipped"
            self.running[start.worker] = start.unit

    def add(self, pack: int, epochs: int) -> None:
        self.live.add(pack)
        self.obey(self.scheduler.add(pack, pack % 3, 0, epochs))

    def finish_one(self, resident: bool = False) -> None:
        worker = self.random.choice(sorted(self.running))
        unit = self.running.pop(worker)
        self.done[unit.pack].append(unit)
        if not resident:
            self.durable[unit.pack] = len(self.done[unit.pack])
        self.obey(self.scheduler.done(unit.pack, resident))

    def lose_one(self) -> None:
        worker = self.random.choice(sorted(self.running))
        unit = self.running.pop(worker)
        back = dict.fromkeys([unit.pack, *self.scheduler.worker_down(worker)])
        for pack in back:
            del self.done[pack][self.durable[pack] :]
            self.obey(self.scheduler.returned(pack, self.durable[pack], idle=False))
        self.obey(self.scheduler.worker_up(worker))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    partitions=st.integers(1, 5),
    validate=st.integers(0, 3),
    workers=st.integers(1, 6),
    packs=st.integers(1, 9),
    with_homes=st.booleans(),
)
def test_any_events_keep_the_invariants_and_every_pack_makes_all_its_visits(
    seed: int, partitions: int, validate: int, workers: int, packs: int, with_homes: bool
) -> None:
    homes = {j: frozenset((j % workers,)) for j in range(max(partitions, validate))} if with_homes else None
    scheduler = make(partitions, validate, homes)
    driver = Driver(scheduler, workers, seed)
    chance, epochs = driver.random, 2
    waiting = list(range(packs))
    while waiting or driver.running:
        event = chance.random()
        if waiting and event < 0.3:
            driver.add(waiting.pop(), epochs)
        elif driver.running and event < 0.4:
            driver.lose_one()
        elif driver.running and event < 0.5:
            worker = chance.choice(sorted(driver.running))
            pack = driver.running.pop(worker).pack
            driver.live.discard(pack)
            driver.obey(scheduler.end(pack))
        elif driver.running:
            driver.finish_one(resident=homes is None and chance.random() < 0.3)
        scheduler.validate()
    for pack in driver.live:
        units = [(unit.epoch, unit.phase, unit.partition) for unit in driver.done[pack]]
        assert len(units) == len(set(units)) == epochs * (partitions + validate)


def test_a_trial_visits_the_partitions_in_its_groups_order_whatever_the_workers() -> None:
    order = rotating_order(4, 4, 7)
    for workers in (1, 3):
        driver = Driver(make(4, 0), workers, workers)
        for pack in range(5):
            driver.add(pack, 2)
        while driver.running:
            driver.finish_one()
        for pack in range(5):
            visited = [unit.partition for unit in driver.done[pack]]
            assert visited == [*order(pack % 3, 0), *order(pack % 3, 1)]


def test_equal_units_of_as_many_groups_as_partitions_never_meet() -> None:
    order = rotating_order(6, 6, 3)
    for step in range(6):
        assert len({order(group, 2)[step] for group in range(6)}) == 6


def test_trials_advance_together() -> None:
    driver = Driver(make(4, 0), 1, 0)
    for pack in range(4):
        driver.add(pack, 3)
    while driver.running:
        driver.finish_one()
        visits = [len(driver.done[pack]) for pack in range(4)]
        assert max(visits) - min(visits) <= 1


def test_packs_keep_to_their_workers_when_all_units_take_the_same_time() -> None:
    scheduler = make(4, 0)
    driver = Driver(scheduler, 2, 0)
    where: dict[int, set[int]] = defaultdict(set)
    for pack in range(6):
        driver.add(pack, 3)
    while driver.running:
        for worker, unit in driver.running.items():
            where[unit.pack].add(worker)
        for worker in sorted(driver.running):
            unit = driver.running.pop(worker)
            driver.done[unit.pack].append(unit)
            driver.obey(scheduler.done(unit.pack))
    assert all(len(workers) == 1 for workers in where.values())


def test_a_resident_state_keeps_its_pack_on_the_worker_that_holds_it() -> None:
    scheduler = make(3, 0)
    [start] = scheduler.add(0, 0, 0, 1) + scheduler.worker_up(0)
    assert start.worker == 0
    scheduler.worker_up(1)
    scheduler.add(1, 0, 0, 1)
    assert [s.worker for s in scheduler.done(0, resident=True)] == [0]
    assert scheduler.worker_down(0) == [0]


def test_nothing_starts_while_paused() -> None:
    scheduler = make(2, 0)
    scheduler.worker_up(0)
    scheduler.pause()
    assert scheduler.add(0, 0, 0, 1) == []
    assert [start.worker for start in scheduler.resume()] == [0]


@pytest.mark.parametrize("workers", [1, 1000])
def test_ten_thousand_packs_on_many_workers_are_scheduled_without_going_through_all(workers: int) -> None:
    scheduler = make(2, 0)
    driver = Driver(scheduler, workers, 1)
    for pack in range(10_000):
        driver.add(pack, 1)
    for _ in range(5_000):
        driver.finish_one()
    scheduler.validate()
