"""Configurations of Determined: what becomes of each field, and which have no counterpart."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.experiment.case_files import cases

from hopyard.errors import ConfigError
from hopyard.experiment.config import check_written, complete
from hopyard.experiment.conversion import convert
from hopyard.experiment.determined import ADVICE
from hopyard.experiment.yaml_text import read_yaml, write_yaml

WHOLE = {"entrypoint": "model_def:Trial", "searcher": {"name": "random", "metric": "loss", "max_trials": 1}}


def converted(config: Any) -> tuple[Any, list[tuple[str, str]]]:
    text, notes = convert(write_yaml(config), "const.yaml")
    return read_yaml(text, "converted"), notes


def assert_begin(found: Any, expected: list[list[str]]) -> None:
    """The same paths, each with a text that begins as expected."""
    assert [path for path, _ in found] == [path for path, _ in expected]
    for (path, text), (_, beginning) in zip(found, expected, strict=True):
        assert text.startswith(beginning), path


@cases("determined.yaml")
def test_what_determined_accepts(case: dict[str, Any]) -> None:
    made, notes = converted(case["config"])
    assert made == case["made"]
    assert_begin(notes, case.get("notes", []))
    assert "hidden-value" not in write_yaml(made) + repr(notes)
    check_written(made)


@cases("determined.yaml")
def test_the_whole_of_it_is_a_whole_configuration_here(case: dict[str, Any]) -> None:
    if {"entrypoint", "searcher"} <= case["made"].keys():
        complete(converted(case["config"])[0])


@cases("determined_errors.yaml")
def test_what_determined_refuses(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        complete(converted(case["config"])[0])
    if "error" in case:
        assert str(caught.value).startswith(case["error"])
    else:
        assert_begin(caught.value.problems, case["problems"])


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of the values that say something: null and what is empty say nothing."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    elif value is not None:
        yield path


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


@cases("determined.yaml")
def test_nothing_is_dropped_without_a_word(case: dict[str, Any]) -> None:
    """Each value is in the result, or in a note, or the result is another one without it."""
    made, notes = converted(case["config"])
    noted = {path for path, _ in notes}
    for path in leaves(case["config"]):
        names = [
            re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, path[:length])))
            for length in range(1, len(path) + 1)
        ]
        if noted & set(names) or at(made, path) == at(case["config"], path):
            continue
        without = copy.deepcopy(case["config"])
        del at(without, path[:-1])[path[-1]]
        try:
            assert converted(without) != (made, notes), path
        except ConfigError:
            continue  # it was needed


@pytest.mark.parametrize("field", sorted(set(ADVICE) - {"bind_mounts.propagation", "searcher.max_time"}))
def test_every_field_without_counterpart_is_listed_with_its_advice(field: str) -> None:
    section, _, name = field.partition(".")
    value: Any = {name: "1"} if name else "1"
    config = {**WHOLE, section: {**WHOLE["searcher"], **value} if section == "searcher" else value}
    if field.startswith("checkpoint_storage.save"):
        config[section] = {name: 2}
        assert converted(config)[0]["checkpoints"]["keep"] in ("best", "all")
        return
    if field in ("preemption_timeout", "reproducibility"):
        config |= {"preemption_timeout": 5, "reproducibility": {"experiment_seed": 7}}
        assert converted(config) == ({**converted(WHOLE)[0], "grace": 5, "seed": 7}, [])
        return
    made, notes = converted(config)
    assert made == converted(WHOLE)[0]
    assert [path for path, _ in notes] == [field]
    assert notes[0][1].startswith(f"has no counterpart. {ADVICE[field]}")


def test_a_credential_that_is_the_same_on_all_devices_is_noted_once() -> None:
    made, notes = converted({"environment": {"environment_variables": {"cpu": ["TOKEN=hidden-value"],
                                                                       "cuda": ["TOKEN=hidden-value"]}}})  # fmt: skip
    assert made == {"environment": {"environment_variables": {"TOKEN": "${secret:TOKEN}"}}}
    assert [path for path, _ in notes] == ["environment.environment_variables.cuda[0]"]


def test_comments_are_lost_and_aliases_written_out() -> None:
    text, notes = convert("# mine\nlabels: &l [a]  # here\ndata: {l: *l}\n")
    assert text == "labels:\n- a\ndata:\n  l:\n  - a\n"
    assert notes == []


def test_the_text_is_read_as_strictly_as_ours() -> None:
    with pytest.raises(ConfigError, match=r"^const\.yaml: data\.shuffle \(line 1\) is no without quotes"):
        convert("data: {shuffle: no}", "const.yaml")
