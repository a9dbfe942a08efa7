"""The arguments that every search takes, checked before any work starts."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import partial
from typing import Any, Literal

from hopyard import stockroom
from hopyard.backend import Backend
from hopyard.checks import choice, flag, integer, number
from hopyard.data.preparing.split import check_share
from hopyard.data.preprocessing.fitting import FittedSteps, Steps
from hopyard.errors import MetricError, UsageError
from hopyard.hopper.state import EvaluationMetric
from hopyard.hopper.work import Options
from hopyard.objects.identity import identity
from hopyard.search.spaces import check_space, checked_space, named_code, space_json
from hopyard.storage import Store
from hopyard.training.metrics import canonical, metric_mode, metric_names
from hopyard.tune.callbacks import Callback
from hopyard.tune.elsewhere import checked_place
from hopyard.wording import nearest

MOST_PARTITIONS = 8
"""Partitions where nobody says how many, at most."""
LEAST_ROWS = 4_000
"""Rows of a partition where nobody says how many there are: batches do not span partitions, and a unit takes time of
its own to begin."""
GRAPH_STREAMS = {"graph": 1, "streams": 4}
"""By the packing that captures steps in CUDA graphs, the streams on which these are replayed."""
PACKINGS = ("auto", "fused", *GRAPH_STREAMS, "serial", "off")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def _plain(value: Any) -> Any:
    """A value as it stands in a journal: itself if it is plain, else its digest."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return identity(value).digest


def _defined(preprocess: Steps | FittedSteps | None) -> Any:
    """Preprocessing as it stands in a journal: the definition of steps, or the digest of steps fitted before."""
    return (
        preprocess.digest if isinstance(preprocess, FittedSteps) else preprocess and preprocess.definition()
    )


# Where and how it runs, which decides no result.
_OF_THIS_CALL = {"setting": None, "committed": False}
# Not among the settings, but beside them: the identity of the estimator function, and a field of the run's header.
_RECORDED_APART = {"setting": None}
_NAMES = {"setting": list}


@dataclass(frozen=True)
class Arguments:
    """The arguments of a search, checked, and the defaults of those that may be left out; see ``Search``.

    An argument is a setting of the run, and is committed with the search to make it again, unless its metadata say
    otherwise: ``setting`` makes a JSON value of it (None: it is no setting), ``where_given`` leaves a default out, so
    that runs of versions that did not know the argument keep their ids, ``committed`` is False.
    """

    backend: Backend = field(metadata=_OF_THIS_CALL)
    store: Store = field(metadata=_OF_THIS_CALL)
    estimator_gen_fn: Callable[[dict[str, Any]], Any] = field(metadata=_RECORDED_APART)
    search_space: Mapping[str, Any] = field(metadata={"setting": space_json})
    num_epochs: int
    evaluation_metric: str = "loss"
    mode: str | None = None
    feature_columns: tuple[str, ...] = field(default=("features",), metadata=_NAMES)
    label_columns: tuple[str, ...] = field(default=("label",), metadata=_NAMES)
    validation: Any = field(default=0.25, metadata={"committed": False})  # the data of both parts are pinned
    num_partitions: int | None = None
    order_groups: int | None = None
    seed: int = 0
    logdir: Any = field(default=None, metadata=_OF_THIS_CALL)
    stock: Any = field(default=None, metadata=_OF_THIS_CALL)
    run_id: str | None = field(default=None, metadata=_OF_THIS_CALL)
    fresh: bool = field(default=False, metadata=_OF_THIS_CALL)
    take_over: bool = field(default=False, metadata=_OF_THIS_CALL)
    reproducible: bool = field(default=True, metadata=_RECORDED_APART)
    packing: str = field(default="auto", metadata=_OF_THIS_CALL)
    keep: Literal["completed", "best", "all"] = field(default="completed", metadata=_OF_THIS_CALL)
    keep_n: int = field(default=1, metadata=_OF_THIS_CALL)
    checkpoint_every: Literal["unit", "epoch"] | float = field(default="unit", metadata=_OF_THIS_CALL)
    time_budget: float | None = field(default=None, metadata=_OF_THIS_CALL)
    grace: float = field(default=30.0, metadata=_OF_THIS_CALL)
    patience: int | None = None
    median_stopping: int | None = None
    pruner: Any = None
    max_concurrent_trials: int | None = None
    replicates: int = field(default=1, metadata={"where_given": True})
    initial_params: tuple[Mapping[str, Any], ...] = field(
        default=(), metadata={"setting": lambda points: [dict(point) for point in points]}
    )
    init_from: Any = field(
        default=None,
        metadata={
            "setting": lambda model: None if model is None else model.weights()[1].digest,
            "committed": False,  # the weights are committed themselves
        },
    )
    callbacks: tuple[Callback, ...] = field(default=(), metadata=_OF_THIS_CALL)
    progress: bool = field(default=True, metadata=_OF_THIS_CALL)
    nulls: str = "error"
    ragged: str = "error"
    preprocess: Steps | FittedSteps | None = field(default=None, metadata={"setting": _defined})
    frozen_at: Store | None = field(default=None, metadata=_OF_THIS_CALL)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON, but for the estimator function: whoever has its identity adds that."""
        described = [
            (each.name, each.metadata.get("setting", _plain))
            for each in dataclasses.fields(self)
            if not ("where_given" in each.metadata and getattr(self, each.name) == each.default)
        ]
        return {name: describe(getattr(self, name)) for name, describe in described if describe is not None}

    @property
    def committed(self) -> dict[str, Any]:
        """What a committed search is made again with; its data and initial weights are pinned beside it."""
        names = [each.name for each in dataclasses.fields(self) if each.metadata.get("committed", True)]
        return {name: getattr(self, name) for name in names}

    @property
    def options(self) -> Options:
        """The part of the arguments that the hopper takes."""
        return Options(
            checkpoint_every=self.checkpoint_every,
            keep=self.keep,
            keep_n=self.keep_n,
            time_budget=self.time_budget,
            free_orders=not self.reproducible,
            control_seconds=0.5 if self.store.path("runs") else 5.0,
        )

    @property
    def max_concurrent_points(self) -> int | None:
        """Points of the space whose trials may be under way at once: all replicates of a point are."""
        most = self.max_concurrent_trials
        return None if most is None else most // self.replicates

    @property
    def steps(self) -> Steps:
        """Steps of preprocessing, fitted or not; none without ``preprocess``."""
        given = self.preprocess
        return given.steps if isinstance(given, FittedSteps) else given or Steps(())

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns of the data that features are made of."""
        return tuple(self.steps.sources(self.feature_columns))


