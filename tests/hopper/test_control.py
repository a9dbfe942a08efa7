"""What users ask of a run arrives once, in one order, or is refused at once."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.errors import NotFoundError, SettingsError, UsageError
from hopyard.hopper.control import in_words, larger_budget, pending, request
from hopyard.hopper.journal import Journal
from hopyard.storage import LocalStore, MemoryStore, Store


def with_a_run(store: Store) -> Store:
    journal = Journal(store)
    journal.append({"r": "x"})
    journal.close()
    return store


def test_commands_are_numbered_and_pending_until_one_looks_after_them() -> None:
    store = with_a_run(MemoryStore())
    assert pending(store, 0) == []
    commands: list[dict[str, Any]] = [
        {"do": "pause"},
        {"do": "resume"},
        {"do": "stop", "trial": 0},
        {"do": "extend", "num_models": 9, "num_epochs": None},
        {"do": "stop"},
    ]
    assert [request(store, command) for command in commands] == [1, 2, 3, 4, 5]
    assert pending(store, 0) == list(enumerate(commands, 1))
    assert pending(store, 3) == list(enumerate(commands, 1))[3:]
    assert pending(store, 5) == []


def test_a_command_in_words_says_what_was_given() -> None:
    assert in_words({"do": "extend", "num_models": 9, "num_epochs": None}) == "extend num_models=9"
    assert in_words({"do": "stop", "trial": 0}) == "stop trial=0"
    assert in_words({"do": "pause"}) == "pause"
    assert in_words({"do": "clone", "trial": 3}) == "clone trial 3"
    assert in_words({"do": "clone", "trial": 3, "params": {"lr": 0.1}}) == "clone trial 3 with lr=0.1"
    changes = {"lr": 0.1, "net": "wide"}
    assert in_words({"do": "clone", "trial": 3, "params": changes, "weights": True}) == (
        "clone trial 3 with lr=0.1, net='wide' and its weights"
    )


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ({"do": "halt"}, r"there is no 'halt'.* Known are: pause, resume, stop, kill, extend, clone\."),
        ({"do": "paus"}, r"there is no 'paus'; did you mean 'pause'\? Known are"),
        ({}, r"\{\} is no command for a run: there is no None\. Known are: pause"),
        ({"do": "pause", "trial": 1}, r"pause takes nothing, not 'trial'\."),
        ({"do": "stop", "trail": 1}, r"stop takes trial, not 'trail'; did you mean 'trial'\?"),
        ({"do": "stop", "trial": -1}, r"trial is -1; give a whole number \(the first trial is 0\)\."),
        ({"do": "stop", "trial": True}, r"trial is True; give a whole number"),
        ({"do": "extend", "num_epochs": 0}, r"num_epochs is 0; give a whole number above 0\."),
        ({"do": "extend", "num_models": 1.5}, r"num_models is 1\.5; give a whole number above 0\."),
        ({"do": "extend", "num_models": None}, r"extend needs num_models or num_epochs"),
        (
            {"do": "clone", "params": {"lr": 0.1}},
            r"clone needs trial: the number of the trial that is cloned\.",
        ),
        ({"do": "clone", "trial": None}, r"trial is None; give a whole number \(the first trial is 0\)\."),
        (
            {"do": "clone", "trial": 0, "param": {}},
            r"clone takes trial, params, weights, not 'param'; did you mean",
        ),
        (
            {"do": "clone", "trial": 0, "params": ["lr"]},
            r"params is \['lr'\]; give a mapping from names of hyper",
        ),
        (
            {"do": "clone", "trial": 0, "params": {"lr": math.inf}},
            r"params is \{'lr': inf\}; .* no infinite numbers",
        ),
        ({"do": "clone", "trial": 0, "params": {"": 1}}, r"params is \{'': 1\}; give a mapping"),
        ({"do": "clone", "trial": 0, "params": {1: 2}}, r"params is \{1: 2\}; give a mapping"),
        ({"do": "clone", "trial": 0, "params": {"lr": 10**400}}, r"give a mapping from names of hyper"),
        ({"do": "clone", "trial": 0, "params": {"lr": {"a": {1: 2}}}}, r"give a mapping from names of hyper"),
        ({"do": "clone", "trial": 0, "weights": 1}, r"weights is 1; give true or false\."),
    ],
)
def test_what_is_no_command_is_refused_before_it_is_written(command: dict[str, Any], text: str) -> None:
    store = with_a_run(MemoryStore())
    with pytest.raises(UsageError, match=text):
        request(store, command)
    assert pending(store, 0) == []


def test_a_command_for_a_run_that_does_not_exist_is_an_error_and_makes_none() -> None:
    store = MemoryStore()
    with pytest.raises(NotFoundError, match=r"there is no run at memory:.*nobody would obey"):
        request(store, {"do": "stop"})
    assert list(store.list()) == []


def test_what_a_later_version_asks_for_and_what_is_damaged_is_left_out() -> None:
    store = with_a_run(MemoryStore())
    request(store, {"do": "pause"})
    for number, data in enumerate(
        (b'{"do": "dance"}', b'{"do": "sto', b"\xff", b"[]", b'{"do": ["stop"]}'), 2
    ):
        store.put(f"control/{number:012d}", data)
    assert request(store, {"do": "stop"}) == 7
    assert pending(store, 0) == [(1, {"do": "pause"}), (7, {"do": "stop"})]


REQUEST = """
import pickle, sys
from hopyard.hopper.control import request
store = pickle.load(sys.stdin.buffer)
print(*[request(store, {"do": "stop", "trial": 100 * int(sys.argv[1]) + n}) for n in range(10)])
"""


def test_commands_of_several_terminals_all_arrive_once_and_in_one_order(tmp_path: Path) -> None:
    store = with_a_run(LocalStore(tmp_path))
    terminals = [
        subprocess.Popen(
            [sys.executable, "-c", REQUEST, str(me)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for me in range(3)
    ]
    numbers = [process.communicate(pickle.dumps(store), timeout=60)[0].split() for process in terminals]
    found = dict(pending(store, 0))
    assert sorted(found) == list(range(1, 31))
    for me, mine in enumerate(numbers):
        assert [found[int(number)]["trial"] for number in mine] == [100 * me + n for n in range(10)]


@pytest.mark.parametrize(
    ("asked", "has", "gets"),
    [
        ({"num_models": 9, "num_epochs": None}, (4, 2), (9, 2)),
        ({"num_epochs": 3}, (4, 2), (4, 3)),
        ({"num_models": 4}, (4, 2), (4, 2)),
        ({"num_models": 9}, (None, 2), (9, 2)),
        ({"num_epochs": 3}, (None, 2), (None, 3)),
    ],
)
def test_a_larger_budget_leaves_as_it_is_what_is_not_asked_for(asked: Any, has: Any, gets: Any) -> None:
    assert larger_budget({"do": "extend", **asked}, *has) == gets


@pytest.mark.parametrize("asked", [{"num_models": 3}, {"num_epochs": 1}, {"num_models": 9, "num_epochs": 1}])
def test_a_budget_cannot_shrink(asked: Any) -> None:
    with pytest.raises(
        SettingsError, match=r"has num_models=4 and num_epochs=2; a budget can only grow\. Give"
    ):
        larger_budget({"do": "extend", **asked}, 4, 2)
