"""The configuration of an experiment: one YAML file, checked in two steps.

``check_written`` checks the fields that were written, also of a template that has only some: types, rules, unknown
fields. ``complete`` checks a whole configuration: also that no field without a default is missing, and the rules
between searcher and hyperparameters. Both tell all problems at once, each with the path of the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, JsonValue, ValidationError, WrapValidator, model_validator

from hopyard.errors import SpaceError
from hopyard.experiment.checking import problems_of
from hopyard.experiment.hyperparameters import (
    TYPED,
    Fields,
    Hyperparameter,
    problems_of_grid,
    problems_of_single,
    search_space,
    warnings_of_logs,
)
from hopyard.experiment.merging import merge, override
from hopyard.experiment.problems import Problem, kind_of, no_mapping, problems_error, problems_of_objects
from hopyard.experiment.searchers import SEARCHERS, Explore, Grid, Pbt, Replace, SearcherConfig, Single
from hopyard.experiment.secrets import credentials_in, problems_of_references
from hopyard.experiment.yaml_text import inline_yaml, read_yaml_file, shown_yaml, write_yaml
from hopyard.search.points import LARGEST_GRID, num_points
from hopyard.wording import brief, counted

_ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _entrypoint(value: str) -> str:
    module, _, name = value.partition(":")
    words = value.split()
    if len(words) > 1:
        target = next((word for word in reversed(words) if _ENTRYPOINT.fullmatch(word)), None)
        file = next((word for word in reversed(words) if word.endswith(".py")), "model_def.py")
        main = f"{file.removesuffix('.py').strip('./').replace('/', '.')}:main"
        main = main if _ENTRYPOINT.fullmatch(main) else "model_def:main"
        step = f"Write a function def main(context), and entrypoint: {main}."
        raise ValueError(
            f"is {brief(value)}, a command, but it must be a module and the name of a class or function in it, for "
            "which Hopyard starts as many processes as resources.slots_per_trial says. "
            f"{f'Write entrypoint: {target}.' if target else step}"
        )
    if not _ENTRYPOINT.fullmatch(value) or module.endswith(".py"):
        dotted = module.removesuffix(".py").replace("/", ".")
        if "." in dotted and not name and not module.endswith(".py"):
            dotted, _, name = dotted.rpartition(".")
        likely = f"{dotted}:{name or 'DigitsTrial'}"
        raise ValueError(
            f"is {brief(value)}, but it must be a module and the name of a class or function in it. Write entrypoint: "
            f"{likely if _ENTRYPOINT.fullmatch(likely) and len(likely) <= 60 else 'model_def:DigitsTrial'}."
        )
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(
            f"is {brief(value)}, but it must be an absolute path. Write a path such as /mnt/data."
        )
    return value


def _mounts(mounts: list[BindMount]) -> list[BindMount]:
    paths = [mount.container_path for mount in mounts]
    twice = [path for path in dict.fromkeys(paths) if paths.count(path) > 1]
    if twice:
        raise ValueError(
            f"has two mounts at the container_path {twice[0]}, of which one would hide the other. Remove one."
        )
    return mounts


def _every(value: Any, handler: Any) -> Any:
    try:
        return handler(value)
    except ValidationError:
        raise ValueError(
            f"is {shown_yaml(value)}, but it must be unit, epoch or a number of seconds above 0. Write every: epoch."
        ) from None


AbsolutePath: TypeAlias = Annotated[str, AfterValidator(_absolute)]
VariableName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class BindMount(Fields):
    """A directory of the machine that a trial sees, at the same path or another."""

    host_path: AbsolutePath = Field(description="Path on the machine.", examples=["/mnt/data"])
    container_path: AbsolutePath = Field(description="Path that the trial sees.", examples=["/mnt/data"])
    read_only: bool = Field(
        default=False, description="Whether the trial may not write there.", examples=[True]
    )


class Checkpoints(Fields):
    """Retention of the states of trials, and how often states are made durable; as in ``hopyard.tune``."""

    keep: Literal["completed", "best", "all"] = Field(
        default="completed",
        description="Trials that keep their best weights and last state: those trained to the end, the best, or all.",
        examples=["best"],
    )
    keep_n: int = Field(default=1, ge=1, description="How many trials keep: best keeps.", examples=[3])
    every: Annotated[Literal["unit", "epoch"] | Annotated[float, Field(gt=0)], WrapValidator(_every)] = Field(
        default="unit",
        description="When states are made durable: unit, epoch, or seconds.",
        examples=["epoch"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep_n != 1 and self.keep != "best":
            raise ValueError(
                f"has keep_n: {self.keep_n}, but that is for keep: best, and keep is {self.keep}. Write keep: best, or "
                "leave keep_n out."
            )
        return self


class Resources(Fields):
    """Processes that train."""

    slots_per_trial: int = Field(default=1, ge=1, description="Processes that train one trial.", examples=[2])
    workers: int | None = Field(
        default=None, ge=1, description="Units that run at once; null: as the backend chooses.", examples=[4]
    )


class Environment(Fields):
    """Surroundings of a trial's processes."""

    environment_variables: dict[VariableName, str] = Field(
        default={}, description="Variables by name, as texts.", examples=[{"OMP_NUM_THREADS": "1"}]
    )