def check_arguments(fields: dict[str, Any]) -> Arguments:
    """Turn keyword arguments as the user gave them into :class:`Arguments`.

    Raises:
        UsageError: one of them breaks its rule; the message says which, and what to write.
    """
    _refuse_what_comes_later(fields)
    _check_kinds(fields)
    _check_metric(fields["evaluation_metric"], fields["mode"])
    if isinstance(fields["validation"], bool | int | float):
        check_share(fields["validation"])
    for name in ("fresh", "take_over", "reproducible", "progress"):
        flag(name, fields[name])
    counts = (
        "num_epochs",
        "num_partitions",
        "order_groups",
        "patience",
        "median_stopping",
        "max_concurrent_trials",
    )
    for name in counts:
        if fields[name] is not None or name == "num_epochs":
            rule = "an integer of at least 1" + ("" if name == "num_epochs" else ", or None")
            fields[name] = integer(name, fields[name], 1, rule=rule)
    _check_replicates(fields)
    seed = fields["seed"]
    if seed is None:
        fields["seed"], fields["fresh"] = secrets.randbits(31), True
    else:
        fields["seed"] = integer("seed", seed, rule="an integer, or None for a random one that is recorded")
    fields = {
        **fields,
        **_with_code(fields["search_space"], fields["estimator_gen_fn"], fields["initial_params"]),
    }
    fields |= _checked_options(fields)
    names = {name: _column_names(name, fields[name]) for name in ("feature_columns", "label_columns")}
    more = {
        "initial_params": _points(fields["initial_params"]),
        "callbacks": _callbacks(fields["callbacks"]),
        "preprocess": _preprocess(fields["preprocess"], **names),
        "frozen_at": checked_place(fields["frozen_at"]),
    }
    return Arguments(**(fields | names | more))


DEFAULTS: dict[str, Any] = {
    each.name: each.default for each in dataclasses.fields(Arguments) if each.default is not MISSING
}
"""Defaults of the arguments that all searches take by keyword."""


def _with_code(space: Any, estimator_gen_fn: Callable[[dict[str, Any]], Any], points: Any) -> dict[str, Any]:
    """The arguments with names in place of the classes and functions in the space, which the estimator function gets.

    Raises:
        SpaceError: the space breaks a rule.
    """
    space, code = named_code(checked_space(space))
    if not code:
        return {"search_space": space}
    points = [check_space(point, "initial_params") for point in _points(points)]
    return {
        "search_space": space,
        "estimator_gen_fn": partial(_called_with_code, estimator_gen_fn, code),
        "initial_params": [named_code(point)[0] for point in points],
    }


