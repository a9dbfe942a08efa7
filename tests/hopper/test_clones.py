"""Clones that users ask for are begun once, train to the end, and leave the search as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.hopper.attentive import Attentive
from tests.sampling import sample

from hopyard.backend import InlineBackend
from hopyard.errors import Evidence, TrialError, UsageError
from hopyard.hopper import hopper
from hopyard.hopper.clones import check_clone, with_changes
from hopyard.hopper.control import pending, request
from hopyard.hopper.decisions import Decisions, replay
from hopyard.hopper.history import broken_rules, read_state
from hopyard.hopper.state import RunState
from hopyard.hopper.work import Options
from hopyard.search import (
    FullLength,
    InVirtualTime,
    RandomPoints,
    Replicated,
    Searcher,
    hp_choice,
    hp_int,
    hp_log,
    hp_quniform,
    hp_uniform,
)
from hopyard.search.asha import Asha
from hopyard.search.pbt import Pbt
from hopyard.search.spaces import space_json
from hopyard.storage import MemoryStore, Store

SPACE = {"x": hp_uniform(0, 1)}


def full() -> Searcher:
    return FullLength(RandomPoints(SPACE, 1), 4, 12, max_concurrent=2)


def asha() -> Searcher:
    return InVirtualTime(Asha(RandomPoints(SPACE, 1), 6, [2, 4, 12], 2, max_concurrent=3))


def population() -> Searcher:
    return InVirtualTime(Pbt(RandomPoints(SPACE, 1), SPACE, 4, 4, 3, truncate_fraction=0.5))


def replicated() -> Searcher:
    return Replicated(FullLength(RandomPoints(SPACE, 1), 2, 12, max_concurrent=1), 2)


SEARCHERS = pytest.mark.parametrize("make_searcher", [full, asha, population, replicated])


@pytest.fixture(autouse=True)
def _sees_commands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "Watcher", Attentive)


def new_run(game: Any, make_searcher: Callable[[], Searcher] = full, **arguments: Any) -> Any:
    settings = {"num_models": 4, "replicates": 2 if make_searcher is replicated else 1}
    return game(
        MemoryStore(),
        InlineBackend(),
        num_epochs=4,
        make_searcher=make_searcher,
        of_header={"settings": settings},
        extends=False,
        **arguments,
    )


def asking(run: Any, commands: dict[int, list[dict[str, Any]]], dies_at: int | None = None) -> bool:
    """Play, with commands that are given after so many units; whether the driver died, after a record."""
    seen = 0

    def on_record(state: RunState, record: Any) -> None:
        nonlocal seen
        seen += 1
        for units in [units for units in commands if units <= state.units]:
            for command in commands.pop(units):
                request(run.store, command)
                Attentive.last.look()
        if seen == dies_at:
            raise KeyboardInterrupt

    run.on_record = on_record
    try:
        run.play()
    except KeyboardInterrupt:
        return True
    finally:
        run.on_record = None
    return False


def to_the_end(run: Any) -> RunState:
    """Play until no command waits."""
    state = run.play()
    while pending(run.store, state.controls):
        state = run.play()
    return state  # type: ignore[no-any-return]


def of_search(state: RunState) -> list[Any]:
    """What the trials of the search came to, by the searcher's numbers."""
    return sorted(
        (t.draws_as, t.group, t.params, t.status, t.epochs, t.history, t.best and t.best.value)
        for t in state.trials.values()
        if t.clone_of is None
    )


def clones_of(state: RunState) -> list[Any]:
    return [trial for trial in state.trials.values() if trial.clone_of is not None]


CLONES = {
    2: [{"do": "clone", "trial": 0}],
    5: [{"do": "clone", "trial": 1, "params": {"x": 0.125}}, {"do": "clone", "trial": 0, "weights": True}],
    9: [{"do": "clone", "trial": 0, "params": {"x": 4}, "weights": True}],
}


