"""What a configuration, its template and overrides give together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiment.case_files import cases

from hopyard.errors import ConfigError
from hopyard.experiment.merging import merge, override

NAMES = st.sampled_from(
    [
        "searcher",
        "name",
        "metric",
        "max_length",
        "hyperparameters",
        "type",
        "bind_mounts",
        "container_path",
        "data",
        "a",
    ]
)
CONFIGS = st.dictionaries(
    NAMES,
    st.recursive(
        st.sampled_from([None, True, 1, 2, "a", "b"]),
        lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=4),
        max_leaves=10,
    ),
    max_size=5,
)


@cases("merging.yaml")
def test_a_configuration_and_its_template(case: dict[str, Any]) -> None:
    config, template = copy.deepcopy(case["config"]), copy.deepcopy(case["template"])
    assert merge(config, template) == case["merged"]
    assert (config, template) == (case["config"], case["template"])


@given(CONFIGS, CONFIGS)
def test_laws_of_merging(config: dict[str, Any], template: dict[str, Any]) -> None:
    assert merge(config, {}) == config
    assert merge({}, template) == template
    merged = merge(config, template)
    assert merge(merged, template) == merged
    assert merged.keys() == config.keys() | template.keys()
    for name, value in config.items():
        if not isinstance(value, dict | list):
            assert merged[name] == value


def test_what_is_merged_shares_nothing() -> None:
    config, template = {"data": {"a": [1]}}, {"data": {"b": [2]}}
    merged = merge(config, template)
    merged["data"]["a"].append(3)
    merged["data"]["b"].append(3)
    assert (config, template) == ({"data": {"a": [1]}}, {"data": {"b": [2]}})


@cases("overrides.yaml")
def test_overrides(case: dict[str, Any]) -> None:
    config = copy.deepcopy(case["config"])
    if "changed" in case:
        assert override(config, case["overrides"]) == case["changed"]
    else:
        with pytest.raises(ConfigError) as caught:
            override(config, case["overrides"])
        assert str(caught.value).startswith(case["error"])
    assert config == case["config"]
