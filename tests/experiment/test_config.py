"""Configurations: what is accepted, what is refused and how, and what is made of defaults and templates."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiment.case_files import cases, pairs

from hopyard.errors import ConfigError
from hopyard.experiment.config import ExperimentConfig, check_written, complete, files_of, read_config, schema
from hopyard.experiment.determined import ADVICE, advice_for
from hopyard.experiment.yaml_text import read_yaml, write_yaml

SCHEMA = jsonschema.Draft202012Validator(schema())
SMALLEST: dict[str, Any] = {"entrypoint": "model_def:Trial", "searcher": {"name": "single", "metric": "loss"}}


@cases("valid.yaml")
def test_a_complete_configuration(case: dict[str, Any]) -> None:
    config = complete(case["config"])
    assert config.written() == case["config"]
    assert json.loads(json.dumps(config.settings)) == config.settings
    assert pickle.loads(pickle.dumps(config)) == config
    warnings = config.warnings()
    expected = case.get("warnings", [])
    assert [path for path, _ in warnings] == [path for path, _ in expected]
    for (_, text), (_, beginning) in zip(warnings, expected, strict=True):
        assert text.startswith(beginning)
    check_written(case["config"])


@cases("valid.yaml")
def test_a_configuration_is_the_same_after_writing_and_reading(case: dict[str, Any]) -> None:
    config = complete(case["config"])
    again = complete(read_yaml(config.to_yaml(), "again"))
    assert again == config
    assert again.settings == config.settings
    assert again.to_yaml() == config.to_yaml()
    assert complete(config.model_dump(mode="json")) == config  # also with all defaults written


@cases("errors.yaml")
def test_all_problems_are_told_at_once(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        complete(case["config"], "const.yaml")
    problems = pairs(case["problems"])
    assert list(caught.value.problems) == problems
    lines = [f"{path} {text}" for path, text in problems]
    if len(lines) == 1:
        assert str(caught.value) == f"const.yaml: {lines[0]}"
    else:
        assert str(caught.value).split("\n  ") == [f"const.yaml has {len(lines)} problems:", *lines]


@cases("partial.yaml")
def test_what_was_written_is_checked_without_the_rest(case: dict[str, Any]) -> None:
    if not case["problems"]:
        check_written(case["config"])
        return
    with pytest.raises(ConfigError) as caught:
        check_written(case["config"])
    assert list(caught.value.problems) == pairs(case["problems"])


@cases("defaults.yaml")
def test_defaults(case: dict[str, Any]) -> None:
    config = complete({**SMALLEST, **case["config"]})
    full = config.model_dump(mode="json")
    assert {name: full[name] for name in case["complete"]} == case["complete"]


@pytest.mark.parametrize("config", [None, 5, "entrypoint", ["a"]])
def test_what_is_no_mapping_is_no_configuration(config: Any) -> None:
    for check in (complete, check_written):
        with pytest.raises(
            ConfigError, match=r"^the configuration holds .*, but a configuration is a mapping of fields"
        ):
            check(config)


def test_objects_of_python_are_no_values() -> None:
    data = {3: 1, "a": object(), "b": [{"c": float("nan")}, (1, 2)]}
    objects = "but a configuration holds texts, numbers, True, False, None, lists and dicts. Convert it."
    for check in (complete, check_written):
        with pytest.raises(ConfigError) as caught:
            check({**SMALLEST, "data": data})
        assert list(caught.value.problems) == [
            ("data", "has the key 3, but keys are texts. Put it in quotes."),
            ("data.a", f"is an object of type object, {objects}"),
            ("data.b[0].c", "is nan, but numbers are finite. Write a text."),
            ("data.b[1]", f"is an object of type tuple, {objects}"),
        ]


@pytest.mark.parametrize(("sign", "digits"), [(1, 400), (-1, 400), (1, 5000)])
def test_whole_numbers_that_no_float_can_hold_are_no_values(sign: int, digits: int) -> None:
    with pytest.raises(ConfigError) as caught:
        complete({**SMALLEST, "seed": sign * 10**digits})
    rule = "is a whole number of more digits than a float can hold. Write a smaller one, or a text."
    assert list(caught.value.problems) == [("seed", rule)]


@pytest.mark.parametrize(
    "fields",
    [
        {"entrypoint": "x" * 100_000},
        {"entrypoint": "x." * 50_000 + "py"},
        {"x" * 100_000: 1},
        {"searcher": {"name": "random", "metric": "x" * 100_000, "max_trials": 1}},
        {"checkpoints": {"x" * 100_000: 1}},
    ],
    ids=["entrypoint", "dotted", "field", "metric", "nested"],
)
def test_what_is_long_is_not_repeated_whole(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        complete({**SMALLEST, **fields})
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("count", [100_001, 2_000_000_000, 2**61])
def test_a_count_beyond_any_grid_is_refused_before_the_grid_is_made(count: int) -> None:
    def number(kind: str, maxval: int) -> dict[str, Any]:
        return {"type": kind, "minval": 0, "maxval": maxval, "count": count}

    hyperparameters = {
        "a": number("double", 1),
        "b": [number("log", 1), number("int", 2**62)],
        "narrow": number("int", 3),
    }
    with pytest.raises(ConfigError) as caught:
        complete(
            {**SMALLEST, "searcher": {"name": "grid", "metric": "loss"}, "hyperparameters": hyperparameters}
        )
    rule = f"has count {count:,}, but a grid has at most 100,000 points. Write a smaller count."
    paths = ["hyperparameters.a", "hyperparameters.b[0]", "hyperparameters.b[1]"]
    assert list(caught.value.problems) == [(path, rule) for path in paths]


# Fields of Determined


@pytest.mark.parametrize("field", sorted(ADVICE))
def test_a_field_of_determined_is_refused_by_name(field: str) -> None:
    """With what to use instead, never dropped."""
    section, _, name = field.partition(".")
    value: Any = {name: 1} if name else 1
    if section == "bind_mounts":
        value, field = [{"host_path": "/a", "container_path": "/a", name: 1}], f"bind_mounts[0].{name}"
    if section == "searcher":
        value = {**SMALLEST["searcher"], name: 1}
    with pytest.raises(ConfigError) as caught:
        complete({**SMALLEST, section: value})
    ((path, text),) = caught.value.problems
    advice = advice_for((section, name) if path == field and name else (section,))
    assert text == f"is a field of Determined that has no meaning here. {advice}"
    assert path in (field, section)


# The direction of the metric


@pytest.mark.parametrize(
    ("metric", "smaller", "mode"),
    [
        ("loss", None, "min"),
        ("val_loss", None, "min"),
        ("accuracy", None, "max"),
        ("val_top_3_accuracy", None, "max"),
        ("accuracy", True, "min"),
        ("perplexity", True, "min"),
        ("reward", False, "max"),
    ],
)
def test_known_metrics_know_their_direction(metric: str, smaller: bool | None, mode: str) -> None:
    searcher = {"name": "single", "metric": metric} | (
        {} if smaller is None else {"smaller_is_better": smaller}
    )
    assert complete({**SMALLEST, "searcher": searcher}).mode == mode


# Identity


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"description": "other"},
        {"labels": ["other"]},
        {"checkpoints": {"keep": "all"}},
        {"max_restarts": 0},
        {"grace": 1},
        {"resources": {"workers": 8}},
        {"seed": 0},
        {"searcher": {**SMALLEST["searcher"], "max_length": None, "smaller_is_better": True}},
    ],
)
def test_what_decides_no_result_is_no_setting(change: dict[str, Any]) -> None:
    assert complete({**SMALLEST, **change}).settings == complete(SMALLEST).settings


@pytest.mark.parametrize(
    "change",
    [
        {"entrypoint": "model_def:Other"},
        {"data": {"a": 1}},
        {"bind_mounts": [{"host_path": "/a", "container_path": "/a"}]},
        {"hyperparameters": {"lr": 0.1}},
        {"searcher": {**SMALLEST["searcher"], "max_length": {"epochs": 1}}},
        {"seed": 1},
        {"scheduling_unit": 10},
        {"resources": {"slots_per_trial": 2}},
        {"environment": {"environment_variables": {"A": "1"}}},
    ],
)
def test_what_decides_results_is_a_setting(change: dict[str, Any]) -> None:
    assert complete({**SMALLEST, **change}).settings != complete(SMALLEST).settings


def test_secrets_stay_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hidden-value")
    config = complete({**SMALLEST, "data": {"key": "${secret:API_KEY}"}})
    shown = (
        config.to_yaml() + json.dumps(config.settings) + repr(config) + pickle.dumps(config).decode("latin-1")
    )
    assert "${secret:API_KEY}" in shown
    assert "hidden-value" not in shown


def test_values_of_data_and_variables_are_in_no_message() -> None:
    with pytest.raises(ConfigError) as caught:
        complete(
            {
                **SMALLEST,
                "data": "hidden-value",
                "environment": {"environment_variables": {"A": ["hidden-value"]}},
            }
        )
    assert len(caught.value.problems) == 2
    assert "hidden-value" not in str(caught.value)


# Files, templates, overrides


def write(path: Path, config: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(write_yaml(config))
    return path


def test_a_file_with_a_template_and_overrides(tmp_path: Path) -> None:
    write(tmp_path / "shared" / "base.yaml", {"max_restarts": 1, "searcher": {"metric": "loss"}, "seed": 1})
    config = write(
        tmp_path / "const.yaml",
        {
            "template": "shared/base.yaml",
            "entrypoint": "model_def:Trial",
            "searcher": {"name": "random", "max_trials": 1},
            "seed": 2,
        },
    )
    found = read_config(config, overrides=["seed=3", "searcher.max_length={epochs: 2}"])
    assert found.written() == {
        "entrypoint": "model_def:Trial",
        "searcher": {"name": "random", "metric": "loss", "max_trials": 1, "max_length": {"epochs": 2}},
        "seed": 3,
        "max_restarts": 1,
    }
    other = write(tmp_path / "other.yaml", {"searcher": {"metric": "accuracy"}})
    assert read_config(config, template=other).searcher.metric == "accuracy"
    assert files_of(config) == [config, tmp_path / "shared" / "base.yaml"]
    assert files_of(config, other) == [config, other]
    assert files_of(other) == [other]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert files_of(pipe) == []  # reading it would wait for ever


def test_problems_name_the_files(tmp_path: Path) -> None:
    base = write(tmp_path / "base.yaml", {"searcher": {"metric": "loss"}})
    config = write(tmp_path / "const.yaml", {"entrypoint": "model_def:Trial", "searcher": {"max_trials": 0}})
    with pytest.raises(ConfigError) as caught:
        read_config(config, base, ["seed=-1"])
    assert str(caught.value).split("\n  ") == [
        f"{config} with the template {base} and --config seed=-1 has 3 problems:",
        "searcher.name is missing. Write name: random.",
        "searcher.max_trials is 0, but it must be at least 1. Write max_trials: 16.",
        "seed is -1, but it must be at least 0. Write seed: 0.",
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            {"max_restarts": -1},
            "base.yaml: max_restarts is -1, but it must be at least 0. Write max_restarts: 5.",
        ),
        (
            {"template": "other.yaml"},
            (
                "base.yaml: template stands in a template, but a template has none of its own. Write all into one "
                "template."
            ),
        ),
    ],
)
def test_a_template_is_checked_for_itself(tmp_path: Path, template: dict[str, Any], message: str) -> None:
    write(tmp_path / "base.yaml", template)
    config = write(tmp_path / "const.yaml", {**SMALLEST, "template": "base.yaml"})
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert str(caught.value) == f"{tmp_path}/{message}"


def test_a_template_that_is_not_there_is_told_with_the_field_and_the_file(tmp_path: Path) -> None:
    config = write(tmp_path / "const.yaml", {**SMALLEST, "template": "nope.yaml"})
    expected = (
        f"{config}: template is 'nope.yaml', but there is no file {tmp_path}/nope.yaml. Correct the path, which begins "
        "in the directory of this file."
    )
    for call in (read_config, files_of):
        with pytest.raises(ConfigError) as caught:
            call(config)
        assert str(caught.value) == expected
    with pytest.raises(
        ConfigError, match=r"other\.yaml cannot be read: No such file or directory\. Name the YAML"
    ):
        read_config(config, tmp_path / "other.yaml")


def test_the_name_of_a_template_is_a_text(tmp_path: Path) -> None:
    config = write(tmp_path / "const.yaml", {**SMALLEST, "template": ["base.yaml"]})
    with pytest.raises(
        ConfigError, match=r"template is a list, but it must be the path of a file\. Write template: base"
    ):
        read_config(config)


# The JSON Schema


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()
    described = ExperimentConfig.model_json_schema()["properties"]
    assert [
        name for name, field in described.items() if "description" not in field and "$ref" not in field
    ] == []


@cases("valid.yaml")
def test_the_schema_accepts_what_the_check_accepts(case: dict[str, Any]) -> None:
    SCHEMA.validate(case["config"])
    SCHEMA.validate(complete(case["config"]).model_dump(mode="json"))


@cases("errors.yaml")
def test_the_schema_refuses_wrong_kinds_and_unknown_fields(case: dict[str, Any]) -> None:
    assert SCHEMA.is_valid(case["config"]) == (case.get("kinds") != "wrong")


def test_the_schema_lets_a_template_give_the_rest() -> None:
    SCHEMA.validate({"template": "base.yaml", "seed": 3})
    assert not SCHEMA.is_valid({"seed": 3})


NAMES = st.text("abcdefg_.-", min_size=1, max_size=5)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=3),
    max_leaves=6,
)
COUNTS = st.fixed_dictionaries({}, optional={"count": st.none() | st.integers(1, 9)})
RANGES = st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(
    lambda pair: {"minval": pair[0], "maxval": sum(pair)}
)
COUNTED = st.builds(lambda bounds, count: bounds | count, RANGES, COUNTS)
TYPED = st.one_of(
    st.builds(lambda kind, parts: {"type": kind, **parts}, st.sampled_from(["int", "double"]), COUNTED),
    st.builds(lambda bounds, base: {"type": "log", **bounds, "base": base}, RANGES, st.floats(1.5, 10)),
    JSON.map(lambda value: {"type": "const", "val": value}),
    st.lists(JSON, min_size=1, max_size=3, unique_by=lambda value: json.dumps(value, sort_keys=True)).map(
        lambda values: {"type": "categorical", "vals": values}
    ),
)  # fmt: skip
HYPERPARAMETERS = st.dictionaries(
    NAMES,
    st.recursive(
        TYPED | st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)
LENGTHS = st.tuples(st.sampled_from(["batches", "records", "epochs"]), st.integers(1, 9)).map(
    lambda pair: dict([pair])
)
SEARCHERS = st.one_of(
    st.fixed_dictionaries(
        {"name": st.just("random"), "metric": st.just("loss"), "max_trials": st.just(1)},
        optional={"max_length": LENGTHS, "max_concurrent_trials": st.integers(0, 9)},
    ),
    st.fixed_dictionaries(
        {"name": st.just("async_halving"), "metric": st.just("mystery"), "smaller_is_better": st.booleans(),
         "max_trials": st.just(1), "num_rungs": st.integers(1, 4), "max_length": LENGTHS},
        optional={"divisor": st.floats(2, 9), "stop_once": st.booleans()},
    ),
)  # fmt: skip
CONFIGS = st.fixed_dictionaries(
    {"entrypoint": st.just("model_def:Trial"), "hyperparameters": HYPERPARAMETERS, "searcher": SEARCHERS},
    optional={
        "name": st.none() | st.text(max_size=5),
        "labels": st.lists(st.text(max_size=5), max_size=3),
        "data": st.dictionaries(st.text(max_size=5), JSON, max_size=3),
        "seed": st.integers(0, 2**31 - 1),
        "checkpoints": st.fixed_dictionaries(
            {"every": st.sampled_from(["unit", "epoch"]) | st.floats(0.1, 9)}
        ),
        "grace": st.integers(0, 9) | st.floats(0, 9),
    },
)


@given(CONFIGS)
def test_what_is_accepted_is_accepted_by_the_schema_and_survives_writing(written: dict[str, Any]) -> None:
    config = complete(written)
    SCHEMA.validate(written)
    again = complete(read_yaml(config.to_yaml(), "again"))
    assert again == config
    assert again.written() == written
