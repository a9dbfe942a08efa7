"""A run of many trials whose driver and workers are killed at many moments is the run that it would have been."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.sampling import by_level

TRIALS, DRIVERS, WORKERS = by_level(40, 40, 300), by_level(4, 4, 25), by_level(6, 6, 45)
"""How many trials there are, and how many drivers and workers are killed."""

RUNS = """
import os, pickle, random, signal, sys
from pathlib import Path
import cloudpickle
from tests.hopper import conftest
from hopyard.backend import InlineBackend, LocalBackend
from hopyard.hopper.history import broken_rules, committed_units
from hopyard.hopper.journal import read_records
from hopyard.search import InVirtualTime, RandomPoints, hp_uniform
from hopyard.search.asha import Asha
from hopyard.storage import LocalStore, MemoryStore

root, chance = Path(sys.argv[1]), random.Random(20)
trials, kills, workers = map(int, sys.argv[2:])
cloudpickle.register_pickle_by_value(sys.modules["__main__"])

def asha():
    return InVirtualTime(Asha(RandomPoints({"x": hp_uniform(0, 1)}, 1), trials, [1, 2, 4], 3, max_concurrent=16))

def deadly(fn, request, moment, marker):
    # The worker dies before it does the unit, or when it has done it and not yet said so.
    dies = moment is not None and not marker.exists()
    if dies and moment == "before":
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    found = fn(request)
    if dies:
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return found

class Work(conftest.Work):
    def __call__(self, unit, trials, save):
        fn, (request,) = super().__call__(unit, trials, save)
        name = unit.trial, unit.visit
        return deadly, (fn, request, deaths.get(name), root / f"{name} was killed")

conftest.Work, deaths = Work, {}

def run(store, backend, on_record=None):
    game = conftest.Game(store, backend, trials, 2, make_searcher=asha, layout={"train": 2, "validate": 1})
    game.on_record = on_record
    state = game.play()
    assert broken_rules(game.records()) == []
    units = [(unit["t"][0], unit["v"]) for unit in game.records() if unit["r"] == "unit"]
    assert len(units) == len(set(units)), "a finished unit was done twice"
    return conftest.outcome(state), units

def dying_at(number):
    seen = 0
    def on_record(state, record):
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
    return on_record

def in_child(task):
    # Forked with all imported and no thread running.
    pid = os.fork()
    if pid == 0:
        task()
        os._exit(0)
    return os.waitpid(pid, 0)[1]

def undisturbed():
    (root / "expected").write_bytes(pickle.dumps(run(MemoryStore(), InlineBackend())))

assert in_child(undisturbed) == 0
expected, units = pickle.loads((root / "expected").read_bytes())
deaths = {unit: chance.choice(["before", "after"]) for unit in chance.sample(units, workers)}

def drive(backend, number=None):
    with backend:
        found = run(LocalStore(root / "store"), backend, number and dying_at(number))
    assert found[0] == expected, "another leaderboard"
    assert sorted(found[1]) == sorted(units), "other units"

records = 2 * len(units) // kills
for session in range(kills):
    # Inline, where starting costs nothing, the driver dies with its worker.
    backend, number = InlineBackend() if session % 3 else LocalBackend(2, device="cpu"), chance.randrange(1, records)
    assert in_child(lambda: drive(backend, number)) == signal.SIGKILL
assert in_child(lambda: drive(LocalBackend(2, device="cpu"))) == 0
lost = sum(record["r"] == "lost" for record in read_records(LocalStore(root / "store")))
print(len(units), kills, lost)
"""


def test_trials_killed_at_many_moments_come_to_the_same_leaderboard(tmp_path: Path) -> None:
    runs = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path), *map(str, (TRIALS, DRIVERS, WORKERS))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert runs.returncode == 0, runs.stderr
    units, drivers, workers = map(int, runs.stdout.split())
    assert units > 2.5 * TRIALS
    assert drivers == DRIVERS
    assert drivers + workers >= 2 * DRIVERS