class ExperimentConfig(Fields):
    """A whole configuration; ``read_config`` and ``complete`` make it."""

    name: str | None = Field(default=None, description="Name in listings.", examples=["digits"])
    description: str = Field(default="", description="Text for people.", examples=["digits, small network"])
    labels: list[str] = Field(
        default=[], description="Words by which experiments are found.", examples=[["digits"]]
    )
    entrypoint: Annotated[str, AfterValidator(_entrypoint)] = Field(
        description="The trial class, or the function, as module:name.", examples=["model_def:DigitsTrial"]
    )
    data: dict[str, JsonValue] = Field(
        default={}, description="Passed on to the trial unchanged.", examples=[{"bucket": "my-bucket"}]
    )
    bind_mounts: Annotated[list[BindMount], AfterValidator(_mounts)] = Field(
        default=[],
        description="Directories that trials see.",
        examples=[[{"host_path": "/mnt/data", "container_path": "/mnt/data"}]],
    )
    hyperparameters: dict[str, Hyperparameter] = Field(
        default={}, description="Constants and ranges, by name, in any depth.", examples=[{"batch_size": 64}]
    )
    searcher: SearcherConfig = Field(
        description="Which points are tried, and how long each trains.",
        examples=[{"name": "random", "metric": "accuracy", "max_trials": 16, "max_length": {"epochs": 8}}],
    )
    seed: int = Field(
        default=0, ge=0, le=2**31 - 1, description="All that is random follows from it.", examples=[0]
    )
    scheduling_unit: int = Field(
        default=100, ge=1, description="Batches of a unit where a trial has its own loader.", examples=[100]
    )
    checkpoints: Checkpoints = Field(default=Checkpoints(), examples=[{"keep": "best"}])
    max_restarts: int = Field(
        default=5, ge=0, description="How often a trial is tried again after it failed.", examples=[5]
    )
    resources: Resources = Field(default=Resources(), examples=[{"slots_per_trial": 2}])
    environment: Environment = Field(
        default=Environment(), examples=[{"environment_variables": {"OMP_NUM_THREADS": "1"}}]
    )
    grace: float = Field(
        default=30.0,
        ge=0,
        description="Seconds that running units get when the machine goes away.",
        examples=[30],
    )

    @property
    def mode(self) -> str:
        """``"min"`` or ``"max"``: whether less or more of the searcher's metric is better."""
        smaller = self.searcher.smaller_is_better
        known = _known_mode(self.searcher.metric) if smaller is None else "min" if smaller else "max"
        assert known is not None  # `complete` has looked
        return known

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that decide results, with all defaults, as a JSON value for the identity of an experiment."""
        fields = self.model_dump(mode="json", exclude=_WITHOUT_RESULTS)
        fields["searcher"]["smaller_is_better"] = self.mode == "min"
        if self.searcher.replicates == 1:  # experiments of before have no such field
            del fields["searcher"]["replicates"]
        return fields | {"resources": {"slots_per_trial": self.resources.slots_per_trial}}

    def written(self) -> dict[str, Any]:
        """The fields that were written, as a JSON value; ``complete`` makes the same configuration of it."""
        fields: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        return fields

    def to_yaml(self) -> str:
        """The fields that were written, as YAML without comments; those of a template are among them."""
        return write_yaml(self.written())

    def warnings(self) -> list[Problem]:
        """Warnings of values that are allowed but hardly meant: credentials in plain sight, values in place of
        exponents, and the wrong direction of a known metric."""
        fields = self.written()
        warnings = [*credentials_in(fields), *warnings_of_logs(fields.get("hyperparameters"))]
        metric, smaller = self.searcher.metric, self.searcher.smaller_is_better
        if smaller is not None and _known_mode(metric) not in (None, self.mode):
            better = "more" if smaller else "less"
            rule = (
                f"is {inline_yaml(smaller)}, but {better} of {brief(metric)} is better. "
                f"Write {inline_yaml(not smaller)}."
            )
            warnings.append(("searcher.smaller_is_better", rule))
        return warnings


_WITHOUT_RESULTS = {"name", "description", "labels", "checkpoints", "max_restarts", "grace", "resources"}

_PARTS: dict[str, type[Fields]] = {
    "": ExperimentConfig,
    "bind_mounts": BindMount,
    "checkpoints": Checkpoints,
    "environment": Environment,
    "explore_function": Explore,
    "replace_function": Replace,
    "resources": Resources,
    **{f"<{name}>": part for name, part in SEARCHERS.items()},
    **{f"<{name}>": part for name, part in TYPED.items()},
}


def read_config(
    path: str | FilePath, template: str | FilePath | None = None, overrides: Sequence[str] = ()
) -> ExperimentConfig:
    """The configuration in a YAML file.

    Args:
        path: the file. Its field ``template`` may name a template, by a path from the file's own directory.
        template: a file that gives what the first does not say, in place of the one that ``path`` names.
        overrides: texts such as ``searcher.max_trials=4``, which win over both files.

    Raises:
        ConfigError: with all problems, each with the path of its field.
    """
    config = read_yaml_file(path)
    template = _template_of(config.pop("template", None), path, template)
    source = str(path)
    if template is not None:
        below = read_yaml_file(template)
        if "template" in below:
            rule = "stands in a template, but a template has none of its own. Write all into one template."
            raise problems_error(str(template), [("template", rule)])
        check_written(below, str(template))
        config = merge(config, below)
        source += f" with the template {template}"
    if overrides:
        config = override(config, overrides)
        source += f" and --config {' '.join(overrides)}"
    return complete(config, source)


def files_of(path: str | FilePath, template: str | FilePath | None = None) -> list[FilePath]:
    """The files that ``read_config`` reads of a configuration: its own, and the template. None for a pipe, which can
    be read only once.

    Raises:
        ConfigError: the first is no configuration.
    """
    if not FilePath(path).expanduser().is_file():
        return []
    template = _template_of(read_yaml_file(path).get("template"), path, template)
    return [FilePath(each) for each in (path, template) if each is not None]


def _template_of(named: Any, path: str | FilePath, template: str | FilePath | None) -> str | FilePath | None:
    """The template that was given, or else the one that a file's field ``template`` names."""
    if named is not None and not isinstance(named, str):
        rule = f"is {kind_of(named)}, but it must be the path of a file. Write template: base.yaml."
        raise problems_error(str(path), [("template", rule)])
    if template is None and named is not None:
        found = FilePath(path).expanduser().parent / FilePath(named).expanduser()
        if not found.exists():
            rule = (
                f"is {brief(named)}, but there is no file {found}. Correct the path, which begins in the directory of "
                "this file."
            )
            raise problems_error(str(path), [("template", rule)])
        return found
    return template