@SEARCHERS
def test_a_search_comes_to_the_same_with_clones_and_each_is_its_donor_but_for_what_changed(
    make_searcher: Callable[[], Searcher], game: Any
) -> None:
    quiet = new_run(game, make_searcher).play()
    run = new_run(game, make_searcher)
    asking(run, dict(CLONES))
    state = to_the_end(run)
    assert of_search(state) == of_search(quiet)
    clones, size = clones_of(state), state.replicates
    assert [clone.clone_of // size for clone in clones] == [0] * size + [1 // size] * size + [0] * 2 * size
    assert sorted(state.trials) == [*range(len(state.trials))]
    assert {clone.status for clone in clones} == {"completed"}
    assert {clone.progress.trained for clone in clones} == {12}
    assert broken_rules(run.records()) == []
    same = clones[:size]
    for clone in same:
        donor = state.trials[clone.clone_of]
        assert (clone.params, clone.draws_as, clone.group, clone.source) == (
            donor.params,
            donor.draws_as,
            donor.group,
            None,
        )
        assert clone.history["val_loss"][: donor.epochs] == donor.history["val_loss"][: donor.epochs]
    for clone in clones[
        2 * size : 3 * size
    ]:  # with weights, and nothing changed: it goes on as its unchanged clone did
        (whole,) = (each for each in same if each.clone_of == clone.clone_of)
        assert clone.source == clone.clone_of
        assert 0 < clone.began < 12
        assert 0 < len(clone.history["val_loss"]) <= 4
        assert clone.history == {
            name: values[-len(clone.ended_at) :] for name, values in whole.history.items()
        }
    assert {clone.params["x"] for clone in clones[size : 2 * size]} == {0.125}
    assert {clone.params["x"] for clone in clones[3 * size :]} == {4}


@SEARCHERS
def test_wherever_its_driver_dies_a_clone_is_begun_once_and_nothing_is_lost(
    make_searcher: Callable[[], Searcher], game: Any
) -> None:
    quiet = new_run(game, make_searcher).play()
    for dies_at in sample(f"deaths {make_searcher.__name__}", range(2, 60, 3), 4, 10):
        run, commands = new_run(game, make_searcher), dict(CLONES)
        while asking(run, commands, dies_at):
            dies_at += 7
        state = to_the_end(run)
        assert not commands
        assert of_search(state) == of_search(quiet)
        obeyed = [each for each in run.records() if each["r"] == "control" and "refused" not in each]
        assert len(obeyed) == 4
        assert [clone.number for clone in clones_of(state)] == [n for each in obeyed for n in each["begun"]]
        assert {clone.status for clone in clones_of(state)} == {"completed"}
        assert broken_rules(run.records()) == []
        units = [(t, each["v"]) for each in run.records() if each["r"] == "unit" for t in each["t"]]
        assert len(units) == len(set(units)), "a unit that was saved was done again"
        there = {entry.name for entry in run.store.list() if entry.name.endswith(".safetensors")}
        kept = {
            f"{t.number:05d}/{name}"
            for t in state.trials.values()
            for s in t.live_states()
            for name in s.files
        }
        assert there <= kept


@SEARCHERS
def test_wherever_a_journal_with_clones_is_cut_what_follows_is_decided_again(
    make_searcher: Callable[[], Searcher], game: Any
) -> None:
    run = new_run(game, make_searcher)
    asking(run, dict(CLONES))
    to_the_end(run)
    records = run.records()
    for cut in range(1, len(records) + 1):
        state = RunState()
        found = replay(records[:cut], state, Decisions(state, make_searcher(), 3))
        following = [each for each in records[cut:] if each["r"] not in ("session", "finish")]
        assert following[: len(found)] == found
    assert [trial.params for trial in state.ranked()] == [
        trial.params for trial in read_state(records).ranked()
    ]


def test_a_run_that_has_ended_trains_a_clone_when_it_is_driven_again_and_ends_again(game: Any) -> None:
    run = new_run(game)
    quiet = run.play()
    request(run.store, {"do": "clone", "trial": 3, "params": {"x": 0.5}})
    state = run.play()
    assert state.finished == "completed"
    assert of_search(state) == of_search(quiet)
    assert [(clone.number, clone.params, clone.epochs) for clone in clones_of(state)] == [(4, {"x": 0.5}, 4)]
    units = state.units
    assert run.play().units == units


def test_a_clone_trains_on_where_the_run_is_extended_and_the_search_grows_as_without_it(game: Any) -> None:
    def extended(clones: bool) -> RunState:
        run = game(MemoryStore(), InlineBackend(), num_models=2, num_epochs=2, extends=False)
        run.play()
        if clones:
            request(run.store, {"do": "clone", "trial": 1})
            run.play()
        request(run.store, {"do": "extend", "num_models": 4, "num_epochs": 5})
        return to_the_end(run)

    quiet, state = extended(False), extended(True)
    assert of_search(state) == of_search(quiet)
    (clone,) = clones_of(state)
    assert (clone.number, clone.status, clone.epochs) == (2, "completed", 5)
    assert clone.history == state.trials[1].history
    assert [trial.draws_as for trial in state.trials.values()] == [0, 1, 1, 2, 3]


def test_a_clone_of_a_clone_and_the_end_of_one_by_its_user(game: Any) -> None:
    run = new_run(game)
    commands = {
        2: [{"do": "clone", "trial": 0}],
        14: [{"do": "stop", "trial": 2}, {"do": "clone", "trial": 2}],
    }
    asking(run, commands)
    first, second = clones_of(to_the_end(run))
    assert (first.number, first.clone_of, first.status) == (2, 0, "stopped")
    assert (second.clone_of, second.draws_as, second.status, second.epochs) == (2, 0, "completed", 4)


def test_a_clone_that_fails_ends_alone(game: Any) -> None:
    run = new_run(game)
    run.behaviour = lambda visit: (
        Evidence("ValueError", "no") if visit.x == 9.0 and visit.unit.visit == 4 else None
    )
    asking(run, {4: [{"do": "clone", "trial": 0, "params": {"x": 9.0}}]})
    state = to_the_end(run)
    assert [trial.status for trial in clones_of(state)] == ["failed"]
    assert of_search(state) == of_search(new_run(game).play())


def test_a_clone_that_was_begun_when_all_failed_alike_is_begun_again_with_them(game: Any) -> None:
    run = new_run(game)

    def failing(visit: Any) -> Evidence | None:
        if visit.trial == 0:
            request(run.store, {"do": "clone", "trial": 1, "params": {"x": 0.5}})
            Attentive.last.look()
        return Evidence("KeyError", "'x'")

    run.behaviour = failing
    with pytest.raises(TrialError, match="fail alike"):
        run.play()
    run.behaviour = None
    state = to_the_end(run)
    assert of_search(state) == of_search(new_run(game).play())
    assert [clone.params for clone in clones_of(state)] == [{"x": 0.5}]


def test_a_trial_that_was_begun_because_others_failed_is_not_cloned_before_a_unit_is_done(game: Any) -> None:
    run = new_run(game)

    def failing(visit: Any) -> Evidence | None:
        if visit.trial == 1:
            request(run.store, {"do": "clone", "trial": 2})
            Attentive.last.look()
        return Evidence("KeyError", "'x'")

    run.behaviour = failing
    with pytest.raises(TrialError, match="fail alike"):
        run.play()
    (answer,) = [each for each in run.records() if each["r"] == "control"]
    assert answer["refused"] == "trial 2 may be taken back as long as all fail. Ask again once a unit is done"
    run.behaviour = None
    assert of_search(run.play()) == of_search(new_run(game).play())


# What is refused, and what is allowed with a word


def described(space: Any, params: dict[str, Any]) -> tuple[Store, RunState]:
    """A run of this space with one trial."""
    state = RunState()
    header = {
        "run_id": "r",
        "layout": {"train": 3, "validate": 2},
        "metric": {"key": "val_loss", "mode": "min"},
    }
    settings = {"search_space": space_json(space)}
    state.apply({"r": "run", **header, "num_epochs": 2, "settings": settings})
    state.apply({"r": "trial", "n": 0, "params": params, "g": 0, "source": None})
    return MemoryStore(), state


NESTED = {
    "lr": hp_log(1e-4, 0.1),
    "units": hp_int(8, 64),
    "step": hp_quniform(0.1, 0.5, 0.1),
    "optimizer": hp_choice([{"name": "sgd", "momentum": hp_uniform(0, 1)}, {"name": "adam"}]),
    "sizes": [hp_int(1, 4), 2],
    "size": hp_choice([32, 64]),
    "act": hp_choice(["relu", None]),
    "flag": hp_choice([True, False]),
    "a.b": 1.5,
    "nothing": None,
}
POINT = {
    "lr": 0.01, "units": 8, "step": 0.1, "optimizer": {"name": "sgd", "momentum": 0.5}, "sizes": [3, 2], "size": 32,
    "act": "relu", "flag": True, "a.b": 1.5, "nothing": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"lr": 0.02}, {"lr": 0.02}),
        ({"units": 16.0}, {"units": 16}),
        ({"step": 0.3}, {"step": 0.3}),
        ({"optimizer.momentum": 1}, {"optimizer.momentum": 1.0}),
        ({"optimizer": {"name": "adam"}}, {"optimizer": {"name": "adam"}}),
        ({"optimizer": {"name": "sgd", "momentum": 1}}, {"optimizer": {"name": "sgd", "momentum": 1.0}}),
        ({"sizes": [1, 2]}, {"sizes": [1, 2]}),
        ({"act": None}, {"act": None}),
        ({"flag": False, "a.b": 1.5}, {"flag": False, "a.b": 1.5}),
    ],
)
def test_values_within_the_space_are_taken_as_it_has_them(
    given: dict[str, Any], taken: dict[str, Any]
) -> None:
    changes, outside = check_clone(*described(NESTED, POINT), {"do": "clone", "trial": 0, "params": given})
    assert (repr(changes), outside) == (repr(taken), [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": 1}, "lr=1 lies outside of hp_log(0.0001, 0.1)"),
        ({"units": 65}, "units=65 lies outside of hp_int(8, 64)"),
        ({"step": 0.25}, "step=0.25 lies outside of hp_quniform(0.1, 0.5, 0.1)"),
        ({"size": 48}, "size=48 lies outside of hp_choice([32, 64])"),
        ({"act": "gelu"}, "act='gelu' lies outside of hp_choice(['relu', None])"),
        ({"a.b": 2}, "a.b=2 lies outside of the constant 1.5"),
        ({"sizes": [5, 2]}, "sizes=[5, 2] lies outside of the constant [hp_int(1, 4), 2]"),
        ({"sizes": [1]}, "sizes=[1] lies outside of the constant [hp_int(1, 4), 2]"),
        ({"nothing": [3]}, "nothing=[3] lies outside of the constant None"),
        ({"optimizer.momentum": 2}, "optimizer.momentum=2 lies outside of hp_uniform(0, 1)"),
        (
            {"optimizer": {"name": "lion"}},
            f"optimizer={{'name': 'lion'}} lies outside of {NESTED['optimizer']!r}",
        ),
        (
            {"optimizer.name": "lion"},
            "optimizer.name='lion' lies outside of the constant 'sgd' or the constant 'adam'",
        ),
    ],
)
def test_values_outside_of_the_space_are_allowed_with_a_word(given: dict[str, Any], said: str) -> None:
    _, outside = check_clone(*described(NESTED, POINT), {"do": "clone", "trial": 0, "params": given})
    assert outside == [said]