def _called_with_code(
    estimator_gen_fn: Callable[[dict[str, Any]], Any], code: Mapping[str, Any], params: dict[str, Any]
) -> Any:
    def resolved(part: Any) -> Any:
        match part:
            case str():
                return code.get(part, part)
            case dict():
                return {key: resolved(value) for key, value in part.items()}
            case list():
                return list(map(resolved, part))
        return part

    return estimator_gen_fn(resolved(params))


def _preprocess(
    given: Any, feature_columns: tuple[str, ...], label_columns: tuple[str, ...]
) -> Steps | FittedSteps | None:
    if given is None:
        return None
    found = given if isinstance(given, Steps | FittedSteps) else Steps.of(given)
    steps = found.steps if isinstance(found, FittedSteps) else found
    steps.check(feature_columns, label_columns)
    return found


def metric_of(name: str, mode: str | None, has_validation: bool) -> EvaluationMetric:
    """The metric that ranks trials; ``val_`` may stand before the name.

    Raises:
        MetricError: nobody knows whether more of it is better.
    """
    bare = name.removeprefix("val_")
    known = mode or metric_mode(bare)
    if known is None:
        raise MetricError(
            f"evaluation_metric is {name!r}, which is not one of the metrics whose direction is known"
            f"{nearest(bare, metric_names(), '.')} For a metric of your own give mode='max' if more of it is better, "
            "or mode='min'."
        )
    return EvaluationMetric(("val_" if has_validation else "train_") + bare, known)


def find_metric(
    metric: EvaluationMetric, measured: Sequence[str], has_validation: bool, has_aliases: bool = True
) -> EvaluationMetric:
    """The metric under the spelling that the estimator gave it (``acc`` for ``accuracy``).

    Args:
        has_aliases: whether names are those of Hopyard's metrics, some of which have several. Else they are of the
            user's own code, and mean what it says.

    Raises:
        MetricError: the estimator does not measure it.
    """
    prefix = "val_" if has_validation else "train_"
    asked = metric.key.removeprefix(prefix)
    if asked in measured:
        return metric
    wanted = canonical(asked)
    for name in measured:
        if has_aliases and canonical(name) == wanted:
            return EvaluationMetric(prefix + name, metric.mode)
    near = next((f"; did you mean {name!r}?" for name in measured if canonical(name) == wanted), "")
    raise MetricError(
        f"evaluation_metric is {asked!r}, but the estimator measures {sorted(measured)}"
        f"{near or nearest(wanted, measured, '.')} Name one of these, or add it to the estimator's metrics=[...]."
    )


def _refuse_what_comes_later(fields: dict[str, Any]) -> None:
    packing = fields["packing"]
    if packing == "grouped":
        raise UsageError(
            f"packing is {packing!r}, which is for GPUs and comes in a later version. Leave it out, or give 'graph' or "
            "'streams'."
        )
    if packing not in PACKINGS:
        given = ", ".join(map(repr, PACKINGS[:-1]))
        raise UsageError(f"packing={packing!r}, but it must be {given} or {PACKINGS[-1]!r}.")


def _check_kinds(fields: dict[str, Any]) -> None:
    if not isinstance(fields["backend"], Backend):
        raise UsageError(
            f"backend={fields['backend']!r}, but it must be a Backend, for example "
            "hopyard.backend.LocalBackend(num_workers=2)."
        )
    if not isinstance(fields["store"], Store):
        raise UsageError(
            f"store={fields['store']!r}, but it must be a Store, for example hopyard.storage.LocalStore('experiments')."
        )
    if not callable(fields["estimator_gen_fn"]):
        raise UsageError(
            f"estimator_gen_fn={fields['estimator_gen_fn']!r}, but it must be a function that takes a dict of "
            "parameters and returns an estimator."
        )
    init_from = fields["init_from"]
    if init_from is not None and not hasattr(init_from, "weights"):
        raise UsageError(
            f"init_from={init_from!r}, but it must be a model of a search, as fit(...) or "
            "hopyard.load_model(...) return it."
        )
    stock = fields["stock"]
    if stock is not None and not isinstance(stock, str | os.PathLike | stockroom.StockRoom):
        raise UsageError(
            f"stock={stock!r}, but it must be a StockRoom, the path of one, or None. Make one with "
            "hopyard.StockRoom.init('repo')."
        )
    if fields["mode"] not in (None, "min", "max"):
        raise UsageError(f"mode={fields['mode']!r}, but it must be 'min', 'max' or None.")
    run_id = fields["run_id"]
    if run_id is not None and not (isinstance(run_id, str) and _RUN_ID.fullmatch(run_id)):
        raise UsageError(
            f"run_id={run_id!r}, but it must be up to 100 of the letters a to z, digits, '-' and '_', and begin with a "
            "letter or digit."
        )
    logdir = fields["logdir"]
    if logdir is not None and not (
        isinstance(logdir, str | os.PathLike) and isinstance(os.fspath(logdir), str)
    ):
        raise UsageError(
            f"logdir={logdir!r}, but it must be the path of a directory, or None for the store's."
        )


