"""The experiment that a new one is compared with, the newest of its name or the forked one, and how they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hopyard.data.files.parallel import of_each
from hopyard.errors import ConfigError, CorruptError, StorageError
from hopyard.experiment.config import ExperimentConfig, complete
from hopyard.experiment.definition import files_that_differ
from hopyard.experiment.experiments import experiment_ids
from hopyard.experiment.needed import header_of
from hopyard.experiment.yaml_text import shown_yaml
from hopyard.search.points import Path
from hopyard.search.spaces import name_of
from hopyard.storage import Store
from hopyard.wording import one_line

_MAY_BE_SECRET = ("data", "environment")
"""Fields whose values are not shown."""

_ABSENT = object()


@dataclass(frozen=True)
class OtherExperiment:
    """An experiment, and how one that is about to begin differs from it in what decides results.

    Attributes:
        experiment: its id.
        fields: what became of each field of the configuration that differs, by its path: ``"8 -> 16"``, ``"new: 16"``
            or ``"gone"``, or ``"changed"`` where values may be secret.
        files: what became of each file of the model definition that differs, by its path: ``"changed"``, ``"new"`` or
            ``"gone"``. Of one that the store does not have whole, ``.`` stands for all of its files.
    """

    experiment: str
    fields: dict[str, str]
    files: dict[str, str]

    @property
    def lines(self) -> list[str]:
        """The differences, one a line."""
        return [f"{path}: {text}" for path, text in (self.fields | self.files).items()]


def differing_namesake(store: Store, config: ExperimentConfig, definition: str) -> OtherExperiment | None:
    """The newest experiment of a configuration's name; None if there is none, the configuration has no name, or an
    experiment with this configuration and code is there, which ``create`` goes on with.

    Those that began from another experiment's weights, or that this version cannot read, are passed over.

    Args:
        definition: digest of the model definition.
    """
    if config.name is None:
        return None
    ids = experiment_ids(store)
    headers = of_each(store, [f"runs/{each}" for each in ids], ids, lambda each: header_of(store, each))
    own = json.dumps(config.settings, sort_keys=True)
    namesakes: list[tuple[float, str, dict[str, Any], dict[str, Any]]] = []
    for each, header in zip(ids, headers, strict=True):
        about = header.get("experiment")
        if about is None or about.get("warm_start") or about["config"].get("name") != config.name:
            continue
        try:
            settings = complete(about["config"]).settings
        except ConfigError:  # of another version
            continue
        if about["definition"] == definition and json.dumps(settings, sort_keys=True) == own:
            return None
        namesakes.append((header["created"], each, about, settings))
    if not namesakes:
        return None
    _, newest, about, settings = max(namesakes, key=lambda each: each[:2])
    return _differing(store, newest, about["definition"], settings, config, definition)


def forked_from(store: Store, experiment: str, config: ExperimentConfig) -> OtherExperiment:
    """The experiment that is forked, and what its fork changes of its configuration.

    Raises:
        ConfigError: its configuration is of another version.
    """
    about = header_of(store, experiment)["experiment"]
    settings = complete(about["config"]).settings
    return _differing(store, experiment, about["definition"], settings, config, about["definition"])


def _differing(
    store: Store, other: str, code: str, settings: dict[str, Any], config: ExperimentConfig, definition: str
) -> OtherExperiment:
    """Another experiment with these settings and this code, beside a configuration and the digest of a definition."""
    fields = {name_of(path): text for path, text in _differences(settings, config.settings)}
    try:
        files = {} if code == definition else files_that_differ(store, code, definition)
    except CorruptError:
        files = {".": f"others than {code[:12]}, which is damaged in the store"}
    except StorageError:
        files = {".": f"others than {code[:12]}, which the store no longer has"}
    return OtherExperiment(other, fields, {one_line(path): text for path, text in files.items()})


def _differences(there: Any, now: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The paths of the fields that differ, and what became of them."""
    if _ABSENT not in (there, now) and json.dumps(there, sort_keys=True) == json.dumps(now, sort_keys=True):
        return
    if isinstance(there, dict) and isinstance(now, dict):
        for key in there | now:
            yield from _differences(there.get(key, _ABSENT), now.get(key, _ABSENT), (*path, key))
    elif now is _ABSENT:
        yield path, "gone"
    else:
        was = "new: " if there is _ABSENT else f"{shown_yaml(there)} -> "
        is_shown = path[0] not in _MAY_BE_SECRET
        yield path, f"{was}{shown_yaml(now)}" if is_shown else "changed"