def test_a_part_of_what_is_changed_is_named_too() -> None:
    space = {"net": hp_choice([{"a": hp_uniform(0, 1)}, {"b": hp_uniform(0, 1)}])}
    command = {"do": "clone", "trial": 0, "params": {"net": {"b": 0.2}, "net.b": 0.3}}
    changes, outside = check_clone(*described(space, {"net": {"a": 0.1}}), command)
    assert (changes, outside) == ({"net": {"b": 0.2}, "net.b": 0.3}, [])
    assert with_changes({"net": {"a": 0.1}}, changes) == {"net": {"b": 0.3}}


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            {"trial": 1},
            r"the run has no trial 1; it has 1 so far, the first is 0\. `hopyard run describe` shows them",
        ),
        (
            {"trial": 0, "params": {"lrr": 1}},
            r"no hyperparameter 'lrr'; did you mean 'lr'\? There are lr, units, step, ",
        ),
        (
            {"trial": 0, "params": {"optimizer.beta": 1}},
            r"no hyperparameter 'optimizer.beta'.* optimizer\.momentum, ",
        ),
        (
            {"trial": 0, "params": {"lr": "big"}},
            r"lr is 'big', but it takes a number: the space has hp_log\(",
        ),
        ({"trial": 0, "params": {"lr": True}}, r"lr is True, but it takes a number"),
        (
            {"trial": 0, "params": {"units": 8.5}},
            r"units is 8\.5, but it takes a whole number: the space has hp_int",
        ),
        (
            {"trial": 0, "params": {"size": "32"}},
            r"size is '32', but it takes a number: .* hp_choice\(\[32, 64\]\)",
        ),
        ({"trial": 0, "params": {"flag": 1}}, r"flag is 1, but it takes true or false"),
        (
            {"trial": 0, "params": {"act": 3}},
            r"act is 3, but it takes a text or anything|act is 3, but it takes a text",
        ),
        (
            {"trial": 0, "params": {"optimizer": {"nam": "sgd"}}},
            r"takes a mapping of name, momentum or a mapping of name: the space has hp_choice\(",
        ),
        ({"trial": 0, "params": {"sizes": 3}}, r"sizes is 3, but it takes a list"),
        (
            {"trial": 0, "weights": True},
            r"trial 0 has no saved weights: no training unit of it was saved so far\. Clone it without weights, or ask",
        ),
    ],
)
def test_what_cannot_be_cloned_says_why_and_what_to_do(command: dict[str, Any], text: str) -> None:
    run = described(NESTED, POINT)
    with pytest.raises(UsageError, match=text):
        check_clone(*run, {"do": "clone", **command})


