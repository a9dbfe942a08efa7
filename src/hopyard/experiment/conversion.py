"""Conversion of a configuration of Determined, of any version from 0.14 to 0.38, into one of ours.

Fields that mean the same here are taken over, under our names. Fields without counterpart are listed, with advice on
what to use instead. All other fields are problems, so that nothing is dropped without a word. Null means "not set" to
Determined.
"""

from __future__ import annotations

import copy
import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from hopyard.experiment.config import ExperimentConfig, problems_of_written
from hopyard.experiment.determined import ADVICE, advice_for
from hopyard.experiment.hyperparameters import problems_of_single
from hopyard.experiment.problems import Problem, kind_of, no_mapping, problems_error
from hopyard.experiment.searchers import SEARCHERS
from hopyard.experiment.secrets import Credential, credential_in, variable_for
from hopyard.experiment.yaml_text import read_yaml, write_yaml
from hopyard.search.points import Path
from hopyard.search.spaces import name_of
from hopyard.wording import brief, listed, nearest

_SAME = ("name", "description", "labels", "data", "scheduling_unit", "max_restarts")
_RENAMED_SEARCHERS = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "async_halving",
}
_UNITS = ("batches", "records", "epochs")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MEMORY = re.compile(r"\d+(\.\d+)?\s*(b|[kmgtpe](i?b)?)?", re.IGNORECASE)
_STORAGES = {
    "shared_fs": "host_path",
    "directory": "container_path",
    "s3": "bucket",
    "gcs": "bucket",
    "azure": "container",
}
"""Types of storage of checkpoints, and the field that says where each is."""
_OURS = {
    "seed": "reproducibility: {experiment_seed: 1}",
    "grace": "preemption_timeout: 30",
    "checkpoints": "checkpoint_storage: {save_trial_best: 1}",
}
"""Fields of ours, and a line for each as Determined writes it."""
_PLACES = ("type", *dict.fromkeys(_STORAGES.values()), "storage_path", "prefix", "propagation", "checkpoint_path",
           "tensorboard_path")  # fmt: skip


def convert(text: str | bytes, source: str = "the configuration") -> tuple[str, list[Problem]]:
    """A configuration of Determined as one of ours; comments of the text are lost.

    Args:
        text: the YAML.
        source: names it in messages, such as the path of its file.

    Returns:
        Our YAML, and notes for the user on fields that have no counterpart, or another meaning: (path of Determined's
        field, advice). Required fields that the text lacks are missing in our YAML, too: ``complete`` tells.

    Raises:
        ConfigError: the text is no configuration of Determined, or breaks a rule; with all problems.
    """
    given = read_yaml(text, source)
    if not isinstance(given, dict):
        raise no_mapping(source, given)
    conversion = _Conversion(given)
    conversion.run()
    problems = conversion.problems + problems_of_written(conversion.made)
    if problems:
        raise problems_error(source, problems)
    ordered = [field for field in ExperimentConfig.model_fields if field in conversion.made]
    made = {field: conversion.made[field] for field in ordered}
    order = list(given)
    return write_yaml(made), sorted(
        conversion.notes, key=lambda note: order.index(re.split(r"[.\[]", note[0])[0])
    )