def check_written(config: Mapping[str, Any], source: str = "the configuration") -> None:
    """Check the fields that were written; others may be missing.

    Args:
        config: plain values, as ``read_yaml`` gives them.
        source: names the configuration in messages.

    Raises:
        ConfigError: with all problems, each with the path of its field.
    """
    _check_plain(config, source)
    problems = problems_of_written(config)
    if problems:
        raise problems_error(source, problems)


def problems_of_written(config: Mapping[str, Any]) -> list[Problem]:
    """The problems for which ``check_written`` raises."""
    return _validated(config, partial=True)[1]


def complete(config: Mapping[str, Any], source: str = "the configuration") -> ExperimentConfig:
    """The whole configuration, with all defaults.

    Args:
        config: plain values, as ``read_yaml`` gives them.
        source: names the configuration in messages.

    Raises:
        ConfigError: with all problems, each with the path of its field.
    """
    _check_plain(config, source)
    made, problems = _validated(config)
    problems += _problems_between(config)
    if made is not None and not problems:
        problems += _problems_of_number(made)
    if made is None or problems:
        raise problems_error(source, problems)
    return made


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of configuration files, for editors; rules between fields are not in it."""
    made = ExperimentConfig.model_json_schema()
    made["properties"]["template"] = {
        "type": "string",
        "description": "A file that gives what this one does not say; its path from this file's directory.",
        "examples": ["base.yaml"],
    }
    made["title"], made["description"] = "Experiment", "The configuration of an experiment of Hopyard."
    made["anyOf"] = [{"required": made.pop("required")}, {"required": ["template"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _validated(
    config: Mapping[str, Any], *, partial: bool = False
) -> tuple[ExperimentConfig | None, list[Problem]]:
    """The configuration, None if a field breaks a rule, and the problems of single fields.

    Args:
        partial: whether fields may be missing that a template could give.
    """
    problems = problems_of_references(config)
    try:
        return ExperimentConfig.model_validate(config), problems
    except ValidationError as error:
        return None, problems + problems_of(error, _PARTS, partial=partial)


def _check_plain(config: Any, source: str) -> None:
    """Raise ConfigError unless the configuration is a mapping of plain values."""
    if not isinstance(config, dict):
        raise no_mapping(source, config)
    if problems := list(problems_of_objects(config)):
        raise problems_error(source, problems)


def _problems_between(config: Mapping[str, Any]) -> list[Problem]:
    """Problems between fields, as they are written."""
    searcher = config.get("searcher")
    if not isinstance(searcher, Mapping):
        return []
    hyperparameters, problems = config.get("hyperparameters"), []
    if searcher.get("name") == "grid":
        problems = problems_of_grid(hyperparameters)
    if searcher.get("name") == "single":
        problems = problems_of_single(hyperparameters)
    metric = searcher.get("metric")
    given = searcher.get("smaller_is_better") is not None
    if isinstance(metric, str) and metric and not given and _known_mode(metric) is None:
        rule = (
            f"is missing, and it is not known whether less of {brief(metric)} is better. Write true or false."
        )
        problems.append(("searcher.smaller_is_better", rule))
    return problems


def _problems_of_number(config: ExperimentConfig) -> list[Problem]:
    """Whether there are as many different points as trials, and not too many for a grid."""
    searcher = config.searcher
    space = search_space(config.hyperparameters, grid=isinstance(searcher, Grid))
    try:
        points = num_points(space)
    except SpaceError:  # no end of points
        return []
    if isinstance(searcher, Single):
        return []
    if isinstance(searcher, Grid):
        if points <= LARGEST_GRID:
            return []
        rule = f"have {points:,} points, but a grid has at most {LARGEST_GRID:,}. Write smaller counts."
        return [("hyperparameters", rule)]
    field = "population_size" if isinstance(searcher, Pbt) else "max_trials"
    trials = getattr(searcher, field)
    if trials <= points:
        return []
    fewer = f"Write {field}: {points}, or give" if points > 1 or field == "max_trials" else "Give"
    rule = (
        f"is {trials}, but the hyperparameters have only {counted(points, 'different point')}. {fewer} the "
        "hyperparameters more values."
    )
    return [(f"searcher.{field}", rule)]


def _known_mode(metric: str) -> str | None:
    from hopyard.training.metrics import metric_mode  # takes long to import

    return metric_mode(metric.removeprefix("val_"))
