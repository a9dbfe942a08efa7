"""Experiments in a store: begun, listed, opened, gone on with, forked and deleted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.backend import Backend
from hopyard.errors import NotFoundError, RunHeldError, StorageError, UsageError
from hopyard.experiment.config import ExperimentConfig, complete, files_of, read_config
from hopyard.experiment.definition import pack
from hopyard.experiment.driver import BACKENDS, Driving, check_result
from hopyard.experiment.launching import ExperimentSearch, WarmStart
from hopyard.experiment.merging import override
from hopyard.experiment.needed import delete_unneeded, header_of, objects_of
from hopyard.hopper.journal import has_records, holder, read_records
from hopyard.hopper.removal import remove_empty_directories, remove_run
from hopyard.objects import load_state, save_state
from hopyard.storage import Store, open_store
from hopyard.tune import Model, Run, list_runs, open_run
from hopyard.tune.describing import describe_holder
from hopyard.tune.listing import find_run, summary

PREFIX = f"{ExperimentSearch.kind}-"
"""Beginning of the ids of experiments."""

UNREADABLE = "unreadable"


def create(
    config: ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str],
    directory: str | os.PathLike[str],
    store: Store | str | os.PathLike[str],
    backend: Backend | str | None = None,
    *,
    test: bool = False,
    fresh: bool = False,
    progress: bool = True,
    detach: bool = False,
) -> Run | None:
    """Run an experiment, or go on with it where it stopped: the same configuration and code are the same experiment.

    Args:
        config: the configuration, its fields, or the path of its YAML file.
        directory: the model definition directory. The configuration's own file is left out, if no Python file names it.
        store: keeps the definition, the run, and the states of its trials.
        backend: runs the trials: a backend, or the name of one, ``"local"``, ``"ray"`` or ``"spark"``. None: processes
            on this machine, as many as ``resources.workers`` says.
        test: run one batch of everything, and begin no experiment; returns None.
        fresh: begin another experiment beside one with the same configuration and code.
        progress: show progress, and what trials print.
        detach: have another process drive it, and return once it has begun.

    Raises:
        ConfigError: the configuration breaks rules; has all of them.
        UsageError: the directory, the length or a bind mount breaks a rule. Nothing was begun.
        TrialError: the trials cannot be built or trained, all failed, or the metric was no number in any of them.
        RunHeldError: another process drives this experiment.
        Preempted: as ``Search.fit``.
    """
    written: list[Path] = []
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        config, written = read_config(path), files_of(path)
    elif not isinstance(config, ExperimentConfig):
        config = complete(config)
    opened = open_store(store)
    driving = Driving(config, pack(directory, opened, written).digest, opened, backend, fresh=fresh)
    if test:
        driving.here(progress=progress, test=True)
        return None
    return _driven(driving, progress, detach)


def _driven(driving: Driving, progress: bool, detach: bool) -> Run:
    if detach:
        return open_run(driving.store, driving.detached().experiment)
    run = driving.here(progress=progress)
    assert run is not None
    check_result(run)
    return run


# Looking at them


@dataclass(frozen=True)
class ExperimentSummary:
    """An experiment in a line.

    Attributes:
        experiment: its id.
        status: as ``Run.status``; ``"unreadable"``: its journal is damaged, ``error`` says how, and the rest is empty.
        name, description, labels: of its configuration.
        created: when it was begun, in seconds since 1970.
        trials: how many there are so far.
        metric: by which trials are ranked, a key of histories.
        best: the best value so far, None without any.
        holder: who drives it now (``host``, ``pid``, ``since``), or None.
        error: None, or why it cannot be read, or the failure for which its last driver gave up: all trials failed alike
            before any unit was done.
    """

    experiment: str
    status: str
    name: str | None = None
    description: str = ""
    labels: tuple[str, ...] = ()
    created: float | None = None
    trials: int | None = None
    metric: str | None = None
    best: float | None = None
    holder: dict[str, Any] | None = None
    error: str | None = None


def experiment_ids(store: Store) -> list[str]:
    """The ids of all experiments in a store, sorted."""
    return [run_id for run_id in list_runs(store) if run_id.startswith(PREFIX)]


def list_experiments(store: Store | str | os.PathLike[str]) -> list[ExperimentSummary]:
    """The experiments in a store, in the order in which they were begun."""
    opened = open_store(store)
    found = [_summary(opened, run_id) for run_id in experiment_ids(opened)]
    return sorted(found, key=lambda each: (each.created or 0.0, each.experiment))


def _summary(store: Store, run_id: str) -> ExperimentSummary:
    try:
        run = summary(store, run_id)
    except StorageError as error:  # one that cannot be read hides no other
        return ExperimentSummary(run_id, UNREADABLE, error=str(error))
    config = run.header["experiment"]["config"]
    return ExperimentSummary(
        run_id, run.status, config.get("name"), config.get("description", ""), tuple(config.get("labels", ())),
        run.created, run.trials, run.metric, run.best, run.holder,
        run.error,
    )  # fmt: skip


def open_experiment(store: Store | str | os.PathLike[str], experiment: str) -> Run:
    """An experiment, finished or not, by its id.

    Raises:
        NotFoundError: there is none; the message lists those there are.
        UsageError: it is a run of a search.
    """
    opened = open_store(store)
    folder = find_experiment(opened, experiment)
    held = holder(folder)  # before reading: what a driver writes is there before it lets go
    run = Run(folder, experiment, list(read_records(folder)), held)
    if "experiment" not in run.state.header:
        raise UsageError(
            f"{experiment} is a run of a {run.settings['kind']} search, and no experiment. See it with `hopyard run "
            f"describe {opened.url} {experiment}`."
        )
    return run


def find_experiment(store: Store, experiment: str) -> Store:
    """The folder of an experiment.

    Raises:
        NotFoundError: there is none; the message lists those there are.
    """
    return find_run(store, experiment, what="experiment", list_known=experiment_ids)


# Going on with them


def resume(
    store: Store | str | os.PathLike[str],
    experiment: str,
    backend: Backend | str | None = None,
    *,
    take_over: bool = False,
    progress: bool = True,
    detach: bool = False,
) -> Run:
    """Go on with an experiment: one that is paused is let go on by its driver; one that nobody drives is driven again,
    from its configuration and code in the store. A finished one is returned as it is, unless a clone was asked for.

    Args:
        backend: as of ``create``. None: as it was driven last.
        take_over: also if another driver seems to hold it, for one that hangs or cannot be reached.
        progress, detach: as of ``create``.

    Raises:
        RunHeldError: another process drives it, and it is not paused.
        What ``create`` raises.
    """
    opened = open_store(store)
    run = open_experiment(opened, experiment)
    if run.is_done:
        return run
    if run.holder is not None and not take_over:
        check_paused(opened, run)
        run.resume()
        return run
    return _driven(resumed(opened, run, backend, take_over=take_over), progress, detach)


def check_paused(store: Store, run: Run) -> None:
    """Raise RunHeldError if a run that another process drives is not paused."""
    held = run.holder
    if held is not None and run.status != "paused":
        where = f"{run.run_id} --store {store.url}"
        raise RunHeldError(
            f"{run.run_id} is driven by another process ({describe_holder(held)}) and is not paused. Look at it with "
            f"`hopyard experiment logs --follow {where}`. If that process hangs or cannot be reached: "
            f"hopyard experiment resume --take-over {where}"
        )


def resumed(
    store: Store,
    run: Run,
    backend: Backend | str | None = None,
    workers: int | None = None,
    *,
    take_over: bool = False,
) -> Driving:
    """What the next driver of an experiment is to do."""
    about = run.state.header["experiment"]
    if backend is None:
        last = run.state.session
        if last.get("backend") in BACKENDS:
            backend, workers = last["backend"], workers or last["workers"]
    warm = about.get("warm_start")
    return Driving(
        complete(about["config"]), about["definition"], store, backend, workers, run_id=run.run_id, take_over=take_over,
        warm_start=None if warm is None else WarmStart.from_json(warm),
    )  # fmt: skip


# Forks


def fork(
    store: Store | str | os.PathLike[str],
    experiment: str,
    overrides: Sequence[str] = (),
    backend: Backend | str | None = None,
    *,
    warm_start: int | str | None = None,
    progress: bool = True,
    detach: bool = False,
) -> Run:
    """Run another experiment with the same code and a changed configuration.

    Args:
        overrides: texts such as ``"searcher.max_trials=4"``.
        backend: as of ``create``.
        warm_start: the trial of the first experiment from whose best weights all trials begin: its number, or
            ``"best"``. None: they begin anew.
        progress, detach: as of ``create``.

    Raises:
        NotFoundError: there is no such experiment or trial, or its weights were not kept.
        UsageError: nothing differs that decides results.
        What ``create`` raises.
    """
    opened = open_store(store)
    return _driven(forked(opened, experiment, overrides, backend, warm_start=warm_start), progress, detach)


def forked(
    store: Store,
    experiment: str,
    overrides: Sequence[str],
    backend: Backend | str | None = None,
    workers: int | None = None,
    *,
    warm_start: int | str | None = None,
) -> Driving:
    """What the driver of a fork is to do."""
    run = open_experiment(store, experiment)
    about = run.state.header["experiment"]
    config = complete(
        override(about["config"], overrides),
        f"the configuration of {experiment} with --config {' '.join(overrides)}",
    )
    if warm_start is None and config.settings == run.settings["experiment"]:
        raise UsageError(
            f"a fork of {experiment} was asked for, but no field was changed that decides results, so that it would be "
            "the same experiment. Give --config KEY=VALUE, such as --config seed=1, or --warm-start best."
        )
    warm = None if warm_start is None else _warm_start(store, run, warm_start)
    return Driving(config, about["definition"], store, backend, workers, warm_start=warm)


def _warm_start(store: Store, run: Run, trial: int | str) -> WarmStart:
    """The best weights of a trial, kept by content where they do not go with the trial.

    Raises:
        NotFoundError: the trial has none, or they were not kept; or its function saved nothing.
    """
    model = model_of(run, trial)
    tree = load_state(*model.weights(), verify=True)
    if not tree:
        raise NotFoundError(
            f"trial {model.trial} of {run.run_id} saved no state to begin from. Call context.save({{...}}) before "
            "context.report in its function."
        )
    state = save_state(store.at(WarmStart.FOLDER), tree)
    return WarmStart(run.run_id, model.trial, model.info.epoch, state)


def model_of(run: Run, trial: int | str) -> Model:
    """The model of a trial, by its number or as ``"best"``, whose weights were kept.

    Raises:
        NotFoundError: there is no such trial, it has no result, or its weights were not kept.
        UsageError: ``trial`` is neither.
    """
    if trial != "best" and not str(trial).isdecimal():
        raise UsageError(
            f"a trial is named by its number or as best, but {trial!r} was given. Write 0 or best."
        )
    model = run.best if trial == "best" else run.model(int(trial))
    store, state = model.weights()
    if not all(store.exists(name) for name in state.files):
        if model.trial == run.state.best:
            raise NotFoundError(
                f"the weights of trial {model.trial} of {run.run_id}, its best one, are no longer in {store.url}: "
                "somebody deleted them. Put them back there from a copy, or train again with `hopyard experiment "
                "create --fresh`."
            )
        raise NotFoundError(
            f"the weights of trial {model.trial} of {run.run_id} were not kept: those of completed trials and of the "
            "best one are. Write checkpoints: {keep: all} into the configuration to keep every trial's."
        )
    return model


# Deletion


def delete(store: Store | str | os.PathLike[str], experiment: str) -> None:
    """Delete an experiment: its journal, states, logs and TensorBoard files, and its model definition if no other run
    of the store has the same.

    The definition of an experiment that another process begins meanwhile stays, or is put back; a fork that begins
    from the same weights may miss them before its run can be seen, and can be made again.

    Raises:
        RunHeldError: another process drives it. Nothing was deleted.
        NotFoundError: there is none; the message lists those there are.
    """
    opened = open_store(store)
    folder = find_experiment(opened, experiment)
    own = objects_of(header_of(opened, experiment))
    logs = opened.logs.at(experiment)
    written = set(logs.names())
    try:
        remove_run(folder)
    except RunHeldError:
        held = holder(folder)
        if held is None:  # it was taken over from somebody who has not ended
            raise
        raise RunHeldError(
            f"{experiment} was not deleted, since another process drives it ({describe_holder(held)}). End it with "
            f"`hopyard experiment kill {experiment} --store {opened.url}`, and delete it then."
        ) from None
    if not has_records(folder):  # else it has begun anew, and writes others
        written |= set(logs.names())
    for name in written:
        logs.delete(name)
    remove_empty_directories(logs)
    delete_unneeded(opened, own)