def _check_metric(name: Any, mode: str | None) -> None:
    if not isinstance(name, str) or not name.removeprefix("val_"):
        raise UsageError(
            f"evaluation_metric={name!r}, but it must be the name of one metric, such as 'loss' or 'accuracy'."
        )
    if name.startswith("train_"):
        raise MetricError(
            f"evaluation_metric is {name!r}, but trials are ranked by validation. Give "
            f"{name.removeprefix('train_')!r}; with validation=None that of training is used."
        )
    metric_of(name, mode, has_validation=True)


def _points(value: Any) -> tuple[Mapping[str, Any], ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise UsageError(
            f"initial_params={value!r}, but it must be a list of points, each a dict with all parameters of the space."
        )
    return tuple(value)


def _callbacks(value: Any) -> tuple[Callback, ...]:
    entries = tuple(value) if isinstance(value, Iterable) else (value,)
    for entry in entries:
        if isinstance(entry, type) and issubclass(entry, Callback):
            raise UsageError(f"callbacks has the class {entry.__name__}; give an object: {entry.__name__}().")
        if not isinstance(entry, Callback) or not isinstance(value, Iterable):
            raise UsageError(
                f"callbacks={value!r}, but it must be a list of objects whose classes extend hopyard.tune.Callback."
            )
    return entries


def _check_replicates(fields: dict[str, Any]) -> None:
    replicates = fields["replicates"] = integer(
        "replicates",
        fields["replicates"],
        1,
        advice="Write replicates=3 to train each point with three seeds; num_models counts points.",
    )
    most = fields["max_concurrent_trials"]
    if most is not None and most < replicates:
        raise UsageError(
            f"max_concurrent_trials is {most} and replicates is {replicates}, but all replicates of a point are under "
            "way at once, since it is judged by their mean. Write max_concurrent_trials="
            f"{replicates} or a multiple of it."
        )


def _checked_options(fields: dict[str, Any]) -> dict[str, Any]:
    keep, every, budget = fields["keep"], fields["checkpoint_every"], fields["time_budget"]
    choice("keep", keep, ("completed", "best", "all"))
    integer("keep_n", fields["keep_n"], 1)
    if fields["keep_n"] != 1 and keep != "best":
        raise UsageError(
            f"keep_n is {fields['keep_n']}, but says how many are kept with keep='best', and keep is {keep!r}. "
            "Give keep='best', or leave keep_n out."
        )
    if every not in ("unit", "epoch"):
        every = number(
            "checkpoint_every", every, above=0, rule="'unit', 'epoch' or a number of seconds above 0"
        )
    if budget is not None:
        budget = number("time_budget", budget, above=0, rule="a number of seconds above 0, or None")
    grace = number("grace", fields["grace"], least=0, rule="a number of seconds of at least 0")
    return {"checkpoint_every": every, "time_budget": budget, "grace": grace}


def _column_names(name: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    may_be_empty = name == "label_columns" and isinstance(value, Sequence)
    if not (names or may_be_empty) or not all(isinstance(entry, str) for entry in names):
        least = "" if name == "label_columns" else ", at least one"
        raise UsageError(f"{name}={value!r}, but it must be a list of column names{least}.")
    twice = [entry for entry in dict.fromkeys(names) if names.count(entry) > 1]
    if twice:
        raise UsageError(f"{name} is {value!r}, which names {twice[0]!r} twice. Name each column once.")
    return names


def default_partitions(rows: int, row_groups: int, wanted: int = 1) -> int:
    """Partitions of training data where nobody says how many; they follow from the data, never from workers.

    Args:
        rows, row_groups: of the training data.
        wanted: as many as the search needs to stop trials within an epoch.
    """
    return max(1, min(max(rows // LEAST_ROWS, wanted), MOST_PARTITIONS, row_groups))
