"""Merging of a configuration with its template, and of both with overrides from the command line.

The configuration wins over its template. Mappings merge field by field, but for three kinds that are taken whole:

* a searcher of another name gives the metric and its direction alone;
* a length, such as ``{epochs: 8}``;
* a hyperparameter with a ``type``, or one that is no mapping on both sides.

Lists are taken whole, too, but for ``bind_mounts``: those of the template are added whose ``container_path`` is new.

An override ``searcher.max_trials=4`` sets one field, whatever was there; items of lists are reached as in
``bind_mounts[0].read_only=true``. Its value is YAML.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.errors import ConfigError
from hopyard.experiment.problems import kind_of
from hopyard.experiment.yaml_text import read_yaml
from hopyard.search.points import Path
from hopyard.search.spaces import name_of
from hopyard.wording import counted

_COMMON = ("metric", "smaller_is_better")
_STEP = re.compile(r"(?:\A|\.)(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")


def merge(config: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, and the fields that only the template has. Both are plain values, and stay as they are."""
    merged: dict[str, Any] = _merged(config, template, ())
    return copy.deepcopy(merged)


def override(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration with each override ``key=value`` applied, in their order.

    Raises:
        ConfigError: an override has no key or value, or its key leads into what is no mapping or list.
    """
    changed = copy.deepcopy(dict(config))
    for text in overrides:
        key, equals, value = text.partition("=")
        steps = _steps(key.strip())
        if not equals or not steps:
            raise ConfigError(
                f"--config {text!r} is no override, which is a key and a value, such as searcher.max_trials=4 or "
                "bind_mounts[0].read_only=true. Write --config KEY=VALUE."
            )
        _set(changed, steps, read_yaml(value, f"--config {key}"), text)
    return changed


def _merged(config: Any, template: Any, path: Path) -> Any:
    if path == ("bind_mounts",) and isinstance(config, list) and isinstance(template, list):
        taken = [mount.get("container_path") for mount in config if isinstance(mount, dict)]
        added = [
            mount
            for mount in template
            if isinstance(mount, dict) and mount.get("container_path") not in taken
        ]
        return [*config, *added]
    if not isinstance(config, Mapping) or not isinstance(template, Mapping):
        return config
    if path[:1] == ("hyperparameters",) and ("type" in config or "type" in template) and len(path) > 1:
        return config
    if path in (("searcher", "max_length"), ("searcher", "length_per_round")):
        return config
    if (
        path == ("searcher",)
        and {"name"} <= config.keys() & template.keys()
        and config["name"] != template["name"]
    ):
        template = {field: template[field] for field in _COMMON if field in template}
    both = {
        field: _merged(config[field], template[field], (*path, field))
        for field in config
        if field in template
    }
    return {**template, **config, **both}


def _steps(key: str) -> Path:
    """The path that a key names; empty if it names none."""
    steps: list[str | int] = []
    end = 0
    for found in _STEP.finditer(key):
        if found.start() != end:
            return ()
        end = found.end()
        steps.append(found["name"] if found["index"] is None else int(found["index"]))
    return tuple(steps) if end == len(key) and steps and isinstance(steps[0], str) else ()


def _set(config: dict[str, Any], steps: Path, value: Any, text: str) -> None:
    """Set the field at ``steps``; mappings on the way to it are made where there are none."""
    place: Any = config
    for depth, step in enumerate(steps):
        above = name_of(steps[:depth]) or "the configuration"
        if isinstance(step, int):
            if not isinstance(place, list):
                raise ConfigError(
                    f"--config {text!r} names item {step} of {above}, which is {kind_of(place)} and no list. Write "
                    f"--config '{above}=[...]' for a list."
                )
            if step >= len(place):
                raise ConfigError(
                    f"--config {text!r} names item {step} of {above}, which has {counted(len(place), 'item')}, counted "
                    f"from 0. Name one of them, or write --config '{above}=[...]' for the whole list."
                )
        elif not isinstance(place, dict):
            raise ConfigError(
                f"--config {text!r} names a field of {above}, which is {kind_of(place)} and no mapping. Write "
                f"--config '{above}={{{step}: ...}}' for a mapping."
            )
        if depth == len(steps) - 1:
            place[step] = value
        elif isinstance(step, str):
            place = place.setdefault(step, {})
        else:
            place = place[step]