class _Conversion:
    """Takes the fields of a configuration one after the other; those that are left at the end have no counterpart."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.made: dict[str, Any] = {}
        self.notes: list[Problem] = []
        self.problems: list[Problem] = []
        self._secrets: dict[str, str] = {}
        self._left: dict[str, Any] = _without_nulls(given)

    def run(self) -> None:
        for field in _SAME:
            if field in self._left:
                self.made[field] = self._left.pop(field)
        self._take_secrets()
        self._take_entrypoint()
        self._take_mounts()
        self._take_hyperparameters()
        self._take_searcher()
        self._take_environment()
        self._take_storage()
        self._take_rest()
        for path, advice in self._leftovers(self._left, ()):
            self.notes.append((path, f"has no counterpart. {advice}"))

    def _take_secrets(self) -> None:
        """Values in ``data.secrets``, which Determined hides, and what looks like a credential, become references."""
        secrets = self.made["data"].get("secrets") if isinstance(self.made.get("data"), dict) else None
        if isinstance(secrets, dict):
            for name, value in secrets.items():
                if isinstance(value, str):
                    whole = Credential(variable_for(name), 0, len(value))
                    secrets[name] = self._referred(value, whole, ("data", "secrets", name))
        if "data" in self.made:
            self.made["data"] = self._without_credentials(self.made["data"], ("data",))

    def _without_credentials(self, value: Any, path: Path) -> Any:
        """``value`` with references in place of what looks like a credential."""
        if isinstance(value, dict):
            return {name: self._without_credentials(each, (*path, name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self._without_credentials(each, (*path, index)) for index, each in enumerate(value)]
        found = credential_in(path, value) if isinstance(value, str) else None
        return value if found is None else self._referred(value, found, path)

    def _referred(self, text: str, found: Credential, path: Path, noted: Path | None = None) -> str:
        """``text`` with a reference in place of a credential, and a note on the field ``noted``, or else ``path``."""
        secret = text[found.start : found.end]
        whole = secret == text
        longer = "_".join(str(step) for step in path) + ("" if whole else "_PASSWORD")
        names = [found.variable, variable_for(longer)]
        names += [f"{names[1]}_{number}" for number in range(2, len(self._secrets) + 3)]
        variable = next(name for name in names if self._secrets.setdefault(name, secret) == secret)
        place = "was" if whole else "has a password, which was"
        advice = f"{place} replaced by a reference. Set the environment variable {variable}, or a line in secrets.yaml."
        self.notes.append((name_of(noted or path), advice))
        return f"{text[: found.start]}${{secret:{variable}}}{text[found.end :]}"

    def _take_entrypoint(self) -> None:
        entrypoint = self._left.pop("entrypoint", None)
        words = entrypoint.split() if isinstance(entrypoint, str) else entrypoint
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            if entrypoint is not None:
                self.made["entrypoint"] = entrypoint  # wrong there as well
            return
        target = next((word for word in reversed(words) if _TARGET.fullmatch(word)), None)
        if target is not None:
            self.made["entrypoint"] = target
        if words != [target]:
            advice = (
                f"is a command. Hopyard starts the processes itself, as many as slots_per_trial says, for {target}."
                if target
                else "is a command. Write a function def main(context) in a module, and entrypoint: MODULE:main."
            )
            self.notes.append(("entrypoint", advice))

    def _take_mounts(self) -> None:
        mounts = self._left.pop("bind_mounts", None)
        if not isinstance(mounts, list):
            if mounts is not None:
                self.made["bind_mounts"] = mounts
            return
        made: list[Any] = []
        for index, mount in enumerate(mounts):
            path = f"bind_mounts[{index}]"
            if not isinstance(mount, dict):
                made.append(mount)
                continue
            if mount.pop("propagation", None) is not None:
                self.notes.append(
                    (f"{path}.propagation", f"has no counterpart. {ADVICE['bind_mounts.propagation']}")
                )
            inside, host = mount.get("container_path"), mount.get("host_path")
            if any(isinstance(other, dict) and other.get("container_path") == inside for other in made):
                self.notes.append(
                    (path, f"was left out: an earlier mount has the container_path {brief(inside)}.")
                )
                continue
            if isinstance(inside, str) and not inside.startswith("/") and posixpath.normpath(inside) != ".":
                mount["container_path"] = host
                advice = (
                    f"was in the working directory, at {inside}. It is an absolute path here, and {host} was written. "
                    "Open that one in the trial's code."
                )
                self.notes.append((f"{path}.container_path", advice))
            made.append(mount)
        self.made["bind_mounts"] = made

    def _take_hyperparameters(self) -> None:
        given = self._left.pop("hyperparameters", None)
        if isinstance(given, dict):  # of which one may be called "type"
            given = {
                name: self._hyperparameter(each, ("hyperparameters", name)) for name, each in given.items()
            }
        if given is not None:
            self.made["hyperparameters"] = given

    def _hyperparameter(self, value: Any, path: Path) -> Any:
        if isinstance(value, list):
            return [self._hyperparameter(each, (*path, index)) for index, each in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "type" not in value:
            return {name: self._hyperparameter(each, (*path, name)) for name, each in value.items()}
        if value["type"] == "log" and value.get("base") == 1:
            self.notes.append(
                (name_of(path), "has the base 1, of which all powers are 1. The constant 1.0 was written.")
            )
            return 1.0
        if value["type"] == "categorical" and isinstance(value.get("vals"), list):
            different = list({json.dumps(each, sort_keys=True): each for each in value["vals"]}.values())
            if different != value["vals"]:
                advice = (
                    "has values twice, each as likely as it is often; here each is as likely as the others."
                )
                self.notes.append((f"{name_of(path)}.vals", advice))
            return {**value, "vals": different}
        return value

    def _take_searcher(self) -> None:
        searcher = self._left.pop("searcher", None)
        if not isinstance(searcher, dict):
            if searcher is not None:
                self.made["searcher"] = searcher
            return
        made: dict[str, Any] = {}
        name = searcher.pop("name", None)
        if name == "custom":
            advice = f"is custom, which has no counterpart. {ADVICE['searcher.unit']}"
            self.notes.append(("searcher.name", advice))
        elif name in _RENAMED_SEARCHERS:
            made["name"] = _RENAMED_SEARCHERS[name]
            advice = (
                f"is {name}, which Determined removed itself. {made['name']} was written. Look at its fields."
            )
            self.notes.append(("searcher.name", advice))
        elif name == "single" and problems_of_single(self.made.get("hyperparameters")):
            made |= {"name": "random", "max_trials": 1}
            advice = (
                "is single, but not all hyperparameters are constants. Random with max_trials: 1 was written."
            )
            self.notes.append(("searcher.name", advice))
        elif name is not None:
            made["name"] = name
        self._take_length(searcher, made)
        fields = SEARCHERS.get(made.get("name", ""))
        models = SEARCHERS.values() if fields is None else [fields]
        known = {field for model in models for field in model.model_fields}
        made |= {field: searcher.pop(field) for field in list(searcher) if field in known}
        if "metric" in made:
            made.setdefault("smaller_is_better", True)  # Determined's default, also for accuracies
        if isinstance(made.get("divisor"), int | float) and 1 < made["divisor"] < 2:
            advice = f"is {made['divisor']}, but it is at least 2 here, which was written."
            self.notes.append(("searcher.divisor", advice))
            made["divisor"] = 2
        self.made["searcher"] = made
        self._left["searcher"] = searcher

    def _take_length(self, searcher: dict[str, Any], made: dict[str, Any]) -> None:
        """``max_length``, also without a unit, or ``max_time`` of the unit ``time_metric``."""
        length = searcher.get("max_length")
        if isinstance(length, int) and not isinstance(length, bool):
            searcher["max_length"] = {"batches": length}
            advice = (
                f"is {length} of a unit that the code knew. Batches were written; see that they are meant."
            )
            self.notes.append(("searcher.max_length", advice))
        if "max_time" not in searcher:
            return
        time, unit = searcher.pop("max_time"), searcher.pop("time_metric", None)
        made["max_length"] = {unit if unit in _UNITS else "batches": time}
        if made.get("name") in ("adaptive_asha", "async_halving"):
            # With max_time Determined stops trials at a rung for good.
            made["stop_once"] = searcher.pop("stop_once", True)
        if unit not in _UNITS:
            advice = (
                f"is {brief(unit)}, a metric of the code. Write max_length in batches, records or epochs."
            )
            self.notes.append(("searcher.time_metric", advice))

    def _take_environment(self) -> None:
        environment = self._left.get("environment")
        given = environment.pop("environment_variables", None) if isinstance(environment, dict) else None
        if given is None:
            return
        lists = given if isinstance(given, dict) else {"": given}
        variables: dict[str, str] = {}
        places: dict[str, Path] = {}
        for device in sorted(lists, key=lambda device: device != "cuda"):
            path: Path = ("environment", "environment_variables", *([device] if device else []))
            for index, line in enumerate(
                lists[device] if isinstance(lists[device], list) else [lists[device]]
            ):
                name, equals, value = line.partition("=") if isinstance(line, str) else ("", "", "")
                where = name_of((*path, index))
                places.setdefault(name, (*path, index))
                if not equals:
                    self.problems.append((where, "is no variable and its value. Write NAME=VALUE."))
                elif variables.setdefault(name, value) != value:
                    self.notes.append(
                        (where, f"differs between devices. The value of {name} for cuda was written.")
                    )
                elif "$" in value:
                    self.notes.append(
                        (where, f"has a $, which is not expanded here. Write the whole value of {name}.")
                    )
        for name, value in variables.items():
            own: Path = ("environment", name)
            if (found := credential_in(own, value)) is not None:
                variables[name] = self._referred(value, found, own, places[name])
        self.made["environment"] = {"environment_variables": variables}

    def _take_storage(self) -> None:
        storage = self._left.get("checkpoint_storage")
        if not isinstance(storage, dict):
            return
        kept = [
            storage.pop(f"save_{which}", None) for which in ("experiment_best", "trial_best", "trial_latest")
        ]
        self._take_kept(*kept)
        self.problems += _problems_of_storage(storage)
        place = {field: storage.pop(field) for field in _PLACES if field in storage}
        if place:
            address = _address(place)
            advice = f" Here that is {address}." if address else ""
            self.notes.append(
                ("checkpoint_storage", f"has no counterpart. {ADVICE['checkpoint_storage']}{advice}")
            )

    def _take_kept(self, experiment_best: Any, trial_best: Any, trial_latest: Any) -> None:
        """How many checkpoints stay: of the experiment, of each trial the best, of each trial the last ones."""
        for name, count in (
            ("save_experiment_best", experiment_best),
            ("save_trial_best", trial_best),
            ("save_trial_latest", trial_latest),
        ):
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
                rule = f"is {brief(count)}, but it must be a whole number of at least 0. Write {name}: 1."
                self.problems.append((f"checkpoint_storage.{name}", rule))
                return
            if name != "save_experiment_best" and count is not None and count > 1:
                advice = f"is {count}; a trial keeps its best weights and its last state here."
                self.notes.append((f"checkpoint_storage.{name}", advice))
        if (experiment_best, trial_best, trial_latest) == (None, None, None):
            return
        if trial_best == trial_latest == 0:  # their defaults are 1
            self.made["checkpoints"] = {"keep": "best", "keep_n": max(experiment_best or 0, 1)}
            if not experiment_best:
                advice = "is 0; the best weights of all are always kept here."
                self.notes.append(("checkpoint_storage.save_experiment_best", advice))
        else:
            self.made["checkpoints"] = {"keep": "all"}

    def _take_rest(self) -> None:
        seed = self._within("reproducibility").pop("experiment_seed", None)
        if seed is not None:
            self.made["seed"] = seed
        if "preemption_timeout" in self._left:
            self.made["grace"] = self._left.pop("preemption_timeout")
        if self._left.get("min_checkpoint_period") == {"epochs": 1}:
            del self._left["min_checkpoint_period"]
            self.made["checkpoints"] = self.made.get("checkpoints", {}) | {"every": "epoch"}
        resources = self._within("resources")
        slots = resources.pop("slots_per_trial", None)
        if slots == 0:
            self.notes.append(
                ("resources.slots_per_trial", "is 0; a trial has one process here, which was written.")
            )
        if slots is not None:
            self.made["resources"] = {"slots_per_trial": slots or 1}
        memory = resources.get("shm_size")
        if memory is not None and not _MEMORY.fullmatch(str(memory)):
            rule = f"is {brief(memory)}, but it must be a number of bytes, or one with a unit. Write shm_size: 4 GiB."
            self.problems.append(("resources.shm_size", rule))
        profiling = self._within("profiling")
        first, last = profiling.get("begin_on_batch"), profiling.get("end_after_batch")
        if isinstance(first, int) and isinstance(last, int) and first > last:
            rule = f"begins on batch {first} and ends after batch {last}. Write an end_after_batch of at least {first}."
            self.problems.append(("profiling", rule))
        self._take_records()

    def _take_records(self) -> None:
        records = self._left.get("records_per_epoch")
        searcher = self.made.get("searcher")
        for name in ("max_length", "length_per_round"):
            length = searcher.get(name) if isinstance(searcher, dict) else None
            epochs = length.get("epochs") if isinstance(length, dict) else None
            if isinstance(records, int) and isinstance(epochs, int) and records and epochs:
                del self._left["records_per_epoch"]
                advice = (
                    f"has no counterpart. An epoch is one pass over the training data. Where that is not {records:,} "
                    f"records, write {name}: {{records: {records * epochs}}}."
                )
                self.notes.append(("records_per_epoch", advice))
                return

    def _within(self, field: str) -> dict[str, Any]:
        section = self._left.get(field)
        return section if isinstance(section, dict) else {}

    def _leftovers(self, section: dict[str, Any], path: Path) -> Iterator[Problem]:
        """The fields that nothing has taken, and what to use instead."""
        for field, value in section.items():
            if value in ({}, []):  # nothing is lost, or all of it was taken
                continue
            here = (*path, field)
            dotted = name_of(here)
            within = [name for name in ADVICE if name.startswith(f"{dotted}.")]
            if within and isinstance(value, dict):
                yield from self._leftovers(value, here)
            elif (advice := advice_for(here)) is not None:
                yield dotted, advice
            elif within:
                example = f"{field}: {{{within[0].rpartition('.')[2]}: ...}}"
                rule = f"is {kind_of(value)}, but it must be a mapping. Write {example}, or remove it."
                self.problems.append((dotted, rule))
            elif not path and field in _OURS:
                rule = f"is no field of Determined, but one of Hopyard's. Write {_OURS[field]}."
                self.problems.append((dotted, rule))
            else:
                prefix = f"{name_of(path)}." if path else ""
                known = {
                    name.removeprefix(prefix).split(".")[0] for name in ADVICE if name.startswith(prefix)
                }
                rule = f"is no field of Determined{nearest(field, known, '.')} Rename or remove it."
                self.problems.append((dotted, rule))


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """A copy without the fields that are null, but for data and hyperparameters, where null is a value."""
    kept = {"data", "hyperparameters"}
    return {
        field: copy.deepcopy(each) if field in kept or not isinstance(each, dict) else _without_nulls(each)
        for field, each in value.items()
        if each is not None
    }


def _problems_of_storage(storage: dict[str, Any]) -> list[Problem]:
    kind = storage.get("type")
    if kind is not None and kind not in _STORAGES:
        rule = (
            f"is {brief(kind)}, but it must be one of {listed(_STORAGES)}{nearest(str(kind), _STORAGES, '.')}"
        )
        return [("checkpoint_storage.type", rule)]
    problems: list[Problem] = []
    if isinstance(prefix := storage.get("prefix"), str) and ".." in prefix.split("/"):
        rule = f"is {prefix!r}, but it must not lead upwards. Write it without '..'."
        problems.append(("checkpoint_storage.prefix", rule))
    host, below = storage.get("host_path"), storage.get("storage_path")
    if isinstance(host, str) and isinstance(below, str):
        inside = posixpath.normpath(posixpath.join(host, below))
        if not f"{inside}/".startswith(f"{posixpath.normpath(host).rstrip('/')}/"):
            rule = f"is {below!r}, but it must be a directory below host_path, {host}. Write one, relative to that."
            problems.append(("checkpoint_storage.storage_path", rule))
    if kind == "azure":
        if ("connection_string" in storage) == ("account_url" in storage):
            rule = "must have either connection_string or account_url. Write one of them."
            problems.append(("checkpoint_storage", rule))
        if {"credential", "connection_string"} <= storage.keys():
            rule = "has both credential and connection_string, which holds one itself. Remove credential."
            problems.append(("checkpoint_storage", rule))
        if "container" not in storage:
            problems.append(("checkpoint_storage.container", "is missing. Write container: NAME."))
    return problems


def _address(place: dict[str, Any]) -> str | None:
    """The store in which Hopyard would keep what was at a place; None where the place is not said."""
    kind = place.get("type")
    root = place.get(_STORAGES.get(str(kind), ""))
    if not isinstance(root, str):
        return None
    scheme = {"s3": "s3://", "gcs": "gs://", "azure": "az://"}.get(str(kind), "")
    below = place.get("prefix") if scheme else place.get("storage_path")
    return scheme + (posixpath.normpath(posixpath.join(root, below)) if isinstance(below, str) else root)