def test_a_point_with_changes_is_a_copy() -> None:
    changed = with_changes(POINT, {"optimizer.momentum": 0.25, "a.b": 3})
    assert changed == {**POINT, "optimizer": {"name": "sgd", "momentum": 0.25}, "a.b": 3}
    assert POINT["optimizer"] == {"name": "sgd", "momentum": 0.5}


@pytest.mark.parametrize(
    ("keep", "status", "text"),
    [
        (
            "all",
            "completed",
            r"trial 0 has trained to its end, so a clone with its weights would have nothing left to",
        ),
        (
            "completed",
            "stopped",
            r"the weights of trial 0, which is stopped, were not kept\. Clone it without weights; keep=",
        ),
        ("all", "stopped", None),
    ],
)
def test_weights_that_are_gone_or_at_their_end_are_refused(
    keep: str, status: str, text: str | None, game: Any
) -> None:
    run = new_run(game, options=Options(keep=keep))
    asking(run, {4: [{"do": "stop", "trial": 0}]} if status == "stopped" else {})
    assert read_state(run.records()).trials[0].status == status
    request(run.store, {"do": "clone", "trial": 0, "weights": True})
    state = run.play()
    (answer,) = [each for each in run.records() if each["r"] == "control" and each["do"] == "clone"]
    if text is None:
        (clone,) = clones_of(state)
        assert (clone.status, clone.source, clone.progress.trained) == ("completed", 0, 12)
    else:
        assert clones_of(state) == []
        with pytest.raises(UsageError, match=text):
            raise UsageError(answer["refused"])
        assert (
            f"a user's command was not obeyed (clone trial 0 with its weights): {answer['refused']}"
            in run.messages
        )
