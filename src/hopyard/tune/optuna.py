"""Runs as Optuna studies, which Optuna's dashboard and analyses take."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hopyard.errors import SpaceError, UsageError
from hopyard.hopper.state import RunState, TrialState
from hopyard.search.optuna import chosen, name_in, quiet
from hopyard.search.points import check_point
from hopyard.search.spaces import Choice, Continuous, Quantized, space_json, space_of
from hopyard.tune.callbacks import flat_params
from hopyard.tune.rows import RecordedRun, epochs_of

import optuna  # isort: skip - the import above says what to install


Params = dict[str, tuple[optuna.distributions.BaseDistribution, Any]]

_STATES = {
    "running": optuna.trial.TrialState.RUNNING,
    "completed": optuna.trial.TrialState.COMPLETE,
    "stopped": optuna.trial.TrialState.PRUNED,
    "failed": optuna.trial.TrialState.FAIL,
}


def export_to_optuna(run: RecordedRun, target: Any, name: str, overwrite: bool) -> None:
    """Write a run into an Optuna storage, or the database of that URL, as the study ``name``.

    Trials have the same numbers. A trial's value is that of its best epoch; intermediate values are those of its
    epochs, from 1. Stopped trials are pruned ones; trials without a value are failed ones, or still running.

    Raises:
        UsageError: there is a study of that name, or no storage can be opened there.
    """
    space = space_of(run.settings["search_space"])
    trials = [_frozen(run.state, run.state.trials[number], space) for number in sorted(run.state.trials)]
    directions = optuna.study.StudyDirection
    direction = directions.MAXIMIZE if run.state.metric.mode == "max" else directions.MINIMIZE
    with quiet(), _opened(target) as storage:
        if name in optuna.get_all_study_names(storage):
            if not overwrite:
                raise UsageError(
                    f"the Optuna storage {target} holds a study {name!r} already. Give name=... for another, or "
                    "overwrite=True to replace it (on the command line: --overwrite)."
                )
            optuna.delete_study(study_name=name, storage=storage)
        study = optuna.create_study(study_name=name, storage=storage, direction=direction)
        try:
            study.set_metric_names([run.state.metric.key])
            for key in ("kind", "seed", "num_epochs", "data"):
                study.set_user_attr(key, run.settings.get(key))
            study.set_user_attr("run", run.run_id)
            study.add_trials(trials)
        except BaseException:
            optuna.delete_study(study_name=name, storage=storage)
            raise


@contextmanager
def _opened(target: Any) -> Iterator[Any]:
    if isinstance(target, optuna.storages.BaseStorage):
        yield target
        return
    if not isinstance(target, str):
        raise UsageError(
            f"target={target!r}, but it must be a file's path, a URL, or an object of optuna.storages. "
            'Write "trials.jsonl" or "sqlite:///study.db".'
        )
    try:
        storage = optuna.storages.RDBStorage(target)
    except Exception as error:  # SQLAlchemy's, the driver's, or Optuna's
        raise UsageError(
            f"Optuna cannot open the database {target!r}: {str(error).splitlines()[0]} Give a URL that "
            'SQLAlchemy takes, as "sqlite:///study.db", install its driver, and make its directory.'
        ) from error
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _frozen(state: RunState, trial: TrialState, space: Any) -> optuna.trial.FrozenTrial:
    attributes = {
        "epochs": epochs_of(state, trial),
        "seconds": trial.seconds,
        "best_epoch": trial.best.epoch if trial.best else None,
        "error": trial.error.describe() if trial.error else None,
        "source": trial.source,
        "clone_of": trial.clone_of,
        **{
            name: value
            for name, value in (trial.best.metrics if trial.best else {}).items()
            if math.isfinite(value)
        },
    }
    try:
        check_point(space, trial.params)
        params = _params(space, trial.params, "")
    except SpaceError:  # perturbed, or cloned, beyond the space
        params, attributes = {}, attributes | flat_params({"params": trial.params})
    status = _STATES[trial.status]
    if trial.best is None and status.is_finished():
        status = optuna.trial.TrialState.FAIL
    began = state.header["created"]
    end = trial.ended_at[-1] if trial.ended_at else state.clock
    return optuna.trial.FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=status,
        value=trial.best.value if trial.best and status.is_finished() else None,
        datetime_start=datetime.datetime.fromtimestamp(began + max(end - trial.seconds, 0.0)),
        datetime_complete=datetime.datetime.fromtimestamp(began + end) if status.is_finished() else None,
        params={key: value for key, (_, value) in params.items()},
        distributions={key: distribution for key, (distribution, _) in params.items()},
        user_attrs={key: value for key, value in attributes.items() if value is not None},
        system_attrs={},
        intermediate_values=dict(enumerate(trial.history.get(state.metric.key, ()), 1)),
    )


def _params(space: Any, point: Any, name: str) -> Params:
    """A point's dimensions as Optuna's, by name: distribution and value."""
    match space:
        case Choice(options):
            index, option = chosen(space, point)
            labels = _labels(options)
            here: Params = {name: (optuna.distributions.CategoricalDistribution(labels), labels[index])}
            return here | _params(option, point, f"{name}[option {index}]")
        case Continuous(low=low, high=high, log=log):
            return {name: (optuna.distributions.FloatDistribution(low, high, log=log), float(point))}
        case Quantized():
            return {name: (_quantized(space), point)}
        case dict():
            return {
                k: v for key in space for k, v in _params(space[key], point[key], name_in(name, key)).items()
            }
        case list():
            children = (_params(child, point[i], name_in(name, i)) for i, child in enumerate(space))
            return {k: v for child in children for k, v in child.items()}
    return {}


def _labels(options: tuple[Any, ...]) -> list[Any]:
    """The options themselves where Optuna can tell them apart, else their JSON."""
    plain = all(isinstance(option, bool | int | float | str | None) for option in options)
    if plain and len(set(options)) == len(options):
        return list(options)
    return [json.dumps(space_json(option)) for option in options]


def _quantized(dimension: Quantized) -> optuna.distributions.BaseDistribution:
    low, high = dimension.value(dimension.first), dimension.value(dimension.last)
    if max(abs(low), abs(high)) > 2**53 or (dimension.log and dimension.step != 1):
        return optuna.distributions.FloatDistribution(low, high, log=dimension.log)
    if isinstance(low, int):
        return optuna.distributions.IntDistribution(
            low, int(high), log=dimension.log, step=int(dimension.step)
        )
    if dimension.log:
        return optuna.distributions.FloatDistribution(low, high, log=True)
    return optuna.distributions.FloatDistribution(low, high, step=float(dimension.step))
