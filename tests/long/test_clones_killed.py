"""Clones asked of drivers that are killed at any moment are each begun once, and change nothing of the search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.sampling import by_level

KILLS, TRIALS = by_level(6, 6, 40), by_level(24, 24, 200)
"""How many drivers are killed, and how many trials the search makes."""

RUNS = """
import os, pickle, random, signal, sys
from pathlib import Path
from tests.hopper import conftest
from hopyard.backend import InlineBackend
from hopyard.hopper.control import pending, request
from hopyard.hopper.history import broken_rules
from hopyard.hopper.journal import read_records
from hopyard.hopper.work import Options
from hopyard.search import InVirtualTime, RandomPoints, hp_uniform
from hopyard.search.asha import Asha
from hopyard.storage import LocalStore, MemoryStore

root, chance = Path(sys.argv[1]), random.Random(3)
kills, trials = map(int, sys.argv[2:])

def asha():
    return InVirtualTime(Asha(RandomPoints({"x": hp_uniform(0, 1)}, 1), trials, [2, 4, 12], 3, max_concurrent=8))

def play(store, on_record=None):
    game = conftest.Game(store, InlineBackend(), trials, 4, Options(control_seconds=0.002), make_searcher=asha)
    game.extends, game.on_record = False, on_record
    return game.play()

def of_search(state):
    found = [t for t in state.trials.values() if t.clone_of is None]
    return sorted((t.draws_as, t.group, t.params, t.status, t.history, t.best and t.best.value) for t in found)

def dying_at(number):
    seen = 0
    def on_record(state, record):
        nonlocal seen
        seen += 1
        if seen % 5 == 0 and state.trials:  # while it goes on, too
            ask(len(state.trials))
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
    return on_record

def ask(known):
    if chance.random() < 0.2:
        request(store, {"do": "clone", "trial": chance.randrange(known + 1), "weights": chance.random() < 0.5})

def in_child(task):
    # Forked with all imported and no thread running.
    pid = os.fork()
    if pid == 0:
        task()
        os._exit(0)
    return os.waitpid(pid, 0)[1]

def quiet():
    (root / "quiet").write_bytes(pickle.dumps(of_search(play(MemoryStore()))))

def settle():
    state = play(store)
    while pending(store, state.controls):
        state = play(store)
    (root / "settled").write_bytes(pickle.dumps(of_search(state)))

store = LocalStore(root / "store")
assert in_child(quiet) == 0
killed = 0
for _ in range(kills):
    chance.random()
    number = chance.randrange(2, 60)
    killed += in_child(lambda: play(store, dying_at(number))) == signal.SIGKILL
    ask(trials)
assert in_child(settle) == 0
assert pickle.loads((root / "settled").read_bytes()) == pickle.loads((root / "quiet").read_bytes())

records = list(read_records(store))
assert broken_rules(records) == []
units = [(trial, each["v"]) for each in records if each["r"] == "unit" for trial in each["t"]]
assert len(units) == len(set(units)), "a finished unit was done twice"
obeyed = [each for each in records if each.get("do") == "clone" and "refused" not in each]
begun = [each for each in records if each["r"] == "trial" and "clone" in each]
assert [number for each in obeyed for number in each["begun"]] == [each["n"] for each in begun]
assert [each["trial"] for each in obeyed] == [each["clone"] for each in begun]
answered = [each["c"] for each in records if "c" in each]
assert answered == [*range(1, len(answered) + 1)], "each command was answered once"
ended = {each["t"]: each["status"] for each in records if each["r"] == "end"}
assert {ended[each["n"]] for each in begun} == {"completed"}
print(killed, len(begun), sum(each["source"] is not None for each in begun))
"""


def test_clones_of_drivers_that_are_killed_are_begun_once(tmp_path: Path) -> None:
    runs = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path), str(KILLS), str(TRIALS)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert runs.returncode == 0, runs.stderr
    killed, begun, with_weights = map(int, runs.stdout.split())
    assert killed >= KILLS // 2
    assert begun > with_weights > 0, runs.stdout
